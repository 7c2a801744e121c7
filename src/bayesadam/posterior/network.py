"""What a predictive needs to know of an uncertain network, whether its weights or its units are random."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn


class NetworkDistribution(abc.ABC):
    """A distribution over the functions that a network computes."""

    @abc.abstractmethod
    def draws(self, model: nn.Module, seed: int = 0) -> AbstractContextManager[Callable[[int | None], None]]:
        """A context that gives a function ``put``; after it the model is what it was, whatever happens inside.

        ``put(n)`` makes the model sample number ``n``, counted from 0, which depends on ``(seed, n)`` only; and
        ``put(None)`` makes it the mean network. What is needed again and again is kept.
        """

    @contextmanager
    def applied(self, model: nn.Module, sample: int | None = None, *, seed: int = 0) -> Iterator[None]:
        """Inside, the model is one sample, or the mean network; after, it is what it was.

        Args:
            model: Changed in place.
            sample: Number of the sample, counted from 0: for a posterior over weights, the weights are
                ``sample(n, seed=seed)[name][sample]``. ``None``: the mean.
            seed: Of the samples.

        Raises:
            ValueError: The model does not match.
        """
        with self.draws(model, seed) as put:
            put(sample)
            yield
