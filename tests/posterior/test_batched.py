"""Stacked samples are made once, and never outlive the samples they were made of."""

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.models import MLP
from spikeslab.posterior import batched
from spikeslab.posterior.samples import DiskSamples


class Tied(nn.Module):
    """A network that uses one matrix twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


def collected(model: nn.Module, samples: int = 5, **settings) -> ss.Posterior:
    torch.manual_seed(0)
    posterior = ss.Posterior(model, **settings)
    for _ in range(samples):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        posterior.collect()
    return posterior


def alone(posterior: ss.Posterior, x: torch.Tensor) -> torch.Tensor:
    """The prediction from copies of the model, one for each sample."""
    outputs = [posterior.sample(index).eval()(x).softmax(1) for index in range(len(posterior))]
    return torch.stack(outputs).mean(0).detach()


@pytest.mark.parametrize("build", [lambda: MLP(3, outputs=2), Tied, lambda: nn.Linear(3, 2)])
def test_the_second_prediction_is_the_first(build):
    posterior, x = collected(build().double()), torch.randn(4, 3, dtype=torch.float64)
    first = posterior.predict(x)
    torch.testing.assert_close(first, alone(posterior, x))
    assert posterior._batched._stacks
    assert torch.equal(posterior.predict(x), first)


def test_a_shared_batch_in_the_first_layer_is_what_each_chain_does_alone():
    posterior, x = collected(MLP(3, hidden=(5, 4), outputs=2).double()), torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(posterior.predict(x), alone(posterior, x), rtol=1e-12, atol=0.0)


def test_samples_on_disk_are_read_once(tmp_path, monkeypatch):
    posterior, x = collected(MLP(3, outputs=2), directory=tmp_path), torch.randn(4, 3)
    read, reads = DiskSamples.read, []
    monkeypatch.setattr(DiskSamples, "read", lambda self, key: reads.append(key) or read(self, key))
    first = posterior.predict(x)
    assert reads == [1, 2, 3, 4, 5]
    assert torch.equal(posterior.predict(x), first)
    assert len(reads) == 5


def collect(posterior, model):
    nn.init.ones_(model[0].weight)
    posterior.collect()


def repeat_a_step(posterior, model):
    nn.init.ones_(model[0].weight)
    posterior.steps -= 1
    posterior.collect()


def recalibrate(posterior, model):
    posterior.recalibrate([torch.randn(64, 3)])


def load(posterior, model):
    nn.init.zeros_(model[0].weight)
    posterior.load_state_dict(collected(model).state_dict())


@pytest.mark.parametrize("change", [collect, repeat_a_step, recalibrate, load])
def test_a_changed_sample_is_noticed(change):
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    posterior, x = collected(model), torch.randn(4, 3)
    before = posterior.predict(x)
    torch.manual_seed(1)
    change(posterior, model)
    torch.testing.assert_close(posterior.predict(x), alone(posterior, x))
    if change is not load:  # which gives the same samples back
        assert not torch.allclose(posterior.predict(x), before)


def test_what_is_kept_is_bounded(monkeypatch):
    size = 20 * sum(parameter.nbytes for parameter in MLP(3, outputs=2).parameters())
    monkeypatch.setattr(batched, "KEPT", size - 1)
    posterior, x = collected(MLP(3, outputs=2), samples=20), torch.randn(4, 3)
    torch.testing.assert_close(posterior.predict(x), alone(posterior, x))
    assert not posterior._batched._stacks
    monkeypatch.setattr(batched, "KEPT", size)
    posterior.predict(x)
    assert [stack.size for stack in posterior._batched._stacks.values()] == [size]


def test_passes_are_of_one_size(monkeypatch):
    forward = batched.BatchedForward(nn.Linear(3, 2, bias=False))
    inputs = (torch.zeros(4, 3),)
    monkeypatch.setattr(batched, "BUDGET", 9 * (24 + 32))  # nine samples of a weight and an output
    assert [forward.together(samples, inputs) for samples in (1, 9, 10, 19, 20)] == [1, 9, 5, 7, 7]


def test_a_damaged_sample_in_the_middle_is_named(tmp_path):
    posterior = collected(MLP(3, outputs=2), directory=tmp_path)
    path = tmp_path / "sample-000000003.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=f"{path} must be a readable sample"):
        posterior.predict(torch.randn(4, 3))
    assert posterior._batched.possible
