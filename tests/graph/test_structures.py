"""Whole structures are gone after compacting: feed-forward units, heads, groups of a convolution, residual channels."""

from __future__ import annotations

import pickle

import pytest
import torch
from pruned_networks import deviation, kill, randomise, widths
from structures import ATTENTIONS, HIDDEN, WIDTH, ResNetA, TorchAttention, Transformer, mobilenet, resnext
from torch import Tensor, nn

from spikeslab.compression import compact
from spikeslab.graph.attention import HeadAttention

EXAMPLE = torch.zeros(2, 7, 5).double()


def transformer(attention: str, gated: bool = False) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(ATTENTIONS[attention](), gated).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim:
                parameter.normal_(0.0, 0.5)
    return model


def output_layer(attention: nn.Module) -> nn.Linear:
    return attention.mha.out_proj if isinstance(attention, TorchAttention) else attention.out


@torch.no_grad()
def kill_head(attention: nn.Module, head: int = 1) -> None:
    """Nothing reads the head any more."""
    out = output_layer(attention)
    size = out.in_features // 3
    out.weight[:, head * size : (head + 1) * size] = 0.0


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("side", ["rows", "columns"])
def test_feed_forward_units_on_tokens_go(gated, side) -> None:
    model = transformer("torch", gated)
    with torch.no_grad():
        if side == "rows":
            model.feed.up.weight[3:9], model.feed.up.bias[3:9] = 0.0, 0.0
        else:
            model.feed.down.weight[:, 3:9] = 0.0
    result = compact(model, EXAMPLE)
    left = HIDDEN - 6
    assert widths(result)["feed.up"] == (WIDTH, left)
    assert widths(result)["feed.down"] == (left, WIDTH)
    assert not gated or widths(result)["feed.gate"] == (WIDTH, left)
    assert type(result.model) is Transformer
    assert deviation(model, result.model, torch.randn(3, 9, 5).double()) < 1e-12


def test_the_constant_of_a_unit_that_goes_moves_into_the_bias() -> None:
    model = transformer("torch")
    with torch.no_grad():
        model.feed.up.weight[3:9] = 0.0  # the biases stay: gelu(bias) for every token
    result = compact(model, EXAMPLE)
    assert widths(result)["feed.up"] == (WIDTH, HIDDEN - 6)
    assert deviation(model, result.model, torch.randn(3, 9, 5).double()) < 1e-12


def projection_rows(model: nn.Module) -> int:
    """Number of rows of all projections into the heads."""
    attention = model.get_submodule("attention")
    names = ("q", "k", "v", "qkv", "kv")
    if isinstance(attention, TorchAttention) or hasattr(attention, "mha"):
        return len(attention.mha.in_proj_weight)
    return sum(len(getattr(attention, name).weight) for name in names if hasattr(attention, name))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_head_that_nothing_reads_goes_with_its_queries_keys_and_values(name) -> None:
    model = transformer(name)
    kill_head(model.attention)
    result = compact(model, EXAMPLE)
    assert projection_rows(result.model) == 2 * projection_rows(model) // 3
    width = output_layer(result.model.get_submodule("attention")).in_features
    assert width == 2 * output_layer(model.attention).in_features // 3
    for shape in ((3, 9, 5), (1, 2, 5)):
        assert deviation(model, result.model, torch.randn(shape).double()) < 1e-12
    again = compact(result.model, EXAMPLE)
    assert again.report.parameters == (result.report.parameters[1],) * 2


@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name != "grouped"])
def test_a_head_of_zero_values_goes_and_others_stay(name) -> None:
    model = transformer(name)
    attention = model.attention
    with torch.no_grad():
        layer = attention.mha if isinstance(attention, TorchAttention) else getattr(attention, "qkv", None)
        weight = layer.in_proj_weight if isinstance(attention, TorchAttention) else (layer or attention.v).weight
        bias = layer.in_proj_bias if isinstance(attention, TorchAttention) else (layer or attention.v).bias
        for tensor in (weight, bias):
            if tensor is not None:
                tensor[-12:-8] = 0.0  # the values of the first head
        output_layer(attention).weight[:, 4:7] = 0.0  # three quarters of the second are not a head
    result = compact(model, EXAMPLE)
    assert projection_rows(result.model) == 2 * projection_rows(model) // 3
    assert deviation(model, result.model, torch.randn(3, 9, 5).double()) < 1e-12


def test_heads_that_share_keys_go_together_or_not_at_all() -> None:
    model = transformer("grouped")
    with torch.no_grad():
        model.attention.out.weight[:, :4] = 0.0  # one of the two that share
    result = compact(model, EXAMPLE)
    assert widths(result)["attention.q"] == (WIDTH, 24)
    assert deviation(model, result.model, torch.randn(3, 9, 5).double()) < 1e-12


class Masked(nn.Module):
    """Torch's attention function with fewer keys than queries, or with a mask for each head."""

    def __init__(self, keys: int, mask_heads: int) -> None:
        super().__init__()
        self.heads, self.keys = 6, keys
        self.q, self.kv, self.out = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 8 * keys), nn.Linear(24, WIDTH)
        self.bias = nn.Parameter(torch.randn(1, mask_heads, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, 4)).transpose(1, 2)
        k, v = self.kv(x).chunk(2, dim=-1)
        k, v = k.unflatten(-1, (self.keys, 4)).transpose(1, 2), v.unflatten(-1, (self.keys, 4)).transpose(1, 2)
        mask = self.bias + torch.arange(x.shape[1], dtype=x.dtype)
        result = nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=self.keys < self.heads)
        return self.out(result.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("keys", "mask_heads", "left"), [(3, 1, 16), (6, 1, 16), (6, 6, 24)])
def test_keys_for_several_heads_go_with_them_and_a_mask_for_each_head_keeps_all(keys, mask_heads, left) -> None:
    torch.manual_seed(0)
    model = Transformer(Masked(keys, mask_heads)).double().eval()
    with torch.no_grad():
        model.attention.out.weight[:, 8:16] = 0.0  # two heads, which share a key if there are three
    result = compact(model, EXAMPLE)
    assert widths(result)["attention.q"] == (WIDTH, left)
    assert widths(result)["attention.kv"] == (WIDTH, 8 * keys * left // 24)
    assert deviation(model, result.model, torch.randn(3, 9, 5).double()) < 1e-12


def test_a_size_that_no_attribute_holds_keeps_the_heads_of_a_recording() -> None:
    class Literal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 36), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
            return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    model = Transformer(Literal()).double().eval()
    kill_head(model.attention)
    with torch.no_grad():
        model.feed.down.weight[:, :7] = 0.0
    result = compact(model, EXAMPLE)
    assert widths(result)["attention.qkv"] == (WIDTH, 36)
    assert widths(result)["feed.up"] == (WIDTH, HIDDEN - 7)
    assert any("'attention.qkv' stay: forward fixes their number" in note for note in result.report.notes)
    assert deviation(model, result.model, torch.randn(3, 9, 5).double()) < 1e-12


def test_the_class_and_attributes_of_attention_by_hand_stay() -> None:
    model = transformer("projected")
    kill_head(model.attention)
    smaller = compact(model, EXAMPLE).model
    assert type(smaller) is Transformer  # its number of heads is an attribute, which is changed
    assert (smaller.attention.heads, smaller.attention.size) == (2, 4)
    assert model.attention.heads == 3
    torch.testing.assert_close(pickle.loads(pickle.dumps(smaller))(EXAMPLE), model(EXAMPLE))


def test_attention_weights_that_are_read_keep_the_heads() -> None:
    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mha = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            result, weights = self.mha(x, x, x)
            return result, weights

    model = Returned().eval()
    with torch.no_grad():
        model.mha.out_proj.weight[:, :4] = 0.0
    assert type(compact(model, torch.zeros(2, 5, 12)).model.mha) is nn.MultiheadAttention


def test_a_mask_for_each_head_keeps_the_heads_and_does_not_fit_fewer() -> None:
    class PerHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mha = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.mha(x, x, x, attn_mask=mask.flatten(0, 1), need_weights=False)[0]

    model = PerHead().eval()
    with torch.no_grad():
        model.mha.out_proj.weight[:, :4] = 0.0
    inputs = (torch.zeros(2, 5, 12), torch.zeros(2, 3, 5, 5))
    assert type(compact(model, inputs).model.mha) is nn.MultiheadAttention
    with pytest.raises(ValueError) as error:
        HeadAttention(12, 3)(*[torch.zeros(5, 2, 12)] * 3, attn_mask=torch.zeros(6, 5, 5))
    assert str(error.value) == (
        "attn_mask must have the shape (targets, sources): some of the heads are gone, but got (6, 5, 5)."
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_transformer_layers_of_torch_lose_heads_and_units(norm_first) -> None:
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, norm_first=norm_first)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(12, 2)).double().eval()
    with torch.no_grad():
        for block in model[0].layers:
            block.self_attn.out_proj.weight[:, 4:8] = 0.0
            block.linear1.weight[:5], block.linear1.bias[:5] = 0.0, 0.0
    smaller = compact(model, torch.zeros(2, 6, 12).double()).model
    assert [block.self_attn.num_heads for block in smaller[0].layers] == [2, 2]
    assert [block.linear1.out_features for block in smaller[0].layers] == [15, 15]
    with torch.no_grad():  # where torch would take its fused kernels
        assert deviation(model, smaller, torch.randn(3, 4, 12).double()) < 1e-12


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("masks", ["none", "attention", "padding", "both", "numbers"])
def test_the_attention_of_some_heads_is_that_of_torch(batch_first, bias, masks) -> None:
    torch.manual_seed(0)
    whole = nn.MultiheadAttention(12, 3, batch_first=batch_first, bias=bias, kdim=7, vdim=5).double().eval()
    heads = HeadAttention(12, 3, batch_first=batch_first, bias=bias, kdim=7, vdim=5).double().eval()
    heads.load_state_dict(whole.state_dict())
    sizes = [(2, 4, 12), (2, 6, 7), (2, 6, 5)]
    query, key, value = (torch.randn(size).double() for size in sizes)
    if not batch_first:
        query, key, value = (part.transpose(0, 1) for part in (query, key, value))
    options = {
        "none": {},
        "attention": {"attn_mask": torch.ones(4, 6).triu(1).bool()},
        "padding": {"key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])},
        "both": {
            "attn_mask": torch.ones(4, 6).triu(1).bool(),
            "key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2]),
        },
        "numbers": {"attn_mask": torch.randn(4, 6).double()},
    }[masks]
    for average in (False, True):
        expected = whole(query, key, value, average_attn_weights=average, **options)
        got = heads(query, key, value, average_attn_weights=average, **options)
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(heads(query, key, value, need_weights=False, **options)[0], expected[0])


def test_the_attention_of_some_heads_takes_one_example_without_a_batch() -> None:
    whole, heads = (kind(12, 3).eval() for kind in (nn.MultiheadAttention, HeadAttention))
    heads.load_state_dict(whole.state_dict())
    x, mask = torch.randn(4, 12), torch.tensor([False, False, True, False])
    torch.testing.assert_close(heads(x, x, x, key_padding_mask=mask), whole(x, x, x, key_padding_mask=mask))


NETWORKS = {
    "resnext": (lambda: resnext(4), [(2, 3, 8, 8), (1, 3, 9, 6)]),
    "mobilenet": (mobilenet, [(2, 3, 16, 16), (1, 3, 12, 20)]),
    "efficientnet": (lambda: mobilenet(nn.SiLU), [(2, 3, 16, 16), (1, 3, 12, 20)]),
    "resnet with option A": (lambda: ResNetA(blocks=2), [(2, 3, 16, 16), (3, 3, 12, 20)]),
}


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_convolutional_structures_compute_the_same(name, fold) -> None:
    build, shapes = NETWORKS[name]
    model = kill(randomise(build()), 0.4).double()
    result = compact(model, torch.zeros(shapes[0]).double(), fold=fold)
    for shape in shapes:
        assert deviation(model, result.model, torch.randn(shape).double()) < 1e-12
    assert result.report.parameters[1] < 0.8 * result.report.parameters[0]
    assert [note for note in result.report.notes if "'bn" not in note] == []


def test_a_group_of_a_convolution_goes_when_all_of_it_is_dead() -> None:
    model = randomise(resnext(4)).double().eval()
    block = model[2]
    with torch.no_grad():
        for norm, rows in ((block.bn1, range(3, 6)), (block.bn2, range(3, 6))):  # group 1 of 4, three channels each
            norm.weight[list(rows)], norm.bias[list(rows)] = 0.0, 0.0
        block.bn2.weight[9], block.bn2.bias[9] = 0.0, 0.0  # a third of group 3
    result = compact(model, torch.zeros(2, 3, 8, 8).double())
    assert (result.model[2].conv2.groups, result.model[2].conv2.out_channels) == (3, 9)
    assert widths(result)["2.conv1"] == (8, 9)
    assert widths(result)["2.conv2"] == (9, 9)
    assert deviation(model, result.model, torch.randn(2, 3, 8, 8).double()) < 1e-12


def test_a_residual_stage_with_padded_shortcuts_loses_the_channels_that_no_block_writes() -> None:
    model = randomise(ResNetA((8, 16, 32))).double().eval()
    with torch.no_grad():
        first, second, third = model.blocks
        # Channel 2 of the first stage is 4 + 2 of the second and 8 + 4 + 2 of the third; the second adds its own 1.
        for norm, rows in ((model.bn1, [2]), (first.bn2, [2]), (second.bn2, [6, 1]), (third.bn2, [14, 9])):
            norm.weight[rows], norm.bias[rows] = 0.0, 0.0
    result = compact(model, torch.zeros(2, 3, 16, 16).double())
    found = widths(result)
    assert found["conv1"] == (3, 7)
    assert found["blocks.0.conv2"] == (8, 7)
    assert found["blocks.1.conv1"] == (7, 16)
    assert found["blocks.1.conv2"] == (16, 14)
    assert found["blocks.2.conv2"] == (32, 30)
    assert found["fc"] == (30, 10)
    for shape in ((2, 3, 16, 16), (1, 3, 20, 12)):
        assert deviation(model, result.model, torch.randn(shape).double()) < 1e-12


@pytest.mark.parametrize("dead", [True, False])
def test_an_inverted_residual_loses_its_hidden_channels_through_the_gate(dead) -> None:
    model = randomise(mobilenet()).double().eval()
    block = model[3]
    with torch.no_grad():
        for norm in (block.depthwise[1], *([block.widen[1]] if dead else [])):
            norm.weight[:5], norm.bias[:5] = 0.0, 0.0
    result = compact(model, torch.zeros(2, 3, 16, 16).double())
    found = widths(result)
    assert found["3.depthwise.0"] == (11, 11)
    assert found["3.widen.0"] == (8, 11)
    assert found["3.squeeze"][0] == found["3.excite"][1] == found["3.narrow.0"][0] == 11
    assert deviation(model, result.model, torch.randn(2, 3, 16, 16).double()) < 1e-12
