"""The search: rounds in which all studies are asked for a candidate, until each has enough of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import Trial, TrialState

from bayesadam.progress import progress_bar
from bayesadam.tuning import signs
from bayesadam.tuning.plan import Candidate, Direction, Plan, Storage
from bayesadam.tuning.signs import Lost, may_be_shared, repeated, signs_of_life
from bayesadam.tuning.studies import EVALUATED, TAKEN, ask, load_or_create, open_storage, tell

_LOOK = 2.0  # seconds between two checks of the trials of other processes


def tune(
    objective: Callable[[list[Candidate]], Sequence[float]],
    space: Mapping[str, BaseDistribution],
    *,
    studies: Sequence[str] = ("study",),
    rounds: int = 30,
    startup: int = 5,
    direction: Direction = "maximize",
    storage: Storage = None,
    sampler: Callable[[int], BaseSampler] | None = None,
    seed: int = 0,
    jobs: int = 1,
    progress: bool | None = None,
) -> list[optuna.Study]:
    """Search until every study has ``rounds`` evaluated trials.

    To continue after an interruption, call it again with the same storage: candidates that were lost are proposed again
    with the same parameters, and the results are those of a run without interruption. If the objective raises an error,
    its candidates are recorded as failed; failed trials do not count.

    Args:
        objective: Function that returns the values of one round, in the order of the candidates. A round has one
            candidate of every study, or after an interruption those of the studies that are behind. A value that is not
            finite marks the candidate as useless: the trial is recorded as pruned, counts, and is never the best. If
            all are useless, ``study.best_trial`` raises Optuna's ValueError.
        space: Distributions by name of the hyper-parameter.
        studies: Names of the studies; each is an independent Optuna study.
        rounds: Number of evaluated trials per study, including those of earlier calls.
        startup: Number of random rounds before the Gaussian process is used.
        direction: ``"maximize"`` or ``"minimize"``.
        storage: ``None`` keeps the studies in memory. A path is a journal file, for one run at a time. A URL such as
            ``"sqlite:///file.db"`` is a database, in which several machines may work on the same studies; trials of a
            killed run count as running elsewhere for two minutes after their last sign of life, and are then proposed
            again. The clocks of the machines may differ by less than one minute. An Optuna storage is used as it is;
            one in memory or a journal is for one run at a time.
        sampler: Function that makes a sampler from a seed; it is called for every candidate. The default is a Gaussian
            process with a Matern 5/2 kernel and expected improvement, which treats useless candidates as being as bad
            as the worst.
        seed: Seed. A candidate depends only on the study's earlier trials and on ``SeedSequence(seed,
            spawn_key=(position of the study, number of the round))``. If several machines work on one study, it also
            depends on their timing.
        jobs: Number of joblib workers among which the studies are divided, with the backend that
            ``joblib.parallel_config`` has set; the results do not depend on it. The objective must be picklable, and
            the storage a path or a URL.
        progress: Whether to show a progress bar; ``None`` shows it if stderr is a terminal.

    Returns:
        The studies, in the order of their names.

    Raises:
        ValueError: An argument is wrong, the storage holds a study with another space or direction, or the objective
            did not return one number per candidate.
        ImportError: ``jobs > 1`` without joblib, or ``progress=True`` without rich.
    """
    plan = Plan(objective, space, studies, rounds, startup, direction, storage, sampler, seed, jobs)
    opened = open_storage(storage)
    found = load_or_create(plan, opened)
    lacking, note = _state(plan, found)
    behind = [i for i, count in enumerate(lacking) if count > 0]
    left = sum(lacking)
    with progress_bar("tuning", left, progress) as advance:

        def report() -> None:
            nonlocal left
            lacking, note = _state(plan, found)
            advance(left - sum(lacking), note)
            left = sum(lacking)

        advance(0, note)
        if jobs > 1 and len(behind) > 1:
            _run_in_parallel(plan, behind, report)
        else:
            _run(plan, opened, {i: found[i] for i in behind}, report)
    return found


def _state(plan: Plan, studies: Sequence[optuna.Study]) -> tuple[list[int], str]:
    """Return the number of trials that each study lacks, and a note with the best value so far (for several studies,
    the median of their best values).
    """
    lacking, best = [], []
    for study in studies:
        trials = study.get_trials(deepcopy=False, states=EVALUATED)
        lacking.append(max(0, plan.rounds - len(trials)))
        if values := [t.value for t in trials if t.value is not None]:
            best.append(max(values) if plan.direction == "maximize" else min(values))
    label = "median best" if len(studies) > 1 else "best"
    return lacking, f"{label} {statistics.median(best):.4g}" if best else ""


def _run_in_parallel(plan: Plan, behind: list[int], report: Callable[[], None]) -> None:
    from joblib import Parallel, delayed

    shares = [behind[i :: plan.jobs] for i in range(min(plan.jobs, len(behind)))]
    with repeated(report, _LOOK):
        Parallel(n_jobs=len(shares))(delayed(_run_share)(plan, share) for share in shares)
    report()


def _run_share(plan: Plan, share: list[int]) -> None:
    storage = open_storage(plan.storage)
    studies = {i: optuna.load_study(study_name=plan.studies[i], storage=storage) for i in share}
    _run(plan, storage, studies, lambda: None)


def _run(plan: Plan, storage: BaseStorage, studies: Mapping[int, optuna.Study], report: Callable[[], None]) -> None:
    """Run rounds until every study has enough trials. Each round is for the studies with the fewest trials."""
    shared = may_be_shared(storage)
    lost = Lost(studies.values(), shared)
    while True:
        if shared:
            lost.record()
        taken = {i: len(study.get_trials(deepcopy=False, states=TAKEN)) for i, study in studies.items()}
        least = min(taken.values(), default=plan.rounds)
        if least < plan.rounds:
            _round(plan, {i: study for i, study in studies.items() if taken[i] == least}, shared)
            report()
        elif not shared or not lost.running():
            return
        else:
            time.sleep(min(signs.INTERVAL, _LOOK))
            report()


def _round(plan: Plan, studies: Mapping[int, optuna.Study], shared: bool) -> None:
    """Ask all of these studies for a candidate, evaluate the candidates, and record the values."""
    asked: list[tuple[optuna.Study, Trial]] = []
    candidates: list[Candidate] = []
    try:
        for position, study in studies.items():
            if (proposal := ask(plan, position, study)) is not None:
                number, trial = proposal
                asked.append((study, trial))
                candidates.append(Candidate(position, study.study_name, number, trial.params))
        if not asked:
            return
        with signs_of_life([trial for _, trial in asked]) if shared else nullcontext():
            values = plan.objective(candidates)
        for (study, trial), value in zip(asked, _as_numbers(values, len(asked)), strict=True):
            if math.isfinite(value):
                tell(study, trial.number, TrialState.COMPLETE, value)
            else:
                tell(study, trial.number, TrialState.PRUNED)
    except BaseException:
        for study, trial in asked:
            with suppress(Exception):  # the error that is raised below is the first one
                tell(study, trial.number, TrialState.FAIL)
        raise


def _as_numbers(values: Any, count: int) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, RuntimeError):
        numbers = []
    if len(numbers) != count:
        raise ValueError(f"objective must return {count} numbers, one per candidate, got {values!r}")
    return numbers
