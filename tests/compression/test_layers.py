"""Which weights become sparse."""

from __future__ import annotations

import pytest
import torch
from small import compress_channels, dead, frozen, network
from torch import nn
from torch.nn.utils import prune

from spikeslab.compression.layers import weight_names
from spikeslab.errors import SpikeSlabWarning
from spikeslab.paper.cifar10 import resnet20


def test_all_convolutions_and_linear_layers() -> None:
    names = weight_names(resnet20())
    assert len(names) == 22, "19 of 3 x 3, both shortcuts and the last layer"
    assert {"conv1.weight", "fc.weight"} < set(names)
    assert all(".bn" not in name for name in names)
    assert weight_names(network()) == ["0.weight", "3.weight", "5.weight"]


def test_globs_names_and_parameters() -> None:
    model = network()
    assert weight_names(model, "*weight") == ["0.weight", "3.weight", "5.weight"]
    assert weight_names(model, ["5.weight", "1.*"]) == ["1.weight", "1.bias", "5.weight"]
    assert weight_names(model, [model[5].weight, model[3].weight]) == ["3.weight", "5.weight"]


def test_a_shared_weight_is_one_and_that_of_an_embedding_stays_dense() -> None:
    model = nn.Sequential(nn.Embedding(40, 4), *(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 40, bias=False))
    model[2].weight = model[1].weight
    model[4].weight = model[0].weight
    with pytest.warns(SpikeSlabWarning, match=r"^'0\.weight' stays dense, 78% of the parameters"):
        assert weight_names(model) == ["1.weight", "3.weight"]


def test_frozen_layers_are_passed_over_or_refused() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    model[1].weight.requires_grad_(False)
    assert weight_names(model) == ["0.weight", "2.weight"]
    with pytest.raises(ValueError, match=r"^weights must be trained, but '1\.weight' has requires_grad=False\.$"):
        weight_names(model, "1.weight")


def test_parameters_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^weights must be globs or parameters of the model, but some are neither\.$"):
        weight_names(network(), [network()[3].weight])


class Attending(nn.Module):
    def __init__(self, **options: int) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True, **options)
        self.recurrent = nn.LSTM(8, 8, proj_size=4)
        self.cell = nn.GRUCell(8, 8)


def test_matrices_of_attention_and_recurrent_layers() -> None:
    recurrent = ["recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "recurrent.weight_hr_l0"]
    ends = ["attention.out_proj.weight", *recurrent, "cell.weight_ih", "cell.weight_hh"]
    assert sorted(weight_names(Attending())) == sorted(["first.weight", "attention.in_proj_weight", *ends])
    parts = [f"attention.{part}_proj_weight" for part in "qkv"]
    assert sorted(weight_names(Attending(kdim=4, vdim=4))) == sorted(["first.weight", *parts, *ends])


class ByHand(nn.Module):
    """Attention with matrices of its own, as Hugging Face's Conv1D has them, and positions that are added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.value = (nn.Parameter(torch.randn(width, 8)) for _ in range(2))
        self.positions = nn.Parameter(torch.zeros(1, 4, 8))


def test_matrices_by_hand_are_pruned_where_they_are_most_of_the_network() -> None:
    model = nn.Sequential(ByHand(width=9), nn.Linear(16, 8), nn.Embedding(100, 8), nn.LayerNorm([8, 8]))
    with pytest.warns(SpikeSlabWarning, match=r"^'0\.positions', '2\.weight' stays dense, 67% of"):
        assert weight_names(model) == ["0.query", "0.value", "1.weight"]
    with pytest.warns(SpikeSlabWarning) as caught:
        assert weight_names(nn.Sequential(ByHand(width=8), nn.Linear(16, 8))) == ["1.weight"], "as many in both"
    assert [str(warning.message) for warning in caught] == [
        "'0.query', '0.value', '0.positions' stays dense, 54% of the parameters: by default only matrices of layers "
        "are pruned, and none of embeddings. weights can name others."
    ]
    assert weight_names(ByHand(width=200)) == ["query", "value"], "and where there is nothing else"


def test_what_is_frozen_or_normalises_or_has_no_shape_yet_is_no_forgotten_matrix() -> None:
    layers = [nn.Linear(8, 8) for _ in range(3)]
    frozen = nn.Embedding(100, 8).requires_grad_(False)
    assert weight_names(nn.Sequential(frozen, nn.LayerNorm([30, 8]), *layers)) == [
        f"{index}.weight" for index in (2, 3, 4)
    ]
    assert weight_names(nn.Sequential(*(nn.LazyLinear(8, bias=False) for _ in range(2)))) == ["0.weight", "1.weight"]


def test_layers_can_be_chosen_or_given_with_their_normalisation() -> None:
    assert list(compress_channels(weights="0.*").report["channels"]) == ["0.weight"]
    result = compress_channels(weights={"0.weight": "1"})
    gone = dead(result.model.state_dict(), "0.weight")
    assert bool((result.model[1].bias[gone] == 0).all())


@pytest.mark.parametrize("part", ["0", "1"])
def test_a_frozen_layer_keeps_its_channels(part: str) -> None:
    model = frozen(part)
    result = compress_channels(model)
    assert list(result.report["channels"]) == ["3.weight"]
    before, after = model.get_submodule(part).parameters(), result.model.get_submodule(part).parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_features_that_a_pooling_joins_are_no_channels() -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.MaxPool1d(2), nn.ReLU(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    result = compress_channels(model)
    assert list(result.report["channels"]) == ["3.weight"]
    assert "compacted" in result.report


def test_a_weight_that_is_computed_is_passed_over() -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    with pytest.warns(SpikeSlabWarning, match=r"^'0\.weight_orig' stays dense, 17% of the parameters"):
        assert weight_names(model) == ["2.weight", "4.weight"]
