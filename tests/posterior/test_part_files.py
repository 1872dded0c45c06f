"""Samples in parts, put together from the files of several ranks."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spikeslab.errors import SpikeSlabError
from spikeslab.files import read_record, write_record
from spikeslab.posterior.part_files import PLACES, PartFiles, encode_parts
from spikeslab.posterior.samples import DiskSamples
from spikeslab.shards import Place, Reduction

WHOLE = torch.arange(35.0).view(5, 7)
CUTS = {
    "rows": ((0, 3),),  # 2, 2 and 1 rows
    "columns": ((1, 3),),  # 3, 3 and 1 columns: their elements are not consecutive
    "more ranks than rows": ((0, 8),),  # the last three have nothing
    "both": ((0, 2), (1, 2)),
}


def cut(cuts: tuple[tuple[int, int], ...], coordinate: tuple[int, ...]) -> torch.Tensor:
    part = WHOLE
    for (dim, parts), number in zip(cuts, coordinate, strict=True):
        pieces = part.chunk(parts, dim)
        part = pieces[number] if number < len(pieces) else pieces[0].narrow(dim, 0, 0)
    return part.contiguous()


def write(folder: Path, cuts: tuple[tuple[int, int], ...]) -> list[Path]:
    paths: list[Path] = []
    for rank, coordinate in enumerate(itertools.product(*(range(parts) for _, parts in cuts))):
        paths.append(folder / f"{rank}.safetensors")
        places = {"weight": Place(tuple(WHOLE.shape), cuts, coordinate)}
        save_file({"weight": cut(cuts, coordinate)}, paths[-1], {PLACES: json.dumps(places)})
    return paths


@pytest.mark.parametrize("name", CUTS)
def test_parts_are_put_where_they_were(tmp_path, name):
    paths = write(tmp_path, CUTS[name])
    for order in (paths, paths[::-1]):
        files = PartFiles(order)
        assert files.kinds == {"weight": ("F32", (5, 7))}
        torch.testing.assert_close(files.whole("weight"), WHOLE, rtol=0, atol=0)
        torch.testing.assert_close(files.part("weight", torch.empty(5, 7)), WHOLE, rtol=0, atol=0)


def test_a_missing_part_is_noticed(tmp_path):
    with pytest.raises(ValueError, match=r"^weight is not whole$"):
        PartFiles(write(tmp_path, CUTS["rows"])[:-1]).whole("weight")


def test_parts_of_two_samples_are_not_mixed(tmp_path):
    (tmp_path / "other").mkdir()
    mixed = [write(tmp_path, CUTS["rows"])[0], write(tmp_path / "other", CUTS["columns"])[1]]
    with pytest.raises(ValueError, match=r"^weight was cut in several ways$"):
        PartFiles(mixed).whole("weight")


def samples(folder: Path) -> DiskSamples:
    """A sample of a model that is not sharded, written as parts of one rank."""
    store = DiskSamples.create(folder)
    store.write_parts(3, {"weight": WHOLE, "count": torch.tensor(7)}, Reduction([]))
    record = {"step": 3, "weight": 1.0}
    rest = {"burn_in": 0, "thin": 1, "max_samples": None, "steps": 3, "weights": "uniform", "regression": False}
    store.write_index(lambda: {**rest, "shapes": {"weight": [5, 7], "count": []}, "samples": [record]})
    return store


def test_a_sample_of_one_rank_comes_back(tmp_path):
    samples(tmp_path)
    store = DiskSamples(tmp_path)
    store.read_index()
    found = store.read(3)
    assert torch.equal(found["weight"], WHOLE)
    assert found["count"] == 7
    assert torch.equal(store.read_like(3, {"weight": WHOLE, "count": torch.tensor(0)})["weight"], WHOLE)
    store.remove(3)
    assert not list(tmp_path.glob("sample-*"))


def test_a_sample_that_is_replaced_has_the_new_content(tmp_path):
    store = samples(tmp_path)
    store.write_parts(3, {"weight": WHOLE + 1, "count": torch.tensor(8)}, Reduction([]))
    assert torch.equal(store.read(3)["weight"], WHOLE + 1)


def test_an_index_that_names_other_files_is_refused(tmp_path):
    samples(tmp_path)
    path = tmp_path / "posterior.json"
    index = read_record(path, SpikeSlabError, (2,))
    assert index["sha256"].keys() == {"3/0"}
    for names in (["3/1"], ["3/0", "3/2"], ["3", "3/0"], ["4/0"], ["3/0", "../3"]):
        write_record(path, {**index, "sha256": {name: ["0" * 64] for name in names}})
        with pytest.raises(ValueError, match=re.escape(f"{path} has impossible values of sha256.")):
            DiskSamples(tmp_path).read_index()


def test_places_are_damaged(tmp_path):
    store = samples(tmp_path)
    path = tmp_path / "sample-000000003-0000.safetensors"
    save_file({"weight": WHOLE}, path, {PLACES: "[]"})
    store._digests.clear()  # as if the index allowed it
    with pytest.raises(ValueError, match=r"^Cannot read the sample .*-0000\.safetensors and those beside it: "):
        store.read(3)


def test_copies_are_written_once():
    class Elsewhere(Reduction):
        def is_counted(self, tensor: object) -> bool:
            return False

    assert b"weight" not in encode_parts({"weight": WHOLE}, Elsewhere([])).split(b'"__metadata__"')[0]
