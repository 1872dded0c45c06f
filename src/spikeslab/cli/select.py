"""``spikeslab select``: find the columns of a table that matter for one of them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from spikeslab.cli._errors import InputError, make_spelling, spells
from spikeslab.cli._options import check_folder, check_seed
from spikeslab.cli._output import plain_console
from spikeslab.errors import (
    ArgumentValueError,
    Phrase,
    check_choice,
    check_count,
    check_number,
    mark,
    pluralize,
    quote,
    spell,
)
from spikeslab.report.tables import command_line

if TYPE_CHECKING:
    from rich.console import Console
    from typer.core import TyperCommand

    from spikeslab.errors import Spelling
    from spikeslab.sklearn import Estimator
    from spikeslab.tabular.design import Design
    from spikeslab.tabular.selection import Selection
    from spikeslab.tabular.table import DataTable
    from spikeslab.tabular.target import Target

FILES = ("summary.csv", "inclusion.png", "traces.png", "report.html", "model.safetensors", "model.json")
SHOWN = 30  # rows of the table on the screen
FAMILIES = ("gaussian", "binomial", "multinomial")
METHODS = ("auto", "gibbs", "minibatch", "sgld-sa", "sgld-em", "sgld")

Data = Annotated[
    Path, typer.Argument(metavar="TABLE", help="File with a header: .csv, .tsv, .csv.gz, .tsv.gz or .parquet.")
]
TargetName = Annotated[str, typer.Option(help="Name of the column to explain.")]
Family = Annotated[
    str | None, typer.Option(help="gaussian, binomial or multinomial; guessed from the target if not given.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; out/NAME for a table NAME.csv if not given.")]
Level = Annotated[float, typer.Option(help="Probability of the intervals.")]
Seed = Annotated[int, typer.Option(help="Seed of the chains.")]
OneHot = Annotated[bool, typer.Option("--one-hot", help="Encode every column of text by a group of 0/1 columns.")]
Drop = Annotated[list[str] | None, typer.Option(help="Name of a column to leave out; may be given several times.")]
Threshold = Annotated[
    float | None, typer.Option(help="Select variables with an inclusion probability above this; 0.5 if not given.")
]
FDR = Annotated[
    float | None,
    typer.Option(help="Select variables at this expected false discovery rate instead, none of them below 0.5."),
]
Method = Annotated[str, typer.Option(help="auto, gibbs, minibatch (classes only), sgld-sa, sgld-em or sgld.")]
Iterations = Annotated[
    int | None,
    typer.Option(help="Steps that each chain keeps after its burn-in; as many as convergence takes if not given."),
]
MaxTime = Annotated[
    float, typer.Option(metavar="SECONDS", help="Time after which chains that have not converged stop.")
]
ExpectedSize = Annotated[
    float | None,
    typer.Option(
        help="Number of variables that are expected to matter; about 2.5 if not given, many more are possible."
    ),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare/--no-compare", help="Score the model on held-out rows, beside a lasso, a ridge and the mean."
    ),
]
Always = Annotated[
    list[str] | None,
    typer.Option(help="Name of a column that is always in the model (gaussian); may be given several times."),
]


@spells(n_iter="--iterations", path="TABLE")
def select(
    context: typer.Context,
    data: Data,
    target: TargetName,
    family: Family = None,
    out: Out = None,
    level: Level = 0.9,
    seed: Seed = 0,
    one_hot: OneHot = False,
    drop: Drop = None,
    threshold: Threshold = None,
    fdr: FDR = None,
    method: Method = "auto",
    iterations: Iterations = None,
    max_time: MaxTime = 30.0,
    expected_size: ExpectedSize = None,
    always: Always = None,
    compare: Compare = True,
) -> None:
    """Find the variables of a table that matter, and how much, with probabilities.

    Bayesian regression (gaussian) or classification (binomial, multinomial) with a spike-and-slab prior: each variable
    gets the probability that it is in the model (PIP), a mean coefficient and an interval. Unless --iterations is
    given, the chains run until R-hat is at most 1.01 and the Monte Carlo error of every PIP at most 0.02, or for
    --max-time seconds; the last line says what was reached. The folder --out gets summary.csv, inclusion.png,
    traces.png, report.html, and the model for `spikeslab predict`. Files of an earlier select are replaced; other files
    stay.

    For example:

    - with the defaults: `spikeslab select genes.csv --target response`
    - at a false discovery rate: `spikeslab select genes.csv --target response --fdr 0.1 --out out/fdr`
    - with columns of text: `spikeslab select people.tsv.gz --target employed --family binomial --one-hot --drop name`
    """
    _check_options(family, level, threshold, fdr, method, seed, iterations)
    check_number("max_time", max_time, ">= 0")
    if expected_size is not None:
        check_number("expected_size", expected_size, "> 0")
    from spikeslab.tabular.design import make_design
    from spikeslab.tabular.held_out import compare_held_out
    from spikeslab.tabular.selection import Selection, SelectionRule
    from spikeslab.tabular.table import KINDS, read_table
    from spikeslab.tabular.target import read_target

    kind = next((kind for kind in KINDS if data.name.lower().endswith(kind)), "")
    folder = Path("out") / data.name[: len(data.name) - len(kind)] if out is None else out
    _check_files(folder, data)
    rule = SelectionRule(0.5 if threshold is None else threshold, fdr)
    options: dict[str, object] = {"target": target, "family": family, "out": out, "level": level, "seed": seed}
    options |= {"threshold": threshold, "fdr": fdr, "method": method, "iterations": iterations}
    options |= {"max_time": None if iterations else max_time, "expected_size": expected_size}
    options |= {"always": always, "no_compare": not compare}
    options |= {"one_hot": one_hot, "drop": drop}
    console, spelling = plain_console(), make_spelling(cast("TyperCommand", context.command))
    table = read_table(data)
    response = read_target(table, target, family)
    design = make_design(table, target, one_hot=one_hot, drop=drop or ())
    estimator = _make_estimator(response.family, method, seed, iterations)
    if always:
        estimator.set_params(always=_find_columns(always, response.family, design))
    estimator.set_params(max_time=max_time, expected_size=expected_size, verbose=int(console.is_terminal))
    _print_data(console, table, response, design, spelling)
    _fit(estimator, design, response)
    held_out = compare_held_out(estimator, design.X, response.y, seed) if compare else None
    selection = Selection(estimator, design, response, rule, level, held_out)
    _write_files(folder, selection, table, command_line("select", data, **options), spelling)
    _print_selection(console, folder, selection, spelling)


def _check_files(folder: Path, data: Path) -> None:
    """Raise if the folder cannot be written to, or has files to be replaced that are not those of an earlier select."""
    from spikeslab.sklearn import ModelError, read_metadata

    check_folder(folder)
    old = [name for name in FILES if (folder / name).exists()]
    if data.exists() and any((folder / name).samefile(data) for name in old):
        raise InputError(f"--out must be another folder, because {data} would be replaced.")
    try:
        earlier = read_metadata(folder) if old else {}
    except ModelError:
        earlier = {}
    if old and "variables" not in earlier:
        raise InputError(f"--out must be another folder, because {folder / old[0]} is not of an earlier select.")


def _check_options(
    family: str | None,
    level: float,
    threshold: float | None,
    fdr: float | None,
    method: str,
    seed: int,
    iterations: int | None,
) -> None:
    check_choice("method", method, METHODS)
    if family is not None:
        check_choice("family", family, FAMILIES)
    check_number("level", level, "(0, 1)")
    if threshold is not None:
        check_number("threshold", threshold, "[0, 1]")
    if fdr is not None:
        check_number("fdr", fdr, "(0, 1)")
        if threshold is not None:
            raise ArgumentValueError(
                "fdr", f"replaces {mark('threshold')}", Phrase("got both"), "leave one of them out"
            )
    check_seed(seed)
    if iterations is not None:
        check_count("iterations", iterations, minimum=10)


def _make_estimator(family: str, method: str, seed: int, iterations: int | None) -> Estimator:
    from spikeslab.sklearn import SpikeSlabClassifier, SpikeSlabRegressor

    cls = SpikeSlabRegressor if family == "gaussian" else SpikeSlabClassifier
    if method not in cls._methods:
        allowed = f"must be one of {quote(cls._methods)} for the family {family}"
        raise ArgumentValueError("method", allowed, method)
    return cls(method, n_iter=iterations, n_jobs=-1, random_state=seed)


def _find_columns(always: list[str], family: str, design: Design) -> list[str]:
    """Return the names in the design matrix of the columns that are always in the model."""
    if family != "gaussian":
        raise ArgumentValueError("always", "must go with the family gaussian", Phrase(f"the family is {family}"))
    columns = {variable.name: variable.columns for variable in design.encoding.variables}
    for name in always:
        if name not in columns:
            reason = f", which was left out ({design.dropped[name]})" if name in design.dropped else ""
            raise ArgumentValueError("always", "must name columns of the design", Phrase(f"got {name!r}{reason}"))
    # Indicators of all levels add up to one, as the intercept does: the first level is left to the selection.
    return [column for name in always for column in columns[name][1 if len(columns[name]) > 1 else 0 :]]


def _print_data(console: Console, table: DataTable, target: Target, design: Design, spelling: Spelling) -> None:
    from spikeslab.tabular.page import describe_dropped, describe_family

    rows, columns = design.X.shape
    count = len(design.encoding.variables)
    spread = f" in {columns:,} columns" if columns > count else ""
    size = f"{table.name}: {pluralize(rows, 'row')}, {pluralize(count, 'variable')}{spread}; target {target.name}."
    family = spell(describe_family(target), spelling)
    for line in (size, f"Family {family}", *table.notes, *describe_dropped(design)):
        console.print(line, soft_wrap=True)


def _fit(estimator: Estimator, design: Design, target: Target) -> None:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the report has a sentence of its own about it
        try:
            estimator.fit(design.X, target.y)
        except FloatingPointError as error:
            raise InputError(
                f"--method {estimator.method} diverged, because its steps are too large for these data: "
                "use --method auto."
            ) from error
    estimator.set_params(verbose=0, n_jobs=None)  # a saved model does not depend on the terminal


def _write_files(folder: Path, selection: Selection, table: DataTable, command: str, spelling: Spelling) -> None:
    from spikeslab.sklearn import save_model
    from spikeslab.tabular.page import draw_figures, selection_page

    inclusion, traces = draw_figures(selection)
    page = selection_page(selection, table, command, inclusion, traces, spelling).html()
    coefficients = selection.coefficients.to_csv(index=False)
    metadata = {
        "table": table.name,
        "target": selection.target.name,
        "family": selection.target.family,
        "variables": selection.design.encoding.state(),
        "level": selection.level,
        "command": command,
    }
    contents = (
        coefficients.encode(),
        inclusion,
        traces,
        page.encode(errors="backslashreplace"),
    )  # names may be no text
    save_model(selection.estimator, folder, metadata, dict(zip(FILES, contents, strict=False)))


def _print_selection(console: Console, folder: Path, selection: Selection, spelling: Spelling) -> None:
    from spikeslab.cli._output import print_result

    console.print()
    tables = [selection.table(SHOWN), *([selection.held_out] if selection.held_out else [])]
    print_result(console, tables, [folder / name for name in FILES])
    for line in (*selection.alike, spell(selection.convergence[0], spelling)):
        console.print(line, soft_wrap=True)
