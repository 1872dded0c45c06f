"""Whose channels may go: known networks, and all that ties them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from spikeslab.compression import compact
from spikeslab.errors import ArgumentValueError
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.demo import DigitsCNN
from spikeslab.paper.images import CNN, BatchNormCNN
from spikeslab.paper.uci import MLP
from spikeslab.pruning import free_channel_layers


def test_a_residual_network_has_the_first_convolution_of_every_block() -> None:
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3) for block in range(3)]
    assert free_channel_layers(resnet20()) == {f"{name}.conv1.weight": f"{name}.bn1" for name in blocks}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (CNN(), {"conv1.weight": None, "conv2.weight": None, "fc1.weight": None}),
        (DigitsCNN(), {"conv1.weight": None, "conv2.weight": None, "fc1.weight": None}),
        (BatchNormCNN(), {"conv1.weight": None, "conv2.weight": None, "fc1.weight": None, "fc2.weight": "bn2"}),
        (MLP(5, hidden=(4, 3)), {"layers.0.weight": None, "layers.1.weight": None}),
    ],
)
def test_plain_networks_have_all_but_the_last_layer(model: nn.Module, expected: dict[str, str | None]) -> None:
    assert free_channel_layers(model) == expected


class Net(nn.Module):
    """Two convolutions and a linear layer, with something between them."""

    def __init__(self, between, groups: int = 1, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=groups)
        self.norm = nn.BatchNorm2d(4) if norm is None else norm
        self.fc = nn.Linear(4 * 16, 2)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self, self.a(x))
        return self.fc(self.b(x).relu().view(x.size(0), -1))


def plain(net: Net, x: Tensor) -> Tensor:
    return x


FREE_B = {"b.weight": None}


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (Net(plain), {"a.weight": None} | FREE_B),
        (Net(lambda net, x: functional.dropout(functional.gelu(x))), {"a.weight": None} | FREE_B),
        (Net(lambda net, x: net.norm(x.relu())), {"a.weight": "norm"} | FREE_B),
        (Net(lambda net, x: x.sigmoid()), FREE_B),  # sigmoid(0) is not 0
        (Net(lambda net, x: x + x.relu()), FREE_B),
        (Net(lambda net, x: torch.cat([x[:, :2], x[:, 2:]], 1)), FREE_B),
        (Net(lambda net, x: x * x.mean((2, 3), keepdim=True)), FREE_B),
        (Net(lambda net, x: net.norm(net.norm(x))), FREE_B),
        (Net(lambda net, x: net.b(x)), {"a.weight": None}),  # b is called twice
        (Net(lambda net, x: net.norm(x), norm=nn.BatchNorm2d(4, affine=False)), FREE_B),
        (Net(lambda net, x: net.norm(x), norm=nn.GroupNorm(2, 4)), FREE_B),
        (Net(plain, groups=2), {}),
        (Net(lambda net, x: x - 1.0), FREE_B),
        (Net(lambda net, x: functional.alpha_dropout(x, training=True)), FREE_B),  # it does not keep zeros
        (Net(lambda net, x: x / x.shape[1]), FREE_B),
    ],
)
def test_what_ties_channels_is_seen(net: Net, expected: dict[str, str | None]) -> None:
    net(torch.zeros(1, 1, 4, 4))  # it runs
    assert free_channel_layers(net) == expected


class Ends(nn.Module):
    """A convolution whose channels become features in some way."""

    def __init__(self, end, features: int) -> None:
        super().__init__()
        self.a, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(features, 2)
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.end(self.a(x).relu()))


@pytest.mark.parametrize(
    ("end", "features"),
    [
        (lambda x: x.view(-1, 64), 64),
        (lambda x: x.reshape((x.shape[0], 64)), 64),
        (lambda x: torch.reshape(x, (-1, 64)), 64),
        (lambda x: x.mean(3).mean(2), 4),
        (lambda x: x.mean((2, 3)), 4),
        (lambda x: functional.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1), 4),
        (lambda x: x[:, :, 0, 0], 4),
    ],
)
def test_channels_that_become_features_are_free_and_can_be_removed(end, features: int) -> None:
    torch.manual_seed(0)
    net, x = Ends(end, features).eval(), torch.randn(3, 1, 4, 4)
    assert free_channel_layers(net) == {"a.weight": None}
    with torch.no_grad():
        net.a.weight[1], net.a.bias[1] = 0.0, 0.0
    small = compact(net, x).model
    torch.testing.assert_close(small(x), net(x))
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("end", [lambda x: x, lambda x: x.flatten(2), lambda x: x.mean(2), lambda x: x[:, :, 0]])
def test_a_linear_layer_over_the_places_of_an_image_reads_no_channels(end) -> None:
    features = end(torch.zeros(1, 4, 4, 4)).shape[-1]
    net = Ends(end, features)
    net(torch.zeros(1, 1, 4, 4))  # it runs
    assert free_channel_layers(net) == {}


def test_tokens_that_are_flattened_tie_the_channels_of_a_linear_layer() -> None:
    assert free_channel_layers(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 2))) == {}


@pytest.mark.parametrize("end", [lambda x: x.flatten(1).mean(1, keepdim=True), lambda x: x[:, 0].flatten(1)])
def test_features_that_mix_or_choose_channels_are_not(end) -> None:
    assert free_channel_layers(Ends(end, 1)) == {}


def test_a_mean_over_the_features_of_a_linear_layer_ties_them() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 5), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).mean(2))

    assert free_channel_layers(Tokens()) == {}


def test_a_computed_weight_or_a_hook_is_left_out() -> None:
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.ReLU())), nn.Linear(4, 2))
    nn.utils.parametrizations.weight_norm(model[2])
    model[4].register_forward_hook(lambda *_: None)
    assert free_channel_layers(model) == {"0.weight": None, "6.weight": None}


def test_a_mean_over_the_places_of_tokens_may_mix_their_features() -> None:
    class Grid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 5), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).mean((2, 3)))

    Grid()(torch.zeros(2, 4, 7, 3))  # it runs
    assert free_channel_layers(Grid()) == {}


def test_a_shared_weight_is_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    assert free_channel_layers(model) == {"4.weight": None}


def test_a_model_that_cannot_be_traced_is_refused_in_one_sentence() -> None:
    def branch(net: Net, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(ArgumentValueError) as error:
        free_channel_layers(Net(branch))
    assert str(error.value) == (
        "model must be one that torch.fx can trace, but tracing stopped with 'symbolically traced variables cannot be "
        "used as inputs to control flow': name its layers in Python, as in {'conv1.weight': 'bn1'}."
    )
