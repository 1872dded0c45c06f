"""A compiled forward and backward pass with samplers, prior, pruner, posterior and the loop: nothing else changes."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spikeslab as ss
from spikeslab.training import Collect, Prune, TensorBatches, Training

X, Y = torch.randn(32, 6, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def plain(model: nn.Module) -> nn.Module:
    return model


def wrapped(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="aot_eager")


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


class Chain:
    """Everything that a run has, around one model."""

    def __init__(self, compiled=plain) -> None:
        self.model = compiled(network())
        weights = ss.select_weights(self.model, "[03].weight")
        prior = ss.SpikeSlab(weights, v0=0.01, v1=1.0)
        self.sampler = ss.SGHMC(self.model.parameters(), lr=0.01, num_data=32, prior=prior, seed=0)
        self.pruner = ss.Pruner(weights, 0.5)
        self.posterior = ss.Posterior(self.model, thin=2)

    def run(self, steps: int) -> Chain:
        for _ in range(steps):
            self.sampler.zero_grad()
            F.cross_entropy(self.model(X), Y).backward()
            self.sampler.step()
            self.pruner.step()
            self.posterior.collect()
        return self


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize("compiled", [wrapped, in_place])
def test_the_chain_is_that_of_the_model_itself(compiled, tmp_path):
    one, other = Chain().run(6), Chain(compiled).run(6)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert list(other.sampler.prior.weights) == ["0.weight", "3.weight"]
    assert list(other.posterior.tensors(0)) == list(one.posterior.tensors(0))
    torch.testing.assert_close(other.posterior.predict(X), one.posterior.predict(X))
    torch.testing.assert_close(other.posterior.sample(1)(X), one.posterior.sample(1)(X))
    # Samples of a compiled model are those of any.
    other.posterior.save(tmp_path / "posterior")
    loaded = ss.Posterior.load(tmp_path / "posterior", network())
    torch.testing.assert_close(loaded.predict(X), other.posterior.predict(X))


def test_a_model_compiled_in_place_stays_compiled_and_keeps_its_names():
    chain = Chain(in_place).run(2)
    call = chain.model._compiled_call_impl
    chain.posterior.predict(X)
    assert chain.model._compiled_call_impl is call is not None
    assert list(chain.model.state_dict()) == list(network().state_dict())


def test_predictions_do_not_compile():
    chain = Chain(in_place).run(2)
    torch._dynamo.reset()
    compiled = []
    chain.model._compiled_call_impl = lambda *inputs: compiled.append(inputs)
    chain.posterior.predict(X)
    assert not compiled


def test_a_state_goes_from_a_compiled_chain_to_one_that_is_not():
    first = Chain(in_place).run(3)
    second = Chain()
    second.model.load_state_dict(first.model.state_dict())
    second.sampler.load_state_dict(copy.deepcopy(first.sampler.state_dict()))
    whole = Chain().run(6)
    for a, b in zip(second.run(3).model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_loop_runs_a_compiled_model():
    def trained(compiled) -> Chain:
        chain = Chain(compiled)
        batches = TensorBatches(X, Y, batch_size=8, seed=0)
        callbacks = [Prune(chain.pruner), Collect(chain.posterior)]
        Training(chain.model, chain.sampler, batches, callbacks=callbacks).run(steps=6)
        return chain

    one, other = trained(plain), trained(in_place)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(other.posterior.predict(X), one.posterior.predict(X))


@pytest.mark.slow
def test_the_default_compiler_where_there_is_one():
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("torch's default compiler needs a C++ compiler, and there is none")
    one, other = Chain().run(3), Chain(torch.compile).run(3)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
