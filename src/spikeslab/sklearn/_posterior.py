"""Posterior draws of a sparse linear predictor on the user's scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from spikeslab.sklearn._moments import is_sparse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spikeslab.sklearn._chains import ChainDraws
    from spikeslab.sklearn._moments import Scaling
    from spikeslab.sklearn._sweep import Floats

BLOCK = 4_000_000  # numbers held at once while predicting


@dataclass(frozen=True)
class LinearPosterior:
    """Draws of all chains, with posterior means and inclusion probabilities.

    Attributes:
        coef: Draws of the coefficients, shape (chains * draws, classes * features), class by class.
        intercept: Draws of the intercepts, shape (chains * draws, classes).
        scalars: Monitored scalars by name, each of shape (chains, draws).
        pip: Posterior inclusion probabilities, shape (features,).
        mean: Posterior means of the coefficients, shape (classes, features).
        std: Posterior standard deviations of the coefficients, shape (classes, features).
    """

    coef: sparse.csr_array
    intercept: Floats
    scalars: dict[str, Floats]
    pip: Floats
    mean: Floats
    std: Floats

    @property
    def n_chains(self) -> int:
        """Number of chains."""
        return int(next(iter(self.scalars.values())).shape[0])

    def class_pip(self) -> Floats:
        """Compute the share of draws in which each class uses each feature, shape (classes, features)."""
        counts = np.bincount(self.coef.indices, minlength=self.coef.shape[1])
        return (counts / max(self.coef.shape[0], 1)).reshape(self.mean.shape)

    def linear_predictor(self, X: Any) -> Iterator[tuple[slice, Floats]]:
        """Yield blocks of (rows, draws of the linear predictor of shape (rows, chains * draws, classes))."""
        classes = self.intercept.shape[1]
        p = self.coef.shape[1] // classes
        used = np.unique(self.coef.indices % p)
        per_class = [self.coef[:, c * p + used].T.tocsr() for c in range(classes)]
        step = max(1, BLOCK // max(1, self.intercept.size))
        for start in range(0, X.shape[0], step):
            rows = slice(start, min(start + step, X.shape[0]))
            part = X[rows][:, used]
            out = np.empty((rows.stop - rows.start, *self.intercept.shape))
            for c, coef in enumerate(per_class):
                product = part @ coef
                out[:, :, c] = product.toarray() if is_sparse(product) else product
            yield rows, out + self.intercept

    def interval(self, level: float) -> Floats:
        """Compute equal-tailed credible intervals of the coefficients, shape (classes, features, 2)."""
        draws = self.coef.tocsc()
        total, columns = draws.shape
        tails = np.array([0.5 - level / 2, 0.5 + level / 2])
        out = np.zeros((columns, 2))
        counts = np.diff(draws.indptr)
        for j in np.flatnonzero(counts >= tails[0] * total - 1):
            dense = np.zeros(total)
            dense[: counts[j]] = draws.data[draws.indptr[j] : draws.indptr[j + 1]]
            out[j] = np.quantile(dense, tails)
        return out.reshape(self.mean.shape[0], -1, 2)

    def coef_of(self, column: int) -> Floats:
        """Return the draws of one coefficient, shape (chains, draws)."""
        return np.asarray(self.coef[:, [column]].toarray(), dtype=np.float64).reshape(self.n_chains, -1)


def pool(chains: Sequence[ChainDraws], scaling: Scaling, intercept: Floats) -> LinearPosterior:
    """Combine the draws of all chains for the standardised problem and express them on the user's scale.

    `intercept` holds draws for centred X that are on the user's scale, shape (chains * draws, classes).
    """
    classes = chains[0].mean.shape[0]
    kept, p = scaling.kept, scaling.n_features
    factor = scaling.y_scale / scaling.x_scale
    draws = sparse.csr_array(sparse.vstack([c.coef for c in chains], format="csr"))
    label, feature = np.divmod(draws.indices, max(kept.size, 1))
    values = draws.data * factor[feature]
    columns = label * p + kept[feature]
    coef = sparse.csr_array((values, columns, draws.indptr), shape=(draws.shape[0], classes * p))
    row = np.repeat(np.arange(draws.shape[0]), np.diff(draws.indptr))
    shift = np.zeros_like(intercept)
    np.add.at(shift, (row, label), values * scaling.x_mean[feature])

    def spread(per_chain: list[Floats]) -> Floats:
        out = np.zeros((*per_chain[0].shape[:-1], p))
        out[..., kept] = np.mean(per_chain, axis=0)
        return out

    mean = spread([c.mean * factor for c in chains])
    square = spread([c.square * factor**2 for c in chains])
    pip = np.clip(spread([c.pip for c in chains]), 0.0, 1.0)
    scalars = {name: np.stack([c.scalars[name] for c in chains]) for name in chains[0].scalars}
    return LinearPosterior(coef, intercept - shift, scalars, pip, mean, np.sqrt(np.maximum(square - mean**2, 0.0)))
