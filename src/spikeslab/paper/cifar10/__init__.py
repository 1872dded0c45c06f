"""Table 3 of the paper: sparse ResNet20 on CIFAR-10."""

from spikeslab.paper.cifar10.networks import ResNet, resnet20, resnet32, resnet56

__all__ = ["ResNet", "resnet20", "resnet32", "resnet56"]
