r"""Adversarial examples: inputs whose pixels move by at most zeta.

The fast gradient sign method (section 5.3 of the paper) takes one step against the log-probability of a label,

.. math::
    x' = \mathrm{clip}_{[0,1]}\bigl(x - \zeta\,\mathrm{sign}\,\nabla_x \log P(y \mid x)\bigr),

with y the predicted label (the paper: no labels are needed) or the true one; projected gradient descent takes many
small steps and stays within zeta. P comes from one network or from a whole posterior. Attack what you defend: an attack
along the gradient of one sample misses the average of many, and makes it look more robust than it is.

References:
    I. Goodfellow, J. Shlens and C. Szegedy (2015), Explaining and harnessing adversarial examples.
    A. Madry, A. Makelov, L. Schmidt, D. Tsipras and A. Vladu (2018), Towards deep learning models resistant to
    adversarial attacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, Phrase, check_count, check_number, pluralize
from spikeslab.posterior import Chains, Posterior
from spikeslab.posterior.eval_mode import eval_mode

LogProbabilities: TypeAlias = Callable[[Tensor], Tensor]


def of_model(model: nn.Module, transform: Callable[[Tensor], Tensor] | None = None) -> LogProbabilities:
    """Return the log-probabilities of a network that returns logits, in evaluation mode.

    Args:
        model: The network.
        transform: Differentiable function from inputs in [0, 1] to those of the network, such as a normalisation.
    """

    def log_probabilities(x: Tensor) -> Tensor:
        with eval_mode(model):
            logits: Tensor = model(x if transform is None else transform(x))
        return _log_softmax(logits)

    return log_probabilities


def of_posterior(
    posterior: Posterior | Chains,
    indices: Sequence[int] | None = None,
    transform: Callable[[Tensor], Tensor] | None = None,
) -> LogProbabilities:
    """Return the log of the averaged probabilities of a posterior, with the gradient of the average.

    Args:
        posterior: The posterior of one chain or of several.
        indices: Samples to average, counted chain after chain; ``None`` takes all.
        transform: As in :func:`of_model`.
    """
    indices = range(len(posterior)) if indices is None else indices
    if not len(indices):
        name, expectation = ("indices", "must be those of") if len(posterior) else ("posterior", "must hold")
        raise ArgumentValueError(name, f"{expectation} at least one sample", Phrase("got none"))
    samples = [of_model(posterior.sample(index), transform) for index in indices]
    weights = posterior.sample_weights[list(indices)]
    log_weights = (weights / weights.sum()).log()

    def log_probabilities(x: Tensor) -> Tensor:
        each = torch.stack([sample(x) for sample in samples])
        return (each + log_weights.to(each).view(-1, 1, 1)).logsumexp(dim=0)

    return log_probabilities


def fgsm(target: LogProbabilities, x: Tensor, zeta: float, labels: Tensor | None = None) -> Tensor:
    """Attack inputs by one step of size ``zeta`` along :func:`fgsm_direction`.

    Args:
        target: Attacked prediction: :func:`of_model` or :func:`of_posterior`.
        x: Inputs in [0, 1].
        zeta: Largest change of a pixel.
        labels: Labels whose probability is lowered; ``None`` takes the predicted ones.
    """
    check_number("zeta", zeta, ">= 0")
    return move(x, fgsm_direction(target, x, labels), zeta)


def fgsm_direction(target: LogProbabilities, x: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return the direction of :func:`fgsm`, -1, 0 or 1 for each pixel; it does not depend on ``zeta``."""
    _check_inputs(x)
    return -_gradient(target, x, labels).sign()


def move(x: Tensor, direction: Tensor, zeta: float) -> Tensor:
    """Return the inputs after a step of size ``zeta``, clipped to [0, 1]."""
    _check_inputs(x)
    return (x + check_number("zeta", zeta, ">= 0") * direction).clamp(0.0, 1.0)


def pgd(
    target: LogProbabilities,
    x: Tensor,
    zeta: float,
    labels: Tensor | None = None,
    *,
    steps: int = 10,
    step_size: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attack inputs by many small steps along the sign of the gradient, within ``zeta`` of ``x``.

    Args:
        target: Attacked prediction: :func:`of_model` or :func:`of_posterior`.
        x: Inputs in [0, 1].
        zeta: Largest change of a pixel.
        labels: Labels whose probability is lowered; ``None`` takes those predicted for ``x``.
        steps: Number of steps.
        step_size: Size of a step; ``None`` is ``2.5 * zeta / steps``, which reaches the border from any start.
        generator: If given, the attack starts at a random place within ``zeta``.
    """
    _check_inputs(x)
    zeta, steps = check_number("zeta", zeta, ">= 0"), check_count("steps", steps)
    size = 2.5 * zeta / steps if step_size is None else check_number("step_size", step_size, "> 0")
    if labels is None:
        with torch.no_grad():
            labels = target(x).argmax(dim=1)
    low, high = (x - zeta).clamp_min(0.0), (x + zeta).clamp_max(1.0)
    attacked = x
    if generator is not None:
        shift = 2.0 * torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype) - 1.0
        attacked = torch.clamp(x + zeta * shift, low, high)
    for _ in range(steps):
        attacked = torch.clamp(attacked - size * _gradient(target, attacked, labels).sign(), low, high)
    return attacked


def _gradient(target: LogProbabilities, x: Tensor, labels: Tensor | None) -> Tensor:
    """Return the gradient of the log-probability of each row's label with respect to the row."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        scores = target(x)
        chosen = scores.max(dim=1).values if labels is None else _of_labels(scores, labels)
        # Rows do not depend on each other, so the gradient of the sum is that of each.
        (gradient,) = torch.autograd.grad(chosen.sum(), x)
    return gradient


def _check_inputs(x: Tensor) -> None:
    if not x.is_floating_point():
        raise ArgumentTypeError("x", "must be floating-point numbers in [0, 1]", x.dtype, "divide bytes by 255")
    if not bool(((x >= 0.0) & (x <= 1.0)).all()):
        got = Phrase(f"got numbers from {float(x.min()):.3g} to {float(x.max()):.3g}")
        raise ArgumentValueError("x", "must be in [0, 1]", got, "normalise in the transform of the target")


def _of_labels(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the score of each row's label."""
    rows, classes = scores.shape
    if labels.shape != (rows,) or labels.is_floating_point():
        got = Phrase(f"got {labels.dtype} of the shape {tuple(labels.shape)}")
        raise ArgumentValueError("labels", f"must be integers, one for each of {pluralize(rows, 'row')}", got)
    if not bool(((labels >= 0) & (labels < classes)).all()):
        odd = labels[(labels < 0) | (labels >= classes)]
        raise ArgumentValueError("labels", f"must be classes from 0 to {classes - 1}", int(odd[0]))
    return scores.gather(1, labels[:, None].long()).squeeze(1)


def _log_softmax(logits: Tensor) -> Tensor:
    """Return a log-softmax that keeps its gradient where the largest probability rounds to 1.

    The usual gradient contains the difference 1 - P, which is 0 in float32 for a confident network: the attack would
    vanish and the network look more robust than it is.
    """
    top = logits.argmax(dim=1, keepdim=True)
    others = logits.scatter(1, top, -torch.inf).logsumexp(dim=1, keepdim=True)
    return logits.log_softmax(dim=1).scatter(1, top, logsigmoid(logits.gather(1, top) - others))
