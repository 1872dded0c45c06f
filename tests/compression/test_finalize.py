"""The copy is plain, its outputs are the same, and the model is as it was."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import spikeslab as ss
from spikeslab.compression import finalize
from spikeslab.paper.cifar10.networks import ResNet


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def old_norm(model: nn.Module, norm) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        norm(model[0])
    return model


def pruned(model: nn.Module) -> nn.Module:
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_unstructured(model[0], "weight", amount=0.2)  # a container of two methods
    prune.l1_unstructured(model[2], "bias", amount=1)
    return model


def parametrized(model: nn.Module) -> nn.Module:
    parametrize.register_parametrization(model[0], "weight", Doubled())
    parametrize.register_parametrization(model[0], "bias", Doubled())
    parametrizations.weight_norm(model[2])
    return model


def parametrized_bias(model: nn.Module) -> nn.Module:
    parametrize.register_parametrization(model[0], "bias", Doubled())
    return model


TRACES = {
    "nothing": lambda model: model,
    "prune": pruned,
    "parametrize": parametrized,
    "both": lambda model: parametrized_bias(pruned(model)),
    "spectral norm": lambda model: parametrizations.spectral_norm(model[0]) and model,
    "old weight norm": lambda model: old_norm(model, nn.utils.weight_norm),
    "old spectral norm": lambda model: old_norm(model, nn.utils.spectral_norm),
}


@pytest.mark.parametrize("trace", TRACES)
def test_what_training_left_is_part_of_the_weights(trace: str, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    plain_names = set(model.state_dict())
    model = TRACES[trace](model)
    model(batch[0]).sum().backward()  # leaves weights that are not leaves, which cannot be copied
    model.eval()
    before, names = model(batch[0]), list(model.state_dict())
    tensors = copy.deepcopy(model.state_dict())
    plain = finalize(model)

    assert set(plain.state_dict()) == plain_names
    assert [type(module) for module in plain.modules()] == [nn.Sequential, nn.Linear, nn.Tanh, nn.Linear]
    assert not any(hooks for module in plain.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks))
    torch.testing.assert_close(plain(batch[0]), before)
    assert all(type(parameter) is nn.Parameter and parameter.requires_grad for parameter in plain.parameters())

    assert list(model.state_dict()) == names
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name
    torch.testing.assert_close(model(batch[0]), before)
    with torch.no_grad():
        plain[0].weight.zero_()
    torch.testing.assert_close(model(batch[0]), before)


def test_a_masked_negative_weight_is_plus_zero() -> None:
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0, 2.0]]))
    prune.custom_from_mask(layer, "weight", torch.tensor([[0.0, 1.0]]))
    assert torch.signbit(layer.weight[0, 0])
    weight = finalize(layer).weight
    assert not torch.signbit(weight).any()
    assert weight.tolist() == [[0.0, 2.0]]


def test_hooks_are_dropped_and_what_they_hold_is_not_copied(model: nn.Module) -> None:
    class Uncopyable:
        def __deepcopy__(self, memo: object) -> None:
            raise AssertionError("copied")

        def watch(self, *arguments: object) -> None:
            raise AssertionError("called")

    model[0].register_forward_hook(Uncopyable().watch)
    model[1].register_forward_pre_hook(Uncopyable().watch)
    model[2].register_full_backward_hook(Uncopyable().watch)
    finalize(model)(torch.randn(2, 6)).sum().backward()
    assert len(model[0]._forward_hooks) == 1


def test_wrappers_are_taken_off(model: nn.Module) -> None:
    wrapped = torch.compile(nn.DataParallel(model), backend="eager")
    assert list(finalize(wrapped).state_dict()) == list(model.state_dict())


def test_a_pruner_leaves_nothing_but_zeros() -> None:
    model = ResNet(8)
    pruner = ss.Pruner(ss.select_weights(model, "layer*.conv*.weight"), 0.9)
    pruner.step()
    pruner.freeze()
    plain = finalize(model)
    assert list(plain.state_dict()) == list(model.state_dict())
    assert not plain.training
    assert model.training
    zeros = ss.measure_sparsity(ss.select_weights(plain, "layer*.conv*.weight"))
    assert zeros == pruner.sparsity()
    model.eval()
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(plain(images), model(images))


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    plain = finalize(model)
    assert plain[1].weight is plain[0].weight
    assert plain[0].weight is not model[0].weight


def test_torch_export_takes_the_copy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    plain = finalize(parametrized(model))
    program = torch.export.export(plain, (batch[0],))
    torch.testing.assert_close(program.module()(batch[0]), plain(batch[0]))


def test_a_traced_network_is_taken_too() -> None:
    model = ResNet(8).eval()
    plain = finalize(torch.fx.symbolic_trace(model))
    images = torch.randn(2, 3, 8, 8)
    assert list(plain.state_dict()) == list(model.state_dict())
    assert torch.equal(plain(images), model(images))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^model must be a torch.nn.Module, but got dict\.$"):
        finalize({})
