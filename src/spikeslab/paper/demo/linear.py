"""Linear regression of the demo: SGLD-SA, SGLD-EM and SGLD on n = 100 rows and p = 1000 variables (section 5.1).

SA and EM learn the parameters of the spike-and-slab prior with the weights, with a small step and with a full one; SGLD
keeps them fixed. The settings are those of ``presets.paper_linear``, in fewer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from spikeslab.errors import check_count
from spikeslab.likelihoods import GaussianLikelihood
from spikeslab.metrics import mean_absolute_error, mean_squared_error
from spikeslab.paper.linear.data import LinearData
from spikeslab.posterior import Posterior
from spikeslab.presets import paper_linear
from spikeslab.priors import Fixed, SpikeSlab
from spikeslab.report.tables import Column, Table
from spikeslab.samplers import SGLD

METHODS = {"SGLD-SA": "sa", "SGLD-EM": "em", "SGLD": "fixed"}
SAMPLES = 400
REPORT_EVERY = 100


@dataclass(frozen=True)
class LinearResult:
    """Posterior samples of the coefficients (samples, p), and means over them.

    ``inclusion`` is the probability of the slab, ``None`` for a fixed prior; ``predictions`` are of the test rows.
    """

    method: str
    draws: Tensor
    inclusion: Tensor | None
    sigma: float
    predictions: Tensor

    @property
    def beta(self) -> Tensor:
        """Posterior mean of the coefficients."""
        return self.draws.mean(dim=0)

    @property
    def selected(self) -> int | None:
        """Number of coefficients that are more probably in the slab than in the spike."""
        return None if self.inclusion is None else int((self.inclusion > 0.5).sum())


def run_linear(
    data: LinearData, method: str, *, steps: int, seed: int, progress: Callable[[int], None] = lambda steps: None
) -> LinearResult:
    """Sample the coefficients of ``data`` with one of ``METHODS``; the first fifth of the steps is burn-in.

    ``progress`` is called now and then with the number of steps taken since the last call.
    """
    rows, variables = data.x_train.shape
    preset = paper_linear(method=METHODS[method], num_data=rows, steps=steps)
    model = nn.Linear(variables, 1, bias=False)
    nn.init.normal_(model.weight, std=0.1, generator=torch.Generator().manual_seed(seed))
    prior = SpikeSlab(model.named_parameters(), **preset.prior)
    likelihood = GaussianLikelihood(prior)
    sampler = SGLD(model.parameters(), prior=prior, seed=seed, **preset.sampler)
    posterior = Posterior(model, burn_in=steps // 5, thin=max(1, steps * 4 // 5 // SAMPLES), likelihood=likelihood)
    inclusion, sigmas = torch.zeros(variables), 0.0
    for step, batch in enumerate(islice(minibatches(rows, preset.batch_size, seed), steps), start=1):
        sampler.zero_grad()
        likelihood(model(data.x_train[batch]).squeeze(1), data.y_train[batch]).backward()
        sampler.step()
        if posterior.collect():
            inclusion += prior.rho["weight"].squeeze(0)
            sigmas += prior.sigma
        if step % REPORT_EVERY == 0 or step == steps:
            progress(step % REPORT_EVERY or REPORT_EVERY)

    samples = len(posterior)
    return LinearResult(
        method=method,
        draws=torch.cat([posterior.tensors(index)["weight"] for index in range(samples)]),
        inclusion=None if isinstance(prior.adapt, Fixed) else inclusion / samples,
        sigma=sigmas / samples,
        predictions=posterior.predict(data.x_test).squeeze(1),
    )


def minibatches(rows: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Yield row indices without end: every epoch is a new shuffle, cut into whole batches; a partial one is dropped.

    Indexing tensors in memory is far faster for small models than a DataLoader. Fewer rows than a batch are one batch.

    >>> batches = minibatches(rows=5, batch_size=2, seed=0)
    >>> sorted(torch.cat([next(batches), next(batches)]).unique().shape)
    [4]
    """
    batch_size = min(check_count("batch_size", batch_size), check_count("rows", rows))
    generator = torch.Generator().manual_seed(seed)
    while True:
        for batch in torch.randperm(rows, generator=generator).split(batch_size):
            if len(batch) == batch_size:
                yield batch


def linear_table(data: LinearData, results: Sequence[LinearResult], *, steps: int) -> Table:
    """Return a table of errors on the test rows and in expectation, selected variables and sigma of each method."""
    return Table.build(
        f"Linear regression, n = {len(data.x_train)}, p = {len(data.beta)}",
        results,
        {
            Column("method", "Method"): lambda own: own.method,
            Column("mae", "MAE", ".2f"): lambda own: mean_absolute_error(own.predictions, data.y_test),
            Column("mse", "MSE", ".2f"): lambda own: mean_squared_error(own.predictions, data.y_test),
            Column("population_mse", "exact MSE", ".2f"): lambda own: data.population_mse(own.beta),
            Column("selected", "selected"): lambda own: own.selected,
            Column("sigma", "sigma", ".2f"): lambda own: own.sigma,
        },
        notes=[
            f"{steps:,} steps for each method, v0 = 0.1. MAE and MSE are on {len(data.x_test)} test rows, which leave "
            f"the MSE uncertain by about 0.7; the exact MSE is the expectation over new rows, of which "
            f"{data.noise_variance:g} is noise. The truth has {int(data.beta.count_nonzero())} variables and a sigma "
            f"of {data.noise_variance**0.5:.2f}; the paper's prior, whose scale is tied to sigma, underestimates it."
        ],
    )
