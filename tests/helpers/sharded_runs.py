"""Chains on a sharded model, to be compared with the same chains on a whole one.

Rows of the layers: 7 and 5 make shards of different sizes, 1 leaves all ranks but the first with nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import spikeslab as ss
from spikeslab.parallel.distributed import Ranks
from spikeslab.shards import gather

ROWS, NUM_DATA = 24, 96
STEPS = 50
SAMPLERS = {"SGLD": (ss.SGLD, {}), "SGHMC": (ss.SGHMC, {"momentum": 0.8}), "PSGLD": (ss.PSGLD, {})}


PENALTIES = {"L1": ss.L1, "L2": ss.L2}


def make_model(seed: int = 0, width: int = 7) -> nn.Sequential:
    """A network in float64, the same on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 1)
        return nn.Sequential(*layers).double()


def shard(model: nn.Module, mesh_shape: tuple[int, ...]) -> nn.Module:
    """Shard each layer and the whole."""
    layers = [m for m in model if isinstance(m, nn.Linear)]
    if len(mesh_shape) == 1:
        return Ranks.create().fully_shard(model, layers)
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("replicate", "shard"))
    for module in [*layers, model]:
        fully_shard(module, mesh=mesh)
        assert isinstance(module, FSDPModule)
        module.set_force_sum_reduction_for_comms(True)  # gloo's average on the CPU is a sum
        # Otherwise the gradient would be divided by the number of ranks twice.
        module.set_gradient_divide_factor(dist.get_world_size())
    return model


class Chain:
    """SGHMC-SA and others, with a learned delta and a conjugate sigma, on whole or sharded weights."""

    def __init__(
        self,
        mesh_shape: tuple[int, ...] = (),
        *,
        kind: str = "SGHMC",
        penalty: str | None = None,
        fused: bool | None = None,
        seed: int = 3,
        width: int = 7,
    ) -> None:
        self.sharded = bool(mesh_shape)
        self.model = make_model(width=width)
        if mesh_shape:
            shard(self.model, mesh_shape)
        self.weights = ss.select_weights(self.model, "*.weight")
        self.prior = (
            PENALTIES[penalty](self.weights, 0.03)
            if penalty
            else ss.SpikeSlab(
                self.weights, steps=40, sigma_coupling="conjugate", nu=2.0, adapt=ss.SA(ss.polynomial(0.5, power=0.6))
            )
        )
        cls, own = SAMPLERS[kind]
        self.sampler = cls(
            self.model.parameters(),
            lr=ss.cosine(0.02, total=100, final=0.001),
            num_data=NUM_DATA,
            temperature=0.5,
            weight_decay=0.01,
            prior=self.prior,
            seed=seed,
            fused=fused,
            **own,
        )
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(NUM_DATA, 6, generator=generator, dtype=torch.float64)
        self.y = self.x[:, :1].sin() + 0.1 * torch.randn(NUM_DATA, 1, generator=generator, dtype=torch.float64)
        self.generator = torch.Generator().manual_seed(8)

    def backward(self, step: int) -> None:
        """Compute the gradient of the batch of a step, of which each rank has a part."""
        rows = torch.arange(ROWS) + ROWS * (step % (NUM_DATA // ROWS))
        if self.sharded:
            rows = rows.chunk(dist.get_world_size())[dist.get_rank()]
        self.sampler.zero_grad()
        nn.functional.mse_loss(self.model(self.x[rows]), self.y[rows]).backward()

    def advance(self, steps: int) -> Chain:
        for _ in range(steps):
            self.backward(self.sampler.steps)
            self.sampler.step()
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Everything of the chain, whole."""
        found = {name: gather(p.detach()).clone() for name, p in self.model.named_parameters()}
        if isinstance(self.prior, ss.SpikeSlab):
            found |= {f"rho {name}": gather(rho).clone() for name, rho in self.prior.rho.items()}
            numbers = [self.prior.sigma, *self.prior.delta.values(), *(self.prior._chosen or ()), self.prior._progress]
            found["numbers"] = torch.tensor(numbers, dtype=torch.float64)
        found["penalty"] = torch.tensor([self.sampler.penalty(), *self.prior.effective_penalty(NUM_DATA)]).double()
        return found

    def save(self, folder: Path) -> None:
        state = {
            "model": get_model_state_dict(self.model),
            "sampler": get_optimizer_state_dict(self.model, self.sampler),
        }
        dcp.save(state, checkpoint_id=folder, no_dist=not dist.is_initialized())

    def load(self, folder: Path) -> Chain:
        state = {
            "model": get_model_state_dict(self.model),
            "sampler": get_optimizer_state_dict(self.model, self.sampler),
        }
        dcp.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.sampler, state["sampler"])
        return self


def prune(chain: Chain, scope: str) -> dict[str, Tensor]:
    """Weights and counts of a chain that is pruned at each step: some scopes, a floor that binds, equal weights."""
    options = {"floor": {"scope": "global", "floor": 20}, "ties": {"scope": "global"}}.get(scope, {"scope": scope})
    if scope == "ties":
        with torch.no_grad():
            for weight in chain.weights.values():
                weight.copy_(weight.sign() * 0.5)
        pruner = ss.Pruner(chain.weights, 0.6, **options)
        pruner.step()
    else:
        sparsity = ss.cubic_sparsity(0.7 if scope != "floor" else 0.5, total=6)
        floor = {"floor": 0.45} if scope == "floor" else {}
        pruner = ss.Pruner(chain.weights, sparsity, freeze_at=8, prior=chain.prior, **(options | floor))
        for _ in range(10):
            chain.advance(1)
            pruner.step()
    zeros = {f"mask {name}": (gather(w.detach()) == 0).double() for name, w in chain.weights.items()}
    counted = pruner.sparsity()
    return zeros | chain.tensors() | {"zeros": torch.tensor([counted.sparse_zeros, counted.sparse_total]).double()}


INPUTS = torch.randn(6, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def identity(outputs: Tensor) -> Tensor:
    return outputs


def collect(chain: Chain, folder: Path | None) -> ss.Posterior:
    """A posterior of a few samples, on disk if there is a folder."""
    posterior = ss.Posterior(chain.model, burn_in=2, thin=3, sampler=chain.sampler, link=identity, directory=folder)
    for _ in range(8):
        chain.advance(1)
        posterior.collect()
    return posterior
