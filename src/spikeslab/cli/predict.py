"""``spikeslab predict``: a model of ``spikeslab select`` on new rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spikeslab.cli.errors import InputError
from spikeslab.cli.options import bad_input
from spikeslab.cli.output import plain_console
from spikeslab.errors import check_number, quote
from spikeslab.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from spikeslab.sklearn import SpikeSlabClassifier, SpikeSlabRegressor
    from spikeslab.tabular.table import Table

HEADERS = ("row,mean,std,lower,upper", "row,class,p_")
"""How a file of predictions begins; no other file is replaced."""


def predict(
    model: Annotated[Path, typer.Argument(help="Folder that `spikeslab select` wrote.")],
    data: Annotated[Path, typer.Argument(help="Table with the columns of the model, in any order.")],
    out: Annotated[Path, typer.Option(help="File for the predictions.")] = Path("predictions.csv"),
    level: Annotated[float, typer.Option(help="Probability of the prediction intervals of a regression.")] = 0.9,
) -> None:
    """Predict new rows with a model of `spikeslab select`.

    Columns are matched by name. A regression gives the mean, the standard deviation and the interval of each response,
    a classification the most probable class and the probability of each. If the table has the target, it is not used
    to predict, and the score is printed.

    Example: `spikeslab predict out/genes new.csv --out predictions.csv`
    """
    from spikeslab.sklearn import SpikeSlabClassifier, load_model, read_metadata
    from spikeslab.tabular.table import read_table

    _check_out(out, data)
    with bad_input():
        check_number("--level", level, "(0, 1)")
        estimator, metadata = load_model(model), read_metadata(model)
        encoding, target = _table_of(model, estimator, metadata)
        classes = estimator.classes_ if isinstance(estimator, SpikeSlabClassifier) else None
        texts = [*encoding.text, *([target] if classes is not None and classes.dtype.kind == "O" else [])]
        table = read_table(data, text=texts)
        X = encoding.transform(table)
    console = plain_console()
    known = {target, *(variable.name for variable in encoding.variables)}
    extra = [name for name in table.frame.columns if name not in known]
    if extra:
        console.print(f"Ignored, because the model does not use them: {', '.join(extra[:12])}"
                      f"{f' and {len(extra) - 12:,} more' if len(extra) > 12 else ''}.", soft_wrap=True)  # fmt: skip
    frame = _predictions(estimator, X, level)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, frame.to_csv(index=False).encode())
    except OSError as error:
        raise InputError(f"--out must be a file that can be written, but {out}: {error.strerror}.") from error
    console.print(f"Predicted {len(frame):,} rows: {out}", soft_wrap=True)
    if target in table.frame:
        _print_score(console.print, estimator, table, target, X, level)


def _check_out(out: Path, data: Path) -> None:
    """Raise if ``out`` cannot be written, or is a file that holds no predictions."""
    if out.is_dir():
        raise InputError(f"--out must be a file, but {out} is a folder.")
    parent = next(path for path in out.parents if path.exists())
    if not parent.is_dir():
        raise InputError(f"--out must be in a folder, but {parent} is a file.")
    if out.exists():
        with out.open("rb") as file:
            header = file.read(64).decode("utf-8", errors="replace")
        if not header.startswith(HEADERS) or (data.exists() and out.samefile(data)):
            raise InputError(f"--out must be a new file or one with predictions, but {out} holds something else.")


def _table_of(model: Path, estimator: SpikeSlabRegressor | SpikeSlabClassifier, metadata: dict[str, Any]) -> Any:
    """The encoding of the table that the model was fitted to, and the name of its target."""
    from spikeslab.tabular.design import Encoding

    try:
        encoding, target = Encoding.from_state(metadata["variables"]), metadata["target"]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{model} holds a model that does not come from spikeslab select.") from error
    if encoding.columns != list(estimator._names()) or not isinstance(target, str):
        raise InputError(f"{model} is damaged: model.json does not fit together.")
    return encoding, target


def _predictions(estimator: SpikeSlabRegressor | SpikeSlabClassifier, X: pd.DataFrame, level: float) -> pd.DataFrame:
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


def _print_score(
    show: Any,
    estimator: SpikeSlabRegressor | SpikeSlabClassifier,
    table: Table,
    target: str,
    X: pd.DataFrame,
    level: float,
) -> None:
    """Print how well the predictions fit the target, over the rows where it can be compared."""
    import numpy as np

    from spikeslab.sklearn import SpikeSlabClassifier
    from spikeslab.tabular.selection import scores
    from spikeslab.tabular.target import values

    present = table.frame[target].notna().to_numpy()
    y: NDArray[Any] = values(table.frame[target][present]) if present.any() else np.empty(0)
    if isinstance(estimator, SpikeSlabClassifier):
        unknown = sorted(set(y.tolist()) - set(estimator.classes_.tolist()), key=str)
        if unknown:
            show(f"No score: the target {target} has classes that the model does not know: {quote(map(str, unknown))}.")
            return
    elif y.dtype.kind not in "iufb":
        show(f"No score: the target {target} holds text.")
        return
    if not y.size:
        show(f"No score: the target {target} has no values.")
        return
    missing = f", without {int((~present).sum()):,} where it is missing" if not present.all() else ""
    show(f"Score on the target {target}{missing}:")
    for name, score in scores(estimator, X[present], y, level).items():
        show(f"  {name}: {score}")
