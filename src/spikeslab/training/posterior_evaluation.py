"""How good the average of the samples is, and whether their predictions converged, for an ``Evaluate`` callback."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from spikeslab.errors import check_count
from spikeslab.posterior import Chains, Posterior
from spikeslab.posterior.convergence import PREDICTIONS, assess, common_length, prediction_draws
from spikeslab.training.evaluation import ClassifierEvaluation, describe_classifier


class PosteriorEvaluation:
    """Evaluates the average of the samples there are; while there are none, the model as it is.

    The result holds R-hat and effective sample sizes of the predictions, which ``spikeslab doctor`` and
    the report read from ``evaluation.json``: in the space of functions, where chains that agree must agree.

    Args:
        posterior: The posterior of one chain or of several.
        x: Inputs.
        y: Labels.
        batch_size: Rows that are predicted at once.
        compared: The first so many rows whose predictions are compared.
    """

    def __init__(
        self, posterior: Posterior | Chains, x: Tensor, y: Tensor, batch_size: int = 1000, compared: int = 100
    ) -> None:
        self.posterior = posterior
        self.x = x
        self.y = y
        self.batch_size = check_count("batch_size", batch_size)
        self.compared = check_count("compared", compared)

    def __call__(self) -> dict[str, Any]:
        """What :func:`describe_classifier` says of the average, and ``convergence``."""
        chains = self.posterior.posteriors if isinstance(self.posterior, Chains) else [self.posterior]
        if not all(map(len, chains)):
            return ClassifierEvaluation(chains[0].model, self.x, self.y, self.batch_size)()
        result = describe_classifier(self.posterior.predict(self.x, batch_size=self.batch_size), self.y)
        draws = prediction_draws(chains, (self.x[: self.compared],), self.batch_size, common_length(chains))
        return {**result, "convergence": [asdict(assess(PREDICTIONS, draws))]}
