"""Report of a selection of variables: ``report.html`` and its figures."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from spikeslab.errors import Spelling, mark, pluralize, spell, spell_keyword
from spikeslab.report.figures import render_png
from spikeslab.report.page import Block, Code, Facts, Grid, Page, Picture, Section, Text
from spikeslab.report.tables import Column, Table
from spikeslab.sklearn import SpikeSlabClassifier
from spikeslab.tabular._figures import count_named, inclusion_figure, traces_figure
from spikeslab.tabular.selection import FIT_ROWS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikeslab.tabular.design import Design
    from spikeslab.tabular.selection import Selection
    from spikeslab.tabular.table import DataTable
    from spikeslab.tabular.target import Target

SHOWN = 100  # rows of the table on the page
SLOWEST = 5  # variables among the diagnostics
TRACED = 4  # coefficients with a trace
LISTED = 12  # names of dropped columns on the screen
PACKAGES = ("spikeslab", "numpy", "scipy", "scikit-learn", "numba", "pandas")
QUANTITIES = {
    "sigma": "noise standard deviation (sigma)",
    "slab_scale": "scale of the non-zero coefficients (slab_scale)",
    "model_size": "number of non-zero coefficients (model_size)",
    "log_lik": "log likelihood (log_lik)",
    "delta": "prior inclusion probability (delta)",
    "norm": "length of the coefficient vector (norm)",
}


def describe_family(target: Target) -> str:
    """Return the family and its reason, the end of a sentence with arguments marked."""
    if not target.guess:
        return f"{target.family}, as given."
    return f"{target.family}, guessed from the target: {target.guess}. Set {mark('family')} to choose another."


def describe_dropped(design: Design) -> Iterator[str]:
    """Yield a sentence for each reason why columns were left out."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in design.dropped.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
        yield f"Left out ({reason}): {', '.join(names[:LISTED])}{more}."


def draw_figures(selection: Selection) -> tuple[bytes, bytes]:
    """Draw the inclusion probabilities, and the traces of scalars and of the most probable coefficients, as PNG."""
    inclusion = inclusion_figure(list(selection.names), selection.pip, selection.selected, selection.rule.threshold)
    posterior = selection.estimator._posterior
    traces = {QUANTITIES.get(name, name): draws for name, draws in posterior.scalars.items()}
    traces |= _coefficient_traces(selection)
    return render_png(inclusion), render_png(traces_figure(traces))


def _coefficient_traces(selection: Selection) -> dict[str, NDArray[np.float64]]:
    """Return the draws of the most probable coefficients; of several classes, that with the largest mean counts."""
    estimator = selection.estimator
    posterior, p = estimator._posterior, estimator.n_features_in_
    labels = list(estimator.classes_) if posterior.mean.shape[0] > 1 else [None]
    traces = {}
    for j in np.argsort(-estimator.pip_, kind="stable")[:TRACED]:
        c = int(np.argmax(np.abs(posterior.mean[:, j])))
        of_class = "" if labels[c] is None else f", class {labels[c]}"
        traces[f"coefficient of {estimator.feature_names_in_[j]}{of_class}"] = posterior.coef_of(c * p + int(j))
    return traces


def selection_page(
    selection: Selection,
    data: DataTable,
    command: str,
    inclusion: bytes,
    traces: bytes,
    spelling: Spelling = spell_keyword,
) -> Page:
    """Make the page about a selection from ``data`` by ``command``, with the figures of `draw_figures`."""
    target = selection.target
    count, total = int(selection.selected.sum()), selection.names.size
    names = [str(name) for name in selection.names[np.argsort(-selection.pip, kind="stable")][:count]]
    listed = ", ".join(names[:10]) + (f" and {count - 10:,} more" if count > 10 else "")
    found = f"None of {total:,} variables is selected for {target.name}."
    if count:
        found = f"{count:,} of {total:,} variables selected for {target.name}: {listed}."
    sentence, reliable = spell(selection.convergence[0], spelling), selection.convergence[1]
    warnings = [] if reliable else [Text(sentence, "warning")]
    versions = {"Python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    return Page(
        f"Variable selection: {target.name} in {data.name}",
        found,
        [
            Section("Selected variables", [*warnings, *_result(selection)]),
            Section("Inclusion probabilities", [_inclusion(selection, inclusion)]),
            Section("Did the chains converge?", _convergence(selection, traces, sentence)),
            *([Section("Held-out rows", [Grid(selection.held_out)])] if selection.held_out else []),
            Section("Fit to the same rows (in-sample)", _fit(selection)),
            Section("Data", _data(selection, data)),
            Section("Settings", [Facts(_settings(selection, spelling))]),
            Section("Made by", [Code(command), Facts(versions)]),
        ],
    )


def _result(selection: Selection) -> list[Block]:
    notes = [
        f"PIP is the posterior inclusion probability: the probability, given these data, that a variable is in the "
        f"model; ± is its Monte Carlo standard error. Selected: {selection.rule}. The mean and the interval, which "
        f"holds {100 * selection.level:g} % of the "
        "posterior probability, are those of the coefficient, which is zero when the variable is not in the model. "
        + _describe_unit(selection)
    ]
    if selection.design.encoding.text:
        notes.append(
            "A column of text is one variable: its PIP is the probability that any of its levels is in the model. "
            "If it has two levels, one coefficient describes their difference."
        )
    warnings = [Text(alike, "warning") for alike in selection.alike]
    return [Grid(selection.table(SHOWN)), *warnings, *(Text(note, "note") for note in notes)]


def _describe_unit(selection: Selection) -> str:
    estimator, name = selection.estimator, selection.target.name
    if not isinstance(estimator, SpikeSlabClassifier):
        return f"A coefficient is the change of {name} per unit of the variable, the others held fixed."
    if estimator.classes_.size == 2:
        event = f"{name} = {estimator.classes_[1]}"
        return f"A coefficient is the change of the log odds of {event} per unit of the variable."
    return "Each class has its own coefficients: the change of its log probability, up to a constant, per unit."


def _inclusion(selection: Selection, figure: bytes) -> Picture:
    named = count_named(selection.pip)
    rest = selection.names.size - named
    band = f" The band below shows the other {rest:,}, sorted by their probability." if rest > 0 else ""
    text = f"Bar chart of the inclusion probabilities of the {named} most probable variables."
    return Picture(figure, f"Blue: selected ({selection.rule}).{band}", text)


def _convergence(selection: Selection, figure: bytes, sentence: str) -> list[Block]:
    estimator = selection.estimator
    rows: list[dict[str, Any]] = []
    for name, numbers in ((name, (estimator.rhat_[name], estimator.ess_[name])) for name in estimator.rhat_):
        rhat, ess = (number if np.isfinite(number) else None for number in numbers)
        rows.append({"name": QUANTITIES.get(name, name), "rhat": rhat, "ess": ess, "error": None})
    found = estimator._convergence
    for j in np.argsort(-np.nan_to_num(found.rhat, posinf=1e9), kind="stable")[:SLOWEST]:
        if not np.isnan(found.rhat[j]):
            finite = float(found.rhat[j]) if np.isfinite(found.rhat[j]) else None
            error = None if np.isnan(found.error[j]) else float(found.error[j])
            rows.append({"name": str(estimator._names()[j]), "rhat": finite, "ess": None, "error": error})
    columns = [Column("name", "Quantity"), Column("rhat", "R-hat", ".3f")]
    columns += [Column("ess", "Effective sample size", ",.0f"), Column("error", "Error of the PIP", ".3f")]
    note = (
        "R-hat compares the chains: 1 means that they found the same distribution, above 1.05 they did not. The "
        "effective sample size is the number of independent draws that would give the same precision. Of the variables "
        f"with a PIP of 0.05 or more, the {SLOWEST} with the largest R-hat are shown; that of a variable is the larger "
        "one of its coefficient and of its being in the model. The error is the Monte Carlo standard error."
    )
    caption = "Each chain has a colour. Chains that mix well look like the same noise and have the same histogram."
    picture = Picture(figure, caption, "Traces and histograms of the draws of every chain.")
    return [Text(sentence), Grid(Table("Diagnostics", columns, rows, [note])), picture]


def _fit(selection: Selection) -> list[Block]:
    some = f" Of all rows, {FIT_ROWS:,} at equal distances were used." if len(selection.target.y) > FIT_ROWS else ""
    note = (
        "These scores are for the rows that the model was fitted to, so they are optimistic. To find out how well it "
        f"predicts, run spikeslab predict on other rows.{some}"
    )
    return [Text(note), Facts(selection.fit)]


def _data(selection: Selection, data: DataTable) -> list[Block]:
    target, design = selection.target, selection.design
    rows, columns = design.X.shape
    texts = len(design.encoding.text)
    facts = {"File": data.name, "Rows": f"{rows:,}", "Variables": f"{selection.names.size:,}"}
    if texts:
        facts["Variables"] += f", {texts:,} of them text; {columns:,} columns in all"
    if target.family == "gaussian":
        low, mean, high, spread = target.y.min(), target.y.mean(), target.y.max(), target.y.std()
        facts["Target"] = (
            f"{target.name}, from {low:.4g} to {high:.4g}, mean {mean:.4g}, standard deviation {spread:.4g}"
        )
    else:
        classes, counts = np.unique(target.y, return_counts=True)
        shares = [f"{label} ({count:,} rows, {count / rows:.1%})" for label, count in zip(classes, counts, strict=True)]
        facts["Target"] = f"{target.name}: {', '.join(shares)}"
    blocks: list[Block] = [Facts(facts), *(Text(note) for note in data.notes)]
    if not design.dropped:
        return [*blocks, Text("No column was left out.")]
    dropped = [{"name": name, "reason": reason} for name, reason in design.dropped.items()]
    more = [f"{len(dropped) - SHOWN:,} more were left out."] if len(dropped) > SHOWN else []
    table = Table("Columns left out", [Column("name", "Column"), Column("reason", "Why")], dropped[:SHOWN], more)
    return [*blocks, Grid(table)]


def _settings(selection: Selection, spelling: Spelling) -> dict[str, str]:
    estimator = selection.estimator
    chains, draws = next(iter(estimator._posterior.scalars.values())).shape
    steps = pluralize(estimator.n_iter_, "step")
    chosen = ", chosen by auto" if estimator.method == "auto" else ""
    return {
        "Family": spell(describe_family(selection.target), spelling),
        "Method": f"{estimator.method_}{chosen}",
        "Chains": f"{chains}, each with {steps} after the burn-in, of which {draws:,} are kept",
        "Selection": f"{selection.rule}",
        "Intervals": f"{100 * selection.level:g} %, equal tails",
        "Seed": f"{estimator.random_state}",
    }
