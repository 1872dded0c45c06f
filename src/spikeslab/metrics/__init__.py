"""Metrics of predictions, calibration and uncertainty, and the temperature of a chain: tensors in, numbers out."""

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
from spikeslab.metrics.uncertainty import (
    Detection,
    DetectionCurves,
    detection,
    detection_curves,
    entropy,
    mutual_information,
    selective_accuracy,
)

__all__ = [
    "ConfigurationalTemperature",
    "Detection",
    "DetectionCurves",
    "Reliability",
    "Temperature",
    "accuracy",
    "brier_score",
    "detection",
    "detection_curves",
    "entropy",
    "expected_calibration_error",
    "gaussian_log_score",
    "interval_coverage",
    "kinetic_temperature",
    "mean_absolute_error",
    "mean_squared_error",
    "mutual_information",
    "negative_log_likelihood",
    "reliability_curve",
    "root_mean_squared_error",
    "selective_accuracy",
]
