r"""Columns that are always in a linear model, with a flat prior: regressed out before the chains and drawn after them.

With Z the always-included columns and X the others, both centred, a flat prior of the coefficients zeta of Z can be
integrated out as that of the intercept is: what is left is the model for the residuals of y and X on Z, with one degree
of freedom less for each column of Z. Given beta and sigma,

    zeta ~ N((Z'Z)^-1 Z'(y - X beta), sigma^2 (Z'Z)^-1).

The residuals of a column of X are standardised like a column, so the slab is in units of what Z leaves of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from spikeslab.sklearn._moments import Moments, is_sparse

if TYPE_CHECKING:
    from numpy.random import Generator

    from spikeslab.sklearn._moments import Scaling
    from spikeslab.sklearn._posterior import LinearPosterior
    from spikeslab.sklearn._sweep import Floats, Ints

LEFT = 1e-10
"""Share of a column's variance below which the always-included columns leave nothing of it."""


@dataclass(frozen=True)
class AlwaysIncluded:
    """Regression of y and the other columns on the always-included ones.

    Attributes:
        columns: Indices of the always-included columns.
        others: Indices of the other columns.
        mean: Means of the always-included columns.
        root: Cholesky factor of Z'Z.
        target: (Z'Z)^-1 Z'y.
        slopes: (Z'Z)^-1 Z'X, shape (q, others).
    """

    columns: Ints
    others: Ints
    mean: Floats
    root: Floats
    target: Floats
    slopes: Floats

    def locate(self, scaling: Scaling) -> Scaling:
        """Return a scaling of the other columns as one of all columns."""
        return replace(scaling, n_features=self.columns.size + self.others.size, kept=self.others[scaling.kept])

    def complete(self, posterior: LinearPosterior, rng: Generator) -> LinearPosterior:
        """Return a posterior of the other columns with draws of the always-included coefficients."""
        sigma = posterior.scalars["sigma"].ravel()
        noise = np.linalg.solve(self.root.T, rng.standard_normal((self.columns.size, sigma.size))).T
        centre = self.target - posterior.coef[:, self.others] @ self.slopes.T
        draws = centre + sigma[:, None] * noise
        rows, places = np.indices(draws.shape)
        entries = (draws.ravel(), (rows.ravel(), self.columns[places.ravel()]))
        pip, mean, std = posterior.pip.copy(), posterior.mean.copy(), posterior.std.copy()
        pip[self.columns] = 1.0
        mean[0, self.columns] = self.target - self.slopes @ mean[0, self.others]
        std[0, self.columns] = draws.std(axis=0)
        return replace(
            posterior,
            coef=sparse.csr_array(posterior.coef + sparse.csr_array(entries, shape=posterior.coef.shape)),
            intercept=posterior.intercept - (draws @ self.mean)[:, None],
            pip=pip,
            mean=mean,
            std=std,
        )


def _regress(gram: Floats, cross: Floats, xty: Floats, mean: Floats, columns: Ints, others: Ints) -> AlwaysIncluded:
    """Return the regression from Z'Z, Z'X and Z'y; raises LinAlgError if Z'Z is singular."""
    root: Floats = np.asarray(np.linalg.cholesky(gram), dtype=np.float64)
    if (np.diag(root) ** 2 <= LEFT * np.diag(gram)).any():
        raise np.linalg.LinAlgError("The columns are collinear.")
    both = np.linalg.solve(root.T, np.linalg.solve(root, np.column_stack([cross, xty])))
    return AlwaysIncluded(columns, others, mean, root, both[:, -1], both[:, :-1])


def regress_out(moments: Moments, columns: Ints) -> tuple[Moments, AlwaysIncluded]:
    """Return the moments of the residuals on some columns, and the regression.

    Raises:
        LinAlgError: If the columns are collinear.
    """
    others = np.setdiff1d(np.arange(moments.x_mean.size), columns)
    cross, xty = moments.xx[np.ix_(columns, others)], moments.xy[columns]
    gram = moments.xx[np.ix_(columns, columns)]
    found = _regress(gram, cross, xty, moments.x_mean[columns], columns, others)
    before = moments.xx[np.ix_(others, others)]
    xx = before - cross.T @ found.slopes
    gone = np.diag(xx) <= LEFT * np.diag(before)
    xx[gone] = 0.0
    xx[:, gone] = 0.0
    xy = np.where(gone, 0.0, moments.xy[others] - cross.T @ found.target)
    yy = max(moments.yy - float(xty @ found.target), 0.0)
    return Moments(moments.n - columns.size, moments.x_mean[others], moments.y_mean, xx, xy, yy), found


def regress_out_rows(X: Any, y: Floats, columns: Ints) -> tuple[Floats, Floats, AlwaysIncluded]:
    """Return the residuals of the other columns and of y, whose means stay, and the regression.

    Raises:
        LinAlgError: If the columns are collinear.
    """
    dense: Floats = np.asarray(X.toarray() if is_sparse(X) else X, dtype=np.float64)
    others = np.setdiff1d(np.arange(dense.shape[1]), columns)
    z, x = dense[:, columns], dense[:, others]
    mean = z.mean(axis=0)
    z = z - mean
    found = _regress(z.T @ z, z.T @ x, z.T @ y, mean, columns, others)
    left = x - z @ found.slopes
    left[:, left.var(axis=0) <= LEFT * x.var(axis=0)] = 0.0
    return left, y - z @ found.target, found
