from __future__ import annotations

import sys

import pytest
import torch

from spikeslab.paper.demo import load_digits, load_upscaled_digits


def test_three_parts_of_all_digits() -> None:
    data = load_digits()
    parts = (data.x_train, data.x_validation, data.x_test)
    assert [len(part) for part in parts] == [1078, 270, 449]
    images = torch.cat(parts)
    assert images.shape == (1797, 1, 8, 8)
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert len(images.flatten(1).unique(dim=0)) == 1797, "no image is in two parts"


def test_stratified_and_always_the_same() -> None:
    data, again = load_digits(), load_digits()
    for labels in (data.y_train, data.y_validation, data.y_test):
        shares = labels.bincount(minlength=10) / len(labels)
        assert torch.allclose(shares, torch.full((10,), 0.1), atol=0.01)
    assert torch.equal(data.x_test, again.x_test)


def test_the_upscaled_digits_look_like_mnist() -> None:
    data, small = load_upscaled_digits(), load_digits()
    assert (data.x_train.shape, data.x_test.shape) == ((1348, 1, 28, 28), (449, 1, 28, 28))
    assert data.x_train.dtype == torch.uint8
    assert torch.equal(data.y_test, small.y_test)
    # A corner lies within the first pixel, and the mean of all is that of the small image.
    assert torch.equal(data.x_test[:, 0, 0, 0], (255 * small.x_test[:, 0, 0, 0]).round().to(torch.uint8))
    means = data.x_test.float().mean(dim=(1, 2, 3)) / 255, small.x_test.mean(dim=(1, 2, 3))
    assert torch.allclose(*means, atol=0.03)


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"^The digits come with scikit-learn: pip install spikeslab\[sklearn\]\.$"):
        load_digits()
