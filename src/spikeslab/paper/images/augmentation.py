"""Augmentation of whole batches, on any device, as in appendix D.2 of the paper.

Each function takes a batch of images of shape (rows, channels, height, width) and a generator on its device, from which
it draws what it needs for all rows at once. :class:`Augment` puts them in the paper's order and normalises.

References:
    Z. Zhong, L. Zheng, G. Kang, S. Li and Y. Yang (2020), Random erasing data augmentation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, check_choice, check_count

TRIES = 100  # rectangles that random erasing draws before it gives up on an image


def random_crop(images: Tensor, generator: Generator, padding: int = 4) -> Tensor:
    """Return a window of the old size at a random place of each image, padded with zeros."""
    _check(images)
    check_count("padding", padding, minimum=0)
    rows, _, height, width = images.shape
    padded = F.pad(images, (padding, padding, padding, padding))
    top, left = torch.randint(2 * padding + 1, (2, rows), generator=generator, device=images.device)
    # All windows as a view; one is taken for each image.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(rows, device=images.device), :, top, left]


def random_flip(images: Tensor, generator: Generator) -> Tensor:
    """Mirror half of the images, chosen at random."""
    _check(images)
    flip = torch.rand(len(images), generator=generator, device=images.device) < 0.5
    return torch.where(flip[:, None, None, None], images.flip(3), images)


def random_rotation(images: Tensor, generator: Generator, degrees: float = 15.0) -> Tensor:
    """Rotate each image by an angle in [-degrees, degrees], with nearest pixels and zeros from outside."""
    _check(images)
    rows, _, height, width = images.shape
    angle = (2.0 * torch.rand(rows, generator=generator, device=images.device) - 1.0) * math.radians(degrees)
    y = torch.arange(height, device=images.device) - (height - 1) / 2
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    cosine, sine = angle.cos()[:, None, None], angle.sin()[:, None, None]
    # Where each pixel of the result comes from.
    source_x = (cosine * x - sine * y[:, None] + (width - 1) / 2).round().long()
    source_y = (sine * x + cosine * y[:, None] + (height - 1) / 2).round().long()
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    index = source_y.clamp(0, height - 1) * width + source_x.clamp(0, width - 1)
    taken = images.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, images.shape[1], -1))
    return taken.view_as(images) * inside[:, None]


def random_erasing(
    images: Tensor,
    generator: Generator,
    fill: Sequence[float] = (0.4914, 0.4822, 0.4465),
    probability: float = 0.5,
    area: tuple[float, float] = (0.02, 0.4),
    aspect: tuple[float, float] = (0.3, 1 / 0.3),
) -> Tensor:
    """Replace a rectangle of random area and aspect by a colour, in images chosen with ``probability``.

    Area (a share of the image) and aspect (height over width) are uniform; one that does not fit is drawn again.
    """
    _check(images)
    if not images.is_floating_point():  # in which the colour, a part of 1, would be black
        raise ArgumentTypeError("images", "must be floating-point numbers", images.dtype)
    rows, channels, height, width = images.shape
    shape = (rows, TRIES)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, device=images.device)

    surface, ratio = uniform(*area) * height * width, uniform(*aspect)
    tall, wide = (surface * ratio).sqrt().round().long(), (surface / ratio).sqrt().round().long()
    fits = (tall < height) & (wide < width)
    first = fits.to(torch.uint8).argmax(dim=1, keepdim=True)
    tall, wide = tall.gather(1, first), wide.gather(1, first)
    chosen = (torch.rand(rows, 1, generator=generator, device=images.device) < probability) & fits.any(1, keepdim=True)
    places = torch.rand(rows, 2, generator=generator, device=images.device)
    top = (places[:, :1] * (height - tall + 1)).long()
    left = (places[:, 1:] * (width - wide + 1)).long()
    y, x = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    across = chosen & (x >= left) & (x < left + wide)
    down = (y >= top) & (y < top + tall)
    colour = torch.tensor(list(fill)[:channels], dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
    return torch.where((down[:, :, None] & across[:, None, :])[:, None], colour, images)


@dataclass(frozen=True)
class Normalize:
    """Transform from bytes to float32 with the channels last: division by 255, then standardisation of each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        """Return normalised images; the generator is not used."""
        return self.standardise(images.float() / 255.0)

    def standardise(self, images: Tensor) -> Tensor:
        """Standardise images in [0, 1], with a gradient: the ``transform`` of :mod:`spikeslab.attacks`."""
        _check(images)
        mean = torch.tensor(self.mean, device=images.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(1, -1, 1, 1)
        return ((images - mean) / std).contiguous(memory_format=torch.channels_last)


PLAIN = Normalize((0.0,), (1.0,))
"""Pixels in [0, 1], as in the paper's runs without augmentation."""

NORMALIZE = {
    "mnist": Normalize((0.1307,), (0.3081,)),
    "fashion": Normalize((0.1307,), (0.3081,)),
    "cifar10": Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}
"""Constants of the paper's runs with augmentation; Fashion-MNIST has those of MNIST."""

STANDARDISE = {"mnist": NORMALIZE["mnist"], "fashion": Normalize((0.2860,), (0.3530,))}
"""Means and standard deviations of the training images."""


@dataclass(frozen=True)
class Augment:
    """Augmentation of the paper: a crop, then a rotation (``"mnist"``), or a flip (``"fashion"``, ``"cifar10"``).

    With ``erasing`` rectangles of flipped images are erased. ``padding`` is that of the crop, ``degrees`` the largest
    rotation, and ``constants`` replaces the normalisation. A ``transform`` for
    :class:`~spikeslab.training.TensorBatches`.
    """

    dataset: str
    erasing: bool = True
    padding: int = 4
    degrees: float = 15.0
    constants: Normalize | None = None

    def __post_init__(self) -> None:
        check_choice("dataset", self.dataset, tuple(NORMALIZE))

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Return augmented and normalised images, with the channels last."""
        images = random_crop(images, generator, self.padding)
        if self.dataset == "mnist":
            return self.normalize(random_rotation(images, generator, self.degrees))
        images = self.normalize(random_flip(images, generator))
        images = random_erasing(images, generator) if self.erasing else images
        return images.contiguous(memory_format=torch.channels_last)

    @property
    def normalize(self) -> Normalize:
        """Normalisation of training and test images."""
        return self.constants or NORMALIZE[self.dataset]


def _check(images: Tensor) -> None:
    if images.ndim != 4:
        raise ArgumentValueError("images", "must have the shape (rows, channels, height, width)", tuple(images.shape))
