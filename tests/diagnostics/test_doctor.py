"""Each finding of the doctor, from a run that has nothing else wrong with it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from small import compress_small, data
from synthetic_runs import STEPS, run_record, write_run

from spikeslab.diagnostics.doctor import examine
from spikeslab.diagnostics.findings import Finding, Level, findings_table, verdict
from spikeslab.diagnostics.run_reader import RunFacts, read_run
from spikeslab.diagnostics.traces import Traces
from spikeslab.posterior import Convergence

OK, NOTE, PROBLEM = Level.OK, Level.NOTE, Level.PROBLEM


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> RunFacts:
    return read_run(write_run(tmp_path_factory.mktemp("runs") / "healthy"))


def finding(facts: RunFacts, about: str) -> Finding:
    (found,) = [finding for finding in examine(facts) if finding.about == about]
    return found


def changed(facts: RunFacts, change, **run) -> RunFacts:
    """The facts with changed metrics and ``run.json``."""
    records = records_of(facts.metrics)
    for record in records:
        change(record)
    return replace(facts, metrics=Traces.of(records), run=facts.run | run)


def records_of(traces: Traces) -> list[dict]:
    records = {step: {"step": step} for step in traces.steps.tolist()}

    def fill(node, path: tuple[str, ...]) -> None:
        for name in node.columns:
            series = traces.series(*path, name)
            for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                place = records[step]
                for part in path:
                    place = place.setdefault(part, {})
                place[name] = value
        for name, child in node.children.items():
            fill(child, (*path, name))

    fill(traces._root, ())
    return [*records.values()]


def with_settings(facts: RunFacts, **settings) -> RunFacts:
    return replace(facts, run=facts.run | {"settings": facts.run["settings"] | settings})


def test_a_healthy_run_has_no_problem(healthy):
    findings = examine(healthy)
    assert {f.about: f.level for f in findings} == {
        "end": OK, "loss": OK, "mixing": OK, "samples": OK, "law": OK, "temperature": OK, "latents": OK,
        "sparsity": OK, "zeros": OK,
    }  # fmt: skip
    assert verdict(findings) == "No problem was found."


def test_every_finding_that_is_not_ok_says_what_to_do(healthy):
    ill = changed(healthy, lambda r: r.update(loss=math.nan, omega_sum=0.75), status="failed", message="NaN.")
    findings = examine(ill)
    assert [f.level for f in findings[:3]] == [PROBLEM] * 3, "problems come first"
    assert all(f.change for f in findings if f.level is not OK)
    assert verdict(findings) == "3 problems (end, loss, latents)."
    assert len(findings_table(findings).rows) == len(findings)


@pytest.mark.parametrize(
    ("run", "level", "sentence"),
    [
        ({"status": "finished"}, OK, "The run finished its 300 steps."),
        ({"status": "failed", "steps": 120, "message": "the gradient of fc1.weight must be finite."}, PROBLEM,
         "The run failed at step 120 of 300: the gradient of fc1.weight must be finite."),
        ({"status": "interrupted", "steps": 120}, NOTE, "The run was interrupted at step 120 of 300."),
        ({"status": "running", "steps": 120}, NOTE,
         "The run is at step 120 of 300: it is still running, or was killed."),
    ],
)  # fmt: skip
def test_how_it_ended(healthy, run, level, sentence):
    found = finding(changed(healthy, lambda record: None, **run), "end")
    assert (found.level, found.sentence) == (level, sentence)


@pytest.mark.parametrize(
    ("change", "level", "sentence"),
    [
        (lambda r: r.update(loss=math.nan if r["step"] > 100 else 1.0), PROBLEM,
         "The loss is NaN or infinite from step 110 on."),
        (lambda r: r.update(loss=r["step"] / 100), PROBLEM,
         "The loss rose by 22% over the last third of the run while the network is still being pruned, to 3."),
        (lambda r: r.update(loss=0.5 if r["step"] > 10 else 0.1), NOTE,
         "The loss ended at 0.5, above its first value of 0.1."),
    ],
)  # fmt: skip
def test_the_loss(healthy, change, level, sentence):
    if "pruned" in sentence:
        pruning = changed(healthy, lambda r: r.update(sparsity=r["step"] / 600))
        assert finding(changed(pruning, change), "loss").sentence == sentence
        plain = finding(changed(healthy, change), "loss")
        assert plain.sentence == sentence.replace(" while the network is still being pruned", "")
        assert plain.change == "Lower lr, by a factor of 3 to begin with."
        return
    found = finding(changed(healthy, change), "loss")
    assert (found.level, found.sentence) == (level, sentence)


def test_noise_in_the_loss_is_no_rise(healthy):
    noisy = changed(healthy, lambda r: r.update(loss=1.0 + 0.3 * math.sin(r["step"] ** 2)))
    assert finding(noisy, "loss").level is not PROBLEM


@pytest.mark.parametrize(
    ("convergence", "level", "beginning"),
    [
        ([Convergence("predictions", 9, 4, 40, 1.004, 300.0, 200.0)], OK, "The 4 chains agree: R-hat is 1"),
        ([Convergence("predictions", 9, 4, 400, 1.05, 300.0, 200.0)], NOTE, "The 4 chains nearly agree: R-hat is 1.05"),
        ([Convergence("predictions", 9, 4, 40, 1.3, 12.0, 20.0)], PROBLEM,
         "The 4 chains differ: R-hat is 1.3 in the worst of 9 predictions, and the effective sample size is 12. They "
         "have not reached the same distribution."),
        ([Convergence("predictions", 9, 4, 40, 1.004, 30.0, 20.0)], NOTE, "The 4 chains nearly agree"),
        # With 40 draws of 9 quantities an R-hat of 1.05 is chance.
        ([Convergence("predictions", 9, 4, 40, 1.05, 300.0, 200.0)], OK, "The 4 chains agree: R-hat is 1.05"),
        # What the chains predict decides, where it is known; single weights never do.
        ([Convergence("predictions", 9, 4, 40, 1.004, 300.0, 200.0),
          Convergence("norms of layers", 9, 4, 40, 1.5, 3.0, 3.0)], OK, "The 4 chains agree"),
        ([Convergence("norms of layers", 9, 4, 40, 1.004, 300.0, 200.0),
          Convergence("some weights", 9, 4, 40, 3.0, 3.0, 3.0)], OK, "The 4 chains agree"),
        ([], NOTE, "There are too few samples"),
        ([Convergence("norms of layers", 9, 4, 3, math.nan, math.nan, math.nan)], NOTE, "There are too few samples"),
    ],
)  # fmt: skip
def test_mixing_of_several_chains(healthy, convergence, level, beginning):
    found = finding(replace(healthy, convergence=convergence), "mixing")
    assert found.level is level
    assert found.sentence.startswith(beginning)


def test_chains_that_are_apart_and_a_chain_that_drifts(tmp_path):
    apart = read_run(write_run(tmp_path / "apart", chains=2, centre=lambda chain, draw: 2.0 * chain))
    assert finding(apart, "mixing").level is PROBLEM
    assert "The 2 chains differ" in finding(apart, "mixing").sentence
    drift = read_run(write_run(tmp_path / "drift", chains=1, centre=lambda chain, draw: draw / 10))
    assert finding(drift, "mixing").level is PROBLEM
    assert finding(drift, "mixing").sentence.endswith(". The chain still drifts.")


def test_one_chain_never_shows_that_it_mixed(tmp_path):
    found = finding(read_run(write_run(tmp_path / "one", chains=1)), "mixing")
    assert found.level is NOTE
    assert found.sentence.startswith("The two halves of the chain agree: R-hat is 1.")
    assert "A single chain cannot show whether there are other modes." in found.sentence


@pytest.mark.parametrize(
    ("chains", "draws", "level", "sentence"),
    [
        (0, 0, NOTE, "The run kept no samples, so there is no average to predict with."),
        (1, 0, PROBLEM, "No sample was collected."),
        (1, 5, PROBLEM, "There are only 5 samples of 1 chain."),
        (2, 10, NOTE, "There are 20 samples of 2 chains: enough for an average, too few for an interval."),
    ],
)
def test_the_number_of_samples(tmp_path, chains, draws, level, sentence):
    facts = read_run(write_run(tmp_path / "run", chains=chains, draws=draws, checkpoint=False))
    found = finding(facts, "samples")
    assert (found.level, found.sentence) == (level, sentence)


@pytest.mark.parametrize(
    ("change", "level", "sentence"),
    [
        (lambda r: r.update(temperature=0.0), PROBLEM,
         "The samples were taken at temperature 0: they are points on the path of SGD, not posterior samples."),
        (lambda r: r.update(temperature=0.99 ** r["step"]), NOTE,
         "The temperature went from 0.0663 to 0.049 while samples were taken, so they do not share one law."),
        (lambda r: None, OK,
         "All samples were taken at temperature 0.01, a cold posterior (1 is the Bayes posterior)."),
        (lambda r: r.update(temperature=1.0), OK, "All samples were taken at temperature 1."),
        # Annealing that ends before the first sample, at step 261, is no fault.
        (lambda r: r.update(temperature=1.0 if r["step"] > 250 else 9.0), OK,
         "All samples were taken at temperature 1."),
    ],
)  # fmt: skip
def test_the_law_of_the_samples(healthy, change, level, sentence):
    found = finding(changed(healthy, change), "law")
    assert (found.level, found.sentence) == (level, sentence)


def kinetic(**ratios: float):
    layers = {f"{name}.weight": 0.01 * ratio for name, ratio in ratios.items()}
    return lambda record: record.update(kinetic_temperature=layers)


@pytest.mark.parametrize(
    ("change", "level", "beginning"),
    [
        (kinetic(fc1=1.1, fc2=0.9), OK, "The kinetic temperature agrees with T: 0.90 to 1.10 times T in 2 layers."),
        (kinetic(fc1=1.0, fc2=3.0), PROBLEM,
         "The chain is too warm: 3 times T in fc2.weight, and above 1.25 times T in 1 of 2 layers. The noise of the "
         "mini-batches adds to the injected noise, or lr is too large."),
        (kinetic(fc1=1.6, fc2=1.7), NOTE, "The chain is too warm: 1.7 times T"),
        (kinetic(fc1=50.0, fc2=1.0), PROBLEM,
         "The chain is too warm: 50 times T in fc1.weight, and above 1.25 times T in 1 of 2 layers. Only layers with "
         "the spike-and-slab prior are affected: a step is longer than the spike is wide"),
        (kinetic(fc1=0.3, fc2=1.0), PROBLEM,
         "The chain is too cold: 0.3 times T in fc1.weight, and below 0.8 times T in 1 of 2 layers."),
        (kinetic(fc1=0.7, fc2=1.0), NOTE, "The chain is too cold: 0.7 times T"),
    ],
)  # fmt: skip
def test_the_temperature(healthy, change, level, beginning):
    found = finding(changed(healthy, change), "temperature")
    assert found.level is level
    assert found.sentence.startswith(beginning)


def test_a_small_layer_may_read_wrong_by_chance(healthy):
    unknown = replace(healthy, snapshot=None, metrics=Traces.of(records_of(healthy.metrics)[-3:]))
    assert finding(changed(unknown, kinetic(bias=1.5)), "temperature").level is OK


@pytest.mark.parametrize(
    ("ratios", "level", "beginning"),
    [
        ((0.9, 1.1), OK, "The weights have explored their distribution: the configurational temperature is 0.9 to "
         "1.1 times T."),
        ((0.13, 0.98), NOTE, "The chain has explored only a part of its distribution: the configurational temperature "
         "of a is 0.13 times T, and below 0.5 times T in 1 of 2 layers."),
        ((0.13, 12.0), NOTE, "The configurational temperature of b is 12 times T: its weights are warmer than T"),
    ],
)  # fmt: skip
def test_the_travel_of_the_weights(healthy, ratios, level, beginning):
    readings = {"a": 0.01 * ratios[0], "b": 0.01 * ratios[1]}
    found = finding(changed(healthy, lambda r: r.update(configurational_temperature=readings)), "travel")
    assert found.level is level
    assert found.sentence.startswith(beginning)


@pytest.mark.parametrize(
    ("change", "level", "beginning"),
    [
        (lambda r: r.update(omega_sum=0.75 * r["step"] / STEPS), PROBLEM,
         "The latents have gone 53% of the way from their initial values (the sum of omega is 0.75), so rho, sigma and "
         "delta still depend on them."),
        (lambda r: r.update(omega_sum=2.0), NOTE, "The latents have gone 86% of the way"),
        (lambda r: r.update(omega_sum=0.0), OK, "The latents of the prior do not adapt (omega is 0), as Fixed() asks."),
        (lambda r: r.update(sigma=1.0 + r["step"] / 300), PROBLEM,
         "The sigma still changes, by 17% over the last third of the run."),
        (lambda r: r.update(delta={"a": 0.995 ** r["step"], "b": 0.998 ** r["step"]}), PROBLEM,
         "The delta of a still changes, by 44% over the last third of the run, and so does 1 other."),
        (lambda r: None, OK, "The latents of the prior have settled (the sum of omega is 10)."),
    ],
)  # fmt: skip
def test_the_latents(healthy, change, level, beginning):
    found = finding(changed(healthy, change), "latents")
    assert found.level is level
    assert found.sentence.startswith(beginning)


def test_a_recipe_of_compress_is_judged_by_what_it_asks_for(healthy):
    asked = with_settings(healthy, omega_sum=1.0, sparsity=None, target=0.9, samples=4)
    facts = changed(asked, lambda r: r.update(omega_sum=0.8, sparsity=0.9))
    latents = finding(facts, "latents")
    assert latents.level is NOTE
    assert latents.change.startswith("This is intended for pruning (omega_sum=1).")
    assert finding(facts, "sparsity").sentence == "The sparsity reached its target of 90.0%."
    channels = with_settings(facts, count="channels")
    assert "sparsity" not in {f.about for f in examine(channels)}, "weights say nothing about a share of channels"
    dead = finding(changed(channels, lambda r: r.update(dead_channels=0.9)), "sparsity")
    assert dead.sentence == "The share of dead channels reached its target of 90.0%."


def test_the_sparsity(healthy):
    short = changed(healthy, lambda r: r.update(sparsity=0.3, sparsity_sparse=0.32))
    found = finding(short, "sparsity")
    assert (found.level, found.sentence) == (PROBLEM, "The sparsity ended at 32.0%, short of its target of 50.0%.")
    stopped = finding(changed(short, lambda r: None, status="interrupted"), "sparsity")
    assert (stopped.level, stopped.sentence) == (NOTE, "The sparsity is 32.0% on its way to 50.0%.")
    assert finding(healthy, "sparsity").sentence == "The sparsity reached its target of 50.0%."
    assert "sparsity" not in {f.about for f in examine(with_settings(healthy, sparsity=None))}


def test_samples_with_different_zeros(tmp_path):
    moving = read_run(write_run(tmp_path / "moving", chains=1, mask=lambda chain, draw: draw))
    found = finding(moving, "zeros")
    assert found.level is PROBLEM
    assert found.sentence.startswith(
        "The samples have different zeros: at least 38.3% of the weights in each, but only 0.0% in all"
    )
    # Every chain may have a mask of its own.
    own = read_run(write_run(tmp_path / "own", chains=2, mask=lambda chain, draw: chain))
    assert finding(own, "zeros").sentence == "All samples have the same 300 zeros (38.3%)."


@pytest.mark.parametrize(
    ("rates", "level", "sentence"),
    [
        ([0.4, 0.02], PROBLEM, "Rungs 1 and 2 of the ladder hardly swap (rates: 40%, 2%)."),
        ([0.95, 0.97], NOTE, "All rungs swap nearly always (rates: 95%, 97%)."),
        ([0.95, 0.3], OK, "The rungs of the ladder swap (rates: 95%, 30%)."),
    ],
)
def test_swaps(healthy, rates, level, sentence):
    found = finding(changed(healthy, lambda r: r.update(swap_rates=rates)), "swaps")
    assert (found.level, found.sentence) == (level, sentence)


def test_clipping_is_noted(healthy):
    found = finding(with_settings(healthy, clip_norm=1.0), "clipping")
    assert found.level is NOTE
    assert found.sentence.startswith("Gradients were clipped (at 1.0)")


def test_a_run_that_wrote_nothing_but_its_record():
    found = examine(RunFacts(run_record(status="running", steps=0)))
    assert [f.about for f in found] == ["end", "samples"]


@pytest.fixture(scope="module")
def compressed(tmp_path_factory) -> RunFacts:
    folder = tmp_path_factory.mktemp("compressed") / "run"
    compress_small(val_loader=[data(5)], epochs=20, samples=15, folder=folder)
    return read_run(folder)


def test_a_compression_is_not_judged_as_a_sampling_run(compressed):
    found = examine(compressed)
    assert [each.about for each in found if each.level is PROBLEM] == []
    assert verdict(found).startswith("No problem was found")
    assert finding(compressed, "mixing").sentence.endswith("whether it mixed is not judged.")
    few = replace(compressed, samples=replace(compressed.samples, chains=[4]))
    assert finding(few, "samples").level is NOTE, "as many as were asked for"
    plain = changed(compressed, lambda record: record.update(temperature=0.0))
    assert finding(plain, "law").level is NOTE
    assert finding(plain, "mixing").change is None
    sampling = with_settings(compressed, method=None)
    del sampling.run["settings"]["method"]
    assert finding(sampling, "mixing").level is PROBLEM


def test_a_compression_is_compared_with_the_dense_network(compressed):
    metrics = compressed.result["metrics"]
    accuracies = ", ".join(f"{100 * metrics[name]['accuracy']:.2f} {name}" for name in ("dense", "sparse", "average"))
    sentence = finding(compressed, "result").sentence
    assert sentence.startswith(f"On the validation data with 50.0% of the weights zero: acc. %: {accuracies}; NLL: ")
    assert "result" not in {each.about for each in examine(replace(compressed, result={}))}
