"""Thermometers as a callback: how warm each layer is, in every record of the log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import nn

from spikeslab.errors import check_count
from spikeslab.metrics.temperature import ConfigurationalTemperature, kinetic_temperature
from spikeslab.samplers.base import Sampler
from spikeslab.training.callbacks import Callback

if TYPE_CHECKING:
    from spikeslab.training.loop import Training


class Thermometer(Callback):
    """Logs the kinetic and, where wanted, the configurational temperature of each layer.

    Args:
        configurational_from: Step after which the configurational temperature is averaged, such as the burn-in of the
            posterior; ``None`` leaves it out. It takes about as long as the update of the weights, and an average of a
            run that was continued begins anew.
    """

    def __init__(self, configurational_from: int | None = None) -> None:
        start = configurational_from
        self._start = None if start is None else check_count("configurational_from", start, minimum=0)
        self._model = nn.Module()
        self._sampler: Sampler | None = None
        self._average: ConfigurationalTemperature | None = None
        self._hook: Any = None

    def begin(self, run: Training) -> None:
        """Watch the gradients, just before each step."""
        if not isinstance(run.sampler, Sampler):  # any other optimizer has no temperature
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
        """Readings of now (kinetic) and of the average so far (configurational)."""
        if self._sampler is None:
            return {}
        kinetic = kinetic_temperature(self._model, self._sampler)
        configurational = {} if self._average is None else self._average.result()
        found = {"kinetic_temperature": kinetic, "configurational_temperature": configurational}
        return {
            name: {layer: reading.value for layer, reading in readings.items() if math.isfinite(reading.value)}
            for name, readings in found.items()
            if readings
        }

    def close(self) -> None:
        """Stop watching."""
        if self._hook is not None:
            self._hook.remove()
