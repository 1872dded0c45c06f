"""Globs over parameter names, and the weights of compiled models."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from compiled import CompiledChain, X, in_place, wrapped
from compiled import network as compiled_network
from torch import nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.weights import name_weights


def test_globs_pick_parameters_by_name_in_the_models_order(model) -> None:
    assert list(ss.select_weights(model, "2.*", "0.weight")) == ["0.weight", "2.weight"]
    assert ss.select_weights(model, "0.weight")["0.weight"] is model[0].weight


def test_a_star_also_matches_dots() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    assert list(ss.select_weights(model, "*.weight")) == ["0.0.weight"]


def test_globs_are_case_sensitive(model) -> None:
    with pytest.raises(ArgumentValueError):
        ss.select_weights(model, "*.Weight")


def test_globs_that_match_nothing_are_named(model) -> None:
    with pytest.raises(ArgumentValueError) as error:
        ss.select_weights(model, "*.weight", "conv*.weight", "nothing")
    assert str(error.value) == (
        "globs must each match a parameter, but 'conv*.weight', 'nothing' matched none of '0.weight', '0.bias', "
        "'2.weight', '2.bias'."
    )


def test_no_glob_at_all_is_refused(model) -> None:
    with pytest.raises(ValueError, match=r"^globs must be at least one pattern such as '\*\.weight', but got none\.$"):
        ss.select_weights(model)


def test_a_shared_parameter_is_selected_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert list(ss.select_weights(model, "*.weight")) == ["0.weight"]
    assert list(ss.select_weights(model, "1.weight")) == ["0.weight"]
    assert list(name_weights([model[0].weight, model[1].weight])) == ["weights[0]"]


def test_a_glob_takes_vectors_only_where_it_matches_nothing_else() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    assert list(ss.select_weights(model, "*")) == ["0.weight", "3.weight"]
    assert list(ss.select_weights(model, "*.weight", "3.bias")) == ["0.weight", "3.weight", "3.bias"]
    assert list(ss.select_weights(model, "1.*")) == ["1.weight", "1.bias"]
    image = nn.Sequential(nn.Conv2d(1, 4, 3), nn.LayerNorm([4, 6, 6]), nn.GroupNorm(2, 4))
    assert list(ss.select_weights(image, "*")) == ["0.weight"], "a scale may have the shape of an image"
    lazy = nn.Sequential(nn.LazyLinear(8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    assert list(ss.select_weights(lazy, "*.weight")) == ["0.weight", "2.weight"]


def test_empty_tensors_are_left_out_of_the_sparse_weights() -> None:
    assert list(name_weights([torch.ones(0), torch.ones(2)])) == ["weights[1]"]


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([], ValueError, "weights must hold at least one parameter that is not empty, but got none."),
        ({}, ValueError, "weights must hold at least one parameter that is not empty, but got none."),
        ([torch.ones(0)], ValueError, "weights must hold at least one parameter that is not empty, but got none."),
        (torch.ones(2), TypeError, "weights must be a dict or a list of parameters, but got a single tensor."),
        (["conv.weight"], TypeError, "weights must hold parameters, but weights[0] is a str."),
        (
            [("a", torch.ones(2)), ("a", torch.ones(3))],
            ValueError,
            "weights must have different names, but two are called 'a'.",
        ),
    ],
)
def test_a_bad_list_of_weights_is_refused(weights, error, message: str) -> None:
    for make in (name_weights, lambda w: ss.SpikeSlab(w, v0=0.1, v1=1.0), lambda w: ss.Pruner(w, 0.5)):
        with pytest.raises(error) as caught:
            make(weights)
        assert str(caught.value) == message


@pytest.mark.parametrize("compiled", [wrapped, in_place])
def test_the_chain_is_that_of_the_model_itself(compiled, tmp_path):
    one, other = CompiledChain().run(6), CompiledChain(compiled).run(6)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert list(other.sampler.prior.weights) == ["0.weight", "3.weight"]
    assert list(other.posterior.tensors(0)) == list(one.posterior.tensors(0))
    torch.testing.assert_close(other.posterior.predict(X), one.posterior.predict(X))
    torch.testing.assert_close(other.posterior.sample(1)(X), one.posterior.sample(1)(X))
    # Samples of a compiled model are those of any.
    other.posterior.save(tmp_path / "posterior")
    loaded = ss.Posterior.load(tmp_path / "posterior", compiled_network())
    torch.testing.assert_close(loaded.predict(X), other.posterior.predict(X))


def test_a_state_goes_from_a_compiled_chain_to_one_that_is_not():
    first = CompiledChain(in_place).run(3)
    second = CompiledChain()
    second.model.load_state_dict(first.model.state_dict())
    second.sampler.load_state_dict(copy.deepcopy(first.sampler.state_dict()))
    whole = CompiledChain().run(6)
    for a, b in zip(second.run(3).model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_the_default_compiler_where_there_is_one():
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("torch's default compiler needs a C++ compiler, and there is none")
    torch._dynamo.reset()
    one, other = CompiledChain().run(3), CompiledChain(torch.compile).run(3)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
