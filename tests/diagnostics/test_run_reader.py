"""A run's folder is read as it was written; what is damaged is refused in one sentence."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
from synthetic_runs import EVALUATION, STEPS, Net, run_record, write_run

import spikeslab as ss
from spikeslab.diagnostics.run_reader import read_run
from spikeslab.training.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run", chains=2, draws=8, evaluation=EVALUATION)


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def test_all_that_is_there_is_read(folder):
    facts = read_run(folder)
    assert facts.run == run_record()
    assert facts.metrics.series("evaluation", "accuracy").values[-1] == pytest.approx(0.95)
    assert list(facts.metrics.layers("delta")) == ["fc1.weight", "fc2.weight"]
    assert facts.metrics.series("loss").last_third().steps[0] == 210
    assert facts.samples.chains == [8, 8]
    assert facts.samples.first_step == STEPS - 7
    assert facts.snapshot.sparse == ["fc1.weight"]
    assert facts.snapshot.rho["fc1.weight"].shape == (30, 20)
    assert "norm.running_mean" not in facts.snapshot.weights
    assert "norm.weight" in facts.snapshot.weights
    assert [item.name for item in facts.convergence] == ["norms of layers", "some weights"]


def test_only_the_record_must_be_there(folder):
    for path in ("posterior", "checkpoints"):
        shutil.rmtree(folder / path)
    for path in ("metrics.jsonl", "evaluation.json"):
        (folder / path).unlink()
    facts = read_run(folder)
    assert (len(facts.metrics), facts.samples, facts.snapshot, facts.convergence) == (0, None, None, [])


def test_steps_taken_again_after_a_resume_replace_the_first(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        for step in (280, 290, 310):
            file.write(json.dumps({"step": step, "loss": 7.0}) + "\n")
    loss = read_run(folder).metrics.series("loss")
    np.testing.assert_array_equal(loss.steps[-5:], [260, 270, 280, 290, 310])
    np.testing.assert_array_equal(loss.values[-3:], [7.0, 7.0, 7.0])


def test_integers_that_no_float_holds_are_infinite(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 310, "loss": {10**400}}}\n{{"step": 311, "loss": -{10**400}}}\n')
    assert read_run(folder).metrics.series("loss").values[-2:].tolist() == [np.inf, -np.inf]


def test_half_a_last_line_is_left_out(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 310, "lo')
    assert read_run(folder).metrics.steps[-1] == 300


def test_samples_in_memory_are_read_from_the_checkpoint(folder):
    posterior = ss.Posterior(Net(), thin=10)
    for _ in range(300):
        posterior.collect()
    state = {"posterior": posterior.state_dict()}
    Checkpoints(folder / "checkpoints").save(310, {"model": posterior.model.state_dict(), "callbacks": state})
    assert read_run(folder).samples.chains == [8, 8], "what is on disk comes first"
    shutil.move(folder / "posterior", folder / "elsewhere")
    facts = read_run(folder)
    assert (facts.samples.chains, facts.samples.first_step) == ([30], 10)
    files = sorted((folder / "elsewhere" / "chain-0").glob("*.safetensors"))
    paths = {"records": [{"step": step} for step in range(293, 301)], "samples": files}
    Checkpoints(folder / "checkpoints").save(320, {"callbacks": {"posterior": paths}})
    assert read_run(folder).samples.chains == [8]


def test_convergence_of_predictions_comes_from_the_evaluation(folder):
    item = {"name": "predictions", "count": 3, "chains": 2, "draws": 8, "rhat": 1.2, "ess_bulk": 9, "ess_tail": 8}
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION | {"convergence": [item]}))
    first = read_run(folder).convergence[0]
    assert (first.name, first.rhat) == ("predictions", 1.2)
    (folder / "evaluation.json").write_text(json.dumps({"convergence": [item | {"rhat": None}]}))
    assert math.isnan(read_run(folder).convergence[0].rhat), "JSON has no word for a number that is not finite"


def damage(path, text):
    return lambda folder: (folder / path).write_text(text)


def flip(pattern):
    def change(folder):
        path = next(folder.glob(pattern))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 255
        path.write_bytes(content)

    return change


def cut(pattern):
    def change(folder):
        path = next(folder.glob(pattern))
        path.write_bytes(path.read_bytes()[:100])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "run.json").unlink(), r"^run must be the folder of a run, with run\.json in it, but"),
        (damage("run.json", "{"), r"run\.json is damaged: it is not JSON"),
        (damage("run.json", "[]"), r"run\.json is damaged: it holds no JSON object\.$"),
        (damage("run.json", '{"version": 9}'), r"run\.json has version 9, but this spikeslab reads 1 and 2\.$"),
        (damage("run.json", json.dumps(run_record(steps="many"))), r"must have a valid 'steps', but got 'many'\.$"),
        (damage("run.json", json.dumps(run_record(status="odd"))), r"must have a status among 'running', .*got 'odd'"),
        (damage("metrics.jsonl", '{"step": 1}\nx\n{"step": 2}\n'), r"metrics\.jsonl is damaged"),
        (
            damage("metrics.jsonl", '{"step": 1}\n{}\n{"step": 2}\n'),
            r"must have an integer step in line 2, but got",
        ),
        (
            lambda folder: (folder / "metrics.jsonl").write_bytes(b"\xff\n"),
            r"metrics\.jsonl is damaged: line 1 is not JSON",
        ),
        (damage("evaluation.json", '{"convergence": [{"x": 1}]}'), r"damaged entry 'convergence': "),
        (damage("posterior/chain-0/posterior.json", "{"), r"posterior\.json is damaged: it is not JSON"),
        (
            damage("posterior/chain-0/posterior.json", '{"version": 1}'),
            r"posterior\.json is not the index of a posterior",
        ),
        (cut("posterior/chain-1/sample-*"), r"sample-\d+\.safetensors has changed since it was written"),
        (flip("checkpoints/*/tensors.safetensors"), r"tensors\.safetensors has changed"),
    ],
)
def test_damage_is_refused(folder, change, message):
    change(folder)
    with pytest.raises(ValueError, match=message) as error:
        read_run(folder)
    assert "\n" not in str(error.value)
