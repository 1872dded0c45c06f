"""Sharded chains on some ranks: every rank writes what it has gathered into a folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))

from sharded_runs import INPUTS, PENALTIES, SAMPLERS, STEPS, Chain, collect, identity, prune

import spikeslab as ss
from spikeslab.bench.scale.traffic import Traffic
from spikeslab.errors import NonFiniteError
from spikeslab.parallel.distributed import Ranks
from spikeslab.training import Training

torch.set_num_threads(1)
dist.init_process_group("gloo")
out, world, rank = Path(sys.argv[1]), dist.get_world_size(), dist.get_rank()


def write(name: str, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, out / f"{name}-{world}-{rank}.safetensors")


def message(action: Callable[[], object]) -> str:
    try:
        action()
    except (ValueError, TypeError, OSError, NonFiniteError) as error:
        return str(error)
    return "nothing was raised"


def exchanged(width: int) -> dict[str, tuple[int, int]]:
    """Calls and bytes of the collective operations of an update, with hidden layers of a width."""
    chain = Chain((world,), width=width).advance(1)
    chain.backward(1)
    with Traffic() as traffic:
        chain.sampler.step()
    return {name: (traffic.calls[name], size) for name, size in traffic.sizes.items()}


def not_finite() -> None:
    """A gradient that is not finite on the last rank alone."""
    chain = Chain((world,)).advance(1)
    chain.backward(1)
    if rank == world - 1:
        chain.model[0].weight.grad.to_local().fill_(torch.nan)
    chain.sampler.step()


def on_meta(own: bool) -> None:
    """A parameter without memory, on the last rank alone or on all."""
    device = "meta" if not own or rank == world - 1 else "cpu"
    extra = torch.nn.Parameter(torch.ones(2, dtype=torch.float64, device=device))
    ss.SGHMC([*Chain((world,)).model.parameters(), extra], lr=0.1, num_data=10, seed=0)


def resume(change: Callable[[dict], object]) -> str:
    """A state that is another one on the last rank."""
    chain = Chain((world,)).advance(1)
    state = chain.sampler.state_dict()
    if rank == world - 1:
        change(state)
    said = message(lambda: chain.sampler.load_state_dict(state))
    chain.advance(1)  # nothing has changed, and no rank waits
    return said


for kind in SAMPLERS:
    for fused in (True, False):
        write(f"{kind}-{fused}", Chain((world,), kind=kind, fused=fused).advance(STEPS).tensors())
for penalty in PENALTIES:
    for fused in (True, False):
        write(f"{penalty}-{fused}", Chain((world,), penalty=penalty, fused=fused).advance(STEPS).tensors())
if world == 4:
    write("two dimensions", Chain((2, 2)).advance(STEPS).tensors())
for kind in ("SGLD", "SGHMC"):
    if world == 2:
        Chain((world,), kind=kind).advance(8).save(out / f"checkpoint-{kind}")
    else:
        loaded = Chain((world,), kind=kind, seed=99).load(out / f"checkpoint-{kind}")
        write(f"continued {kind}", loaded.advance(4).tensors())
for scope in ("layer", "global", "floor"):
    write(f"pruned {scope}", prune(Chain((world,)), scope))
write("pruned ties", prune(Chain((world,)), "ties"))
chain = Chain((world,))
posterior = collect(chain, out / f"posterior-{world}")
before = chain.tensors()
rows = INPUTS.chunk(world)[rank] if world < 4 else INPUTS  # ranks may have other rows
write("predicted", {"mean": posterior.predict(rows, batch_size=1)})
assert all(torch.equal(value, before[name]) for name, value in chain.tensors().items())
chain.advance(1)  # and it goes on
loaded = ss.Posterior.load(out / "posterior-2", Chain((world,), seed=9).model, link=identity)
write("predicted from two", {"mean": loaded.predict(INPUTS)})
again = lambda: ss.Posterior(chain.model, directory=out / f"posterior-{world}")  # noqa: E731
facts: dict[str, object] = {"exists": message(again)}
facts |= {"predict": message(lambda: collect(Chain((world,)), None).predict(INPUTS))}
facts |= {"sample": message(lambda: posterior.sample(0))}
chain = Chain((world,))
batches = [torch.arange(24).chunk(world)[rank]]
training = Training(
    chain.model, chain.sampler, batches, lambda model, rows: model(chain.x[rows]).square().mean(), ranks=Ranks.create()
)
training.run(steps=3)
write("trained", chain.tensors())
facts |= {"folder": message(lambda: training.run(steps=4, folder=out / f"run-{rank}"))}
facts |= {"seed": message(lambda: Chain((world,), seed=rank)), "not finite": message(not_finite)}
facts |= {"meta": message(lambda: on_meta(own=True)), "all meta": message(lambda: on_meta(own=False))}
facts |= {
    "resumed seed": resume(lambda state: state["sampler"]["noise"].update(seed=5)),
    "resumed num_data": resume(lambda state: state["param_groups"][0].update(num_data=7)),
    "resumed steps": resume(lambda state: state["sampler"].update(steps=9)),
    "resumed prior": resume(lambda state: state["prior"].update(kind="L1")),
}
facts |= {f"exchanged {width}": exchanged(width) for width in (7, 700)}
(out / f"facts-{world}-{rank}.json").write_text(json.dumps(facts))
dist.barrier()
os._exit(0)  # the threads of gloo may abort while the interpreter ends
