"""Small runs that are the same code in one process and in several: what the tests of torchrun compare."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_modes import SECOND_MODE, energy, gradient

import spikeslab as ss
from spikeslab.paper.demo import DigitsCNN
from spikeslab.paper.demo.data import load_digits
from spikeslab.paper.demo.linear import minibatches
from spikeslab.parallel.distributed import Ranks
from spikeslab.parallel.replica_exchange import ReplicaExchange

FOUR_RUNGS = [1.0, 2.5, 6.0, 16.0]
SA = ss.SA(ss.polynomial(1.0, power=0.75, offset=10))


def regression(ranks: Ranks, *, fused: bool | None, coupling: str, steps: int = 50) -> dict[str, Tensor]:
    """SGHMC-SA on a network with a learned sigma in float64: weights, latents and the trace of sigma."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 6, generator=generator, dtype=torch.float64)
    y = x[:, :1] - 2.0 * x[:, 1:2] + 0.3 * torch.randn(96, 1, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    prior = ss.SpikeSlab(
        ss.select_weights(model, "*.weight"), v0=0.05, v1=1.0, delta=0.3, adapt=SA, sigma_coupling=coupling
    )
    likelihood = ss.GaussianLikelihood(prior, group=ranks.data_group)
    sampler = ss.SGHMC(
        model.parameters(), lr=0.01, num_data=96, prior=prior, weight_decay=0.01, seed=ranks.seed(3), fused=fused
    )
    forward = ranks.data_parallel(model)
    sigmas = []
    for rows in (batch for _, batch in zip(range(steps), minibatches(96, 32, seed=2), strict=False)):
        shard = ranks.shard(rows)
        sampler.zero_grad()
        likelihood(forward(x[shard]), y[shard]).backward()
        sampler.step()
        sigmas.append(prior.sigma)
    ranks.check_same(model, sampler)
    latents = {f"rho {name}": rho for name, rho in prior.rho.items()}
    numbers = {"sigma": torch.tensor(sigmas).double(), "delta": torch.tensor(list(prior.delta.values())).double()}
    return {name: p.detach().clone() for name, p in model.named_parameters()} | latents | numbers


def unequal_shards(ranks: Ranks, cut: int = 3) -> dict[str, Tensor]:
    """One step on eight rows, of which the first rank has ``cut``: sigma and the gradient."""
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.ones_(model.weight)
    prior = ss.SpikeSlab([model.weight], v0=0.1, v1=1.0, adapt=ss.EM())
    likelihood = ss.GaussianLikelihood(prior, group=ranks.data_group)
    sampler = ss.SGLD(model.parameters(), lr=0.0, num_data=40, prior=prior, seed=0)
    x = torch.arange(16, dtype=torch.float64).view(8, 2) / 10
    mine = x if ranks.data_size == 1 else x.split([cut, 8 - cut])[ranks.data_rank]
    forward = ranks.data_parallel(model)
    likelihood(forward(mine), torch.zeros(len(mine), 1, dtype=torch.float64)).backward()
    gradient = model.weight.grad.clone()
    sampler.step()
    return {"sigma": torch.tensor(prior.sigma).double(), "gradient": gradient}


def noise_alone(ranks: Ranks, *, fused: bool | None) -> dict[str, Tensor]:
    """Weights after three steps with zero gradients: nothing but noise, in two dtypes' widths."""
    model = nn.Sequential(nn.Linear(300, 40), nn.Linear(40, 5))
    sampler = ss.SGLD(model.parameters(), lr=1.0, num_data=1, seed=ranks.seed(11), fused=fused)
    for parameter in model.parameters():
        parameter.data.zero_()
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(3):
        sampler.step()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def digits(ranks: Ranks, steps: int = 200, *, own_seed: bool = False) -> dict[str, Tensor]:
    """The digits CNN sampled with SGHMC-SA while it is pruned to 90 %; ``own_seed`` is the mistake to be caught."""
    data = load_digits()
    torch.manual_seed(ranks.data_rank)  # DistributedDataParallel shares the start of the first rank
    model = DigitsCNN()
    forward = ranks.data_parallel(model)
    weights = ss.select_weights(model, "conv2.weight", "fc1.weight")
    prior = ss.SpikeSlab(weights, v0=0.005, v1=1.0, delta=0.1, b=1.0, rho=1.0)
    seed = ranks.seed(0) + (ranks.data_rank if own_seed else 0)
    sampler = ss.SGHMC(
        model.parameters(), lr=0.05, num_data=len(data.x_train), temperature=0.01, prior=prior, seed=seed
    )
    pruner = ss.Pruner(weights, ss.cubic_sparsity(0.9, total=steps), network=model)
    posterior = ss.Posterior(model, burn_in=steps // 2, thin=max(1, steps // 10))
    ranks.check_same(model)
    for _, rows in zip(range(steps), minibatches(len(data.x_train), 64, ranks.seed(1)), strict=False):
        shard = ranks.shard(rows)
        sampler.zero_grad()
        cross_entropy(forward(data.x_train[shard]), data.y_train[shard]).backward()
        sampler.step()
        pruner.step()
        posterior.collect()
    ranks.check_same(model, sampler, pruner)
    accuracy = (posterior.predict(data.x_test).argmax(1) == data.y_test).double().mean()
    return {
        **{name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        **{f"rho {name}": rho for name, rho in prior.rho.items()},
        "zeros": torch.tensor(pruner.sparsity().network),
        "accuracy": accuracy,
    }


def batch_norm_chain(ranks: Ranks) -> ss.Posterior:
    """A few samples of a network with buffers, integers among them, and a learned sigma."""
    generator = torch.Generator().manual_seed(ranks.seed(0) % 2**32)
    torch.manual_seed(ranks.chain)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    prior = ss.SpikeSlab([model[0].weight], v0=0.1, v1=1.0)
    likelihood = ss.GaussianLikelihood(prior, group=ranks.data_group)
    sampler = ss.SGLD(model.parameters(), lr=0.01, num_data=20, prior=prior, seed=ranks.seed(4))
    posterior = ss.Posterior(model, burn_in=2, thin=2, likelihood=likelihood, sampler=sampler)
    forward = ranks.data_parallel(model)
    for _ in range(8 + 2 * ranks.chain):  # chains may differ in the number of samples
        x = ranks.shard(torch.randn(8, 3, generator=generator))
        sampler.zero_grad()
        likelihood(forward(x), x[:, :1]).backward()
        sampler.step()
        posterior.collect()
    return posterior


def two_mode_sampler(seed: int) -> tuple[nn.Parameter, ss.SGLD]:
    weight = nn.Parameter(torch.full((1,), -SECOND_MODE, dtype=torch.float64))
    return weight, ss.SGLD([weight], lr=0.04, num_data=1, seed=seed, check_finite=False)


def two_modes(
    ladder: list[float], seeds: list[int], steps: int, *, latents: str, noise: float = 0.0, ranks: Ranks | None = None
) -> tuple[ReplicaExchange, Tensor]:
    """Replica exchange on two modes: the exchange and, of each step, rung and weight of every replica that is here."""
    made = [two_mode_sampler(seed) for seed in seeds]
    weights, samplers = [weight for weight, _ in made], [sampler for _, sampler in made]
    exchange = ReplicaExchange(samplers, ladder, seed=9, every=2, latents=latents, ranks=ranks)
    first = 0 if ranks is None else ranks.chain
    trace = []
    for step in range(steps):
        for weight, sampler in made:
            weight.grad = gradient(weight.detach())
            sampler.step()

        def loss(replica: int, step: int = step) -> Tensor:
            clean = energy(weights[replica - first].detach()).sum()
            if not noise:
                return clean
            errors = torch.randn(4, generator=torch.Generator().manual_seed(step * 100 + replica))
            return clean + noise * errors

        exchange.step(loss)
        trace.append([[exchange.rung(first + i), float(weight.detach())] for i, weight in enumerate(weights)])
    return exchange, torch.tensor(trace, dtype=torch.float64)
