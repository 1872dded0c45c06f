"""Small images made here, whose class is easy to see."""

from __future__ import annotations

import torch

from spikeslab.paper.images.data import DIGITS, THINGS, Images


def bright_pixels(rows: int = 16) -> Images:
    """Images of 8 x 8 pixels in three colours, whose class is the place of a bright pixel."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(10, (2 * rows,), generator=generator)
    x = torch.randint(60, (2 * rows, 3, 8, 8), generator=generator)
    x.flatten(2)[torch.arange(2 * rows), :, 5 * y] += 180
    x = x.to(torch.uint8)
    return Images(x[:rows], y[:rows], x[rows:], y[rows:], THINGS)


def bright_bars(rows: int = 60, seed: int = 0) -> Images:
    """Images of 28 x 28 pixels, whose class is the place of a bright bar."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (2 * rows,), generator=generator)
    x = torch.randint(60, (2 * rows, 1, 28, 28), generator=generator)
    for image, label in zip(x, y.tolist(), strict=True):
        image[0, :, 2 * label : 2 * label + 3] += 180
    x = x.to(torch.uint8)
    return Images(x[:rows], y[:rows], x[rows:], y[rows:], DIGITS)
