"""``compress(structure="channels")``: whole channels go, all samples share them, and ``compact`` takes them out."""

from __future__ import annotations

import pytest
import torch
from small import batches, data, network
from torch import nn
from torch.nn import functional as F

import spikeslab as ss
from spikeslab.compression import METHODS, Compressed, Settings, compact, compress
from spikeslab.compression.methods import WEIGHTS_ONLY
from spikeslab.compression.problem import ChannelProblem, spike_scale
from spikeslab.compression.settings import Timeline
from spikeslab.functional import mixture
from spikeslab.priors import GroupSpikeSlab
from spikeslab.training import TensorBatches


def small(model: nn.Module | None = None, train: object = None, **arguments: object) -> Compressed:
    options = {"sparsity": 0.5, "epochs": 4, "samples": 3, "progress": False, "report": False} | arguments
    options["structure"] = arguments.get("structure", "channels")
    return compress(network() if model is None else model, batches() if train is None else train, **options)


def dead(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    return ~tensors[name].flatten(1).any(1)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in WEIGHTS_ONLY])
def test_every_method_for_channels_ends_on_the_channels_asked_for(method: str) -> None:
    result = small(method=method, settings=Settings(v0=0.5, v1=20.0))
    for name in ("0.weight", "3.weight"):
        gone = [dead(result.posterior.tensors(index), name) for index in range(3)]
        assert int(gone[0].sum()) == 8
        assert all(torch.equal(mask, gone[0]) for mask in gone)
    assert result.report["channels"] == {"0.weight": {"all": 16, "living": 8}, "3.weight": {"all": 16, "living": 8}}
    assert result.report["structure"] == "channels"


def test_a_dead_channel_is_zero_for_every_input_and_none_is_kept_to_carry_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(200, 2),
    )  # fmt: skip
    nn.init.uniform_(model[1].bias, 0.5, 1.0)
    train = TensorBatches(3.0 + torch.randn(32, 1, 5, 5), torch.arange(32) % 2, batch_size=8)
    result = small(model, train)
    gone = dead(result.model.state_dict(), "0.weight")
    outputs = result.model[:2](torch.randn(4, 1, 5, 5))
    assert int(gone.sum()) == 4
    assert bool((outputs[:, gone] == 0).all())
    narrow = compact(result.model, torch.zeros(1, 1, 5, 5)).model
    assert (narrow[0].out_channels, narrow[3].in_channels, narrow[3].out_channels) == (4, 4, 4)
    for index in range(3):
        sample = result.posterior.sample(index)
        assert bool((sample.eval()[:2](torch.randn(4, 1, 5, 5))[:, gone] == 0).all())


def test_the_prior_is_on_what_decides_a_channel() -> None:
    model, settings = network(), Settings(temperature=0.1)
    followers = {"0.weight": "1", "3.weight": None}
    weights = ss.select_weights(model, "[03].weight")
    problem = ChannelProblem(model, weights, 0.5, None, settings, Timeline(settings, 60), 96, 0, followers)
    prior = METHODS["a-sghmc-sa"](problem).sampler.prior
    assert isinstance(prior, GroupSpikeSlab)
    assert prior.weights["0.weight"] is model[1].weight
    assert prior.weights["3.weight"] is model[3].weight
    assert METHODS["gmp"](problem).sampler.prior is None


@pytest.mark.parametrize("size", [1, 9, 576])
def test_the_spike_is_even_with_the_slab_at_the_size_below_which_channels_go(size: int) -> None:
    v0 = spike_scale(0.05, v1=1.0, delta=0.4, size=size)
    norms = torch.tensor([0.04, 0.05, 0.06]) * size**0.5
    (rho,) = mixture.rho([norms], v0=v0, v1=1.0, sigma=1.0, deltas=[0.4], sizes=[size])
    fall = size * 0.05**2 / 2.0  # of the log density of the slab, which the rule leaves out
    assert float(rho[1].logit()) == pytest.approx(-fall, abs=1e-3)
    assert rho[0] < 0.5 < rho[2]


def test_layers_can_be_chosen_or_given_with_their_normalisation() -> None:
    assert list(small(weights="0.*").report["channels"]) == ["0.weight"]
    result = small(weights={"0.weight": "1"})
    gone = dead(result.model.state_dict(), "0.weight")
    assert bool((result.model[1].bias[gone] == 0).all())


def test_batches_of_any_kind_leave_the_compacted_size_open() -> None:
    x, y = data()
    result = small(train=[{"x": x, "y": y}], loss=lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), num_data=96)
    assert "compacted" not in result.report
    assert sum(layer["living"] for layer in result.report["channels"].values()) == 16


def frozen(*parts: str) -> nn.Module:
    model = network()
    for part in parts:
        model.get_submodule(part).requires_grad_(False)
    return model


@pytest.mark.parametrize("part", ["0", "1"])
def test_a_frozen_layer_keeps_its_channels(part: str) -> None:
    model = frozen(part)
    result = small(model)
    assert list(result.report["channels"]) == ["3.weight"]
    before, after = model.get_submodule(part).parameters(), result.model.get_submodule(part).parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_report_that_fails_does_not_cost_the_network(tmp_path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("spikeslab.compression.result.compact", fail)
    with pytest.warns(
        ss.SpikeSlabWarning, match=r"cannot be compacted for the report: IndexError: list index out of range\.$"
    ):
        result = small(folder=tmp_path / "run")
    assert "compacted" not in result.report
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_features_that_a_pooling_joins_are_no_channels() -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.MaxPool1d(2), nn.ReLU(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    result = small(model)
    assert list(result.report["channels"]) == ["3.weight"]
    assert "compacted" in result.report


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x if x.sum() > 0 else -x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"structure": "rows"}, "structure must be one of 'weights', 'channels', but got 'rows'."),
        ({"method": "dpf"}, "method must be one that prunes channels with structure='channels', but got 'dpf'."),
        ({"method": "prior-annealing"}, "method must be one that prunes channels with structure='channels', but got "
         "'prior-annealing'."),
        ({"weights": "5.weight"}, "weights must name layers with free channels, '0.weight', '3.weight', but got "
         "'5.weight'."),
        ({"weights": "*.bias"}, "weights must name layers with free channels, '0.weight', '3.weight', but got none."),
        ({"weights": {"0.weight": "2"}}, "weights must give '0.weight' a batch normalisation with a scale and a shift "
         "for each of its 16 channels, or None, but got '2'."),
        ({"model": nn.Linear(4, 2)}, "model must have a layer with free channels, but got none: name one in Python, "
         "as in {'conv1.weight': 'bn1'}."),
        ({"model": frozen("0", "4", "3")}, "model must have a trained layer with free channels, but '0.weight', "
         "'3.weight' has requires_grad=False, or its batch normalisation has."),
        ({"model": frozen("1"), "weights": "0.weight"}, "weights must be trained, but '0.weight' has "
         "requires_grad=False, or its batch normalisation has."),
        ({"model": frozen("1"), "weights": {"0.weight": "1"}}, "weights must be trained, but '0.weight' has "
         "requires_grad=False, or its batch normalisation has."),
        ({"model": Untraceable()}, "model must be one that torch.fx can trace, but tracing stopped with 'symbolically "
         "traced variables cannot be used as inputs to control flow': name its layers in Python, as in "
         "{'conv1.weight': 'bn1'}."),
        ({"sparsity": 0.9, "settings": Settings(floor=4)}, "sparsity must be at most 0.75, since 2 layers must keep 8 "
         "channels in all, but got 0.9, which is 29 zeros of 32."),
        ({"sparsity": 0.9, "settings": Settings(floor=0.25)}, "sparsity must be at most 0.75, since 2 layers must keep "
         "8 channels in all, but got 0.9, which is 29 zeros of 32."),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        small(**arguments)
    assert str(caught.value) == message


def test_half_of_the_channels_of_a_digits_network_go_for_real() -> None:
    pytest.importorskip("sklearn")
    from spikeslab.paper.demo import load_digits

    digits = load_digits()
    train = TensorBatches(digits.x_train.flatten(1), digits.y_train, batch_size=64)
    x_test = digits.x_test.flatten(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(6):
        for x, y in train.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    result = small(model, train, val_loader=[(x_test, digits.y_test)], epochs=6)
    assert result.evaluation["dense"]["accuracy"] > 0.95
    assert result.evaluation["sparse"]["accuracy"] > result.evaluation["dense"]["accuracy"] - 0.03
    assert result.evaluation["average"]["accuracy"] > result.evaluation["dense"]["accuracy"] - 0.03
    compacted = compact(result.model, x_test[:1])
    with torch.no_grad():
        torch.testing.assert_close(compacted.model(x_test), result.model(x_test), rtol=1e-4, atol=1e-4)
    before, after = compacted.report.parameters
    assert after < 0.4 * before
    assert result.report["compacted"]["parameters"] == {"before": before, "after": after}
    macs = dict(zip(("before", "after"), compacted.report.multiply_adds, strict=True))
    assert result.report["compacted"]["multiply_adds"] == macs
