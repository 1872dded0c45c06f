"""The networks of the paper's experiments, and a small one for the demo; those for images return logits."""

from spikeslab.models.cnn import CNN, BatchNormCNN
from spikeslab.models.digits import DigitsCNN
from spikeslab.models.mlp import MLP
from spikeslab.models.resnet import ResNet, resnet20, resnet32, resnet56

__all__ = ["CNN", "MLP", "BatchNormCNN", "DigitsCNN", "ResNet", "resnet20", "resnet32", "resnet56"]
