"""What happened, epoch by epoch, for those who keep no folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spikeslab.states import State
from spikeslab.training import Callback, Training


class History(Callback):
    """A record for every epoch: step, mean loss, lr, temperature, and what the callbacks before it measured.

    Attributes:
        records: One mapping for each epoch.
    """

    name = "history"

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._losses: list[float] = []

    def after_step(self, run: Training) -> None:
        """Note the loss, and at the end of an epoch make a record."""
        self._losses.append(run.last_loss)
        if run.epoch_ended:
            group = run.sampler.param_groups[0]
            self.records.append(
                {
                    "epoch": run.epoch,
                    "step": run.steps,
                    "loss": sum(self._losses) / len(self._losses),
                    "lr": float(group["lr"]),
                    "temperature": float(group.get("temperature", 0.0)),
                }
            )
            for callback in run.callbacks:
                self.records[-1] |= callback.metrics()
            self._losses = []

    def state_dict(self) -> dict[str, State]:
        """The records, and the losses of the present epoch."""
        return {"records": self.records, "losses": self._losses}

    def load_state_dict(self, state: Mapping[str, State]) -> None:
        """Go on from a state."""
        self.records, self._losses = list(state["records"]), list(state["losses"])
