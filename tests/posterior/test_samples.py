"""Stored samples: in memory, on disk, damaged, and their mean."""

import copy
import json
import math
import random
import re

import pytest
import torch
from posteriors import filled, move, network
from torch import nn

import spikeslab as ss
from spikeslab.errors import SpikeSlabError
from spikeslab.files import read_record, write_record
from spikeslab.posterior import samples
from spikeslab.posterior.samples import DiskSamples


def test_on_disk_equals_in_memory(tmp_path) -> None:
    x = torch.randn(5, 3)
    torch.manual_seed(0)
    memory = filled(network())
    torch.manual_seed(0)
    disk = filled(network(), directory=tmp_path / "samples")
    assert torch.equal(memory.predict(x), disk.predict(x))
    assert all(
        torch.equal(tensor, disk.tensors(i)[name]) for i in range(4) for name, tensor in memory.tensors(i).items()
    )


def test_files_hold_no_pickle(tmp_path) -> None:
    filled(network(), 2, directory=tmp_path / "samples")
    names = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert names == ["posterior.json", "sample-000000001.safetensors", "sample-000000002.safetensors"]


def test_a_posterior_is_never_overwritten(tmp_path) -> None:
    posterior = filled(nn.Linear(3, 4), 1)
    posterior.save(tmp_path / "saved")
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    for write in (posterior.save, lambda folder: ss.Posterior(nn.Linear(3, 4), directory=folder)):
        with pytest.raises(FileExistsError, match=re.escape(f"{tmp_path / 'saved'} holds a posterior already")):
            write(tmp_path / "saved")
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before


def test_the_oldest_sample_goes_where_there_are_too_many(tmp_path) -> None:
    for options in ({}, {"directory": tmp_path / "samples"}):
        model = nn.Linear(2, 2)
        posterior = filled(model, 5, max_samples=2, **options)
        assert len(posterior) == 2
        move(model, 4)
        assert torch.equal(posterior.tensors(-1)["weight"], model.weight)
        move(model, 3)
        assert torch.equal(posterior.tensors(0)["weight"], model.weight)
    assert len(list((tmp_path / "samples").glob("*.safetensors"))) == 2


class TestDamagedFiles:
    def test_a_damaged_sample_is_named(self, tmp_path) -> None:
        model = nn.Linear(3, 4)
        filled(model, 2).save(tmp_path)
        sample = tmp_path / "sample-000000002.safetensors"
        sample.write_bytes(sample.read_bytes()[:40])
        loaded = ss.Posterior.load(tmp_path, model)
        loaded.tensors(0)
        with pytest.raises(ValueError, match=re.escape(f"The sample {sample} has changed since it was written")):
            loaded.predict(torch.ones(1, 3))

    def test_a_missing_sample_is_named(self, tmp_path) -> None:
        model = nn.Linear(3, 4)
        filled(model, 1).save(tmp_path)
        sample = tmp_path / "sample-000000001.safetensors"
        sample.unlink()
        with pytest.raises(ValueError, match=re.escape(f"Cannot read the sample {sample}: ")):
            ss.Posterior.load(tmp_path, model).tensors(0)

    def test_a_damaged_index_is_named(self, tmp_path) -> None:
        model = nn.Linear(3, 4)
        filled(model, 1).save(tmp_path)
        index = tmp_path / "posterior.json"
        text = index.read_text()
        index.write_text(text[:30])
        with pytest.raises(ValueError, match=re.escape(f"{index} is damaged: it is not JSON")):
            ss.Posterior.load(tmp_path, model)
        index.write_text(json.dumps(json.loads(text) | {"version": 99}))
        with pytest.raises(ValueError, match=re.escape(f"{index} has version 99, but this spikeslab reads 1 and 2.")):
            ss.Posterior.load(tmp_path, model)

    def test_no_changed_byte_is_silent(self, tmp_path) -> None:
        model, x = nn.Linear(3, 4), torch.ones(1, 3)
        filled(model, 2).save(tmp_path)
        source = random.Random(0)
        for path in sorted(tmp_path.iterdir()):
            content = path.read_bytes()
            for _ in range(60):
                place, change = source.randrange(len(content)), source.randrange(1, 256)
                path.write_bytes(content[:place] + bytes([content[place] ^ change]) + content[place + 1 :])
                with pytest.raises(ValueError, match=re.escape(str(path))):
                    ss.Posterior.load(tmp_path, model).predict(x)
            path.write_bytes(content)
        ss.Posterior.load(tmp_path, model).predict(x)

    def test_a_kill_while_a_sample_is_replaced_leaves_a_pair_that_fits(self, tmp_path, monkeypatch) -> None:
        model = nn.BatchNorm1d(3)
        posterior = filled(model, 1, directory=tmp_path, link=torch.sigmoid)
        before = posterior.tensors(0)["running_mean"]
        writes = []

        def write_then_die(path, content, write=samples.write_atomically):
            write(path, content)
            writes.append(path.name)
            if len(writes) == killed:
                raise KeyboardInterrupt

        monkeypatch.setattr(samples, "write_atomically", write_then_die)
        for killed in (1, 2):
            writes.clear()
            with pytest.raises(KeyboardInterrupt):
                posterior.recalibrate([torch.ones(4, 3)])
            found = ss.Posterior.load(tmp_path, model, link=torch.sigmoid).tensors(0)["running_mean"]
            assert torch.equal(found, before if killed == 1 else torch.ones(3))

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"thin": 0}, "thin"),
            ({"steps": -1}, "steps"),
            ({"samples": [{"step": 1, "weight": -1.0}]}, "weight of a sample"),
            ({"samples": [{"step": 1, "weight": 1.0}] * 2}, "samples"),
            ({"samples": [{"step": 1, "weight": math.nan}]}, "weight of a sample"),
        ],
    )
    def test_an_impossible_index_of_version_1_is_refused(self, tmp_path, change, field) -> None:
        model = nn.Linear(3, 4)
        filled(model, 1).save(tmp_path)
        index = tmp_path / "posterior.json"
        old = {
            name: value
            for name, value in json.loads(index.read_text()).items()
            if name not in ("sha256", "checksum", "sealed")
        }
        index.write_text(json.dumps(old | {"version": 1}))
        assert len(ss.Posterior.load(tmp_path, model)) == 1
        index.write_text(json.dumps(old | {"version": 1} | change))
        with pytest.raises(ValueError, match=re.escape(f"{index} has impossible values of {field}.")):
            ss.Posterior.load(tmp_path, model)

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            (lambda index: index.update(sha256=[]), "sha256"),
            (lambda index: index.update(sha256={"x": ["0" * 64]}), "sha256"),
            (lambda index: index.update(sha256={"1": 5}), "sha256"),
            (lambda index: index.pop("sha256"), "sha256"),
            (lambda index: index.update(link=[]), "link"),
            (lambda index: index["samples"][0].update(extra=1), "fields of a sample"),
            (lambda index: [sample.update(weight=1e308) for sample in index["samples"]], "weight of a sample"),
        ],
    )
    def test_an_impossible_index_with_a_checksum_is_refused(self, tmp_path, change, field) -> None:
        model = nn.Linear(3, 4)
        filled(model, 2).save(tmp_path)
        path = tmp_path / "posterior.json"
        index = read_record(path, SpikeSlabError)
        change(index)
        write_record(path, index)
        with pytest.raises(ValueError, match=re.escape(f"{path} has impossible values of {field}.")):
            ss.Posterior.load(tmp_path, model)

    def test_a_folder_of_version_1_that_grows_has_all_checksums(self, tmp_path) -> None:
        model = nn.Linear(3, 4)
        filled(model, 1, directory=tmp_path)
        path = tmp_path / "posterior.json"
        index = {k: v for k, v in read_record(path, SpikeSlabError).items() if k != "sha256"}
        path.write_text(json.dumps(index | {"version": 1}))
        store = DiskSamples(tmp_path)
        old = store.read_index()
        store.write(7, store.read(1))
        store.write_index(lambda: old | {"samples": [*old["samples"], {"step": 7, "weight": 1.0}]})
        assert set(read_record(path, SpikeSlabError)["sha256"]) == {"1", "7"}

    def test_a_state_of_another_model_is_refused_and_changes_nothing(self, tmp_path) -> None:
        posterior = filled(nn.Linear(3, 4), 2, directory=tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(
            ValueError, match=r"^model must have the tensors of the saved samples, but it differs in 'b"
        ):
            posterior.load_state_dict(filled(nn.Linear(3, 4, bias=False), 1).state_dict())
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert len(posterior) == 2

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda state: state["records"].pop(), "must have a record for each sample."),
            (lambda state: state["records"][0].update(weight=-1.0), "has impossible values of weight of a sample."),
            (lambda state: state["records"][0].update(step=2), "has impossible values of samples."),
        ],
    )
    def test_a_state_with_impossible_records_is_refused(self, change, message) -> None:
        posterior = filled(nn.Linear(3, 4), 2)
        state = copy.deepcopy(posterior.state_dict())
        change(state)
        with pytest.raises(ValueError, match=re.escape(f"The state of a posterior {message}")):
            posterior.load_state_dict(state)
        assert len(posterior) == 2

    def test_a_folder_without_a_posterior_is_named(self, tmp_path) -> None:
        message = f"{tmp_path} holds no posterior: it has no posterior.json."
        with pytest.raises(FileNotFoundError, match=re.escape(message)):
            ss.Posterior.load(tmp_path, nn.Linear(3, 4))


def test_mean_model_is_the_mean_of_the_weights() -> None:
    model = network()
    posterior = filled(model)
    mean = posterior.mean_model()
    for name, param in mean.named_parameters():
        expected = torch.stack([posterior.tensors(i)[name] for i in range(4)]).mean(0)
        torch.testing.assert_close(param.detach(), expected)
    assert mean[1].num_batches_tracked.dtype == torch.int64


def test_mean_model_warns_where_the_samples_have_different_zeros(recwarn) -> None:
    model = nn.Linear(4, 1, bias=False)

    def collect(posterior: ss.Posterior, values: list[float]) -> None:
        with torch.no_grad():
            model.weight.copy_(torch.tensor([values]))
        posterior.collect()

    same = ss.Posterior(model)
    collect(same, [0.0, 1.0, 0.0, 2.0])
    collect(same, [0.0, 3.0, 0.0, 2.0])
    assert same.mean_model().weight.tolist() == [[0.0, 2.0, 0.0, 2.0]]
    assert len(recwarn) == 0
    other = ss.Posterior(model)
    collect(other, [0.0, 1.0, 0.0, 2.0])
    collect(other, [0.0, 0.0, 1.0, 2.0])
    with pytest.warns(ss.SpikeSlabWarning) as record:
        other.mean_model()
    assert [str(w.message) for w in record] == [
        "The samples have different zeros: their mean has 1, each sample at least 2. Freeze the mask before "
        "collecting, or prune the mean again and recalibrate it."
    ]
    assert record[0].filename == __file__
