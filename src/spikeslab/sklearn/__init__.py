"""Variable selection with scikit-learn's interface."""

from spikeslab.sklearn._sgld_settings import SGLDSettings
from spikeslab.sklearn.classifier import SpikeSlabClassifier
from spikeslab.sklearn.regressor import SpikeSlabRegressor

__all__ = ["SGLDSettings", "SpikeSlabClassifier", "SpikeSlabRegressor"]
