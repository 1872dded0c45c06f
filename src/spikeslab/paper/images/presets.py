"""Presets of the image experiments: the paper's, and ours, chosen on held-out images."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from spikeslab.errors import check_choice
from spikeslab.presets import paper_mnist
from spikeslab.priors import SA, Fixed
from spikeslab.schedules import Schedule, cosine, polynomial

OMEGA_POWER, OMEGA_OFFSET = 0.75, 1000
"""Exponent and offset of the paper's omega, (k + 1000)^-0.75."""
COMMON = ("epochs", "batch_size", "lr", "final_lr", "warmup", "weight_decay", "standardised")
AUGMENTATION = ("crop", "rotation", "erasing", "pool_dropout")
PRIOR = ("v0", "v1", "rho", "omega_sum", "strong_prior")
SAMPLING = ("num_data", "burn_in", "samples")
USED = {
    "vanilla": ("adam_lr",),
    "dropout": ("adam_lr",),
    "swa": ("swa_lr", "swa_start"),
    "psgld": (*SAMPLING, "psgld_lr", "psgld_final_lr", "psgld_temperature"),
    "sghmc": (*SAMPLING, "plain_temperature", "frozen_prior"),
    "sghmc-sa": (*SAMPLING, "temperature"),
}
"""Values that a method uses besides those that all use: a change of any other leaves its runs valid."""


@dataclass(frozen=True)
class ImagePreset:
    """Hyper-parameters of all methods; a number here may be changed in a trial.

    Attributes:
        name: Name of the preset.
        epochs: Epochs of each chain or network.
        chains: Independent chains of a sampler, or networks of an optimizer.
        batch_size: Images in a mini-batch.
        lr: Learning rate, in the units of SGD.
        final_lr: Learning rate at the last step, at the end of half a cosine; ``None`` keeps ``lr``.
        warmup: Epochs in which the learning rate rises to ``lr``, at most half of the run.
        weight_decay: Weight decay of the parameters without a prior.
        temperature: Temperature of SGHMC-SA.
        plain_temperature: Temperature of SGHMC.
        num_data: N of the posterior; ``None`` takes the number of training images.
        v0: Scale of the spike.
        v1: Variance of the slab; ``None`` takes 1/(N weight_decay), with which the slab is the weight decay.
        rho: Initial probability of the slab.
        omega_sum: Sum of omega over the run, which scales (k + 1000)^-0.75; ``None`` leaves it unscaled.
        strong_prior: If True, a = b = p, nu = lambda = 1000 and sigma is learned, as in the paper; if False, a = 1,
            b = p and sigma is fixed.
        frozen_prior: If True, SGHMC has the prior with the initial latents, as in the paper; if False, weight decay.
        burn_in: Share of the steps before the first sample.
        samples: Samples of each chain.
        adam_lr: Learning rate of Adam for Vanilla and Dropout; ``None`` trains them as SGHMC at temperature 0, which is
            SGD with momentum.
        swa_lr: Learning rate at which the weights of SWA are averaged.
        swa_start: Share of the steps before the first averaged weights.
        psgld_lr: Learning rate of pSGLD, in the units of RMSprop.
        psgld_final_lr: Learning rate of pSGLD at the last step.
        psgld_temperature: Temperature of pSGLD.
        standardised: If True, pixels have mean 0 and variance 1; if False they are in [0, 1], or with augmentation
            normalised by the constants of MNIST.
        crop: Pixels of padding of the random crop.
        rotation: Largest rotation in degrees, for MNIST.
        erasing: If True, rectangles are erased, for Fashion-MNIST.
        pool_dropout: If True, the network for augmented images drops units behind its poolings.
        laplace_precision: Prior precision of the last-layer Laplace approximation; ``None`` chooses it on the held-out
            images, or without any by the evidence.
    """

    name: str
    epochs: int
    chains: int
    batch_size: int
    lr: float
    temperature: float
    plain_temperature: float
    v0: float
    v1: float | None = None
    final_lr: float | None = None
    warmup: float = 0.0
    weight_decay: float = 0.0
    num_data: int | None = None
    rho: float = 0.5
    omega_sum: float | None = None
    strong_prior: bool = False
    frozen_prior: bool = False
    burn_in: float = 0.8
    samples: int = 8
    adam_lr: float | None = None
    swa_lr: float = 0.02
    swa_start: float = 0.75
    psgld_lr: float = 1e-3
    psgld_final_lr: float = 1e-5
    psgld_temperature: float = 1e-3
    standardised: bool = True
    crop: int = 2
    rotation: float = 10.0
    erasing: bool = False
    pool_dropout: bool = False
    laplace_precision: float | None = None

    def record(self, method: str, *, augment: bool) -> dict[str, Any]:
        """Return the values that decide one chain or network of a method."""
        names = COMMON + USED[method] + (AUGMENTATION if augment else ())
        if method == "sghmc-sa" or (method == "sghmc" and self.frozen_prior):
            names += PRIOR
        return {name: value for name, value in asdict(self).items() if name in names}

    def learning_rate(self, method: str, steps: int, per_epoch: int) -> float | Schedule:
        """Return the learning rate of a run; that of SWA stays at ``swa_lr`` from ``swa_start`` on."""
        if method == "psgld":
            return _rise_and_fall(self.psgld_lr, self.psgld_final_lr, steps, self.warmup * per_epoch)
        if method == "swa":
            start = max(1, round(self.swa_start * steps))
            return _rise_and_fall(self.lr, self.swa_lr, start, self.warmup * per_epoch)
        if self.final_lr is None:
            return self.lr
        return _rise_and_fall(self.lr, self.final_lr, steps, self.warmup * per_epoch)

    def prior(self, adaptive: bool, size: int, num_data: int, steps: int) -> dict[str, Any]:
        """Return the arguments of the prior of ``size`` weights; without ``adaptive`` the latents do not move."""
        scale = 1.0
        if self.omega_sum is not None:
            scale = self.omega_sum / sum((k + OMEGA_OFFSET) ** -OMEGA_POWER for k in range(1, steps + 1))
        given: dict[str, Any] = {
            "v0": self.v0,
            "v1": 1.0 / (num_data * self.weight_decay) if self.v1 is None else self.v1,
            "rho": self.rho,
            "sigma_coupling": "fixed",
            "adapt": SA(polynomial(scale, power=OMEGA_POWER, offset=OMEGA_OFFSET)) if adaptive else Fixed(),
        }
        if self.strong_prior:
            own = ("v0", "v1", "adapt")
            strong = {name: value for name, value in paper_mnist().prior.items() if name not in own}
            given |= strong | {"a": float(size), "b": float(size)}
        return given

    def thinning(self, method: str, steps: int, per_epoch: int) -> tuple[int, int]:
        """Return the burn-in and the distance between samples; the last sample is taken at the last step.

        SWA averages the weights at the ends of the epochs after ``swa_start``.
        """
        if method == "swa":
            thin = min(per_epoch, steps)
            count = max(1, round((1.0 - self.swa_start) * steps) // thin)
            return steps - count * thin, thin
        thin = max(1, round((1.0 - self.burn_in) * steps) // self.samples)
        return max(0, steps - self.samples * thin), thin


def _rise_and_fall(lr: float, final: float, steps: int, warmup: float) -> Schedule:
    return cosine(lr, steps, final=final, warmup=min(round(warmup), steps // 2))


def _paper(dataset: str) -> ImagePreset:
    """Return the paper's values (section 5.2), with a sample every 500 steps of the second half of 200 epochs."""
    paper = paper_mnist(dataset)
    lr, temperature = float(paper.sampler["lr"]), float(paper.sampler["temperature"])
    return ImagePreset(
        name="paper",
        epochs=200,
        chains=1,
        batch_size=paper.batch_size,
        lr=lr,
        temperature=temperature,
        plain_temperature=temperature,
        v0=paper.prior["v0"],
        v1=paper.prior["v1"],
        strong_prior=True,
        frozen_prior=True,
        burn_in=0.5,
        samples=12,
        adam_lr=1e-3,
        standardised=False,
        crop=4,
        rotation=15.0,
        erasing=True,
        pool_dropout=True,
    )


def _paper_600k(dataset: str) -> ImagePreset:
    """Return the paper's values with N = 600,000, as a comment in its source has it: the lr is ten times as large."""
    paper = _paper(dataset)
    return replace(paper, name="paper-600k", num_data=600_000, lr=10.0 * paper.lr)


def _default(dataset: str) -> ImagePreset:
    """Return our values, chosen on held-out images by ``spikeslab reproduce image-search``."""
    return ImagePreset(
        name="default",
        epochs=40,
        chains=4,
        batch_size=100,
        lr=0.1,
        final_lr=1e-4,
        warmup=1.0,
        weight_decay=5e-4,
        temperature=0.05,
        plain_temperature=0.01,
        v0=0.005,
        rho=1.0,
        omega_sum=1.0,
    )


PRESETS = {"default": _default, "paper": _paper, "paper-600k": _paper_600k}
AUGMENTED_EPOCHS = {"paper": {"mnist": 200, "fashion": 1000}, "default": {"mnist": 200, "fashion": 200}}
"""Epochs of runs with augmentation; those of the paper are the paper's."""


def make_preset(name: str, dataset: str, *, augment: bool = False) -> ImagePreset:
    """Return the preset ``"default"``, ``"paper"`` or ``"paper-600k"`` for ``"mnist"`` or ``"fashion"``.

    With ``augment`` it has the epochs of augmented images, and ours one chain.
    """
    check_choice("preset", name, PRESETS)
    preset = PRESETS[name](check_choice("dataset", dataset, ("mnist", "fashion")))
    if not augment:
        return preset
    return replace(preset, epochs=AUGMENTED_EPOCHS["default" if name == "default" else "paper"][dataset], chains=1)
