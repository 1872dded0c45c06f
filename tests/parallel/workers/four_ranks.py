"""Run by torchrun with four ranks: two chains with two ranks each, and a ladder of four rungs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))

import rank_runs as runs

from spikeslab.parallel.distributed import Ranks, gather_chains


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    out, rank = Path(sys.argv[1]), dist.get_rank()
    mixed, ladder = Ranks.create(chains=2), Ranks.create(chains=4)

    save_file(runs.regression(mixed, fused=None, coupling="conjugate"), out / f"regression-{rank}.safetensors")
    posteriors = gather_chains(runs.batch_norm_chain(mixed), mixed)
    for latents in ("carried", "frozen"):
        _, trace = runs.two_modes(runs.FOUR_RUNGS, [ladder.seed(0)], 100, latents=latents, noise=0.5, ranks=ladder)
        save_file({"trace": trace}, out / f"ladder-{latents}-{rank}.safetensors")
        # Two rungs with two ranks each, which see the same data: as two chains of one rank.
        _, trace = runs.two_modes([1.0, 16.0], [mixed.seed(0)], 100, latents=latents, ranks=mixed)
        save_file({"trace": trace}, out / f"mixed-{latents}-{rank}.safetensors")
    facts = {
        "place": [mixed.chain, mixed.data_rank, mixed.is_writer],
        "gathered": None if posteriors is None else [len(posterior) for posterior in posteriors],
    }
    (out / f"facts-{rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
