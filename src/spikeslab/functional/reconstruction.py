r"""Sparse regression of a layer on itself: the weights to keep, and their values, without training.

A layer with the weights :math:`W_0` (outputs, inputs) and the inputs X has the Gram matrix :math:`H = X^\top X`. A
sparse W changes its outputs by

.. math:: E(W) = \mathrm{tr}\,(W - W_0)\,H\,(W - W_0)^\top,

which is a linear regression of the outputs on the inputs with a given number of zeros. The rows of W share H, and meet
in that number alone. Given the support S of a row, its solution and the changes of E are

.. math::
    w_S = w_{0,S} + H_{SS}^{-1} H_{S\bar S}\, w_{0,\bar S}, \qquad
    \text{cost}_i = \frac{w_i^2}{(H_{SS}^{-1})_{ii}}, \qquad
    \text{gain}_j = \frac{(H (w_0 - w))_j^2}{H_{jj} - H_{jS} H_{SS}^{-1} H_{Sj}}:

E rises by the cost if the weight i leaves the support and falls by the gain if j enters it, all others refitted.

References:
    A. Beaton. The use of special matrix operators in statistical calculus. Educational Testing Service, 1964 (sweeps).
    B. Hassibi and D. Stork. Second order derivatives for network pruning: optimal brain surgeon. NeurIPS 1992.
    X. Meng, K. Behdin, H. Wang and R. Mazumder. ALPS: improved optimization for highly sparse one-shot pruning for
    large language models. NeurIPS 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spikeslab.functional.patterns import Pattern, keep_largest

FIRST_PENALTY, LAST_PENALTY = 0.02, 2.0
"""First and last penalty of :func:`find_support`, in units of the mean curvature."""
CANDIDATES = 16
"""Weights with the lowest costs that are tried against all that may enter, before each exchange."""
REBUILT = 50
"""Exchanges after which a tableau is computed anew, before rounding adds up."""
LEAST_GAIN = 1e-6
"""Gain of an exchange, as a share of its cost, below which it may be rounding."""


def damp(gram: Tensor, share: float = 1e-3) -> Tensor:
    """Return the Gram matrix with a share of its mean diagonal added to the diagonal, so that it can be inverted.

    This is a Gaussian slab around the dense weights. An input that is always zero gets the mean diagonal instead.
    """
    diagonal = gram.diagonal()
    mean = float(diagonal.mean()) or 1.0
    return gram + torch.diag(torch.where(diagonal > 0.0, share * mean, mean))


def row_errors(weights: Tensor, dense: Tensor, gram: Tensor) -> Tensor:
    """Return E of each row of the weights, given H or its diagonal."""
    change = (weights - dense).double()
    moved = change * gram.double() if gram.ndim == 1 else change @ gram.double()
    return (moved * change).sum(1).clamp_min(0.0)


def reconstruction_error(weights: Tensor, dense: Tensor, gram: Tensor) -> float:
    """Return E, given H or its diagonal, as a share of the sum of the squares of the outputs.

    >>> round(reconstruction_error(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.5]]), torch.eye(2)), 6)
    0.2
    """
    whole = float(row_errors(torch.zeros_like(dense), dense, gram).sum())
    return float(row_errors(weights, dense, gram).sum()) / whole if whole > 0.0 else 0.0


def find_support(dense: Tensor, gram: Tensor, pattern: Pattern, steps: int = 80) -> Tensor:
    r"""Return a mask of the weights to keep, by the alternating direction method of multipliers.

    Weights W without zeros and sparse weights D approach each other while the penalty :math:`\rho` rises:

    .. math::
        W = (W_0 H + \rho (D - U))(H + \rho I)^{-1}, \quad D = P(W + U), \quad U \leftarrow U + W - D,

    where P keeps the largest weights of the pattern, and inputs are scaled to a unit diagonal of H. A penalty that
    rises smoothly finds better supports than one that is kept for some steps.

    Args:
        dense: Weights, (outputs, inputs).
        gram: H, positive definite.
        pattern: Number of weights to keep.
        steps: Steps of the method.
    """
    scale = gram.diagonal().sqrt()
    values, vectors = torch.linalg.eigh(gram / torch.outer(scale, scale))
    target = dense * scale
    rotated = (target @ vectors) * values
    sparse, sums = target, torch.zeros_like(target)
    kept = torch.ones_like(dense, dtype=torch.bool)
    for penalty in torch.logspace(0.0, 1.0, steps, base=LAST_PENALTY / FIRST_PENALTY).mul_(FIRST_PENALTY).tolist():
        solved = ((rotated + penalty * ((sparse - sums) @ vectors)) / (values + penalty)) @ vectors.T
        sums = sums + solved
        kept = keep_largest(sums, pattern)
        sparse = sums * kept
        sums = sums - sparse
    return kept


def refit(dense: Tensor, gram: Tensor, support: Tensor) -> Tensor:
    """Return the weights on the support that minimise E exactly.

    >>> gram = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    >>> refit(torch.tensor([[1.0, 1.0]]), gram, torch.tensor([[True, False]]))
    tensor([[1.5000, 0.0000]])
    """
    weights = torch.zeros_like(dense)
    pulls = torch.where(support, 0.0, dense) @ gram
    for row, (target, kept) in enumerate(zip(dense, support, strict=True)):
        inside = kept.nonzero()[:, 0]
        if len(inside):
            factor = torch.linalg.cholesky(_block(gram, inside, inside))
            pull = pulls[row, inside].unsqueeze(1)
            weights[row, inside] = target[inside] + torch.cholesky_solve(pull, factor).squeeze(1)
    return weights


def _block(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return some rows and columns of a matrix, in less than half of the time of an index of tensors."""
    return matrix.index_select(0, rows).index_select(1, columns)


class Tableau:
    r"""Regression of one output on the inputs of a support, which inputs enter and leave by sweeps.

    .. math::
        T = \begin{pmatrix} -H_{SS}^{-1} & H_{SS}^{-1} H_{S\bar S} \\ \cdot & H_{\bar S\bar S} - H_{\bar S S}
        H_{SS}^{-1} H_{S\bar S} \end{pmatrix}, \qquad
        y = \begin{pmatrix} w_S \\ (H (w_0 - w))_{\bar S} \end{pmatrix}

    in the order of the inputs. A sweep on the pivot k, with :math:`s = 1` if k enters and -1 if it leaves, is a change
    of rank one: :math:`T \leftarrow T - T_{\cdot k} T_{k\cdot}/T_{kk}`, then :math:`T_{\cdot k} \leftarrow s T_{\cdot
    k}/T_{kk}` and :math:`T_{kk} \leftarrow -1/T_{kk}`, and the same for y.

    Args:
        target: Dense weights of the output, :math:`w_0`.
        gram: H, positive definite.
        support: Mask of the inputs that are kept.

    Attributes:
        support: Mask of the inputs that are kept now.
    """

    def __init__(self, target: Tensor, gram: Tensor, support: Tensor) -> None:
        self.support = support.clone()
        inside, outside = support.nonzero()[:, 0], (~support).nonzero()[:, 0]
        order = torch.cat([inside, outside]).argsort()
        cross = _block(gram, inside, outside)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(_block(gram, inside, inside)))
        filled = inverse @ cross
        left = torch.addmm(_block(gram, outside, outside), cross.T, filled, alpha=-1.0)
        upper, lower = torch.cat([-inverse, filled], dim=1), torch.cat([filled.T, left], dim=1)
        self._table = _block(torch.cat([upper, lower]), order, order)
        weights = target[inside] + filled @ target[outside]
        self._column = torch.cat([weights, left @ target[outside]])[order]

    @property
    def weights(self) -> Tensor:
        """Weights that minimise E on the support."""
        return torch.where(self.support, self._column, 0.0)

    @property
    def changes(self) -> Tensor:
        """Cost of each weight of the support, and gain of each other one."""
        return self._column.square() / self._table.diagonal().abs()

    def sweep(self, pivot: int) -> None:
        """Let an input enter the support, or leave it if it is there."""
        value, score = float(self._table[pivot, pivot]), float(self._column[pivot])
        sign = -1.0 if self.support[pivot] else 1.0
        row = self._table[pivot].clone()
        self._table.addr_(row, row, alpha=-1.0 / value)
        self._column.sub_(row, alpha=score / value)
        row.mul_(sign / value)
        self._table[pivot], self._table[:, pivot] = row, row
        self._table[pivot, pivot] = -1.0 / value
        self._column[pivot] = sign * score / value
        self.support[pivot] = not self.support[pivot]

    def find_exchange(self, group: int | None = None) -> tuple[int, int] | None:
        """Return the inputs that should leave and enter so that E falls most, or ``None`` if it would not fall.

        The gain is that after the first has left. Without groups only the inputs with the lowest costs are tried.

        Args:
            group: Number of neighbouring inputs within which exchanges are allowed; ``None`` allows all.
        """
        costs = torch.where(self.support, self.changes, torch.inf)
        if group is None:
            leaving = costs.topk(min(CANDIDATES, int(self.support.sum())), largest=False).indices
            entering = torch.arange(len(costs), device=costs.device).expand(len(leaving), -1)
            rows = self._table[leaving]
        else:
            leaving = self.support.nonzero()[:, 0]
            first = leaving - leaving % group
            entering = first.unsqueeze(1) + torch.arange(group, device=costs.device)
            rows = self._table[leaving.unsqueeze(1), entering]
        diagonal = self._table.diagonal()
        pivots, scores = diagonal[leaving].unsqueeze(1), self._column[leaving].unsqueeze(1)
        gains = (self._column[entering] - rows * scores / pivots).square() / (
            diagonal[entering] - rows.square() / pivots
        )
        gain, places = gains.masked_fill_(self.support[entering], 0.0).max(1)
        lead, best = (gain - (1.0 + LEAST_GAIN) * costs[leaving]).max(0)
        return (int(leaving[best]), int(entering[best, places[best]])) if lead > 0.0 else None


def exchange(dense: Tensor, gram: Tensor, support: Tensor, pattern: Pattern) -> Tensor:
    """Return the support after pairs of inputs of each output have changed places while E, refitted, fell.

    A row ends where no exchange of one of its cheapest weights for another lowers E, or after as many exchanges as it
    has weights.

    Args:
        dense: Weights, (outputs, inputs).
        gram: H, positive definite.
        support: Mask of the weights that are kept at first.
        pattern: Number of weights to keep; within a group the exchanges stay there.
    """
    found = support.clone()
    for row, (target, kept) in enumerate(zip(dense, support, strict=True)):
        count = int(kept.sum())
        if count in (0, len(kept)):
            continue
        tableau = Tableau(target, gram, kept)
        for number in range(1, count + 1):
            if (pair := tableau.find_exchange(pattern.group)) is None:
                break
            if number % REBUILT == 0:
                tableau = Tableau(target, gram, tableau.support)
            for pivot in pair:
                tableau.sweep(pivot)
        found[row] = tableau.support
    return found


def inclusion_probabilities(dense: Tensor, gram: Tensor, support: Tensor) -> Tensor:
    r"""Return the probability that each weight is not zero, given the support of all others: how hard it is to replace.

    The regression is taken as a spike-and-slab model whose price of a weight, :math:`\lambda`, is its unit of noise:

    .. math:: \pi(S) \propto \exp(-E(S)/\lambda - |S|), \qquad
        P(i \in S \mid S_{-i}) = \operatorname{sigmoid}(c_i/\lambda - 1),

    with :math:`c_i` the cost of a kept weight or the gain of another one. The price is the change of the last weight
    that would be kept if the largest changes decided, so that as many probabilities as weights are kept reach 1/2.

    >>> inclusion_probabilities(torch.tensor([[2.0, 1.0, 0.0]]), torch.eye(3), torch.tensor([[True, True, False]]))
    tensor([[0.9526, 0.5000, 0.2689]])

    Args:
        dense: Weights, (outputs, inputs).
        gram: H, positive definite; or its diagonal, for inputs that do not stand in for each other.
        support: Mask of the weights that are kept.
    """
    if gram.ndim == 1:
        changes = dense.square() * gram
    else:
        changes = torch.stack([Tableau(row, gram, kept).changes for row, kept in zip(dense, support, strict=True)])
    count = int(support.sum())
    if not count:
        return torch.zeros_like(changes)
    price = float(changes.flatten().topk(count).values[-1])
    return torch.sigmoid(changes / (price or torch.finfo(changes.dtype).tiny) - 1.0)
