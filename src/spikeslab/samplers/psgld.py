r"""Preconditioned SGLD as a torch optimizer."""

from __future__ import annotations

from typing import ClassVar, cast

from torch import Tensor

from spikeslab.functional.psgld import psgld, psgld_noise_std
from spikeslab.priors.base import Prior
from spikeslab.samplers.base import RANGES, Group, Params, Sampler
from spikeslab.schedules import ScheduleLike


class PSGLD(Sampler):
    r"""SGLD preconditioned like RMSprop, its noise preconditioned alike (Li et al., 2016).

    .. math::
        V \leftarrow \alpha V + (1-\alpha)\, h^2, \quad G = 1/(\sqrt V + \mathrm{eps}), \quad
        w \leftarrow w - \mathrm{lr}\, G\, g + \sqrt{2\,\mathrm{lr}\,T\,G/N}\;\xi

    with h the gradient of the mean loss and g that of U/N, U the negative log posterior. For constant G it leaves
    :math:`\exp(-U/T)` invariant as lr tends to 0; the bias of a moving G vanishes as alpha tends to 1. At
    ``temperature=0``, without a prior and weight decay, it is ``torch.optim.RMSprop``.

    >>> import torch, spikeslab as ss
    >>> model = torch.nn.Linear(3, 1)
    >>> sampler = ss.PSGLD(model.parameters(), lr=1e-3, num_data=1000, seed=0)
    >>> model(torch.ones(8, 3)).square().mean().backward()
    >>> sampler.step()

    Args:
        params: Parameters, named parameters or groups, as for any torch optimizer.
        lr: Learning rate in units of ``torch.optim.RMSprop``; a number or a schedule of the step.
        num_data: N, the number of training examples behind the mean loss.
        alpha: Decay of the average of squared gradients, in [0, 1]; 1 keeps it, to freeze G after burn-in.
        eps: Term in the denominator that keeps the preconditioner finite.
        temperature: T; 1 is the Bayes posterior, 0 draws no noise; a number or a schedule.
        weight_decay: L2 penalty of the parameters that ``prior`` does not cover.
        prior: Prior of the sparse weights.
        seed: Seed of the noise; ``None`` takes one from torch's global generator.
        fused: If True, numba draws the noise; ``None`` does so if it is installed and all parameters are float32 or
            float64 on the CPU. The update is torch's either way.
        foreach: If True, use the list versions of torch's operations.
        compile: If True, compile the update with ``torch.compile``; the noise is drawn outside.
        check_finite: If True, look for NaN and Inf before every step.
    """

    _tensors: ClassVar[tuple[str, ...]] = ("square_avg",)
    _ranges: ClassVar[dict[str, str]] = RANGES | {"alpha": "[0, 1]", "eps": "> 0"}

    def __init__(
        self,
        params: Params,
        lr: float | ScheduleLike,
        *,
        num_data: int,
        alpha: float = 0.99,
        eps: float = 1e-5,
        temperature: float | ScheduleLike = 1.0,
        weight_decay: float = 0.0,
        prior: Prior | None = None,
        seed: int | None = None,
        fused: bool | None = None,
        foreach: bool = True,
        compile: bool = False,  # noqa: A002
        check_finite: bool = True,
    ) -> None:
        settings = {"lr": lr, "num_data": num_data, "temperature": temperature, "weight_decay": weight_decay}
        own = {"alpha": alpha, "eps": eps}
        switches = {"fused": fused, "foreach": foreach, "compile": compile, "check_finite": check_finite}
        super().__init__(params, settings | own | switches, prior=prior, seed=seed)

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        std = psgld_noise_std(lr=group["lr"], temperature=group["temperature"], num_data=group["num_data"])
        loss_grads, averages = [cast(Tensor, param.grad) for param in params], self._state_tensors(params, "square_avg")
        tensors = params, grads, loss_grads, averages, self._noises(params, std)
        self._call(group, psgld, *tensors, lr=group["lr"], alpha=group["alpha"], eps=group["eps"], noise_std=std)
