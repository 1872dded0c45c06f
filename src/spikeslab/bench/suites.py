"""The suites by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spikeslab.bench import chains, predict, scaling, selection, step, update
from spikeslab.bench.timing import Findings, Plan

QUICK_REPEATS = 2


class Suite(NamedTuple):
    """A suite.

    Attributes:
        what: What it measures, in a few words.
        run: Measures it.
        blocks: How many measurements it consists of, each of as many rounds as there are repeats.
        repeats: The default of ``--repeats``.
        tables: Names of its tables.
    """

    what: str
    run: Callable[[Plan], Findings]
    blocks: Callable[[Plan], int]
    repeats: int
    tables: tuple[str, ...]


SUITES = {
    "update": Suite("the update alone", update.run, lambda _: update.BLOCKS, 100, ("update",)),
    "step": Suite("a whole training step", step.run, lambda _: step.BLOCKS, 15, ("step",)),
    "selection": Suite(
        "a step and a fit of variable selection",
        selection.run,
        lambda _: selection.BLOCKS,
        5,
        ("selection-step", "selection-fit"),
    ),
    "chains": Suite("20 stacked chains beside one", chains.run, lambda _: chains.BLOCKS, 30, ("chains",)),
    "predict": Suite("20 samples beside one forward pass", predict.run, lambda _: predict.BLOCKS, 100, ("predict",)),
    "scaling": Suite(
        "cost against parameters and threads, and memory",
        scaling.run,
        scaling.blocks,
        10,
        ("scaling", "threads", "memory"),
    ),
}
