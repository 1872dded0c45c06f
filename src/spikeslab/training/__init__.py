"""Training loop, callbacks, run folders and checkpoints with exact resume."""

from spikeslab.errors import Interrupted
from spikeslab.training.batches import DataOrder, TensorBatches
from spikeslab.training.callbacks import Callback, Collect, Evaluate, Every, Prune, ScheduleLR, ShowProgress
from spikeslab.training.changes import ChangedSettingsError
from spikeslab.training.checkpoints import Checkpoint, CheckpointError, Checkpoints
from spikeslab.training.evaluation import ClassifierEvaluation, PosteriorEvaluation, describe_classifier
from spikeslab.training.log import MetricsLog
from spikeslab.training.loop import Training, cross_entropy
from spikeslab.training.run_folder import FolderInUseError, RunFolder

__all__ = [
    "Callback",
    "ChangedSettingsError",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "ClassifierEvaluation",
    "Collect",
    "DataOrder",
    "Evaluate",
    "Every",
    "FolderInUseError",
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
