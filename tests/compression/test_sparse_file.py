"""Sparse files come back to the bit, are small, and a change of theirs is refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from small import batches, network
from torch import Tensor, nn
from torch.nn.utils import prune

import spikeslab as ss
from spikeslab.compression import SparsityReport, compress, load_sparse, load_sparse_into, save_sparse
from spikeslab.compression.sparse_file import evaluate_stored, state_tensors
from spikeslab.compression.sparse_format import VALUES, TensorFileError, decode, encode
from spikeslab.compression.tasks import CLASSIFICATION, Evaluation, Task, classify
from spikeslab.errors import ArgumentValueError
from spikeslab.paper.cifar10.networks import resnet20

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def pruned(shape: list[int], dtype: torch.dtype, sparsity: float, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    dense = torch.randn(shape, generator=source) * 5
    return (dense * (torch.rand(shape, generator=source) >= sparsity)).to(dtype)


def equal_bits(one: Tensor, other: Tensor) -> bool:
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*flat)


@pytest.fixture(scope="module")
def sparse_resnet20() -> nn.Module:
    """Random weights of the paper's shapes, 90 % of all of them zero."""
    torch.manual_seed(0)
    model = resnet20()
    ss.Pruner(ss.select_weights(model, "layer*.conv*.weight"), 0.917).step()
    return model


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 7), max_size=4),
            st.sampled_from(DTYPES),
            st.sampled_from([0.0, 0.05, 0.5, 0.9, 1.0]),
        ),
        max_size=6,
    )
)
def test_every_state_comes_back_to_the_bit(kinds: list[tuple[list[int], torch.dtype, float]]) -> None:
    state = {f"tensor {i}": pruned(*kind, seed=i) for i, kind in enumerate(kinds)}
    again = decode(encode(state), "file")
    assert list(again) == list(state)
    assert all(equal_bits(again[name], state[name]) for name in state)


def test_minus_zero_infinity_and_denormals_come_back_to_the_bit() -> None:
    state = {"a": torch.tensor([0.0, -0.0, 1e-45, -1e-45, torch.inf, -torch.inf, *[0.0] * 20])}
    again = decode(encode(state), "file")["a"]
    assert equal_bits(again, state["a"])
    assert torch.signbit(again[1])


@pytest.mark.parametrize("values", VALUES)
def test_other_layouts_of_memory_do_not_matter(values: str) -> None:
    weight = pruned([4, 3, 5, 5], torch.float32, 0.8)
    state = {"a": weight.to(memory_format=torch.channels_last), "b": weight.transpose(0, 1), "c": weight[1:, ::2]}
    contiguous = {name: tensor.contiguous() for name, tensor in state.items()}
    assert encode(state, values) == encode(contiguous, values)


def test_shared_tensors_are_stored_once_and_shared_again() -> None:
    weight = torch.randn(100, 100)
    one, two = encode({"a": weight}), encode({"a": weight, "b": weight, "c": weight.clone()[:1]})
    assert len(two) < len(one) + 700
    again = decode(two, "file")
    assert again["a"].data_ptr() == again["b"].data_ptr()
    assert again["c"].data_ptr() != again["a"].data_ptr()
    part = decode(encode({"a": weight, "b": weight[:50], "c": weight.T}), "file")
    assert equal_bits(part["b"], weight[:50])
    assert equal_bits(part["c"], weight.T)


def test_half_precision_rounds_weights_only() -> None:
    state = {"weight": pruned([30, 20], torch.float32, 0.9), "bias": torch.randn(30), "steps": torch.tensor(2**40)}
    again = decode(encode(state, "fp16"), "file")
    assert equal_bits(again["weight"], state["weight"].half().float())
    assert equal_bits(again["bias"], state["bias"])
    assert equal_bits(again["steps"], state["steps"])
    large = {"weight": state["weight"] * 1e5}
    assert equal_bits(decode(encode(large, "fp16"), "file")["weight"], large["weight"])


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.floats(1e-30, 1e30), st.sampled_from([0.0, 0.5, 0.9]))
def test_int8_is_off_by_at_most_half_a_step_of_each_row(shape: list[int], size: float, sparsity: float) -> None:
    weight = pruned(shape, torch.float32, sparsity) * size
    again = decode(encode({"weight": weight}, "int8"), "file")["weight"]
    step = weight.flatten(1).abs().amax(dim=1).double() / 127
    error = (again.double() - weight.double()).flatten(1).abs().amax(dim=1)
    assert (error <= step * (0.5 + 1e-4)).all()
    assert (again[weight == 0] == 0).all()
    assert again.dtype == weight.dtype


def test_int8_keeps_what_it_cannot_scale() -> None:
    state = {"infinite": torch.tensor([[torch.inf, 1.0]]), "large": torch.tensor([[1e300]], dtype=torch.float64)}
    again = decode(encode(state, "int8"), "file")
    assert all(equal_bits(again[name], state[name]) for name in state)


@pytest.mark.parametrize(("values", "share"), [("fp32", 7), ("fp16", 12), ("int8", 18)])
def test_resnet20_at_90_per_cent_is_as_small_as_promised(
    values: str, share: float, sparse_resnet20: nn.Module, tmp_path: Path
) -> None:
    file = save_sparse(sparse_resnet20, tmp_path / "new" / "model.safetensors", values)
    assert share * file.stat().st_size <= len(save(sparse_resnet20.state_dict()))


def test_a_module_goes_into_a_file_and_back(sparse_resnet20: nn.Module, tmp_path: Path) -> None:
    file = save_sparse(sparse_resnet20, tmp_path / "model.safetensors")
    other = resnet20()
    load_sparse_into(other, file)
    for name, tensor in sparse_resnet20.state_dict().items():
        assert equal_bits(other.state_dict()[name], tensor), name
    assert file.read_bytes() == save_sparse(other, tmp_path / "other.safetensors").read_bytes(), "equal models"


class Counted(nn.Linear):
    """A layer with a state that is no tensor."""

    calls = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def test_extra_state_stays_in_the_model_that_a_file_is_read_into(tmp_path: Path) -> None:
    saved, read = Counted(4, 2), Counted(4, 2)
    read.calls = 7
    file = save_sparse({name: value for name, value in saved.state_dict().items() if isinstance(value, Tensor)},
                       tmp_path / "s")  # fmt: skip
    load_sparse_into(read, file)
    assert torch.equal(read.weight, saved.weight)
    assert read.calls == 7


def test_masks_of_torch_are_baked_in(model: nn.Module, tmp_path: Path) -> None:
    names = set(model.state_dict())
    prune.l1_unstructured(model[0], "weight", amount=0.9)
    tensors = load_sparse(save_sparse(model, tmp_path / "file"))
    assert set(tensors) == names
    assert torch.equal(tensors["0.weight"], model[0].weight)


def test_every_changed_bit_is_refused() -> None:
    content = encode({"a": pruned([40, 9], torch.float32, 0.8), "b": torch.randn(7), "n": torch.tensor(3)})
    head = 8 + int.from_bytes(content[:8], "little")
    for position in [*range(head), *range(head, len(content), 5)]:
        for bit in (1, 4, 32, 128):
            changed = bytearray(content)
            changed[position] ^= bit
            with pytest.raises(ValueError, match=r"^file (is damaged|is not a file of save_sparse|has version)"):
                decode(bytes(changed), "file")


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"\0", lambda content: b""])
def test_a_file_of_another_length_is_refused(change) -> None:
    with pytest.raises(ValueError, match=r"^file (is damaged|is not a file of save_sparse)"):
        decode(change(encode({"a": torch.randn(50)})), "file")


def test_what_is_not_such_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "dense.safetensors"
    with pytest.raises(ValueError, match=re.escape(f"file must be a readable file, but {file}: No such file or dir")):
        load_sparse(file)
    save_file({"a": torch.ones(3)}, file)
    message = f"{file} is not a file of save_sparse, or its first bytes are damaged."
    with pytest.raises(ValueError, match=re.escape(message)):
        load_sparse(file)


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="needs a device")
def test_a_device_whose_content_may_never_end_is_not_read(model: nn.Module) -> None:
    with pytest.raises(
        ValueError, match=r"file must be a readable file, but /dev/null: /dev/null is not a regular file"
    ):
        load_sparse("/dev/null")
    with pytest.raises(FileExistsError, match="/dev/null is something else"):
        save_sparse(model, "/dev/null")


def test_a_link_that_the_user_names_is_followed(model: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(save_sparse(model, tmp_path / "file"))
    assert load_sparse(tmp_path / "link").keys() == model.state_dict().keys()


def test_only_a_file_of_its_own_is_replaced(model: nn.Module, tmp_path: Path) -> None:
    dense = tmp_path / "model.safetensors"
    save_file(model.state_dict(), dense)
    before = dense.read_bytes()
    for other in (dense, tmp_path):
        message = f"file must be a new file or one of save_sparse, but {other} is something else."
        with pytest.raises(FileExistsError, match=re.escape(message)):
            save_sparse(model, other)
    assert dense.read_bytes() == before
    file = save_sparse(model, tmp_path / "sparse.safetensors")
    assert save_sparse(model, file, "int8").stat().st_size < 2000
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "sparse.safetensors"}


def test_another_model_is_refused_and_stays_as_it_was(model: nn.Module, tmp_path: Path) -> None:
    file = save_sparse(model, tmp_path / "file")
    wider = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    before = wider[0].weight.detach().clone()
    for other, difference in (
        (wider, f"shapes of {file}: '0.weight' is [9, 6] in the model and [8, 6] in the file."),
        (nn.Linear(6, 8), f"tensors of {file}: they differ in '0.bias', '0.weight', '2.bias', '2.weight', 'b"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"The model does not have the {difference}")):
            load_sparse_into(other, file)
    assert torch.equal(wider[0].weight, before)


@pytest.mark.parametrize(
    ("state", "values", "message"),
    [
        ({"a": torch.tensor([1.0, torch.nan])}, "fp32", "model must hold numbers, but 'a' holds NaN."),
        ({"a": torch.eye(3).to_sparse()}, "fp32", "model must hold dense tensors, but 'a' is something else."),
        ({"a": torch.empty(3, device="meta")}, "fp32", "model must hold dense tensors, but 'a' is something else."),
        ({"a": 3}, "fp32", "model must hold dense tensors, but 'a' is something else."),
        ({}, "fp8", "values must be one of 'fp32', 'fp16', 'int8', but got 'fp8'."),
    ],
)
def test_what_cannot_be_saved_is_one_sentence(state: dict, values: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        save_sparse(state, tmp_path / "file", values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("values", ["fp32", "fp16", "int8"])
def test_bytes_and_numbers_are_those_of_the_file(values: str, tmp_path: Path) -> None:
    result = compress(network(), batches(), sparsity=0.5, epochs=2, progress=False)
    before = state_tensors(result.model)
    found = result.evaluate_stored(batches())
    file = save_sparse(result.model, tmp_path / "sparse", values)
    read = copy.deepcopy(result.model)
    load_sparse_into(read, file)
    expected = Evaluation(result.task, batches()).of_model(read)
    assert found[values]["bytes"] == file.stat().st_size
    assert {name: found[values][name] for name in ("accuracy", "nll", "ece")} == {
        name: expected[name] for name in ("accuracy", "nll", "ece")
    }
    save_file(before, tmp_path / "dense")
    assert found["dense"] == {"bytes": (tmp_path / "dense").stat().st_size}
    assert all(torch.equal(tensor, before[name]) for name, tensor in result.model.state_dict().items())


def test_a_tied_weight_counts_once_in_the_dense_file() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2))
    model[2].weight = model[1].weight
    task = Task(CLASSIFICATION, classify)
    stored = evaluate_stored(model, Evaluation(task, [(torch.zeros(4, 8), torch.zeros(4).long())]))
    assert stored["dense"]["bytes"] == SparsityReport.of(model, torch.zeros(1, 8)).files["dense"]


def test_only_rounding_costs() -> None:
    result = compress(network(), batches(), sparsity=0.5, epochs=2, progress=False)
    found, exact = result.evaluate_stored(batches()), result.evaluate(batches())["sparse"]
    assert found["fp32"]["nll"] == exact["nll"]
    assert found["int8"]["nll"] not in (found["fp32"]["nll"], found["fp16"]["nll"])
    assert found["int8"]["nll"] == pytest.approx(exact["nll"], rel=0.02)


class Tied(nn.Module):
    """Two names for one weight, and a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())

    def get_extra_state(self) -> dict[str, Any]:
        return {"made": "here"}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        assert state == {"made": "here"}


def test_shared_weights_and_other_states_are_kept() -> None:
    evaluation = Evaluation(Task(CLASSIFICATION, classify), batches())
    model = Tied()
    assert evaluate_stored(model, evaluation)["fp32"]["nll"] == evaluation.of_model(model)["nll"]


def test_values_that_are_rounded_to_zero_are_no_longer_counted() -> None:
    result = compress(network(), batches(), sparsity=0.5, epochs=2, weights="3.weight", progress=False)
    with torch.no_grad():
        weight = dict(result.model.named_parameters())["3.weight"]
        weight[0] = torch.where(weight[0] == 0, 0.0, 1e-6)
        weight[0, 0] = 1.0  # beside which the others of its channel are less than half a step of int8
    found = result.evaluate_stored(batches())
    kept = int(weight.count_nonzero())
    assert found["fp32"]["sparse_nonzeros"] == kept
    assert found["int8"]["sparse_nonzeros"] == kept - int(weight[0].count_nonzero()) + 1
    gone = found["fp32"]["sparse_nonzeros"] - found["int8"]["sparse_nonzeros"]
    assert found["fp32"]["nonzeros"] - found["int8"]["nonzeros"] >= gone


def test_a_network_of_zeros_is_read_although_it_is_packed_a_thousand_times_smaller(tmp_path: Path) -> None:
    state = {"weight": torch.zeros(1 << 24)}
    file = save_sparse(state, tmp_path / "zeros.sparse")
    assert torch.equal(load_sparse(file)["weight"], state["weight"])
    assert file.stat().st_size < (1 << 26) // 1000


def test_what_a_file_may_expand_to_is_the_caller_s_or_the_model_s_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spikeslab.compression.sparse_format.FLOOR", 1 << 20)
    model = nn.Linear(1 << 10, 1 << 10)
    with torch.no_grad():
        model.weight.zero_()[0] = 1.0
    file = save_sparse(model, tmp_path / "model.sparse")
    with pytest.raises(TensorFileError, match=r"model.sparse is refused: .* allow them with max_bytes=\d+\.$") as error:
        load_sparse(file)
    needed = int(str(error.value).rpartition("=")[2].rstrip("."))
    assert model.weight.nbytes < needed < 1.1 * model.weight.nbytes
    with pytest.raises(TensorFileError, match=r"is refused"):
        load_sparse(file, max_bytes=needed - 1)
    assert torch.equal(load_sparse(file, max_bytes=needed)["weight"], model.weight)
    again = nn.Linear(1 << 10, 1 << 10).half()
    load_sparse_into(again, file)
    assert torch.equal(again.weight, model.weight.half())
    with pytest.raises(TensorFileError, match=r"is refused"):
        load_sparse_into(nn.Linear(2, 2), file)
    with pytest.raises(ArgumentValueError, match=r"^max_bytes must be an integer >= 1, but got 0\.$"):
        load_sparse(file, max_bytes=0)


@pytest.mark.parametrize("values", ["fp32", "fp16", "int8"])
def test_tensors_that_are_filled_in_pieces_come_back(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {
        "a": torch.randn(7, 5, 3),
        "b": torch.randn(40, 4) * (torch.rand(40, 4) < 0.3),
        "c": torch.randn(9).double(),
    }
    content = encode(state, values)
    whole = decode(content, "file")
    monkeypatch.setattr("spikeslab.compression.sparse_format.PIECE", 16)
    pieces = decode(content, "file")
    assert all(equal_bits(pieces[name], whole[name]) for name in state)
