"""States of the global random generators."""

import random

import numpy as np
import torch

from spikeslab.training.randomness import get_randomness, preserve_randomness, restore_randomness, seed_everything


def draw() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.normal())]  # noqa: NPY002 - the global generator


def test_every_global_generator_continues_where_it_was() -> None:
    seed_everything(3)
    draw()  # leaves a second normal number in numpy's generator
    state = get_randomness()
    expected = draw()
    restore_randomness(state)
    assert draw() == expected


def test_a_block_leaves_the_generators_as_they_were() -> None:
    seed_everything(3)
    with preserve_randomness():
        inner = draw()
    assert draw() == inner
    seed_everything(2**40 + 3)
    assert draw() != inner
