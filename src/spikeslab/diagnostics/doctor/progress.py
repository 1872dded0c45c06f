"""Checks of how a run went: its end, the loss, the latents of the prior, the sparsity, clipped gradients."""

from __future__ import annotations

import math

import numpy as np

from spikeslab.diagnostics.doctor.finding import Finding, Level
from spikeslab.diagnostics.run_facts import RunFacts, Series
from spikeslab.errors import pluralize

RISE = 0.1
"""Relative rise of the loss over the last third that is more than noise, if it is also significant."""
STILL = 0.05
"""Relative change of a latent over the last third up to which it stands still."""
NEARLY, HARDLY = 3.0, 0.9
"""Sums of omega after which 95 % and 59 % of the way to a target that stands still are done."""
SHORT = 0.005
"""By how much the sparsity may miss its target."""
SPARSITIES = ("sparsity", "sparsity_sparse")
CLIPPING = ("clip", "clip_norm", "clip_grad_norm", "grad_clip", "gradient_clip", "max_grad_norm")


def check_status(facts: RunFacts) -> Finding:
    """How the run ended."""
    run = facts.run
    done = f"step {run['steps']:,} of {run['total_steps']:,}"
    message = f": {run['message'].rstrip('.')}" if run.get("message") else ""
    match run["status"]:
        case "finished":
            return Finding("end", Level.OK, f"The run finished its {pluralize(run['total_steps'], 'step')}.")
        case "failed":
            return Finding(
                "end",
                Level.PROBLEM,
                f"The run failed at {done}{message}.",
                "Continue from the last checkpoint with a lower lr, after mending what the message names.",
            )
        case "interrupted":
            return Finding(
                "end",
                Level.NOTE,
                f"The run was interrupted at {done}{message}.",
                "Start the same command again: it continues from the last checkpoint.",
            )
    return Finding(
        "end",
        Level.NOTE,
        f"The run is at {done}: it still runs, or was killed.",
        "If no process runs any more, start the same command again: it continues from the last checkpoint.",
    )


def check_loss(facts: RunFacts) -> Finding | None:
    """Whether the loss stayed finite and does not rise."""
    loss = facts.series("loss")
    if not len(loss):
        return None
    lower = "Lower lr, by a factor of 3 to begin with."
    bad = ~np.isfinite(loss.values)
    if bad.any():
        step = int(loss.steps[bad][0])
        return Finding("loss", Level.PROBLEM, f"The loss is not a finite number from step {step:,} on.", lower)
    first, end = float(loss.values[0]), loss.last_third()
    last = float(end.values.mean())
    rise = _rise(end)
    if rise > RISE:
        pruning = facts.series("sparsity").last_third()
        cause = " while the network is still being pruned" if len(pruning) and np.ptp(pruning.values) > SHORT else ""
        return Finding(
            "loss",
            Level.PROBLEM,
            f"The loss rose by {rise:.0%} over the last third of the run{cause}, to {float(end.values[-1]):.4g}.",
            "Prune more slowly, or to a lower sparsity." if cause else lower,
        )
    if len(loss) > 1 and last > first:
        return Finding(
            "loss",
            Level.NOTE,
            f"The loss ended at {last:.4g}, above the {first:.4g} that it began with.",
            "If the run began from a trained network, this is what the temperature adds, about T/(2N) for each weight; "
            "if not, lower lr.",
        )
    return Finding("loss", Level.OK, f"The loss went from {first:.4g} to {last:.4g} and does not rise.")


def _rise(end: Series) -> float:
    """Relative rise between the halves of a series; 0 where it is within three standard errors."""
    half = len(end) // 2
    if half < 2:
        return 0.0
    early, late = end.values[:half], end.values[-half:]
    difference = float(late.mean() - early.mean())
    error = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / half)
    return difference / max(abs(float(early.mean())), 1e-12) if difference > 3.0 * error else 0.0


def check_latents(facts: RunFacts) -> Finding | None:
    """Whether sigma, delta and rho reached the point where they no longer move."""
    traces = {f"delta of {name}": series for name, series in facts.layers("delta").items()}
    sigma = facts.series("sigma")
    traces |= {"sigma": sigma} if len(sigma) else {}
    omega = facts.series("omega_sum")
    if not traces and not len(omega):
        return None
    moves = {name: _change(series.last_third()) for name, series in traces.items()}
    moving = {name: change for name, change in moves.items() if change > STILL}
    if len(omega) and omega.values[-1] == 0.0:
        return Finding("latents", Level.OK, "The latents of the prior do not adapt (omega is 0), as Fixed() asks.")
    if len(omega) and omega.values[-1] < NEARLY:
        total = float(omega.values[-1])
        said = (
            f"The latents have gone {-math.expm1(-total):.0%} of the way from where they started (the sum of omega is "
            f"{total:.3g}), so rho, sigma and delta still depend on their initial values."
        )
        asked = facts.setting("omega_sum")
        if isinstance(asked, int | float):
            advice = (
                f"The recipe asks for it (omega_sum={asked:g}), and prunes well so; to read them as results, set 5."
            )
            return Finding("latents", Level.NOTE, said, advice)
        return Finding(
            "latents",
            Level.PROBLEM if total < HARDLY else Level.NOTE,
            said,
            "To read them as results, raise the scale of omega, or lower its offset, until the sum over the run is "
            "above 3, or run longer. To prune, about 1, the default of compress, is often better.",
        )
    if moving:
        worst = max(moving, key=lambda name: moving[name])
        others = f", with {pluralize(len(moving) - 1, 'other')}" if len(moving) > 1 else ""
        return Finding(
            "latents",
            Level.PROBLEM,
            f"The {worst} still moves: by {moving[worst]:.0%} over the last third of the run{others}.",
            "Run longer, and begin to collect samples only after the latents stand still.",
        )
    total_text = f" (the sum of omega is {float(omega.values[-1]):.3g})" if len(omega) else ""
    return Finding("latents", Level.OK, f"The latents of the prior stand still{total_text}.")


def _change(end: Series) -> float:
    """Relative change over a series, from the means of its halves."""
    half = len(end) // 2
    if not half:
        return 0.0
    early, late = float(end.values[:half].mean()), float(end.values[-half:].mean())
    return 2.0 * abs(late - early) / max(abs(early), abs(late), 1e-12)


def check_sparsity(facts: RunFacts) -> Finding | None:
    """Whether the sparsity that was asked for was reached."""
    target = facts.setting("sparsity", "target_sparsity", "target")
    channels = facts.setting("count") == "channels"
    what, keys = ("share of dead channels", ("dead_channels",)) if channels else ("sparsity", SPARSITIES)
    reached = [series.values[-1] for key in keys if len(series := facts.series(key))]
    if isinstance(target, bool) or not isinstance(target, int | float) or not reached:
        return None
    best = float(max(reached))
    if best >= target - SHORT:
        return Finding("sparsity", Level.OK, f"The {what} reached its target of {target:.1%}.")
    if facts.run["status"] != "finished":
        return Finding("sparsity", Level.NOTE, f"The {what} is {best:.1%} on its way to {target:.1%}.")
    return Finding(
        "sparsity",
        Level.PROBLEM,
        f"The {what} ended at {best:.1%}, short of its target of {target:.1%}.",
        "Give the schedule of the sparsity a total below the steps of the run: exponential_sparsity reaches its "
        "target only with total=.",
    )


def check_clipping(facts: RunFacts) -> Finding | None:
    """Whether gradients were clipped, which changes the law of the chain."""
    clip = facts.setting(*CLIPPING)
    if not clip:
        return None
    return Finding(
        "clipping",
        Level.NOTE,
        f"Gradients were clipped (at {clip}): where that happened they were not those of the posterior.",
        "Clip during burn-in only, or lower lr until it is not needed.",
    )
