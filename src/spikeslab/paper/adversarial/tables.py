"""Tables of accuracy under attack, with the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence

from spikeslab.errors import pluralize
from spikeslab.paper.adversarial.study import ZETAS, AdversarialStudy, Attack, Curve
from spikeslab.paper.images.tables import NAMES, PAPER, TITLES
from spikeslab.report.tables import Cell, Column, Table

SHOWN = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
HEAD = (Column("data", "Data"), Column("method", "Method"), Column("attack", "Attack along"))
KIND_NAMES = {"itself": "its own gradient", "single": "one sample's gradient", "averaged": "the average's gradient"}
# Accuracy in per cent at the zetas above 0, read off figure 2 of the paper: good to about 0.7 points.
READ_OFF: dict[str, dict[str, tuple[float, ...]]] = {
    "mnist": {
        "vanilla": (97.4, 92.9, 82.2, 64.3, 43.7, 28.1, 19.1, 14.2, 11.7, 10.3),
        "dropout": (98.1, 94.5, 87.0, 74.3, 57.9, 43.0, 30.3, 21.1, 15.5, 12.7),
        "sghmc": (99.1, 97.4, 93.0, 84.8, 70.8, 55.3, 42.2, 31.9, 24.6, 19.9),
        "sghmc-sa": (99.0, 98.1, 94.2, 86.3, 73.9, 58.4, 45.0, 34.7, 27.1, 22.7),
    },
    "fashion": {
        "vanilla": (88.9, 60.5, 40.2, 30.1, 22.4, 17.1, 14.2, 12.2, 10.7, 9.7, 8.9),
        "dropout": (90.7, 63.1, 42.5, 32.7, 24.8, 19.0, 15.9, 13.9, 12.2, 11.3, 10.6),
        "sghmc": (91.0, 77.1, 57.9, 45.0, 36.5, 28.9, 23.1, 19.1, 16.1, 14.4, 13.4),
        "sghmc-sa": (91.7, 78.5, 56.9, 46.2, 38.1, 30.6, 24.8, 20.9, 17.9, 16.3, 15.2),
    },
}


def paper_curve(dataset: str, method: str) -> dict[float, float]:
    """Return the paper's accuracy in per cent by zeta; that of zeta 0 is from table 2."""
    return dict(zip(ZETAS[dataset], (PAPER[dataset, False][method], *READ_OFF[dataset][method]), strict=True))


def accuracy_table(curves: Sequence[Curve], study: AdversarialStudy) -> Table:
    """Return the accuracy of every network under every attack at six zetas."""
    rows: list[dict[str, Cell]] = []
    for curve in curves:
        rows.append(_names(curve.attack) | {_key(zeta): curve.accuracy(zeta) for zeta in SHOWN})
        if study.attack == "fgsm" and curve.attack.kind != "averaged":
            paper = paper_curve(curve.attack.dataset, curve.attack.method)
            rows.append(_names(curve.attack) | {"attack": "paper"} | {_key(zeta): paper[zeta] for zeta in SHOWN})
    columns = [*HEAD, *(Column(_key(zeta), f"ζ = {zeta:g}", ".2f") for zeta in SHOWN)]
    return Table(f"Accuracy under attack, %: {_title(study)}", columns, rows, _notes(curves, study))


def curves_table(curves: Sequence[Curve], study: AdversarialStudy) -> Table:
    """Return all measurements: a row for each network, attack and zeta."""
    rows: list[dict[str, Cell]] = []
    for curve in curves:
        paper = paper_curve(curve.attack.dataset, curve.attack.method) if study.attack == "fgsm" else {}
        for zeta, confidence, entropy in zip(curve.zetas, curve.confidence, curve.entropy, strict=True):
            measured: dict[str, Cell] = {"zeta": zeta, "accuracy": curve.accuracy(zeta), "entropy": entropy}
            measured |= {"confidence": 100.0 * confidence, "paper": paper.get(zeta)}
            rows.append(_names(curve.attack) | measured)
    columns = [
        *HEAD,
        Column("zeta", "ζ", ".2f"),
        Column("accuracy", "accuracy %", ".2f"),
        Column("confidence", "mean confidence %", ".2f"),
        Column("entropy", "mean entropy", ".3f"),
        Column("paper", "accuracy %, paper", ".1f"),
    ]
    notes = [
        "Confidence is the largest probability of a prediction; entropy is in nats, at most 2.303. "
        "A network that knows when it is fooled loses confidence as it loses accuracy.",
        *_notes(curves, study),
    ]
    return Table(f"Accuracy and confidence under attack: {_title(study)}", columns, rows, notes)


def _names(attack: Attack) -> dict[str, Cell]:
    return {"data": TITLES[attack.dataset], "method": NAMES[attack.method], "attack": KIND_NAMES[attack.kind]}


def _key(zeta: float) -> str:
    return f"zeta {zeta:g}"


def _title(study: AdversarialStudy) -> str:
    attack = "FGSM" if study.attack == "fgsm" else "PGD, ten steps"
    return f"{attack}, {study.preset} settings, {pluralize(study.epochs, 'epoch')}"


def _notes(curves: Sequence[Curve], study: AdversarialStudy) -> list[str]:
    notes = [
        f"The first {curves[0].images:,} test images ± binomial standard error. The attack does not see the labels: it "
        "lowers the probability of the predicted class, no pixel moves by more than ζ, and all stay in [0, 1].",
        "SGHMC and SGHMC-SA always predict as the average of their samples. An attack along the gradient of one sample "
        "misses the others; the honest attack follows the gradient of the average.",
    ]
    if study.attack == "fgsm":
        notes.append("The paper's numbers are read off its figure 2, good to about 0.7 points; at ζ = 0 its table 2.")
    return notes
