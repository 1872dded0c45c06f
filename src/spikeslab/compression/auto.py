r"""Sparsity that a run chooses itself: as sparse as possible within a tolerance of the dense network.

The sparsity rises until the held-out score says stop, goes back, and settles, all in one run. Three parts make it work:

- **The score** is that of the running mean of the weights under the present zeros. In mid-run the lr is high, and the
  network itself is points worse than it will be; the mean of the weights of the last steps is about as good as the
  network after a fall of the lr (Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization",
  UAI 2018), so it tells the final score early.
- **The scale** is the level :math:`u = -\log(1 - s)`: every step of it removes the same share of the weights that are
  left, and the score falls about linearly in it once it falls.
- **The search** climbs, until a probe finds the score beyond the tolerance, and is stochastic approximation from then
  on: with d the difference from the dense network and :math:`\tau` the tolerance,

  .. math:: u \leftarrow u + a\,\operatorname{clip}\bigl((\tau + h\,d_0 - d)/c, -1, 1\bigr), \qquad
      a \leftarrow a/2 \text{ whenever the bracket changes its sign}

  (Kesten, "Accelerated Stochastic Approximation", 1958). c is the tolerance or, if that is larger, the standard error
  of d. What the high lr costs even the mean of the weights is :math:`d_0`, seen by the first probes, where zeros cost
  nothing yet; it fades with h, the lr as a share of its highest.

The search ends, and the zeros are frozen, where samples begin (``collect_from``): by then the lr is low, and the score
of a probe is that of the end.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.compression.differences import Difference, RowScores, compare, score_rows
from spikeslab.compression.tasks import Evaluation
from spikeslab.schedules import Schedule
from spikeslab.states import State
from spikeslab.training import Callback, Training

AUTO = "auto"
"""Value of ``sparsity`` that asks for the search."""
PROBES = 16
"""Number of probes of a search."""
CALIBRATION = 2
"""Number of probes that measure what the lr alone costs."""
CLIMB = 10
"""Number of probes in which a search that is never stopped reaches ``SUMMIT``."""
START, SUMMIT = 0.3, 0.99
"""Sparsity of the first probe, and sparsity that sets the length of a step."""
MOVING = 0.5
"""Share of the steps between two probes in which the sparsity moves; in the rest the network recovers."""
HORIZON = 0.5
"""Horizon of the running mean of the weights, as a share of the steps between two probes."""


def level_of(sparsity: float) -> float:
    """Return the level -log(1 - s) of a sparsity.

    >>> round(level_of(0.9), 4)
    2.3026
    """
    return -math.log1p(-sparsity)


def sparsity_of(level: float) -> float:
    """Return the sparsity 1 - exp(-u) of a level.

    >>> round(sparsity_of(level_of(0.9)), 4)
    0.9
    """
    return -math.expm1(-level)


def choose_move(room: float, scale: float, length: float) -> float:
    """Return the signed change of the level: the room below the tolerance over ``scale``, at most ``length``.

    >>> choose_move(0.5, 0.5, 0.4), choose_move(-0.25, 0.5, 0.4), choose_move(-9.0, 0.5, 0.4)
    (0.4, -0.2, -0.4)
    """
    return length * min(1.0, max(-1.0, room / scale))


def glide(begin: float, end: float, progress: float, moving: float = MOVING) -> float:
    """Return the level on the way from one to another: a straight line, at its end when ``moving`` of the time is over.

    >>> glide(1.0, 2.0, 0.25), glide(1.0, 2.0, 0.8)
    (1.5, 2.0)
    """
    return begin + (end - begin) * min(1.0, progress / moving)


@dataclass(frozen=True)
class SearchPlan:
    """Settings of a search.

    Attributes:
        tolerance: Largest difference from the dense network, in the unit of :mod:`spikeslab.compression.differences`.
        highest: Largest sparsity that can be reached.
        end: Step after which the zeros are final.
        probes: Number of probes.
    """

    tolerance: float
    highest: float
    end: int
    probes: int = PROBES

    @property
    def every(self) -> int:
        """Steps from one probe to the next."""
        return max(1, self.end // (self.probes + 1))

    def is_due(self, step: int) -> bool:
        """Return True if a probe follows ``step``, which leaves the network time for one more move."""
        return step % self.every == 0 and step + self.every <= self.end

    @property
    def length(self) -> float:
        """Longest move of the level."""
        return (level_of(SUMMIT) - level_of(START)) / (CLIMB - 1)


class SparsitySearch:
    """State of a search: the level, its move, and the probes so far.

    >>> search = SparsitySearch(SearchPlan(tolerance=0.5, highest=0.98, end=170))
    >>> round(search.sparsity(10), 3)
    0.3
    >>> search.update(10, Difference(0.1, 0.2, "points of accuracy", 1000), heat=1.0)
    >>> round(search.sparsity(20), 3)
    0.563

    Attributes:
        plan: The settings.
        probes: Records of the probes: step, sparsity, difference and standard error.
    """

    def __init__(self, plan: SearchPlan) -> None:
        self.plan = plan
        self.probes: list[dict[str, float]] = []
        self._from, self._to, self._since = 0.0, self._limit(level_of(START)), 0
        self._length, self._sign = plan.length, 0

    @property
    def offset(self) -> float:
        """Difference that the high lr alone makes: the mean of the first probes, where the zeros cost nothing yet."""
        first = [probe["difference"] for probe in self.probes[:CALIBRATION]]
        return max(0.0, sum(first) / len(first)) if first else 0.0

    def sparsity(self, step: int) -> float:
        """Return the sparsity at a step, from the last probe on."""
        progress = min(step, self.plan.end) - self._since
        return sparsity_of(glide(self._from, self._to, progress / self.plan.every))

    def schedule(self) -> Schedule:
        """Return the sparsity as a schedule for a pruner; its values change with the search."""
        settings = vars(self.plan)
        return Schedule("auto_sparsity", tuple(settings.items()), self.sparsity)

    def update(self, step: int, found: Difference, heat: float) -> None:
        """Choose the next level after a probe, at an lr of ``heat`` times its highest."""
        self.probes.append(
            {
                "step": step,
                "sparsity": self.sparsity(step),
                "difference": found.value,
                "standard_error": found.error,
            }
        )
        tolerance, error = self.plan.tolerance, found.error if math.isfinite(found.error) else 0.0
        room = tolerance + heat * self.offset - found.value
        level = glide(self._from, self._to, (step - self._since) / self.plan.every)
        sign = 1 if room >= 0.0 else -1
        if self._sign == 0 and (sign > 0 or len(self.probes) <= CALIBRATION):
            move = self._length  # the climb
        else:
            self._length *= 0.5 if sign * self._sign < 0 else 1.0
            self._sign = sign
            move = choose_move(room, max(tolerance, error) or 1.0, self._length)
        self._from, self._since = level, step
        self._to = self._limit(level + move)

    def _limit(self, level: float) -> float:
        return min(max(level, 0.0), level_of(self.plan.highest))

    def state_dict(self) -> dict[str, State]:
        """Return the level, its move and the probes."""
        return {
            "from": self._from,
            "to": self._to,
            "since": self._since,
            "length": self._length,
            "sign": self._sign,
            "probes": [dict(probe) for probe in self.probes],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._from, self._to, self._since = float(state["from"]), float(state["to"]), int(state["since"])
        self._length, self._sign = float(state["length"]), int(state["sign"])
        self.probes = [dict(probe) for probe in state["probes"]]


class WeightAverage:
    """Running mean of the parameters and buffers of a network, with the zeros that the network has.

    Args:
        model: The network.
        horizon: Number of steps over which weights are forgotten.
    """

    def __init__(self, model: nn.Module, horizon: float) -> None:
        self.rate = 1.0 / max(1.0, horizon)
        self._copy = copy.deepcopy(model).requires_grad_(False)
        self.means = [tensor.detach().clone() for tensor in _tensors(model)]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the mean towards the present network; integers are taken as they are."""
        for mean, tensor in zip(self.means, _tensors(model), strict=True):
            if mean.is_floating_point():
                mean.lerp_(tensor, self.rate)
            else:
                mean.copy_(tensor)

    @torch.no_grad()
    def network(self, model: nn.Module) -> nn.Module:
        """Return a network with the mean weights, zero where those of ``model`` are zero; the next call changes it."""
        for own, mean in zip(_tensors(self._copy), self.means, strict=True):
            own.copy_(mean)
        for own, parameter in zip(self._copy.parameters(), model.parameters(), strict=True):
            own.masked_fill_(parameter == 0, 0.0)
        return self._copy

    def state_dict(self) -> dict[str, State]:
        """Return the means."""
        return {"means": list(self.means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load means of the same network."""
        for own, mean in zip(self.means, state["means"], strict=True):
            own.copy_(mean)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


class SearchSparsity(Callback):
    """Callback that probes the mean of the weights and moves the sparsity of a pruner.

    Args:
        search: The search, whose schedule the pruner follows.
        model: The network that is trained.
        evaluation: Evaluation on the validation data.
        dense: Scores of the dense network.
        lr: Highest lr of the run.
    """

    name = "search"

    def __init__(
        self, search: SparsitySearch, model: nn.Module, evaluation: Evaluation, dense: RowScores, lr: float
    ) -> None:
        self.search, self._lr = search, lr
        self.average = WeightAverage(model, HORIZON * search.plan.every)
        self._evaluation, self._dense = evaluation, dense

    def after_step(self, run: Training) -> None:
        """Follow the weights and, when it is time, probe and choose the next level."""
        if run.steps >= self.search.plan.end:
            return
        self.average.update(run.model)
        if self.search.plan.is_due(run.steps):
            found = score_rows(self._evaluation, self.average.network(run.model))
            heat = float(run.sampler.param_groups[0]["lr"]) / self._lr
            self.search.update(run.steps, compare(self._dense, found), min(1.0, heat))

    def metrics(self) -> dict[str, Any]:
        """Return the last probe."""
        return {self.name: dict(self.search.probes[-1])} if self.search.probes else {}

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings of the search."""
        return dict(vars(self.search.plan))

    def state_dict(self) -> dict[str, State]:
        """Return the state of the search and the means of the weights."""
        return {"search": self.search.state_dict(), "average": self.average.state_dict()}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Continue from a state."""
        self.search.load_state_dict(state["search"])
        self.average.load_state_dict(state["average"])
