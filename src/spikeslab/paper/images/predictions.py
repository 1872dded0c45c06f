"""What a trained network says of images: probabilities of every part, and the metrics of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from spikeslab.metrics import detection, entropy, mutual_information
from spikeslab.paper.images.augmentation import Normalize
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.training import CheckpointError, describe_classifier

PREDICTIONS = "predictions.safetensors"
HELD, FOREIGN = "held_out", "foreign"


@dataclass(frozen=True)
class Part:
    """Images in bytes that are predicted after the last step, with their labels where these mean something."""

    images: Tensor
    labels: Tensor | None = None


@torch.no_grad()
def predict(model: nn.Module, normalize: Normalize, images: Tensor, batch_size: int = 250) -> Tensor:
    """Probabilities of images in bytes, in evaluation mode; none is 0, so that every log is finite."""
    with eval_mode(model):
        parts = [
            model(normalize(batch).contiguous(memory_format=torch.channels_last)).softmax(dim=1)
            for batch in images.split(batch_size)
        ]
    probabilities = torch.cat(parts)
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)


def describe(predictions: Mapping[str, Tensor], parts: Mapping[str, Part]) -> dict[str, Any]:
    """Metrics of the last weights (``point``) and of the posterior average on every part."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if part.labels is not None:
            found[name] = {
                kind: describe_classifier(each, part.labels) for kind, each in kinds_of(predictions, name).items()
            }
    foreign = kinds_of(predictions, FOREIGN)
    found[FOREIGN] = {
        kind: {"entropy": asdict(detection(entropy(own), entropy(foreign[kind])))}
        for kind, own in kinds_of(predictions, "test").items()
    }
    if "test.samples" in predictions:
        spread = [mutual_information(predictions[f"{name}.samples"]) for name in ("test", FOREIGN)]
        found[FOREIGN]["average"]["mutual_information"] = asdict(detection(*spread))
    return found


def kinds_of(predictions: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Probabilities of the images of a part: of the last weights and, where there are samples, of their average."""
    kinds = {"point": predictions[f"{part}.point"]}
    if f"{part}.samples" in predictions:
        kinds["average"] = predictions[f"{part}.samples"].mean(dim=0)
    return kinds


def read_predictions(folder: Path) -> dict[str, Tensor]:
    """Probabilities of all parts: ``part.point`` and ``part.samples``.

    Raises:
        CheckpointError: If they are not there or cannot be read.
    """
    path = folder / PREDICTIONS
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} must be the predictions of the run, but cannot be read ({error}): delete "
            f"{folder / 'result.json'} and go on with --resume, which predicts again."
        ) from error
