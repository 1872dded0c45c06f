"""A figure for each metric: results of :mod:`spikeslab.metrics` in, a matplotlib figure in the one style out.

>>> import torch
>>> from spikeslab.metrics import reliability_curve
>>> from spikeslab.report import plots
>>> probabilities, labels = torch.rand(100, 3).softmax(1), torch.randint(3, (100,))
>>> figure = plots.reliability_figure({"a guess": reliability_curve(probabilities, labels)})

``plots.save(figure, path)`` writes a PNG in that style; ``figure.savefig`` writes any format in yours.
"""

from spikeslab.report.figures import save
from spikeslab.report.plots.classifiers import reliability_figure, scores_figure, selective_accuracy_figure
from spikeslab.report.plots.detection import detection_figure, uncertainty_figure

__all__ = [
    "detection_figure",
    "reliability_figure",
    "save",
    "scores_figure",
    "selective_accuracy_figure",
    "uncertainty_figure",
]
