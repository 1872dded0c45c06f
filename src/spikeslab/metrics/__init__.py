"""How good a prediction is, tensors in, numbers out; and how warm a chain is."""

from spikeslab.metrics.classification import (
    Reliability,
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_curve,
)
from spikeslab.metrics.regression import (
    gaussian_log_score,
    interval_coverage,
    mean_absolute_error,
    mean_squared_error,
    root_mean_squared_error,
)
from spikeslab.metrics.temperature import ConfigurationalTemperature, Temperature, kinetic_temperature

__all__ = [
    "ConfigurationalTemperature",
    "Reliability",
    "Temperature",
    "accuracy",
    "brier_score",
    "expected_calibration_error",
    "gaussian_log_score",
    "interval_coverage",
    "kinetic_temperature",
    "mean_absolute_error",
    "mean_squared_error",
    "negative_log_likelihood",
    "reliability_curve",
    "root_mean_squared_error",
]
