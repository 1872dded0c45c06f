"""Kinetic and configurational temperature of each layer: a callback that logs them, and checks against T."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from spikeslab.diagnostics.findings import Finding, Level
from spikeslab.diagnostics.run_reader import RunFacts
from spikeslab.errors import check_count, pluralize
from spikeslab.metrics.temperature import ConfigurationalTemperature, kinetic_temperature
from spikeslab.samplers.base import Sampler
from spikeslab.training.callbacks import Callback

if TYPE_CHECKING:
    from spikeslab.training.loop import Training

TOO_WARM, WARM, COOL, TOO_COOL = 2.0, 1.25, 0.8, 0.5
"""Ratios of the measured temperature to T."""
ERRORS = 4.0
"""Standard errors by which a ratio must differ to count."""
KINETIC, CONFIGURATIONAL = "kinetic_temperature", "configurational_temperature"


class Thermometer(Callback):
    """Logs the kinetic and optionally the configurational temperature of each layer.

    Args:
        configurational_from: Step after which the configurational temperature is averaged, such as the burn-in of the
            posterior; ``None`` leaves it out. It costs about as much as the update of the weights. After a resume the
            average starts again.
    """

    def __init__(self, configurational_from: int | None = None) -> None:
        start = configurational_from
        self._start = None if start is None else check_count("configurational_from", start, minimum=0)
        self._model = nn.Module()
        self._sampler: Sampler | None = None
        self._average: ConfigurationalTemperature | None = None
        self._hook: Any = None

    def begin(self, run: Training) -> None:
        """Watch the gradients just before each step."""
        if not isinstance(run.sampler, Sampler):  # other optimizers have no temperature
            return
        self._model, self._sampler = run.model, run.sampler
        if self._start is not None:
            self._hook = run.sampler.register_step_pre_hook(lambda *_: self._before_step())

    def _before_step(self) -> None:
        if self._sampler is None or self._start is None or self._sampler.steps < self._start:
            return
        if self._average is None:
            self._average = ConfigurationalTemperature(self._model, self._sampler)
        self._average.update()

    def metrics(self) -> dict[str, Any]:
        """Return the present kinetic temperatures and the averaged configurational ones."""
        if self._sampler is None:
            return {}
        configurational = {} if self._average is None else self._average.result()
        found = {KINETIC: kinetic_temperature(self._model, self._sampler), CONFIGURATIONAL: configurational}
        return {
            name: {layer: reading.value for layer, reading in readings.items() if math.isfinite(reading.value)}
            for name, readings in found.items()
            if readings
        }

    def close(self) -> None:
        """Stop watching the gradients."""
        if self._hook is not None:
            self._hook.remove()


def check_temperature(facts: RunFacts) -> Finding | None:
    """Check the kinetic temperature against T over the last third of the run."""
    ratios = kinetic_ratios(facts)
    if not ratios:
        return None
    warm = {name: ratio for name, (ratio, error) in ratios.items() if ratio - ERRORS * error > WARM}
    cool = {name: ratio for name, (ratio, error) in ratios.items() if ratio + ERRORS * error < COOL}
    layers = pluralize(len(ratios), "layer")
    if warm:
        name = max(warm, key=lambda layer: warm[layer])
        cause, advice = _explain_warmth(facts, set(warm), set(ratios))
        share = f"above {_format_ratio(WARM)} T in {len(warm)} of {layers}"
        sentence = f"The chain is too warm: {_format_ratio(warm[name])} T in {name}, and {share}. {cause}"
        return Finding("temperature", Level.PROBLEM if warm[name] > TOO_WARM else Level.NOTE, sentence, advice)
    if cool:
        name = min(cool, key=lambda layer: cool[layer])
        share = f"below {_format_ratio(COOL)} T in {len(cool)} of {layers}"
        sentence = f"The chain is too cold: {_format_ratio(cool[name])} T in {name}, and {share}."
        advice = "Look for frozen or clipped weights, and for a temperature that rises within 1/(1 - momentum) steps."
        return Finding("temperature", Level.PROBLEM if cool[name] < TOO_COOL else Level.NOTE, sentence, advice)
    low, high = min(ratio for ratio, _ in ratios.values()), max(ratio for ratio, _ in ratios.values())
    sentence = f"The kinetic temperature agrees with T: {low:.2f} to {high:.2f} times T in {layers}."
    return Finding("temperature", Level.OK, sentence)


def _format_ratio(ratio: float) -> str:
    """Format a ratio.

    >>> _format_ratio(1.253), _format_ratio(153.2)
    ('1.25 times', '153 times')
    """
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.3g} times"


def _explain_warmth(facts: RunFacts, warm: set[str], layers: set[str]) -> tuple[str, str]:
    """Return the likely cause of layers that are too warm, and advice."""
    sparse = set() if facts.snapshot is None else set(facts.snapshot.rho)
    if warm <= sparse and layers - sparse:
        return (
            "Only layers with the spike-and-slab prior are affected: a step is longer than the spike is wide, so "
            "weights in the spike jump back and forth across zero.",
            "If the law of these small weights matters to you, lower lr or widen the spike (v0).",
        )
    return (
        "The noise of the mini-batches adds to the injected noise, or lr is too large.",
        "Use a smaller lr or a larger batch (the excess is proportional to lr and to 1/batch size), or set "
        "gradient_noise.",
    )


def check_travel(facts: RunFacts) -> Finding | None:
    """Check the configurational temperature, which equals T once the weights have explored their distribution."""
    temperature = facts.metrics.series("temperature")
    layers = {name: series.values[-1] for name, series in facts.metrics.layers(CONFIGURATIONAL).items()}
    if not layers or not len(temperature) or temperature.values[-1] <= 0.0:
        return None
    ratios = {name: float(value / temperature.values[-1]) for name, value in layers.items()}
    least, most = min(ratios, key=lambda name: ratios[name]), max(ratios, key=lambda name: ratios[name])
    if ratios[most] > TOO_WARM:
        sentence = (
            f"The configurational temperature of {most} is {_format_ratio(ratios[most])} T: its weights are warmer "
            "than T, or were still far from equilibrium when averaging began."
        )
        advice = "If the kinetic temperature is right, begin the average later."
        return Finding("travel", Level.NOTE, sentence, advice)
    if ratios[least] < TOO_COOL:
        low = sum(ratio < TOO_COOL for ratio in ratios.values())
        share = f"below {_format_ratio(TOO_COOL)} T in {low} of {pluralize(len(ratios), 'layer')}"
        sentence = (
            f"The chain has explored only a part of its distribution: the configurational temperature of {least} is "
            f"{_format_ratio(ratios[least])} T, and {share}."
        )
        advice = "Run longer, or raise lr as long as the kinetic temperature stays right."
        return Finding("travel", Level.NOTE, sentence, advice)
    span = f"the configurational temperature is {ratios[least]:.2g} to {ratios[most]:.2g} times T"
    return Finding("travel", Level.OK, f"The weights have explored their distribution: {span}.")


def kinetic_ratios(facts: RunFacts) -> dict[str, tuple[float, float]]:
    """Return kinetic temperature over T and its standard error by layer, averaged over the last third of the run."""
    temperature = facts.metrics.series("temperature")
    ratios = {}
    for name, series in facts.metrics.layers(KINETIC).items():
        end = series.last_third()
        _, own, others = np.intersect1d(end.steps, temperature.steps, assume_unique=True, return_indices=True)
        measured, expected = end.values[own], temperature.values[others]
        values = measured[expected > 0.0] / expected[expected > 0.0]
        if len(values):
            ratio = float(np.mean(values))
            ratios[name] = ratio, ratio * math.sqrt(2.0 / (_count_weights(facts, name) * len(values)))
    return ratios


def _count_weights(facts: RunFacts, name: str) -> int:
    """Return the number of non-zero weights of a layer; if unknown a small one, so that the error is large."""
    weight = None if facts.snapshot is None else facts.snapshot.weights.get(name)
    return 10 if weight is None else max(int(weight.count_nonzero()), 1)
