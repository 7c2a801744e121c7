"""Rules for the noise of BayesAdam, by name: what is tried on the development tasks.

A candidate trains a network of a task and returns it. It sees the training rows alone, so that nothing can be fitted to
the rows by which it is judged. One that was tried is not changed any more, because the journal knows it by its name: a
change is a new candidate. Those of the journal that were not chosen are at the commits that it names.
"""

from __future__ import annotations

from collections.abc import Callable

from default_runs.training import Trained, train, untouched
from default_tasks import Data, Task

Candidate = Callable[[Task, Data, int], Trained]
"""From a task, data without validation and test rows, and a seed to a trained network."""


def bayesadam(task: Task, data: Data, seed: int) -> Trained:
    """Untouched, in the usual loop."""
    return train(task, data, untouched(), seed)


CANDIDATES: dict[str, Candidate] = {"bayesadam": bayesadam}
