"""Doctor: checks of a run that say in plain words how it went and what to change.

A check is a function from :class:`~spikeslab.diagnostics.run_reader.RunFacts` to a
:class:`~spikeslab.diagnostics.findings.Finding`, or to ``None`` if the run did not record what it needs. To add one,
write the function and put it into ``CHECKS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from spikeslab.diagnostics._sample_checks import check_law, check_masks, check_mixing, check_samples, check_swaps
from spikeslab.diagnostics.findings import Finding, Level
from spikeslab.diagnostics.run_reader import RunFacts, mapping
from spikeslab.diagnostics.temperatures import check_temperature, check_travel
from spikeslab.diagnostics.traces import Series
from spikeslab.errors import pluralize
from spikeslab.report.tables import METRICS, scale_metric

Check: TypeAlias = Callable[[RunFacts], Finding | None]

RISE = 0.1
"""Relative rise of the loss over the last third of a run that counts as a rise, if it is also significant."""
STILL = 0.05
"""Relative change of a latent over the last third of a run up to which it has settled."""
NEARLY, HARDLY = 3.0, 0.9
"""Sums of omega after which 95 % and 59 % of the way to a fixed target are done."""
TOLERANCE = 0.005
"""Amount by which the sparsity may miss its target."""
NETWORKS = ("dense", "sparse", "average")
"""Networks that a compression compares."""
SPARSITIES = ("sparsity", "sparsity_sparse")
CLIPPING = ("clip", "clip_norm", "clip_grad_norm", "grad_clip", "gradient_clip", "max_grad_norm")
LOWER_LR = "Lower lr, by a factor of 3 to begin with."


def examine(facts: RunFacts) -> list[Finding]:
    """Run all checks and return their findings, problems first."""
    found = [finding for check in CHECKS if (finding := check(facts)) is not None]
    return sorted(found, key=lambda finding: list(Level).index(finding.level))


def check_status(facts: RunFacts) -> Finding:
    """Check whether the run finished."""
    run = facts.run
    done = f"step {run['steps']:,} of {run['total_steps']:,}"
    message = f": {run['message'].rstrip('.')}" if run.get("message") else ""
    resume = "start the same command again with resume: it continues from the last checkpoint."
    match run["status"]:
        case "finished":
            return Finding("end", Level.OK, f"The run finished its {pluralize(run['total_steps'], 'step')}.")
        case "failed":
            advice = "Correct what the message names, or lower lr, and resume from the last checkpoint."
            return Finding("end", Level.PROBLEM, f"The run failed at {done}{message}.", advice)
        case "interrupted":
            advice = f"To go on, {resume}"
            return Finding("end", Level.NOTE, f"The run was interrupted at {done}{message}.", advice)
    advice = f"If no process runs any more, {resume}"
    return Finding("end", Level.NOTE, f"The run is at {done}: it is still running, or was killed.", advice)


def check_result(facts: RunFacts) -> Finding | None:
    """Compare the sparse network of a compression with the dense one on the validation data."""
    found = mapping(facts.result.get("metrics"))
    networks = {name: mapping(found.get(name)) for name in NETWORKS}
    known = [name for name in METRICS if all(scale_metric(name, numbers) is not None for numbers in networks.values())]
    if not known:
        return None
    parts = []
    for name in known[:2]:
        title, _, spec = METRICS[name]
        values = (f"{format(scale_metric(name, numbers), spec)} {of}" for of, numbers in networks.items())
        parts.append(f"{title}: {', '.join(values)}")
    zeros = mapping(facts.result.get("network")).get("sparsity")
    share = f" with {zeros:.1%} of the weights zero" if isinstance(zeros, float) else ""
    return Finding("result", Level.OK, f"On the validation data{share}: {'; '.join(parts)}.")


def check_loss(facts: RunFacts) -> Finding | None:
    """Check that the loss is finite and does not rise."""
    loss = facts.metrics.series("loss")
    if not len(loss):
        return None
    bad = ~np.isfinite(loss.values)
    if bad.any():
        step = int(loss.steps[bad][0])
        return Finding("loss", Level.PROBLEM, f"The loss is NaN or infinite from step {step:,} on.", LOWER_LR)
    first, end = float(loss.values[0]), loss.last_third()
    last = float(end.values.mean())
    rise = _measure_rise(end)
    if rise > RISE:
        sparsity = facts.metrics.series("sparsity").last_third()
        pruning = len(sparsity) > 0 and np.ptp(sparsity.values) > TOLERANCE
        cause = " while the network is still being pruned" if pruning else ""
        sentence = f"The loss rose by {rise:.0%} over the last third of the run{cause}, to {float(end.values[-1]):.4g}."
        advice = "Prune more slowly, or to a lower sparsity." if pruning else LOWER_LR
        return Finding("loss", Level.PROBLEM, sentence, advice)
    if len(loss) > 1 and last > first:
        sentence = f"The loss ended at {last:.4g}, above its first value of {first:.4g}."
        advice = "If the run started from a trained network, T adds about T/(2N) per weight. Otherwise lower lr."
        return Finding("loss", Level.NOTE, sentence, advice)
    return Finding("loss", Level.OK, f"The loss went from {first:.4g} to {last:.4g} and does not rise.")


def _measure_rise(end: Series) -> float:
    """Return the relative rise between the halves of a series; 0 within three standard errors."""
    half = len(end) // 2
    if half < 2:
        return 0.0
    early, late = end.values[:half], end.values[-half:]
    difference = float(late.mean() - early.mean())
    error = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / half)
    return difference / max(abs(float(early.mean())), 1e-12) if difference > 3.0 * error else 0.0


def check_latents(facts: RunFacts) -> Finding | None:
    """Check that sigma, delta and rho have settled."""
    traces = {f"delta of {name}": series for name, series in facts.metrics.layers("delta").items()}
    sigma, omega = facts.metrics.series("sigma"), facts.metrics.series("omega_sum")
    traces |= {"sigma": sigma} if len(sigma) else {}
    if not traces and not len(omega):
        return None
    if len(omega) and omega.values[-1] == 0.0:
        return Finding("latents", Level.OK, "The latents of the prior do not adapt (omega is 0), as Fixed() asks.")
    if len(omega) and omega.values[-1] < NEARLY:
        return _report_short_adaptation(float(omega.values[-1]), facts.setting("omega_sum"))
    changes = {name: _measure_change(series.last_third()) for name, series in traces.items()}
    moving = {name: change for name, change in changes.items() if change > STILL}
    if moving:
        worst = max(moving, key=lambda name: moving[name])
        others = f", and so does {pluralize(len(moving) - 1, 'other')}" if len(moving) > 1 else ""
        sentence = f"The {worst} still changes, by {moving[worst]:.0%} over the last third of the run{others}."
        advice = "Run longer, and start to collect samples only after the latents have settled."
        return Finding("latents", Level.PROBLEM, sentence, advice)
    total = f" (the sum of omega is {float(omega.values[-1]):.3g})" if len(omega) else ""
    return Finding("latents", Level.OK, f"The latents of the prior have settled{total}.")


def _report_short_adaptation(total: float, asked: object) -> Finding:
    """Return the finding for a sum of omega so small that initial values still matter."""
    sentence = (
        f"The latents have gone {-math.expm1(-total):.0%} of the way from their initial values (the sum of omega is "
        f"{total:.3g}), so rho, sigma and delta still depend on them."
    )
    if isinstance(asked, int | float):
        advice = f"This is intended for pruning (omega_sum={asked:g}). To read the latents as results, set omega_sum=5."
        return Finding("latents", Level.NOTE, sentence, advice)
    advice = (
        "To read the latents as results, raise the scale of omega, lower its offset or run longer, until the sum is "
        "above 3. To prune, about 1, the default of compress, is often better."
    )
    return Finding("latents", Level.PROBLEM if total < HARDLY else Level.NOTE, sentence, advice)


def _measure_change(end: Series) -> float:
    """Return the relative change over a series, from the means of its halves."""
    half = len(end) // 2
    if not half:
        return 0.0
    early, late = float(end.values[:half].mean()), float(end.values[-half:].mean())
    return 2.0 * abs(late - early) / max(abs(early), abs(late), 1e-12)


def check_sparsity(facts: RunFacts) -> Finding | None:
    """Check that the sparsity reached its target."""
    target = facts.setting("sparsity", "target_sparsity", "target")
    channels = facts.setting("count") == "channels"
    what, keys = ("share of dead channels", ("dead_channels",)) if channels else ("sparsity", SPARSITIES)
    reached = [series.values[-1] for key in keys if len(series := facts.metrics.series(key))]
    if isinstance(target, bool) or not isinstance(target, int | float) or not reached:
        return None
    best = float(max(reached))
    if best >= target - TOLERANCE:
        return Finding("sparsity", Level.OK, f"The {what} reached its target of {target:.1%}.")
    if facts.run["status"] != "finished":
        return Finding("sparsity", Level.NOTE, f"The {what} is {best:.1%} on its way to {target:.1%}.")
    sentence = f"The {what} ended at {best:.1%}, short of its target of {target:.1%}."
    advice = "Let the schedule end before the run does: exponential_sparsity reaches its target only with total=."
    return Finding("sparsity", Level.PROBLEM, sentence, advice)


def check_clipping(facts: RunFacts) -> Finding | None:
    """Check whether gradients were clipped, which changes the law of the chain."""
    clip = facts.setting(*CLIPPING)
    if not clip:
        return None
    sentence = f"Gradients were clipped (at {clip}). Clipped gradients are not those of the posterior."
    advice = "Clip during burn-in only, or lower lr until clipping is not needed."
    return Finding("clipping", Level.NOTE, sentence, advice)


CHECKS: tuple[Check, ...] = (
    check_result,
    check_status,
    check_loss,
    check_mixing,
    check_samples,
    check_law,
    check_temperature,
    check_travel,
    check_latents,
    check_sparsity,
    check_masks,
    check_swaps,
    check_clipping,
)
