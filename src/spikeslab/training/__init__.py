"""The training runtime: a small loop, callbacks, checkpoints with exact resume, chains and processes."""

from spikeslab.training.batches import DataOrder, TensorBatches
from spikeslab.training.callbacks import Callback, Collect, Evaluate, Every, Prune, ScheduleLR, ShowProgress
from spikeslab.training.checkpoints import Checkpoint, CheckpointError, Checkpoints
from spikeslab.training.evaluation import ClassifierEvaluation, describe_classifier
from spikeslab.training.folder import RunFolder
from spikeslab.training.interruption import Interrupted
from spikeslab.training.log import MetricsLog
from spikeslab.training.loop import Training, cross_entropy
from spikeslab.training.posterior_evaluation import PosteriorEvaluation

__all__ = [
    "Callback",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "ClassifierEvaluation",
    "Collect",
    "DataOrder",
    "Evaluate",
    "Every",
    "Interrupted",
    "MetricsLog",
    "PosteriorEvaluation",
    "Prune",
    "RunFolder",
    "ScheduleLR",
    "ShowProgress",
    "TensorBatches",
    "Training",
    "cross_entropy",
    "describe_classifier",
]
