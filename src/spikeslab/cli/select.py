"""``spikeslab select``: which columns of a table matter for one of them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikeslab.cli.errors import InputError
from spikeslab.cli.options import bad_input, check_folder, check_option, check_seed
from spikeslab.cli.output import plain_console
from spikeslab.errors import check_choice, check_number, pluralize
from spikeslab.files import write_atomically
from spikeslab.report.tables import command_line

if TYPE_CHECKING:
    from rich.console import Console

    from spikeslab.sklearn import SpikeSlabClassifier, SpikeSlabRegressor
    from spikeslab.tabular.design import Design
    from spikeslab.tabular.selection import Rule
    from spikeslab.tabular.table import Table
    from spikeslab.tabular.target import Target

FILES = ("summary.csv", "inclusion.png", "traces.png", "report.html", "model.safetensors", "model.json")
SHOWN = 30  # rows of the table on the screen


def select(
    data: Annotated[Path, typer.Argument(help="Table with a header: .csv, .tsv, either of them .gz, or .parquet.")],
    target: Annotated[str, typer.Option(help="Name of the column to explain.")],
    family: Annotated[
        str | None, typer.Option(help="gaussian, binomial or multinomial; guessed from the target if not given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; out/NAME for a table NAME.csv if not given.")
    ] = None,
    level: Annotated[float, typer.Option(help="Probability of the intervals.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Seed of the chains.")] = 0,
    one_hot: Annotated[
        bool, typer.Option("--one-hot", help="Make a group of 0/1 columns of every column of text.")
    ] = False,
    drop: Annotated[
        list[str] | None, typer.Option(help="Name of a column to leave out; may be given several times.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Select variables with an inclusion probability above this; 0.5 if not given.")
    ] = None,
    fdr: Annotated[
        float | None, typer.Option(help="Select as many as keep the expected share of false ones at most this.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="auto, gibbs, minibatch (classes only), sgld-sa, sgld-em or sgld.")
    ] = "auto",
    iterations: Annotated[
        int | None, typer.Option(help="Steps that each chain keeps; the method's own choice if not given.")
    ] = None,
) -> None:
    """Find the variables of a table that matter, and how much, with probabilities.

    Bayesian regression (gaussian) or classification (binomial, multinomial) with a spike-and-slab prior: each variable
    gets the probability that it is in the model (PIP), a mean coefficient and an interval. The folder --out gets
    summary.csv, inclusion.png, traces.png, report.html, and the model for `spikeslab predict`; those of an earlier
    select are replaced, all other files stay.

    For example:

    - all of it: `spikeslab select genes.csv --target response`
    - at a false discovery rate: `spikeslab select genes.csv --target response --fdr 0.1 --out out/fdr`
    - with columns of text: `spikeslab select people.tsv.gz --target employed --family binomial --one-hot --drop name`
    """
    from spikeslab.tabular.design import make_design
    from spikeslab.tabular.selection import Rule
    from spikeslab.tabular.table import KINDS, read_table
    from spikeslab.tabular.target import FAMILIES, read_target

    kind = next((kind for kind in KINDS if data.name.lower().endswith(kind)), "")
    folder = Path("out") / data.name[: len(data.name) - len(kind)] if out is None else out
    check_folder(folder)
    _check_files(folder, data)
    with bad_input():
        if family is not None:
            check_choice("--family", family, FAMILIES)
        check_number("--level", level, "(0, 1)")
        if threshold is not None:
            check_number("--threshold", threshold, "[0, 1]")
        if fdr is not None:
            check_number("--fdr", fdr, "(0, 1)")
        if fdr is not None and threshold is not None:
            raise ValueError(f"--threshold and --fdr are two ways to select, but got both: {threshold:g} and {fdr:g}.")
    check_seed(seed)
    if iterations is not None:
        check_option("--iterations", iterations, minimum=10)
    rule = Rule(0.5 if threshold is None else threshold, fdr)
    console = plain_console()
    with bad_input():
        table = read_table(data)
        response = read_target(table, target, family)
        design = make_design(table, target, one_hot=one_hot, drop=drop or ())
        estimator = _estimator(response.family, method, seed, iterations, verbose=console.is_terminal)
    _print_data(console, table, response, design)
    _fit(estimator, design, response, method)
    command = command_line(
        "select",
        data,
        target=target,
        family=family,
        out=out,
        level=level,
        seed=seed,
        threshold=rule.threshold,
        fdr=rule.fdr,
        method=method,
        iterations=iterations,
        one_hot=one_hot,
        drop=drop,
    )
    _finish(console, folder, estimator, table, response, design, rule, level, command)


def _check_files(folder: Path, data: Path) -> None:
    """Raise if files would be replaced that are not those of an earlier select."""
    from spikeslab.sklearn import ModelError, read_metadata

    old = [name for name in FILES if (folder / name).exists()]
    if data.exists() and any((folder / name).samefile(data) for name in old):
        raise InputError(f"--out must be another folder, because {data} would be replaced.")
    try:
        earlier = read_metadata(folder) if old else {}
    except ModelError:
        earlier = {}
    if old and "variables" not in earlier:
        raise InputError(f"--out must be another folder, because {folder / old[0]} is not of an earlier select.")


def _estimator(
    family: str, method: str, seed: int, iterations: int | None, verbose: bool
) -> SpikeSlabRegressor | SpikeSlabClassifier:
    from spikeslab.sklearn import SpikeSlabClassifier, SpikeSlabRegressor

    cls = SpikeSlabRegressor if family == "gaussian" else SpikeSlabClassifier
    check_choice(f"--method for the family {family}", method, cls._methods)
    return cls(method, n_iter=iterations, n_jobs=-1, random_state=seed, verbose=int(verbose))


def _print_data(console: Console, table: Table, target: Target, design: Design) -> None:
    from spikeslab.tabular.page import describe_dropped, describe_family

    rows, columns = design.X.shape
    count = len(design.encoding.variables)
    spread = f" in {columns:,} columns" if columns > count else ""
    console.print(
        f"{table.name}: {pluralize(rows, 'row')}, {pluralize(count, 'variable')}{spread}; target {target.name}.",
        soft_wrap=True,
    )
    console.print(describe_family(target), soft_wrap=True)
    for note in (*table.notes, *describe_dropped(design)):
        console.print(note, soft_wrap=True)


def _fit(estimator: SpikeSlabRegressor | SpikeSlabClassifier, design: Design, target: Target, method: str) -> None:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings(), bad_input():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the report says it in its own words
        try:
            estimator.fit(design.X, target.y).set_params(verbose=0)  # a saved model is the same without a terminal
        except FloatingPointError as error:
            raise InputError(
                f"--method {method} diverged, because its steps are too large for these data: use --method auto."
            ) from error


def _finish(
    console: Console,
    folder: Path,
    estimator: SpikeSlabRegressor | SpikeSlabClassifier,
    table: Table,
    target: Target,
    design: Design,
    rule: Rule,
    level: float,
    command: str,
) -> None:
    """Print what was found, and write the files."""
    from spikeslab.cli.output import print_result
    from spikeslab.sklearn import save_model
    from spikeslab.tabular.page import figures, selection_page
    from spikeslab.tabular.selection import Selection

    selection = Selection(estimator, design, target, rule, level)
    inclusion, traces = figures(selection)
    page = selection_page(selection, table, command, inclusion, traces).html()
    metadata = {
        "table": table.name,
        "target": target.name,
        "family": target.family,
        "variables": design.encoding.state(),
        "level": level,
        "command": command,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        coefficients = selection.coefficients.to_csv(index=False).encode()
        for name, content in zip(FILES, (coefficients, inclusion, traces, page.encode()), strict=False):
            write_atomically(folder / name, content)
        save_model(estimator, folder, metadata)
    except OSError as error:
        raise InputError(f"--out must be a folder that can be written to, but {folder}: {error.strerror}.") from error
    console.print()
    print_result(console, [selection.table(SHOWN)], [folder / name for name in FILES])
    for alike in selection.alike:
        console.print(str(alike), soft_wrap=True)
    console.print(selection.convergence[0], soft_wrap=True)
