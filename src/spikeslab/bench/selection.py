"""Cost of variable selection: a step of SGLD-SA and a default fit, against other libraries.

A step draws 50 of 100 rows, computes the gradient and updates the weights; ours also updates the prior's latents.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from spikeslab.bench.optimizers import PlainSGLD, posteriors_step
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.bench.timing import HOW, MISSING, Candidates, Times, is_installed, load, measure
from spikeslab.likelihoods import GaussianLikelihood
from spikeslab.paper.linear.data import simulate_linear
from spikeslab.presets import paper_linear
from spikeslab.priors import SpikeSlab
from spikeslab.report.tables import Cell, Column, Table
from spikeslab.samplers import SGLD

Array = NDArray[np.float64]

BATCH, STEPS, LR = 50, 100, 1e-6
NUTS_DRAWS = 500  # of warm-up, and as many kept

TORCH, KERNEL, FUSED = "torch SGD, no prior", "SGLD-SA, kernel of the estimators", "SGLD-SA, torch"
PLAIN, POSTERIORS = "plain SGLD in torch, no prior", "posteriors sgld, no prior"
JITTED, SCANNED = "blackjax sgld, no prior, jitted step", "blackjax sgld, no prior, jitted loop"
OURS, LASSO, ABESS = "SpikeSlabRegressor()", "scikit-learn LassoCV()", "abess"
SKGLM, NUMPYRO = "skglm MCP, 5-fold grid of 20", "numpyro, horseshoe, NUTS"


def run(plan: BenchPlan) -> Findings:
    """Time a step and a fit."""
    return Findings({"selection-step": _steps(plan), "selection-fit": _fits(plan)})


def _steps(plan: BenchPlan) -> Table:
    torch.manual_seed(plan.seed)
    data = simulate_linear(plan.seed)
    x, y = data.x_train, data.y_train
    candidates: dict[str, Callable[[], object]] = {
        TORCH: _torch_steps(x, y, lambda weight: (SGD([weight], lr=LR, momentum=0.9, foreach=True), _half_squares)),
        PLAIN: _torch_steps(x, y, lambda weight: (PlainSGLD([weight], LR, len(x)), _half_squares)),
        FUSED: _torch_steps(x, y, partial(_sgld_sa, plan.seed)),
    }
    if is_installed("numba") and is_installed("sklearn"):
        candidates[KERNEL] = _kernel_steps(x.numpy(), y.numpy(), plan.seed)
    if is_installed("posteriors"):
        candidates[POSTERIORS] = _posteriors_steps(x, y)
    if is_installed("blackjax"):
        candidates |= _blackjax_steps(x.numpy(), y.numpy(), plan.seed)
    times = measure(candidates, plan, seconds=0.0)  # a call is a hundred steps already
    names = [TORCH, PLAIN, FUSED, KERNEL, POSTERIORS, JITTED, SCANNED]
    notes = [
        f"100 rows, batches of {BATCH}, float32. Turns of {STEPS} steps. {HOW} Least times of {plan.repeats} rounds."
    ]
    return _table(f"Time of a step, linear regression, p = 1000, {plan.words}", times, names, (TORCH, KERNEL), notes)


def _fits(plan: BenchPlan) -> Table:
    data = simulate_linear(plan.seed)
    x, y = data.x_train.double().numpy(), data.y_train.double().numpy()
    candidates: dict[str, Callable[[], object]] = {}
    if is_installed("numba") and is_installed("sklearn"):
        from spikeslab.sklearn import SpikeSlabRegressor

        candidates[OURS] = lambda: SpikeSlabRegressor(n_jobs=-1, random_state=plan.seed).fit(x, y)
        candidates[LASSO] = lambda: load("sklearn.linear_model").LassoCV().fit(x, y)
    if is_installed("abess"):
        candidates[ABESS] = lambda: load("abess").LinearRegression().fit(x, y)
    if is_installed("skglm") and is_installed("sklearn"):
        most = float(np.abs(x.T @ (y - y.mean())).max()) / len(y)
        model, grid = load("skglm").MCPRegression(), {"alpha": most * np.logspace(-0.05, -2.0, 20)}
        candidates[SKGLM] = lambda: load("sklearn.model_selection").GridSearchCV(model, grid, cv=5).fit(x, y)
    if is_installed("numpyro") and not plan.quick:
        candidates[NUMPYRO] = _horseshoe(x, y, plan.seed)
    times = measure(candidates, plan, seconds=0.0)
    notes = [
        f"Ours is four chains of 1,500 sweeps; NUTS is one chain of {NUTS_DRAWS} draws after {NUTS_DRAWS} of warm-up. "
        f"{HOW} Least times of {plan.repeats} rounds; compilation is not in them."
    ]
    if plan.quick:
        notes.append("A quick look leaves NUTS out.")
    names = [OURS, LASSO, ABESS, SKGLM, NUMPYRO]
    return _table(f"Time of a fit, n = 100, p = 1000, {plan.words}", times, names, (LASSO, OURS), notes)


def _table(title: str, times: Times, names: list[str], bases: tuple[str, str], notes: list[str]) -> Table:
    """Return a table of ratios to both bases, one row for each name; a note lists those that are missing."""

    def ratio(name: str, base: str) -> Cell:
        return times.ratio(name, base) if {name, base} <= set(times.seconds) else None

    rows = [{"what": name, **{base: ratio(name, base) for base in bases}} for name in names]
    columns = [Column("what", ""), *(Column(base, f"in units of {base}", ".2f") for base in bases)]
    absent = [name for name in names if name not in times.seconds]
    if absent:
        notes = [*notes, f"{MISSING.capitalize()}, or left out, where this ran: {'; '.join(absent)}."]
    return Table(title, columns, rows, notes, {"microseconds": times.microseconds()})


def _torch_steps(
    x: Tensor, y: Tensor, build: Callable[[Tensor], tuple[Optimizer, Callable[[Tensor, Tensor], Tensor]]]
) -> Callable[[], None]:
    model = nn.Linear(x.shape[1], 1, bias=False)
    optimizer, loss = build(model.weight)

    def step(rows: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        loss(model(rows)[:, 0], targets).backward()
        optimizer.step()

    return _repeat(step, x, y)


def _repeat(step: Callable[[Tensor, Tensor], None], x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a function that takes all steps, each with a new batch."""

    def run() -> None:
        for _ in range(STEPS):
            rows = torch.randperm(len(x))[:BATCH]
            step(x[rows], y[rows])

    return run


def _half_squares(prediction: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (prediction - target).square().mean()


def _sgld_sa(seed: int, weight: Tensor) -> tuple[Optimizer, Callable[[Tensor, Tensor], Tensor]]:
    preset = paper_linear()
    prior = SpikeSlab({"weight": weight}, **preset.prior)
    return SGLD([weight], **preset.sampler, prior=prior, seed=seed), GaussianLikelihood(prior)


def _kernel_steps(x: NDArray[Any], y: NDArray[Any], seed: int) -> Callable[[], None]:
    from spikeslab.sklearn import SGLDOptions
    from spikeslab.sklearn._sgld import SGLDChain

    chain = SGLDChain(x, y, 0, "sgld-sa", SGLDOptions(), 10**9, 10**9, np.random.default_rng(seed))

    def run() -> None:
        target = chain.done + STEPS
        while chain.done < target:
            chain.advance(target - chain.done)

    return run


def _posteriors_steps(x: Tensor, y: Tensor) -> Callable[[], None]:
    def log_posterior(values: dict[str, Tensor], batch: Any) -> tuple[Tensor, Tensor]:
        rows, targets = batch
        return -0.5 * (rows @ values["weight"] - targets).square().mean(), torch.zeros(())

    transform = load("posteriors").sgmcmc.sgld.build(log_posterior, lr=LR)
    return _repeat(posteriors_step(transform, {"weight": torch.zeros(x.shape[1])}), x, y)


def _blackjax_steps(x: NDArray[Any], y: NDArray[Any], seed: int) -> Candidates:
    """Return a compiled step that Python calls, and the best that JAX can do, a compiled loop."""
    jax: Any = load("jax")
    rows_of, targets = jax.numpy.asarray(x), jax.numpy.asarray(y)

    def log_density(position: Any, batch: Any) -> Any:
        return -0.5 * ((batch[0] @ position - batch[1]) ** 2).mean()

    sgld = load("blackjax").sgld(jax.grad(log_density))

    def step(key: Any, position: Any) -> tuple[Any, Any]:
        key, draw, noise = jax.random.split(key, 3)
        rows = jax.random.permutation(draw, len(x))[:BATCH]
        return key, sgld.step(noise, position, (rows_of[rows], targets[rows]), LR)

    jitted = jax.jit(step)
    scanned = jax.jit(lambda key, position: jax.lax.fori_loop(0, STEPS, lambda _, s: step(*s), (key, position)))
    start = jax.random.PRNGKey(seed), jax.numpy.zeros(x.shape[1])

    def run_steps() -> None:
        state = start
        for _ in range(STEPS):
            state = jitted(*state)
        jax.block_until_ready(state)

    return {JITTED: run_steps, SCANNED: lambda: jax.block_until_ready(scanned(*start))}


def _horseshoe(x: Array, y: Array, seed: int) -> Callable[[], object]:
    """Return a function that draws from the horseshoe posterior by NUTS."""
    jax, numpyro = load("jax"), load("numpyro")
    dist, infer = load("numpyro.distributions"), load("numpyro.infer")

    def model(x: Any, y: Any) -> None:
        p = x.shape[1]
        sigma = numpyro.sample("sigma", dist.HalfNormal(3.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(0.01))
        local = numpyro.sample("local", dist.HalfCauchy(np.ones(p)))
        unit = numpyro.sample("unit", dist.Normal(np.zeros(p), 1.0))
        level = numpyro.sample("level", dist.Normal(0.0, 10.0))
        numpyro.sample("y", dist.Normal(level + x @ (tau * local * unit), sigma), obs=y)

    sampler = infer.MCMC(infer.NUTS(model), num_warmup=NUTS_DRAWS, num_samples=NUTS_DRAWS, progress_bar=False)

    def draw() -> None:
        sampler.run(jax.random.PRNGKey(seed), x, y)
        jax.block_until_ready(sampler.get_samples())

    return draw
