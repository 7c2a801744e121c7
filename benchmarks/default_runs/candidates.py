"""Rules for the noise of BayesAdam, by name: what is tried on the development tasks.

A candidate trains a network of a task and returns it. It sees the training rows alone, so that nothing can be fitted to
the rows by which it is judged. Most are :func:`train` with an optimiser and, if they watch the training, a function
that is called after every epoch and may change ``trained.optimizer.param_groups``::

    def half_as_warm(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        temperature = 0.5 * default_temperature(plan.num_data, plan.batch_size, plan.total_steps)
        return ba.BayesAdam(model.named_parameters(), **asdict(plan), temperature=temperature)

    def watched(epoch: Epoch) -> None:
        if epoch.loss(epoch.held_out) > 1.2 * epoch.loss(epoch.train):
            for group in epoch.trained.optimizer.param_groups:
                group["temperature"] = min(1.0, 2.0 * group["temperature"])

    CANDIDATES["half-as-warm-and-watched"] = trained_with(half_as_warm, after_epoch=watched, held_out=0.1)

One that was tried is not changed any more, because the journal knows it by its name: a change is a new candidate.
"""

from __future__ import annotations

from collections.abc import Callable

from default_runs.training import AfterEpoch, Make, Trained, train, untouched
from default_tasks import Data, Task

Candidate = Callable[[Task, Data, int], Trained]
"""From a task, data without validation and test rows, and a seed to a trained network."""


def trained_with(make: Make, *, after_epoch: AfterEpoch | None = None, held_out: float = 0.0) -> Candidate:
    """The usual loop with an optimiser; the arguments are those of :func:`train`."""

    def candidate(task: Task, data: Data, seed: int) -> Trained:
        return train(task, data, make, seed, after_epoch=after_epoch, held_out=held_out)

    return candidate


CANDIDATES: dict[str, Candidate] = {"bayesadam": trained_with(untouched())}
