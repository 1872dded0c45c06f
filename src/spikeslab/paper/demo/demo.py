"""The demo: the paper's linear regression and a pruned CNN on digits, as tables and figures in one folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from spikeslab.paper.demo.data import load_digits
from spikeslab.paper.demo.digits import Settings, digits_table, run_digits
from spikeslab.paper.demo.digits_figure import digits_figure
from spikeslab.paper.linear.data import simulate_linear
from spikeslab.paper.linear.figure import linear_figure
from spikeslab.paper.linear.sampling import METHODS, linear_table, run_linear
from spikeslab.paper.threads import one_thread
from spikeslab.report.figures import save
from spikeslab.report.tables import Provenance, Table

STEPS = 32_000

Progress: TypeAlias = Callable[[str, int], None]

FILES = ("linear", "digits")
"""Names of the tables and of the figures."""


@dataclass(frozen=True)
class Demo:
    """What the demo made.

    Attributes:
        tables: The tables, to be shown.
        files: The files, in the order of writing.
    """

    tables: list[Table]
    files: list[Path]


def stages(steps: int) -> dict[str, int]:
    """Names of the demo's parts and their numbers of steps."""
    return {**{f"Linear regression, {m}": steps for m in METHODS}, "Digits, SGHMC-SA": Settings().at_most(steps).steps}


def run_demo(out: Path, *, seed: int = 0, steps: int = STEPS, progress: Progress = lambda stage, steps: None) -> Demo:
    """Run both parts and write linear.* and digits.* into ``out``; other files there stay as they are.

    Args:
        out: Folder for the files; made where it does not exist.
        seed: Seed of everything.
        steps: Steps of each chain of the regression, and the most that any phase of the digits takes.
        progress: Called now and then with the stage and the number of steps taken since the last call.
    """
    out.mkdir(parents=True, exist_ok=True)
    with one_thread():
        return _run(out, seed, steps, progress)


def _run(out: Path, seed: int, steps: int, progress: Progress) -> Demo:
    run = Provenance(command=f"spikeslab demo --seed {seed} --steps {steps}", seed=seed)
    *linear_stages, digits_stage = stages(steps)

    data = simulate_linear(seed)
    results = [
        run_linear(data, method, steps=steps, seed=seed, progress=partial(progress, stage))
        for method, stage in zip(METHODS, linear_stages, strict=True)
    ]
    linear = linear_table(data, results, steps=steps)
    files = [*linear.write(out / FILES[0], run), save(linear_figure(data, results), out / f"{FILES[0]}.png")]

    images, settings = load_digits(), Settings().at_most(steps)
    models = run_digits(images, settings, seed=seed, progress=partial(progress, digits_stage))
    digits = digits_table(images, models, settings)
    files += [*digits.write(out / FILES[1], run), save(digits_figure(images, models), out / f"{FILES[1]}.png")]
    return Demo([linear, digits], files)
