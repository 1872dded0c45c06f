import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from spikeslab.states import Parts, join, split

keys = st.one_of(st.text(max_size=4), st.integers(-3, 3), st.tuples(st.integers(0, 2), st.text(max_size=2)))
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
states = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(keys, inner), st.tuples(inner, inner)),
    max_leaves=12,
)


def equal(a: object, b: object) -> bool:
    return repr(a) == repr(b) and type(a) is type(b)


@given(states)
def test_a_state_of_plain_values_comes_back_as_it_was(state: object) -> None:
    import json

    parts = split(state)
    text = json.loads(json.dumps(parts.text, allow_nan=False))
    assert equal(join(Parts(text, parts.tensors, parts.files)), state)


def test_tensors_of_every_kind_survive_a_safetensors_file() -> None:
    shared = torch.randn(4, 3)
    state = {
        "a": {"b/c": torch.ones(2, dtype=torch.bool), "b": {"c": torch.arange(3)}},
        "a/b": {"c": torch.tensor(1.5, dtype=torch.float64)},
        0: shared,
        "0": shared.T,
        "empty": torch.zeros(0, 5),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "image": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    parts = split(state)
    again = join(Parts(parts.text, load(save(parts.tensors)), parts.files))
    assert list(again) == list(state)
    assert torch.equal(again["a"]["b/c"], state["a"]["b/c"])
    assert torch.equal(again["a"]["b"]["c"], torch.arange(3))
    assert torch.equal(again["a/b"]["c"], state["a/b"]["c"])
    for key in (0, "0", "empty", "half", "image"):
        assert again[key].dtype == state[key].dtype
        assert torch.equal(again[key], state[key])


def test_the_parts_are_a_copy() -> None:
    weight = torch.ones(2)
    parts = split({"weight": weight})
    weight.zero_()
    assert join(parts)["weight"].tolist() == [1.0, 1.0]


def test_names_that_look_like_ours_are_kept_apart() -> None:
    state = {"$tensor": "rho", "x": {"$float": "nan"}, "y": math.inf}
    assert join(split(state)) == state


def test_files_are_kept_by_name() -> None:
    parts = split({"samples": [Path("a"), Path("b")]})
    assert parts.files == {"samples/0": Path("a"), "samples/1": Path("b")}
    assert join(parts) == {"samples": [Path("a"), Path("b")]}


def test_what_has_no_place_in_a_state_is_named() -> None:
    with pytest.raises(TypeError, match=r"^state may hold .* but model/hook is a function\.$"):
        split({"model": {"hook": equal}})


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(ValueError, match=r"^The tensor 'w' of the state is missing\.$"):
        join(Parts({"w": {"$tensor": "w"}}, {}, {}))
