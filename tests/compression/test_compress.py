"""What ``compress`` promises: the input stays, counts are exact, samples share their zeros, nothing is lost."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from records import change_record
from safetensors.torch import load_file
from small import ROWS, batches, compress_channels, compress_small, data, dead, equal, frozen, network, tensors
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import spikeslab as ss
from spikeslab.compression import METHODS, BatchError, Compression, Settings, compact, compress
from spikeslab.compression.methods import WEIGHTS_ONLY
from spikeslab.compression.tasks import count_batches
from spikeslab.paper.demo import load_digits
from spikeslab.training import Callback, CheckpointError, Every, TensorBatches, Training


def zeros(model: nn.Module) -> Tensor:
    """Return the zeros of all layers that are pruned by default, in a row."""
    return torch.cat([model.get_submodule(name).weight.flatten() for name in ("0", "3", "5")]) == 0


def test_a_network_is_trained_in_the_precision_of_the_settings_and_judged_in_float32() -> None:
    seen: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    model = network()
    model[3].register_forward_hook(
        lambda module, inputs, output: seen[module.training and torch.is_grad_enabled()].add(output.dtype)
    )
    compress_small(model, val_loader=[data(5)], settings=Settings(precision="bfloat16", lr=0.05))
    assert seen == {True: {torch.bfloat16}, False: {torch.float32}}


def test_the_input_stays_as_it_is_to_the_bit() -> None:
    model = network()
    model[1].eval()
    before, modes = tensors(model), [module.training for module in model.modules()]
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    result = compress_small(model, val_loader=[data(5)])
    assert equal(tensors(model), before)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert np.array_equal(np.random.get_state()[1], generators[2])  # noqa: NPY002
    assert not equal(tensors(result.model), before)


@pytest.mark.parametrize(("count", "total"), [("network", 418), ("layers", 352)])
@pytest.mark.parametrize("sparsity", [0.1, 0.37, 0.6])
def test_the_zeros_are_exactly_as_many_as_were_asked_for(count: str, total: int, sparsity: float) -> None:
    result = compress_small(sparsity=sparsity, count=count)
    assert int(zeros(result.model).sum()) == round(sparsity * total)
    report = result.report
    assert report["sparse_layers"]["nonzeros"] == 352 - round(sparsity * total)
    assert report["network"]["weights"] == 418
    assert report["network"]["nonzeros"] == sum(int(p.count_nonzero()) for p in result.model.parameters())
    assert [layer["name"] for layer in report["layers"]] == ["0.weight", "3.weight", "5.weight"]
    assert sum(layer["nonzeros"] for layer in report["layers"]) == report["sparse_layers"]["nonzeros"]


@pytest.mark.parametrize("method", ["a-sghmc-sa", "dpf", "magnitude", "prior-annealing"])
def test_a_pattern_leaves_two_of_four(method: str) -> None:
    arguments = {"sparsity": 0.9, "method": method, "settings": Settings(pattern="2:4", lr=0.05)}
    model = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, 2))
    x, y = data()
    result = compress_small(model, [(x[:, :3], y)], num_data=ROWS, **arguments)
    for sample in (result.model, *(result.posterior.sample(index) for index in range(len(result.posterior)))):
        for name in ("3.weight", "4.weight"):
            assert sample.get_parameter(name).reshape(-1, 4).eq(0.0).sum(1).eq(2).all()
    assert result.model[0].weight.count_nonzero() == 48  # four does not divide its inputs
    assert (result.report["target"], result.report["count"]) == (0.5, "layers")


def test_samples_share_their_zeros_and_have_their_own_statistics() -> None:
    result = compress_small(sparsity=0.4, samples=5)
    samples = [result.posterior.sample(index) for index in range(len(result.posterior))]
    assert len(samples) == 5
    assert all(torch.equal(zeros(sample), zeros(result.model)) for sample in samples)
    means = torch.stack([sample[1].running_mean for sample in samples])
    assert len(means.unique(dim=0)) == 5, "batch normalisation belongs to each sample"
    assert equal(tensors(samples[-1]), tensors(result.model)), "the last sample is the network at the end"
    assert int(zeros(result.posterior.mean_model()).sum()) == round(0.4 * 418)


def test_the_network_is_an_ordinary_one() -> None:
    result = compress_small()
    assert type(result.model) is nn.Sequential
    assert not any(module.training for module in result.model.modules())
    fresh = network()
    fresh.load_state_dict(result.model.state_dict())
    assert list(fresh.state_dict()) == list(result.model.state_dict())
    assert not list(result.model._forward_hooks)


class Tied(nn.Module):
    """Encoder and decoder are one matrix, and the loss wants a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.code = nn.Linear(16, 16, bias=False)
        self.again = nn.Linear(16, 16, bias=False)
        self.again.weight = self.code.weight
        self.last = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        logits: Tensor = self.last(self.again(self.code(hidden).relu()))
        return logits


def test_tied_weights_and_dictionaries(tmp_path: Path) -> None:
    x, y = data()
    dictionaries = [{"image": x[i::6], "label": y[i::6]} for i in range(6)]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["image"]), batch["label"])

    result = compress_small(Tied(), dictionaries, loss=loss, num_data=ROWS, val_loader=dictionaries, epochs=10)
    assert result.model.again.weight is result.model.code.weight
    assert [layer["name"] for layer in result.report["layers"]] == ["first.weight", "code.weight", "last.weight"]
    assert result.report["network"]["weights"] == sum(p.numel() for p in Tied().parameters())
    metrics = result.report["metrics"]
    assert set(metrics) == {"dense", "sparse", "average"}
    assert metrics["sparse"]["loss"] < metrics["dense"]["loss"]
    losses = [float(np.mean([loss(result.posterior.sample(i), b).item() for b in dictionaries])) for i in range(3)]
    assert metrics["average"]["loss"] == pytest.approx(np.mean(losses))
    result.save(tmp_path / "saved")
    fresh = Tied()
    fresh.load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"))
    assert torch.equal(fresh.again.weight, result.model.code.weight)


def test_floating_point_targets_are_a_regression() -> None:
    x, _ = data()
    y = x[:, 0] - 2.0 * x[:, 1]
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    result = compress_small(model, TensorBatches(x, y, batch_size=16), val_loader=[(x, y)], epochs=20)
    found = result.evaluation["sparse"]
    with torch.no_grad():
        errors = result.model(x).squeeze(1) - y
    assert found["rmse"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-5)
    assert found["rmse"] < 0.5 * result.evaluation["dense"]["rmse"]
    assert result.posterior.predict(x).shape == (ROWS, 1), "means, not probabilities"


def test_a_loss_of_ones_own_on_labelled_batches_keeps_the_metrics_of_a_classifier() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)

    result = compress_small(loss=loss, val_loader=[data(5)])
    assert {"accuracy", "nll", "ece", "loss"} <= set(result.report["metrics"]["sparse"])
    assert result.report["task"] == "classification"


def test_the_seed_decides_everything_with_a_loader_that_shuffles() -> None:
    loader = DataLoader(TensorDataset(*data()), batch_size=16, shuffle=True)
    first, again, other = (tensors(compress_small(train=loader, seed=seed).model) for seed in (0, 0, 1))
    assert equal(first, again)
    assert not equal(first, other)


def test_the_evaluation_is_that_of_the_models() -> None:
    x, y = data(5)
    result = compress_small(val_loader=[(x[:50], y[:50]), (x[50:], y[50:])], epochs=10)
    with torch.no_grad():
        right = float((result.model(x).argmax(1) == y).double().mean())
        average = float((result.posterior.predict(x).argmax(1) == y).double().mean())
    assert result.evaluation["sparse"]["accuracy"] == right
    assert result.evaluation["average"]["accuracy"] == average
    assert result.evaluate([(x, y)])["sparse"]["accuracy"] == right
    assert [record["epoch"] for record in result.history] == list(range(1, 11))
    assert result.history[-1]["evaluation"]["accuracy"] == right
    assert result.history[-1]["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert result.history[0]["lr"] > result.history[-1]["lr"]


class Stop(Callback):
    """Ends the process, or the run, after a step."""

    def __init__(self, step: int, kill: bool) -> None:
        self.step, self.kill = step, kill

    def after_step(self, run: Training) -> None:
        if run.steps == self.step:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("a crash")


def in_folder(folder: Path, method: str, *callbacks: Callback):
    return Compression(
        network(),
        DataLoader(TensorDataset(*data()), batch_size=16, shuffle=True),
        [data(5)],
        sparsity=0.5,
        epochs=5,
        method=method,
        settings=Settings(samples=4, mask_every=3),
        folder=folder,
        resume=True,
        progress=False,
        report=False,
        callbacks=callbacks,
        checkpoint_every=Every(steps=4),
    ).run()


@pytest.mark.parametrize("method", ["a-sghmc-sa", "marginal", "prior-annealing", "dpf"])
def test_a_run_that_crashed_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    whole = in_folder(tmp_path / "whole", method)
    for step in (3, 17, 27):  # before the first checkpoint, while pruning, while collecting
        with pytest.raises(RuntimeError, match=r"^a crash$"):
            in_folder(tmp_path / "broken", method, Stop(step, kill=False))
    assert _same_results(in_folder(tmp_path / "broken", method), whole)
    assert _same_results(in_folder(tmp_path / "broken", method), whole), "a finished run has nothing left to do"


def test_a_run_that_was_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = in_folder(tmp_path / "whole", "a-sghmc-sa")
    process = multiprocessing.get_context("fork").Process(
        target=in_folder, args=(tmp_path / "killed", "a-sghmc-sa", Stop(26, kill=True))
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert _same_results(in_folder(tmp_path / "killed", "a-sghmc-sa"), whole)


def _same_results(a: object, b: object) -> bool:
    samples = all(equal(a.posterior.tensors(i), b.posterior.tensors(i)) for i in range(4))
    return equal(tensors(a.model), tensors(b.model)) and samples and a.report == b.report and a.history == b.history


def test_a_folder_holds_the_results_and_is_not_begun_twice(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = compress_small(folder=folder, val_loader=[data(5)])
    assert {
        "run.json",
        "metrics.jsonl",
        "checkpoints",
        "posterior",
        "model.safetensors",
        "sparse.safetensors",
        "report.json",
    } <= {path.name for path in folder.iterdir()}
    assert equal(load_file(folder / "model.safetensors"), tensors(result.model))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError) as caught:
        compress_small(folder=folder)
    assert str(caught.value) == (
        f"folder must not hold a run yet, but {folder} does: continue it with resume=True, or choose another folder."
    )
    for call, message in (
        (
            lambda: compress_small(folder=folder, resume=True, sparsity=0.4, val_loader=[data(5)]),
            r"^Cannot resume: .* other settings: target was 0\.5 and is now 0\.4\.$",
        ),
        (
            lambda: compress_small(folder=folder, resume=True, samples=2, val_loader=[data(5)]),
            r"^Cannot resume: .* other settings: samples was 3 and is now 2\.$",
        ),
    ):
        with pytest.raises(CheckpointError, match=message):
            call()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_other_data_are_refused_unless_they_are_wanted(tmp_path: Path) -> None:
    compress_small(folder=tmp_path)
    other = TensorBatches(*data(9), batch_size=batches().batch_size, seed=batches().seed)
    with pytest.raises(CheckpointError, match=r"(?s)^Cannot resume: these settings.*\ndata\.sha256 +\| "):
        compress_small(train=other, folder=tmp_path, resume=True)
    compress_small(train=other, folder=tmp_path, resume=True, on_change={"data": "new"})


def test_a_setting_that_an_older_record_lacks_counts_as_its_default(tmp_path: Path) -> None:
    compress_small(folder=tmp_path, settings=Settings(samples=3))
    change_record(tmp_path / "run.json", lambda record: record["settings"].pop("crest_lr"))
    with pytest.raises(CheckpointError, match=r" with other settings: crest_lr was 0\.2 and is now 0\.5\.$"):
        compress_small(folder=tmp_path, resume=True, settings=Settings(crest_lr=0.5))
    compress_small(folder=tmp_path, resume=True, settings=Settings(samples=3))


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_something_else_is_refused(resume: bool, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("mine")
    with pytest.raises(FileExistsError, match=r"^folder must be a new or an empty folder, but .* holds something\.$"):
        compress_small(folder=tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    x, y = data()
    x[40] = torch.nan
    with pytest.raises(ss.NonFiniteError, match=r"^The loss must be finite, but got nan at step \d+: the input of the"):
        compress_small(train=TensorBatches(x, y, batch_size=16))


def test_a_loader_without_a_length_is_not_run_through_to_count_it() -> None:
    class Stream:
        batches_read = 0

        def __iter__(self):
            for batch in batches():
                self.batches_read += 1
                yield batch

    stream = Stream()
    compression = Compression(network(), stream, sparsity=0.5, epochs=2, num_data=ROWS, lr=0.05, progress=False)
    assert compression.prepare().problem.timeline.total == 2 * len(batches())
    assert stream.batches_read == 1
    assert len(compression.run().posterior) > 0
    with pytest.raises(TypeError, match=r"^train_loader must have a length, or batches with tensors whose rows"):
        count_batches(iter([]), "abc", num_data=10)


def test_settings_of_another_kind_and_lazy_layers_are_refused() -> None:
    lazy = nn.Sequential(nn.Linear(4, 16), nn.LazyLinear(16), nn.Linear(16, 2))
    for call, error, message in (
        (
            lambda: compress_small(settings={"lr": 0.1}),
            TypeError,
            r"^settings must be a spikeslab\.compression\.Settings or None, but got \{'lr': 0\.1\}\.$",
        ),
        (
            lambda: compress_small(lazy),
            ValueError,
            r"^model must be a module without lazy parameters, but has '1\.weight', '1\.bias': run one batch ",
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def test_one_logit_with_a_loss_of_its_own_is_judged_by_that_loss() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(batch[0])[:, 0], batch[1].float())

    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    result = compress_small(model, val_loader=[data(5)], loss=loss)
    assert list(result.evaluation["sparse"]) == ["loss"]


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_wrappers_are_taken_off(wrap: Callable[[nn.Module], nn.Module]) -> None:
    plain, wrapped = compress_small(), compress_small(wrap(network()))
    assert equal(tensors(plain.model), tensors(wrapped.model))
    assert type(wrapped.model) is nn.Sequential


LONE = [torch.randn(8, 4)]


def broken(name: str) -> nn.Module:
    model = network()
    model.state_dict()[name].view(-1)[0] = math.nan
    return model


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": broken("3.weight")}, ValueError, "model must start from finite weights, but '3.weight' "
         "holds NaN or infinity."),
        ({"model": broken("1.running_var")}, ValueError, "model must start from finite weights, but "
         "'1.running_var' holds NaN or infinity."),
        ({"sparsity": 0.6, "settings": Settings(floor=0.9)}, ValueError, "sparsity must be at most 0.0813397, since 3 "
         "layers must keep 318 weights in all, but got 0.6, which is 251 zeros of 418."),
        ({"model": 3}, TypeError, "model must be a torch.nn.Module, but got int."),
        ({"sparsity": 1.0}, ValueError, "sparsity must be a number in (0, 1), but got 1.0."),
        ({"sparsity": 0.9}, ValueError, "sparsity must be at most 0.834928, since 3 layers must keep 3 weights in "
         "all, but got 0.9, which is 376 zeros of 418: with count='layers' it is a share of the weights to prune."),
        ({"sparsity": 0.6, "weights": "3.weight", "settings": Settings(floor=0.1)}, ValueError, "sparsity must be at "
         "most 0.550239, since 1 layer must keep 26 weights in all, but got 0.6, which is 251 zeros of 418: choose "
         "more weights, or count='layers'."),
        ({"sparsity": 0.9999, "count": "layers"}, ValueError, "sparsity must be at most 0.991477, since 3 layers "
         "must keep 3 weights in all, but got 0.9999, which is 352 zeros of 352."),
        ({"epochs": 0}, ValueError, "epochs must be an integer >= 1, but got 0."),
        ({"method": "magic"}, ValueError, "method must be one of 'a-sghmc-sa', 'sghmc-sa', 'a-sghmc-em', 'a-sghmc', "
         "'marginal', 'prior-annealing', 'gmp', 'l1', 'l2', 'dpf', 'magnitude', but got 'magic'."),
        ({"count": "all"}, ValueError, "count must be one of 'network', 'layers', but got 'all'."),
        ({"train": LONE}, TypeError, "train_loader must yield pairs (x, y) or mappings with 'labels' where no loss is "
         "given, but got a single tensor of shape (8, 4)."),
        ({"train": [{"x": 1}]}, TypeError, "train_loader must yield pairs (x, y) or mappings with 'labels' where no "
         "loss is given, but got a dict of 'x'."),
        ({"train": [(1, 2, 3)]}, TypeError, "train_loader must yield pairs (x, y) or mappings with 'labels' where no "
         "loss is given, but got a tuple of 3 (int, int, int)."),
        ({"train": []}, ValueError, "train_loader must hold at least one batch, but got none."),
        ({"train": iter([data()])}, TypeError, "train_loader must be a loader or a list of batches that can be run "
         "through again, but got a list_iterator."),
        ({"val_loader": torch.zeros(3)}, TypeError, "val_loader must be a loader or a list of batches that can be run "
         "through again, but got a single tensor."),
        ({"val_loader": LONE}, BatchError, "val_loader must yield batches that the model and the loss take, but got a "
         "single tensor of shape (8, 4): it must be a pair (x, y) or a mapping with 'labels'."),
        ({"val_loader": [(torch.zeros(8, 4), torch.full((8,), 7))]}, BatchError, "val_loader must yield batches that "
         "the model and the loss take, but got a pair of shapes (8, 4) and (8,): labels must be below 2, the number of "
         "outputs, and one is 7."),
        ({"train": [(torch.zeros(8, 5), torch.zeros(8, dtype=torch.long))]}, BatchError, "train_loader must yield "
         "batches that the model and the loss take, but got a pair of shapes (8, 5) and (8,): RuntimeError: mat1 and "
         "mat2 shapes cannot be multiplied (8x5 and 4x16)."),
        ({"train": [(torch.zeros(8, 4), torch.full((8,), 7))]}, BatchError, "train_loader must yield batches that the "
         "model and the loss take, but got a pair of shapes (8, 4) and (8,): IndexError: Target 7 is out of bounds."),
        ({"train": [(torch.zeros(8, 4), torch.zeros(8))]}, BatchError, "train_loader must yield batches that the model "
         "and the loss take, but got a pair of shapes (8, 4) and (8,): targets must have the shape of the outputs, "
         "(8, 2)."),
        ({"loss": lambda m, b: 0.5}, BatchError, "loss must return the mean loss of a batch, a tensor of one number, "
         "but got a float."),
        ({"loss": lambda m, b: m(b[0]).sum(1)}, BatchError, "loss must return the mean loss of a batch, a tensor of "
         "one number, but got a single tensor of shape (16,)."),
        ({"loss": lambda m, b: torch.zeros(())}, BatchError, "loss must return a tensor that has a gradient, but got "
         "one without."),
        ({"settings": Settings(prior={"sigma_in_rho": False}), "method": "marginal"}, ValueError, "sigma_in_rho must "
         "be True with adapt=Marginal(), but got False."),
        ({"weights": ["3.*", "conv*"]}, ValueError, "weights must each match a parameter, but 'conv*' "
         "matched none of '0.weight', '0.bias', '1.weight', '1.bias', '3.weight', '3.bias', '5.weight', '5.bias'."),
        ({"model": nn.Linear(4, 2).requires_grad_(False)}, ValueError, "model must have a trained Conv or Linear "
         "layer, but got 'weight', which is not trained: weights can name others."),
        ({"model": nn.Flatten()}, ValueError, "model must have a trained Conv or Linear layer, but got none at all: "
         "weights can name others."),
        ({"sparsity": 0.7, "settings": Settings(pattern="2:4")}, ValueError, "sparsity must be 0.5 with "
         "pattern='2:4', but got 0.7."),
        ({"structure": "channels", "settings": Settings(pattern="2:4")}, ValueError, "pattern must be None with "
         "structure='channels', but got '2:4'."),
        ({"settings": Settings(pattern="1:3"), "sparsity": 0.9}, ValueError, "pattern must divide the inputs of a "
         "layer, but they have 4, 16."),
        ({"train": {"a": 1}.items(), "loss": lambda m, b: 0}, ValueError, "num_data must be the number of "
         "training examples, since train_loader has no dataset with a length, but got None."),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error) as caught:
        compress_small(**arguments)
    assert str(caught.value) == message


def test_a_later_batch_of_another_form_is_one_sentence(tmp_path: Path) -> None:
    x, y = data()
    with pytest.raises(BatchError) as caught:
        compress_small(train=[(x, y), (x[:8, :3], y[:8])], folder=tmp_path / "run")
    assert str(caught.value) == (
        "train_loader must yield batches that the model and the loss take, but got a pair of shapes (8, 3) and (8,): "
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 4x16)."
    )


def test_ninety_percent_of_a_digits_network_can_go() -> None:
    digits = load_digits()
    train = TensorBatches(digits.x_train.flatten(1), digits.y_train, batch_size=64)
    test = [(digits.x_test.flatten(1), digits.y_test)]
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(12):
        for x, y in train.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    result = compress(
        model, train, test, sparsity=0.9, count="layers", weights="[02].weight", epochs=15, progress=False
    )
    dense, sparse, average = (result.evaluation[name]["accuracy"] for name in ("dense", "sparse", "average"))
    assert dense > 0.95
    assert sparse > dense - 0.02
    assert average > dense - 0.02
    assert result.report["sparse_layers"]["nonzeros"] == 24_576 - round(0.9 * 24_576)


def test_a_model_that_cannot_be_copied_is_one_sentence() -> None:
    model = network()
    prune.l1_unstructured(model[3], "weight", amount=0.5)
    model(data()[0])
    with pytest.raises(
        ValueError,
        match=r"^model must be a module that copy\.deepcopy can copy, but it failed with .*finalize\(model\)",
    ):
        compress_small(model, weights="*.weight_orig")
    compress_small(ss.compression.finalize(model))


@pytest.mark.parametrize("method", [method for method in METHODS if method not in WEIGHTS_ONLY])
def test_every_method_for_channels_ends_on_the_channels_asked_for(method: str) -> None:
    result = compress_channels(method=method, settings=Settings(v0=0.5, v1=20.0))
    for name in ("0.weight", "3.weight"):
        gone = [dead(result.posterior.tensors(index), name) for index in range(3)]
        assert int(gone[0].sum()) == 8
        assert all(torch.equal(mask, gone[0]) for mask in gone)
    assert result.report["channels"] == {"0.weight": {"all": 16, "living": 8}, "3.weight": {"all": 16, "living": 8}}
    assert result.report["structure"] == "channels"


def test_a_dead_channel_is_zero_for_every_input_and_none_is_kept_to_carry_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(200, 2),
    )  # fmt: skip
    nn.init.uniform_(model[1].bias, 0.5, 1.0)
    train = TensorBatches(3.0 + torch.randn(32, 1, 5, 5), torch.arange(32) % 2, batch_size=8)
    result = compress_channels(model, train)
    gone = dead(result.model.state_dict(), "0.weight")
    outputs = result.model[:2](torch.randn(4, 1, 5, 5))
    assert int(gone.sum()) == 4
    assert bool((outputs[:, gone] == 0).all())
    narrow = compact(result.model, torch.zeros(1, 1, 5, 5)).model
    assert (narrow[0].out_channels, narrow[3].in_channels, narrow[3].out_channels) == (4, 4, 4)
    for index in range(3):
        sample = result.posterior.sample(index)
        assert bool((sample.eval()[:2](torch.randn(4, 1, 5, 5))[:, gone] == 0).all())


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x if x.sum() > 0 else -x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"structure": "rows"}, "structure must be one of 'weights', 'channels', but got 'rows'."),
        ({"method": "dpf"}, "method must be one that prunes channels with structure='channels', but got 'dpf'."),
        ({"method": "prior-annealing"}, "method must be one that prunes channels with structure='channels', but got "
         "'prior-annealing'."),
        ({"weights": "5.weight"}, "weights must name layers with free channels, '0.weight', '3.weight', but got "
         "'5.weight'."),
        ({"weights": "*.bias"}, "weights must name layers with free channels, '0.weight', '3.weight', but got none."),
        ({"weights": {"0.weight": "2"}}, "weights must give '0.weight' a batch normalisation with a scale and a shift "
         "for each of its 16 channels, or None, but got '2'."),
        ({"model": nn.Linear(4, 2)}, "model must have a layer with free channels, but got none: name one in Python, "
         "as in {'conv1.weight': 'bn1'}."),
        ({"model": frozen("0", "4", "3")}, "model must have a trained layer with free channels, but '0.weight', "
         "'3.weight' has requires_grad=False, or its batch normalisation has."),
        ({"model": frozen("1"), "weights": "0.weight"}, "weights must be trained, but '0.weight' has "
         "requires_grad=False, or its batch normalisation has."),
        ({"model": frozen("1"), "weights": {"0.weight": "1"}}, "weights must be trained, but '0.weight' has "
         "requires_grad=False, or its batch normalisation has."),
        ({"model": Untraceable()}, "model must be one that torch.fx can trace, but tracing stopped with 'symbolically "
         "traced variables cannot be used as inputs to control flow': name its layers in Python, as in "
         "{'conv1.weight': 'bn1'}."),
        ({"sparsity": 0.9, "settings": Settings(floor=4)}, "sparsity must be at most 0.75, since 2 layers must keep 8 "
         "channels in all, but got 0.9, which is 29 zeros of 32."),
        ({"sparsity": 0.9, "settings": Settings(floor=0.25)}, "sparsity must be at most 0.75, since 2 layers must keep "
         "8 channels in all, but got 0.9, which is 29 zeros of 32."),
    ],
)  # fmt: skip
def test_bad_channels_are_one_sentence(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        compress_channels(**arguments)
    assert str(caught.value) == message


def test_half_of_the_channels_of_a_digits_network_go_for_real() -> None:
    pytest.importorskip("sklearn")
    from spikeslab.paper.demo import load_digits

    digits = load_digits()
    train = TensorBatches(digits.x_train.flatten(1), digits.y_train, batch_size=64)
    x_test = digits.x_test.flatten(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(6):
        for x, y in train.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    result = compress_channels(model, train, val_loader=[(x_test, digits.y_test)], epochs=6)
    assert result.evaluation["dense"]["accuracy"] > 0.95
    assert result.evaluation["sparse"]["accuracy"] > result.evaluation["dense"]["accuracy"] - 0.03
    assert result.evaluation["average"]["accuracy"] > result.evaluation["dense"]["accuracy"] - 0.03
    compacted = compact(result.model, x_test[:1])
    with torch.no_grad():
        torch.testing.assert_close(compacted.model(x_test), result.model(x_test), rtol=1e-4, atol=1e-4)
    before, after = compacted.report.parameters
    assert after < 0.4 * before
    assert result.report["compacted"]["parameters"] == {"before": before, "after": after}
    macs = dict(zip(("before", "after"), compacted.report.multiply_adds, strict=True))
    assert result.report["compacted"]["multiply_adds"] == macs


def test_a_run_of_an_early_version_continues_with_the_settings_it_had(tmp_path: Path) -> None:
    options = {"folder": tmp_path / "run", "settings": Settings(prune_every=1)}
    compress_small(**options)
    change_record(tmp_path / "run" / "run.json", lambda record: record["settings"].pop("prune_every"))
    compress_small(**options, resume=True)
