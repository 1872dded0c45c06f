"""Several chains of one model: their joint prediction and their convergence."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.errors import ArgumentValueError, Phrase, quote
from spikeslab.files import check_links
from spikeslab.posterior._arviz import to_inference_data
from spikeslab.posterior.convergence import Convergence, assess_convergence
from spikeslab.posterior.posterior import Posterior
from spikeslab.posterior.prediction import Prediction, average_terms
from spikeslab.posterior.samples import INDEX, named_tensors, read_shapes


class Chains:
    """Posteriors of several chains that started apart.

    >>> models = [nn.Linear(2, 3), nn.Linear(2, 3)]
    >>> posteriors = [Posterior(model) for model in models]
    >>> for posterior in posteriors:
    ...     _ = posterior.collect()
    >>> chains = Chains(posteriors)
    >>> len(chains), chains.predict(torch.zeros(4, 2)).shape
    (2, torch.Size([4, 3]))

    Args:
        posteriors: One for each chain; their models have the same tensors.
    """

    def __init__(self, posteriors: Sequence[Posterior]) -> None:
        if not posteriors:
            raise ArgumentValueError("posteriors", "must hold at least one chain", Phrase("got none"))
        shapes = [read_shapes(dict(named_tensors(posterior.model))) for posterior in posteriors]
        for index, other in enumerate(shapes):
            if other != shapes[0]:
                odd = [name for name in {**shapes[0], **other} if shapes[0].get(name) != other.get(name)]
                got = Phrase(f"chain {index} differs in {quote(odd)}")
                raise ArgumentValueError("posteriors", "must be of models with the same tensors", got)
        self.posteriors = list(posteriors)

    @classmethod
    def load(
        cls, directory: str | os.PathLike[str], model: nn.Module, *, link: Callable[[Tensor], Tensor] | None = None
    ) -> Chains:
        """Load the chains of a folder with ``chain-0``, ``chain-1`` and so on, or of a single posterior.

        Args:
            directory: The folder.
            model: A model with the same parameters and buffers.
            link: As for :class:`Posterior`.
        """
        return cls([Posterior.load(folder, model, link=link) for folder in chain_folders(Path(directory))])

    def __len__(self) -> int:
        """Return the number of samples in all chains."""
        return sum(map(len, self.posteriors))

    @property
    def sample_weights(self) -> Tensor:
        """Weight of each sample, chain after chain, summing to 1 over all of them."""
        raw = torch.tensor([record.weight for p in self.posteriors for record in p.records], dtype=torch.float64)
        return raw / raw.sum()

    def sample(self, index: int) -> nn.Module:
        """Return a copy of the model with sample ``index``, counted chain after chain."""
        places = [(posterior, place) for posterior in self.posteriors for place in range(len(posterior))]
        if not -len(places) <= index < len(places):
            raise IndexError(f"index must be below the number of samples, {len(places)}, but got {index}.")
        posterior, place = places[index]
        return posterior.sample(place)

    def predict(self, *inputs: Any, batch_size: int | None = None) -> Tensor:
        """Return the mean over the samples of all chains; arguments as in :meth:`Posterior.predict`."""
        return self.predictive(*inputs, batch_size=batch_size).mean

    def predictive(self, *inputs: Any, batch_size: int | None = None) -> Prediction:
        """Return mean and split variance over the samples of all chains; arguments as in :meth:`Posterior.predict`."""
        return average_terms(chain.from_iterable(p.terms(*inputs, batch_size=batch_size) for p in self.posteriors))

    def to_arviz(
        self,
        *inputs: Any,
        weights: str | Sequence[str] = "*",
        limit: int | None = 1000,
        thin: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> Any:
        """Return the samples as ArviZ InferenceData; arguments as in :meth:`Posterior.to_arviz`.

        If chains have different numbers of samples, the last ones of each are taken.
        """
        return to_inference_data(
            self.posteriors, inputs, weights=weights, limit=limit, thin=thin, batch_size=batch_size, seed=seed
        )

    def convergence(self, *inputs: Any, batch_size: int | None = None, seed: int = 0) -> list[Convergence]:
        """Compare the chains in their predictions on ``inputs``, in norms, latents and some weights."""
        return assess_convergence(self.posteriors, inputs, batch_size, seed)


def chain_folders(directory: Path) -> list[Path]:
    """Return the folders of the chains in a folder, in order, or the folder itself if it holds one posterior."""
    if (directory / INDEX).is_file():
        return [directory]
    folders = sorted(
        (path for path in directory.glob("chain-*") if (path / INDEX).is_file() and path.name[6:].isdecimal()),
        key=lambda path: int(path.name[6:]),
    )
    if not folders:
        raise FileNotFoundError(
            f"{directory} holds neither a posterior nor folders chain-0, chain-1, ... of posteriors."
        )
    check_links(*folders)
    return folders
