r"""Presets of the CIFAR-10 experiment (section 5.4 of the paper).

- ``default``: the defaults of ``compress`` with an lr of 0.05, one epoch of warm-up and zeros chosen after every step:
  small batches, an lr that falls along a cosine, a spike that is narrower than the slab.
- ``distilled``: the same with distillation from the dense network.
- ``paper``: the paper's run of 1000 epochs.
- ``paper-short``: the paper's run in E = 1000/c epochs. With :math:`c\,\omega(ck)` for :math:`\omega(k)`, :math:`f/c`
  for f, :math:`1.005^c` for the factor of tau and c times the lr, each epoch does what c epochs did: the sum of omega
  and the shrinkage by the prior stay.
- ``ablation``: the paper's other setting, batches of 2000 and :math:`\tau = 20 \cdot 1.01^k`.
- ``grid``: the fixed penalties that stand in comments of the paper's source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spikeslab.compression import METHODS, Settings, paper_settings
from spikeslab.errors import ArgumentValueError, check_choice, quote
from spikeslab.presets import CIFAR10_SCALES

PAPER_METHODS = ("a-sghmc", "a-sghmc-em", "sghmc-sa", "a-sghmc-sa")
OUR_METHODS = ("a-sghmc-sa", "gmp", "l2:0.002")
FIXED_PENALTIES = (
    *(f"l1:{strength:g}" for strength in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)),
    *(f"l2:{strength:g}" for strength in (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 0.6, 1.0)),
)
FIXED = ("l1", "l2")
"""Methods whose name may end with a strength, as in ``l2:0.6``."""
ABLATION_TAU, ABLATION_FACTOR, PAPER_EPOCHS = 20.0, 1.01, 1000


def _default(sparsity: float, epochs: int, steps: int) -> Settings:
    return Settings(lr=0.05, warmup_until=min(1.0 / epochs, 0.5), prune_every=1)


def _distilled(sparsity: float, epochs: int, steps: int) -> Settings:
    return _default(sparsity, epochs, steps).change(distillation=0.2)


def _paper(sparsity: float, epochs: int, steps: int) -> Settings:
    """Return the paper's settings in any number of steps, with the scales of the paper's nearest sparsity."""
    return paper_settings(min(CIFAR10_SCALES, key=lambda known: abs(known - sparsity)), steps)


def _ablation(sparsity: float, epochs: int, steps: int) -> Settings:
    """Return the paper's settings, warmer at first and cooled further.

    The paper gives its batches and its tau only. We scale the lr by the steps, which are half as many, so that the
    shrinkage by the prior stays.
    """
    cooling = ABLATION_FACTOR**PAPER_EPOCHS
    return _paper(sparsity, epochs, steps).change(temperature=1.0 / ABLATION_TAU, cooling=cooling)


@dataclass(frozen=True)
class CifarPreset:
    """Settings of a run as a function of its sparsity, epochs and steps, and defaults of the options."""

    settings: Callable[[float, int, int], Settings]
    epochs: int
    batch_size: int
    methods: tuple[str, ...]
    erasing: bool


PRESETS = {
    "distilled": CifarPreset(_distilled, 30, 128, OUR_METHODS, erasing=False),
    "default": CifarPreset(_default, 30, 128, OUR_METHODS, erasing=False),
    "paper-short": CifarPreset(_paper, 30, 1000, PAPER_METHODS, erasing=True),
    "paper": CifarPreset(_paper, PAPER_EPOCHS, 1000, PAPER_METHODS, erasing=True),
    "ablation": CifarPreset(_ablation, PAPER_EPOCHS, 2000, ("sghmc-sa", "a-sghmc-sa"), erasing=True),
    "grid": CifarPreset(_paper, 30, 1000, FIXED_PENALTIES, erasing=True),
}


def split_method(method: str) -> tuple[str, float | None]:
    """Return the method of ``compress``, and the strength of its penalty where the name has one.

    >>> split_method("l2:0.6"), split_method("gmp")
    (('l2', 0.6), ('gmp', None))
    """
    name, colon, strength = method.partition(":")
    return name, float(strength) if colon else None


def check_method(text: str) -> str:
    """Return a method in its canonical spelling.

    >>> check_method("l2:6e-1")
    'l2:0.6'

    Raises:
        ArgumentValueError: If there is no such method, or its strength is not a positive number.
    """
    name, colon, strength = text.partition(":")
    check_choice("methods", name, METHODS)
    if not colon:
        return name
    if name not in FIXED:
        raise ArgumentValueError("methods", f"must have a strength with {quote(FIXED)} only", text)
    try:
        value = float(strength)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise ArgumentValueError("methods", f"must have a strength > 0 such as '{name}:0.01'", text)
    return f"{name}:{value:g}"
