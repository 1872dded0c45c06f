"""Networks with an output for every token, and those that take and return mappings, are judged by what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from small import compress_small
from torch import Tensor, nn
from torch.nn import functional as F

import spikeslab as ss
from spikeslab.compression.compress import Compression
from spikeslab.compression.tasks import Evaluation, find_task
from spikeslab.forward_pass import FIRST, LAST, NEXT

LENGTH = 8


class Letters(nn.Module):
    """A recurrent network with an output for each letter, with the classes last or in dimension 1."""

    def __init__(self, letters: int, last: bool = True) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(letters, 8), nn.LSTM(8, 16, batch_first=True)
        self.middle, self.head = nn.Linear(16, 32), nn.Linear(32, letters)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.head(self.middle(self.hidden(self.embedding(x))[0]).relu())
        return outputs if self.last else outputs.movedim(-1, 1)


def text(letters: int) -> list[tuple[Tensor, Tensor]]:
    x = torch.randint(letters, (48, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return [(part[:, :-1], part[:, 1:]) for part in x.split(12)]


def flat_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def smooth_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), label_smoothing=0.1)


def compress_letters(model: nn.Module, batches: list[Any], **arguments: Any) -> Any:
    options = {"weights": ["hidden.weight*", "middle.weight"], "num_data": 48, "samples": 2, "epochs": 3}
    return compress_small(model, batches, val_loader=batches, **options, **arguments)


@pytest.mark.parametrize("letters", [20, 5, 8])
def test_a_language_model_is_judged_by_the_loss_of_its_user(letters: int) -> None:
    torch.manual_seed(0)
    model, batches = Letters(letters), text(letters)
    with torch.no_grad():
        expected = float(sum(flat_loss(model.eval(), batch) for batch in batches) / len(batches))
    result = compress_letters(model, batches, loss=flat_loss)
    assert result.task.layout == LAST, "also where letters and length are equally many"
    dense, average = result.evaluation["dense"], result.evaluation["average"]
    assert dense["loss"] == pytest.approx(expected, rel=1e-5)
    assert dense["nll"] == pytest.approx(expected, rel=1e-5)
    assert dense["rows"] == 48 * LENGTH
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    probabilities = result.posterior.predict(x)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(48, LENGTH))
    chosen = probabilities.gather(-1, y.unsqueeze(-1))
    assert average["nll"] == pytest.approx(float(-chosen.log().mean()), rel=1e-5)


@pytest.mark.parametrize("letters", [20, 5, 8])
def test_a_loss_that_is_no_cross_entropy_is_the_only_metric(letters: int) -> None:
    torch.manual_seed(0)
    result = compress_letters(Letters(letters), text(letters), loss=smooth_loss)
    assert result.task.kind == "other"
    assert [set(found) for found in result.evaluation.values()] == [{"loss"}] * 3


def test_without_a_loss_the_shape_of_the_labels_tells() -> None:
    torch.manual_seed(0)
    (x, y), *_ = text(20)
    for last, layout in ((True, LAST), (False, FIRST)):
        model = Letters(20, last)
        task = find_task(model, (x, y), None)
        assert (task.kind, task.layout) == ("classification", layout)
        outputs = model(x) if last else model(x).movedim(1, -1)
        expected = F.cross_entropy(outputs.flatten(0, 1), y.flatten())
        torch.testing.assert_close(task.loss(model, (x, y)), expected)
    with pytest.raises(ValueError, match=r"^loss must be given where classes may be in dimension 1 or in the last"):
        find_task(Letters(8), text(8)[0], None)


def test_a_loss_in_dimension_1_is_told_from_one_in_the_last() -> None:
    torch.manual_seed(0)
    model, batch = Letters(8, last=False), text(8)[0]
    assert find_task(model, batch, lambda net, b: F.cross_entropy(net(b[0]), b[1])).layout == FIRST
    assert find_task(model, batch, flat_loss).layout == LAST


def test_the_loss_of_the_user_decides_how_sparse_a_network_may_be() -> None:
    torch.manual_seed(0)
    result = compress_letters(Letters(5), text(5), loss=flat_loss, sparsity="auto", tolerance=5.0)
    assert result.report["search"]["sparse"]["unit"] == "per cent of the loss"


def test_every_label_of_a_sequence_counts_as_data() -> None:
    model, batches = Letters(5), text(5)
    problem = Compression(model, batches, sparsity=0.5, epochs=1, lr=0.1).prepare().problem
    assert (problem.num_data, problem.batch_size) == (48 * LENGTH, 12 * LENGTH)
    masked = [(x, y.masked_fill(torch.arange(LENGTH) >= 2, -100)) for x, y in batches]
    problem = Compression(model, masked, sparsity=0.5, epochs=1, lr=0.1).prepare().problem
    assert (problem.num_data, problem.batch_size) == (48 * 2, 12 * 2)


def wrong_letters(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]).argmax(-1) != batch[1]).float().mean()


def test_a_metric_of_the_user_is_computed_and_compared() -> None:
    torch.manual_seed(0)
    batches = text(5)
    result = compress_letters(Letters(5), batches, loss=flat_loss, metric=wrong_letters, sparsity="auto")
    assert result.evaluation["dense"]["metric"] == pytest.approx(1.0 - result.evaluation["dense"]["accuracy"])
    assert result.report["search"]["sparse"]["unit"] == "per cent of the metric"
    each = [float(sum(wrong_letters(result.posterior.sample(i), b) for b in batches) / 4) for i in range(2)]
    assert result.evaluation["average"]["metric"] == pytest.approx(sum(each) / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": 1}, "metric must be a function or None, but got 1."),
        ({"metric": F.mse_loss}, "metric must be a function of (model, batch), but mse_loss is one of (input, target): "
         "give lambda model, batch: F.mse_loss(model(batch[0]), batch[1])."),
        ({"loss": nn.CrossEntropyLoss()}, "loss must be a function of (model, batch), but CrossEntropyLoss() is one of "
         "(input, target): give lambda model, batch: nn.CrossEntropyLoss()(model(batch[0]), batch[1])."),
        ({"metric": lambda m, b: torch.ones(2)}, "metric must return a number, the mean over a batch, but got a single "
         "tensor of shape (2,)."),
        ({"metric": lambda m, b: 0.0, "val_loader": None}, "metric must go with a val_loader, on which it is computed, "
         "but got none."),
    ],
)  # fmt: skip
def test_a_bad_metric_is_one_sentence(arguments: dict[str, Any], message: str) -> None:
    options = {"val_loader": text(5), "loss": flat_loss, "num_data": 48, "weights": "middle.weight", "sparsity": 0.1}
    with pytest.raises((ValueError, TypeError)) as caught:
        compress_small(Letters(5), text(5), **options | arguments)
    assert str(caught.value) == message


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


class Tagger(nn.Module):
    """A network in the manner of transformers: named arguments, its own loss, an object as the result."""

    def __init__(self, classes: int = 3, shift: bool = False) -> None:
        super().__init__()
        self.embedding, self.first, self.last = nn.Embedding(20, 8), nn.Linear(8, 32), nn.Linear(32, classes)
        self.shift = shift

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Output:
        hidden = self.embedding(input_ids) * attention_mask.unsqueeze(-1)
        logits = self.last(self.first(hidden).relu())
        if labels is None:
            return Output(logits)
        output, y = NEXT.align(logits, labels) if self.shift else LAST.align(logits, labels)
        return Output(logits, F.cross_entropy(output, y))


def tagged(classes: int = 3) -> list[dict[str, Tensor]]:
    ids = torch.randint(20, (48, LENGTH), generator=torch.Generator().manual_seed(1))
    labels = (ids % classes).masked_fill(ids == 7, -100)
    mask = torch.ones_like(ids)
    parts = zip(*(tensor.split(12) for tensor in (ids, mask, labels)), strict=True)
    return [dict(zip(("input_ids", "attention_mask", "labels"), part, strict=True)) for part in parts]


@pytest.mark.filterwarnings("ignore:'embedding.weight' stays dense")
@pytest.mark.parametrize(("shift", "layout"), [(False, LAST), (True, NEXT)])
def test_a_mapping_with_labels_is_trained_with_the_loss_of_the_model(shift: bool, layout: Any) -> None:
    torch.manual_seed(0)
    model, batches = Tagger(shift=shift), tagged()
    result = compress_small(model, batches, val_loader=batches, epochs=10, samples=2)
    assert (result.task.layout, result.task.own_loss) == (layout, False)
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    with torch.no_grad():
        expected = float(model(**whole).loss)
    assert result.evaluation["dense"]["nll"] == pytest.approx(expected, rel=1e-5)
    if not shift:
        assert result.evaluation["sparse"]["nll"] < expected
    labels = whole.pop("labels")
    probabilities = result.posterior.predict(whole)
    assert probabilities.shape == (48, LENGTH, 3)
    rows, labels = layout.flatten(probabilities, labels)
    nll = float(-rows.gather(1, labels.unsqueeze(1)).log().mean())
    assert result.evaluation["average"]["nll"] == pytest.approx(nll, rel=1e-5)


@pytest.mark.filterwarnings("ignore:'embedding.weight' stays dense")
def test_the_teacher_of_a_model_with_a_loss_of_its_own_knows_where_the_classes_are() -> None:
    torch.manual_seed(0)
    model, batches = Tagger(), tagged()
    settings = ss.compression.Settings(distillation=0.5, lr=0.05)
    result = compress_small(model, batches, val_loader=batches, settings=settings)
    assert result.evaluation["sparse"]["accuracy"] > 0.0
    with pytest.raises(ValueError, match=r"^distillation must be 0 where a loss is given"):
        compress_small(Tagger(), tagged(), loss=lambda net, batch: net(**batch).loss, settings=settings)


class Regressor(nn.Module):
    """A regression in the manner of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Output:
        found = self.last(self.first(x).relu())
        return Output(found, None if labels is None else F.mse_loss(found.squeeze(1), labels))


def test_the_squared_error_of_a_model_is_a_regression_and_another_loss_is_not() -> None:
    batch = {"x": torch.randn(8, 4), "labels": torch.randn(8)}
    assert find_task(Regressor(), batch, None).kind == "regression"

    class Robust(Regressor):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Output:
            found = super().forward(x).logits
            return Output(found, None if labels is None else F.l1_loss(found.squeeze(1), labels))

    task = find_task(Robust(), batch, None)
    assert (task.kind, task.own_loss) == ("other", True)


def test_what_fits_no_form_takes_functions_of_the_user() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(48, 4), torch.arange(48) % 2

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 2)

        def forward(self, *, table: Tensor) -> dict[str, Tensor]:
            hidden = self.first(table).relu()
            return {"hidden": hidden, "scores": self.last(hidden)}

    batches = [(x[:24], y[:24]), (x[24:], y[24:])]
    with pytest.raises(ValueError, match=r"^train_loader must yield batches that the model and the loss take, but got"):
        compress_small(Odd(), batches, val_loader=batches)
    functions = {"forward": lambda model, inputs: model(table=inputs), "output": lambda result: result["scores"]}
    result = compress_small(Odd(), batches, val_loader=batches, samples=2, **functions)
    expected = torch.stack([result.posterior.sample(i)(table=x)["scores"].softmax(1) for i in range(2)]).mean(0)
    torch.testing.assert_close(result.posterior.predict(x), expected.detach())
    again = Evaluation(result.task, batches).of_posterior(result.posterior)
    assert again["nll"] == result.evaluation["average"]["nll"]
