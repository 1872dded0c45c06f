"""Training loop: its steps, its state and what it refuses."""

import copy
import json
from functools import partial
from pathlib import Path

import compiled
import pytest
import torch
from runs import BATCH, EPOCHS, ROWS, STEPS, data, network, same, training
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import spikeslab as ss
from spikeslab.training import (
    Checkpoints,
    ClassifierEvaluation,
    Collect,
    Evaluate,
    Every,
    Prune,
    RunFolder,
    TensorBatches,
    Training,
    cross_entropy,
)


def test_the_loop_is_what_one_would_write_by_hand() -> None:
    run = training(None)
    run.run(epochs=3)
    torch.manual_seed(0)
    by_hand = training(None)
    pruner, posterior = by_hand.callbacks[0].pruner, by_hand.callbacks[1].posterior
    for epoch in range(3):
        for x, y in by_hand.order.data.epoch(epoch):
            by_hand.sampler.zero_grad()
            nn.functional.cross_entropy(by_hand.model(x), y).backward()
            by_hand.sampler.step()
            pruner.step()
            posterior.collect()
    assert same(run.model.state_dict(), by_hand.model.state_dict())
    assert same(run.sampler.state_dict(), by_hand.sampler.state_dict())


@pytest.mark.parametrize("stop", [1, 20, 35, STEPS // 2, STEPS - 1])
@pytest.mark.parametrize("fused", [None, False])
def test_a_state_continues_bit_for_bit(stop: int, fused: bool | None, tmp_path: Path) -> None:
    whole = training(None, fused=fused)
    whole.run(epochs=EPOCHS)
    first = training(None, fused=fused)
    first.run(steps=stop)
    Checkpoints(tmp_path).save(stop, first.state_dict())
    second = training(None, fused=fused)
    torch.randn(10)
    second.load_state_dict(Checkpoints(tmp_path).latest().state)
    second.run(epochs=EPOCHS)
    assert same(second.state_dict(), whole.state_dict())


@pytest.mark.parametrize("sampler_type", [ss.SGLD, ss.PSGLD])
def test_with_every_sampler_and_a_loader(sampler_type: type, tmp_path: Path) -> None:
    def make() -> Training:
        loader = DataLoader(TensorDataset(*data()), batch_size=BATCH, shuffle=True)
        return training(None, batches=loader, sampler_type=sampler_type)

    whole = make()
    whole.run(steps=30)
    first = make()
    first.run(steps=13)
    Checkpoints(tmp_path).save(13, first.state_dict())
    second = make()
    second.load_state_dict(Checkpoints(tmp_path).latest().state)
    second.run(steps=30)
    assert same(second.state_dict(), whole.state_dict())


def test_channels_last_weights_continue_bit_for_bit(tmp_path: Path) -> None:
    x, y = torch.randn(16, 3, 8, 8).to(memory_format=torch.channels_last), torch.randint(3, (16,))

    def make() -> Training:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        model = model.to(memory_format=torch.channels_last)
        prior = ss.SpikeSlab(ss.select_weights(model, "0.weight"), v0=0.01, v1=1.0)
        sampler = ss.SGHMC(model.parameters(), lr=0.01, num_data=16, prior=prior, seed=0)
        return Training(model, sampler, TensorBatches(x, y, batch_size=4))

    whole = make()
    whole.run(steps=20)
    first = make()
    first.run(steps=9)
    Checkpoints(tmp_path).save(9, first.state_dict())
    second = make()
    second.load_state_dict(Checkpoints(tmp_path).latest().state)
    second.run(steps=20)
    assert same(second.state_dict(), whole.state_dict())


def test_a_loss_that_is_not_finite_stops_at_once_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    run = training(None)
    inner = run.loss
    run.loss = lambda model, batch: inner(model, batch) * (float("nan") if run.steps == 9 else 1.0)
    with pytest.raises(
        ss.NonFiniteError,
        match=r"^The loss must be finite, but got nan at step 10: all weights and all outputs are finite, so check "
        r"the loss and the targets\.$",
    ):
        run.run(steps=20, folder=RunFolder(tmp_path, checkpoint_every=Every(steps=4)))
    assert Checkpoints(tmp_path / "checkpoints").steps() == [4, 8]
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["steps"]) == ("failed", 9)


def test_the_first_tensor_that_is_not_finite_is_named() -> None:
    broken, dividing = training(None), training(None)
    with torch.no_grad():
        broken.model[4].weight[0, 0] = float("inf")
    dividing.model[2].register_forward_hook(lambda module, inputs, output: output / 0.0)
    for run, message in (
        (broken, r"at step 1: the weight 4\.weight is not finite; try a lower lr\.$"),
        (dividing, r"but the output of ReLU 2 is not; try a lower lr\.$"),
    ):
        with pytest.raises(ss.NonFiniteError, match=message):
            run.run(steps=1)


def test_batches_and_inputs_go_to_where_the_model_is() -> None:
    """The meta device stands for a GPU: torch refuses to mix it with the CPU just so."""
    model, (x, y) = nn.Linear(4, 3, device="meta"), (torch.randn(5, 4), torch.zeros(5, dtype=torch.long))
    assert cross_entropy(model, (x, y)).is_meta
    ss.posterior.recalibrate(model, [x, (x, y)])
    with pytest.raises(NotImplementedError, match="copy out of meta"):  # the way back, to the labels, is tried as well
        ClassifierEvaluation(model, x, y)()


class Particular:
    """Takes no state but its own."""

    def __init__(self, key: int) -> None:
        self.key = key

    def state_dict(self) -> dict[str, int]:
        return {"key": self.key}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["key"] != self.key:
            raise ValueError("not mine")


def test_a_state_that_is_refused_late_changes_nothing() -> None:
    def make(key: int) -> Training:
        model = network()
        sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=ROWS, seed=0)
        return Training(model, sampler, TensorBatches(*data(), batch_size=8), parts={"part": Particular(key)})

    other, run = make(1), make(2)
    other.run(steps=3)
    run.run(steps=1)
    before = copy.deepcopy(run.state_dict())
    with pytest.raises(ValueError, match=r"^not mine$"):
        run.load_state_dict(other.state_dict())
    after = run.state_dict()
    assert all(same(after[part], before[part]) for part in before if part != "seconds")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def test_any_torch_optimizer_serves(tmp_path: Path) -> None:
    def make() -> Training:
        torch.manual_seed(0)
        model = network()
        return Training(model, torch.optim.Adam(model.parameters()), TensorBatches(*data(), batch_size=8))

    whole = make()
    whole.run(steps=12)
    make().run(steps=7, folder=tmp_path)
    second = make()
    second.run(steps=12, folder=RunFolder(tmp_path, resume=True))
    assert same(second.state_dict()["model"], whole.state_dict()["model"])


def test_bad_arguments_are_refused() -> None:
    run = training(None)
    stream = Training(run.model, run.sampler, DataLoader(Stream()))
    for call, error, message in (
        (run.run, ValueError, r"^epochs must be given, or steps instead, but got epochs None"),
        (Every, ValueError, r"^Every must have one of steps, epochs and seconds, but got none\.$"),
        (
            lambda: Training(run.model, run.sampler, [1], callbacks=[Evaluate(dict), Evaluate(dict)]),
            ValueError,
            r"^callbacks must have different names, but got 'evaluation', 'evaluation'\.$",
        ),
        (lambda: stream.run(epochs=1), TypeError, r"^data must have a length, but it has none: give steps"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_sampler_of_another_model_is_refused() -> None:
    model, batches = network(), TensorBatches(*data(), batch_size=8)
    twin, first = copy.deepcopy(model), next(iter(model.parameters()))
    for optimizer in (ss.SGLD(twin.parameters(), lr=0.1, num_data=ROWS), torch.optim.SGD(twin.parameters())):
        count = len(list(twin.parameters()))
        refusal = rf"^sampler must move parameters of the model alone, but {count} of its {count} parameters are not: "
        with pytest.raises(ValueError, match=refusal):
            Training(model, optimizer, batches)
    with pytest.raises(ValueError, match=r"but 1 of its 2 parameters is not: create it from the parameters of this"):
        Training(model, torch.optim.SGD([first, next(iter(twin.parameters()))]), batches)
    Training(model, torch.optim.SGD([first]), batches)  # some of the model's alone


@pytest.mark.parametrize("kind", ["pruner", "posterior"])
def test_callbacks_over_another_model_are_refused(kind: str) -> None:
    def callback(model: nn.Module) -> Prune | Collect:
        if kind == "posterior":
            return Collect(ss.Posterior(model, burn_in=0, thin=1))
        return Prune(ss.Pruner(ss.select_weights(model, "*4.weight"), ss.cubic_sparsity(0.5, total=4)))

    model, batches = network(), TensorBatches(*data(), batch_size=8)
    sampler = ss.SGLD(model.parameters(), lr=0.1, num_data=ROWS)
    message = f"^callbacks must prune and collect weights of the model, but the {kind} is over those of another[.]$"
    with pytest.raises(ValueError, match=message):
        Training(model, sampler, batches, callbacks=[callback(network())])
    Training(model, sampler, batches, callbacks=[callback(model)])
    Training(nn.Sequential(model), sampler, batches, callbacks=[callback(model)])


def test_data_and_gradients_that_are_not_finite_are_named() -> None:
    x, y = data()
    x[3, 2] = float("inf")
    run = training(None, batches=[(x, y)])
    model = nn.Linear(1, 1)
    plain = Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), [torch.ones(1)], lambda m, x: (m(x) * 0.0).sum().sqrt()
    )
    before = model.weight.detach().clone()
    for call, message in (
        (lambda: run.run(steps=1), r"the input of the model is not finite, so check the data\.$"),
        (lambda: plain.run(steps=1), r"^The gradient of weight must be finite, but got NaN or Inf at step 1: "),
    ):
        with pytest.raises(ss.NonFiniteError, match=message):
            call()
    assert torch.equal(model.weight, before)


def test_more_bad_arguments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = training(None)
    vector = Training(run.model, run.sampler, [data()], lambda model, batch: model(batch[0]).mean(1))
    for call, error, message in (
        (
            lambda: RunFolder(tmp_path, resume="yes"),
            ValueError,
            "^resume must be True, False or the step of a checkpoint",
        ),
        (lambda: RunFolder(tmp_path, resume=-1), ValueError, "^resume must be True, False or the step of a checkpoint"),
        (
            lambda: RunFolder(tmp_path, checkpoint_every=5),
            TypeError,
            r"^checkpoint_every must be an Every, .* got 5\.$",
        ),
        (lambda: RunFolder(tmp_path / "file"), ValueError, r"^folder must be a folder, but .*file is a file\.$"),
        (
            lambda: Training(run.model, run.sampler, [1], callbacks=[run.callbacks[1].posterior]),
            TypeError,
            r"^callbacks must be callbacks such as Collect\(posterior\), but got <",
        ),
        (
            lambda: Training(run.model, run.sampler, []).run(epochs=2),
            ValueError,
            r"^data must hold at least one batch, but got none\.$",
        ),
        (
            lambda: vector.run(steps=1),
            ValueError,
            r"^loss must return one number, the mean of the batch, as a tensor, but got the shape \(64,\)\.$",
        ),
        (
            lambda: Training(run.model, run.sampler, [data()], lambda model, batch: 0.5).run(steps=1),
            ValueError,
            r"^loss must return one number, the mean of the batch, as a tensor, but got 0\.5\.$",
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def squared(output, target):
    return (output - target).square().mean()


LAMBDA = "give lambda model, batch: {0}(model(batch[0]), batch[1])."


@pytest.mark.parametrize(
    ("loss", "name", "call"),
    [
        (F.cross_entropy, "cross_entropy", "F.cross_entropy"),
        (partial(F.cross_entropy, label_smoothing=0.1), "cross_entropy", "F.cross_entropy"),
        (nn.CrossEntropyLoss(), "CrossEntropyLoss()", "nn.CrossEntropyLoss()"),
        (squared, "squared", "squared"),
        (lambda output, target: F.mse_loss(output, target), "<lambda>", "loss"),
        (lambda output, target: F.cross_entropy(output, target), "<lambda>", "loss"),
    ],
)
def test_a_loss_of_outputs_and_targets_is_refused_in_one_sentence(loss, name: str, call: str) -> None:
    run = training(None)
    with pytest.raises(TypeError) as error:
        Training(run.model, run.sampler, [data()], loss).run(steps=1)
    message = f"loss must be a function of (model, batch), but {name} is one of (input, target): {LAMBDA.format(call)}"
    assert str(error.value) == message
    with pytest.raises(TypeError, match=r"^loss must be a function of \(model, batch\), but got 5\.$"):
        Training(run.model, run.sampler, [data()], 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 1}, "model must be a torch.nn.Module, but got int."),
        ({"sampler": None}, "sampler must be a sampler or a torch optimizer, but got NoneType."),
        ({"data": None}, "data must be a list or a loader of batches, but got None."),
        (
            {"loss": lambda model, x, y: 0.0},
            "loss must be a function of (model, batch), but its arguments are (model, x, y).",
        ),
        ({"loss": lambda model: 0.0}, "loss must be a function of (model, batch), but its arguments are (model)."),
    ],
)
def test_arguments_of_another_kind_are_one_sentence(arguments, message: str) -> None:
    run = training(None)
    with pytest.raises(TypeError) as error:
        Training(**{"model": run.model, "sampler": run.sampler, "data": [data()]} | arguments)
    assert str(error.value) == message
    with pytest.raises(TypeError, match=r"^callbacks must be a list of callbacks, but got <"):
        Training(run.model, run.sampler, [data()], callbacks=run.callbacks[0])


def test_what_the_sentence_about_a_loss_says_works() -> None:
    run = training(None)
    Training(run.model, run.sampler, [data()], lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])).run(
        steps=1
    )


def test_other_errors_of_a_loss_stay_as_they_are() -> None:
    run = training(None)
    for loss, message in (
        (lambda model, batch: model.nothing, "has no attribute 'nothing'"),
        (lambda model, batch: F.mse_loss(batch[0], None), "NoneType"),
        (lambda model, batch: F.mse_loss(model(batch[0]), batch), "'tuple' object has no attribute 'size'"),
    ):
        with pytest.raises((AttributeError, TypeError), match=message) as error:
            Training(run.model, run.sampler, [data()], loss).run(steps=1)
        assert "loss must" not in str(error.value)


def classifier(precision: str) -> Training:
    """Return a run of a small classifier, at its start."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.randn(64, 8)
    sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=64, temperature=1e-3, seed=0)
    data = TensorBatches(x, (x[:, 0] > 0).long(), batch_size=16)
    return Training(model, sampler, data, precision=precision)


def test_products_are_in_bfloat16_and_the_state_is_in_float32() -> None:
    run = classifier("bfloat16")
    seen: list[torch.dtype] = []
    run.model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    run.run(steps=3)
    assert seen == 3 * [torch.bfloat16]
    tensors = [*run.model.state_dict().values(), *(p.grad for p in run.model.parameters())]
    assert {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {torch.float32}
    assert {buf.dtype for state in run.sampler.state.values() for buf in state.values()} == {torch.float32}


def test_it_learns_what_float32_learns() -> None:
    whole, half = classifier("float32"), classifier("bfloat16")
    for run in (whole, half):
        run.run(epochs=30)
    assert half.take_loss() == pytest.approx(whole.take_loss(), rel=0.02)
    for ours, theirs in zip(half.model.parameters(), whole.model.parameters(), strict=True):
        assert not torch.equal(ours, theirs), "nothing was rounded"


def test_a_run_in_bfloat16_continues_bit_for_bit(tmp_path: Path) -> None:
    def make() -> Training:
        made = training(None)
        made.precision = "bfloat16"
        return made

    whole = make()
    whole.run(epochs=EPOCHS)
    first = make()  # anew, since it seeds the generator of the dropout
    first.run(steps=17)
    Checkpoints(tmp_path).save(17, first.state_dict())
    second = make()
    second.load_state_dict(Checkpoints(tmp_path).latest().state)
    second.run(epochs=EPOCHS)
    for ours, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^precision must be one of 'float32', 'bfloat16', but got 'float16'\.$"):
        classifier("float16")


def test_the_loop_runs_a_compiled_model():
    def trained(change) -> compiled.CompiledChain:
        chain = compiled.CompiledChain(change)
        batches = TensorBatches(compiled.X, compiled.Y, batch_size=8, seed=0)
        callbacks = [Prune(chain.pruner), Collect(chain.posterior)]
        Training(chain.model, chain.sampler, batches, callbacks=callbacks).run(steps=6)
        return chain

    one, other = trained(compiled.plain), trained(compiled.in_place)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(other.posterior.predict(compiled.X), one.posterior.predict(compiled.X))
