"""Samples as ArviZ InferenceData, for its plots, summaries and files.

Groups: ``posterior`` holds the parameters by name and, where they were kept, the latents ``sigma`` and ``delta`` (one
for each layer); ``predictions`` holds the prediction of every sample on given inputs; ``sample_stats`` holds the step
and the weight of each sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spikeslab.errors import ArgumentValueError, MissingExtraError, Phrase, check_count, quote
from spikeslab.posterior.convergence import DELTA, common_length, latent_draws, prediction_draws

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikeslab.posterior.posterior import Posterior

PREDICTION = "prediction"


def import_arviz() -> Any:
    """Return the module ArviZ.

    Raises:
        MissingExtraError: If it is not installed; the message says how to get it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the next version will differ; pyproject.toml asks for this
            import arviz
    except ImportError as error:
        raise MissingExtraError("to_arviz() needs ArviZ: pip install 'spikeslab[arviz]'.") from error
    return arviz


def to_inference_data(
    posteriors: Sequence[Posterior],
    inputs: tuple[Any, ...],
    *,
    weights: str | Sequence[str],
    limit: int | None,
    thin: int,
    batch_size: int | None,
    seed: int,
) -> Any:
    """Convert the samples of one or several chains; arguments as in :meth:`Posterior.to_arviz`."""
    arviz = import_arviz()
    check_count("thin", thin)
    length = common_length(posteriors)
    # The last sample stays, whatever the thinning.
    kept = slice((length - 1) % thin, None, thin)
    coords: dict[str, Any] = {}
    dims: dict[str, list[str]] = {}
    places = _places(posteriors[0], weights, limit, seed)
    draws: dict[str, NDArray[Any]] = _parameters(posteriors, places, length, kept)
    for name, index in places.items():
        if index is not None:
            dims[name], coords[f"{name}_index"] = [f"{name}_index"], index
    for name, latents in latent_draws(posteriors, length).items():
        draws[name] = latents[:, kept]
        if name == DELTA:
            dims[DELTA], coords["layer"] = ["layer"], list(posteriors[0].records[-1].delta or {})
    records = [posterior.records[-length:][kept] for posterior in posteriors]
    groups: dict[str, Any] = {
        "posterior": draws,
        "sample_stats": {
            "step": np.array([[record.step for record in chain] for chain in records]),
            "weight": np.array([[record.weight for record in chain] for chain in records]),
        },
    }
    if inputs:
        groups["predictions"] = {PREDICTION: prediction_draws(posteriors, inputs, batch_size, length)[:, kept]}
    return arviz.from_dict(**groups, dims=dims, coords=coords)


def _places(
    posterior: Posterior, weights: str | Sequence[str], limit: int | None, seed: int
) -> dict[str, NDArray[np.int64] | None]:
    """Return the elements to keep of each chosen parameter; ``None`` keeps all."""
    patterns = [weights] if isinstance(weights, str) else list(weights)
    sizes = {name: param.numel() for name, param in posterior.model.named_parameters()}
    chosen = {name: size for name, size in sizes.items() if any(fnmatchcase(name, p) for p in patterns)}
    if not chosen:
        expectation = f"must match parameters among {quote(sizes)}"
        raise ArgumentValueError("weights", expectation, Phrase(f"got {quote(patterns)}"))
    if limit is None:
        return dict.fromkeys(chosen)
    check_count("limit", limit)
    rng = np.random.default_rng(seed)
    return {
        name: None if size <= limit else np.sort(rng.choice(size, limit, replace=False))
        for name, size in chosen.items()
    }


def _parameters(
    posteriors: Sequence[Posterior], places: dict[str, NDArray[np.int64] | None], length: int, kept: slice
) -> dict[str, NDArray[Any]]:
    def take(tensor: torch.Tensor, index: NDArray[np.int64] | None) -> NDArray[Any]:
        array: NDArray[Any] = (tensor if tensor.dtype == torch.float64 else tensor.float()).numpy()
        return array if index is None else array.reshape(-1)[index]

    chains = [map(p.tensors, range(len(p))[-length:][kept]) for p in posteriors]
    taken = [[{name: take(sample[name], places[name]) for name in places} for sample in chain] for chain in chains]
    return {name: np.array([[sample[name] for sample in chain] for chain in taken]) for name in places}
