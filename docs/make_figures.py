"""Draw the figures of docs/priors.md from the package itself: ``python docs/make_figures.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from spikeslab import presets, schedules
from spikeslab.functional import mixture

FOLDER = Path(__file__).parent / "figures"
SPIKE, SLAB, BOTH, GREY = "#c0504d", "#2f6db3", "#222222", "#8a8a8a"
STYLE = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": 140,
    "savefig.bbox": "tight",
}


def prior_shapes() -> None:
    """Densities and rho of a sound setting and of the paper's for CIFAR-10 at 90 % sparsity."""
    paper = presets.paper_cifar10(0.9).prior
    settings = (
        ("sound: v0 = 0.002, v1 = 0.04, δ = 0.1", 0.002, 0.04, 0.1, 0.1),
        ("inverted: v0 = 0.005, v1 = 1e-5, δ = 0.5", paper["v0"], paper["v1"], paper["delta"], 0.03),
    )
    figure, axes = plt.subplots(2, 2, figsize=(7.4, 4.5), sharex="col", sharey="row")
    for column, (title, v0, v1, delta, reach) in enumerate(settings):
        beta = torch.linspace(-reach, reach, 2001, dtype=torch.float64)
        spike = (1 - delta) * torch.exp(-beta.abs() / v0) / (2 * v0)
        slab = delta * torch.exp(-(beta**2) / (2 * v1)) / np.sqrt(2 * np.pi * v1)
        whole = mixture.log_marginal(beta, v0=v0, v1=v1, sigma=1.0, delta=delta).exp()
        (rho,) = mixture.rho([beta], v0=v0, v1=v1, sigma=1.0, deltas=[delta])
        top, bottom = axes[:, column]
        top.set_title(title)
        top.semilogy(beta, whole, color=BOTH, linewidth=3.4, alpha=0.25, label="prior")
        top.semilogy(beta, spike, color=SPIKE, label="spike (Laplace)")
        top.semilogy(beta, slab, color=SLAB, label="slab (Gaussian)")
        top.set_ylim(1e-3, 1e3)
        bottom.plot(beta, rho, color=BOTH)
        bottom.axhline(0.5, color=GREY, linewidth=0.8, linestyle="--")
        bottom.set_ylim(-0.04, 1.04)
        bottom.set_xlabel("weight β (σ = 1)")
    axes[0, 0].set_ylabel("density")
    axes[1, 0].set_ylabel("ρ, probability of the slab")
    axes[0, 0].legend(loc="upper left", fontsize=8, handlelength=1.4, borderaxespad=0.1)
    axes[1, 0].annotate("large β: slab", (0.062, 0.93), ha="center", va="top", fontsize=8, color=GREY)
    axes[1, 1].annotate("large β: spike", (0.021, 0.05), ha="center", va="bottom", fontsize=8, color=GREY)
    figure.align_ylabels()
    figure.tight_layout()
    figure.savefig(FOLDER / "prior-shapes.png")
    plt.close(figure)


def adaptation_progress() -> None:
    """Share of the way to the fixed point, and the L2 penalty that kappa's initial value leaves at the start."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.9))
    runs = (
        ("UCI", (9, 0.66), schedules.polynomial(1.0, 0.7, 100), 1_800, "#6b8a2e"),
        ("MNIST, default", (250, 0.60), schedules.polynomial(1.0, 0.75, 1000), 12_000, SLAB),
        ("CIFAR-10", (900, 0.30), schedules.polynomial(0.02, 0.75, 1000), 50_000, SPIKE),
    )
    for label, place, schedule, steps, color in runs:
        k = np.arange(1, steps + 1)
        progress = 1 - np.cumprod([1 - min(schedule(int(step)), 1.0) for step in k])
        left.semilogx(k, progress, color=color)
        left.annotate(label, place, color=color, fontsize=8.5)
        left.plot(k[-1], progress[-1], "o", color=color, markersize=4)
    left.set_title("share of the way to the fixed point")
    left.set_xlabel("step k (a dot ends the paper's run)")
    left.set_ylim(-0.03, 1.05)

    num_data, v1, rho = 50_000, 1e-5, 0.5
    schedule = runs[2][2]
    k = np.arange(1, 50_001)
    progress = 1 - np.cumprod([1 - schedule(int(step)) for step in k])
    for label, kappa, color in (
        ("κ from ρ: 5e4", rho / v1, SLAB),
        ("κ = 5e-4, the paper's run", 5e-4, SPIKE),
    ):
        effective = ((1 - progress) * kappa + progress * rho / v1) / num_data
        right.loglog(k, effective, color=color, label=label)
    right.axhline(5e-4, color=GREY, linewidth=0.8, linestyle="--")
    right.annotate("usual weight decay, 5e-4", (5e4, 4.6e-4), fontsize=7.5, color=GREY, va="top", ha="right")
    right.set_title("effective L2 of a weight with ρ = 0.5")
    right.set_xlabel("step k (CIFAR-10 at S = 0.9)")
    right.set_ylim(1e-5, 8)
    right.legend(loc="lower right", fontsize=7.5, handlelength=1.4, borderaxespad=0.1)
    figure.tight_layout()
    figure.savefig(FOLDER / "adaptation-progress.png")
    plt.close(figure)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    plt.rcParams.update(STYLE)
    prior_shapes()
    adaptation_progress()
