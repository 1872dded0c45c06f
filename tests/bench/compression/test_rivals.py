"""Methods of the study: the same number of zeros, the same number of steps, and compress called as a newcomer does."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from spikeslab.bench.compression import rivals
from spikeslab.bench.compression.grid import BASE_METHODS, BUDGET, LASSO, OURS, PAT, TORCH_PRUNE
from spikeslab.bench.compression.networks import train_dense
from spikeslab.bench.compression.rivals import Assignment, count_zeros, cut_exactly, run_method
from spikeslab.errors import ArgumentValueError

SETTINGS = [*((method, {}) for method in BASE_METHODS), (TORCH_PRUNE, {"lr": 0.03, "schedule": "cosine"})]
SETTINGS += [("gmp", {"lr": 0.02, "weight_decay": 1e-4}), (PAT, {"prox": BUDGET}), (PAT, {"prox": LASSO, "lr": 0.5})]


def assign(tiny, name: str, sparsity: float, setting=None, seed: int = 0) -> Assignment:
    network = tiny[name]
    data = network.load(None, seed)
    return Assignment(network, data, train_dense(network, data, seed), sparsity, seed, setting or {})


def skip_without_torchao(method: str) -> None:
    if method == PAT:
        pytest.importorskip("torchao.prototype.pat.optim")


@pytest.mark.parametrize(("method", "setting"), SETTINGS)
@pytest.mark.parametrize(("name", "sparsity"), [("lenet", 0.6), ("mlp", 0.5), ("transformer", 0.4)])
def test_every_method_has_the_exact_number_of_zeros_and_leaves_the_dense_network(tiny, name, sparsity, method, setting):
    skip_without_torchao(method)
    task = assign(tiny, name, sparsity, setting)
    before = [parameter.clone() for parameter in task.dense.parameters()]
    outcome = run_method(method, task)
    total = sum(parameter.numel() for parameter in before)
    assert count_zeros(outcome.model) == task.zeros == round(sparsity * total)
    assert all(torch.equal(old, new) for old, new in zip(before, task.dense.parameters(), strict=True))
    assert (outcome.posterior is not None) == (method == OURS)
    assert not outcome.model.training
    # Not only pruned: what is left was trained.
    left = [(old, new) for old, new in zip(before, outcome.model.parameters(), strict=True) if new.count_nonzero()]
    assert any(not torch.equal(old[new != 0], new[new != 0]) for old, new in left)
    for name_of, value in setting.items():
        assert outcome.settings[name_of] == value


@pytest.mark.parametrize("method", [TORCH_PRUNE, PAT])
def test_rivals_take_as_many_steps_as_compress(tiny, method):
    skip_without_torchao(method)
    task, steps = assign(tiny, "lenet", 0.5), []

    def count(model, batch):
        steps.append(1)
        return tiny["lenet"].training_loss(model, batch)

    run_method(method, task._replace(network=replace(task.network, loss=count)))
    assert len(steps) == task.steps == task.network.epochs * len(task.data.train) == 12


def test_compress_is_called_with_nothing_but_the_sparsity_and_the_epochs(tiny, monkeypatch):
    given = {}

    def compress(*arguments, **options):
        given.update(options, arguments=arguments)
        raise InterruptedError

    monkeypatch.setattr(rivals, "compress", compress)
    task = assign(tiny, "lenet", 0.5)
    with pytest.raises(InterruptedError):
        run_method(OURS, task)
    assert given.pop("arguments") == (task.dense, task.data.train, task.data.held_out)
    assert given == {"sparsity": 0.5, "epochs": 4, "seed": 0, "progress": False, "report": False}


@pytest.mark.parametrize("method", [OURS, TORCH_PRUNE])
def test_every_method_computes_its_loss_in_the_precision_of_the_network(tiny, method):
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(torch.is_autocast_enabled("cpu"))
            return x

    for precision in ("float32", "bfloat16"):
        task = assign(tiny, "lenet", 0.5)
        task = task._replace(
            network=replace(task.network, precision=precision), dense=nn.Sequential(Spy(), *copy.deepcopy(task.dense))
        )
        seen.clear()
        run_method(method, task)
        assert any(seen) == (precision == "bfloat16")


def test_a_method_is_a_function_of_the_seed(tiny):
    task = assign(tiny, "lenet", 0.5)
    first, second, other = (run_method(TORCH_PRUNE, task._replace(data=tiny["lenet"].load(None, s))) for s in (0, 0, 1))
    weights = [each.model[2].weight for each in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("method", [TORCH_PRUNE, PAT])
def test_more_zeros_than_weights_are_refused(tiny, method):
    skip_without_torchao(method)
    with pytest.raises(ArgumentValueError, match="sparsities must be numbers below"):
        run_method(method, assign(tiny, "lenet", 0.99))


def test_a_cut_brings_back_the_largest_of_too_many_zeros():
    weights = [torch.tensor([0.0, 0.3]), torch.tensor([0.0, 0.0])]
    cut_exactly(weights, [torch.tensor([0.2, 0.5]), torch.tensor([-0.4, 0.1])], zeros=2)
    assert [weight.tolist() for weight in weights] == [[0.0, pytest.approx(0.3)], [pytest.approx(-0.4), 0.0]]
