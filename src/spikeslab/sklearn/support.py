"""Which variables are selected, given their inclusion probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def select_variables(pip: NDArray[np.float64], threshold: float = 0.5, fdr: float | None = None) -> NDArray[np.bool_]:
    """Those above a threshold, or the largest set whose expected share of false discoveries is small enough.

    >>> select_variables(np.array([0.95, 0.2, 0.9]), fdr=0.1)
    array([ True, False,  True])

    Args:
        pip: Posterior inclusion probability of each variable.
        threshold: Variables above it are selected.
        fdr: If given, `threshold` is ignored: variables are taken, the most probable first, as long as the mean of
            1 - `pip` over the set is at most this.
    """
    if fdr is None:
        return pip > threshold
    order = np.argsort(-pip, kind="stable")
    share = np.cumsum(1.0 - pip[order]) / np.arange(1, order.size + 1)
    mask = np.zeros(order.size, dtype=bool)
    mask[order[: int(np.searchsorted(share, fdr, side="right"))]] = True
    return mask
