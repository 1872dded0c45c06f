"""Settings of a compression, apart from the method, and their timeline in steps.

Times are shares of the run, so that the same settings serve 5 epochs and 500. A run has these parts::

    0 ... warmup_until ............... prune_until ... freeze_from ... collect_from ........ 1
      lr rises          sparsity rises             projected     frozen mask       samples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spikeslab.errors import ArgumentTypeError, check_choice, check_count, check_number
from spikeslab.functional.patterns import parse_pattern
from spikeslab.presets import paper_cifar10
from spikeslab.pruning.allocation import floors
from spikeslab.pruning.base import SCOPES
from spikeslab.pruning.pruner import RANKS
from spikeslab.schedules import (
    Schedule,
    constant,
    cosine,
    cubic_sparsity,
    exponential_sparsity,
    geometric,
    multistep,
    waves,
)
from spikeslab.training.loop import FLOAT32, PRECISIONS

CHOICES = {
    "lr_schedule": ("cosine", "waves", "steps", "constant"), "ramp": ("cubic", "exponential"), "scope": SCOPES,
    "omega": ("rising", "falling"), "rank": RANKS,
    "precision": PRECISIONS,
}  # fmt: skip
ALLOWED = {
    **dict.fromkeys(("lr", "weight_decay", "cooling", "softening", "v0", "v1", "strength", "sigma"), "> 0"),
    **dict.fromkeys(("temperature", "omega_sum"), ">= 0"),
    **dict.fromkeys(("final_lr", "crest_lr", "distillation", "rho"), "[0, 1]"),
    **dict.fromkeys(("momentum", "warmup_until"), "[0, 1)"),
    "prune_until": "(0, 1]",
}
OPTIONAL = ("lr", "rank", "scope", "sigma", "v0", "v1", "strength")
OLD_NAMES = {"warmup": "warmup_until", "freeze_at": "freeze_from"}
"""Names that settings had in earlier records, and their present names."""
OLD_METHODS = {"one-shot": "magnitude"}
"""Names that methods had in earlier records, and their present names."""
UNKNOWN_LR = 0.05
"""The lr of a network of which nothing is known."""
LEAST_PRUNINGS = 20
"""Number of times that zeros are chosen in a short ramp."""
DROP = 0.1
"""Factor of the lr at each of the ``drops``, as in the paper."""
PAPER_HALVINGS = 14.5
"""Halvings of what is left to prune over the whole run: log2(0.99 ** -1000), of the paper's D = 0.99 in 1000 epochs."""
PAPER_STEPS, PAPER_LR, PAPER_COOLING, PAPER_OMEGA_SUM = 50_000, 1e-4, 1.005**1000, 0.752
"""Settings of the paper's run on CIFAR-10 that depend on its number of steps."""


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of a compression, the same for all methods.

    Attributes:
        lr: Highest learning rate, in units of ``torch.optim.SGD``; ``None`` finds it by short trials on the
            training data (:mod:`spikeslab.compression.lr_search`).
        lr_schedule: ``"cosine"``, ``"waves"`` (a cosine until samples begin, then one wave for each sample, which is
            taken in its trough), ``"steps"`` (a tenth after each of ``drops``, the paper's) or ``"constant"``.
        final_lr: End of the cosine and troughs of the waves, as a share of ``lr``.
        crest_lr: Crests of the waves, as a share of ``lr``.
        drops: Times at which the lr of ``"steps"`` falls to a tenth, as shares of the run.
        warmup_until: Time until which the lr rises from zero.
        momentum: Momentum of SGHMC, 1 minus the friction.
        weight_decay: L2 penalty, in units of the mean loss, of weights without a prior.
        sigma: Standard deviation of the noise of a regression, whose loss is the mean squared error over 2 sigma^2:
            the Gaussian likelihood. ``None`` estimates it from the residuals of the dense network on training batches.
        temperature: T of the sampler: 1 is the Bayes posterior, 0 is SGD. Baselines without a prior ignore it.
        cooling: Annealed methods end at ``temperature / cooling``; the paper's 1000 epochs of 1.005 are 147.
        ramp: Rise of the sparsity: ``"cubic"`` (Zhu and Gupta) or ``"exponential"`` (the paper).
        prune_from: Time at which the sparsity begins to rise.
        prune_until: Time at which the sparsity is reached.
        prune_every: Most steps from one choice of the zeros to the next while they may change; a short ramp has at
            least 20 of them.
        freeze_from: Time from which zeros are final; before, a pruned weight may come back.
        collect_from: Time from which samples are collected.
        samples: Samples of the posterior, all with the same zeros.
        scope: ``"layer"`` prunes all layers at one rate, ``"global"`` ranks all weights together, ``"erk"`` leaves
            small layers denser (:mod:`spikeslab.pruning.allocation`). ``None`` is ``"global"``, and ``"layer"`` for
            channels. Prior annealing ranks all weights together.
        rank: What decides which weights become zero: ``"magnitude"``, or ``"saliency"``, the rise of the loss without
            them, which the methods with a prior that moves slowly know (:mod:`spikeslab.functional.evidence`). ``None``
            is the latter in a regression where 95 % of the weights or more go. Other methods, channels, and runs
            without ``condition`` go by magnitude in any case.
        floor: Number of weights or channels that every sparse layer keeps at least, or a share of them below 1;
            ``None`` is one.
        multiple: Number of which the widths that are left are multiples, such as 8 or 16, where channels and other
            units go; each layer then keeps the width nearest to its share.
        pattern: ``"N:M"`` keeps N of every M neighbouring inputs of each pruned layer, those of channels in a
            convolution, as ``"2:4"`` for sparse tensor cores; the sparsity is then 1 - N/M of these layers, by default
            all those whose inputs M divides.
        v0: Scale of the spike; ``None`` picks the one at which spike and slab are equally likely at the
            pruning threshold.
        v1: Variance of the slab; ``None`` fits it to the weights of the network that will be left
            (:func:`spikeslab.priors.scales.fit_slab`), and for channels and networks with batch or group normalisation
            takes that of ``weight_decay``, 1/(N weight_decay).
        rho: Initial probability of the slab of every weight.
        kappa: Initial pair of kappas; ``None`` takes them from ``rho``.
        omega: Step sizes of stochastic approximation: ``"rising"`` along a straight line from 0, or ``"falling"`` as in
            the paper.
        omega_sum: Sum of the step sizes of stochastic approximation over the run: 1 goes 63 % of the way to the fixed
            point, the paper's 0.75 half of it, and 5 reaches it, where the prior shrinks also what is kept. Where
            ``condition`` ends it early, the sum is what was reached until then: about 0.8 of 1, or 56 %.
        condition: If True, the weights that are left have the slab alone as their prior once the zeros are final: it
            is their prior given the zeros.
        strength: Strength of the fixed penalties ``l1`` and ``l2``, in units of the mean loss; ``None`` takes the
            method's.
        mask_every: Steps between two masks of ``dpf``.
        distillation: Share of the loss that comes from the dense network as a teacher in place of the targets
            (:mod:`spikeslab.compression.tasks`); it costs a forward pass of that network in each step.
        softening: Divisor of the logits of both networks in distillation.
        precision: ``"float32"``, or ``"bfloat16"`` for a loss under autocast
            (:mod:`spikeslab.training.loop`); all evaluations are in float32.
        prior: Arguments of the spike-and-slab prior that override all of the above; :meth:`change` changes them too.
    """

    lr: float | None = None
    lr_schedule: str = "cosine"
    final_lr: float = 0.1
    crest_lr: float = 0.2
    drops: tuple[float, ...] = (0.7, 0.9)
    warmup_until: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    sigma: float | None = None
    temperature: float = 1e-3
    cooling: float = 150.0
    ramp: str = "cubic"
    prune_from: float = 0.0
    prune_until: float = 0.6
    prune_every: int = 8
    freeze_from: float = 0.6
    collect_from: float = 0.75
    samples: int = 15
    scope: str | None = None
    rank: str | None = None
    floor: float | None = None
    multiple: int = 1
    pattern: str | None = None
    v0: float | None = None
    v1: float | None = None
    rho: float = 1.0
    kappa: tuple[float, float] | None = None
    omega: str = "rising"
    omega_sum: float = 1.0
    condition: bool = True
    strength: float | None = None
    mask_every: int = 16
    distillation: float = 0.0
    softening: float = 4.0
    precision: str = FLOAT32
    prior: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED.items():
            if name not in OPTIONAL or getattr(self, name) is not None:
                check_number(name, getattr(self, name), allowed)
        for drop in self.drops:
            check_number("drops", drop, "(0, 1)")
        check_number("prune_from", self.prune_from, f"[0, {self.prune_until})")
        check_number("freeze_from", self.freeze_from, f"[{self.prune_until}, 1]")
        check_number("collect_from", self.collect_from, f"[{self.freeze_from}, 1]")
        _check_kappa(self.kappa)
        for name, choices in CHOICES.items():
            if name not in OPTIONAL or getattr(self, name) is not None:
                check_choice(name, getattr(self, name), choices)
        if self.floor is not None:
            floors([1], self.floor)
        if self.pattern is not None:
            parse_pattern(self.pattern)
        check_count("samples", self.samples)
        check_count("prune_every", self.prune_every)
        check_count("mask_every", self.mask_every)
        check_count("multiple", self.multiple)

    @property
    def highest_lr(self) -> float:
        """Highest learning rate: ``lr``, or that of a network of which nothing is known."""
        return UNKNOWN_LR if self.lr is None else self.lr

    def change(self, **changes: Any) -> Settings:
        """Return settings with other values, in ``prior`` too where it has that name; ``None`` changes nothing.

        >>> Settings().change(lr=0.1, temperature=None).lr
        0.1
        >>> Settings(prior={"v0": 0.1, "b": 1.0}).change(v0=0.2).prior
        {'v0': 0.2, 'b': 1.0}
        """
        given = {name: value for name, value in changes.items() if value is not None}
        prior = dict(given.pop("prior", self.prior))
        prior |= {name: value for name, value in given.items() if name in prior}
        return replace(self, **given, prior=prior)

    @staticmethod
    def upgrade(record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of an earlier record by their present names; those that it lacks are as they were."""
        rules = Settings(scope="layer", rank="magnitude", omega="falling", sigma=0.5**0.5)
        before = asdict(replace(rules, lr=0.05, final_lr=0.01, prune_every=1))
        present = before | {OLD_NAMES.get(name, name): value for name, value in record.items()}
        method = present.get("method")  # records of runs have it beside the settings
        return present | ({"method": OLD_METHODS[method]} if isinstance(method, str) and method in OLD_METHODS else {})


def paper_settings(sparsity: float, steps: int) -> Settings:
    r"""Return the settings of the paper's Table 3 for 30, 50, 70 or 90 % of the network, rescaled to ``steps`` steps.

    The methods are its rows: ``"a-sghmc-sa"``, ``"sghmc-sa"``, ``"a-sghmc-em"`` and ``"a-sghmc"``. The paper's run has
    50,000 steps. To run in K = 50,000/c of them is to take :math:`c\,\omega(ck)` (the sum of omega, 0.75, stays), the
    same ramp and the same cooling over the run, and c times the lr, so that the shrinkage by the prior, lr times kappa
    times steps, stays. The prior is that of ``presets.paper_cifar10``: the spike is wider than the slab, of which
    ``SpikeSlab`` warns, and kappa starts near zero.

    >>> settings = paper_settings(0.9, steps=5000)
    >>> round(settings.lr, 9), settings.lr_schedule, settings.prior["v0"]
    (0.001, 'steps', 0.005)
    """
    steps = check_count("steps", steps)
    return Settings(
        lr=PAPER_LR * PAPER_STEPS / steps,
        lr_schedule="steps",
        scope="layer",
        rank="magnitude",
        drops=(0.7, 0.9),
        warmup_until=0.0,
        weight_decay=5e-4,
        temperature=1e-3,
        cooling=PAPER_COOLING,
        ramp="exponential",
        prune_until=0.7,
        prune_every=1,
        freeze_from=0.7,
        collect_from=0.75,
        omega="falling",
        omega_sum=PAPER_OMEGA_SUM,
        condition=False,
        prior={name: value for name, value in paper_cifar10(sparsity).prior.items() if name != "adapt"},
    )


@dataclass(frozen=True)
class Timeline:
    """Steps at which the parts of a run begin and end, and the schedules over them.

    >>> timeline = Timeline(Settings(samples=4), total=100)
    >>> timeline.prune_end, timeline.freeze, timeline.burn_in, timeline.thin
    (60, 60, 76, 6)
    """

    settings: Settings
    total: int

    @property
    def prune_end(self) -> int:
        """Step at which the sparsity is reached."""
        return self._step(self.settings.prune_until)

    @property
    def prune_every(self) -> int:
        """Steps from one choice of the zeros to the next."""
        ramp = self.prune_end - round(self.settings.prune_from * self.total)
        return max(1, min(self.settings.prune_every, ramp // LEAST_PRUNINGS))

    @property
    def freeze(self) -> int:
        """Step after which zeros stay."""
        return max(self.prune_end, self._step(self.settings.freeze_from))

    @property
    def collect(self) -> int:
        """First step that may give a sample."""
        return min(self.total, max(self.freeze, self._step(self.settings.collect_from) + 1))

    @property
    def thin(self) -> int:
        """Steps between two samples."""
        available = self.total - self.collect + 1
        return available // min(self.settings.samples, available)

    @property
    def burn_in(self) -> int:
        """Steps before the samples, the last of which is the state after the last step."""
        return self.total - self.thin * min(self.settings.samples, self.total - self.collect + 1)

    def _step(self, share: float) -> int:
        return max(1, round(share * self.total))

    def lr(self) -> Schedule:
        """Return the schedule of the learning rate."""
        settings, lr = self.settings, self.settings.highest_lr
        warmup = min(round(settings.warmup_until * self.total), self.total - 1)
        if settings.lr_schedule == "cosine":
            return cosine(lr, self.total, settings.final_lr * lr, warmup)
        if settings.lr_schedule == "waves":
            low, high = settings.final_lr * lr, settings.crest_lr * lr
            return _add_warmup(waves(lr, max(1, self.burn_in), low, high, period=self.thin), warmup)
        if settings.lr_schedule == "steps":
            return _add_warmup(multistep(lr, DROP, [self._step(drop) for drop in settings.drops]), warmup)
        return _add_warmup(constant(lr), warmup)

    def temperature(self, annealed: bool) -> Schedule:
        """Return the schedule of the temperature: constant, or falling by ``cooling`` over the run."""
        settings = self.settings
        if not annealed:
            return constant(settings.temperature)
        return geometric(settings.temperature, settings.cooling ** (-1.0 / self.total))

    def sparsity(self, target: float) -> Schedule:
        """Return the schedule of the share of zeros."""
        end = self.prune_end
        start = min(round(self.settings.prune_from * self.total), end - 1)
        if self.settings.ramp == "cubic":
            return cubic_sparsity(target, end, start)
        return exponential_sparsity(target, decay=0.5, every=self.total / PAPER_HALVINGS, total=end, start=start)


def _check_kappa(kappa: object) -> None:
    if kappa is None:
        return
    if not isinstance(kappa, (tuple, list)) or len(kappa) != 2:
        raise ArgumentTypeError("kappa", "must be a pair (kappa0, kappa1) of numbers >= 0 or None", kappa)
    for value in kappa:
        check_number("kappa", value, ">= 0")


def _add_warmup(schedule: Schedule, warmup: int) -> Schedule:
    """Return a schedule that rises from zero over its first steps."""
    return Schedule(
        f"warmed {schedule.name}",
        (*schedule.settings, ("warmup", warmup)),
        lambda k: schedule(k) * min(1.0, k / max(warmup, 1)),
    )
