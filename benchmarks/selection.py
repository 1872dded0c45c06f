"""Growth of cost and honesty of the variable-selection estimators.

Their accuracy is in ``spikeslab reproduce linear|logistic``, their speed in ``spikeslab bench --suite selection``.

    python benchmarks/selection.py scaling       # cost per step and per sweep against the number of variables
    python benchmarks/selection.py classes       # cost per sweep against the number of classes
    python benchmarks/selection.py calibration   # are probabilities frequencies, and do intervals cover?
    python benchmarks/selection.py sbc           # simulation-based calibration of the Gibbs samplers

Each prints its tables; ``--out DIR`` also writes them, with their figures. Ratios of times are measured in turns in one
process, and carry over to another machine better than the times do.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure

import selection_calibration
import selection_speed
from spikeslab.report.figures import save
from spikeslab.report.tables import Provenance, Table


class Part(NamedTuple):
    """A benchmark: what makes its tables and figures by name, and the default of ``--repeats``."""

    run: Callable[[int], tuple[Mapping[str, Table], Mapping[str, Figure]]]
    repeats: int


PARTS = {
    "scaling": Part(selection_speed.scaling, 5),
    "classes": Part(selection_speed.classes, 5),
    "calibration": Part(selection_calibration.calibration, 1000),
    "sbc": Part(selection_calibration.sbc, 2000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--repeats", type=int, help="data sets, or repetitions of a timing")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    part = PARTS[arguments.part]
    repeats = part.repeats if arguments.repeats is None else arguments.repeats
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tables, figures = part.run(repeats)
    for table in tables.values():
        print(table.markdown())
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        run = Provenance(f"python benchmarks/selection.py {arguments.part} --repeats {repeats}", seed=0)
        for name, table in tables.items():
            table.write(arguments.out / name, run)
        for name, figure in figures.items():
            save(figure, arguments.out / f"{name}.png")


if __name__ == "__main__":
    main()
