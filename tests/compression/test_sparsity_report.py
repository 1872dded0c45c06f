"""The report adds up, and says smaller and faster apart."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import save
from torch import nn
from torch.nn.utils import prune

import spikeslab as ss
from spikeslab.compression import SparsityReport, compact, save_sparse
from spikeslab.compression.latency import Latency
from spikeslab.paper.cifar10.networks import ResNet
from spikeslab.report.figures import render_png


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    model = ResNet(8)
    ss.Pruner(ss.select_weights(model, "layer*.conv*.weight"), 0.9).step()
    with torch.no_grad():
        model.layer2[0].conv1.weight[:3] = 0.0
        model.bn1.bias.fill_(1.0)
    return model


@pytest.fixture(scope="module")
def report(network: nn.Module) -> SparsityReport:
    return SparsityReport.of(network, torch.zeros(1, 3, 8, 8), batches=(1, 2), rounds=1)


def timed(**seconds: tuple[float, float]) -> SparsityReport:
    latencies = tuple(
        Latency(name, batch, pair[i]) for i, batch in enumerate((1, 64)) for name, pair in seconds.items()
    )
    sizes = {"dense": 1000, "dense, zipped": 500, "sparse fp32": 100, "sparse fp16": 50, "sparse int8": 40}
    return SparsityReport((), 5, 4, sizes, latencies, dict.fromkeys(seconds), threads=2)


def test_totals_are_sums_of_rows(network: nn.Module, report: SparsityReport) -> None:
    zeros = ss.measure_sparsity(ss.select_weights(network, "layer*.conv*.weight"), network)
    assert report.weights == zeros.network_total
    assert report.nonzeros == zeros.network_total - zeros.network_zeros
    *layers, other, sparse, total = report.table().rows
    assert len(layers) == sum(parameter.ndim >= 2 for parameter in network.parameters())
    for key in ("weights", "nonzeros"):
        assert total[key] == other[key] + sum(row[key] for row in layers)
    for key in ("macs", "nonzero_macs", "empty"):
        assert total[key] == sum(row[key] for row in layers)
    assert (total["layer"], total["weights"]) == ("whole network", report.weights)
    assert (sparse["weights"], sparse["nonzeros"]) == (zeros.sparse_total, zeros.sparse_total - zeros.sparse_zeros)
    assert sparse["zeros"] == pytest.approx(100 * zeros.sparse)


def test_zeros_are_not_multiplied_in_the_last_column(report: SparsityReport) -> None:
    layers = {layer.name: layer for layer in report.layers}
    layer = layers["layer2.0.conv1.weight"]
    assert layer.positions == 16
    assert layer.nonzero_macs == 16 * layer.nonzeros < layer.macs == 16 * 16 * 32 * 9
    assert layer.empty_channels >= 3
    assert not layers["conv1.weight"].sparse
    assert layer.sparse


def test_bytes_are_those_of_the_files(network: nn.Module, report: SparsityReport, tmp_path) -> None:
    assert report.files["dense"] == len(save(network.state_dict()))
    for values in ("fp32", "fp16", "int8"):
        file = save_sparse(network, tmp_path / values, values)
        assert report.files[f"sparse {values}"] == file.stat().st_size
    assert report.files["sparse int8"] < report.files["sparse fp16"] < report.files["sparse fp32"]


def test_removed_channels_are_not_in_the_files_of_the_compacted_network(
    network: nn.Module, report: SparsityReport, tmp_path
) -> None:
    small = compact(network, torch.zeros(1, 3, 8, 8)).model
    assert report.files["compacted"] == len(save(small.state_dict())) < report.files["dense"]
    file = save_sparse(small, tmp_path / "small", "fp32")
    assert report.files["compacted, sparse fp32"] == file.stat().st_size
    assert "; without its dead channels " in report.words()[0]


def test_a_network_without_dead_channels_has_no_files_of_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)).eval()
    found = SparsityReport.of(model, torch.zeros(1, 1, 4, 4), batches=(1,), rounds=1)
    assert "compacted" in found.variant_macs
    assert "compacted" not in found.files
    assert "dead channels" not in found.words()[0]


def test_a_state_dict_without_its_module_gives_the_same_counts(network: nn.Module, report: SparsityReport) -> None:
    other = SparsityReport.of_tensors(network.state_dict())
    assert (other.weights, other.nonzeros) == (report.weights, report.nonzeros)
    assert other.files.items() <= report.files.items()
    assert other.macs is None
    assert other.words()[1].startswith("Faster: not measured; zeros make no dense kernel faster")
    assert [table.title for table in other.tables()] == ["Sparsity", "Bytes on disk"]


def test_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    report = SparsityReport.of(model, torch.zeros(1, 4), variants={})
    assert report.weights == SparsityReport.of_tensors(model.state_dict()).weights == 16


def test_masks_of_torch_count_as_zeros(model: nn.Module) -> None:
    prune.l1_unstructured(model[0], "weight", amount=12)
    report = SparsityReport.of(model, torch.zeros(1, 6), variants={})
    assert report.nonzeros == report.weights - 12


def test_an_original_of_other_shapes_is_what_is_compared_with() -> None:
    small, large = nn.Linear(4, 2), nn.Linear(100, 100)
    report = SparsityReport.of(small, torch.zeros(1, 4), large, variants={})
    assert report.files["dense"] == len(save(large.state_dict()))
    assert report.weights == 10


def test_the_record_is_json(report: SparsityReport) -> None:
    record = json.loads(report.json())
    assert record["nonzeros"] == report.nonzeros
    assert record["sparse_weights"] == sum(layer["weights"] for layer in record["layers"] if layer["sparse"])
    assert [(item["variant"], item["batch"]) for item in record["latencies"]] == [
        (variant, batch) for batch in (1, 2) for variant in ("dense", "BN folded", "finalised", "compacted")
    ]
    macs = record["variant_macs"]
    assert macs["dense"] == macs["BN folded"] == macs["finalised"] == report.macs
    assert macs["compacted"] <= report.macs


def test_smaller_and_faster_are_two_sentences() -> None:
    smaller, faster = timed(dense=(1.0, 2.0), finalised=(1.05, 1.9), compacted=(0.5, 0.8), folded=(0.95, 1.6)).words()
    assert smaller == (
        "Smaller: yes, 10.0 x on disk without loss (100 bytes instead of 1,000), 20.0 x with fp16 values, 25.0 x with "
        "int8."
    )
    assert faster == (
        "Faster than dense on 2 threads: finalised no, 0.95 x at batch 1 and 1.05 x at batch 64; compacted yes, 2.00 x "
        "at batch 1 and 2.50 x at batch 64; folded in part, 1.05 x at batch 1 and 1.25 x at batch 64; zeros make no "
        "dense kernel faster, removed channels and folded normalisation do."
    )


def test_the_table_of_times() -> None:
    rows = timed(dense=(1.0, 2.0), compacted=(0.5, 0.8)).tables()[2].rows
    assert [(row["variant"], row["batch"], row["milliseconds"], row["speedup"]) for row in rows] == [
        ("dense", 1, 1000.0, 1.0),
        ("compacted", 1, 500.0, 2.0),
        ("dense", 64, 2000.0, 1.0),
        ("compacted", 64, 800.0, 2.5),
    ]


def test_unknown_weights_are_refused(network: nn.Module) -> None:
    message = "weights must be names of weight matrices of the model, but got 'layer9'."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SparsityReport.of(network, torch.zeros(1, 3, 8, 8), weights=["layer9"], variants={})


def test_the_chart_shows_the_numbers(report: SparsityReport) -> None:
    figure = report.figure()
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert len(titles) == 3
    assert any(title.startswith("Smaller? ") for title in titles)
    assert sum("x smaller" in text for text in texts) == 6
    assert sum(" ms)" in text for text in texts) == 8
    assert render_png(figure).startswith(b"\x89PNG")
