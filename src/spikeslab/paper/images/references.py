"""References that need no training of their own: MC dropout and the last-layer Laplace approximation.

References:
    Y. Gal and Z. Ghahramani (2016), Dropout as a Bayesian approximation.
    A. Kristiadi, M. Hein and P. Hennig (2020), Being Bayesian, even just a bit, fixes overconfidence in ReLU networks.
    E. Daxberger, A. Kristiadi, A. Immer, R. Eschenhagen, M. Bauer and P. Hennig (2021), Laplace redux.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikeslab.paper.images.augmentation import Normalize
from spikeslab.paper.images.networks import CNN, BatchNormCNN
from spikeslab.posterior.eval_mode import eval_mode

Network: TypeAlias = CNN | BatchNormCNN
PASSES = 50
"""Dropout masks, and draws of the logits of a Laplace approximation."""
PRECISIONS: tuple[float, ...] = tuple(10.0 ** (power / 2) for power in range(-4, 9))
"""Prior precisions that are tried, from 0.01 to 10,000."""
BATCH = 250


@torch.no_grad()
def predict_mc_dropout(model: Network, normalize: Normalize, images: Tensor, seed: int = 0) -> Tensor:
    """Return probabilities averaged over dropout masks, in evaluation mode but for the dropout behind ``fc1``."""
    layer = model.dropout if isinstance(model, CNN) else model.hidden_dropout
    found = []
    with torch.random.fork_rng(devices=[]), eval_mode(model):
        torch.manual_seed(seed)
        layer.train()
        for batch in images.split(BATCH):
            hidden = model.hidden(normalize(batch))
            found.append(torch.stack([model.head(hidden).softmax(dim=1) for _ in range(PASSES)]).mean(dim=0))
    return torch.cat(found).clamp(min=torch.finfo(torch.float32).tiny)


class LastLayerLaplace:
    r"""Gaussian posterior of the last layer at its trained weights, with the full Gauss-Newton matrix as precision.

    With features phi (a 1 for the bias included) and probabilities p of each training image, the precision of the
    last layer's weights is :math:`H + \tau I` with :math:`H = \sum_n (\mathrm{diag}(p_n) - p_n p_n^T) \otimes
    \phi_n \phi_n^T`. It is diagonalised once, so that many precisions tau of the prior can be tried.

    Args:
        model: Trained network; its last linear layer gives the logits.
        normalize: Transform from bytes to the inputs of the network.
        images: Training images in bytes, without augmentation.
        labels: Their labels.
    """

    def __init__(self, model: Network, normalize: Normalize, images: Tensor, labels: Tensor) -> None:
        self.model, self.normalize = model, normalize
        self.last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        classes, size = self.last.out_features, self.last.in_features + 1
        hessian = torch.zeros(classes, size, classes, size)
        self.log_likelihood: float = 0.0
        start = 0
        for features, logits in self._features(images):
            p = logits.softmax(dim=1)
            own = labels[start : start + len(p)]
            start += len(p)
            self.log_likelihood -= float(F.cross_entropy(logits, own, reduction="sum").item())
            for row in range(classes):
                for column in range(row, classes):
                    weight = p[:, row] * (float(row == column) - p[:, column])
                    block = (features * weight[:, None]).T @ features
                    hessian[row, :, column] += block
                    if row != column:
                        hessian[column, :, row] += block.T
        flat = hessian.view(classes * size, -1).double()
        values, self.vectors = torch.linalg.eigh((flat + flat.T) / 2)
        self.values = values.clamp(min=0.0)
        weights = torch.cat([self.last.weight.detach(), self.last.bias.detach()[:, None]], dim=1)
        self.square = float(weights.double().square().sum())

    def evidence(self, precision: float) -> float:
        """Return the log marginal likelihood of the Laplace approximation, up to a constant."""
        size = len(self.values)
        determinant = size * math.log(precision) - float((self.values + precision).log().sum())
        return self.log_likelihood - 0.5 * precision * self.square + 0.5 * determinant

    def choose_precision(self, images: Tensor | None = None, labels: Tensor | None = None) -> float:
        """Return the precision with the lowest NLL on held-out images, or without any the highest evidence."""

        def loss(precision: float) -> float:
            if images is None or labels is None or not len(labels):
                return -self.evidence(precision)
            return float(F.nll_loss(self.predict(images, precision).log(), labels))

        return min(PRECISIONS, key=loss)

    @torch.no_grad()
    def predict(self, images: Tensor, precision: float, seed: int = 0) -> Tensor:
        """Return probabilities averaged over draws of the logits, which are Gaussian given the image."""
        classes, size = self.last.out_features, self.last.in_features + 1
        root = (self.vectors * (self.values + precision).rsqrt()).float().view(classes, size, -1)
        covariance = torch.einsum("asr,btr->abst", root, root).contiguous()
        generator = torch.Generator().manual_seed(seed)
        found = []
        for features, logits in self._features(images):
            spread = torch.einsum("ns,abst,nt->nab", features, covariance, features)
            jitter = 1e-6 * spread.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=1e-12)
            factor = torch.linalg.cholesky_ex(spread + jitter[:, None, None] * torch.eye(classes))[0]
            noise = torch.randn(len(logits), classes, PASSES, generator=generator)
            draws = logits[:, :, None] + factor @ noise
            found.append(draws.softmax(dim=1).mean(dim=2))
        return torch.cat(found).clamp(min=torch.finfo(torch.float32).tiny)

    def _features(self, images: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs of the last layer with a 1 for the bias, and logits, of each batch."""
        kept: list[Tensor] = []
        keep: Callable[[nn.Module, tuple[Tensor]], None] = lambda _, inputs: kept.append(inputs[0])  # noqa: E731
        handle = self.last.register_forward_pre_hook(keep)
        try:
            with eval_mode(self.model), torch.no_grad():
                for batch in images.split(BATCH):
                    logits = self.model(self.normalize(batch))
                    features = kept.pop()
                    yield torch.cat([features, torch.ones(len(features), 1)], dim=1), logits
        finally:
            handle.remove()
