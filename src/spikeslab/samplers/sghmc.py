r"""Stochastic gradient Hamiltonian Monte Carlo as a torch optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from spikeslab.functional.sghmc import sghmc, sghmc_noise_std
from spikeslab.kernels.protocol import Move
from spikeslab.priors.base import Prior
from spikeslab.samplers.base import RANGES, Group, Params, Sampler
from spikeslab.schedules import ScheduleLike

BUFFER_LR = "buffer_lr"
"""Key of the lr at which a group's buffer was last updated."""
NOISE_SETTINGS = ("lr", "momentum", "temperature", "num_data", "gradient_noise")


class SGHMC(Sampler):
    r"""Stochastic gradient Hamiltonian Monte Carlo with the settings of SGD with momentum.

    .. math::
        b \leftarrow m\,b + g - \sqrt{2(1-m)\,T/(N\,\mathrm{lr})}\;\xi, \qquad w \leftarrow w - \mathrm{lr}\, b

    with g the gradient of U/N, U the negative log posterior, and the lr of this step. If the lr changes while T > 0, b
    is first multiplied by :math:`\sqrt{\mathrm{lr}_\mathrm{old}/\mathrm{lr}}`, so that it keeps its law; at lr 0 both
    rest.

    It leaves :math:`\exp(-U/T)` invariant as lr tends to 0; the paper's epsilon is lr/N, its tau 1/T. At
    ``temperature=0`` and without a prior it is ``torch.optim.SGD(momentum=m)``, step for step (Chen et al., 2014;
    Saatci and Wilson, 2017).

    >>> import torch, spikeslab as ss
    >>> model = torch.nn.Linear(3, 1)
    >>> sampler = ss.SGHMC(model.parameters(), lr=0.1, momentum=0.9, num_data=1000, temperature=1e-3, seed=0)
    >>> model(torch.ones(8, 3)).square().mean().backward()
    >>> sampler.step()

    Args:
        params: Parameters, named parameters or groups, as for any torch optimizer.
        lr: Learning rate in units of ``torch.optim.SGD``; a number or a schedule of the step.
        momentum: m in [0, 1); the friction is 1 - m.
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
    _tensors: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    _ranges: ClassVar[dict[str, str]] = RANGES | {"momentum": "[0, 1)", "gradient_noise": ">= 0"}

    def __init__(
        self,
        params: Params,
        lr: float | ScheduleLike,
        momentum: float = 0.9,
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
        own = {"momentum": momentum, "gradient_noise": gradient_noise}
        switches = {"fused": fused, "foreach": foreach, "compile": compile, "check_finite": check_finite}
        super().__init__(params, settings | own | switches, prior=prior, seed=seed)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, after a check of its settings and parameters."""
        super().add_param_group(param_group)
        self.param_groups[-1].setdefault(BUFFER_LR, None)

    def _noise_std(self, group: Group) -> float:
        return sghmc_noise_std(**{name: group[name] for name in NOISE_SETTINGS})

    def _retemper_state(self, group: Group, temperature: float) -> None:
        """Scale the buffer, whose variance is proportional to the temperature, whatever the lr."""
        if group["temperature"] > 0.0:
            factor = math.sqrt(temperature / group["temperature"])
            for param in group["params"]:
                if "momentum_buffer" in self.state.get(param, {}):
                    self.state[param]["momentum_buffer"].mul_(factor)

    def _scale_momentum(self, group: Group) -> float:
        """Return the momentum times sqrt(lr_old / lr), which keeps the law of the buffer when the lr changes.

        The buffer's stationary variance is proportional to T / lr. At temperature 0 there is no law, and nothing is
        scaled, as in torch's SGD.
        """
        old, lr = group.get(BUFFER_LR), group["lr"]
        factor = math.sqrt(old / lr) if old and lr and group["temperature"] > 0.0 else 1.0
        return float(group["momentum"] * factor)

    @staticmethod
    def _rests(group: Group) -> bool:
        """Return True if no time passes: at lr 0 a chain with noise stays where it is, momentum included.

        Without its noise, which has no limit there, the buffer would lose its law, and sum up gradients. At temperature
        0 it does sum them up, as in torch's SGD.
        """
        return bool(group["lr"] == 0.0 and group["temperature"] > 0.0)

    def _end_step(self, group: Group) -> None:
        group[BUFFER_LR] = group["lr"] or group.get(BUFFER_LR)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state and continue bit for bit; one of another sampler or model is refused and changes nothing."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group.setdefault(BUFFER_LR, group["lr"])  # states of earlier versions do not have it

    def _move(self, group: Group) -> Move:
        if self._rests(group):
            return Move(0.0, 0.0)
        return Move(group["lr"], self._noise_std(group), self._scale_momentum(group), "momentum_buffer")

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        if self._rests(group):
            return
        std = self._noise_std(group)
        tensors = params, grads, self._state_tensors(params, "momentum_buffer"), self._noises(params, std)
        momentum = self._scale_momentum(group)
        self._call(group, sghmc, *tensors, lr=group["lr"], momentum=momentum, noise_std=std)
