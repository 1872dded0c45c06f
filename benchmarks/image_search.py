"""How the settings of the image experiments were chosen: trials of SGHMC-SA, judged on the held-out images alone.

    python benchmarks/image_search.py fashion --data-dir data --epochs 10 --set lr=0.1 --set v1=0.04 --out out/search

A trial is the recipe ``tuned`` with some settings changed. It never sees the test images, goes on where it was stopped,
and is one row of ``search.md``, which has all trials in ``--out``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from spikeslab.files import write_atomically
from spikeslab.paper.images.predictions import HELD, Part, kinds_of
from spikeslab.paper.images.presets import Recipe, make_recipe
from spikeslab.paper.images.runs import ImageRun, load_images, predict_parts, train
from spikeslab.report.tables import Column, Provenance, Table
from spikeslab.training import describe_classifier
from spikeslab.training.precision import FLOAT32, PRECISIONS

TRIAL, HELD_OUT = "trial.json", 5000
SHOWN = (
    "batch_size", "lr", "sampling_lr", "crest_lr", "temperature", "v0", "v1", "weight_decay", "burn_in", "chains",
    "samples",
)  # fmt: skip


def changed(recipe: Recipe, changes: list[str]) -> Recipe:
    """The recipe with settings changed, each as NAME=VALUE."""
    # What a trial's folder and row do not name must not differ between trials.
    kinds = {name: type(getattr(recipe, name)) for name in SHOWN}
    given = dict(change.split("=", 1) for change in changes)
    unknown = sorted(given.keys() - kinds.keys())
    if unknown:
        raise SystemExit(f"--set must name one of {', '.join(kinds)}, but got {unknown[0]}.")
    values: dict[str, Any] = {
        name: None if text == "none" else int(text) if kinds[name] is int else float(text)
        for name, text in given.items()
    }
    return replace(recipe, **values)


def trial(run: ImageRun, out: Path, data_dir: Path | None) -> None:
    """Train, and write what the held-out images say of the average and of the last weights."""
    dataset, recipe, epochs, seed = run.dataset, run.recipe, run.epochs, run.seed
    shown = "-".join(f"{name}{getattr(recipe, name)}" for name in SHOWN)
    others = f"{'-augmented' if run.augment else ''}{'' if run.precision == FLOAT32 else f'-{run.precision}'}"
    folder = out / f"{dataset}{others}-{shown}-{epochs}-seed{seed}"
    if (folder / TRIAL).exists():
        return
    data, _ = load_images(dataset, data_dir)
    networks = [train(chain, place, data) for chain, place in run.of_chains(folder)]
    _, _, x_held, y_held = data.hold_out(run.held_out)
    tensors = predict_parts(run, networks, {HELD: Part(x_held)})
    found = {kind: describe_classifier(each, y_held) for kind, each in kinds_of(tensors, HELD).items()}
    shown_settings = {name: getattr(recipe, name) for name in SHOWN}
    images = f"{dataset}, augmented" if run.augment else dataset
    record = {"dataset": images, "epochs": epochs, "done": epochs, "seed": seed, "precision": run.precision}
    record |= {**shown_settings, **found}
    write_atomically(folder / TRIAL, json.dumps(record, indent=1).encode())


def search_table(out: Path) -> Table:
    """All trials, the best NLL of the average first."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob(f"*/{TRIAL}")]
    rows = [
        {
            **{name: record[name] for name in ("dataset", "epochs", "done", "seed", "precision", *SHOWN)},
            "accuracy": 100.0 * record["average"]["accuracy"],
            "nll": record["average"]["nll"],
            "point": 100.0 * record["point"]["accuracy"],
        }
        for record in sorted(records, key=lambda record: record["average"]["nll"])
    ]
    columns = [
        Column("dataset", "images"),
        Column("epochs", "epochs"),
        Column("done", "of them done"),
        Column("seed", "seed"),
        Column("precision", "precision"),
        *(Column(name, name.replace("_", " "), "g") for name in SHOWN),
        Column("accuracy", "accuracy % of the average", ".2f"),
        Column("nll", "NLL of the average", ".4f"),
        Column("point", "accuracy % of the last weights", ".2f"),
    ]
    wrong = [1.0 - row["accuracy"] / 100.0 for row in rows]
    error = 100.0 * (min(wrong) * (1.0 - min(wrong)) / HELD_OUT) ** 0.5
    note = (
        f"On the {HELD_OUT:,} held-out images; the standard error of the best accuracy is {error:.1f} points. A trial "
        "that was stopped has the samples taken until then."
    )
    return Table("Trials of SGHMC-SA", columns, rows, notes=[note])


def main() -> None:
    """Do one trial, and write the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=("mnist", "fashion"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--augment", action="store_true", help="change the images at random")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the recipe")
    parser.add_argument("--precision", choices=PRECISIONS, default=FLOAT32, help="that of the loss in training")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/search"))
    arguments = parser.parse_args()
    recipe = changed(make_recipe("tuned", arguments.dataset, augment=arguments.augment), arguments.set)
    run = ImageRun(
        dataset=arguments.dataset,
        method="sghmc-sa",
        recipe=recipe,
        epochs=arguments.epochs,
        augment=arguments.augment,
        seed=arguments.seed,
        held_out=HELD_OUT,
        precision=arguments.precision,
    )
    trial(run, arguments.out, arguments.data_dir)
    table = search_table(arguments.out)
    print(table.markdown())
    images = f"{arguments.dataset} --augment" if arguments.augment else arguments.dataset
    command = f"python benchmarks/image_search.py {images} --epochs E --set NAME=VALUE ..."
    table.write(arguments.out / "search", Provenance(command, arguments.seed))


if __name__ == "__main__":
    main()
