r"""The scale sigma that a spike-and-slab prior shares with the noise of a regression (eq. 14)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, check_choice, check_number
from spikeslab.functional import mixture
from spikeslab.functional.mixture import Scalar

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup

COUPLINGS = ("conjugate", "independent", "fixed")
SMALLEST = 1e-12


class Residuals:
    """Sum of squared residuals behind the gradients of the coming step.

    A likelihood adds to it at every call, so that several micro-batches count together, as their gradients do. The sum
    starts anew after a step. It also starts anew if the gradients of the last backward pass have been cleared without a
    step, as after a step that a gradient scaler has skipped: the residuals then belong to a step that is never taken.
    Gradients of zero that a backward pass has left are not taken for cleared ones.

    Args:
        weights: Weights whose gradients tell if they have been cleared.
        group: Processes whose residuals belong together, or ``None`` for this one alone.
    """

    def __init__(self, weights: Iterable[Tensor], group: ProcessGroup | None = None) -> None:
        self._weights = sorted(weights, key=Tensor.numel)  # a small one that is not zero settles the question
        self.group = group
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self._squares: Tensor | None = None
        self._targets = self._rows = 0
        self._gradients: list[tuple[int, int] | None] | None = None

    def __bool__(self) -> bool:
        return self._squares is not None

    def add(self, squares: Tensor, targets: int, rows: int) -> None:
        """Add a sum of squares that the loss is computed from, over ``targets`` numbers of ``rows`` examples.

        For stacked chains ``squares`` has one entry for each chain.
        """
        self.drop_stale()
        if squares.requires_grad:
            squares.register_hook(self._note_backward)
        self._squares = squares.detach() if self._squares is None else self._squares + squares.detach()
        self._targets += targets
        self._rows += rows

    def drop_stale(self) -> None:
        """Start anew if the gradients that the residuals belong to have been cleared."""
        left = [(weight.grad, old) for weight, old in zip(self._weights, self._gradients or [], strict=False) if old]
        if left and all(grad is None or (_version(grad) != old and not grad.any()) for grad, old in left):
            self.clear()

    def _note_backward(self, gradient: Tensor) -> None:
        # The gradients of the weights are there at the end of the pass that has reached the residuals.
        torch.autograd.Variable._execution_engine.queue_callback(self._note_gradients)

    def _note_gradients(self) -> None:
        self._gradients = [None if weight.grad is None else _version(weight.grad) for weight in self._weights]

    def totals(self) -> tuple[Any, float, float]:
        """Return the squares, the number of targets and of examples, over all processes of the group.

        The squares are a float, or for stacked chains a tensor with one entry for each chain.
        """
        if self._squares is None:
            raise RuntimeError("there are no residuals since the last step.")
        squares = self._squares.double()
        counts = torch.tensor([self._targets, self._rows], dtype=torch.float64, device=squares.device)
        if self.group is not None:  # one reduction a step
            shared = torch.cat([squares.reshape(-1), counts])
            torch.distributed.all_reduce(shared, group=self.group)
            squares, counts = shared[:-2].view(squares.shape), shared[-2:]
        targets, rows = counts.tolist()
        return (squares if squares.ndim else float(squares)), targets, rows

    def __deepcopy__(self, memo: dict[int, Any]) -> Residuals:
        """Return a copy that shares the group of processes, which cannot be copied."""
        twin = Residuals(copy.deepcopy(self._weights, memo), self.group)
        twin._squares, twin._targets, twin._rows = self._squares, self._targets, self._rows
        return twin


def _version(gradient: Tensor) -> tuple[int, int]:
    """Return a key that changes when a gradient is replaced or written to."""
    return id(gradient), gradient._version


class Scale(Generic[Scalar]):
    """Sigma and the rule by which it is learned.

    Args:
        sigma: Initial value, or a tensor with one for each of stacked chains.
        nu: Degrees of freedom of the inverse-gamma prior of sigma squared.
        lam: Scale (lambda) of that prior.
        coupling: ``"conjugate"``, ``"independent"``, ``"fixed"`` or ``None``; see :class:`~spikeslab.SpikeSlab`.
        average: ``"sigma"`` or ``"variance"``, the quantity that SA averages.
        maximum: ``"joint"`` or ``"printed"``; see :class:`~spikeslab.SpikeSlab`.

    Attributes:
        residuals: Residuals of a Gaussian likelihood, or ``None`` without one.
    """

    def __init__(
        self, sigma: Scalar, *, nu: float, lam: float, coupling: str | None, average: str, maximum: str
    ) -> None:
        self.sigma: Scalar = sigma
        self.nu = check_number("nu", nu, ">= 0")
        self.lam = check_number("lam", lam, ">= 0")
        self._coupling = None if coupling is None else check_choice("sigma_coupling", coupling, COUPLINGS)
        self.average = check_choice("sigma_average", average, ("sigma", "variance"))
        self.maximum = check_choice("sigma_maximum", maximum, ("joint", "printed"))
        self.residuals: Residuals | None = None

    def settings_dict(self) -> dict[str, Any]:
        """Return the rule by the names of the arguments of :class:`~spikeslab.SpikeSlab`."""
        rule = {"coupling": self._coupling, "average": self.average, "maximum": self.maximum}
        return {"nu": self.nu, "lam": self.lam, **{f"sigma_{name}": value for name, value in rule.items()}}

    def stack(self, chains: int, device: torch.device) -> Scale[Tensor]:
        """Return the same rule with one sigma for each of ``chains`` chains."""
        sigmas = torch.full((chains,), float(self.sigma), dtype=torch.float64, device=device)
        rule: dict[str, Any] = {"coupling": self._coupling, "average": self.average, "maximum": self.maximum}
        return Scale(sigmas, nu=self.nu, lam=self.lam, **rule)

    @property
    def coupling(self) -> str:
        """Coupling of sigma; by default it is learned from the residuals of a regression, and fixed without any."""
        return self._coupling or ("fixed" if self.residuals is None else "independent")

    @property
    def of_prior(self) -> Scalar:
        """Sigma in the density of the weights: 1 if it is independent of the noise."""
        if self.coupling != "independent":
            return self.sigma
        return torch.ones_like(self.sigma) if isinstance(self.sigma, Tensor) else 1.0

    def learn_from_residuals(self, weights: Iterable[Tensor], group: ProcessGroup | None = None) -> Residuals:
        """Return the residuals that sigma is learned from, for a likelihood to add to; see :class:`Residuals`."""
        if self.residuals is None:
            self.residuals = Residuals(weights, group)
        elif group is not None:
            self.residuals.group = group
        return self.residuals

    def clear_residuals(self) -> None:
        """Forget the residuals, after a step."""
        if self.residuals is not None:
            self.residuals.clear()

    def check_ready(self) -> None:
        """Raise if :meth:`update` needs residuals and there are none."""
        if self.coupling == "fixed":
            return
        if self.residuals is not None:
            self.residuals.drop_stale()
            if not self.residuals:
                raise RuntimeError(
                    "sampler.step() needs the residuals of a GaussianLikelihood to learn sigma: call the likelihood "
                    "and backward() before every step."
                )
        if self.coupling == "independent" and self.residuals is None:
            expectation = "must be 'conjugate' or 'fixed' for classification"
            hint = "it learns the noise of a regression through GaussianLikelihood(prior)"
            raise ArgumentValueError("sigma_coupling", expectation, "independent", hint)

    def update(self, omega: float, b: Scalar, j: Scalar, num_weights: int, num_data: int) -> None:
        """Move sigma towards the maximum of Q1 by ``omega``, given B and J of the penalty."""
        # Without an inverse-gamma prior, weights that are all zero have their maximum at 0, where no density is left.
        new = mixture.clamp(self._maximum(b, j, num_weights, num_data), SMALLEST)
        if self.average == "sigma":
            self.sigma = self.sigma + omega * (new - self.sigma)
        else:
            self.sigma = mixture.square_root((1.0 - omega) * self.sigma**2 + omega * new**2)

    def _maximum(self, b: Scalar, j: Scalar, num_weights: int, num_data: int) -> Scalar:
        nu, lam, printed = self.nu, self.lam, self.maximum == "printed"
        if not self.residuals:
            return mixture.sigma_classification(b=b, j=j, num_weights=num_weights, nu=nu, lam=lam)
        total, targets, rows = self.residuals.totals()
        squares: Scalar = total * num_data / rows
        num_targets = targets * num_data / rows
        if self.coupling == "independent":
            return mixture.sigma_independent(squares=squares, num_targets=num_targets, nu=nu, lam=lam)
        return mixture.sigma_regression(
            b=b, j=j, squares=squares, num_targets=num_targets, num_weights=num_weights, nu=nu, lam=lam, printed=printed
        )
