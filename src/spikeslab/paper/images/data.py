"""MNIST, Fashion-MNIST and CIFAR-10, read from their publishers' files and checked byte for byte.

References:
    Y. LeCun, L. Bottou, Y. Bengio and P. Haffner (1998), Gradient-based learning applied to document recognition.
    H. Xiao, K. Rasul and R. Vollgraf (2017), Fashion-MNIST.
    A. Krizhevsky (2009), Learning multiple layers of features from tiny images.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError
from spikeslab.paper.data_files import Published, read_published

MNIST = Published(
    folder="MNIST/raw",
    digests={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    url="https://ossci-datasets.s3.amazonaws.com/mnist",
    downloads={
        "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
    },
)
FASHION = Published(
    folder="FashionMNIST/raw",
    digests={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    url="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    downloads={
        "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
)
CIFAR10 = Published(
    folder="cifar-10-batches-bin",
    digests={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    url="https://www.cs.toronto.edu/~kriz",
    downloads={
        "cifar-10-binary.tar.gz": "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    },
)
DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Images:
    """Images as bytes, of shape (rows, channels, height, width), their labels, and the names of the classes."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]

    def hold_out(self, rows: int = 5000, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return images and labels to train on, then those of ``rows`` held-out images, by a fixed shuffle."""
        if rows >= len(self.y_train):
            raise ArgumentValueError("held_out", f"must be fewer than the {len(self.y_train)} training images", rows)
        order = torch.randperm(len(self.y_train), generator=torch.Generator().manual_seed(seed))
        held, kept = order[:rows].sort().values, order[rows:].sort().values
        return self.x_train[kept], self.y_train[kept], self.x_train[held], self.y_train[held]


def load_mnist(data_dir: str | os.PathLike[str] | None = None) -> Images:
    """Load MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 x 28 pixels.

    Args:
        data_dir: Folder that holds ``MNIST/raw``; by default ``SPIKESLAB_DATA``, or else the files are downloaded.
    """
    return _load_idx(MNIST, data_dir, DIGITS)


def load_fashion(data_dir: str | os.PathLike[str] | None = None) -> Images:
    """Load Fashion-MNIST: 60,000 and 10,000 images of clothes, 28 x 28 pixels, from ``FashionMNIST/raw``."""
    return _load_idx(FASHION, data_dir, CLOTHES)


def load_cifar10(data_dir: str | os.PathLike[str] | None = None) -> Images:
    """Load CIFAR-10: 50,000 and 10,000 colour images of 32 x 32 pixels, from ``cifar-10-batches-bin``."""
    parts = [_read_cifar(content) for content in read_published(CIFAR10, data_dir).values()]
    x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return Images(x[:50_000], y[:50_000], x[50_000:], y[50_000:], THINGS)


def _load_idx(source: Published, data_dir: str | os.PathLike[str] | None, classes: tuple[str, ...]) -> Images:
    x_train, y_train, x_test, y_test = (read_idx(content) for content in read_published(source, data_dir).values())
    return Images(x_train[:, None], y_train.long(), x_test[:, None], y_test.long(), classes)


def read_idx(content: bytes) -> Tensor:
    """Return the array of an IDX file of bytes: two zeros, the type, the number of dimensions, the sizes, the data.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    tensor([7, 9], dtype=torch.uint8)
    """
    dimensions = content[3]
    start = 4 + 4 * dimensions
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(sizes)


def _read_cifar(content: bytes) -> tuple[Tensor, Tensor]:
    """Return the images and labels of records of one label and 3 x 32 x 32 pixels."""
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


LOADERS = {"mnist": load_mnist, "fashion": load_fashion, "cifar10": load_cifar10}
"""Loaders by the names that commands use."""
