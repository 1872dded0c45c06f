"""Stacked samples are made once, and never outlive the samples they were made of."""

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.paper.uci import MLP
from spikeslab.posterior import forward as batched
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
    assert posterior._forward._stacks
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
    assert not posterior._forward._stacks
    monkeypatch.setattr(batched, "KEPT", size)
    posterior.predict(x)
    assert [stack.size for stack in posterior._forward._stacks.values()] == [size]


def test_a_single_sample_that_remains_does_not_end_batched_passes(monkeypatch):
    posterior, x = collected(nn.Linear(3, 2)), torch.randn(4, 3)
    monkeypatch.setattr(posterior._forward, "choose_count", lambda samples, inputs: 2)
    torch.testing.assert_close(posterior.predict(x), alone(posterior, x))
    assert posterior._forward.possible


def test_passes_are_of_one_size(monkeypatch):
    forward = batched.SampleForward(nn.Linear(3, 2, bias=False), torch.sigmoid)
    inputs = (torch.zeros(4, 3),)
    monkeypatch.setattr(batched, "BUDGET", 9 * (24 + 32))  # nine samples of a weight and an output
    assert [forward.choose_count(samples, inputs) for samples in (1, 9, 10, 19, 20)] == [1, 9, 5, 7, 7]


def test_a_damaged_sample_in_the_middle_is_named(tmp_path):
    posterior = collected(MLP(3, outputs=2), directory=tmp_path)
    path = tmp_path / "sample-000000003.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=f"{path} has changed since"):
        posterior.predict(torch.randn(4, 3))
    assert posterior._forward.possible


class Doubled(MLP):
    """A subclass with another forward pass, of which its parent's stacked one knows nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(x)


class Scaled(MLP):
    """A network whose passes depend on an attribute that is no tensor."""

    gain = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * super().forward(x)

    def stacked_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * super().stacked_forward(x)


def with_hook() -> nn.Module:
    model = MLP(3, outputs=4)
    model.layers[0].register_forward_hook(lambda module, inputs, outputs: outputs + 1.0)
    return model


def with_parametrization() -> nn.Module:
    model = MLP(3, outputs=4)
    nn.utils.parametrizations.weight_norm(model.layers[0])
    return model


def without_bias() -> nn.Module:
    model = MLP(3, outputs=4)
    model.layers[0] = nn.Linear(3, 50, bias=False)
    return model


def patched() -> nn.Module:
    model = MLP(3, outputs=4)
    model.forward = lambda x: MLP.forward(model, x) * 3.0
    return model


CHANGED = [lambda: Doubled(3, outputs=4), with_hook, with_parametrization, without_bias, patched]


@pytest.mark.parametrize("build", CHANGED, ids=["subclass", "hook", "parametrization", "no bias", "instance"])
def test_a_stacked_pass_is_used_only_where_it_is_the_forward_pass(build):
    posterior, x = collected(build()), torch.randn(6, 3)
    expected = torch.stack(list(_each(posterior, x))).softmax(2).mean(0)
    torch.testing.assert_close(posterior.predict(x), expected)


def _each(posterior: ss.Posterior, x: torch.Tensor):
    for record in posterior.records:
        tensors = posterior._samples.read(record.step)
        yield torch.func.functional_call(posterior.model.eval(), tensors, (x,)).detach()


def test_attributes_count_as_they_are_when_it_predicts():
    posterior, x = collected(Scaled(3, outputs=4)), torch.randn(6, 3)
    before = posterior.predict(x)
    posterior.model.gain = 5.0
    assert not torch.allclose(before, posterior.predict(x))
    torch.testing.assert_close(posterior.predict(x), alone(posterior, x))


def test_the_model_has_its_own_tensors_after_a_prediction():
    posterior = collected(MLP(3, outputs=4))
    own = {name: id(tensor) for name, tensor in posterior.model.named_parameters()}
    posterior.predict(torch.randn(6, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        posterior.predict(torch.randn(6, 2))
    assert {name: id(tensor) for name, tensor in posterior.model.named_parameters()} == own
    assert posterior._forward.possible, "a bad input says nothing about the model"


@pytest.mark.parametrize("build", [lambda: MLP(3, outputs=4), lambda: nn.Linear(3, 4)], ids=["stacked", "vmap"])
def test_samples_follow_the_dtype_of_the_model(build):
    posterior, x = collected(build()), torch.randn(6, 3)
    single = posterior.predict(x)
    posterior.model.double()
    assert posterior.predict(x.double()).dtype is torch.float64
    torch.testing.assert_close(posterior.predict(x.double()).float(), single)


def test_a_model_that_counts_its_passes_is_left_alone():
    model = nn.Linear(3, 4)
    model.register_buffer("passes", torch.zeros(()))
    model.register_forward_hook(lambda module, inputs, outputs: module.passes.add_(1.0) and None)
    posterior = collected(model)
    posterior.predict(torch.randn(6, 3))
    assert float(model.passes) == 0.0


@pytest.mark.parametrize("kind", [torch.long, torch.bool])
def test_votes_are_averaged_as_numbers(kind):
    posterior = collected(nn.Linear(3, 2), link=lambda outputs: outputs.argmax(1, keepdim=True).to(kind))
    x = torch.randn(6, 3)
    votes = torch.stack([posterior.sample(index)(x).argmax(1, keepdim=True) for index in range(5)]).float()
    torch.testing.assert_close(posterior.predict(x), votes.mean(0))
    torch.testing.assert_close(posterior.predictive(x).epistemic, votes.var(0, correction=0))


@pytest.mark.parametrize("budget", [1, 3000, 1 << 23], ids=["one by one", "some", "all"])
@pytest.mark.parametrize("regression", [False, True])
def test_the_split_of_the_variance_does_not_depend_on_how_many_run_at_once(monkeypatch, budget, regression):
    monkeypatch.setattr(batched, "BUDGET", budget)
    model = MLP(3, hidden=(8,), outputs=2)
    prior = ss.SpikeSlab(ss.select_weights(model, "*.weight"), v0=0.1, v1=1.0)
    posterior = collected(model, likelihood=ss.GaussianLikelihood(prior) if regression else None)
    x = torch.randn(6, 3)
    values = torch.stack(list(posterior.outputs(x))).double()
    noise = torch.full_like(values, prior.sigma**2) if regression else values * (1.0 - values)
    found = posterior.predictive(x)
    torch.testing.assert_close(found.mean.double(), values.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.epistemic.double(), values.var(0, correction=0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.aleatoric.double(), noise.mean(0), rtol=1e-5, atol=1e-6)


class Sequence(nn.Module):
    """A recurrent network whose first dimension is time, which must not be split."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


@pytest.mark.parametrize(("model", "split"), [(MLP(3, outputs=2), 94), (Sequence(), None)], ids=["rows", "time"])
def test_large_inputs_are_split_where_rows_are_independent(model, split, monkeypatch):
    monkeypatch.setattr(batched, "BUDGET", 30 * 4 * (50 + 50 + 2 + 2) // torch.get_num_threads())
    posterior = collected(model, link=torch.sigmoid)
    x = torch.randn(280, 1, 3) if split is None else torch.randn(280, 3)
    assert posterior._forward.choose_split((x,), len(posterior)).rows == split
    each = [posterior.sample(index).eval()(x).sigmoid() for index in range(len(posterior))]
    torch.testing.assert_close(posterior.predict(x), torch.stack(each).mean(0).detach())


class Rows(nn.Module):
    """A layer that needs its input with the channels first: ``view`` refuses another order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1)


@pytest.mark.parametrize(("flatten", "channels_last"), [(nn.Flatten(), True), (Rows(), False)], ids=["flatten", "view"])
def test_channels_come_last_where_the_model_gives_the_same_with_them(flatten, channels_last):
    layers = nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), flatten, nn.Linear(4 * 9, 2)
    posterior = collected(nn.Sequential(*layers))
    x = torch.randn(200, 1, 12, 12)
    assert posterior._forward.choose_split((x,), len(posterior)).channels_last == channels_last
    each = [posterior.sample(index).eval()(x).softmax(dim=1) for index in range(len(posterior))]
    torch.testing.assert_close(posterior.predict(x), torch.stack(each).mean(0).detach())
    assert posterior.sample(0)[2].weight.is_contiguous()


class Counting(nn.Module):
    """A convolution that counts its passes in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return self.conv(x)


def flat(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.view(len(outputs), -1).tanh()


def test_channels_last_reach_neither_the_link_nor_the_model():
    posterior = collected(Counting(), link=flat)
    x = torch.randn(100, 3, 10, 10)
    assert posterior._forward.choose_split((x,), len(posterior)).channels_last
    posterior.model.passes.zero_()
    posterior.predict(torch.randn(101, 3, 10, 10))  # chooses anew
    assert posterior.model.passes == 0.0


def test_a_layer_that_was_replaced_is_tried_again():
    posterior = collected(nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(300, 2)))
    x = torch.randn(100, 1, 12, 12)
    before = posterior.predict(x)
    posterior.model[1] = Rows()
    torch.testing.assert_close(posterior.predict(x), before)


@pytest.mark.parametrize("outputs", [lambda x: x > 0.0, lambda x: x[:, :0]], ids=["booleans", "nothing"])
def test_outputs_that_cannot_be_compared_are_not_split(outputs):
    class Odd(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return outputs(super().forward(x))

    posterior = collected(Odd(3, 2), link=torch.Tensor.float)
    assert posterior.predict(torch.randn(100, 3)).shape[0] == 100


class OneAtATime(nn.Module):
    """A model whose forward pass depends on its numbers, which vmap cannot batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if self.linear.bias.sum() > 0 else self.linear(-x)


def doubled(model: nn.Module) -> nn.Module:
    """Return the model with a hook that doubles its outputs."""
    model.register_forward_hook(lambda _, inputs, outputs: 2 * outputs)
    return model


@pytest.mark.parametrize("budget", [1, 2_000, 1 << 26])
@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 2)),
        lambda: MLP(3, hidden=(5,), outputs=2),
        lambda: nn.Sequential(nn.Linear(3, 5, bias=False), tanh := nn.Tanh(), nn.Linear(5, 5), tanh, nn.Linear(5, 2)),
        lambda: doubled(nn.Sequential(nn.Linear(3, 2))),
        OneAtATime,
    ],
)
def test_many_samples_at_once_predict_what_each_does_alone(build, budget, monkeypatch):
    monkeypatch.setattr(batched, "BUDGET", budget)
    model = build().double()
    posterior = ss.Posterior(model)
    for _ in range(7):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        posterior.collect()
    x = torch.randn(9, 3, dtype=torch.float64)
    alone = torch.stack([posterior.sample(index).eval()(x).softmax(1) for index in range(7)])
    for batch_size in (None, 4):
        torch.testing.assert_close(torch.stack(list(posterior.outputs(x, batch_size=batch_size))), alone)
        torch.testing.assert_close(posterior.predict(x, batch_size=batch_size), alone.mean(0))
    assert model.training
