"""Tables of the study: scores, paired differences with their standard errors, counts of wins, and trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from spikeslab.bench.compression.grid import BASE_METHODS, DENSE, NETWORKS, CellKey, describe_setting
from spikeslab.bench.compression.networks import STUDY_NETWORKS, StudyNetwork
from spikeslab.bench.compression.results import (
    AVERAGE,
    REFUSED,
    SINGLE,
    Comparison,
    MethodSeries,
    StudyResults,
    Wins,
    compare,
    count_wins,
)
from spikeslab.paper.grid import Record, estimate
from spikeslab.report.tables import Cell, Column, Table

SCORES = {"accuracy": "accuracy, points", "rmse": "RMSE", "nll": "NLL, nats"}


def make_tables(results: StudyResults, notes: Sequence[str] = ()) -> dict[str, Table]:
    """Return the tables of a study by the names of their files."""
    return {
        "compression": make_score_table(results, notes),
        "compression-differences": make_difference_table(results),
        "compression-wins": make_win_table(results),
        "compression-tuning": make_tuning_table(results),
    }


def make_score_table(results: StudyResults, notes: Sequence[str] = ()) -> Table:
    """Return the table of all scores, with the raw numbers of each seed."""
    items: list[tuple[StudyNetwork, MethodSeries]] = []
    for network in NETWORKS:
        dense = CellKey(network, 0.0, DENSE)
        if dense in results.records:
            items.append((STUDY_NETWORKS[network], MethodSeries(DENSE, dense)))
        for place in results.places():
            if place[0] == network:
                items += [(STUDY_NETWORKS[network], series) for series in results.series(*place)]

    def show(name: str, scale: float = 1.0) -> Callable[[tuple[StudyNetwork, MethodSeries]], Cell]:
        return lambda item: estimate(scale * value for value in results.values(item[1], name))

    def perplexity(item: tuple[StudyNetwork, MethodSeries]) -> Cell:
        network, series = item
        return estimate(map(math.exp, results.values(series, "nll"))) if network.score == "nll" else None

    def seconds(item: tuple[StudyNetwork, MethodSeries]) -> Cell:
        return estimate(record["seconds"] for record in results.finished(item[1].key).values())

    columns: dict[Column, Callable[[tuple[StudyNetwork, MethodSeries]], Cell]] = {
        Column("network", "Network"): lambda item: item[0].title,
        Column("sparsity", "zeros %", "g"): lambda item: 100.0 * item[1].key.sparsity,
        Column("method", "Method"): lambda item: item[1].label,
        Column("setting", "Setting"): lambda item: describe_setting(item[1].key.setting),
        Column("accuracy", "accuracy %", ".2f"): show("accuracy", 100.0),
        Column("rmse", "RMSE", ".4f"): show("rmse"),
        Column("perplexity", "perplexity", ".3f"): perplexity,
        Column("nll", "NLL", ".4f"): show("nll"),
        Column("ece", "ECE %", ".2f"): show("ece", 100.0),
        Column("seconds", "s", ".0f"): seconds,
        Column("seeds", "seeds", "d"): lambda item: len(results.finished(item[1].key)),
    }
    raw = {
        key.text: {
            str(seed): {name: value for name, value in record.items() if name not in ("settings", "command")}
            for seed, record in of_key.items()
        }
        for key, of_key in results.records.items()
    }
    settings = {  # of the first seed: the same for all
        key.text: next((each["settings"] for each in of_key.values() if "settings" in each), None)
        for key, of_key in results.records.items()
    }
    title = "Sparse networks: compress at its defaults against other methods"
    every = [_explain_scores(results), *notes, *_describe_refusals(results), *_describe_odd_counts(results)]
    return Table.build(title, items, columns, every, {"cells": raw, "settings": settings})


def _explain_scores(results: StudyResults) -> str:
    epochs = ", ".join(
        f"{STUDY_NETWORKS[network].title}: {STUDY_NETWORKS[network].epochs}"
        for network in dict.fromkeys(network for network, _ in results.places())
    )
    return (
        "Zeros are a share of all parameters, the same number for every method. All methods start from the same dense "
        f"network of a seed and train as many epochs ({epochs}). spikeslab is compress(model, loader, val_loader, "
        "sparsity=, epochs=), its last network and its posterior average; gmp and l2 are its methods of that name; "
        "torch-prune is torch.nn.utils.prune in four rounds with fine-tuning; pat is torchao.prototype.pat, cut to the "
        "exact number of zeros after three quarters of the steps. NLL of a regression is that of a normal law whose "
        "variance was estimated on held-out rows. Seconds are processor time on one thread, without evaluations after "
        "the last step; compress also evaluates the held-out rows after each epoch. ± is the standard error over seeds."
    )


def _describe_refusals(results: StudyResults) -> list[str]:
    """Return a sentence for each reason why cells could not be run."""
    reasons: dict[str, list[str]] = {}
    for key, of_key in results.records.items():
        for seed, record in of_key.items():
            if REFUSED in record:
                reasons.setdefault(record[REFUSED], []).append(f"{key.text} (seed {seed})")
    return [f"Not run: {', '.join(cells)}: {reason}." for reason, cells in reasons.items()]


def _describe_odd_counts(results: StudyResults) -> list[str]:
    odd = [
        f"{key.text} (seed {seed}) has {record['zeros']:,} zeros instead of {record['target']:,}"
        for key, of_key in results.records.items()
        for seed, record in of_key.items()
        if "zeros" in record and record["zeros"] != record["target"]
    ]
    return [f"Other numbers of zeros: {'; '.join(odd)}."] if odd else []


def make_difference_table(results: StudyResults) -> Table:
    """Return the table of ours minus each alternative."""

    def show(kind: str, name: str | None = None) -> Callable[[Comparison], Cell]:
        return lambda each: each.differences[kind, name or STUDY_NETWORKS[each.network].score]

    def verdict(kind: str) -> Callable[[Comparison], Cell]:
        words = {1: "ahead", 0: "", -1: "behind"}
        return lambda each: words[each.verdict(kind, STUDY_NETWORKS[each.network].score)]

    columns: dict[Column, Callable[[Comparison], Cell]] = {
        Column("network", "Network"): lambda each: STUDY_NETWORKS[each.network].title,
        Column("sparsity", "zeros %", "g"): lambda each: 100.0 * each.sparsity,
        Column("alternative", "against"): lambda each: each.alternative,
        Column("score", "score"): lambda each: SCORES[STUDY_NETWORKS[each.network].score],
        Column("single", "last network", "+.3f"): show(SINGLE),
        Column("single_verdict", "is"): verdict(SINGLE),
        Column("average", "average", "+.3f"): show(AVERAGE),
        Column("average_verdict", "is"): verdict(AVERAGE),
        Column("single_nll", "last network: NLL", "+.4f"): show(SINGLE, "nll"),
        Column("average_nll", "average: NLL", "+.4f"): show(AVERAGE, "nll"),
        Column("seeds", "seeds", "d"): lambda each: each.seeds,
    }
    note = (
        "spikeslab at its defaults minus the alternative; of RMSE and NLL a negative difference is an improvement. ± "
        "is the standard error of the paired difference: over seeds, or over the test rows for ResNet20 and where "
        "there is one seed. Ahead and behind: by more than two standard errors."
    )
    return Table.build(
        "Differences: spikeslab at its defaults minus each alternative", compare(results), columns, [note]
    )


def make_win_table(results: StudyResults) -> Table:
    """Return the table of counts."""
    columns: dict[Column, Callable[[Wins], Cell]] = {
        Column("networks", "Networks"): lambda each: each.networks,
        Column("kind", "spikeslab's"): lambda each: each.kind,
        Column("alternative", "against"): lambda each: each.alternative,
        Column("cells", "cells", "d"): lambda each: each.cells,
        Column("ahead", "ahead", "d"): lambda each: each.ahead,
        Column("behind", "behind", "d"): lambda each: each.behind,
        Column("nll_ahead", "NLL ahead", "d"): lambda each: each.nll_ahead,
        Column("nll_behind", "NLL behind", "d"): lambda each: each.nll_behind,
        Column("either", "score or NLL ahead", "d"): lambda each: each.either,
    }
    note = (
        "Cells (a network at a sparsity) in which spikeslab at its defaults is better or worse by more than two "
        "standard errors: in its score (accuracy; RMSE of the perceptron; NLL of the transformer), and in NLL. Against "
        "several alternatives it is ahead if it is ahead of each, behind if it is behind one. A cell that compress "
        "refuses counts as behind."
    )
    return Table.build("Cells in which spikeslab is ahead", count_wins(compare(results)), columns, [note])


def make_tuning_table(results: StudyResults) -> Table:
    """Return the table of trials on held-out data."""
    rows: list[tuple[CellKey, Record, bool]] = []
    for network, sparsity in results.places():
        for method in BASE_METHODS:
            place = CellKey(network, sparsity, method)
            chosen = results.tuned(place)
            rows += [(key, record, key == chosen) for key, record in results.trials(place).items()]

    def held_out(name: str, scale: float = 1.0) -> Callable[[tuple[CellKey, Record, bool]], Cell]:
        def show(row: tuple[CellKey, Record, bool]) -> Cell:
            value = row[1][SINGLE].get(f"held_out_{name}")
            return None if value is None else scale * value

        return show

    columns: dict[Column, Callable[[tuple[CellKey, Record, bool]], Cell]] = {
        Column("network", "Network"): lambda row: STUDY_NETWORKS[row[0].network].title,
        Column("sparsity", "zeros %", "g"): lambda row: 100.0 * row[0].sparsity,
        Column("method", "Method"): lambda row: row[0].method,
        Column("setting", "Setting"): lambda row: describe_setting(row[0].setting),
        Column("accuracy", "accuracy %", ".2f"): held_out("accuracy", 100.0),
        Column("rmse", "RMSE", ".4f"): held_out("rmse"),
        Column("nll", "NLL", ".4f"): held_out("nll"),
        Column("chosen", "chosen"): lambda row: "yes" if row[2] else "",
    }
    note = (
        "All settings that were tried, with the first seed, and their scores on held-out data. The best one by "
        "accuracy, RMSE (perceptron) or NLL (transformer) is the tuned method, which is then run with all seeds."
    )
    return Table.build("Trials on held-out data", rows, columns, [note])
