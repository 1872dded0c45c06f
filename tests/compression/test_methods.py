"""Every method reaches the sparsity; each is what its docstring says."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from small import ROWS, batches, data, network, problem
from torch import Tensor, nn
from torch.nn import functional as F

import spikeslab as ss
from spikeslab.compression import METHODS, Settings, compress, paper_settings
from spikeslab.compression.methods import AnnealedPrior, FeedbackPruner
from spikeslab.compression.settings import Timeline
from spikeslab.priors import SpikeSlabGaussian
from spikeslab.pruning import Pruner
from spikeslab.schedules import cubic_sparsity
from spikeslab.training import Callback, Training


def flatten(state: Mapping[str, Tensor]) -> Tensor:
    """Return the weights that are pruned by default in a row."""
    return torch.cat([state[name].flatten() for name in ("0.weight", "3.weight", "5.weight")])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", ["layer", "global", "erk"])
def test_every_method_ends_on_the_zeros_that_were_asked_for(method: str, scope: str) -> None:
    x, y = data(5)
    settings = Settings(
        lr=0.1, final_lr=0.01, samples=4, scope=scope, mask_every=4, v0=0.5, v1=20.0
    )  # weak: there are few data
    result = compress(
        network(), batches(), [(x, y)], sparsity=0.5, epochs=8, method=method, settings=settings, progress=False
    )
    masks = [flatten(result.posterior.tensors(index)) == 0 for index in range(4)]
    assert all(torch.equal(mask, masks[0]) for mask in masks)
    assert int(masks[0].sum()) == round(0.5 * 418)
    assert result.evaluation["sparse"]["nll"] < result.evaluation["dense"]["nll"], "it learns meanwhile"
    assert METHODS[method].__doc__


def test_gmp_is_sgd_with_the_largest_weights_kept() -> None:
    result = compress(network(), batches(), sparsity=0.5, epochs=5, method="gmp", lr=0.05, progress=False)
    model = network()
    timeline = Timeline(Settings(lr=0.05), total=30)
    lr, sparsity = timeline.lr(), timeline.sparsity(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4)
    weights, frozen, step = [model[index].weight for index in (0, 3, 5)], None, 0
    for epoch in range(5):
        for x, y in batches().epoch(epoch):
            step += 1
            optimizer.param_groups[0]["lr"] = lr(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            zeros = round(sparsity(step) * 418)
            with torch.no_grad():
                row = torch.cat([weight.flatten() for weight in weights])
                smallest = row.abs().argsort()[:zeros]
                row[smallest if frozen is None else frozen] = 0.0
                for weight, part in zip(weights, row.split([64, 256, 32]), strict=True):
                    weight.copy_(part.view_as(weight))
            if step == timeline.freeze:
                frozen = smallest
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def test_magnitude_keeps_the_largest_weights_of_the_start() -> None:
    model = network()
    result = compress(model, batches(), sparsity=0.5, epochs=2, method="magnitude", progress=False)
    zeros = flatten(model.state_dict()).abs().argsort()[: round(0.5 * 418)]
    found = flatten(result.model.state_dict()) == 0
    assert found.nonzero().flatten().tolist() == zeros.sort().values.tolist()


@pytest.mark.parametrize(
    ("method", "kind", "annealed", "omega"),
    [
        ("a-sghmc-sa", ss.SA, True, None),
        ("sghmc-sa", ss.SA, False, None),
        ("a-sghmc-em", ss.EM, True, 1.0),
        ("a-sghmc", ss.Fixed, True, 0.0),
        ("marginal", ss.Marginal, True, 0.0),
    ],
)
def test_the_rows_of_the_paper_differ_in_omega_and_in_the_temperature(
    method: str, kind: type, annealed: bool, omega: float | None
) -> None:
    chain = METHODS[method](problem(network(), Settings(temperature=0.1, cooling=10.0), steps=60))
    assert type(chain.sampler.prior.adapt) is kind
    if omega is not None:
        assert chain.sampler.prior.adapt.omega(7) == omega
    temperature = chain.sampler._schedules[0]["temperature"]
    assert temperature(1) == 0.1
    assert temperature(61) == pytest.approx(0.01 if annealed else 0.1)


@pytest.mark.parametrize("structure", ["weights", "channels"])
@pytest.mark.parametrize("method", ["a-sghmc-sa", "a-sghmc-em", "marginal"])
def test_given_the_zeros_what_is_left_has_the_slab_alone(method: str, structure: str) -> None:
    kept = {}
    for condition in (True, False):
        seen: list[ss.SpikeSlab] = []

        class See(Callback):
            def begin(self, run: Training, seen: list[ss.SpikeSlab] = seen) -> None:
                seen.append(run.sampler.prior)

        settings = Settings(samples=2, condition=condition, omega_sum=3.0)
        compress(
            network(),
            batches(),
            sparsity=0.5,
            epochs=5,
            method=method,
            structure=structure,
            settings=settings,
            callbacks=[See()],
            progress=False,
        )
        kept[condition] = max(seen[0].diagnostics(ROWS).effective_l1.values())
    assert kept[True] == 0.0
    assert kept[False] > 0.0


@pytest.mark.parametrize("steps", [100, 1000, 20_000])
@pytest.mark.parametrize("total", [0.75, 5.0])
def test_omega_sums_to_what_was_asked_for_in_any_number_of_steps(steps: int, total: float) -> None:
    adapt = METHODS["sghmc-sa"](problem(network(), Settings(omega_sum=total), steps)).sampler.prior.adapt
    assert sum(adapt.schedule(step) for step in range(1, steps + 1)) == pytest.approx(total)


def test_the_paper_in_its_own_number_of_steps_is_the_preset() -> None:
    settings = paper_settings(0.9, steps=50_000)
    preset = ss.presets.paper_cifar10(0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ss.SpikeSlabWarning)
        chain = METHODS["a-sghmc-sa"](problem(network(), settings, 50_000, num_data=50_000))
    schedules = chain.sampler._schedules[0]
    for step in (1, 1000, 34_000, 36_000, 46_000, 50_000):
        assert schedules["lr"](step) == pytest.approx(preset.sampler["lr"](step))
        assert schedules["temperature"](step) == pytest.approx(preset.sampler["temperature"](step), rel=0.006)
        omega = preset.prior["adapt"].omega(step)
        assert chain.sampler.prior.adapt.omega(step) == pytest.approx(omega, rel=1e-3)
    assert chain.sampler.prior.inverted
    assert float(chain.sampler.prior.kappa["3.weight"][1].max()) == pytest.approx(5e-4)
    assert settings.weight_decay == preset.sampler["weight_decay"]


def test_a_tenth_of_the_time_keeps_the_shrinkage_of_the_paper() -> None:
    """lr times steps, and the sum of omega, are the same in a tenth of the steps."""
    whole, tenth = paper_settings(0.7, 50_000), paper_settings(0.7, 5000)
    assert tenth.lr == pytest.approx(10 * whole.lr)
    for settings, steps in ((whole, 50_000), (tenth, 5000)):
        schedule = Timeline(settings, steps).lr()
        assert sum(schedule(k) for k in range(1, steps + 1)) == pytest.approx(5.0 * (0.7 + 0.02 + 0.001), rel=1e-3)


def test_settings_of_the_prior_replace_those_of_the_method() -> None:
    prior = METHODS["a-sghmc-sa"](problem(network(), Settings(prior={"v0": 0.3, "v1": 9.0}))).sampler.prior
    assert (prior.v0, prior.v1) == (0.3, 9.0)


@pytest.mark.parametrize(("method", "strength"), [("l1", 1e-4), ("l2", 5e-3)])
def test_fixed_penalties_have_the_strength_of_the_recipe(method: str, strength: float) -> None:
    assert METHODS[method](problem(network())).sampler.prior.strength == strength
    assert METHODS[method](problem(network(), Settings(strength=0.2))).sampler.prior.strength == 0.2


V1, DELTA, DECAY, N = 0.5, 0.01, 0.03, 40


def spike(step: int) -> float:
    return 0.01 / step


def weight(step: int) -> float:
    return min(1.0, 0.25 * (step - 1))


def annealed_prior(weights: Tensor) -> AnnealedPrior:
    return AnnealedPrior([weights], v0=spike, v1=V1, delta=DELTA, eta=weight, weight_decay=DECAY)


def penalty(beta: Tensor, step: int) -> Tensor:
    def density(v: float) -> Tensor:
        return (-beta.square() / (2 * v)).exp() / math.sqrt(2 * math.pi * v)

    log = ((1 - DELTA) * density(spike(step)) + DELTA * density(V1)).log().sum()
    eta = weight(step)
    return (1 - eta) * DECAY / 2 * beta.square().sum() - eta / N * log


@pytest.mark.parametrize("step", [1, 2, 4, 5, 9])
def test_the_gradient_is_that_of_the_penalty_of_this_step(step: int) -> None:
    beta = torch.linspace(-0.6, 0.6, 25, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(penalty(beta, step), beta)
    weights = beta.detach().clone()
    annealed = annealed_prior(weights)
    for done in range(1, step):
        annealed.update(done, N)
    out = torch.zeros_like(weights)
    annealed.add_gradient_([weights], [out], N)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
    # The library leaves constants out of the density; differences of penalties have none.
    found = annealed.penalty(N)
    weights.mul_(0.5)
    difference = penalty(0.5 * beta, step) - penalty(beta, step)
    assert annealed.penalty(N) - found == pytest.approx(difference.item(), rel=1e-6, abs=1e-9)


def test_a_state_of_the_annealed_prior_knows_the_step() -> None:
    first, second = (annealed_prior(torch.ones(3)) for _ in range(2))
    for step in range(1, 4):
        first.update(step, N)
    second.load_state_dict(first.state_dict())
    assert (second.v0, second.eta) == (first.v0, first.eta) == (spike(4), weight(4))


def test_diagnostics_are_of_what_the_sampler_sees() -> None:
    annealed = annealed_prior(torch.tensor([0.3, -0.2, 0.1]))
    assert annealed.eta == 0.0
    found = annealed.diagnostics(N)
    assert set(found.effective_l2.values()) == {annealed.weight_decay}
    for step in range(1, 1000):
        annealed.update(step, N)
    assert annealed.eta == 1.0
    whole = SpikeSlabGaussian.diagnostics(annealed, N)
    assert annealed.diagnostics(N) == whole


@pytest.mark.parametrize("every", [1, 3])
def test_the_gradient_at_the_pruned_network_moves_the_dense_weights(every: int) -> None:
    target = torch.randn(6, 5)
    layer = nn.Linear(5, 6, bias=False)
    dense = layer.weight.detach().clone()
    schedule = cubic_sparsity(0.6, total=8)
    pruner = FeedbackPruner([layer.weight], schedule, every=every)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    mask = torch.ones(6, 5)
    returned = 0
    for step in range(1, 13):
        optimizer.zero_grad()
        (0.5 * (layer.weight - target).square().sum()).backward()
        optimizer.step()
        pruner.step()
        dense = dense - 0.1 * (dense * mask - target)  # the definition, on a copy of our own
        if step == 1 or step % every == 0:
            smallest = dense.abs().flatten().argsort()[: round(schedule(step) * 30)]
            before, mask = mask, torch.ones(30).index_fill(0, smallest, 0.0).view(6, 5)
            returned += int(((before == 0) & (mask == 1)).sum())
        torch.testing.assert_close(layer.weight.detach(), dense * mask)
    assert returned, "a pruned weight has come back"
    pruner.freeze()
    smallest = dense.abs().flatten().argsort()[:18]
    assert (layer.weight.flatten() == 0).nonzero().flatten().tolist() == smallest.sort().values.tolist()
    with torch.no_grad():
        layer.weight.add_(5.0)
    pruner.step()
    assert int((layer.weight == 0).sum()) == 18, "frozen"


def test_a_state_of_feedback_goes_on_where_it_was() -> None:
    def move(layer: nn.Linear, pruner: FeedbackPruner, steps: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            with torch.no_grad():
                layer.weight.add_(0.3 * torch.randn(6, 5, generator=generator))
            pruner.step()

    first, second = nn.Linear(5, 6), nn.Linear(5, 6)
    pruner = FeedbackPruner([first.weight], 0.5, every=4)
    move(first, pruner, 5, seed=1)
    again = FeedbackPruner([second.weight], 0.5, every=4)
    again.load_state_dict(pruner.state_dict())
    second.load_state_dict(first.state_dict())
    move(first, pruner, 6, seed=2)
    move(second, again, 6, seed=2)
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("scope", ["layer", "global", "erk"])
def test_zeros_are_shared_out_and_floors_held_as_by_any_pruner(scope: str) -> None:
    def layers() -> list[nn.Parameter]:
        generator = torch.Generator().manual_seed(0)
        return [nn.Parameter(s * torch.randn(4, n, generator=generator)) for s, n in ((0.01, 5), (1.0, 20), (1.0, 3))]

    ours, plain = layers(), layers()
    FeedbackPruner(ours, 0.7, scope=scope, floor=0.25).step()
    Pruner(plain, 0.7, scope=scope, floor=0.25).step()
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))
    assert int(ours[0].count_nonzero()) >= 5


def part_settings(method: str = "a-sghmc-sa", sparsity: float = 0.96, **settings: object) -> tuple[str, str]:
    """Return the evidence of the prior of a regression and what ranks the weights."""
    given = replace(problem(network(), Settings(**{"sigma": 1.0, **settings})), sparsity=sparsity, network=None)
    parts = METHODS[method](replace(given, batch_size=16))
    prior = parts.sampler.prior
    return getattr(prior, "evidence", "none"), parts.prune.pruner.rank


def test_saliency_ranks_the_weights_of_a_regression_where_few_are_left() -> None:
    assert part_settings() == part_settings("sghmc-sa") == ("curvature", "saliency")
    assert part_settings(sparsity=0.9) == ("magnitude", "magnitude")
    assert part_settings(sigma=None) == ("magnitude", "magnitude"), "not a regression"
    assert part_settings(sigma=None, sparsity=0.9, rank="saliency") == ("curvature", "saliency")
    assert part_settings(rank="magnitude") == ("magnitude", "magnitude")
    assert part_settings(condition=False) == ("magnitude", "magnitude"), "the pruner would condition its prior"
    for method in ("a-sghmc-em", "a-sghmc", "marginal"):
        assert part_settings(method)[1] == "magnitude"
    assert part_settings("gmp") == ("none", "magnitude")


@pytest.mark.parametrize("scope", ["layer", "global", "erk"])
def test_saliency_leaves_exactly_as_many_weights_as_were_asked_for(scope: str) -> None:
    settings = Settings(lr=0.05, samples=4, scope=scope, rank="saliency")
    result = compress(network(), batches(), sparsity=0.96, count="layers", epochs=8, settings=settings, progress=False)
    masks = [flatten(result.posterior.tensors(index)) == 0 for index in range(4)]
    assert all(torch.equal(mask, masks[0]) for mask in masks)
    assert int(masks[0].sum()) == round(0.96 * 352)
