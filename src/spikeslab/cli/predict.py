"""``spikeslab predict``: predictions of a model of ``spikeslab select`` for new rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikeslab.cli._errors import InputError, spells
from spikeslab.cli._options import HEAD, check_file
from spikeslab.cli._output import plain_console, write_file
from spikeslab.errors import check_number, pluralize, quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from spikeslab.sklearn import Estimator
    from spikeslab.tabular.design import Encoding
    from spikeslab.tabular.table import DataTable

HEADERS = (b"row,mean,std,lower,upper", b"row,class,p_")
"""Beginnings of a file of predictions; no other file is replaced."""


@spells(folder="MODEL", path="TABLE")
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `spikeslab select` wrote.")],
    data: Annotated[Path, typer.Argument(metavar="TABLE", help="Table with the columns of the model, in any order.")],
    out: Annotated[Path, typer.Option(help="File for the predictions.")] = Path("predictions.csv"),
    level: Annotated[float, typer.Option(help="Probability of the prediction intervals of a regression.")] = 0.9,
) -> None:
    """Predict new rows with a model of `spikeslab select`.

    Columns are matched by name. A regression gives the mean, the standard deviation and the interval of each response;
    a classification gives the most probable class and the probability of each class. If the table has the target, the
    predictions are compared with it, and the scores are printed.

    Example: `spikeslab predict out/genes new.csv --out predictions.csv`
    """
    _check_out(out, data)
    check_number("level", level, "(0, 1)")
    from spikeslab.sklearn import SpikeSlabClassifier, load_model, read_metadata
    from spikeslab.tabular.table import read_table

    estimator = load_model(model)
    encoding, target = _read_encoding(model, estimator, read_metadata(model))
    text_classes = isinstance(estimator, SpikeSlabClassifier) and estimator.classes_.dtype.kind == "O"
    table = read_table(data, text=[*encoding.text, *([target] if text_classes else [])])
    X = encoding.transform(table)
    write_file(out, _predict_rows(estimator, X, level).to_csv(index=False).encode())
    console = plain_console()
    for line in _describe(estimator, encoding, table, target, X, level, out):
        console.print(line, soft_wrap=True)


def _check_out(out: Path, data: Path) -> None:
    """Raise if ``out`` cannot be written, or is a file that holds no predictions."""
    replaceable = False
    if out.is_file() and not (data.exists() and out.samefile(data)):
        with out.open("rb") as file:
            replaceable = file.read(HEAD).startswith(HEADERS)
    check_file("--out", out, "" if replaceable else None, "predictions")


def _read_encoding(model: Path, estimator: Estimator, metadata: dict[str, Any]) -> tuple[Encoding, str]:
    """Return the encoding of the table that the model was fitted to, and the name of its target."""
    from spikeslab.tabular.design import Encoding

    try:
        encoding, target = Encoding.from_state(metadata["variables"]), metadata["target"]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"MODEL must come from spikeslab select, but {model} does not.") from error
    if encoding.columns != list(estimator._names()) or not isinstance(target, str):
        raise InputError(f"{model / 'model.json'} is damaged: its parts do not fit together.")
    return encoding, target


def _predict_rows(estimator: Estimator, X: pd.DataFrame, level: float) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    from spikeslab.sklearn import SpikeSlabClassifier

    row = np.arange(1, len(X) + 1)
    if isinstance(estimator, SpikeSlabClassifier):
        proba = estimator.predict_proba(X)
        columns = {"row": row, "class": estimator.classes_[proba.argmax(axis=1)]}
        return pd.DataFrame(columns | {f"p_{label}": proba[:, c] for c, label in enumerate(estimator.classes_)})
    mean, std = estimator.predict(X, return_std=True)
    interval = estimator.predict_interval(X, level)
    return pd.DataFrame({"row": row, "mean": mean, "std": std, "lower": interval[:, 0], "upper": interval[:, 1]})


def _describe(
    estimator: Estimator, encoding: Encoding, table: DataTable, target: str, X: pd.DataFrame, level: float, out: Path
) -> Iterator[str]:
    known = {target, *(variable.name for variable in encoding.variables)}
    extra = [name for name in table.frame.columns if name not in known]
    if extra:
        more = f" and {len(extra) - 12:,} more" if len(extra) > 12 else ""
        yield f"Ignored, because the model does not use them: {', '.join(extra[:12])}{more}."
    yield f"Predicted {pluralize(len(X), 'row')}: {out}"
    if target in table.frame:
        yield from _score(estimator, table, target, X, level)


def _score(estimator: Estimator, table: DataTable, target: str, X: pd.DataFrame, level: float) -> Iterator[str]:
    """Yield the scores of the predictions on the rows with a target, or the reason why there are none."""
    import numpy as np

    from spikeslab.sklearn import SpikeSlabClassifier
    from spikeslab.tabular.selection import compute_scores
    from spikeslab.tabular.target import to_values

    present = table.frame[target].notna().to_numpy()
    y: NDArray[Any] = to_values(table.frame[target][present]) if present.any() else np.empty(0)
    classes = set(estimator.classes_.tolist()) if isinstance(estimator, SpikeSlabClassifier) else None
    unknown = sorted(map(str, set(y.tolist()) - classes)) if classes is not None else []
    if not y.size:
        yield f"No score: the target {target} has no values."
    elif unknown:
        yield f"No score: the target {target} has classes that the model does not know: {quote(unknown)}."
    elif classes is None and y.dtype.kind not in "iufb":
        yield f"No score: the target {target} holds text."
    else:
        missing = f", without {pluralize(int((~present).sum()), 'row')} that lack it" if not present.all() else ""
        yield f"Scores on the target {target}{missing}:"
        for name, score in compute_scores(estimator, X[present], y, level).items():
            yield f"  {name}: {score}"
