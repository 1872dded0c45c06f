r"""Recipes of the CIFAR-10 experiment (section 5.4 of the paper).

``paper`` is the paper's run of 1000 epochs, and ``compressed`` the same in E = 1000/c epochs: with
:math:`c\,\omega(ck)` for :math:`\omega(k)`, :math:`f/c` for f, :math:`1.005^c` for the factor of tau and c times the
lr, each epoch does what c epochs did (the sum of omega and the shrinkage by the prior stay). ``ablation`` is the
paper's other setting, batches of 2000 and :math:`\tau = 20 \cdot 1.01^k`. ``grid`` holds the fixed penalties that its
source has in comments. ``sound`` is ours: small batches, a high lr that falls along a cosine, a spike that is narrower
than the slab. ``taught`` is the same with the dense network as a teacher and one ranking of all weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spikeslab.compression import METHODS, Settings, paper_settings
from spikeslab.errors import check_choice, quote
from spikeslab.presets import CIFAR10_SCALES

PAPER_METHODS = ("a-sghmc", "a-sghmc-em", "sghmc-sa", "a-sghmc-sa")
L1_GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
L2_GRID = (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 0.6, 1.0)
FIXED = ("l1", "l2")
"""Methods whose strength may follow a colon."""
ABLATION_TAU, ABLATION_FACTOR, PAPER_EPOCHS = 20.0, 1.01, 1000


def sound_settings(sparsity: float, epochs: int, steps: int) -> Settings:
    """The defaults of ``compress``, with one epoch of warm-up."""
    return Settings(lr=0.05, lr_schedule="cosine", warmup=min(1.0 / epochs, 0.5), ramp="cubic", weight_decay=5e-4)


def taught_settings(sparsity: float, epochs: int, steps: int) -> Settings:
    """The sound ones, with a fifth of the loss from the dense network, and zeros wherever weights are smallest."""
    return sound_settings(sparsity, epochs, steps).changed(distillation=0.2, scope="global")


def paper_recipe(sparsity: float, epochs: int, steps: int) -> Settings:
    """The paper's recipe in any number of steps; it has no scales for other sparsities, which get the nearest."""
    return paper_settings(min(CIFAR10_SCALES, key=lambda known: abs(known - sparsity)), steps)


def ablation_settings(sparsity: float, epochs: int, steps: int) -> Settings:
    """The same, warmer at first and cooled further.

    The paper gives its batches and its tau only. That the lr is scaled by the steps, which are half as many, so that
    the shrinkage by the prior stays, is our reading.
    """
    cooling = ABLATION_FACTOR**PAPER_EPOCHS
    return paper_recipe(sparsity, epochs, steps).changed(temperature=1.0 / ABLATION_TAU, cooling=cooling)


@dataclass(frozen=True)
class Preset:
    """What a recipe is, before it is known how sparse and how long.

    Attributes:
        settings: From the sparsity, the epochs and the steps of a run to its settings.
        epochs: Epochs, where the user does not say.
        batch_size: Images in a mini-batch, likewise.
        methods: Methods, likewise.
        erasing: Whether rectangles of training images are erased, likewise.
    """

    settings: Callable[[float, int, int], Settings]
    epochs: int
    batch_size: int
    methods: tuple[str, ...]
    erasing: bool


PRESETS = {
    "taught": Preset(taught_settings, 30, 128, ("a-sghmc-sa", "gmp", "l2:0.002"), erasing=False),
    "sound": Preset(sound_settings, 30, 128, ("a-sghmc-sa", "gmp", "l2:0.002"), erasing=False),
    "compressed": Preset(paper_recipe, 30, 1000, PAPER_METHODS, erasing=True),
    "paper": Preset(paper_recipe, PAPER_EPOCHS, 1000, PAPER_METHODS, erasing=True),
    "ablation": Preset(ablation_settings, PAPER_EPOCHS, 2000, ("sghmc-sa", "a-sghmc-sa"), erasing=True),
    "grid": Preset(
        paper_recipe,
        30,
        1000,
        (*(f"l1:{strength:g}" for strength in L1_GRID), *(f"l2:{strength:g}" for strength in L2_GRID)),
        erasing=True,
    ),
}


def split_method(method: str) -> tuple[str, float | None]:
    """The method of ``compress``, and the strength of its penalty where the name has one.

    >>> split_method("l2:0.6"), split_method("gmp")
    (('l2', 0.6), ('gmp', None))
    """
    name, colon, strength = method.partition(":")
    return name, float(strength) if colon else None


def check_method(option: str, text: str) -> str:
    """Return a method in the one way of writing it.

    >>> check_method("--methods", "l2:6e-1")
    'l2:0.6'

    Raises:
        ValueError: If there is no such method, or its strength is none.
    """
    name, colon, strength = text.partition(":")
    check_choice(option, name, METHODS)
    if not colon:
        return name
    if name not in FIXED:
        raise ValueError(f"{option} must have a strength with {quote(FIXED)} only, but got {text!r}.")
    try:
        value = float(strength)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{option} must have a strength > 0 such as '{name}:0.01', but got {text!r}.")
    return f"{name}:{value:g}"
