"""Variable selection with scikit-learn's interface."""

from spikeslab.sklearn.regressor import SpikeSlabRegressor

__all__ = ["SpikeSlabRegressor"]
