"""What a weight that is left pays along a run, in units of the mean loss, whatever the method calls it.

With batch normalisation a penalty acts through the norm of the weights: the smaller the norm, the larger a step of the
same lr turns them. So the norm is noted beside the penalty.
"""

from __future__ import annotations

from typing import Any

from spikeslab.priors import Prior
from spikeslab.training import Callback, Training
from spikeslab.weights import select_weights

SPARSE = "layer*.conv*.weight"
"""The weights that the paper prunes: all 3 x 3 convolutions but the first."""


def effective_penalty(prior: Prior | None, num_data: int, weight_decay: float) -> tuple[float, float]:
    """Mean weights of ``|w|`` and of ``w**2 / 2`` in the mean loss, over the sparse weights that are not zero.

    >>> effective_penalty(None, 50_000, 5e-4)
    (0.0, 0.0005)
    """
    return (0.0, weight_decay) if prior is None else prior.effective_penalty(num_data)


class Penalty(Callback):
    """Notes the effective penalty and the norm of the sparse weights in every record of the log."""

    def __init__(self) -> None:
        self._run: Training | None = None

    def begin(self, run: Training) -> None:
        """Know the run."""
        self._run = run

    def metrics(self) -> dict[str, Any]:
        """The penalty and the norm now."""
        if self._run is None:
            return {}
        group = self._run.sampler.param_groups[0]
        prior = getattr(self._run.sampler, "prior", None)
        l1, l2 = effective_penalty(prior, int(group["num_data"]), float(group["weight_decay"]))
        squares = sum(float(w.detach().square().sum()) for w in select_weights(self._run.model, SPARSE).values())
        return {"effective_l1": l1, "effective_l2": l2, "norm": squares**0.5}
