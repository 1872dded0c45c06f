"""The posterior: samples collected along a chain, and the average of their predictions."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from spikeslab.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Phrase,
    SpikeSlabError,
    StateError,
    check_choice,
    check_count,
    mark,
    quote,
)
from spikeslab.forward_pass import Forward, ReadOutput, RunForward
from spikeslab.likelihoods import GaussianLikelihood
from spikeslab.posterior._arviz import to_inference_data
from spikeslab.posterior.batch_norm import recalibrate
from spikeslab.posterior.convergence import Convergence, assess_convergence
from spikeslab.posterior.forward import SampleForward
from spikeslab.posterior.prediction import (
    Prediction,
    average_terms,
    identity,
    probabilities,
    to_float,
    token_probabilities,
    weighted_mean,
)
from spikeslab.posterior.samples import (
    INDEX,
    WEIGHTINGS,
    DiskSamples,
    Samples,
    SamplesError,
    Tensors,
    check_index,
    mean_tensors,
    named_tensors,
    read_shapes,
    snapshot,
)
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.samplers.base import Sampler
from spikeslab.shards import Reduction
from spikeslab.states import describe
from spikeslab.weights import unwrap_compiled

LINKS = {"probabilities": probabilities, "token_probabilities": token_probabilities, "identity": identity}
SETTABLE = ("burn_in", "thin", "weighting", "max_samples")
OWN_LINK = "own"
"""Name in the index of a link that is the user's own function."""


@dataclass(frozen=True)
class Record:
    """Facts about a sample besides its tensors: step, weight, the sigma of a regression, delta of each layer."""

    step: int
    weight: float
    sigma: float | None = None
    delta: dict[str, float] | None = None


class Posterior:
    """Samples of a chain, and the average of their predictions.

    Predictions are averaged after the link: probabilities, not logits. Every sample keeps its own buffers, so batch
    normalisation uses the statistics that belong to its weights.

    >>> model = nn.Linear(2, 3)
    >>> posterior = Posterior(model, burn_in=1, thin=2)
    >>> for _ in range(5):
    ...     _ = posterior.collect()
    >>> len(posterior), posterior.predict(torch.zeros(4, 2)).shape
    (2, torch.Size([4, 3]))

    Args:
        model: The model that the sampler moves. If it is compiled, samples are named as in the original model and
            predictions run uncompiled.
        burn_in: Steps before the first sample.
        thin: Steps between two samples; the first is at step ``burn_in + thin``.
        weighting: ``"uniform"``, or ``"epsilon"`` to weight samples by the lr at which they were taken, for an lr that
            decreases (Welling and Teh, 2011); ``"epsilon"`` needs ``sampler``.
        likelihood: Likelihood of a regression. Outputs are then means, and each sample keeps the likelihood's sigma.
        link: Function from the model's outputs to the values that are averaged. The default is a softmax over
            dimension 1, as in ``F.cross_entropy``; with a likelihood it is the identity. For outputs of shape (batch,
            tokens, classes) give :func:`~spikeslab.posterior.prediction.token_probabilities`, over the last one.
        sampler: If given, its steps are counted instead of the calls of :meth:`collect`.
        directory: If given, samples are stored in this folder instead of in memory. All ranks of a sharded model call
            :meth:`collect`, and each writes its parts, into a folder that they share; any number of ranks, or one with
            the whole model, can read them. Without a folder the first rank keeps whole samples.
        exist_ok: If True, a posterior of this model in the folder is continued.
        max_samples: If given, the oldest sample is dropped once there are more.
        forward: Function from (model, inputs) to what the model returns, for inputs that it does not take as they are;
            several inputs are a tuple.
        output: Function from what the model returns to a tensor; by default the result itself, its ``logits``, or the
            first tensor of a tuple.
    """

    def __init__(
        self,
        model: nn.Module,
        burn_in: int = 0,
        thin: int = 1,
        *,
        weighting: str = "uniform",
        likelihood: GaussianLikelihood | None = None,
        link: Callable[[Tensor], Tensor] | None = None,
        sampler: Sampler | None = None,
        directory: str | os.PathLike[str] | None = None,
        exist_ok: bool = False,
        max_samples: int | None = None,
        forward: RunForward | None = None,
        output: ReadOutput | None = None,
    ) -> None:
        self.model = model = unwrap_compiled(model)
        self.burn_in = check_count("burn_in", burn_in, minimum=0)
        self.thin = check_count("thin", thin)
        self.weighting = check_choice("weighting", weighting, WEIGHTINGS)
        self.max_samples = None if max_samples is None else check_count("max_samples", max_samples)
        self.steps = 0
        self.records: list[Record] = []
        self._likelihood = likelihood
        self._regression = likelihood is not None
        link = link or (probabilities if likelihood is None else identity)
        self._sampler = sampler
        self._get_weight()  # raises without the sampler that it needs
        self._forward = SampleForward(model, link, Forward(forward, output))
        self._samples = Samples()
        self._ranks = Reduction(model.parameters())
        if directory is not None:
            samples, exists = self._create_samples(Path(directory), exist_ok)
            if exists:  # the index stays as it is until there is something new to say
                self._take_over(samples.read_index(), samples)
            else:
                samples.write_index(self.index)
            self._samples = samples

    def _create_samples(self, directory: Path, exist_ok: bool) -> tuple[DiskSamples, bool]:
        """Return the folder for the samples, and True if it has some; ranks that share the model agree on it."""
        error: Exception | None = None
        exists = False
        if self._ranks.is_first:
            try:
                exists = DiskSamples.create(directory, exist_ok).exists()
            except (SpikeSlabError, OSError) as reason:  # raised once the other ranks know
                error = reason
        if not self._ranks.all(error is None):
            raise error or SamplesError(f"The first rank cannot use {directory} for samples.")
        return DiskSamples(directory, self._ranks.is_first), not self._ranks.all(not exists)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def forward(self) -> Forward:
        """Forward pass from inputs to a tensor of outputs."""
        return self._forward.forward

    @property
    def sample_weights(self) -> Tensor:
        """Weight of each sample, summing to 1."""
        total = math.fsum(record.weight for record in self.records)
        return torch.tensor([record.weight / total for record in self.records], dtype=torch.float64)

    def collect(self) -> bool:
        """Count a step, and keep the model's weights and buffers if a sample is due.

        Returns:
            True if a sample was kept.
        """
        step = self.steps + 1 if self._sampler is None else self._sampler.steps
        if step == self.steps:  # a GradScaler skipped the sampler's step
            return False
        self.steps = step
        if step <= self.burn_in or (step - self.burn_in) % self.thin:
            return False
        weight = self._get_weight()
        if weight == 0.0:
            return False
        sigma = None if self._likelihood is None else self._likelihood.sigma
        prior = None if self._sampler is None else self._sampler.prior
        delta = prior.delta if isinstance(prior, SpikeSlab) else None
        self._forward.forget()
        if self._ranks and isinstance(self._samples, DiskSamples):
            self._samples.write_parts(step, dict(named_tensors(self.model)), self._ranks)
        else:
            tensors = snapshot(self.model)  # all ranks of a sharded model gather it
            if not self._ranks.is_first:
                return True
            self._samples.write(step, tensors)
        # After a crash the sampler may repeat steps that have a sample already: keep one per step.
        self.records = [record for record in self.records if record.step != step]
        self.records.append(Record(step, weight, sigma, delta))
        dropped = self.records.pop(0) if self.max_samples and len(self) > self.max_samples else None
        self._samples.write_index(self.index)
        if dropped is not None:
            self._samples.remove(dropped.step)
        return True

    def attach(self, sampler: Sampler) -> None:
        """Count the steps of a sampler, as if it had been given at the start; training libraries create theirs late.

        Raises:
            ArgumentValueError: If the posterior counts those of another sampler.
        """
        if self._sampler is not None and self._sampler is not sampler:
            raise ArgumentValueError("sampler", "must be the one that the posterior was given", Phrase("got another"))
        self._sampler = sampler

    def _get_weight(self) -> float:
        if self.weighting == "uniform":
            return 1.0
        if self._sampler is None:
            raise ArgumentValueError("sampler", f"must be given where {mark('weighting', 'epsilon')}", None)
        return float(self._sampler.param_groups[0]["lr"])

    def tensors(self, index: int) -> Tensors:
        """Return parameters and buffers of sample ``index`` by name; do not write to them."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be below the number of samples, {len(self)}, but got {index}.")
        return self._samples.read(self.records[index].step)

    def sample(self, index: int) -> nn.Module:
        """Return a copy of the model with the weights and buffers of sample ``index``."""
        return self._copy_model(self.tensors(index))

    @torch.no_grad()
    def mean_model(self) -> nn.Module:
        """Return a copy of the model with the weighted mean of all parameters and floating-point buffers.

        The mean of samples with different zeros is less sparse than each of them, and a warning says so: freeze the
        mask before collecting, or prune the mean again. If the model has batch normalisation, recalibrate the mean on
        training data with :func:`~spikeslab.posterior.recalibrate`.
        """
        self._check_not_empty()
        samples = ((self.tensors(index), weight) for index, weight in enumerate(self.sample_weights.tolist()))
        return self._copy_model(mean_tensors(samples, last=self.tensors(-1)))

    def _check_whole(self) -> None:
        if self._ranks:
            raise ArgumentValueError(
                "model",
                "must be whole to hold a sample",
                Phrase("it is sharded"),
                "load the samples with a model that is not, as in Posterior.load(directory, model)",
            )

    def _copy_model(self, tensors: Tensors) -> nn.Module:
        self._check_whole()
        model = copy.deepcopy(self.model)
        model.zero_grad()
        with torch.no_grad():
            for name, own in named_tensors(model):
                own.copy_(tensors[name])
        return model

    def predict(self, *inputs: Any, batch_size: int | None = None) -> Tensor:
        """Return the mean over the samples of the probabilities, or of the regression means.

        Args:
            *inputs: Arguments of the model, batched along their first dimension; or one mapping of them by name, such
                as the output of a tokenizer.
            batch_size: Size of the batches into which tensors are split. ``None`` chooses it if the input is one tensor
                whose rows do not depend on each other, and runs all rows at once otherwise.
        """
        sample_weights, done = self.sample_weights, 0
        total: Tensor | None = None
        for values in map(to_float, self._chunks(inputs, batch_size)):
            shares = sample_weights.narrow(0, done, len(values)).to(values.device, values.dtype)
            part = weighted_mean(shares, values)
            total = part if total is None else total + part
            done += len(values)
        return cast(Tensor, total)

    def predictive(self, *inputs: Any, batch_size: int | None = None) -> Prediction:
        """Return mean and variance of the prediction, aleatoric and epistemic; arguments as in :meth:`predict`.

        For classification the variance is that of each class's indicator, and the two parts sum to
        ``mean * (1 - mean)``. If the link gives no probabilities and there is no likelihood, the aleatoric part is NaN.
        """
        return average_terms(self.terms(*inputs, batch_size=batch_size))

    def terms(self, *inputs: Any, batch_size: int | None = None) -> Iterator[tuple[Tensor, Tensor, list[float]]]:
        """Yield predictions, variances of the data around them and sample weights, some samples at a time."""
        done = 0
        for values in map(to_float, self._chunks(inputs, batch_size)):
            records = self.records[done : done + len(values)]
            yield values, _noises(values, [record.sigma for record in records]), [record.weight for record in records]
            done += len(values)

    def to_arviz(
        self,
        *inputs: Any,
        weights: str | Sequence[str] = "*",
        limit: int | None = 1000,
        thin: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> Any:
        """Return the samples as ArviZ InferenceData: parameters, latents, predictions, steps and weights (needs arviz).

        ArviZ does not weight draws: for a posterior with ``weighting="epsilon"`` its means differ from :meth:`predict`.

        Args:
            *inputs: If given, predictions on these arguments of the model are included.
            weights: Globs over the names of the parameters to include.
            limit: Number of elements to keep of a larger parameter, chosen at random; ``None`` keeps all.
            thin: Keep every ``thin``-th sample, counted back from the last.
            batch_size: As in :meth:`predict`.
            seed: Seed of the choice of elements.
        """
        return to_inference_data(
            [self], inputs, weights=weights, limit=limit, thin=thin, batch_size=batch_size, seed=seed
        )

    def convergence(self, *inputs: Any, batch_size: int | None = None, seed: int = 0) -> list[Convergence]:
        """Return R-hat and effective sample sizes of the two halves of this chain, for predictions, norms and weights.

        Agreement of the halves is necessary, not sufficient: :class:`Chains` compares chains that started apart.

        Args:
            *inputs: If given, predictions on these arguments of the model are assessed too.
            batch_size: As in :meth:`predict`.
            seed: Seed of the choice of predictions and weights where there are many.
        """
        return assess_convergence([self], inputs, batch_size, seed)

    def outputs(self, *inputs: Any, batch_size: int | None = None) -> Iterator[Tensor]:
        """Yield the prediction of each sample, after the link; arguments as in :meth:`predict`."""
        for values in self._chunks(inputs, batch_size):
            yield from values

    def _chunks(self, inputs: tuple[Any, ...], batch_size: int | None) -> Iterator[Tensor]:
        """Yield predictions of shape (samples, batch, ...), some samples at a time."""
        steps, samples = [record.step for record in self.records], self._samples
        if not self._ranks:
            self._check_not_empty()
            return self._forward.chunks(steps, samples.read, inputs, batch_size)
        if not isinstance(samples, DiskSamples):
            raise ArgumentValueError("directory", "must be given to predict with a sharded model", None)
        self._check_not_empty()
        like = dict(named_tensors(self.model))
        return self._forward.shared_chunks(steps, lambda step: samples.read_like(step, like), inputs, batch_size)

    def recalibrate(self, batches: Iterable[Any]) -> None:
        """Replace each sample's batch-normalisation statistics by averages over ``batches`` of inputs.

        Args:
            batches: List or loader of inputs, with or without targets. It is read once for each sample.
        """
        self._check_not_empty()
        if iter(batches) is batches:
            expectation = "must be a list or a loader that can be read again"
            raise ArgumentTypeError("batches", expectation, Phrase("got an iterator"))
        self._forward.forget()
        for index, record in enumerate(self.records):
            model = self.sample(index)
            recalibrate(model, batches)
            self._samples.write(record.step, snapshot(model))
        self._samples.write_index(self.index)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write all samples to a new folder: a safetensors file for each, and an index in JSON."""
        target = DiskSamples.create(Path(directory))
        for index, record in enumerate(self.records):
            target.write(record.step, self.tensors(index))
        target.write_index(self.index)

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        model: nn.Module,
        *,
        likelihood: GaussianLikelihood | None = None,
        link: Callable[[Tensor], Tensor] | None = None,
        sampler: Sampler | None = None,
        forward: RunForward | None = None,
        output: ReadOutput | None = None,
    ) -> Posterior:
        """Read a folder written by :meth:`save` or by a posterior on disk; the samples stay on disk.

        Args:
            directory: The folder.
            model: A model with the same parameters and buffers.
            likelihood: Needed only to collect more samples of a regression.
            link: Needed only if the samples were saved with a link of your own.
            sampler: Needed only to collect more samples.
            forward: As for :class:`Posterior`; it is not saved.
            output: Likewise.

        Raises:
            ValueError: If the model has other tensors, or the link is not known.
        """
        samples = DiskSamples(Path(directory), Reduction(model.parameters()).is_first)
        index = samples.read_index()
        link = link or _find_link(index)
        options = {"likelihood": likelihood, "link": link, "sampler": sampler, "forward": forward, "output": output}
        return cls._restore(model, index, samples, **options)

    def sibling(self, index: Mapping[str, Any], samples: Samples) -> Posterior:
        """Return the posterior of another chain of the same model, given its :meth:`index` and its samples."""
        own = vars(self.forward)
        return self._restore(self.model, index, samples, link=self._forward.link, **own)

    @classmethod
    def _restore(cls, model: nn.Module, index: Mapping[str, Any], samples: Samples, **options: Any) -> Posterior:
        posterior = cls(model, index["burn_in"], index["thin"], max_samples=index["max_samples"], **options)
        posterior._take_over(index, samples)
        posterior._regression, posterior.weighting = index["regression"], index["weights"]
        return posterior

    def _take_over(self, index: Mapping[str, Any], samples: Samples) -> None:
        """Continue with samples of this model, as described by their index."""
        where = f"in {samples.directory / INDEX}" if isinstance(samples, DiskSamples) else ""
        self._check_shapes(index["shapes"], where)
        if isinstance(samples, DiskSamples):
            samples.expect(named_tensors(self.model))
        self.steps = index["steps"]
        self.records = [Record(**record) for record in index["samples"]]
        self._samples = samples
        self._forward.forget()

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings that decide which samples are kept and how they predict, as JSON values."""
        settable = {name: getattr(self, name) for name in SETTABLE}
        return settable | {"link": describe(self._forward.link), "regression": self._regression}

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set some of the settings; the link and the likelihood are the user's own code."""
        odd = [name for name, value in settings.items() if name not in SETTABLE and value != self.settings_dict()[name]]
        if odd:
            raise ArgumentValueError(
                "posterior", f"must be created with the {odd[0]} {settings[odd[0]]!r}", Phrase("it has another")
            )
        self.__dict__.update({name: value for name, value in settings.items() if name in SETTABLE})

    def state_dict(self) -> dict[str, Any]:
        """Return steps, records and samples; samples on disk are given by the paths of their files."""
        return {
            "steps": self.steps,
            "records": [vars(record) for record in self.records],
            "samples": [self._samples.export(record.step) for record in self.records],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, whose samples replace the present ones.

        Raises:
            ValueError: If the samples are of another model.
            OSError: If a sample cannot be written. Whatever is raised, nothing has changed then.
        """
        records = self.check_state(state)
        index = self.index() | {"steps": int(state["steps"]), "samples": [vars(record) for record in records]}
        samples = {record.step: sample for record, sample in zip(records, state["samples"], strict=True)}
        self._samples.restore(samples, index)
        self._forward.forget()
        self.steps, self.records = index["steps"], records

    def check_state(self, state: Mapping[str, Any]) -> list[Record]:
        """Return the records of a state; raise if its samples are of another model, or its records impossible."""
        for sample in state["samples"]:
            self._check_shapes(read_shapes(sample))
        if len(state["records"]) != len(state["samples"]):
            raise SamplesError("The state of a posterior must have a record for each sample.")
        check_index("The state of a posterior", self.index() | {"steps": state["steps"], "samples": state["records"]})
        return [Record(**record) for record in state["records"]]

    def index(self) -> dict[str, Any]:
        """Return the description of the samples that is written to JSON."""
        return {
            "burn_in": self.burn_in,
            "thin": self.thin,
            "weights": self.weighting,
            "max_samples": self.max_samples,
            "steps": self.steps,
            "regression": self._regression,
            "link": next((name for name, link in LINKS.items() if link is self._forward.link), OWN_LINK),
            "shapes": read_shapes(dict(named_tensors(self.model))),
            "samples": [vars(record) for record in self.records],
        }

    def _check_shapes(self, saved: Mapping[str, list[int]], where: str = "") -> None:
        own = read_shapes(dict(named_tensors(self.model)))
        odd = [name for name in {**saved, **own} if saved.get(name) != own.get(name)]
        if odd:
            got = Phrase(f"it differs in {quote(odd)}")
            raise ArgumentValueError("model", f"must have the tensors of the saved samples {where}".rstrip(), got)

    def _check_not_empty(self) -> None:
        if not self.records:
            raise StateError(
                f"The posterior has no samples after {self.steps} steps: the first is taken at step "
                f"burn_in + thin = {self.burn_in + self.thin}."
            )


def _find_link(index: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    """Return the link of an index; an index of an early version has the default link."""
    name = index.get("link", "identity" if index["regression"] else "probabilities")
    if name not in LINKS:
        expectation = "must be given for samples that were saved with a link of your own"
        raise ArgumentValueError("link", expectation, None)
    return LINKS[name]


def _noises(values: Tensor, sigmas: Sequence[float | None]) -> Tensor:
    """Return the variance of the data around the predictions of some samples."""
    known = [sigma**2 for sigma in sigmas if sigma is not None]
    if known:
        return values.new_tensor(known).view(-1, *(1,) * (values.ndim - 1)).expand_as(values)
    noises = values * (1.0 - values)
    # Without probabilities and without a likelihood the variance is unknown.
    beyond = ((values < 0.0) | (values > 1.0)).flatten(1).any(1)
    return noises.masked_fill_(beyond.view(-1, *(1,) * (values.ndim - 1)), torch.nan) if bool(beyond.any()) else noises
