"""The interface between a predictive distribution and an uncertain network, with random weights or random units."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn


class NetworkDistribution(abc.ABC):
    """Base class of distributions over the functions that a network computes.

    Attributes:
        strata: Number of strata with equal weights, such as the components of a mixture: sample ``n`` is from stratum
            ``n % strata``.
    """

    strata: int = 1

    @abc.abstractmethod
    def draws(self, model: nn.Module, seed: int = 0) -> AbstractContextManager[Callable[[int | None], None]]:
        """Return a context that gives a function ``put``; afterwards the model is as before, even after an exception.

        ``put(n)`` turns the model into sample number ``n``, counted from 0, which depends on ``(seed, n)`` only.
        ``put(None)`` turns it into the mean network. The context caches what every sample needs. Another thread that
        enters such a context of the same model waits until this one has left it.
        """

    def repeats(self, count: int) -> list[int]:
        """For each of ``count`` samples the number of the first one that is the same network, as far as is known."""
        return list(range(count))

    @contextmanager
    def applied(self, model: nn.Module, sample: int | None = None, *, seed: int = 0) -> Iterator[None]:
        """Return a context in which the model is one sample, or the mean network; afterwards it is as before.

        Args:
            model: The network; it is changed in place.
            sample: Number of the sample, counted from 0. For a posterior over weights these are ``sample(n,
                seed=seed)[name][sample]``, without the noise of padding rows of embeddings. ``None`` stands for the
                mean.
            seed: Seed of the samples.

        Raises:
            ValueError: The model does not match the posterior.
        """
        with self.draws(model, seed) as put:
            put(sample)
            yield
