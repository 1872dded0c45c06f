"""compress prunes what compact can remove: heads, feed-forward units, stages; what it cannot is refused before."""

from __future__ import annotations

import pytest
import torch
from small import compress_channels, compress_small
from structures import ATTENTIONS, Transformer, mobilenet
from torch import Tensor, nn

from spikeslab.compression import Settings, compact
from spikeslab.errors import ArgumentValueError, SpikeSlabWarning
from spikeslab.training import TensorBatches


def sentences() -> TensorBatches:
    torch.manual_seed(0)
    return TensorBatches(torch.randn(32, 6, 5), torch.arange(32) % 4, batch_size=8)


@pytest.mark.parametrize("method", ["a-sghmc-sa", "gmp", "l1", "sghmc-sa"])
def test_heads_and_units_of_a_transformer_go_for_real(method) -> None:
    torch.manual_seed(0)
    model = Transformer(ATTENTIONS["projected"](), gated=True)
    settings = Settings(v0=0.05, v1=2.0)
    result = compress_channels(model, sentences(), method=method, sparsity=12 / 23, settings=settings)
    assert result.report["channels"] == {
        "attention.q.weight": {"all": 3, "living": 1}, "feed.up.weight": {"all": 20, "living": 10},
    }  # fmt: skip
    names = [layer["name"] for layer in result.report["layers"]]
    assert names == [
        *(f"attention.{name}.weight" for name in ("q", "k", "v", "out")),
        *(f"feed.{name}.weight" for name in ("up", "gate")),
    ]
    x = torch.randn(3, 4, 5)
    small = compact(result.model, x)
    with torch.no_grad():
        torch.testing.assert_close(small.model(x), result.model(x))
    assert small.model.attention.q.out_features == 4
    assert small.model.feed.up.out_features == 10
    assert result.report["compacted"]["parameters"] == dict(
        zip(("before", "after"), small.report.parameters, strict=True)
    )


def test_globs_choose_families_by_any_of_their_weights() -> None:
    for weights in ("attention.out.*", "attention.v.weight"):
        result = compress_channels(
            Transformer(ATTENTIONS["projected"]()), sentences(), weights=weights, sparsity=1 / 3, method="gmp"
        )
        assert result.report["channels"] == {"attention.q.weight": {"all": 3, "living": 2}}


def test_stages_and_hidden_channels_of_a_mobile_network_go_together() -> None:
    train = TensorBatches(torch.randn(16, 3, 16, 16), torch.arange(16) % 3, batch_size=8)
    result = compress_channels(mobilenet(), train, method="gmp", sparsity=0.5)
    assert result.report["channels"]["3.widen.0.weight"] == {"all": 16, "living": 8}
    assert result.report["channels"]["0.weight"] == {"all": 8, "living": 4}
    x = torch.randn(2, 3, 12, 20)
    small = compact(result.model, x)
    with torch.no_grad():
        torch.testing.assert_close(small.model(x), result.model(x), rtol=1e-4, atol=1e-4)
    assert small.model[0].out_channels == 4
    assert small.model[3].depthwise[0].groups == 8


class Fixed(nn.Module):
    """The code fixes the number of units of the first layer, and torch.fx cannot trace it."""

    def __init__(self, both: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 6), nn.Linear(6, 7), nn.Linear(7, 4)
        self.both = both

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.mean(1)).relu()
        if len(x) > 0:  # not for symbols
            x = x.view(len(x), 6)
        x = self.second(x).relu()
        return self.last(x.view(len(x), 7) if self.both else x)


def test_what_compact_could_not_remove_is_left_out_with_a_warning_or_refused_by_name() -> None:
    with pytest.warns(SpikeSlabWarning, match=r"^'first.weight' keep their units: the code of the model fixes"):
        result = compress_channels(Fixed(), sentences(), method="gmp", sparsity=0.4)
    assert list(result.report["channels"]) == ["second.weight"]
    with pytest.raises(ArgumentValueError) as error:
        compress_channels(Fixed(), sentences(), weights="first.weight")
    assert str(error.value) == (
        "weights must name layers with free channels, 'second.weight', but got 'first.weight': the code of the model "
        "fixes how many units 'first.weight' has."
    )
    with pytest.raises(ArgumentValueError) as error:
        compress_channels(Fixed(both=True), sentences())
    assert str(error.value) == (
        "model must have a layer with free channels, but its code fixes how many units 'first.weight', 'second.weight' "
        "has: read sizes from attributes, or write -1 in a view."
    )


def test_a_hugging_face_model_loses_heads_and_units() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, num_labels=2, **sizes))
    batches = [
        {
            "input_ids": torch.randint(50, (4, 9)),
            "attention_mask": torch.ones(4, 9).long(),
            "labels": torch.arange(4) % 2,
        }
        for _ in range(4)
    ]
    result = compress_channels(model, batches, num_data=16, method="gmp", sparsity=1 / 3)
    layers = [f"bert.encoder.layer.{layer}" for layer in (0, 1)]
    heads = {f"{layer}.attention.self.query.weight": {"all": 3, "living": 2} for layer in layers}
    assert {name: count for name, count in result.report["channels"].items() if "query" in name} == heads
    inputs = {name: batches[0][name] for name in ("input_ids", "attention_mask")}
    small = compact(result.model, inputs).model
    assert type(small) is type(model)
    assert small.bert.encoder.layer[0].attention.self.query.out_features == 16
    with torch.no_grad():
        torch.testing.assert_close(small(**inputs).logits, result.model(**inputs).logits)


def test_widths_that_the_hardware_likes() -> None:
    model = Transformer(ATTENTIONS["projected"]())
    result = compress_channels(model, sentences(), settings=Settings(multiple=8), sparsity=0.4, method="gmp", lr=0.05)
    assert result.report["channels"] == {
        "attention.q.weight": {"all": 3, "living": 2}, "feed.up.weight": {"all": 20, "living": 8},
    }  # fmt: skip
    with pytest.raises(ArgumentValueError) as error:
        compress_small(settings=Settings(multiple=8))
    assert str(error.value) == (
        "multiple must be 1 with structure='weights', which leaves all widths as they are, but got 8."
    )
    with pytest.raises(ArgumentValueError, match=r"^multiple must be an integer >= 1, but got 0\.$"):
        Settings(multiple=0)


def test_units_of_a_recurrent_network_go() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTM(5, 12, num_layers=2, batch_first=True), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0][:, -1])

    settings = Settings(v0=0.05, v1=2.0)
    result = compress_channels(Last(), sentences(), settings=settings)
    assert result.report["channels"] == {"cell.weight_ih_l0": {"all": 12, "living": 6}}
    x = torch.randn(3, 4, 5)
    small = compact(result.model, x).model
    assert small.cell.hidden_size == 6
    with torch.no_grad():
        torch.testing.assert_close(small(x), result.model(x))
