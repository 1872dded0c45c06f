"""Posterior samples of a network and their predictions."""

from spikeslab.posterior.batch_norm import recalibrate
from spikeslab.posterior.chains import Chains
from spikeslab.posterior.convergence import Convergence
from spikeslab.posterior.posterior import Posterior
from spikeslab.posterior.prediction import Prediction, probabilities

__all__ = ["Chains", "Convergence", "Posterior", "Prediction", "probabilities", "recalibrate"]
