"""Each function on a batch against a plain loop over images, and its law."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spikeslab.paper.images.augmentation import (
    NORMALIZE,
    TRIES,
    Augment,
    Normalize,
    random_crop,
    random_erasing,
    random_flip,
    random_rotation,
)

ROWS = 40


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=[(1, 28, 28), (3, 32, 30)], ids=["grey", "colour"])
def images(request: pytest.FixtureRequest) -> Tensor:
    return torch.randint(1, 256, (ROWS, *request.param), generator=generator(0), dtype=torch.uint8)


def test_crops_are_windows_of_the_padded_image(images: Tensor) -> None:
    cropped = random_crop(images, generator())
    top, left = torch.randint(9, (2, ROWS), generator=generator())
    _, channels, height, width = images.shape
    for row in range(ROWS):
        expected = torch.zeros(channels, height, width, dtype=torch.uint8)
        for y in range(height):
            for x in range(width):
                from_y, from_x = y + int(top[row]) - 4, x + int(left[row]) - 4
                if 0 <= from_y < height and 0 <= from_x < width:
                    expected[:, y, x] = images[row, :, from_y, from_x]
        assert torch.equal(cropped[row], expected)
    assert len(set(zip(top.tolist(), left.tolist(), strict=True))) > 20


def test_flips_are_mirrored_images(images: Tensor) -> None:
    flipped = random_flip(images, generator())
    chosen = torch.rand(ROWS, generator=generator()) < 0.5
    for row in range(ROWS):
        expected = images[row, :, :, torch.arange(images.shape[3] - 1, -1, -1)] if chosen[row] else images[row]
        assert torch.equal(flipped[row], expected)
    assert 10 < int(chosen.sum()) < 30


def test_rotations_take_the_nearest_pixel(images: Tensor) -> None:
    rotated = random_rotation(images, generator(), degrees=15.0)
    angles = (2.0 * torch.rand(ROWS, generator=generator()) - 1.0) * math.radians(15.0)
    _, _, height, width = images.shape
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    differing = 0
    for row in range(8):
        cosine, sine = math.cos(float(angles[row])), math.sin(float(angles[row]))
        for y in range(height):
            for x in range(width):
                from_x = round(cosine * (x - middle_x) - sine * (y - middle_y) + middle_x)
                from_y = round(sine * (x - middle_x) + cosine * (y - middle_y) + middle_y)
                inside = 0 <= from_x < width and 0 <= from_y < height
                expected = images[row, :, from_y, from_x] if inside else torch.zeros(images.shape[1])
                differing += not torch.equal(rotated[row, :, y, x].float(), expected.float())
    assert differing <= 3, "single pixels may fall on the border between two"


def test_no_turn_changes_nothing(images: Tensor) -> None:
    assert torch.equal(random_rotation(images, generator(), degrees=0.0), images)


def test_erased_rectangles_are_as_drawn(images: Tensor) -> None:
    pixels = images.float()
    erased = random_erasing(pixels, generator())
    _, channels, height, width = images.shape
    source = generator()
    area = 0.02 + (0.4 - 0.02) * torch.rand(ROWS, TRIES, generator=source)
    aspect = 0.3 + (1 / 0.3 - 0.3) * torch.rand(ROWS, TRIES, generator=source)
    chosen = torch.rand(ROWS, 1, generator=source) < 0.5
    places = torch.rand(ROWS, 2, generator=source)
    for row in range(ROWS):
        expected = pixels[row].clone()
        for attempt in range(TRIES):
            surface = area[row, attempt] * height * width
            tall = int((surface * aspect[row, attempt]).sqrt().round())
            wide = int((surface / aspect[row, attempt]).sqrt().round())
            if tall < height and wide < width:
                break
        if chosen[row]:
            top = int(places[row, 0] * (height - tall + 1))
            left = int(places[row, 1] * (width - wide + 1))
            colour = torch.tensor([0.4914, 0.4822, 0.4465])[:channels].view(-1, 1, 1)
            expected[:, top : top + tall, left : left + wide] = colour
        assert torch.equal(erased[row], expected)


def test_half_of_the_images_lose_two_to_forty_percent() -> None:
    images = torch.ones(4000, 1, 28, 28)
    share = (random_erasing(images, generator()) != 1).float().mean(dim=(1, 2, 3))
    lost = share[share > 0]
    assert float((share > 0).float().mean()) == pytest.approx(0.5, abs=0.03)
    assert float(lost.min()) > 0.01
    assert float(lost.max()) < 0.45


@pytest.mark.parametrize("dataset", list(NORMALIZE))
def test_an_augmentation_is_a_function_of_its_generator(dataset: str) -> None:
    channels = 3 if dataset == "cifar10" else 1
    images = torch.randint(256, (8, channels, 28, 28), dtype=torch.uint8)
    augment = Augment(dataset)
    once, again, other = (augment(images, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert once.dtype == torch.float32
    assert once.shape == images.shape


def test_normalised_pixels() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 1, 1, 3)
    assert Normalize((0.5,), (0.5,))(images).flatten().tolist() == pytest.approx([-1.0, 1.0, -0.6])


@pytest.mark.parametrize(
    "function",
    [
        random_crop,
        random_flip,
        random_rotation,
        random_erasing,
        Augment("mnist"),
        lambda images, _: Normalize((0.5,), (0.5,))(images),
    ],
)
def test_images_without_a_channel_are_refused(function) -> None:
    message = r"^images must have the shape \(rows, channels, height, width\), but got \(5, 28, 28\)\.$"
    with pytest.raises(ValueError, match=message):
        function(torch.rand(5, 28, 28), generator())


def test_a_crop_may_have_no_padding(images: Tensor) -> None:
    assert torch.equal(random_crop(images, generator(), padding=0), images)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda images: random_erasing((255 * images).byte(), generator()),  # no colour is rounded to black
            TypeError,
            r"^images must be floating-point numbers, but got torch\.uint8\.$",
        ),
        (
            lambda images: random_crop(images, generator(), padding=-1),
            ValueError,
            r"^padding must be an integer >= 0, but got -1\.$",
        ),
        (
            lambda _: Augment("svhn"),
            ValueError,
            r"^dataset must be one of 'mnist', 'fashion', 'cifar10', but got 'svhn'",
        ),
    ],
)
def test_bad_arguments_are_refused(images: Tensor, call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(images)
