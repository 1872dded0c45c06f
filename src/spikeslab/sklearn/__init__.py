"""Variable selection with scikit-learn's interface."""

from spikeslab.sklearn._base import select_variables
from spikeslab.sklearn._persistence import Estimator, ModelError, load_model, read_metadata, save_model
from spikeslab.sklearn._sgld import SGLDOptions
from spikeslab.sklearn.classifier import SpikeSlabClassifier
from spikeslab.sklearn.regressor import SpikeSlabRegressor

__all__ = [
    "Estimator",
    "ModelError",
    "SGLDOptions",
    "SpikeSlabClassifier",
    "SpikeSlabRegressor",
    "load_model",
    "read_metadata",
    "save_model",
    "select_variables",
]
