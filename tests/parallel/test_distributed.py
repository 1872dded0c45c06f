"""Ranks, shards and chains, with real processes: torchrun starts them, gloo connects them.

Two launches, of two and of four ranks, do everything; the tests look at what the ranks have written.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import rank_runs as runs
import torch
from safetensors.torch import load_file
from torch import Tensor
from torchrun import SOURCE, WORKERS, difference, torchrun
from two_modes import mode_weight

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.parallel.distributed import Ranks, gather_chains
from spikeslab.posterior.samples import named_tensors

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun_digits.py"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two")
    torchrun(2, WORKERS / "two_ranks.py", str(out))
    return out


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("four")
    torchrun(4, WORKERS / "four_ranks.py", str(out))
    return out


def written(out: Path, name: str, ranks: int = 2) -> list[dict[str, Tensor]]:
    return [load_file(out / f"{name}-{rank}.safetensors") for rank in range(ranks)]


def facts(out: Path, ranks: int = 2) -> list[dict]:
    return [json.loads((out / f"facts-{rank}.json").read_text()) for rank in range(ranks)]


def identical(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("fused", [True, False])
def test_the_noise_is_the_same_on_one_and_two_ranks(two: Path, fused: bool) -> None:
    alone = runs.noise_alone(Ranks.create(), fused=fused)
    assert all(float(tensor.std()) > 0.5 for tensor in alone.values())
    assert all(identical(rank, alone) for rank in written(two, f"noise-{fused}"))


@pytest.mark.parametrize("coupling", ["conjugate", "independent"])
@pytest.mark.parametrize("fused", [True, False])
def test_two_ranks_equal_one_process_on_the_same_global_batches(two: Path, fused: bool, coupling: str) -> None:
    alone = runs.regression(Ranks.create(), fused=fused, coupling=coupling)
    first, second = written(two, f"regression-{fused}-{coupling}")
    assert identical(first, second)
    print(f"DDP against one process, fused={fused}, {coupling}: {difference(first, alone):.1e}")
    assert difference(first, alone) < 1e-8
    assert float(alone["sigma"].std()) > 0.01, "sigma has moved"


def test_with_unequal_shards_sigma_is_exact_and_the_gradient_a_mean_of_means(two: Path) -> None:
    alone = runs.unequal_shards(Ranks.create())
    first, second = written(two, "unequal")
    assert identical(first, second)
    assert float(first["sigma"]) == pytest.approx(float(alone["sigma"]), rel=1e-14)
    x = torch.arange(16, dtype=torch.float64).view(8, 2) / 10
    means = [(part.sum(1, keepdim=True) * part).mean(0) for part in x.split([3, 5])]
    assert torch.allclose(first["gradient"][0], (means[0] + means[1]) / 2, rtol=1e-12)
    assert not torch.allclose(first["gradient"], alone["gradient"], rtol=0.01)


def test_ranks_are_bit_identical_after_200_steps_of_a_network(two: Path) -> None:
    first, second = written(two, "digits")
    assert identical(first, second)
    assert float(first["zeros"]) == pytest.approx(0.9, abs=1e-4)
    assert float(first["accuracy"]) > 0.8
    assert "conv1.weight" in first, "the model's own names, without module."


def test_the_samples_of_all_chains_arrive_without_pickle(two: Path) -> None:
    template = runs.batch_norm_chain(Ranks.create()).model
    (predictions, nothing) = written(two, "chains")
    assert not nothing
    for chain in (0, 1):
        own, gathered = (ss.Posterior.load(two / f"{kind}-{chain}", template) for kind in ("own", "gathered"))
        assert len(own) == len(gathered) == 3 + chain
        assert own.records == gathered.records
        assert own.index() == gathered.index()
        for index in range(len(own)):
            assert identical(own.tensors(index), gathered.tensors(index))
        predictive = own.predictive(torch.ones(5, 3))
        assert torch.equal(predictive.mean, predictions[f"mean {chain}"])
        assert torch.equal(predictive.aleatoric, predictions[f"aleatoric {chain}"])
    assert not torch.equal(predictions["mean 0"], predictions["mean 1"])
    assert {tensor.dtype for _, tensor in named_tensors(template)} == {torch.float32, torch.int64}


def test_a_ladder_over_ranks_is_the_one_in_a_process_and_finds_both_modes(two: Path) -> None:
    seeds = [Ranks(chain=chain, chains=2).seed(0) for chain in (0, 1)]
    exchange, trace = runs.two_modes([1.0, 16.0], seeds, 3000, latents="carried")
    for rank, tensors in enumerate(written(two, "exchange")):
        assert torch.equal(tensors["trace"][:, 0], trace[:, rank])
    cold = [float(w) for step in trace.tolist() for rung, w in step if rung == 0]
    weight, error, exact = mode_weight(cold)
    print(f"over 2 ranks: {weight:.3f} +- {error:.3f}, exact {exact}; {exchange.statistics()}")
    assert min(cold) < -3
    assert max(cold) > 3
    assert abs(weight - exact) < 4 * error
    for rank in facts(two):
        assert tuple(rank["accepted"]) == exchange.statistics().accepted
        assert tuple(rank["attempts"]) == exchange.statistics().attempts
        assert rank["round_trips"] == exchange.statistics().round_trips


def test_a_place_in_the_world(two: Path, four: Path) -> None:
    assert [rank["places"] for rank in facts(two)] == [
        [[0, 1, 0, 2, True], [0, 2, 0, 1, True]],
        [[0, 1, 1, 2, False], [1, 2, 0, 1, True]],
    ]
    assert [rank["place"] for rank in facts(four, 4)] == [[0, 0, True], [0, 1, False], [1, 0, True], [1, 1, False]]


def test_seeds_are_equal_within_a_chain_and_differ_between_chains(two: Path) -> None:
    (shared0, chain0), (shared1, chain1) = (rank["seeds"] for rank in facts(two))
    assert shared0 == shared1 == chain0 == Ranks.create().seed(0) != chain1
    many = {Ranks(chain=chain).seed(base) for chain in range(1000) for base in range(5)}
    assert len(many) == 5000
    assert all(0 <= seed < 2**64 for seed in many)
    with pytest.raises(ValueError, match=r"^base must be an integer >= 0, but got -1\.$"):
        Ranks.create().seed(-1)


def test_mistakes_are_caught_on_every_rank_and_named(two: Path) -> None:
    for rank in facts(two):
        messages = rank["messages"]
        assert messages["chains"] == "chains must divide the world size, 2, but got 3."
        assert messages["bias"].startswith(
            "the 2 ranks of chain 0 must be identical, but 1 of 2 values differ, first bias of Linear (argument 1): "
        )
        assert ", first conv1.weight of DigitsCNN (argument 1): " in messages["seed"]
        assert ", first prior.sigma of SGHMC (argument 2): " in messages["group"]
        assert messages["no seed"].startswith("seed must be an integer when torch.distributed runs, ")
        assert messages["ladder"].startswith("the ladder must have the same settings on all chains, but this one has ")
        assert messages["twins"] == (
            "samplers must have different seeds, but two have the same and would draw equal noise: use "
            "ranks.seed(base) on ranks."
        )
    first, second = (rank["messages"]["count"] for rank in facts(two))
    assert ", first their number: " in first
    assert ", first weight of Linear (argument 2): " in second


def test_chains_of_data_parallel_ranks(four: Path) -> None:
    first, second, third, fourth = written(four, "regression", 4)
    assert identical(first, second)
    assert identical(third, fourth)
    assert not torch.equal(first["0.weight"], third["0.weight"])
    alone = runs.regression(Ranks(chain=1), fused=None, coupling="conjugate")
    assert difference(third, alone) < 1e-8
    assert [rank["gathered"] for rank in facts(four, 4)] == [[3, 4], None, None, None]


@pytest.mark.parametrize("latents", ["carried", "frozen"])
def test_four_rungs_with_noisy_energies_over_ranks_are_those_in_a_process(four: Path, latents: str) -> None:
    seeds = [Ranks(chain=chain).seed(0) for chain in range(4)]
    exchange, trace = runs.two_modes(runs.FOUR_RUNGS, seeds, 100, latents=latents, noise=0.5)
    assert min(exchange.statistics().accepted) > 0
    for rank, tensors in enumerate(written(four, f"ladder-{latents}", 4)):
        assert torch.equal(tensors["trace"][:, 0], trace[:, rank])


@pytest.mark.parametrize("latents", ["carried", "frozen"])
def test_rungs_of_data_parallel_ranks(four: Path, latents: str) -> None:
    seeds = [Ranks(chain=chain).seed(0) for chain in range(2)]
    exchange, trace = runs.two_modes([1.0, 16.0], seeds, 100, latents=latents)
    assert exchange.statistics().accepted[0] > 0
    for rank, tensors in enumerate(written(four, f"mixed-{latents}", 4)):
        assert torch.equal(tensors["trace"][:, 0], trace[:, rank // 2])


def test_a_single_process_is_a_world_of_one(model) -> None:
    ranks = Ranks.create()
    assert ranks == Ranks()
    assert ranks.data_parallel(model) is model
    assert torch.equal(ranks.shard(torch.arange(5)), torch.arange(5))
    assert torch.equal(ranks.mean(torch.ones(2)), torch.ones(2).double())
    ranks.check_same(model)
    posterior = ss.Posterior(model)
    assert gather_chains(posterior, ranks) == [posterior]


def test_several_chains_need_several_processes() -> None:
    with pytest.raises(ArgumentValueError) as error:
        Ranks.create(chains=2)
    assert str(error.value) == "chains must be 1 in a single process, but got 2: start the script with torchrun."
    with pytest.raises(ValueError, match=r"^chains must be an integer >= 1, but got 0\.$"):
        Ranks.create(chains=0)


def test_a_forgotten_initialisation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="init_process_group") as error:
        Ranks.create()
    assert "call torch.distributed.init_process_group() before Ranks.create()" in str(error.value)


def test_an_old_torch_does_not_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.12.1"))
    model = torch.nn.Linear(2, 2)
    assert Ranks().fully_shard(model) is model  # one rank keeps it whole
    with pytest.raises(RuntimeError, match=r"^Sharded parameters need torch 2\.13 or later, .* but this is 2\.12\.1"):
        Ranks(data_size=2).fully_shard(model)


def test_a_batch_that_cannot_be_shared_equally_is_refused() -> None:
    with pytest.raises(ArgumentValueError) as error:
        Ranks(data_rank=0, data_size=2).shard(torch.zeros(5, 3))
    assert str(error.value) == (
        "batch must have a number of rows that the 2 ranks of a chain can share equally, but got 5."
    )


def test_shards_are_a_partition() -> None:
    batch = torch.arange(12)
    parts = [Ranks(data_rank=rank, data_size=4).shard(batch) for rank in range(4)]
    assert torch.equal(torch.cat(parts), batch)
    assert {len(part) for part in parts} == {3}


def test_the_example_runs_with_and_without_torchrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--steps", "24", "--batch-size", "16"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    alone = capsys.readouterr().out.splitlines()
    chains = torchrun(2, EXAMPLE, "--chains", "2", *arguments).splitlines()
    assert len(alone) == 3
    assert len(chains) == 4
    assert chains[0] == alone[0], "the first of two chains is the only one of one"
    assert chains[1].startswith("chain 1: accuracy ")
    assert chains[1].removeprefix("chain 1") != alone[0].removeprefix("chain 0")
    assert [lines[-1] for lines in (alone, chains)] == ["sparsity 0.900, 8 samples", "sparsity 0.900, 16 samples"]


def launch(out: Path, mode: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [*command, str(WORKERS / "loop_ranks.py"), str(out), mode],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def continued(out: Path, first: str) -> None:
    """Begin a run that ends early, continue it, and compare it with one that nothing disturbed."""
    whole = launch(out / "whole", "whole")
    assert whole.returncode == 0, whole.stderr
    begun = launch(out / "begun", first)
    if first == "stop":  # the signal reaches one of them
        assert begun.stdout.count("Stopped after step 32 of 60.") == 2, begun.stdout + begun.stderr
    else:  # as if the second rank had been killed while it wrote its last checkpoint
        assert begun.returncode != 0
        shutil.rmtree(out / "begun" / "rank-1" / "checkpoints" / "step-000000030")
    resumed = launch(out / "begun", "resume")
    assert resumed.returncode == 0, resumed.stderr
    end = load_file(out / "whole" / "0.st")
    assert all(identical(load_file(out / "begun" / f"{rank}.st"), end) for rank in range(2))


def test_ranks_that_share_a_chain_stop_and_continue_at_the_same_step(tmp_path: Path) -> None:
    continued(tmp_path, "stop")


@pytest.mark.slow
def test_ranks_that_share_a_chain_continue_after_a_kill_at_the_same_step(tmp_path: Path) -> None:
    continued(tmp_path, "kill")


def test_ranks_with_different_numbers_of_batches_are_refused_on_every_rank(tmp_path: Path) -> None:
    uneven = launch(tmp_path, "uneven")
    assert uneven.returncode == 0, uneven.stderr
    sentence = (
        "The 2 ranks of chain 0 must take the same number of steps, but this one would take {} and another rank {}:"
    )
    assert all(sentence.format(*steps) in uneven.stdout for steps in ((6, 8), (8, 6))), uneven.stdout
    empty = launch(tmp_path, "empty")
    assert empty.returncode == 0, empty.stderr
    assert "another rank cannot count its own: " in empty.stdout
    assert "data must hold at least one batch, but got none." in empty.stdout
    assert not list(tmp_path.iterdir()), "nothing is written before the ranks agree"
