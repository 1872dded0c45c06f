"""Settings of the image experiments: the paper's, and ones chosen on held-out images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from spikeslab.errors import check_choice
from spikeslab.presets import paper_mnist
from spikeslab.priors import SA, Fixed
from spikeslab.schedules import Schedule, cosine, polynomial, waves


@dataclass(frozen=True)
class Recipe:
    """Settings of all four methods.

    Attributes:
        name: Its name.
        batch_size: Images in a batch.
        lr: Learning rate of the samplers at the start, in the units of SGD.
        sampling_lr: Learning rate that it falls to, and at which samples are taken; ``None`` keeps ``lr``.
        crest_lr: Learning rate that it rises to between two samples; ``None`` keeps ``sampling_lr``.
        temperature: Temperature of the samplers.
        v0: Scale of the spike.
        v1: Variance of the slab.
        weight_decay: Weight decay of what the prior does not cover.
        sigma_coupling: Whether sigma is learnt (``"conjugate"``) or stays (``"fixed"``).
        burn_in: Share of the steps before the first sample.
        samples: Samples of the posterior, of each chain.
        chains: Chains that share the epochs of a sampler; a baseline trained by Adam has all epochs for itself.
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

    def settings(self, *, sampled: bool) -> dict[str, Any]:
        """What a chain of the samplers uses, or what Adam does."""
        of_adam = {"name": self.name, "batch_size": self.batch_size, "adam_lr": self.adam_lr}
        of_chain = {name: value for name, value in asdict(self).items() if name != "chains"} | {"adam_lr": None}
        return of_chain if sampled else of_adam

    def sampler(self, num_data: int, steps: int) -> dict[str, Any]:
        """Arguments of SGHMC."""
        return {
            "lr": self.learning_rate(steps),
            "momentum": 0.9,
            "num_data": num_data,
            "temperature": self.temperature,
            "weight_decay": self.weight_decay,
        }

    def learning_rate(self, steps: int) -> float | Schedule:
        """The learning rate of a run: it falls along a cosine in the burn-in, and stays or rises between samples."""
        if self.sampling_lr is None:
            return self.lr
        burn_in, thin = self.thinning(steps)
        if self.crest_lr is None:
            return cosine(self.lr, max(1, burn_in), final=self.sampling_lr)
        return waves(self.lr, max(1, burn_in), low=self.sampling_lr, high=self.crest_lr, period=thin)

    def prior(self, adaptive: bool, size: int) -> dict[str, Any]:
        """Arguments of the prior of ``size`` weights, whose a and b are that number as in the paper.

        The baseline keeps its initial values.
        """
        given = {**paper_mnist().prior, "a": float(size), "b": float(size)}
        adapt = SA(polynomial(1.0, power=0.75, offset=1000)) if adaptive else Fixed()
        scales = {"v0": self.v0, "v1": self.v1, "sigma_coupling": self.sigma_coupling}
        return {**given, **scales, "adapt": adapt}

    def thinning(self, steps: int) -> tuple[int, int]:
        """Burn-in and distance of the samples, so that the last one is taken at the last step."""
        thin = max(1, round((1.0 - self.burn_in) * steps) // self.samples)
        return max(0, steps - self.samples * thin), thin


def paper_recipe(dataset: str) -> Recipe:
    """The paper's settings (section 5.2), with samples spread over the second half of a shorter run."""
    preset = paper_mnist(check_choice("dataset", dataset, ("mnist", "fashion")))
    return Recipe(
        name="paper",
        batch_size=preset.batch_size,
        lr=float(preset.sampler["lr"]),
        temperature=float(preset.sampler["temperature"]),
        v0=preset.prior["v0"],
        v1=preset.prior["v1"],
    )


def tuned_recipe(dataset: str) -> Recipe:
    """Settings chosen on the held-out images of each data set (``benchmarks/image_search.py``)."""
    check_choice("dataset", dataset, ("mnist", "fashion"))
    return Recipe(
        name="tuned",
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


def augmented_recipe(dataset: str) -> Recipe:
    """Settings for images that are changed at random, chosen on held-out images of Fashion-MNIST.

    A network knows images by heart after a dozen epochs, and changed ones it does not: one chain has all epochs. Its
    lr ends lower than without augmentation, since waves up to 0.05 undo what the fall has reached.
    """
    check_choice("dataset", dataset, ("mnist", "fashion"))
    return Recipe(
        name="tuned",
        batch_size=100,
        lr=0.05,
        sampling_lr=0.002,
        crest_lr=0.01,
        temperature=0.001,
        v0=0.5,
        v1=10.0,
        weight_decay=1e-4,
        sigma_coupling="fixed",
        burn_in=0.75,
        samples=16,
    )


RECIPES = {"paper": paper_recipe, "tuned": tuned_recipe}
"""Settings by the names that commands use."""
AUGMENTED = {"paper": paper_recipe, "tuned": augmented_recipe}
"""The same for images that are changed at random."""


def make_recipe(name: str, dataset: str, *, augment: bool = False) -> Recipe:
    """Settings by name."""
    return (AUGMENTED if augment else RECIPES)[check_choice("name", name, RECIPES)](dataset)
