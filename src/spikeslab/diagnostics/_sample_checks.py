"""Checks of the samples: mixing, number, temperature, masks and swaps."""

from __future__ import annotations

import math

import numpy as np

from spikeslab.diagnostics.findings import Finding, Level
from spikeslab.diagnostics.run_reader import RunFacts
from spikeslab.errors import pluralize
from spikeslab.posterior.convergence import PREDICTIONS, SOME_WEIGHTS, Convergence

GOOD_RHAT, BAD_RHAT = 1.01, 1.1
GOOD_ESS = 100
FEW, ENOUGH = 10, 30
CHANGED = 1.1
"""Ratio of the highest to the lowest temperature up to which samples have one law."""
RARE, FREQUENT = 0.1, 0.9


def check_mixing(facts: RunFacts) -> Finding | None:
    """Check that the chains, or the halves of one chain, agree."""
    if facts.samples is None or not any(facts.samples.chains):
        return None
    known = _select_quantities(facts.convergence)
    if facts.is_compression:
        return _describe_ensemble(facts)
    if not known:
        sentence = "There are too few samples to judge mixing."
        advice = "Collect at least 8 samples of one chain, or 4 of each of several; better 100 or more in all."
        return Finding("mixing", Level.NOTE, sentence, advice)
    chains = len(facts.samples.chains)
    # Few draws of many quantities have a large R-hat by chance, so each is compared with its own threshold.
    worst = max(known, key=lambda item: (item.rhat - 1.0) / max(item.chance - 1.0, GOOD_RHAT - 1.0))
    ess = min(item.ess_bulk for item in known)
    scope = worst.name if worst.count == 1 else f"worst of {worst.count} {worst.name}"
    numbers = f"R-hat is {worst.rhat:.3g} in the {scope}, and the effective sample size is {ess:.0f}"
    subject = "The two halves of the chain" if chains == 1 else f"The {chains} chains"
    if worst.rhat > max(BAD_RHAT, worst.chance):
        drift = "The chain still drifts" if chains == 1 else "They have not reached the same distribution"
        advice = "Run longer, drop more of the beginning (burn_in), or raise lr or the temperature to move faster."
        return Finding("mixing", Level.PROBLEM, f"{subject} differ: {numbers}. {drift}.", advice)
    if chains == 1:
        sentence = f"{subject} agree: {numbers}. A single chain cannot show whether there are other modes."
        return Finding("mixing", Level.NOTE, sentence, "Run several chains to find out.")
    if worst.rhat > max(GOOD_RHAT, worst.chance) or ess < GOOD_ESS:
        return Finding("mixing", Level.NOTE, f"{subject} nearly agree: {numbers}.", "Run longer for reliable numbers.")
    return Finding("mixing", Level.OK, f"{subject} agree: {numbers}.")


def _describe_ensemble(facts: RunFacts) -> Finding:
    """Return what the samples of a compression are, whose halves differ because the chain cools."""
    sentence = (
        "The samples of a compression are an ensemble around the sparse network, from the end of a chain that cools: "
        "whether it mixed is not judged."
    )
    advice = "To read them as a posterior, sample the sparse network on at one temperature, with pruner.freeze()."
    hot = len(facts.metrics.series("temperature")) and float(facts.metrics.series("temperature").values.max()) > 0.0
    return Finding("mixing", Level.OK, sentence, advice if hot else None)


def _select_quantities(convergence: list[Convergence]) -> list[Convergence]:
    """Return the quantities that decide on mixing: predictions if known, otherwise all but single weights.

    Hidden units of two chains can be permuted, so single weights need not agree.
    """
    known = [item for item in convergence if math.isfinite(item.rhat) and item.name != SOME_WEIGHTS]
    predictions = [item for item in known if item.name == PREDICTIONS]
    return predictions or known


def check_samples(facts: RunFacts) -> Finding | None:
    """Check that there are enough samples for an average."""
    if facts.samples is None:
        sentence = "The run kept no samples, so there is no average to predict with."
        return Finding("samples", Level.NOTE, sentence, "Collect samples with a Posterior.")
    total = sum(facts.samples.chains)
    if not total:
        advice = "Set burn_in below the number of steps."
        return Finding("samples", Level.PROBLEM, "No sample was collected.", advice)
    count = f"{pluralize(total, 'sample')} of {pluralize(len(facts.samples.chains), 'chain')}"
    if total < FEW:
        advice = "Lower thin, or run longer after burn-in."
        if facts.setting("samples") is not None:
            advice = "Ask for more samples, and for more epochs if there are too few steps for them."
        level = Level.NOTE if facts.is_compression else Level.PROBLEM
        return Finding("samples", level, f"There are only {count}.", advice)
    if total < ENOUGH:
        sentence = f"There are {count}: enough for an average, too few for an interval."
        if facts.is_compression:
            return Finding("samples", Level.OK, sentence)
        return Finding("samples", Level.NOTE, sentence, "Collect 100 or more.")
    return Finding("samples", Level.OK, f"There are {count}.")


def check_law(facts: RunFacts) -> Finding | None:
    """Check that all samples were taken at one temperature above zero."""
    if facts.samples is None or not any(facts.samples.chains):
        return None
    temperature = facts.metrics.series("temperature")
    values = temperature.values[temperature.steps >= facts.samples.first_step]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    if high == 0.0:
        sentence = "The samples were taken at temperature 0: they are points on the path of SGD, not posterior samples."
        advice = "Sample at a temperature above 0; 1 is the Bayes posterior."
        return Finding("law", Level.NOTE if facts.is_compression else Level.PROBLEM, sentence, advice)
    if low == 0.0 or high / low > CHANGED:
        change = f"from {values[0]:.3g} to {values[-1]:.3g}"
        sentence = f"The temperature went {change} while samples were taken, so they do not share one law."
        advice = "End the annealing before burn_in, or read the average as an ensemble."
        return Finding("law", Level.NOTE, sentence, advice)
    cold = ", a cold posterior (1 is the Bayes posterior)" if high < 1.0 else ""
    return Finding("law", Level.OK, f"All samples were taken at temperature {values[-1]:.3g}{cold}.")


def check_masks(facts: RunFacts) -> Finding | None:
    """Check that all samples of a chain have the same zeros."""
    samples = facts.samples
    if samples is None or not samples.zeros_each or sum(samples.chains) < 2:
        return None
    each, common = samples.zeros_each / samples.total, samples.zeros_common / samples.total
    if samples.zeros_common >= samples.zeros_each:
        return Finding("zeros", Level.OK, f"All samples have the same {samples.zeros_common:,} zeros ({common:.1%}).")
    shares = f"at least {each:.1%} of the weights in each, but only {common:.1%} in all"
    sentence = f"The samples have different zeros: {shares}, so their mean is less sparse than they are."
    advice = "Freeze the mask before collecting (pruner.freeze()), or prune the mean again."
    return Finding("zeros", Level.PROBLEM if common < 0.9 * each else Level.NOTE, sentence, advice)


def check_swaps(facts: RunFacts) -> Finding | None:
    """Check that neighbouring rungs of a temperature ladder swap."""
    steps = facts.metrics.steps[-max(len(facts.metrics) // 3, 1) :]
    rates = [pair.since(steps[0]).values for pair in facts.metrics.layers("swap_rates").values()]
    if not rates or {len(values) for values in rates} != {len(rates[0])} or not len(rates[0]):
        return None
    mean = np.stack(rates).mean(axis=1)
    shown = ", ".join(f"{rate:.0%}" for rate in mean)
    if mean.min() < RARE:
        pair = int(mean.argmin())
        sentence = f"Rungs {pair} and {pair + 1} of the ladder hardly swap (rates: {shown})."
        advice = "Bring their temperatures closer together, or add a rung between them."
        return Finding("swaps", Level.PROBLEM, sentence, advice)
    if mean.min() > FREQUENT:
        sentence = f"All rungs swap nearly always (rates: {shown})."
        return Finding("swaps", Level.NOTE, sentence, "Raise the highest temperatures, or use fewer rungs.")
    return Finding("swaps", Level.OK, f"The rungs of the ladder swap (rates: {shown}).")
