"""Run by torchrun with two ranks: every rank writes what it found into a folder, as safetensors and JSON."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch import distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))

import rank_runs as runs

import spikeslab as ss
from spikeslab.parallel.distributed import Ranks, gather_chains

TOO_MANY = 3


def message(action: Callable[[], object]) -> str:
    """What an action raises."""
    try:
        action()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "nothing was raised"


def forbidden(*args: object, **options: object) -> None:
    raise AssertionError("something was pickled")


def gathered(ranks: Ranks, out: Path) -> dict[str, Tensor]:
    """Every chain saves its samples; the first one also saves what it got of the others, without pickle."""
    posterior = runs.batch_norm_chain(ranks)
    posterior.save(out / f"own-{ranks.chain}")
    kept = {name: getattr(pickle, name) for name in ("dumps", "loads", "Pickler", "Unpickler")}
    c10d = dist.distributed_c10d
    pickler, unpickler = c10d._pickler, c10d._unpickler
    c10d._pickler = c10d._unpickler = forbidden
    for name in kept:
        setattr(pickle, name, forbidden)
    try:
        posteriors = gather_chains(posterior, ranks)
    finally:
        c10d._pickler, c10d._unpickler = pickler, unpickler
        for name, value in kept.items():
            setattr(pickle, name, value)
    assert (posteriors is None) == (ranks.chain != 0)
    predictions = {}
    for chain, other in enumerate(posteriors or []):
        other.save(out / f"gathered-{chain}")
        predictive = other.predictive(torch.ones(5, 3))
        predictions[f"mean {chain}"] = predictive.mean
        predictions[f"aleatoric {chain}"] = predictive.aleatoric
    return predictions


def no_group(ranks: Ranks) -> None:
    """A regression whose likelihood was not told of the other ranks."""
    runs.regression(Ranks(**(vars(ranks) | {"data_group": None})), fused=None, coupling="independent", steps=3)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    out, rank = Path(sys.argv[1]), dist.get_rank()
    shared, chains = Ranks.create(), Ranks.create(chains=2)

    def save(name: str, tensors: dict[str, Tensor]) -> None:
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, out / f"{name}-{rank}.safetensors")

    for fused in (True, False):
        save(f"noise-{fused}", runs.noise_alone(shared, fused=fused))
        for coupling in ("conjugate", "independent"):
            save(f"regression-{fused}-{coupling}", runs.regression(shared, fused=fused, coupling=coupling))
    save("unequal", runs.unequal_shards(shared))
    save("digits", runs.digits(shared))
    save("chains", gathered(chains, out))
    exchange, trace = runs.two_modes([1.0, 16.0], [chains.seed(0)], 3000, latents="carried", ranks=chains)
    save("exchange", {"trace": trace})
    model, same = nn.Linear(2, 1), nn.Linear(2, 1, bias=False)
    for weight, value in ((model.weight, 1.0), (model.bias, float(rank)), (same.weight, 1.0)):
        nn.init.constant_(weight, value)
    messages = {
        "chains": message(lambda: Ranks.create(chains=TOO_MANY)),
        "seed": message(lambda: runs.digits(shared, 3, own_seed=True)),
        "group": message(lambda: no_group(shared)),
        "bias": message(lambda: shared.check_same(model)),
        "count": message(lambda: shared.check_same(*[same] * (1 + rank))),
        "no seed": message(lambda: ss.SGLD(model.parameters(), lr=0.1, num_data=1)),
        "ladder": message(lambda: runs.two_modes([1.0, 2.0 + rank], [rank], 1, latents="carried", ranks=chains)),
        "twins": message(lambda: runs.two_modes([1.0, 2.0], [5], 1, latents="carried", ranks=chains)),
    }
    report = exchange.statistics()
    facts = {
        "messages": messages,
        "seeds": [shared.seed(0), chains.seed(0)],
        "places": [[r.chain, r.chains, r.data_rank, r.data_size, r.is_writer] for r in (shared, chains)],
        "accepted": report.accepted,
        "attempts": report.attempts,
        "round_trips": report.round_trips,
    }
    (out / f"facts-{rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
