"""The batch size that is found from the training passes of an attached model."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from bayesadam.engine.store import Store
from bayesadam.engine.weights import MEAN, TRAIN
from bayesadam.optim.epochs import Epochs
from bayesadam.posterior.training_inputs import TrainingInputs
from bayesadam.sharding import rank_and_size

COUNTED = "counted"
"""Entry of a group whose batch size was found: the number of steps, their mean of ``1 / batch size``, and the batch
size that follows. Without it the batch size is that of the user, or was never found."""
_CHANGE = 0.01
"""Relative change from which on a new batch size is used."""


class BatchSize:
    """Counts the examples of every step, and sets ``batch_size`` in the groups where the user gave none.

    Estimates of the curvature from the mean gradient of ``M`` examples are multiplied by ``M``, and averaged over
    steps. If ``M`` differs between steps, the factor without bias is the harmonic mean of the numbers ``M``, so that a
    small last batch of an epoch does little harm. A new value is used if it differs by more than 1%.

    Args:
        store: Groups of the optimiser.

    Attributes:
        epochs: What the sizes of the passes say about the number of examples.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._inputs: TrainingInputs | None = None
        self.epochs = Epochs()

    def watch(self, model: nn.Module) -> None:
        """Count the examples of this model's training passes."""
        if self._inputs is None:
            self._inputs = TrainingInputs(_Sampled(self._store()), self.epochs.see)
        self._inputs.watch(model)

    def discard(self) -> None:
        """Forget the passes since the last step, since their gradients were cleared or their step was skipped."""
        if self._inputs is not None:
            self._inputs.take_rows()

    def take_step(self) -> None:
        """Handle the passes since the last step, which went through the model once for each sample."""
        first = self._store().first
        self._take(1 if first["weights"] == TRAIN else int(first["mc_samples"]))

    def counting(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The same closure, which is called once for each sample, and counts the examples of each call."""

        def counted() -> Any:
            if self._store().first["weights"] != TRAIN:  # otherwise gradients from before the step may be used
                self.discard()
            loss = closure()
            self._take(1)
            return loss

        return counted

    def _take(self, samples: int) -> None:
        rows = None if self._inputs is None else self._inputs.take_rows()
        if not rows:
            return
        examples = rows / samples * rank_and_size()[1]
        for group in self._store().owner.param_groups:
            if "batch_size" in group:
                _follow(group, examples)


class _Sampled:
    """Whether the weights of an optimiser hold a sample; it does not keep the optimiser alive."""

    def __init__(self, store: Store) -> None:
        self._owner = weakref.ref(store.owner)

    def __call__(self) -> bool:
        owner = self._owner()
        return owner is not None and owner.param_groups[0]["weights"] != MEAN


def _follow(group: dict[str, Any], examples: float) -> None:
    """Average a step's number of examples into the batch size of a group, unless the user has set it."""
    steps, mean, found = group.get(COUNTED) or (0, 0.0, None)
    if group["batch_size"] != found:
        group.pop(COUNTED, None)
        return
    mean += (1.0 / examples - mean) / (steps + 1)
    if found is None or abs(1.0 / mean - found) > _CHANGE * found:
        found = 1.0 / mean
    group["batch_size"] = found
    group[COUNTED] = (steps + 1, mean, found)
