"""All runs of an image experiment, and what is written of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from spikeslab.datasets.images import Images
from spikeslab.experiments.image_recipes import RECIPES
from spikeslab.experiments.image_runs import ImageRun, run_images
from spikeslab.experiments.image_tables import image_table
from spikeslab.report.tables import Run, Table

Results: TypeAlias = dict[tuple[str, str], list[dict[str, Any]]]


@dataclass(frozen=True)
class ImagePlan:
    """What is run.

    Attributes:
        dataset: ``"mnist"`` or ``"fashion"``.
        methods: Methods.
        recipes: Names of settings.
        epochs: Epochs of each run.
        seeds: Seeds.
        augment: Whether images are changed at random.
    """

    dataset: str
    methods: tuple[str, ...]
    recipes: tuple[str, ...]
    epochs: int
    seeds: tuple[int, ...]
    augment: bool

    def runs(self) -> Iterator[ImageRun]:
        """All runs; those with Adam are the same in all settings but for the batch size."""
        for seed in self.seeds:
            for recipe in self.recipes:
                for method in self.methods:
                    made = RECIPES[recipe](self.dataset)
                    yield ImageRun(self.dataset, method, made, self.epochs, self.augment, seed)

    @property
    def command(self) -> str:
        """What to type to get the same numbers."""
        augment = " --augment" if self.augment else ""
        return (
            f"spikeslab reproduce {self.dataset} --methods {','.join(self.methods)} --recipes {','.join(self.recipes)} "
            f"--epochs {self.epochs} --seed {self.seeds[0]} --seeds {len(self.seeds)}{augment}"
        )


def run_plan(plan: ImagePlan, out: Path, data: Images) -> Results:
    """Do all runs, or go on with them."""
    results: Results = {}
    for run in plan.runs():
        results.setdefault((run.method, run.recipe.name), []).append(run_images(run, out, data, command=plan.command))
    return results


def write_plan(plan: ImagePlan, results: Results, out: Path) -> tuple[list[Table], list[Path]]:
    """Write the table; returns it and the paths of its files."""
    table = image_table(plan.dataset, results, plan.epochs, plan.augment)
    stem = "augmented" if plan.augment else "table2"
    return [table], table.write(out / stem, Run(plan.command, plan.seeds[0]))
