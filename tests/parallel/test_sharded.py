"""Chains on models that are sharded by FSDP2, with real processes: they are those on a whole model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sharded_runs import INPUTS, PENALTIES, SAMPLERS, STEPS, Chain, collect, identity, make_model, prune
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torchrun import WORKERS, difference, torchrun

import spikeslab as ss
from spikeslab.training import Training

RANKS = (2, 3, 4)
TOLERANCE = 1e-12


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    torchrun(2, WORKERS / "sharded.py", str(folder))
    return folder


@pytest.fixture(scope="module")
def more(out: Path) -> Path:
    for ranks in RANKS[1:]:
        torchrun(ranks, WORKERS / "sharded.py", str(out))
    return out


def whole(steps: int = STEPS, **options: Any) -> dict[str, Tensor]:
    return Chain(**options).advance(steps).tensors()


def written(out: Path, name: str, ranks: int) -> list[dict[str, Tensor]]:
    return [load_file(out / f"{name}-{ranks}-{rank}.safetensors") for rank in range(ranks)]


def check(out: Path, name: str, ranks: int, expected: dict[str, Tensor]) -> None:
    for found in written(out, name, ranks):
        assert difference(found, expected) < TOLERANCE


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("fused", [True, False])
def test_two_ranks_move_a_sharded_model_as_one_does(out: Path, kind: str, fused: bool) -> None:
    check(out, f"{kind}-{fused}", 2, whole(kind=kind, fused=fused))


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("fused", [True, False])
def test_two_ranks_penalise_a_sharded_model_as_one_does(out: Path, penalty: str, fused: bool) -> None:
    check(out, f"{penalty}-{fused}", 2, whole(penalty=penalty, fused=fused))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("fused", [True, False])
def test_more_ranks_move_a_sharded_model_as_one_does(more: Path, kind: str, fused: bool, ranks: int) -> None:
    check(more, f"{kind}-{fused}", ranks, whole(kind=kind, fused=fused))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_more_ranks_penalise_a_sharded_model_as_one_does(more: Path, penalty: str, ranks: int) -> None:
    check(more, f"{penalty}-True", ranks, whole(penalty=penalty, fused=True))


@pytest.mark.slow
def test_a_mesh_that_replicates_and_shards(more: Path) -> None:
    check(more, "two dimensions", 4, whole())


@pytest.mark.parametrize("kind", ["SGLD", "SGHMC"])
def test_a_checkpoint_of_two_ranks_continues_on_one(out: Path, kind: str) -> None:
    chain = Chain(kind=kind, seed=99).load(out / f"checkpoint-{kind}")
    assert (chain.sampler.steps, chain.sampler.noise.seed) == (8, 3)
    assert difference(chain.advance(4).tensors(), whole(12, kind=kind)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("kind", ["SGLD", "SGHMC"])
def test_a_checkpoint_of_two_ranks_continues_on_more(more: Path, kind: str, ranks: int) -> None:
    check(more, f"continued {kind}", ranks, whole(12, kind=kind))


@pytest.mark.parametrize("scope", ["layer", "global", "floor"])
def test_a_threshold_over_ranks_prunes_what_one_rank_would(out: Path, scope: str) -> None:
    expected = prune(Chain(), scope)
    assert expected["zeros"][0] > 30
    for found in written(out, f"pruned {scope}", 2):
        assert all(torch.equal(found[name], expected[name]) for name in expected if name.startswith(("mask", "zeros")))
        assert difference(found, expected) < TOLERANCE


def test_equal_weights_are_pruned_in_exact_numbers(out: Path) -> None:
    expected = prune(Chain(), "ties")
    for found in written(out, "pruned ties", 2):
        for name in (name for name in expected if name.startswith(("mask", "zeros"))):
            assert torch.equal(found[name].sum(), expected[name].sum())  # which of them go is left open


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> ss.Posterior:
    return collect(Chain(), tmp_path_factory.mktemp("samples") / "posterior")


def test_every_rank_writes_its_parts_of_the_samples(out: Path, samples: ss.Posterior) -> None:
    files = sorted(path.name for path in (out / "posterior-2").glob("sample-*"))
    assert files == [f"sample-{step:09d}-{rank:04d}.safetensors" for step in (5, 8) for rank in range(2)]
    numbers = [sum(t.numel() for t in load_file(out / "posterior-2" / name).values()) for name in files]
    assert sum(numbers[:2]) == sum(p.numel() for p in make_model().parameters())
    assert max(numbers) < 0.7 * sum(numbers[:2])
    loaded = ss.Posterior.load(out / "posterior-2", make_model(), link=identity)
    assert [record.step for record in loaded.records] == [record.step for record in samples.records] == [5, 8]
    for index in range(2):
        assert difference(loaded.tensors(index), samples.tensors(index)) < TOLERANCE
    torch.testing.assert_close(loaded.predict(INPUTS), samples.predict(INPUTS))


def test_a_sharded_model_predicts_from_its_samples(out: Path, samples: ss.Posterior) -> None:
    mean = samples.predict(INPUTS)
    torch.testing.assert_close(torch.cat([found["mean"] for found in written(out, "predicted", 2)]), mean)
    for found in written(out, "predicted from two", 2):
        torch.testing.assert_close(found["mean"], mean)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS[1:])
def test_samples_are_read_on_another_number_of_ranks(more: Path, samples: ss.Posterior, ranks: int) -> None:
    for found in written(more, "predicted from two", ranks):
        torch.testing.assert_close(found["mean"], samples.predict(INPUTS))


@pytest.mark.parametrize("damage", ["change", "remove", "other"])
def test_a_part_that_is_damaged_is_refused(out: Path, tmp_path: Path, damage: str) -> None:
    folder = shutil.copytree(out / "posterior-2", tmp_path / "posterior")
    path = folder / "sample-000000005-0001.safetensors"
    if damage == "remove":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage == "change" else content[:-8])
    loaded = ss.Posterior.load(folder, make_model(), link=identity)
    message = "Cannot read the sample" if damage == "remove" else "has changed since it was written"
    with pytest.raises(ValueError, match=message):
        loaded.tensors(0)
    assert loaded.tensors(1)


def test_the_training_loop_takes_a_sharded_model(out: Path) -> None:
    chain = Chain()
    batches = [torch.arange(24)]
    Training(chain.model, chain.sampler, batches, lambda model, rows: model(chain.x[rows]).square().mean()).run(steps=3)
    check(out, "trained", 2, chain.tensors())


@pytest.mark.slow
def test_the_example_says_the_same_on_one_and_two_ranks() -> None:
    script = Path(__file__).parents[2] / "examples" / "torchrun_transformer.py"
    alone, shared = (torchrun(ranks, script, "--steps", "20").strip().splitlines()[-1] for ranks in (1, 2))
    assert alone == shared
    assert "sparsity 0.500, 7 samples" in alone


def test_the_sampler_sends_two_small_tensors_whatever_the_number_of_weights(out: Path) -> None:
    found = json.loads((out / "facts-2-0.json").read_text())
    layers, number = 3, 8
    # Whether all numbers are finite; then B, J and the sum of rho of each layer.
    assert found["exchanged 7"] == {"allreduce": [2, number + (2 + layers) * number]}
    assert found["exchanged 700"] == found["exchanged 7"]


def test_all_ranks_refuse_with_one_sentence(out: Path) -> None:
    facts = [json.loads((out / f"facts-2-{rank}.json").read_text()) for rank in range(2)]
    for rank, found in enumerate(facts):
        expectation = "seed must be the same on all ranks that share a sharded model, but this rank got"
        assert found["seed"] == f"{expectation} {rank}."
        assert found["folder"].startswith("folder must be None for a model that is sharded, but got ")
        assert found["predict"] == "directory must be given to predict with a sharded model, but got None."
        assert found["sample"].startswith("model must be whole to hold a sample, but it is sharded: load the samples")
        folder = out / "posterior-2"
        exists = f"{folder} holds a posterior already: load it with Posterior.load, or choose another directory."
        assert found["exists"] == (exists if rank == 0 else f"The first rank cannot use {folder} for samples.")
        assert found["not finite"].startswith("the gradient of 0.weight must be finite, but got NaN or Inf at step 2")


def test_all_ranks_refuse_what_one_of_them_was_given(out: Path) -> None:
    facts = [json.loads((out / f"facts-2-{rank}.json").read_text()) for rank in range(2)]
    others = "must be accepted by all ranks that share a sharded model, but another rank refused its own."
    meta = (
        "params must have memory, but parameter 6 of group 0 (shape (2,)) is on the meta device: materialise the model"
    )
    assert facts[0]["meta"] == f"params {others}"
    assert facts[1]["meta"].startswith(meta)
    for rank, found in enumerate(facts):
        assert found["all meta"].startswith(meta)
        same = "must be the same on all ranks that share a sharded model, but this rank got"
        assert found["resumed seed"] == f"seed {same} {(3, 5)[rank]}."
        assert found["resumed num_data"] == f"num_data {same} {(96, 7)[rank]}."
        assert found["resumed steps"] == f"steps {same} {(1, 9)[rank]}."
    assert facts[0]["resumed prior"] == f"state_dict {others}"
    assert facts[1]["resumed prior"] == "state_dict must hold the state of a SpikeSlab prior, but got 'L1'."


class TestADryStep:
    """At lr 0 with gradients of zero on an empty state: torch's checkpoints take it to make the tensors they load."""

    def chain(self) -> Chain:
        return Chain()

    def dry(self, chain: Chain, gradient: float = 0.0) -> None:
        for group in chain.sampler.param_groups:
            group["lr"] = 0.0
            for param in group["params"]:
                param.grad = torch.full_like(param, gradient)
        chain.sampler._schedules = [{} for _ in chain.sampler.param_groups]
        chain.sampler.step()

    def test_is_none_of_the_chain(self) -> None:
        chain = self.chain()
        before = [p.detach().clone() for p in chain.model.parameters()]
        self.dry(chain)
        assert chain.sampler.steps == 0
        assert all(torch.equal(p, old) for p, old in zip(chain.model.parameters(), before, strict=True))
        assert all("momentum_buffer" in chain.sampler.state[p] for p in chain.model.parameters())
        assert chain.prior.latents()["omega_sum"] == 0.0

    def test_with_gradients_is_a_step_of_a_warm_up(self) -> None:
        chain = self.chain()
        self.dry(chain, gradient=1.0)
        assert chain.sampler.steps == 1
        assert chain.prior.latents()["omega_sum"] > 0.0

    def test_after_another_step_counts(self) -> None:
        chain = self.chain().advance(1)
        self.dry(chain)
        assert chain.sampler.steps == 2


def test_a_flattened_state_is_refused() -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    saved = Chain().advance(2)
    state = get_optimizer_state_dict(saved.model, saved.sampler, options=options)
    other = Chain()
    with pytest.raises(ValueError, match=r"^state_dict must hold the state of SGHMC, but got None"):
        set_optimizer_state_dict(other.model, other.sampler, state, options=options)
