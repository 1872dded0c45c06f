r"""Stochastic gradient Langevin dynamics as a torch optimizer."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from spikeslab.functional.sgld import sgld, sgld_noise_std
from spikeslab.kernels.protocol import Move
from spikeslab.priors.base import Prior
from spikeslab.samplers.base import RANGES, Group, Params, Sampler
from spikeslab.schedules import ScheduleLike

NOISE_SETTINGS = ("lr", "temperature", "num_data", "gradient_noise")


class SGLD(Sampler):
    r"""Stochastic gradient Langevin dynamics (Welling and Teh, 2011).

    .. math:: w \leftarrow w - \mathrm{lr}\, g + \sqrt{2\,\mathrm{lr}\,T/N}\;\xi

    with g the gradient of U/N, U the negative log posterior. It leaves :math:`\exp(-U/T)` invariant as lr tends to 0;
    the paper's epsilon is lr/N, its tau 1/T. At ``temperature=0`` it is ``torch.optim.SGD``.

    >>> import torch, spikeslab as ss
    >>> model = torch.nn.Linear(3, 1)
    >>> sampler = ss.SGLD(model.parameters(), lr=0.1, num_data=1000, seed=0)
    >>> model(torch.ones(8, 3)).square().mean().backward()   # the mean loss, as everyone writes it
    >>> sampler.step()

    Args:
        params: Parameters, named parameters or groups, as for any torch optimizer.
        lr: Learning rate in units of ``torch.optim.SGD``; a number or a schedule of the step.
        num_data: N, the number of training examples behind the mean loss.
        temperature: T; 1 is the Bayes posterior, 0 draws no noise; a number or a schedule.
        weight_decay: L2 penalty of the parameters that ``prior`` does not cover.
        prior: Prior of the sparse weights.
        gradient_noise: V, the variance of a coordinate of the stochastic gradient of U; that much less is injected.
        seed: Seed of the noise; ``None`` takes one from torch's global generator.
        fused: If True, numba does the whole update in one pass over memory; ``None`` does so if
            numba is installed and all parameters are float32 or float64 on the CPU.
        foreach: If True, use the list versions of torch's operations.
        compile: If True, compile the update with ``torch.compile``; the noise is drawn outside.
        check_finite: If True, look for NaN and Inf before every step.
    """

    _can_fuse: ClassVar[bool] = True
    _ranges: ClassVar[dict[str, str]] = RANGES | {"gradient_noise": ">= 0"}

    def __init__(
        self,
        params: Params,
        lr: float | ScheduleLike,
        *,
        num_data: int,
        temperature: float | ScheduleLike = 1.0,
        weight_decay: float = 0.0,
        prior: Prior | None = None,
        gradient_noise: float = 0.0,
        seed: int | None = None,
        fused: bool | None = None,
        foreach: bool = True,
        compile: bool = False,  # noqa: A002
        check_finite: bool = True,
    ) -> None:
        settings = {"lr": lr, "num_data": num_data, "temperature": temperature, "weight_decay": weight_decay}
        own = {"gradient_noise": gradient_noise}
        switches = {"fused": fused, "foreach": foreach, "compile": compile, "check_finite": check_finite}
        super().__init__(params, settings | own | switches, prior=prior, seed=seed)

    def _noise_std(self, group: Group) -> float:
        return sgld_noise_std(**{name: group[name] for name in NOISE_SETTINGS})

    def _move(self, group: Group) -> Move:
        return Move(group["lr"], self._noise_std(group))

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        std = self._noise_std(group)
        self._call(group, sgld, params, grads, self._noises(params, std), lr=group["lr"], noise_std=std)
