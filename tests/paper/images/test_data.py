"""Reading MNIST, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

import os

import pytest
import torch

from spikeslab.paper import data_files
from spikeslab.paper.data_files import DataError
from spikeslab.paper.images import data as images
from spikeslab.paper.images.data import load_cifar10, load_fashion, load_mnist, read_idx


def test_idx_and_cifar_files_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    header = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3])
    assert read_idx(header + bytes(range(6))).tolist() == [[[0, 1, 2]], [[3, 4, 5]]]
    record = torch.randint(256, (2, 3073), dtype=torch.uint8)
    record[:, 0] = torch.tensor([3, 9])
    content = record.numpy().tobytes()
    monkeypatch.setattr(images, "read_published", lambda *_: dict.fromkeys(images.CIFAR10.digests, content))
    data = load_cifar10()
    assert data.x_train[1, 2, 31, 30] == record[1, 1 + 2 * 1024 + 31 * 32 + 30]
    assert data.y_train[:2].tolist() == [3, 9]


@pytest.mark.parametrize(("load", "name"), [(load_mnist, "7"), (load_fashion, "sneaker")])
def test_images_and_labels_keep_their_places(load, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def file(rows: int, first: int, *shape: int) -> bytes:
        sizes = b"".join(size.to_bytes(4, "big") for size in (rows, *shape))
        return bytes([0, 0, 8, 1 + len(shape)]) + sizes + bytes([first]) * (rows * 28 ** len(shape))

    contents = [file(3, 10, 28, 28), file(3, 7), file(2, 20, 28, 28), file(2, 1)]
    monkeypatch.setattr(images, "read_published", lambda source, _: dict(zip(source.digests, contents, strict=True)))
    data = load()
    assert (data.x_train.shape, data.x_test.shape) == ((3, 1, 28, 28), (2, 1, 28, 28))
    assert (int(data.x_train[0, 0, 0, 0]), int(data.x_test[0, 0, 0, 0])) == (10, 20)
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([7, 7, 7], [1, 1])
    assert data.classes[7].lower() == name


def test_held_out_images_are_the_same_each_time_and_apart_from_the_rest() -> None:
    x = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1)
    data = images.Images(x, torch.arange(20), x[:3], torch.arange(3), ("a",))
    x_train, y_train, x_held, y_held = data.hold_out(5)
    assert sorted([*y_train.tolist(), *y_held.tolist()]) == list(range(20))
    assert torch.equal(x_train.flatten().long(), y_train)
    assert torch.equal(x_held, data.hold_out(5)[2])
    assert not torch.equal(x_held, data.hold_out(5, seed=1)[2])


@pytest.mark.skipif("SPIKESLAB_DATA" not in os.environ, reason="needs the real files, in SPIKESLAB_DATA")
def test_the_real_files() -> None:
    try:
        data = load_mnist()
    except DataError as error:
        pytest.skip(str(error))
    assert data.x_train.shape == (60_000, 1, 28, 28)
    assert data.y_test.bincount().tolist()[:3] == [980, 1135, 1032]
    assert data_files.data_folder(None) is not None
