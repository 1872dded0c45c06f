"""Pruning without training: what is pruned, how well, and what is refused."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.compression import one_shot
from spikeslab.compression.one_shot import prune_one_shot
from spikeslab.functional.patterns import Pattern, keep_largest


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 80), nn.ReLU(), nn.Linear(80, 70), nn.ReLU(), nn.Linear(70, 5))


def inputs(rows: int = 400, size: int = 64) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, size) @ (torch.randn(size, size) / size**0.5)


def by_magnitude(dense: Tensor, gram: Tensor, pattern: Pattern) -> Tensor:
    return dense * keep_largest(dense, pattern)


def change_of_outputs(model: nn.Module, pruned: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float((pruned(x) - model(x)).square().sum() / model(x).square().sum())


def test_every_layer_has_its_zeros_and_the_model_stays():
    model, x = perceptron(), inputs()
    before = copy.deepcopy(model.state_dict())
    result = ss.prune_one_shot(model, [x], sparsity=0.7, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [fit.name for fit in result.layers] == ["0.weight", "2.weight", "4.weight"]
    for fit in result.layers:
        weight = result.model.get_parameter(fit.name)
        assert int(weight.eq(0.0).sum()) == fit.zeros == round(0.7 * fit.weights)
    assert result.sparsity == sum(fit.zeros for fit in result.layers) / sum(p.numel() for p in model.parameters())
    assert "0.weight" in result.table().markdown()


def test_the_network_itself_is_pruned_in_place():
    model = perceptron()
    result = prune_one_shot(model, [inputs()], inplace=True, progress=False)
    assert result.model is model
    assert int(model[0].weight.eq(0.0).sum()) == model[0].weight.numel() // 2


def test_solvers_are_better_in_the_order_of_their_cost():
    model = perceptron()
    x, new = inputs(1400).split(700)
    found = [
        prune_one_shot(model, [x], 0.7, solver=solver, progress=False)
        for solver in ("exchange", "refit", "fast", "diagonal", by_magnitude)
    ]
    errors = [result.layers[0].error for result in found]
    assert errors[0] < errors[1] < errors[2] < 0.5 * errors[4]
    changes = [change_of_outputs(model, result.model, new) for result in found]
    assert max(changes[:3]) < 0.7 * min(changes[3:])


def test_batches_add_up():
    model, x = perceptron(), inputs()
    whole = prune_one_shot(model, [x], progress=False).layers
    parts = prune_one_shot(model, [(part, None) for part in x.split(100)], progress=False).layers
    for one, other in zip(whole, parts, strict=True):
        assert (one.name, one.rows, one.zeros) == (other.name, other.rows, other.zeros)
        assert one.error == pytest.approx(other.error, rel=0.02)


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8), nn.Flatten()
    return nn.Sequential(*layers).eval()


def images() -> Tensor:
    return torch.randn(60, 8, 8, 8, generator=torch.manual_seed(1))


def test_two_of_four_lie_along_the_channels():
    result = prune_one_shot(convolutions(), [images()], pattern="2:4", progress=False)
    for layer in (result.model[0], result.model[3]):
        assert layer.weight.movedim(1, -1).reshape(-1, 4).ne(0.0).sum(1).eq(2).all()


def test_batch_normalisation_moves_by_the_difference():
    """With all statistics those of the same inputs, the corrected ones are those of the pruned network."""
    model, x = convolutions(), images()

    def measure(network: nn.Sequential, norm: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            inner = network[:norm](x)
            return inner.mean((0, 2, 3)), inner.var((0, 2, 3), correction=0)

    for norm in (1, 4):
        model[norm].running_mean, model[norm].running_var = measure(model, norm)
    pruned = prune_one_shot(model, x.split(20), sparsity=0.8, progress=False).model
    for norm in (1, 4):
        for found, expected in zip(
            (pruned[norm].running_mean, pruned[norm].running_var), measure(pruned, norm), strict=True
        ):
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(pruned[norm].running_var, model[norm].running_var, rtol=0.01)


class Letters(nn.Module):
    """Embedding, LSTM and a head that shares the embedding's matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 64)
        self.lstm = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Linear(64, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


def test_a_recurrent_network_with_mappings_of_arguments():
    model = Letters()
    batches = [{"ids": torch.randint(0, 20, (32, 12), generator=torch.manual_seed(2))}]
    result = prune_one_shot(model, batches, sparsity=0.5, progress=False)
    assert [fit.name for fit in result.layers] == ["lstm.weight_ih_l0", "lstm.weight_hh_l0"]
    assert [fit.rows for fit in result.layers] == [32 * 12] * 2
    assert result.dense == ["embed.weight"]


def test_inclusion_probabilities_have_the_places_of_the_weights():
    """With uncorrelated inputs the largest weights, times the norms of their inputs, are the hardest to replace."""
    model = convolutions()
    result = prune_one_shot(model, [images()], 0.5, solver="diagonal", inclusion=True, progress=False)
    assert list(result.inclusion) == ["0.weight", "3.weight"]
    for name, found in result.inclusion.items():
        weight = result.model.get_parameter(name)
        assert found.shape == weight.shape
        assert found[weight != 0].min() >= 0.5 > found[weight == 0].max()
    assert not prune_one_shot(model, [images()], 0.5, progress=False).inclusion


def test_inclusion_probabilities_of_parts_that_stay_dense_are_missing():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 64, 64, generator=torch.manual_seed(0)))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight[1].T

    found = prune_one_shot(Half(), [inputs()], weights=["weight"], inclusion=True, progress=False).inclusion["weight"]
    assert found[0].isnan().all()
    assert found[1].gt(0.0).all()


def test_attention_is_pruned():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    x = torch.randn(20, 10, 64)
    result = prune_one_shot(model, [x], sparsity=0.5, progress=False)
    assert len(result.layers) == 4
    magnitude = prune_one_shot(model, [x], sparsity=0.5, solver=by_magnitude, progress=False).model
    model.eval()
    assert change_of_outputs(model, result.model.eval(), x) < 0.5 * change_of_outputs(model, magnitude.eval(), x)


FEW = "batches must give a layer as many rows as it has inputs, but '0.weight' has 64 inputs, and there are 50 rows"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sparsity": 1.0}, "sparsity must be a number in (0, 1), but got 1.0."),
        ({"pattern": "4:2"}, "pattern must be 'N:M' with 0 < N < M, such as '2:4', or None, but got '4:2'."),
        ({"pattern": "2:4", "sparsity": 0.7}, "sparsity must be 0.5 with pattern='2:4', but got 0.7."),
        ({"pattern": "1:3", "weights": "0.*"}, "pattern must divide the inputs of every layer, but '0.weight' has 64."),
        ({"solver": "best"}, "solver must be one of 'exchange', 'refit', 'fast', 'diagonal', but got 'best'."),
        ({"batches": [torch.randn(50, 64)]}, FEW),
        (
            {"batches": [torch.full((80, 64), torch.nan)]},
            "batches must hold finite inputs, but those of '0.weight' are",
        ),
        ({"batches": []}, "batches must hold at least one batch of inputs, but got none."),
        ({"batches": None}, "batches must be a list or a loader that can be read again, but got None."),
        (
            {"solver": lambda dense, gram, pattern: None},
            "solver must return finite weights of the shape (80, 64) for '0.weight', but got NoneType.",
        ),
        ({"batches": iter([])}, "batches must be a list or a loader that can be read again, but got an iterator."),
    ],
)
def test_bad_input(arguments, message):
    arguments = {"batches": [inputs()], "progress": False} | arguments
    model = perceptron()
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        prune_one_shot(model, inplace=True, **arguments)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), perceptron().parameters(), strict=True))


def test_parameters_that_are_not_finite_are_named():
    model = perceptron()
    model[0].bias.data[3] = float("nan")
    with pytest.raises(ValueError, match=r"^model must have finite parameters, but '0\.bias' has NaN or Inf\.$"):
        prune_one_shot(model, [inputs()], progress=False)


def test_a_layer_that_never_ran_is_named():
    model = perceptron()
    model.spare = nn.Linear(64, 64)
    model.forward = lambda x: nn.Sequential.forward(model[:5], x)
    with pytest.raises(ValueError, match=r"weights must be multiplied with inputs .* but 'spare.weight' never was"):
        prune_one_shot(model, [inputs()], weights="spare.weight", inplace=True, progress=False)


class Spare(nn.Module):
    """Perceptron with a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = perceptron(), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_a_layer_that_never_ran_stays_dense_with_a_warning():
    with pytest.warns(ss.SpikeSlabWarning, match=r"^'spare\.weight' stay dense: no run of the model multiplied"):
        result = prune_one_shot(Spare(), [inputs()], progress=False)
    assert "spare.weight" in result.dense


def test_a_gram_matrix_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(one_shot, "available_memory", lambda: 80_000)
    with pytest.raises(ValueError, match=r"Gram matrices that fit in memory, but '0\.weight' has 64 inputs"):
        prune_one_shot(perceptron(), [inputs()], progress=False)
    assert prune_one_shot(perceptron(), [inputs()], solver="diagonal", progress=False).layers


class PreActivation(nn.Module):
    """Convolution, shortcut and batch normalisation behind their sum."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.inplace = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), inplace

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        if self.inplace:
            out += 3.0 * x
        else:
            out = out + 3.0 * x
        return self.norm(out)


def test_an_addition_in_place_is_seen_before_a_normalisation():
    norms = [prune_one_shot(PreActivation(b), [images()], progress=False).model.norm for b in (True, False)]
    torch.testing.assert_close(norms[0].running_var, norms[1].running_var)
    torch.testing.assert_close(norms[0].running_mean, norms[1].running_mean)


def test_a_filter_without_weights_gives_the_shift_of_its_normalisation():
    """Statistics of the training set differ from those of the batches: the difference must not be divided by zero."""
    model, x = convolutions(), images()
    with torch.no_grad():
        model[0].weight[:4] *= 0.01
        inner = model[0](x)
        model[1].running_mean, model[1].running_var = inner.mean((0, 2, 3)) + 0.1 * inner.std(), inner.var((0, 2, 3))
    pruned = prune_one_shot(model, [x], sparsity=0.8, weights="0.weight", progress=False).model
    empty = pruned[0].weight.flatten(1).eq(0.0).all(1)
    assert empty.any()
    with torch.no_grad():
        assert pruned[:2](x)[:, empty].abs().max() < 0.01


def test_a_normalisation_that_runs_twice_is_measured_in_both_places():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two, self.norm = nn.Linear(64, 8), nn.Linear(64, 8), nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.one(x)) + self.norm(10.0 * self.two(x))

    pruned = prune_one_shot(Twice(), [inputs()], sparsity=0.1, progress=False).model
    assert pruned.norm.running_var.min() > 0.9


class Written(nn.Module):
    """Products that are written by hand: inputs times weights, or weights times inputs."""

    def __init__(self, left: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 32, generator=torch.manual_seed(0)))
        self.left = left

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight.T @ x.T).T if self.left else x @ self.weight


@pytest.mark.parametrize("solver", ["exchange", "refit", "fast", "diagonal"])
@pytest.mark.parametrize("left", [True, False])
def test_products_that_are_written_by_hand(left: bool, solver: str):
    first, second = inputs().split((150, 250))
    result = prune_one_shot(Written(left), [first, second], weights=["weight"], solver=solver, progress=False)
    assert int(result.model.weight.eq(0.0).sum()) == 1024
    plain = nn.Linear(64, 32, bias=False)
    plain.weight.data = Written(left).weight.data.T.contiguous()
    expected = prune_one_shot(plain, [first, second], solver=solver, progress=False).model.weight.T
    torch.testing.assert_close(result.model.weight, expected, atol=1e-4, rtol=1e-4)


def test_a_matrix_that_is_used_in_both_orientations_is_pruned_once():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64, generator=torch.manual_seed(0)))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ self.weight.T) @ self.weight

    result = prune_one_shot(Tied(), [inputs()], weights=["weight"], progress=False)
    assert [(fit.rows, fit.zeros) for fit in result.layers] == [(400, 2048)]
    assert result.sparsity == 0.5


@pytest.mark.parametrize(("rank", "share"), [(8, 0.5), (8, 0.8), (32, 0.5)])
def test_exchanges_in_single_precision_do_no_harm(rank: int, share: float):
    generator = torch.manual_seed(0)
    x = torch.randn(512, rank, generator=generator) @ torch.randn(rank, 256, generator=generator)
    x = x + 0.01 * torch.randn(512, 256, generator=generator)
    model = nn.Linear(256, 24, bias=False)
    errors = {
        solver: prune_one_shot(model, [x], share, solver=solver, progress=False).layers[0].error
        for solver in ("exchange", "refit")
    }
    assert errors["exchange"] <= errors["refit"] * (1 + 1e-3)


def test_the_diagonal_needs_no_gram_matrix():
    model, x = perceptron(), inputs()
    fit = prune_one_shot(model, [x], solver="diagonal", weights="0.weight", progress=False).layers[0]
    dense = model[0].weight.detach()
    kept = dense * keep_largest(dense * x.square().sum(0).sqrt(), Pattern(dense.numel() // 2))
    expected = ((kept - dense).square() * x.square().sum(0)).sum() / (dense.square() * x.square().sum(0)).sum()
    assert fit.error == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(("pattern", "sparsity"), [("7:10", 0.3), ("1:3", 2 / 3), ("2:4", None)])
def test_the_sparsity_of_a_pattern_may_be_named(pattern: str, sparsity: float | None):
    model = nn.Linear(120, 10)
    result = prune_one_shot(model, [inputs(size=120)], sparsity, pattern, progress=False)
    assert result.layers[0].zeros == round(1200 * (1 - int(pattern[0]) / int(pattern[2:])))


def test_layers_that_a_pattern_does_not_divide_stay_dense_by_default():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 7), nn.Conv2d(8, 8, 3))
    x = torch.randn(20, 3, 16, 16)
    assert prune_one_shot(model, [x], pattern="2:4", progress=False).dense == ["0.weight"]
    with pytest.raises(ValueError, match=r"pattern must divide the inputs of every layer, but '0\.weight' has 3\."):
        prune_one_shot(model, [x], pattern="2:4", weights="*.weight", progress=False)


def test_no_layer_is_emptied():
    result = prune_one_shot(perceptron(), [inputs()], sparsity=0.9999, inclusion=True, progress=False)
    assert all(int(result.model.get_parameter(fit.name).count_nonzero()) == 1 for fit in result.layers)


def test_frozen_weights_and_those_of_later_batches_are_pruned_too():
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(64, 8), nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) if len(x) > 100 else self.two(x)

    batches = [inputs(), inputs(90)]
    found = prune_one_shot(Experts().requires_grad_(False), batches, weights="*.weight", progress=False)
    assert [(fit.name, fit.rows) for fit in found.layers] == [("one.weight", 400), ("two.weight", 90)]


@pytest.mark.parametrize("returned", [torch.zeros(3, 3), torch.full((80, 64), torch.nan)])
def test_a_solver_that_returns_something_else_is_refused(returned: Tensor):
    with pytest.raises(ValueError, match=r"solver must return finite weights of the shape \(80, 64\) for '0\.weight'"):
        prune_one_shot(perceptron(), [inputs()], solver=lambda *_: returned, progress=False)
