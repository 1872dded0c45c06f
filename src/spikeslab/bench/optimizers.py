"""The optimizers that are compared: torch's, a plain SGLD, ours, and those of the peer for torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from spikeslab.errors import SpikeSlabWarning
from spikeslab.paper.cifar10.network import resnet20
from spikeslab.paper.images.networks import CNN
from spikeslab.paper.packages import is_installed, load
from spikeslab.priors import SA, SpikeSlab
from spikeslab.samplers import SGHMC, SGLD
from spikeslab.schedules import polynomial
from spikeslab.weights import select_weights

LR = 1e-6  # so small that weights stay what they are, whatever the number of steps
SGD_NAME, CONTROL = "torch SGD, momentum", "the same again: a control"
POSTERIORS = {"posteriors sgld": "sgld", "posteriors sghmc": "sghmc"}


class Network(NamedTuple):
    """A network to train.

    Attributes:
        build: Makes it.
        globs: Names of its sparse weights.
        image: Shape of an input.
        num_data: Examples of its data set.
    """

    build: Callable[[], nn.Module]
    globs: tuple[str, ...]
    image: tuple[int, ...]
    num_data: int


NETWORKS = {
    "MNIST CNN": Network(CNN, ("fc1.weight",), (1, 28, 28), 60_000),
    "ResNet20": Network(resnet20, ("layer*.conv*.weight",), (3, 32, 32), 50_000),
}


def channels_last(network: Network) -> nn.Module:
    """The network in the memory format that is fastest on a CPU."""
    model: nn.Module = cast(Any, network.build()).to(memory_format=torch.channels_last)
    return model


class PlainSGLD(Optimizer):
    """SGLD as anyone would write it with torch's list operations: no prior, no checks, no state."""

    def __init__(self, params: Sequence[Tensor], lr: float, num_data: int) -> None:
        super().__init__(params, {"lr": lr, "num_data": num_data})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            noise = [torch.randn_like(param) for param in params]
            torch._foreach_add_(params, [param.grad for param in params], alpha=-group["lr"])
            torch._foreach_add_(params, noise, alpha=math.sqrt(2.0 * group["lr"] / group["num_data"]))


def spike_slab(weights: dict[str, Any], adapt_every: int = 1) -> SpikeSlab:
    """The adaptive prior in all comparisons."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpikeSlabWarning)
        adapt = SA(polynomial(1.0, power=0.75, offset=1000))
        return SpikeSlab(weights, v0=1e-3, v1=1.0, adapt=adapt, adapt_every=adapt_every)


def optimizers(globs: Sequence[str], num_data: int, seed: int) -> dict[str, Callable[[nn.Module], Optimizer]]:
    """Constructors by name; the first is what the others are compared with."""

    def sghmc(model: nn.Module, prior: SpikeSlab | None = None) -> Optimizer:
        return SGHMC(model.parameters(), lr=LR, momentum=0.9, num_data=num_data, prior=prior, seed=seed)

    def sghmc_sa(model: nn.Module, adapt_every: int = 1) -> Optimizer:
        return sghmc(model, spike_slab(select_weights(model, *globs), adapt_every))

    def sgd(model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=LR, momentum=0.9, foreach=True)

    return {
        SGD_NAME: sgd,
        CONTROL: sgd,
        "torch Adam": lambda model: Adam(model.parameters(), lr=LR, foreach=True),
        "plain SGLD, foreach": lambda model: PlainSGLD(list(model.parameters()), LR, num_data),
        "SGLD": lambda model: SGLD(model.parameters(), lr=LR, num_data=num_data, seed=seed),
        "SGHMC": sghmc,
        "SGHMC-SA": sghmc_sa,
        "SGHMC-SA, adapt_every=10": lambda model: sghmc_sa(model, 10),
    }


class _Ready(torch.autograd.Function):
    """A loss whose gradient lies ready: it costs nothing, so that what is left is the update."""

    @staticmethod
    def forward(*tensors: Tensor) -> Tensor:
        """Half of the tensors are parameters, the other half their gradients."""
        return tensors[0].new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep the gradients."""
        ctx.gradients = inputs[len(inputs) // 2 :]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Give them back."""
        return (*ctx.gradients, *(None for _ in ctx.gradients))


def posteriors_updates(params: Sequence[Tensor]) -> dict[str, Callable[[], None] | None]:
    """Updates of the library posteriors for parameters with gradients; ``None`` where it is not installed."""
    if not is_installed("posteriors"):
        return dict.fromkeys(POSTERIORS)
    gradients = [cast(Tensor, param.grad).clone() for param in params]

    def log_posterior(values: dict[str, Tensor], batch: Any) -> tuple[Tensor, Tensor]:
        return cast(Any, _Ready).apply(*values.values(), *gradients), torch.zeros(())

    def update_of(kind: str) -> Callable[[], None]:
        transform = getattr(load("posteriors").sgmcmc, kind).build(log_posterior, lr=LR)
        values = {str(index): param.detach().clone() for index, param in enumerate(params)}
        return stepper(transform, values, None)

    return {name: update_of(kind) for name, kind in POSTERIORS.items()}


def stepper(transform: Any, values: dict[str, Tensor], batch: Any) -> Callable[[], None]:
    """A step of a transform of posteriors, in place."""
    state = transform.init(values)

    def step() -> None:
        nonlocal state
        result = transform.update(state, batch, inplace=True)
        state = result[0] if isinstance(result, tuple) and not hasattr(result, "params") else result

    return step
