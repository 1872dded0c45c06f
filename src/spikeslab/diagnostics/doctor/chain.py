"""Checks of the samples: did the chains mix, are there enough, of which law are they, do they share their zeros."""

from __future__ import annotations

import math

import numpy as np

from spikeslab.diagnostics.doctor.finding import Finding, Level
from spikeslab.diagnostics.run_facts import RunFacts
from spikeslab.errors import pluralize
from spikeslab.posterior.convergence import PREDICTIONS, SOME_WEIGHTS, Convergence

GOOD_RHAT, BAD_RHAT = 1.01, 1.1
GOOD_ESS = 100
FEW, ENOUGH = 10, 30
CHANGED = 1.1
"""Ratio of the largest to the smallest temperature up to which samples are of one law."""
RARE, FREQUENT = 0.1, 0.9
MOVE = "Run longer, drop more of the beginning (burn_in), or raise lr or the temperature so that the chain moves."


def check_mixing(facts: RunFacts) -> Finding | None:
    """Whether the chains, or the halves of one chain, agree."""
    if facts.samples is None or not any(facts.samples.chains):
        return None
    known = deciding(facts.convergence)
    if not known:
        return Finding(
            "mixing",
            Level.NOTE,
            "There are too few samples, so nothing can be said on mixing.",
            "Collect at least 8 samples of one chain, or 4 of each of several; better 100 or more in all.",
        )
    chains = len(facts.samples.chains)
    # Few draws of many quantities have a large R-hat by chance; what exceeds it most is the worst.
    worst = max(known, key=lambda item: (item.rhat - 1.0) / max(item.chance - 1.0, GOOD_RHAT - 1.0))
    ess = min(item.ess_bulk for item in known)
    where = f"R-hat is {worst.rhat:.3g} in the {_scope(worst)}, and the effective sample size {ess:.0f}"
    who = "The two halves of the chain" if chains == 1 else f"The {chains} chains"
    if worst.rhat > max(BAD_RHAT, worst.chance):
        drifting = "the chain still drifts" if chains == 1 else "they have not found the same distribution"
        return Finding("mixing", Level.PROBLEM, f"{who} differ: {where}; {drifting}.", MOVE)
    if chains == 1:
        return Finding(
            "mixing",
            Level.NOTE,
            f"{who} agree: {where}. One chain cannot show whether another would have found another mode.",
            "Run several chains to know.",
        )
    if worst.rhat > max(GOOD_RHAT, worst.chance) or ess < GOOD_ESS:
        return Finding("mixing", Level.NOTE, f"{who} nearly agree: {where}.", "Run longer for numbers you can rely on.")
    return Finding("mixing", Level.OK, f"{who} agree: {where}.")


def _scope(item: Convergence) -> str:
    return item.name if item.count == 1 else f"worst of {item.count} {item.name}"


def deciding(convergence: list[Convergence]) -> list[Convergence]:
    """What decides on mixing: predictions where they are known, otherwise all but single weights.

    Hidden units of two chains may have swapped their places, so single weights need not agree.
    """
    known = [item for item in convergence if math.isfinite(item.rhat) and item.name != SOME_WEIGHTS]
    predictions = [item for item in known if item.name == PREDICTIONS]
    return predictions or known


def check_samples(facts: RunFacts) -> Finding | None:
    """Whether there are enough samples for an average."""
    if facts.samples is None:
        return Finding(
            "samples",
            Level.NOTE,
            "No samples were kept, so there is no average to predict with.",
            "Collect samples with a Posterior.",
        )
    total = sum(facts.samples.chains)
    if not total:
        return Finding("samples", Level.PROBLEM, "No sample was taken.", "Set burn_in below the steps of the run.")
    said = f"{pluralize(total, 'sample')} of {pluralize(len(facts.samples.chains), 'chain')}"
    if total < FEW:
        more = "Lower thin, or run longer after burn-in."
        if facts.setting("samples") is not None:
            more = "Ask for more samples, and run for more epochs if there are no steps left for them."
        return Finding("samples", Level.PROBLEM, f"There are only {said}.", more)
    if total < ENOUGH:
        return Finding(
            "samples",
            Level.NOTE,
            f"There are {said}: enough for an average, few for an interval.",
            "Collect 100 or more.",
        )
    return Finding("samples", Level.OK, f"There are {said}.")


def check_law(facts: RunFacts) -> Finding | None:
    """Whether all samples were taken at one temperature above zero."""
    if facts.samples is None or not any(facts.samples.chains):
        return None
    temperature = facts.series("temperature")
    values = temperature.values[temperature.steps >= facts.samples.first_step]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    if high == 0.0:
        return Finding(
            "law",
            Level.PROBLEM,
            "Samples were taken at temperature 0: they are points on the path of SGD, not of a posterior.",
            "Sample at a temperature above 0; 1 is the Bayes posterior.",
        )
    if low == 0.0 or high / low > CHANGED:
        return Finding(
            "law",
            Level.NOTE,
            f"Samples were taken while the temperature went from {values[0]:.3g} to {values[-1]:.3g}, so they are not "
            "of one law.",
            "End the annealing before burn_in, or read the average as an ensemble.",
        )
    cold = ", a cold posterior (1 is the Bayes posterior)" if high < 1.0 else ""
    return Finding("law", Level.OK, f"All samples were taken at temperature {values[-1]:.3g}{cold}.")


def check_masks(facts: RunFacts) -> Finding | None:
    """Whether the samples have the same zeros."""
    samples = facts.samples
    if samples is None or not samples.zeros_each or sum(samples.chains) < 2:
        return None
    each, common = samples.zeros_each / samples.total, samples.zeros_common / samples.total
    if samples.zeros_common >= samples.zeros_each:
        return Finding("zeros", Level.OK, f"All samples have the same {samples.zeros_common:,} zeros ({common:.1%}).")
    return Finding(
        "zeros",
        Level.PROBLEM if common < 0.9 * each else Level.NOTE,
        f"The samples have different zeros: each at least {each:.1%}, all together {common:.1%}, so their mean is less "
        "sparse than they are.",
        "Freeze the mask before collecting (pruner.freeze()), or prune the mean again.",
    )


def check_swaps(facts: RunFacts) -> Finding | None:
    """Whether the rungs of a ladder of temperatures exchange their states."""
    end = facts.metrics[-max(len(facts.metrics) // 3, 1) :]
    rates = [record["swap_rates"] for record in end if record.get("swap_rates")]
    if not rates or len({len(pairs) for pairs in rates}) > 1:
        return None
    mean = np.array(rates, dtype=float).mean(axis=0)
    shown = ", ".join(f"{rate:.0%}" for rate in mean)
    if mean.min() < RARE:
        pair = int(mean.argmin())
        return Finding(
            "swaps",
            Level.PROBLEM,
            f"Rungs {pair} and {pair + 1} of the ladder hardly swap (rates: {shown}).",
            "Bring these temperatures closer together, or add a rung between them.",
        )
    if mean.min() > FREQUENT:
        return Finding(
            "swaps",
            Level.NOTE,
            f"All rungs swap nearly always (rates: {shown}).",
            "Spread the temperatures: the warm rungs could be warmer, or fewer.",
        )
    return Finding("swaps", Level.OK, f"The rungs of the ladder swap (rates: {shown}).")
