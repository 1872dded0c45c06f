"""A recording is the run of a network on an example, or none at all."""

from __future__ import annotations

import pytest
import torch
from pruned_networks import deviation
from torch import Tensor, nn

from spikeslab.compression import compact
from spikeslab.errors import SpikeSlabWarning
from spikeslab.graph.recording import ValueReadError, record
from spikeslab.graph.tracing import trace


class Asking(nn.Module):
    """A network of tokens that asks for a shape as it goes, so that torch.fx has no symbols for it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3 and len(x) > 0:
            x = x + torch.arange(x.shape[1]).to(x.dtype)[:, None] / len(x)
        return self.down(self.up(x).relu_().T.T if x.dim() == 2 else self.up(x).relu_())


def test_a_network_that_asks_for_shapes_is_recorded_and_made_smaller() -> None:
    model = Asking().double().eval()
    with torch.no_grad():
        model.up.weight[:4], model.up.bias[:4] = 0.0, 0.0
    for shape, other in (((2, 5, 4), (2, 6, 4)), ((2, 4), (3, 4))):
        assert not trace(model, torch.zeros(shape).double()).rewritable
        result = compact(model, torch.zeros(shape).double())
        assert type(result.model) is Asking
        assert result.model.up.out_features == 6
        assert deviation(model, result.model, torch.randn(other).double()) < 1e-12


def test_a_mask_may_decide_on_the_path_but_not_the_numbers() -> None:
    class Masked(Asking):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return super().forward(x) if bool((mask == 1).all()) else super().forward(x * mask)

    model, inputs = Masked().eval(), (torch.randn(2, 5, 4), torch.ones(2, 5, 1, dtype=torch.long))
    assert not trace(model, inputs).rewritable
    with pytest.raises(ValueReadError, match=r"^its path depends on the values of the inputs$"):
        record(model, (inputs[0], torch.ones(2, 5, 1)), lambda module: module is not model, lambda result: [result])


def test_what_no_function_of_torch_returns_is_not_taken_for_a_constant() -> None:
    class Opaque(Asking):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.up(x if len(x) else -x)
            return self.down(torch.vmap(lambda row: row * 2.0)(hidden))

    model = Opaque().eval()
    with torch.no_grad():
        model.up.weight[:4] = 0.0
    with pytest.warns(SpikeSlabWarning, match="It stays as it is"):
        result = compact(model, torch.zeros(2, 4))
    assert deviation(model, result.model, torch.randn(3, 4)) == 0.0


def test_calls_of_modules_are_as_before_after_a_recording_that_failed() -> None:
    call = nn.Module.__call__

    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match=r"^no$"):
        record(Failing(), (torch.zeros(1),), lambda module: False, lambda result: [result])
    assert nn.Module.__call__ is call
