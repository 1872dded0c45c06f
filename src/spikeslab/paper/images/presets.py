"""Presets of the image experiments: the paper's, and ours, chosen on held-out images."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from spikeslab.errors import check_choice
from spikeslab.presets import paper_mnist
from spikeslab.priors import SA, Fixed
from spikeslab.schedules import Schedule, cosine, polynomial, waves


@dataclass(frozen=True)
class ImagePreset:
    """Hyper-parameters of all four methods.

    Attributes:
        name: Name of the preset.
        batch_size: Images in a mini-batch.
        lr: Learning rate of the samplers at the start, in the units of SGD.
        temperature: Temperature of the samplers.
        v0: Scale of the spike.
        v1: Variance of the slab.
        weight_decay: Weight decay of the parameters without a prior.
        sampling_lr: Learning rate at which samples are taken; ``None`` keeps ``lr``.
        crest_lr: Learning rate between two samples; ``None`` keeps ``sampling_lr``.
        sigma_coupling: ``"conjugate"`` learns sigma, ``"fixed"`` keeps it.
        burn_in: Share of the steps before the first sample.
        samples: Samples of each chain.
        chains: Chains that share the epochs of a sampler; Adam has one.
        adam_lr: Learning rate of Adam, for Vanilla and Dropout.
    """

    name: str
    batch_size: int
    lr: float
    temperature: float
    v0: float
    v1: float
    weight_decay: float = 0.0
    sampling_lr: float | None = None
    crest_lr: float | None = None
    sigma_coupling: str = "conjugate"
    burn_in: float = 0.5
    samples: int = 20
    chains: int = 1
    adam_lr: float = 1e-3

    def record(self, *, sampled: bool) -> dict[str, Any]:
        """Return the values that one chain of a sampler uses, or those that Adam uses."""
        if not sampled:
            return {"name": self.name, "batch_size": self.batch_size, "adam_lr": self.adam_lr}
        return {name: value for name, value in asdict(self).items() if name != "chains"} | {"adam_lr": None}

    def learning_rate(self, steps: int) -> float | Schedule:
        """Return the learning rate of a run: a cosine down to ``sampling_lr``, then waves up to ``crest_lr``."""
        if self.sampling_lr is None:
            return self.lr
        burn_in, thin = self.thinning(steps)
        if self.crest_lr is None:
            return cosine(self.lr, max(1, burn_in), final=self.sampling_lr)
        return waves(self.lr, max(1, burn_in), low=self.sampling_lr, high=self.crest_lr, period=thin)

    def prior(self, adaptive: bool, size: int) -> dict[str, Any]:
        """Return the arguments of the prior of ``size`` weights, with a = b = ``size`` as in the paper.

        Without ``adaptive`` the latents keep their initial values.
        """
        given = {**paper_mnist().prior, "a": float(size), "b": float(size)}
        adapt = SA(polynomial(1.0, power=0.75, offset=1000)) if adaptive else Fixed()
        scales = {"v0": self.v0, "v1": self.v1, "sigma_coupling": self.sigma_coupling}
        return {**given, **scales, "adapt": adapt}

    def thinning(self, steps: int) -> tuple[int, int]:
        """Return the burn-in and the distance between samples; the last sample is taken at the last step."""
        thin = max(1, round((1.0 - self.burn_in) * steps) // self.samples)
        return max(0, steps - self.samples * thin), thin


def _paper(dataset: str) -> ImagePreset:
    """Return the paper's values (section 5.2), with samples over the second half of a shorter run."""
    paper = paper_mnist(dataset)
    lr, temperature = float(paper.sampler["lr"]), float(paper.sampler["temperature"])
    return ImagePreset("paper", paper.batch_size, lr, temperature, v0=paper.prior["v0"], v1=paper.prior["v1"])


def _default(dataset: str) -> ImagePreset:
    """Return the values chosen on the held-out images of each data set by ``spikeslab reproduce image-search``."""
    return ImagePreset(
        name="default",
        batch_size=100,
        lr=0.1 if dataset == "fashion" else 0.05,
        sampling_lr=0.01,
        crest_lr=0.05,
        temperature=0.02 if dataset == "fashion" else 0.001,
        v0=0.5,
        v1=10.0,
        weight_decay=5e-4,
        sigma_coupling="fixed",
        burn_in=0.6,
        samples=8,
        chains=3,
    )


def _default_augmented(dataset: str) -> ImagePreset:
    """Return the values for augmented images, chosen on held-out images of Fashion-MNIST.

    Augmented images take longer to learn by heart, so one chain has all epochs. The lr ends lower than without
    augmentation, since waves up to 0.05 undo what the fall has reached.
    """
    own = replace(_default(dataset), temperature=0.001, weight_decay=1e-4, burn_in=0.75, samples=16, chains=1)
    return replace(own, lr=0.05, sampling_lr=0.002, crest_lr=0.01)


PRESETS = {"paper": _paper, "default": _default}
AUGMENTED = {"paper": _paper, "default": _default_augmented}


def make_preset(name: str, dataset: str, *, augment: bool = False) -> ImagePreset:
    """Return the preset ``"paper"`` or ``"default"`` for ``"mnist"`` or ``"fashion"``."""
    check_choice("preset", name, PRESETS)
    return (AUGMENTED if augment else PRESETS)[name](check_choice("dataset", dataset, ("mnist", "fashion")))
