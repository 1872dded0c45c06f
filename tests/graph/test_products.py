"""Products of weights with inputs: of layers, attention, recurrent networks and plain code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spikeslab.graph.products import Product, ProductMode, plain_products


def record(model: nn.Module, *inputs: Tensor) -> list[Product]:
    found: list[Product] = []
    parameters = {name: p for name, p in model.named_parameters() if p.ndim > 1}
    with torch.no_grad(), plain_products(model), ProductMode(parameters, found.append):
        model.eval()(*inputs)
    return found


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
        (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2), (3, 4, 8, 9)),
        (nn.Conv2d(4, 8, 3, groups=4, padding="same"), (3, 4, 7, 7)),
        (nn.Conv3d(2, 3, 2, stride=2), (2, 2, 4, 4, 6)),
        (nn.Linear(5, 7), (3, 2, 5)),
    ],
    ids=["1d", "strides", "depthwise", "3d", "linear"],
)
def test_rows_times_matrices_are_the_outputs(layer, shape):
    x = torch.randn(shape, generator=torch.manual_seed(0))
    (product,) = record(layer, x)
    rows = torch.cat(list(product.rows()), dim=1)
    outputs = torch.cat(list(rows @ product.matrices().mT), dim=1)  # (places, outputs)
    layer.bias = None
    expected = layer(x)
    places = expected if isinstance(layer, nn.Linear) else expected.movedim(1, -1)
    torch.testing.assert_close(outputs, places.reshape(-1, outputs.shape[1]).detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 6, 3, groups=2), nn.Linear(5, 7)])
def test_matrices_are_written_back(layer):
    (product,) = record(layer, torch.randn(2, 4, 5, 5) if isinstance(layer, nn.Conv2d) else torch.randn(2, 5))
    changed = 2.0 * product.matrices()
    expected = 2.0 * layer.weight.detach()
    product.write(changed)
    torch.testing.assert_close(layer.weight.detach(), expected)
    torch.testing.assert_close(product.matrices(), changed)


class Plain(nn.Module):
    """Weights without a layer: ``x @ w``, with the inputs first."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def test_the_weights_of_plain_code_have_their_outputs_first():
    model, x = Plain(), torch.randn(4, 5)
    (product,) = record(model, x)
    assert product.matrices().shape == (1, 3, 5)
    product.write(torch.zeros(1, 3, 5))
    assert model.w.eq(0.0).all()


def test_attention_and_recurrent_layers_are_seen():
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    names = [product.name for product in record(attention, torch.randn(2, 3, 8))]
    assert names == ["self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"]
    lstm = nn.LSTM(4, 6, batch_first=True)
    names = [product.name for product in record(lstm, torch.randn(2, 3, 4))]
    assert sorted(names) == ["weight_hh_l0"] * 3 + ["weight_ih_l0"]


def test_keys_of_attention_tell_queries_from_keys():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    query, key = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    products = [p for p in record(attention, query, key, key) if p.name == "in_proj_weight"]
    assert len({product.key for product in products}) == len(products) == 2
    assert [tuple(product.weight.shape) for product in products] == [(8, 8), (16, 8)]
