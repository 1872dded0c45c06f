"""Selection of the variables of a table by a fitted estimator: probabilities, coefficients, convergence and fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from spikeslab.errors import mark, pluralize
from spikeslab.report.tables import Column, Table
from spikeslab.sklearn import SpikeSlabClassifier, select_variables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikeslab.sklearn import Estimator
    from spikeslab.tabular.design import Design
    from spikeslab.tabular.target import Target

    Floats = NDArray[np.float64]

ALIKE = 0.9  # correlation, in size, from which the data can hardly tell two variables apart
CANDIDATES = 200
RHAT_LIMIT, ERROR_LIMIT = 1.05, 0.05  # beyond, a number is not reliable
FIT_ROWS = 5000
LISTED = 8  # names in a note


@dataclass(frozen=True)
class SelectionRule:
    """Rule to select variables: a threshold of their probability, or an expected false discovery rate."""

    threshold: float = 0.5
    fdr: float | None = None

    def __str__(self) -> str:
        if self.fdr is None:
            return f"inclusion probability above {self.threshold:g}"
        return f"expected share of false discoveries at most {self.fdr:g}"


class Selection:
    """Variables selected from a table.

    Args:
        estimator: Estimator that was fitted to ``design.X``.
        design: Design matrix.
        target: Response.
        rule: Rule to select variables.
        level: Probability of the intervals.
        held_out: Scores of the model and others on held-out rows, if there are any.
    """

    def __init__(
        self,
        estimator: Estimator,
        design: Design,
        target: Target,
        rule: SelectionRule,
        level: float,
        held_out: Table | None = None,
    ) -> None:
        self.estimator = estimator
        self.design = design
        self.target = target
        self.rule = rule
        self.level = level
        self.held_out = held_out
        self.names = np.array([variable.name for variable in design.encoding.variables], dtype=object)
        slices = design.encoding.slices()
        self.pip = np.array([self._any_of(np.arange(s.start, s.stop)) for s in slices])
        self.selected = select_variables(self.pip, rule.threshold, rule.fdr)

    def _any_of(self, features: NDArray[np.int64]) -> float:
        """Return the probability that at least one of some columns is in the model."""
        pips = self.estimator.pip_[features]
        if features.size == 1:
            return float(pips[0])
        if self.estimator.method_.startswith("sgld"):
            return float(1.0 - np.prod(1.0 - pips))  # no coefficient of these methods is ever exactly zero
        return max(self._share(features), float(pips.max()))  # a bound, and more exact than a share of draws

    def _share(self, features: NDArray[np.int64]) -> float:
        draws = self.estimator._posterior.coef
        mine = np.zeros(self.estimator.n_features_in_, dtype=bool)
        mine[features] = True
        hits = np.concatenate([[0], np.cumsum(mine[draws.indices % mine.size])])[draws.indptr]
        return float((np.diff(hits) > 0).mean())

    @cached_property
    def coefficients(self) -> pd.DataFrame:
        """Coefficients, one per row; those of the most probable variables come first."""
        variables = self.design.encoding.variables
        index = {column: (i, k) for i, v in enumerate(variables) for k, column in enumerate(v.columns)}
        frame = self.estimator.summary(self.level).reset_index()
        place = np.array([index[name] for name in frame["feature"]], dtype=np.int64).reshape(-1, 2)
        rank = np.empty(len(variables), dtype=np.int64)
        rank[np.argsort(-self.pip, kind="stable")] = np.arange(len(variables))
        columns: dict[str, Any] = {"variable": self.names[place[:, 0]]}
        if any(v.levels for v in variables):
            columns["level"] = [variables[i].levels[k] if variables[i].levels else "" for i, k in place]
            columns["level_pip"] = np.where([bool(variables[i].levels) for i, _ in place], frame["pip"], np.nan)
        if "class" in frame:
            columns["class"] = frame["class"].to_numpy()
        columns["pip"] = self.pip[place[:, 0]]
        error = frame["pip_error"].groupby(place[:, 0]).max()  # of a column of text, that of its levels
        columns["pip_error"] = error[place[:, 0]].to_numpy()
        if "class_pip" in frame:
            columns["class_pip"] = frame["class_pip"].to_numpy()
        columns["selected"] = self.selected[place[:, 0]]
        for name in ("mean", "std", "lower", "upper", "rhat", "ess"):
            columns[name] = frame[name].to_numpy()
        # Stable, so that the order of levels comes from the second key and that of classes from the summary.
        return pd.DataFrame(columns).iloc[np.lexsort((place[:, 1], rank[place[:, 0]]))].reset_index(drop=True)

    def table(self, most: int) -> Table:
        """Return the coefficients of the selected variables, or of the most probable ones if none is selected."""
        frame = self.coefficients
        count = int(self.selected.sum())
        frame = frame[frame["selected"]] if count else frame.head(5)
        left = len(frame) - most
        columns = [Column(key, key.capitalize()) for key in ("variable", "level", "class") if key in frame]
        columns += [Column("pip", "PIP", ".3f")]
        columns += [Column("pip_error", "±", ".3f")] if frame["pip_error"].notna().any() else []
        columns += [Column("class_pip", "PIP of class", ".3f")] if "class_pip" in frame else []
        columns += [Column("level_pip", "PIP of level", ".3f")] if "level" in frame else []
        columns += [Column("mean", "Mean", ".4g"), Column("lower", f"{100 * self.level:g} % from", ".4g")]
        columns += [Column("upper", "to", ".4g")]
        rows = [{c.key: _cell(row[c.key]) for c in columns} for row in frame.head(most).to_dict(orient="records")]
        title = f"{pluralize(count, 'variable')} selected" if count else "No variable selected; the most probable are"
        notes = [f"{pluralize(left, 'more row')} in summary.csv."] if left > 0 else []
        unsure = list(dict.fromkeys(frame["variable"][_is_unreliable(frame)]))
        if unsure:
            more = f" and {len(unsure) - LISTED} more" if len(unsure) > LISTED else ""
            names = ", ".join(map(str, unsure[:LISTED]))
            notes.append(f"The chains disagree on {names}{more}: do not rely on these rows.")
        return Table(title, columns, rows, notes)

    @cached_property
    def alike(self) -> list[str]:
        """Sentences about groups of correlated variables of which one is in the model, none of them surely."""
        if self.estimator.method_.startswith("sgld"):
            return []
        slices = self.design.encoding.slices()
        order = np.argsort(-self.pip, kind="stable")[:CANDIDATES]
        order = order[[self.pip[i] > 0.02 and slices[i].stop - slices[i].start == 1 for i in order]]
        if order.size < 2:
            return []
        columns = np.array([slices[i].start for i in order])
        correlation = np.abs(np.corrcoef(self.design.X.to_numpy()[:, columns], rowvar=False))
        close = correlation >= ALIKE
        count, labels = connected_components(csr_array(close), directed=False)
        found = []
        for label in range(count):
            group = np.flatnonzero(labels == label)
            probability = self._share(columns[group])
            if group.size > 1 and self.pip[order[group]].max() < 0.95 and probability > 0.5:
                edges = correlation[np.ix_(group, group)]
                weakest = float(edges[edges >= ALIKE].min())
                names = ", ".join(str(self.names[order[i]]) for i in group)
                found.append(
                    f"At least one of {names} is in the model with probability {probability:.2f}, but they are too "
                    f"correlated (absolute correlation {np.floor(100 * weakest) / 100:.2f} or more) to tell which."
                )
        return found

    @cached_property
    def convergence(self) -> tuple[str, bool]:
        """Sentence about the chains, with arguments marked, and True if their numbers can be relied on."""
        estimator = self.estimator
        found = estimator._convergence
        if np.isnan(found.largest_rhat):
            return f"There are too few draws to tell if the chains agree: raise {mark('n_iter')}.", False
        who = "The chains" if estimator.n_chains > 1 else "The two halves of the chain"
        numbers = found.describe(estimator._names())
        if found.reached:
            return f"{who} agree, and the numbers are reliable ({numbers}).", True
        more = mark("n_iter", 4 * estimator.n_iter_)
        if estimator.n_iter is None and not estimator.method_.startswith("sgld"):
            more = mark("max_time", round(4 * max(estimator.max_time, 1.0)))
        if found.largest_rhat <= RHAT_LIMIT and not found.largest_error > ERROR_LIMIT:
            return f"{who} agree only roughly ({numbers}): {more} gives more exact numbers.", True
        return f"{who} do not agree yet, and the numbers are not reliable ({numbers}): {more} gives better ones.", False

    @cached_property
    def fit(self) -> dict[str, str]:
        """Scores of the model on the rows that it was fitted to."""
        rows = np.unique(np.linspace(0, len(self.target.y) - 1, min(len(self.target.y), FIT_ROWS)).astype(int))
        return compute_scores(self.estimator, self.design.X.iloc[rows], self.target.y[rows], self.level)


def compute_scores(estimator: Estimator, X: pd.DataFrame, y: NDArray[Any], level: float) -> dict[str, str]:
    """Compute scores of an estimator's predictions, as text by name.

    Args:
        estimator: Fitted estimator.
        X: Rows of the design matrix.
        y: Responses of the rows; the estimator must know all classes.
        level: Probability of the prediction intervals of a regression.
    """
    out = {"Rows": f"{len(y):,}"}
    if not isinstance(estimator, SpikeSlabClassifier):
        residual = y - np.asarray(estimator.predict(X))
        interval = estimator.predict_interval(X, level)
        spread = float(((y - y.mean()) ** 2).sum())
        out["R²"] = f"{1.0 - float((residual**2).sum()) / spread:.3f}" if spread > 0 else "–"
        out["Root mean squared error"] = f"{float(np.sqrt((residual**2).mean())):.4g}"
        inside = float(((y >= interval[:, 0]) & (y <= interval[:, 1])).mean())
        out[f"Share inside the {100 * level:g} % prediction interval"] = f"{inside:.3f}"
        return out
    proba = estimator.predict_proba(X)
    labels = np.searchsorted(estimator.classes_, y)
    given = np.maximum(proba[np.arange(len(y)), labels], 1e-300)
    shares = np.bincount(labels, minlength=proba.shape[1]) / len(y)
    known = shares[shares > 0]
    truth = np.eye(proba.shape[1])[labels]
    out["Accuracy"] = f"{float((proba.argmax(axis=1) == labels).mean()):.3f}"
    out["Accuracy of always predicting the most frequent class"] = f"{float(shares.max()):.3f}"
    out["Log loss"] = f"{float(-np.log(given).mean()):.4f}"
    out["Log loss of predicting the shares of the classes"] = f"{float((known * -np.log(known)).sum()):.4f}"
    squares = (proba - truth) ** 2
    brier = squares[:, 1] if proba.shape[1] == 2 else squares.sum(axis=1)  # of two classes, of the second alone
    out["Brier score"] = f"{float(brier.mean()):.4f}"
    return out


def _is_unreliable(frame: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows whose chains disagree, or whose inclusion probability has a large error."""
    return (frame["rhat"] > RHAT_LIMIT) | (frame["pip_error"] > ERROR_LIMIT)


def _cell(value: Any) -> str | float | None:
    if not isinstance(value, float | np.floating):
        return str(value)
    return None if np.isnan(value) else float(value)
