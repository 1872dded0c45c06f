"""Settings of a run, compared with those of its checkpoint when it is resumed.

Names are dotted, ``sampler.lr`` or ``data.sha256``, and values are JSON. A change is refused, unless ``on_change`` says
which value to take: ``"old"`` that of the checkpoint, ``"new"`` that of the code; one word for all or a mapping by
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from spikeslab.errors import ArgumentValueError, Phrase, check_choice, mark, quote
from spikeslab.training.checkpoints import CheckpointError

OnChange: TypeAlias = str | Mapping[str, str]

ERROR, OLD, NEW = "error", "old", "new"
MODEL = "model"
GIVEN = {MODEL, "loss"}
"""First parts of the names of settings that are the user's code, of which a checkpoint has no more than the name."""
GIVEN_LAST = {"type", "transform", "rows", "tensors", "sha256", "dataset", "batches", "sampler", "ranks"}
"""Last parts of such names."""


class ChangedSettingsError(CheckpointError):
    """Raised when a run is resumed with other settings than those of its checkpoint."""


class Changes(NamedTuple):
    """Settings that have changed, with the values that must hold: of the checkpoint, and of the code."""

    old: dict[str, Any]
    new: dict[str, Any]


def check_on_change(on_change: OnChange) -> OnChange:
    """Return ``on_change`` if each of its words is one of three."""
    for word in on_change.values() if isinstance(on_change, Mapping) else [on_change]:
        check_choice("on_change", word, (ERROR, OLD, NEW))
    return on_change


def choose(on_change: OnChange, name: str) -> str:
    """Return the word for a setting: in a mapping that of its name or of the nearest part in front of a dot.

    >>> choose({"sampler": "old", "sampler.lr": "new"}, "sampler.lr"), choose({"sampler": "old"}, "prior.v0")
    ('new', 'error')
    """
    if isinstance(on_change, str):
        return on_change
    while name not in on_change and "." in name:
        name = name.rpartition(".")[0]
    return on_change.get(name, ERROR)


def check_names(on_change: OnChange, names: Iterable[str]) -> None:
    """Raise if a mapping names something that is no setting of the run, nor the part of one in front of a dot."""
    known = [f"{name}." for name in names]
    odd = [
        name
        for name in ([] if isinstance(on_change, str) else on_change)
        if not any(k.startswith(f"{name}.") for k in known)
    ]
    if odd:
        raise ArgumentValueError(
            "on_change", "must name settings of the run, such as 'sampler.lr'", Phrase(f"got {quote(odd)}")
        )


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any], on_change: OnChange) -> Changes:
    """Return the settings that have changed, each with the value that ``on_change`` takes.

    A name that only one of them has is no change, since other versions record other settings; a module is.

    Raises:
        ChangedSettingsError: If a change is to be refused, or the old value is not to be had.
    """
    both = before.keys() & now.keys()
    names = [n for n in {**now, **before} if n in both or n.startswith(f"{MODEL}.")]
    changed = [name for name in names if before.get(name) != now.get(name)]
    refused = [name for name in changed if choose(on_change, name) == ERROR]
    if refused:
        raise ChangedSettingsError(
            "Cannot resume: these settings are not those of the checkpoint.\n\n"
            f"{format_changes({name: (before.get(name), now.get(name)) for name in refused})}\n\n"
            f"Continue with those of the checkpoint by {mark('on_change', 'old')}, with those of the code by "
            f"{mark('on_change', 'new')}, or choose for each in Python, as in on_change={{{refused[0]!r}: 'new'}}."
        )
    old = {name: before.get(name) for name in changed if choose(on_change, name) == OLD}
    for name, value in old.items():
        if name.split(".")[0] in GIVEN or name.split(".")[-1] in GIVEN_LAST:
            raise ChangedSettingsError(
                f"Cannot resume: {name} was {shorten(value)} and is now {shorten(now.get(name))}, and a checkpoint "
                f"does not hold the old one. Give it to the run, or take the new one by on_change={{{name!r}: 'new'}}."
            )
    return Changes(old, {name: now.get(name) for name in changed if name not in old})


def shorten(value: object) -> str:
    """Return a value for a message, at most 100 characters of it."""
    text = "none" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:70]} ... {text[-25:]}"


def format_changes(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Return a table of names, old and new values.

    >>> print(format_changes({"sampler.lr": (0.1, 0.2)}))
    name       | checkpoint | now
    sampler.lr | 0.1        | 0.2
    """
    rows = [("name", "checkpoint", "now")]
    rows += [(name, shorten(before), shorten(now)) for name, (before, now) in changes.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{name:{widths[0]}} | {before:{widths[1]}} | {now}" for name, before, now in rows)
