"""Exact sparsity, ties included, that never empties a layer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from weights import distinct, zeros

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.pruning import Pruner
from spikeslab.pruning import base as pruning_base
from spikeslab.pruning import pruner as pruner_module

layers = st.lists(st.lists(st.sampled_from([-1.0, 0.5, 1.0, 2.0]), min_size=1, max_size=30), min_size=1, max_size=4)


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("mode", ["projected", "masked"])
@given(layers=layers, share=st.floats(0, 0.999))
def test_it_ends_on_exactly_round_s_total_zeros_with_ties_and_never_empties_a_layer(scope, mode, layers, share) -> None:
    weights = [nn.Parameter(torch.tensor(layer)) for layer in layers]
    total, room = sum(len(layer) for layer in layers), sum(len(layer) - 1 for layer in layers)
    share = min(share, room / total)
    if round(share * total) > room:
        return
    before = [weight.detach().clone() for weight in weights]
    pruner = ss.Pruner(weights, share, scope=scope, mode=mode)
    pruner.step()
    assert sum(zeros(weight) for weight in weights) == round(share * total) == pruner.sparsity().sparse_zeros
    assert all(zeros(weight) < weight.numel() for weight in weights)
    for weight, old in zip(weights, before, strict=True):
        alive = weight != 0
        assert torch.equal(weight[alive], old[alive])  # what stays is unchanged
        if scope == "layer" and alive.any() and (~alive).any():
            assert old[~alive].abs().max() <= old[alive].abs().min()


def test_per_layer_pruning_has_the_same_rate_in_each_and_the_right_total() -> None:
    weights = distinct((10, 10), (30,), (7,))
    pruner = ss.Pruner(weights, 0.7)
    pruner.step()
    assert [zeros(weight) for weight in weights] == [70, 21, 5]
    assert pruner.sparsity().sparse_zeros == round(0.7 * 137)


def test_global_pruning_ranks_all_weights_together() -> None:
    small, large = nn.Parameter(0.01 * torch.arange(1.0, 11)), nn.Parameter(torch.arange(1.0, 11))
    ss.Pruner([small, large], 0.4, scope="global").step()
    assert (zeros(small), zeros(large)) == (8, 0)
    ss.Pruner([small, large], 0.6, scope="global").step()
    assert (zeros(small), zeros(large)) == (9, 3)  # the last small weight is spared


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_masked_weight_never_returns_while_the_sparsity_grows(scope: str) -> None:
    """Hamilton's method alone would take a zero back from the fourth layer of these sizes."""
    weights = distinct((49,), (57,), (27,), (3,), (17,))
    pruner = ss.Pruner(weights, lambda k: k / 153, scope=scope, mode="masked")
    dead = [torch.zeros_like(weight, dtype=torch.bool) for weight in weights]
    for step in range(1, 148):
        pruner.step()
        assert sum(zeros(weight) for weight in weights) == step
        for weight, mask in zip(weights, dead, strict=True):
            assert not weight[mask].any()
            mask |= weight == 0
            with torch.no_grad():
                weight.add_(torch.randn_like(weight))  # the sampler moves everything, pruned or not


def test_it_follows_the_papers_schedule() -> None:
    weights = distinct((20, 50), (500,))
    pruner = ss.Pruner(weights, ss.exponential_sparsity(0.917, decay=0.99, every=50))
    for step in range(1, 301):
        pruner.step()
        assert pruner.sparsity().sparse_zeros == round(0.917 * (1 - 0.99 ** (step / 50)) * 1500)


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_channels_last_weights_are_pruned_by_magnitude(scope: str) -> None:
    weight = nn.Parameter(distinct((4, 3, 5, 5))[0].detach().to(memory_format=torch.channels_last))
    ss.Pruner([weight], 0.5, scope=scope).step()
    assert zeros(weight) == 150
    assert weight.abs()[weight != 0].min() == 151


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan")])
def test_a_sparsity_outside_the_unit_interval_is_refused(sparsity: float) -> None:
    with pytest.raises(ArgumentValueError) as error:
        ss.Pruner(distinct((4,)), sparsity)
    assert str(error.value) == f"sparsity must be a number in [0, 1), but got {sparsity}."


@pytest.mark.parametrize("sparsity", [-0.1, 1.0])
def test_a_schedule_that_leaves_the_unit_interval_stops_and_changes_no_weight(sparsity: float) -> None:
    (weight,) = distinct((4,))
    before = weight.detach().clone()
    with pytest.raises(ValueError, match=rf"^sparsity must be a number in \[0, 1\), but got {sparsity}\.$"):
        ss.Pruner([weight], lambda k: sparsity).step()
    assert torch.equal(weight, before)


@pytest.mark.parametrize("sparsity", [0.95, ss.cubic_sparsity(0.95, total=10)])
def test_a_sparsity_that_would_empty_a_layer_is_refused_at_once(sparsity) -> None:
    with pytest.raises(ArgumentValueError) as error:
        ss.Pruner(distinct((10,), (2,)), sparsity)
    assert str(error.value) == (
        "sparsity must be at most 0.833333, since 2 layers must keep 2 weights in all, but got 0.95, which is 11 zeros "
        "of 12."
    )


def test_other_bad_arguments_are_refused() -> None:
    weights = distinct((4,))
    for settings, message in (
        ({"scope": "row"}, r"^scope must be one of 'layer', 'global', 'erk', but got 'row'\.$"),
        ({"mode": "soft"}, r"^mode must be one of 'projected', 'masked', but got 'soft'\.$"),
        ({"network": nn.Linear(2, 2)}, r"^weights must be parameters of the network, but some are not\.$"),
    ):
        with pytest.raises(ValueError, match=message):
            ss.Pruner(weights, 0.5, **settings)


def test_momentum_of_a_projected_weight_may_bring_it_back_in_a_real_chain() -> None:
    """Pruning inside a chain ends on its target in both modes; only the masked one has monotone zeros."""
    for mode in ("projected", "masked"):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(200))
        sampler = ss.SGHMC([weight], lr=0.3, num_data=10, seed=0)
        pruner = ss.Pruner([weight], ss.exponential_sparsity(0.5, decay=0.5, every=5, total=20), mode=mode)
        returned = 0
        for _ in range(30):
            before = weight == 0
            weight.grad = weight.detach().clone()
            sampler.step()
            pruner.step()
            returned += int((before & (weight != 0)).sum())
        assert zeros(weight) == 100
        assert (returned > 0) == (mode == "projected")


@pytest.mark.parametrize("scope", ["layer", "global", "erk"])
@pytest.mark.parametrize("mode", ["projected", "masked"])
def test_kernels_and_torch_prune_the_same_weights(scope: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for kernels in (pruning_base.load_kernels(), None):
        monkeypatch.setattr(pruner_module, "load_kernels", lambda kernels=kernels: kernels)
        monkeypatch.setattr(pruning_base, "load_kernels", lambda kernels=kernels: kernels)
        torch.manual_seed(0)
        weights = [torch.randn(size) for size in (700, 40, 3000)]
        pruner = Pruner(weights, ss.cubic_sparsity(0.9, total=8), scope=scope, mode=mode)
        for _ in range(10):
            for weight in weights:
                weight += 0.3 * torch.randn_like(weight)
            pruner.step()
        found.append(weights)
    assert all(map(torch.equal, *found))
    assert sum(int((weight == 0).sum()) for weight in found[0]) == round(0.9 * 3740)


@pytest.mark.parametrize("in_memory", [True, False])
def test_it_prunes_every_so_many_steps_and_once_more_to_freeze(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.setattr(Pruner, "_prune_in_memory", lambda self: False)
    weight = torch.randn(100)
    pruner = Pruner([weight], lambda k: min(k, 9) / 18, every=4)
    zeros, masks = [], []
    for step in range(1, 10):
        weight += 0.5 * torch.randn(100)
        pruner.step()
        zeros.append(int((weight == 0).sum()))
        masks.append(weight == 0)
        if step == 6:  # a resume between two prunings
            state, pruner = pruner.state_dict(), Pruner([weight], lambda k: min(k, 9) / 18, every=4)
            pruner.load_state_dict(state)
    assert zeros == [0, 0, 0, 22, 22, 22, 22, 44, 44]
    assert torch.equal(masks[3], masks[6])
    assert torch.equal(masks[7], masks[8])
    assert bool((masks[3] & ~masks[7]).any()), "a zero may come back"
    pruner.freeze()
    mask = weight == 0
    assert int(mask.sum()) == 50
    for _ in range(5):
        weight += 0.1 * torch.randn(100)
        pruner.step()
        assert torch.equal(weight == 0, mask)


class TestSaliency:
    """Ranking by the rise of the loss without a weight, which a prior with ``evidence="curvature"`` averages."""

    def make(self, *shapes: tuple[int, ...], **pruner) -> tuple[list[nn.Parameter], ss.SpikeSlab, ss.SGHMC, Pruner]:
        generator = torch.Generator().manual_seed(0)
        weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        prior = ss.SpikeSlab(weights, v0=0.02, v1=1.0, evidence="curvature", batch_size=4)
        sampler = ss.SGHMC(weights, lr=0.01, num_data=400, temperature=0.1, prior=prior, seed=0)
        return weights, prior, sampler, Pruner(weights, prior=prior, rank="saliency", **pruner)

    def step(self, weights: list[nn.Parameter], sampler: ss.SGHMC, pruner: Pruner, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for weight in weights:
            scale = 10.0 ** torch.randint(-3, 3, weight.shape, generator=generator)
            weight.grad = scale * torch.randn(weight.shape, generator=generator)
        sampler.step()
        pruner.step()

    def test_the_least_salient_weights_go_whatever_their_size(self) -> None:
        weights, prior, sampler, pruner = self.make((20, 30), (50,), sparsity=0.8, scope="global")
        self.step(weights, sampler, pruner, seed=1)
        scores = torch.cat([score.flatten() for score in prior.saliency.values()])
        gone = torch.cat([(weight == 0).flatten() for weight in weights])
        assert int(gone.sum()) == round(0.8 * 650)
        assert scores[gone].max() < scores[~gone].min()

    @pytest.mark.parametrize("mode", ["projected", "masked"])
    @pytest.mark.parametrize("scope", ["global", "layer", "erk"])
    def test_counts_are_exact_at_every_step_and_no_layer_is_emptied(self, scope: str, mode: str) -> None:
        ramp = ss.cubic_sparsity(0.9, 10)
        weights, _, sampler, pruner = self.make((12, 7), (40,), (3, 3), sparsity=ramp, scope=scope, mode=mode)
        last = [torch.zeros_like(weight, dtype=torch.bool) for weight in weights]
        returned = 0
        for step in range(1, 13):
            self.step(weights, sampler, pruner, seed=step)
            assert sum(zeros(weight) for weight in weights) == pruner.zeros(step)
            assert all(zeros(weight) < weight.numel() for weight in weights)
            now = [weight == 0 for weight in weights]
            returned += sum(int((old & ~new).sum()) for new, old in zip(now, last, strict=True))
            last = now
        assert returned == 0 if mode == "masked" else returned > 0 or scope == "erk"

    def test_weights_that_no_gradient_reaches_go_first_and_are_not_counted_as_kept(self) -> None:
        weights, _, sampler, pruner = self.make((10,), (10,), sparsity=0.25, scope="global")
        for step in range(1, 4):
            weights[0].grad = torch.randn(10, generator=torch.Generator().manual_seed(step))
            sampler.step()
            with torch.no_grad():
                weights[1][7:] = 0.0
            pruner.step()
            assert (zeros(weights[0]), zeros(weights[1])) == (0, 5)

    def test_a_resumed_pruner_chooses_the_same_zeros(self) -> None:
        chains = [self.make((9, 9), (20,), sparsity=ss.cubic_sparsity(0.7, 8), freeze_at=9) for _ in range(2)]
        (weights, _, sampler, pruner), (again, _, sampler2, pruner2) = chains
        for seed in range(4):
            self.step(weights, sampler, pruner, seed)
        sampler2.load_state_dict(sampler.state_dict())
        pruner2.load_state_dict(pruner.state_dict())
        with torch.no_grad():
            for weight, other in zip(again, weights, strict=True):
                weight.copy_(other)
        for seed in range(4, 12):
            self.step(weights, sampler, pruner, seed)
            self.step(again, sampler2, pruner2, seed)
        assert all(torch.equal(one, other) for one, other in zip(weights, again, strict=True))
        assert pruner.mode == "masked"

    def test_after_the_freeze_magnitude_decides(self) -> None:
        weights, prior, sampler, pruner = self.make((200,), sparsity=ss.cubic_sparsity(0.8, 10), freeze_at=4)
        for seed in range(4):
            self.step(weights, sampler, pruner, seed)
        assert prior.saliency is None
        self.step(weights, sampler, pruner, seed=4)
        assert zeros(weights[0]) == pruner.zeros(5)

    def test_before_the_first_step_magnitude_decides(self) -> None:
        weights, _, _, pruner = self.make((10,), sparsity=0.6)
        kept = weights[0].detach().abs().topk(4).indices.sort().values
        pruner.step()
        assert torch.equal(weights[0].nonzero().flatten(), kept)

    def test_it_is_a_setting_and_needs_a_prior_that_knows_the_curvature_of_all_weights(self) -> None:
        weights, prior, _, pruner = self.make((10,), sparsity=0.5)
        assert pruner.settings_dict()["rank"] == "saliency"
        plain = ss.SpikeSlab(weights, v0=0.02, v1=1.0)
        for odd in (None, plain):
            with pytest.raises(
                ArgumentValueError, match="prior must be a SpikeSlab with evidence='curvature' for rank"
            ):
                Pruner(weights, 0.5, prior=odd, rank="saliency")
        with pytest.raises(ArgumentValueError, match="prior must be over all weights that rank='saliency' ranks"):
            Pruner([*weights, nn.Parameter(torch.ones(3))], 0.5, prior=prior, rank="saliency")
        with pytest.raises(ArgumentValueError, match="rank must be"):
            Pruner(weights, 0.5, rank="size")
        with pytest.raises(ArgumentValueError, match="prior must be a SpikeSlab with evidence="):
            Pruner(weights, 0.5, prior=plain).load_settings({"rank": "saliency"})


@pytest.mark.parametrize(("scope", "mode"), [("global", "projected"), ("layer", "masked"), ("erk", "projected")])
def test_a_pattern_bounds_the_zeros_of_every_group(scope: str, mode: str) -> None:
    weights = distinct((6, 8), (4, 4, 3, 3))
    before = [weight.detach().clone() for weight in weights]
    pruner = ss.Pruner(weights, lambda k: min(0.25 * k, 0.5), scope=scope, mode=mode, pattern="2:4")
    for step, share in ((1, 0.25), (2, 0.5)):
        pruner.step()
        assert sum(zeros(weight) for weight in weights) == round(share * 192), step
        for weight, old in zip(weights, before, strict=True):
            groups, sizes = (each.detach().movedim(1, -1).reshape(-1, 4) for each in (weight, old))
            assert groups.eq(0.0).sum(1).max() <= 2
            assert sizes.abs().masked_fill(groups.eq(0.0), 0.0).topk(2).values.equal(sizes.abs().topk(2).values)
    assert pruner.highest == 0.5


def test_a_pattern_spares_no_weight_that_is_zero_where_saliency_ranks() -> None:
    """A zero ranks below all others by minus infinity, which is no large size."""
    layer = nn.Linear(4, 1, bias=False)
    prior = ss.SpikeSlab([layer.weight], steps=20, evidence="curvature", batch_size=2)
    sampler = ss.SGHMC(layer.parameters(), lr=0.01, num_data=8, prior=prior)
    pruner = ss.Pruner([layer.weight], 0.5, pattern="2:4", prior=prior, rank="saliency")
    for _ in range(5):
        sampler.zero_grad()
        layer(torch.ones(2, 4)).square().mean().backward()
        sampler.step()
        pruner.step()
    before = layer.weight.detach().clone()
    pruner.step()
    assert zeros(layer.weight) == 2
    assert layer.weight.equal(before)


@pytest.mark.parametrize(
    ("shape", "pattern", "message"),
    [
        ((2, 6), "2:4", "pattern must divide the inputs of every layer, but 'weights[0]' has 6."),
        ((6,), "2:4", "pattern must divide the inputs of every layer, but 'weights[0]' has no inputs."),
        ((2, 4), "4:4", "pattern must be 'N:M' with 0 < N < M, such as '2:4', or None, but got '4:4'."),
    ],
)
def test_a_pattern_that_does_not_fit_is_refused(shape, pattern, message) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        ss.Pruner(distinct(shape), 0.5, pattern=pattern)
    assert str(caught.value) == message


def test_more_zeros_than_a_pattern_allows_are_refused() -> None:
    with pytest.raises(ArgumentValueError, match=r"sparsity must be at most 0\.5, since 1 layer must keep 4 weights"):
        ss.Pruner(distinct((2, 4)), 0.6, pattern="2:4")


def test_a_pattern_is_loaded_with_what_follows_from_it() -> None:
    weights = distinct((6, 8))
    pruner = ss.Pruner(weights, 0.25)
    pruner.load_settings({"pattern": "2:4"})
    assert pruner.highest == 0.5
    pruner.load_settings({"sparsity": pruner.settings_dict()["sparsity"]})
    pruner.step()
    assert weights[0].detach().reshape(-1, 4).eq(0.0).sum(1).max() <= 2
