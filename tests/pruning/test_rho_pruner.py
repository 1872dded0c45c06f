"""What is in the spike goes, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from weights import zeros

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.priors import GroupSpikeSlab


class TestRhoPruner:
    def prior(self, weight: nn.Parameter, **settings: object) -> ss.SpikeSlab:
        return ss.SpikeSlab([weight], **{"v0": 0.01, "v1": 1.0, "adapt": ss.Marginal()} | settings)

    def test_zeroes_what_is_in_the_spike(self) -> None:
        weight = nn.Parameter(torch.tensor([0.001, 1.0, -0.002, -2.0]))
        prior = self.prior(weight)
        rho = prior.rho["weights[0]"]
        ss.RhoPruner(prior, 0.5).step()
        assert weight.tolist() == [0.0, 1.0, 0.0, -2.0]
        assert (rho < 0.5).tolist() == [True, False, True, False]

    @pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
    def test_never_empties_a_layer_and_spares_the_likeliest(self, layout: str) -> None:
        values = 1e-4 * torch.rand(2, 3, 4, 4)
        values[1, 2, 3, 1] = 2e-3
        if layout == "channels_last":
            values = values.to(memory_format=torch.channels_last)
        weight = nn.Parameter(values)
        ss.RhoPruner(self.prior(weight), 0.9).step()
        assert weight.nonzero().tolist() == [[1, 2, 3, 1]]

    def test_masked_weights_do_not_return(self) -> None:
        for mode, returned in (("projected", True), ("masked", False)):
            weight = nn.Parameter(torch.tensor([0.001, 1.0, 2.0]))
            pruner = ss.RhoPruner(self.prior(weight), mode=mode)
            pruner.step()
            with torch.no_grad():
                weight[0] = 3.0
            pruner.step()
            assert bool(weight[0] != 0) == returned

    def test_waits_for_its_start(self) -> None:
        weight = nn.Parameter(torch.tensor([0.001, 1.0]))
        pruner = ss.RhoPruner(self.prior(weight), start=3)
        pruner.step()
        pruner.step()
        assert zeros(weight) == 0
        pruner.step()
        assert pruner.sparsity().sparse == 0.5

    def test_an_inverted_prior_is_refused(self) -> None:
        weight = nn.Parameter(torch.ones(3))
        with pytest.warns(ss.SpikeSlabWarning):
            prior = self.prior(weight, v0=0.005, v1=1e-5)
        with pytest.raises(ArgumentValueError) as error:
            ss.RhoPruner(prior)
        assert str(error.value) == (
            "prior must have a spike narrower than its slab, but got v0=0.005 and v1=1e-05: a large rho means a small "
            "weight."
        )

    @pytest.mark.parametrize("threshold", [0.0, 1.0])
    def test_a_threshold_outside_is_refused(self, threshold: float) -> None:
        prior = self.prior(nn.Parameter(torch.ones(3)))
        for call, message in (
            (
                lambda: ss.RhoPruner(prior, threshold),
                rf"^threshold must be a number in \(0, 1\), but got {threshold}\.$",
            ),
            (lambda: ss.RhoPruner(prior, start=0), r"^start must be an integer >= 1, but got 0\.$"),
        ):
            with pytest.raises(ValueError, match=message):
                call()

    def test_under_a_group_prior_whole_groups_go_and_the_likeliest_stays(self) -> None:
        values = torch.full((4, 3, 2, 2), 1e-4)
        values[1] = 1.0
        weight = nn.Parameter(values.to(memory_format=torch.channels_last))
        pruner = ss.RhoPruner(GroupSpikeSlab([weight], v0=0.01, v1=1.0, adapt=ss.Marginal()))
        pruner.step()
        assert weight.detach().flatten(1).any(dim=1).tolist() == [False, True, False, False]
        pruner.freeze()
        with torch.no_grad():
            weight.add_(1.0)
        pruner.step()
        assert weight.detach().flatten(1).any(dim=1).tolist() == [False, True, False, False]
