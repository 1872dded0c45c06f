"""All runs of an image experiment, and what is written of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from spikeslab.paper.images.data import Images
from spikeslab.paper.images.figures import image_figures
from spikeslab.paper.images.predictions import read_predictions
from spikeslab.paper.images.presets import make_recipe
from spikeslab.paper.images.runs import HELD_OUT, ImageRun, run_images
from spikeslab.paper.images.tables import Trained, accuracy_table, difference_table, uncertainty_table
from spikeslab.report.figures import save
from spikeslab.report.tables import Provenance, Table, command_line
from spikeslab.training.precision import FLOAT32


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
        held_out: Training images that are held out.
        precision: That of the loss in training.
    """

    dataset: str
    methods: tuple[str, ...]
    recipes: tuple[str, ...]
    epochs: int
    seeds: tuple[int, ...]
    augment: bool
    held_out: int = HELD_OUT
    precision: str = FLOAT32

    def groups(self) -> Iterator[tuple[str, str, list[ImageRun]]]:
        """The runs of each method and recipe, over seeds."""
        for recipe in self.recipes:
            for method in self.methods:
                made = make_recipe(recipe, self.dataset, augment=self.augment)
                yield (
                    method,
                    recipe,
                    [
                        ImageRun(
                            self.dataset, method, made, self.epochs, self.augment, seed, self.held_out, self.precision
                        )
                        for seed in self.seeds
                    ],
                )

    def runs(self) -> Iterator[ImageRun]:
        """All runs."""
        for _, _, runs in self.groups():
            yield from runs

    @property
    def command(self) -> str:
        """Command that gives the same numbers."""
        return command_line(
            "reproduce",
            self.dataset,
            methods=self.methods,
            recipes=self.recipes,
            epochs=self.epochs,
            seed=self.seeds[0],
            seeds=len(self.seeds),
            augment=self.augment,
            held_out=None if self.held_out == HELD_OUT else self.held_out,
            precision=None if self.precision == FLOAT32 else self.precision,
        )

    def table(self, out: Path) -> Path:
        """The file with the raw numbers of the first table."""
        return out / f"{'augmented-' if self.augment else ''}accuracy.json"


def run_plan(plan: ImagePlan, out: Path, data: Images, foreign: Tensor) -> list[Trained]:
    """Do all runs, or go on with them."""
    found = []
    for method, recipe, runs in plan.groups():
        results = [run_images(run, out, data, foreign, command=plan.command) for run in runs]
        found.append(Trained(method, recipe, results, [read_predictions(out / run.name) for run in runs]))
    return found


def write_plan(plan: ImagePlan, runs: list[Trained], labels: Tensor, out: Path) -> tuple[list[Table], list[Path]]:
    """Write the tables, and the figures of each recipe; returns the tables and the paths of all files."""
    stem = "augmented-" if plan.augment else ""
    tables = {
        "accuracy": accuracy_table(plan.dataset, runs, plan.epochs, plan.augment),
        "differences": difference_table(plan.dataset, runs, labels),
        "uncertainty": uncertainty_table(plan.dataset, runs, labels),
    }
    made = {name: table for name, table in tables.items() if table is not None}
    origin = Provenance(plan.command, plan.seeds[0])
    files = [path for name, table in made.items() for path in table.write(out / f"{stem}{name}", origin)]
    for recipe in plan.recipes:
        about = f"{recipe} settings, {plan.epochs} epochs{', augmented images' if plan.augment else ''}"
        figures = image_figures(plan.dataset, [run for run in runs if run.recipe == recipe], labels, about)
        files += [save(figure, out / f"{stem}{recipe}-{name}.png") for name, figure in figures.items()]
    return list(made.values()), files
