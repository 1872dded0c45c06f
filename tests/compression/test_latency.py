"""Times are medians of timings taken in turn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spikeslab.compression import latency
from spikeslab.compression.latency import Latency, measure_latency
from spikeslab.errors import SpikeSlabWarning


class Slow(nn.Module):
    """Moves a clock of its own by its rows times a factor, by more after another one, and once by much more."""

    def __init__(self, clock: list[float], factor: float, log: list[tuple[float, int]]) -> None:
        super().__init__()
        self.clock, self.factor, self.log = clock, factor, log

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        self.log.append((self.factor, len(x)))
        hiccup = 100.0 if len(self.log) == 10 else 0.0
        disturbed = 7.0 if len(self.log) > 1 and self.log[-2][0] != self.factor else 0.0
        self.clock[0] += self.factor * len(x) + hiccup + disturbed
        return x


def test_medians_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = [0.0], []
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    variants = {"a": Slow(clock, 1.0, log), "b": Slow(clock, 2.0, log), "c": Slow(clock, 0.5, log)}
    found = measure_latency(variants, torch.zeros(3, 2), batches=(1, 4), rounds=3)
    assert found == [
        Latency("a", 1, 1.0),
        Latency("b", 1, 2.0),
        Latency("c", 1, 0.5),
        Latency("a", 4, 4.0),
        Latency("b", 4, 8.0),
        Latency("c", 4, 2.0),
    ]
    rounds = [factor for factor, _ in log[7:24:2]]
    assert rounds == [1.0, 2.0, 0.5, 2.0, 0.5, 1.0, 0.5, 1.0, 2.0], "the order rotates"
    assert all(model.training for model in variants.values())


def test_short_passes_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = [0.0], []
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    (found,) = measure_latency({"a": Slow(clock, 0.001, log)}, torch.zeros(1, 2), batches=(1,), rounds=2)
    assert len(log) >= 2 + 2 * 5
    assert found.seconds == pytest.approx(0.001), "one pass of 100 seconds does not move the median"


def test_bad_settings() -> None:
    for name, value in (("rounds", 0), ("batches", (0,))):
        with pytest.raises(ValueError, match=rf"^{name} must be an integer >= 1, but got 0\.$"):
            measure_latency({"a": nn.Identity()}, torch.zeros(1, 2), **{name: value})


def test_a_process_that_hardly_had_a_processor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(latency.time, "process_time", lambda: 0.1 * clock[0])
    message = r"^Other programs had the processor for 90% of the time of these measurements: measure again when"
    with pytest.warns(SpikeSlabWarning, match=message):
        measure_latency({"a": Slow(clock, 1.0, [])}, torch.zeros(3, 2), batches=(1,), rounds=1)
