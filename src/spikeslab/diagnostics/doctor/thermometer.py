"""Checks of the temperature: what the momenta and the weights show against what was set."""

from __future__ import annotations

import math

import numpy as np

from spikeslab.diagnostics.doctor.finding import Finding, Level
from spikeslab.diagnostics.run_facts import RunFacts
from spikeslab.errors import pluralize

TOO_WARM, WARM, COOL, TOO_COOL = 2.0, 1.25, 0.8, 0.5
"""Ratios of the kinetic temperature to the one that was set."""
ERRORS = 4.0


def check_temperature(facts: RunFacts) -> Finding | None:
    """Whether the momenta are as warm as T, over the last third of the run."""
    ratios = kinetic_ratios(facts)
    if not ratios:
        return None
    hot = {name: ratio for name, (ratio, error) in ratios.items() if ratio - ERRORS * error > WARM}
    cold = {name: ratio for name, (ratio, error) in ratios.items() if ratio + ERRORS * error < COOL}
    low, high = min(r for r, _ in ratios.values()), max(r for r, _ in ratios.values())
    if hot:
        name = max(hot, key=lambda layer: hot[layer])
        cause, change = _cause(facts, set(hot), set(ratios))
        return Finding(
            "temperature",
            Level.PROBLEM if hot[name] > TOO_WARM else Level.NOTE,
            f"The chain is warmer than its temperature: {_times(hot[name])} in {name}, above {_times(WARM)} in "
            f"{len(hot)} of {pluralize(len(ratios), 'layer')}. {cause}",
            change,
        )
    if cold:
        name = min(cold, key=lambda layer: cold[layer])
        return Finding(
            "temperature",
            Level.PROBLEM if cold[name] < TOO_COOL else Level.NOTE,
            f"The chain is colder than its temperature: {_times(cold[name])} in {name}, below {_times(COOL)} "
            f"in {len(cold)} of {pluralize(len(ratios), 'layer')}.",
            "Look for weights that are held (frozen, clipped) and for a temperature that rises faster than "
            "1/(1 - momentum) steps.",
        )
    return Finding(
        "temperature",
        Level.OK,
        f"The momenta are as warm as T: {low:.2f} to {high:.2f} times in {pluralize(len(ratios), 'layer')}.",
    )


def _times(ratio: float) -> str:
    """A ratio for people.

    >>> _times(1.253), _times(153.2)
    ('1.25 times', '153 times')
    """
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.3g} times"


def _cause(facts: RunFacts, hot: set[str], layers: set[str]) -> tuple[str, str]:
    """Why the layers in ``hot`` are too warm, and what helps."""
    sparse = set() if facts.snapshot is None else set(facts.snapshot.rho)
    if hot <= sparse and layers - sparse:
        return (
            "All of these have the spike-and-slab prior, and no other layer: a step is longer than the spike is wide, "
            "so weights in the spike jump to and fro across zero.",
            "If their law matters to you, and not only that they are small: lower lr, or widen the spike (v0).",
        )
    return (
        "The noise of the mini-batches adds to what is injected, or lr is too large.",
        "Take a smaller lr or a larger batch (the excess is proportional to lr and to 1/batch size), or give "
        "gradient_noise.",
    )


def check_travel(facts: RunFacts) -> Finding | None:
    """Whether the weights have been everywhere that T lets them go: the configurational temperature is T then."""
    temperature = facts.series("temperature")
    layers = {name: series.values[-1] for name, series in facts.layers("configurational_temperature").items()}
    if not layers or not len(temperature) or temperature.values[-1] <= 0.0:
        return None
    ratios = {name: float(value / temperature.values[-1]) for name, value in layers.items()}
    least, most = min(ratios, key=lambda name: ratios[name]), max(ratios, key=lambda name: ratios[name])
    if ratios[most] > TOO_WARM:
        return Finding(
            "travel",
            Level.NOTE,
            f"The configurational temperature of {most} is {_times(ratios[most])} T: these weights are warmer than T, "
            "or were still on their way down when averaging began.",
            "See the temperature; if it is right, begin later.",
        )
    if ratios[least] < TOO_COOL:
        low = sum(ratio < TOO_COOL for ratio in ratios.values())
        return Finding(
            "travel",
            Level.NOTE,
            f"The chain has seen only a part of its law: the configurational temperature of {least} is "
            f"{_times(ratios[least])} T, and below {_times(TOO_COOL)} in {low} of {pluralize(len(ratios), 'layer')}.",
            "Run longer, or raise lr as far as the kinetic temperature stays right.",
        )
    return Finding(
        "travel",
        Level.OK,
        f"The weights have travelled as far as T lets them: their configurational temperature is "
        f"{_times(ratios[least])} to {_times(ratios[most])} T.",
    )


def kinetic_ratios(facts: RunFacts) -> dict[str, tuple[float, float]]:
    """Kinetic temperature over T of each layer with its standard error, averaged over the last third of the run."""
    temperature = facts.series("temperature")
    set_to = dict(zip(temperature.steps, temperature.values, strict=True))
    ratios = {}
    for name, series in facts.layers("kinetic_temperature").items():
        end = series.last_third()
        values = [v / set_to[s] for s, v in zip(end.steps, end.values, strict=True) if set_to.get(s, 0.0) > 0.0]
        if values:
            ratio = float(np.mean(values))
            ratios[name] = ratio, ratio * math.sqrt(2.0 / (_alive(facts, name) * len(values)))
    return ratios


def _alive(facts: RunFacts, name: str) -> int:
    """Weights of a layer that are not zero; where unknown, few, so that the error is large."""
    weight = None if facts.snapshot is None else facts.snapshot.weights.get(name)
    return 10 if weight is None else max(int(weight.count_nonzero()), 1)
