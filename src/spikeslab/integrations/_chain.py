"""Duties of a callback in the training loop of another library: prune, collect, evaluate, and keep the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, Phrase, mark, warn
from spikeslab.posterior import Posterior
from spikeslab.posterior.samples import read_tensors
from spikeslab.pruning import ChannelPruner, Pruner, RhoPruner
from spikeslab.samplers.base import Sampler

PRUNER, POSTERIOR = "pruner", "posterior"

AnyPruner = Pruner | RhoPruner | ChannelPruner
Evaluate = Callable[[], Mapping[str, Any]]


class ForeignChain:
    """A chain in a loop that takes its steps elsewhere.

    Args:
        pruner: Pruner to call after every step of the sampler, or ``None``.
        posterior: Posterior to collect in, or ``None``; the steps of the sampler are counted.
        evaluate: Function that returns numbers by name once there are samples, or ``None``.

    Attributes:
        sampler: The sampler, once training has begun.
        last: Result of the last evaluation.
    """

    def __init__(self, pruner: AnyPruner | None, posterior: Posterior | None, evaluate: Evaluate | None) -> None:
        if evaluate is not None and not callable(evaluate):
            raise ArgumentTypeError("evaluate", "must be a function without arguments or None", evaluate)
        if evaluate is not None and posterior is None:
            raise ArgumentValueError("evaluate", f"must go with a {mark(POSTERIOR)}", Phrase("got none"))
        self.pruner = pruner
        self.posterior = posterior
        self.evaluate = evaluate
        self.sampler: Sampler | None = None
        self.last: dict[str, Any] = {}
        self._steps = 0
        self._stood_still = False

    def begin(self, optimizer: Optimizer | None, clipping: str | None) -> None:
        """Follow an optimizer.

        Args:
            optimizer: Optimizer of the loop, which must be a sampler.
            clipping: Setting by which the loop clips gradients, in words, or ``None``.
        """
        if not isinstance(optimizer, Sampler):
            expectation = "must be a sampler such as spikeslab.SGHMC"
            raise ArgumentTypeError("optimizer", expectation, Phrase(f"got {type(optimizer).__name__}"))
        self.sampler, self._steps = optimizer, optimizer.steps
        if self.posterior is not None:
            self.posterior.attach(optimizer)
        if clipping is not None and any(float(group["temperature"]) > 0.0 for group in optimizer.param_groups):
            warn(
                f"{clipping} clips gradients, and the samples of a chain with clipped gradients are not from the "
                "posterior: switch the clipping off, and lower the lr if the loss diverges without it."
            )

    def after_step(self) -> None:
        """Prune, and collect a sample if one is due; a call without a new step of the sampler does nothing."""
        if self.sampler is None or self.sampler.steps == self._steps:  # gradients were only accumulated
            return
        self._steps = self.sampler.steps
        if self.pruner is not None:
            self.pruner.step()
        if self.posterior is not None and self.posterior.collect():
            self._check_motion(self.posterior)

    def _check_motion(self, posterior: Posterior) -> None:
        """Warn once if a sample was taken while the sampler stands still."""
        if self._stood_still or self.sampler is None or any(group["lr"] for group in self.sampler.param_groups):
            return
        self._stood_still = True
        warn(
            f"The sample of step {posterior.steps:,} was taken while the lr is 0, where a chain stands still: let the "
            "schedule end above 0."
        )

    def numbers(self) -> dict[str, float]:
        """Return sparsity and number of samples, and evaluate the posterior if there is one with samples."""
        found: dict[str, float] = {}
        if self.pruner is not None:
            sparsity = self.pruner.sparsity()
            found["sparsity"] = float(sparsity.sparse if sparsity.network is None else sparsity.network)
        if self.posterior is not None:
            found["samples"] = float(len(self.posterior))
        if self.evaluate is not None and self.posterior is not None and len(self.posterior):
            self.last = dict(self.evaluate())
            numbers = {name: value for name, value in self.last.items() if isinstance(value, (int, float))}
            found |= {f"{POSTERIOR}_{name}": float(value) for name, value in numbers.items()}
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the pruner, and that of the posterior with the tensors of all samples."""
        state: dict[str, Any] = {PRUNER: None, POSTERIOR: None}
        if self.pruner is not None:
            state[PRUNER] = self.pruner.state_dict()
        if self.posterior is not None:
            own = self.posterior.state_dict()
            state[POSTERIOR] = own | {"samples": [read_tensors(sample) for sample in own["samples"]]}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ArgumentValueError: If it is of a callback with other parts.
        """
        for name, part in ((PRUNER, self.pruner), (POSTERIOR, self.posterior)):
            if (state[name] is None) != (part is None):
                had, has = ("no", "one") if state[name] is None else ("a", "none")
                expectation = f"must be given as when the checkpoint was made, with {had} {name}"
                raise ArgumentValueError(name, expectation, Phrase(f"now there is {has}"))
        if self.pruner is not None:
            self.pruner.load_state_dict(state[PRUNER])
        if self.posterior is not None:
            self.posterior.load_state_dict(state[POSTERIOR])
