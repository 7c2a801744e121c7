"""Tuning: rounds, exact resumption, useless candidates, storages, several processes and machines."""

import importlib
import logging
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import joblib
import numpy as np
import optuna
import pytest
import sqlalchemy
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState

from bayesadam import tuning
from bayesadam.tuning import plan, search, signs
from bayesadam.tuning.journal import drop_torn_line
from bayesadam.tuning.studies import open_storage

SPACE = {
    "rate": FloatDistribution(1e-3, 1.0, log=True),
    "width": IntDistribution(8, 64),
    "kind": CategoricalDistribution(("a", "b")),
}
NAMES = ("first", "second", "third")
PLANE = {"x": FloatDistribution(0.0, 1.0), "y": FloatDistribution(0.0, 1.0)}
EVALUATED = (TrialState.COMPLETE, TrialState.PRUNED)


def tpe(seed):
    return TPESampler(seed=seed, n_startup_trials=3)


def score(candidate):
    p = candidate.params
    return candidate.study - math.log10(p["rate"] / 0.03) ** 2 - abs(p["width"] - 20) / 20 + (p["kind"] == "b")


def values(candidates):
    return [score(c) for c in candidates]


def hill(candidates):
    return [-((c.params["x"] - 0.3) ** 2) - (c.params["y"] - 0.6) ** 2 for c in candidates]


def cliff(candidates):
    """Better towards x = 0.9, but nan from 0.7 on."""
    scores = [-((c.params["x"] - 0.9) ** 2) - (c.params["y"] - 0.4) ** 2 for c in candidates]
    return [math.nan if c.params["x"] > 0.7 else score for c, score in zip(candidates, scores, strict=True)]


def tune(objective=values, space=SPACE, *, studies=NAMES, rounds=6, sampler=tpe, **options):
    return tuning.tune(objective, space, studies=studies, rounds=rounds, sampler=sampler, **options)


def record(studies):
    """Parameters and values of all trials that count."""
    return [[(t.params, t.value, t.state) for t in s.trials if t.state in EVALUATED] for s in studies]


def states(storage, name=NAMES[0]):
    return [t.state.name for t in optuna.load_study(study_name=name, storage=open_storage(storage)).trials]


LOCAL = ("memory", "journal")  # for one run at a time; in a database, what runs may be another machine's: TestMachines
FILES = ("journal", "sqlite")


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    """SQLite waits for it several times in every round, and nothing here is about power cuts."""

    def connected(connection, _):
        connection.execute("PRAGMA synchronous=OFF")

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", connected)
    yield
    sqlalchemy.event.remove(sqlalchemy.engine.Engine, "connect", connected)


@pytest.fixture(params=["memory", *FILES])
def storage(request, tmp_path):
    if request.param == "memory":
        return InMemoryStorage()
    return tmp_path / "tuning.log" if request.param == "journal" else f"sqlite:///{tmp_path / 'tuning.db'}"


@pytest.fixture(scope="module")
def uninterrupted():
    return record(tune())


class TestRounds:
    def test_one_candidate_of_every_study_at_a_time(self):
        seen = []

        def objective(candidates):
            seen.append(list(candidates))
            return values(candidates)

        studies = tune(objective)
        assert [[(c.study, c.name, c.number) for c in one] for one in seen] == [
            [(i, name, number) for i, name in enumerate(NAMES)] for number in range(6)
        ]
        assert [study.study_name for study in studies] == list(NAMES)
        for i, study in enumerate(studies):
            assert [t.params for t in study.trials] == [one[i].params for one in seen]
            assert [t.value for t in study.trials] == [score(one[i]) for one in seen]
            assert study.best_value == max(score(one[i]) for one in seen)
            for t in study.trials:
                assert t.distributions == SPACE

    def test_seeds_are_the_documented_mix(self):
        seeds = []

        def sampler(seed):
            seeds.append(seed)
            return RandomSampler(seed)

        tune(sampler=sampler, seed=7, rounds=2)
        expected = [
            int(np.random.SeedSequence(7, spawn_key=(study, number)).generate_state(1)[0])
            for number in range(2)
            for study in range(3)
        ]
        assert seeds == expected
        assert len(set(seeds)) == 6

    def test_studies_are_independent(self, uninterrupted):
        assert record(tune(studies=("other name",))) == uninterrupted[:1]
        assert uninterrupted[0] != uninterrupted[1]
        assert record(tune(seed=1)) != uninterrupted

    @pytest.mark.parametrize(("direction", "sign", "best"), [("maximize", 1, max), ("minimize", -1, min)])
    def test_direction(self, direction, sign, best):
        (study,) = tune(lambda cs: [sign * v for v in values(cs)], studies=("one",), direction=direction, rounds=25)
        found = [t.value for t in study.trials]
        assert study.best_value == best(found)
        assert best(np.mean(found[:5]), np.mean(found[-5:])) == np.mean(found[-5:])  # it went the right way

    @pytest.mark.parametrize("make", [tuple, np.array, torch.tensor], ids=["tuple", "numpy", "torch"])
    def test_values_of_other_types(self, make, uninterrupted):
        found = record(tune(lambda cs: make([float(v) for v in values(cs)])))
        expected = uninterrupted if make is not torch.tensor else None
        for study in found:
            assert all(type(value) is float for _, value, _ in study)
        assert expected is None or found == expected

    def test_the_objective_may_do_as_it_likes_with_the_candidates(self, uninterrupted):
        def objective(candidates):
            found = values(candidates)
            for c in candidates:
                c.params.clear()
            candidates.clear()
            return found

        assert record(tune(objective)) == uninterrupted

    def test_queued_candidates_come_first(self):
        storage = InMemoryStorage()
        queued = {"rate": 0.5, "width": 9, "kind": "a"}
        optuna.create_study(study_name="one", storage=storage, direction="maximize").enqueue_trial(queued)
        (study,) = tune(studies=("one",), storage=storage)
        assert study.trials[0].params == queued
        assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 6


class Killed(BaseException):
    """Kills the run where it stands: the handler of errors does not get to tell anything either."""


def interrupted(objective, number, error):
    def wrapped(candidates):
        if candidates[0].number == number:
            raise error
        return objective(candidates)

    return wrapped


class TestResume:
    @pytest.mark.parametrize(("number", "error"), [(0, RuntimeError("full")), (4, KeyboardInterrupt())])
    def test_after_an_error_of_the_objective(self, storage, number, error, uninterrupted):
        with pytest.raises(type(error)) as raised:
            tune(interrupted(values, number, error), storage=storage)
        assert raised.value is error
        assert states(storage) == ["COMPLETE"] * number + ["FAIL"]
        assert record(tune(storage=storage)) == uninterrupted

    def test_between_two_tells(self, storage, uninterrupted, monkeypatch):
        tell, left = search.tell, [2 * len(NAMES) + 1]

        def interrupt(*arguments):
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            tell(*arguments)

        monkeypatch.setattr(search, "tell", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tune(storage=storage)
        counts = [states(storage, name).count("COMPLETE") for name in NAMES]
        assert counts == [3, 2, 2]
        seen = []

        def objective(candidates):
            seen.append([(c.study, c.number) for c in candidates])
            return values(candidates)

        assert record(tune(objective, storage=storage)) == uninterrupted
        assert seen[0] == [(1, 2), (2, 2)]  # the first waits
        assert seen[1:] == [[(i, number) for i in range(3)] for number in (3, 4, 5)]

    @pytest.mark.parametrize("storage", LOCAL, indirect=True)
    def test_when_nothing_could_be_told(self, storage, uninterrupted, monkeypatch):
        def kill(*arguments):
            raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(search, "tell", kill)
            tune(storage=storage)
        assert states(storage) == ["RUNNING"]
        assert record(tune(storage=storage)) == uninterrupted
        assert states(storage) == ["FAIL"] + ["COMPLETE"] * 6

    @pytest.mark.parametrize("storage", LOCAL, indirect=True)
    def test_in_the_middle_of_a_proposal(self, storage, uninterrupted):
        calls = []

        class Interrupting(RandomSampler):
            def sample_independent(self, study, trial, name, distribution):
                calls.append(name)
                if len(calls) == 5:
                    raise KeyboardInterrupt
                return super().sample_independent(study, trial, name, distribution)

        with pytest.raises(KeyboardInterrupt):
            tune(sampler=Interrupting, storage=storage)
        assert [states(storage, name) for name in NAMES] == [["FAIL"], ["RUNNING"], []]
        assert record(tune(storage=storage)) == uninterrupted

    def test_with_the_gaussian_process(self, tmp_path):
        options = {"space": PLANE, "studies": NAMES[:2], "rounds": 6, "startup": 2, "sampler": None}
        expected = record(tune(cliff, **options))
        assert {state for study in expected for _, _, state in study} == set(EVALUATED)
        for number in (2, 4, 5):
            with pytest.raises(KeyboardInterrupt):
                tune(interrupted(cliff, number, KeyboardInterrupt()), storage=tmp_path / "a", **options)
        assert record(tune(cliff, storage=tmp_path / "a", **options)) == expected

    def test_after_the_process_was_killed(self, tmp_path, uninterrupted):
        code = """
import os, signal, sys
import test_tuning

def objective(candidates):
    if candidates[0].number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return test_tuning.values(candidates)

test_tuning.tune(objective, storage="killed.log")
"""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])}
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False)
        assert done.returncode == -9
        assert states(tmp_path / "killed.log") == ["COMPLETE"] * 3 + ["RUNNING"]
        assert record(tune(storage=tmp_path / "killed.log")) == uninterrupted

    @pytest.mark.parametrize("torn", [1, 30, -1])
    def test_after_a_disk_that_was_full(self, tmp_path, uninterrupted, torn):
        """Half a line is dropped before the next is written; all that was complete counts."""
        path = tmp_path / "torn.log"
        tune(storage=path, rounds=3)
        content = path.read_bytes()
        begin = content[:-1].rfind(b"\n") + 1
        path.write_bytes(content[:begin] + content[begin:][:torn])
        for _ in range(2):  # Optuna itself reads it, but once more is written, nobody can
            assert record(tune(storage=path)) == uninterrupted

    def test_a_disk_that_is_full(self, tmp_path, uninterrupted):
        """What the system says when writing, without a disk to fill: a limit on the size of files."""
        path = tmp_path / "full.log"
        code = "import resource, test_tuning\nresource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        code += "test_tuning.tune(storage='full.log')"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("OSError: ")
        assert 1000 < path.stat().st_size <= 4000
        assert path.read_bytes().endswith(b"}\n")
        assert record(tune(storage=path)) == uninterrupted
        assert os.listdir(tmp_path) == ["full.log"]

    def test_lines_that_are_dropped(self, tmp_path):
        path, line = tmp_path / "j", b'{"a": "' + b"x" * 6000 + b'"}\n'
        for good in (b"", line, line * 3):
            for torn in (b"", b"{", line[:-1], line[:5000], b"\0" * 9000, b"\0\n", b"[]\n", b"\xff" + line, b"\n\n"):
                path.write_bytes(good + torn)
                drop_torn_line(str(path))
                assert path.read_bytes() == good

    def test_finished_studies_cost_nothing_and_more_rounds_go_on(self, storage, uninterrupted):
        tune(storage=storage, rounds=4)

        def never(candidates):
            raise AssertionError

        assert record(tune(never, sampler=never, storage=storage, rounds=4)) == [s[:4] for s in uninterrupted]
        assert record(tune(never, sampler=never, storage=storage, rounds=3)) == [s[:4] for s in uninterrupted]
        assert record(tune(storage=storage)) == uninterrupted

    def test_other_studies_are_left_alone(self, storage):
        tune(storage=storage, studies=("other",), rounds=2)
        opened = open_storage(storage)
        optuna.load_study(study_name="other", storage=opened)._storage.create_new_trial(
            opened.get_study_id_from_name("other")
        )
        tune(storage=storage)
        assert states(storage, "other") == ["COMPLETE", "COMPLETE", "RUNNING"]


class TestUselessCandidates:
    @pytest.mark.parametrize("useless", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("direction", ["maximize", "minimize"])
    def test_are_pruned_count_and_are_never_the_best(self, useless, direction):
        def objective(candidates):
            return [useless if c.number in (0, 3) else float(c.number) for c in candidates]

        for study in tune(objective, direction=direction):
            pruned = [t.state is TrialState.PRUNED for t in study.trials]
            assert pruned == [True, False, False, True, False, False]
            assert [t.value for t in study.trials] == [None, 1, 2, None, 4, 5]
            assert study.best_value == (5 if direction == "maximize" else 1)

    @pytest.mark.parametrize("sampler", [tpe, None])
    def test_nothing_else(self, sampler):
        (study,) = tune(lambda cs: [math.nan], studies=("one",), sampler=sampler, startup=2)
        assert [t.state for t in study.trials] == [TrialState.PRUNED] * 6
        assert len({t.params["rate"] for t in study.trials}) == 6
        with pytest.raises(ValueError, match="No trials are completed yet"):
            study.best_trial  # noqa: B018

    def test_the_gaussian_process_learns_from_them(self):
        options = {"studies": NAMES, "rounds": 16, "sampler": None, "seed": 1}
        studies = tune(cliff, PLANE, **options)
        after = [t.state is TrialState.PRUNED for study in studies for t in study.trials[5:]]
        assert 0 < sum(after) < 10  # of 33; optuna.samplers.GPSampler by itself: 27
        mirrored = tune(lambda cs: [-v for v in cliff(cs)], PLANE, direction="minimize", **options)
        assert [[t.params for t in s.trials] for s in mirrored] == [[t.params for t in s.trials] for s in studies]


class TestDefaultSampler:
    def test_finds_the_top_of_a_hill_where_random_search_does_not(self):
        options = {"space": PLANE, "studies": tuple("abcd"), "rounds": 14}
        regret = {
            name: -np.mean([study.best_value for study in tune(hill, sampler=sampler, **options)])
            for name, sampler in (("random", RandomSampler), ("process", None))
        }
        assert regret["process"] < 1e-3 < regret["random"] / 3

    def test_starts_at_random(self):
        (study,) = tune(hill, PLANE, studies=("one",), rounds=4, startup=3, sampler=None, seed=3)
        (chance,) = tune(hill, PLANE, studies=("one",), rounds=4, sampler=RandomSampler, seed=3)
        same = [a.params == b.params for a, b in zip(study.trials, chance.trials, strict=True)]
        assert same == [True, True, True, False]

    def test_global_random_states_are_untouched(self):
        def generators():
            return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

        before = generators()
        studies = tune(cliff, PLANE, rounds=6, startup=1, sampler=None)
        assert {t.state for study in studies for t in study.trials} == set(EVALUATED)
        assert generators() == before


class TestStorages:
    def test_all_give_the_same(self, storage):
        def objective(candidates):
            return [math.nan if c.params["kind"] == "b" else score(c) for c in candidates]

        expected = record(tune(objective))
        assert {state for study in expected for _, _, state in study} == set(EVALUATED)
        assert record(tune(objective, storage=storage)) == expected

    def test_a_path_may_be_text(self, tmp_path, monkeypatch, uninterrupted):
        monkeypatch.chdir(tmp_path)
        tune(storage="here.log")
        assert (tmp_path / "here.log").exists()
        assert record(tune(storage=tmp_path / "here.log")) == uninterrupted

    @pytest.mark.parametrize("stored", [SPACE, {"rate": SPACE["rate"]}, {**SPACE, "more": SPACE["rate"]}])
    @pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.RUNNING])
    def test_another_space(self, storage, stored, state):
        opened = open_storage(storage)
        study = optuna.create_study(study_name=NAMES[1], storage=opened, direction="maximize")
        trial = quietly(study.ask, stored)
        if state is TrialState.COMPLETE:
            study.tell(trial, 1.0)
        other = {**SPACE, "rate": FloatDistribution(1e-3, 2.0, log=True)}
        message = f"space must be {stored!r}, as of the stored study 'second', got {other!r}"
        if state is TrialState.RUNNING:
            message = "space must be .*, as of the stored study 'second', got "
        else:
            message = f"^{re.escape(message)}$"
        with pytest.raises(ValueError, match=message):
            tune(space=other, storage=storage)
        assert optuna.get_all_study_names(opened) == [NAMES[1]]
        assert states(storage, NAMES[1]) == [state.name]

    def test_another_direction(self, storage):
        optuna.create_study(study_name=NAMES[1], storage=open_storage(storage), direction="minimize")
        message = "^direction must be 'minimize', as of the stored study 'second', got 'maximize'$"
        with pytest.raises(ValueError, match=message):
            tune(storage=storage)
        assert optuna.get_all_study_names(open_storage(storage)) == [NAMES[1]]


class TestJobs:
    @pytest.mark.parametrize("storage", FILES, indirect=True)
    def test_processes_give_the_same(self, storage):
        options = {"space": PLANE, "rounds": 4, "startup": 2, "sampler": None}
        expected = record(tune(hill, **options))
        with pytest.raises(RuntimeError):
            tune(interrupted(hill, 2, RuntimeError()), storage=storage, **options)
        assert record(tune(hill, storage=storage, jobs=2, **options)) == expected

    @pytest.mark.parametrize("storage", FILES, indirect=True)
    @pytest.mark.parametrize("jobs", [2, 8])
    def test_the_users_backend(self, storage, jobs, uninterrupted):
        threads, filters, level = set(), list(warnings.filters), logging.getLogger("optuna").level

        def objective(candidates):
            threads.add(threading.current_thread().name)
            assert len(candidates) == (1 if jobs == 8 or candidates[0].study == 1 else 2)
            return values(candidates)

        with joblib.parallel_config("threading"):
            assert record(tune(objective, storage=storage, jobs=jobs)) == uninterrupted
        assert len(threads) == min(jobs, 3)
        assert (warnings.filters, logging.getLogger("optuna").level) == (filters, level)

    def test_an_error_of_a_worker(self, tmp_path, uninterrupted):
        def objective(candidates):
            if candidates[0].study == 1:
                while not (tmp_path / "busy").exists():
                    time.sleep(0.02)
                raise RuntimeError("second")
            if candidates[0].number == 2:
                (tmp_path / "busy").touch()
                time.sleep(100)
            return values(candidates)

        with pytest.raises(RuntimeError, match="^second$"):
            tune(objective, storage=tmp_path / "a", jobs=2)
        assert states(tmp_path / "a", NAMES[2]) == ["COMPLETE", "COMPLETE", "RUNNING"]  # that worker was killed
        assert record(tune(storage=tmp_path / "a")) == uninterrupted

    @pytest.mark.parametrize("storage", [None, InMemoryStorage()])
    def test_a_storage_of_one_process(self, storage):
        message = f"storage must be a path or a URL if jobs > 1, got {storage!r}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            tune(storage=storage, jobs=2)

    def test_without_joblib(self, monkeypatch, tmp_path):
        monkeypatch.setattr(plan, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match=r'^jobs > 1 needs joblib: pip install "bayesadam\[tune\]"$'):
            tune(storage=tmp_path / "a", jobs=2)
        assert not list(tmp_path.iterdir())


class TestMachines:
    """Several runs on the same studies in a database; another machine is another connection to it."""

    def test_never_do_more_than_the_rounds(self, tmp_path):
        storage = f"sqlite:///{tmp_path / 'shared.db'}"
        tune(storage=storage, rounds=1)
        counts, errors, both = [0, 0], [], threading.Barrier(2, timeout=60)

        def work(machine):
            def objective(candidates):
                if not counts[machine]:
                    both.wait()
                counts[machine] += len(candidates)
                return values(candidates)

            try:
                found = tune(objective, sampler=RandomSampler, storage=storage, rounds=4)
                assert [len(one) for one in record(found)] == [4, 4, 4]
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(machine,)) for machine in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert min(counts) > 0
        assert sum(counts) == 9
        rates = [[params["rate"] for params, _, _ in study] for study in record(tune(storage=storage, rounds=4))]
        assert all(len(set(one)) == 4 for one in rates)

    def test_two_that_ask_at_the_same_time_do_not_draw_from_the_same_seed(self, tmp_path):
        storage = f"sqlite:///{tmp_path / 'shared.db'}"
        other = optuna.create_study(study_name="one", storage=storage, direction="maximize")
        seeds, theirs, numbers = [], [], []

        def sampler(seed):
            if not theirs:  # after our look, before our trial is made
                theirs.append(quietly(other.ask))
            seeds.append(seed)
            return RandomSampler(seed)

        def objective(candidates):
            numbers.append(candidates[0].number)
            if candidates[0].number == 2:
                other.tell(theirs[0], 5.0)
            return [1.0]

        (study,) = tune(
            objective,
            {"rate": SPACE["rate"]},
            studies=("one",),
            sampler=sampler,
            rounds=4,
            storage=storage,
        )
        assert [t.state.name for t in study.trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
        assert numbers == [1, 2, 3]
        assert len(seeds) == len(set(seeds)) == 4

    def test_a_run_that_died_is_resumed_when_it_gives_no_sign_of_life(self, tmp_path, uninterrupted, monkeypatch):
        storage = f"sqlite:///{tmp_path / 'shared.db'}"

        def kill(*arguments):
            raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(search, "tell", kill)
            tune(storage=storage)
        assert [states(storage, name) for name in NAMES] == [["RUNNING"]] * 3
        later = time.time() + 2.0 * signs.INTERVAL
        monkeypatch.setattr(signs.time, "time", lambda: later)
        assert record(tune(storage=storage)) == uninterrupted

    def test_the_last_to_work_waits_for_the_others(self, tmp_path, monkeypatch):
        """Also for one that died before its first sign of life."""
        monkeypatch.setattr(signs, "INTERVAL", 0.3)
        storage = f"sqlite:///{tmp_path / 'shared.db'}"
        other = optuna.create_study(study_name="one", storage=storage, direction="maximize")
        quietly(other.ask, SPACE)
        started = time.monotonic()
        (study,) = tune(studies=("one",), storage=storage, rounds=3)
        assert time.monotonic() - started > 0.6
        assert [t.state.name for t in study.trials] == ["FAIL"] + ["COMPLETE"] * 3

    def test_signs_of_life(self, tmp_path, monkeypatch):
        monkeypatch.setattr(signs, "INTERVAL", 0.2)
        storage, seen = f"sqlite:///{tmp_path / 'shared.db'}", []

        def objective(candidates):
            for _ in range(2):
                before, deadline = time.time(), time.monotonic() + 60
                while True:  # until all have given one since
                    trials = [optuna.load_study(study_name=name, storage=storage).trials[0] for name in NAMES]
                    times = [trial.user_attrs.get("alive", 0.0) for trial in trials]
                    if min(times) > before or time.monotonic() > deadline:
                        break
                    time.sleep(0.05)
                seen.append(min(times) > before)
            return values(candidates)

        before = set(threading.enumerate())
        tune(objective, storage=storage, rounds=1)
        assert seen == [True, True]
        assert set(threading.enumerate()) == before

    @pytest.mark.parametrize("storage", LOCAL, indirect=True)
    def test_one_run_at_a_time_needs_no_signs_of_life(self, storage):
        assert not any(trial.user_attrs for study in tune(storage=storage, rounds=1) for trial in study.trials)

    def test_a_trial_that_others_gave_up_is_left_as_it_is(self, tmp_path):
        storage = f"sqlite:///{tmp_path / 'shared.db'}"
        calls = []

        def objective(candidates):
            calls.append(candidates[0].number)
            if len(calls) == 2:
                optuna.load_study(study_name="one", storage=storage).tell(1, state=TrialState.FAIL)
            return values(candidates)

        (study,) = tune(objective, studies=("one",), storage=storage, rounds=3)
        assert calls == [0, 1, 1, 2]
        assert [t.state.name for t in study.trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
        assert study.trials[1].params == study.trials[2].params


def quietly(ask, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ask(*arguments)


class TestMessages:
    @pytest.mark.parametrize(
        ("name", "wrong", "rule"),
        [
            *[("rounds", wrong, "a whole number of at least 1") for wrong in (0, -1, 2.0, "3", None)],
            *[("startup", wrong, "a whole number of at least 0") for wrong in (-1, 1.5, None)],
            *[("jobs", wrong, "a whole number of at least 1") for wrong in (0, 1.0)],
            *[("seed", wrong, "an integer in [0, 2**64)") for wrong in (-1, 2**64, 0.0, None)],
            *[("studies", wrong, "at least one name, each once") for wrong in ((), ("a", "a"), "ab", (1,), 3)],
            *[("direction", wrong, "'maximize' or 'minimize'") for wrong in ("up", None)],
            ("sampler", 3, "None or a function of a seed"),
            *[
                ("space", wrong, "a mapping of at least one name to an Optuna distribution")
                for wrong in ({}, {"x": 1.0}, {**SPACE, "x": (0, 1)}, ["x"])
            ],
            *[
                ("storage", wrong, "None, a path in a folder that exists, a URL or an Optuna storage")
                for wrong in ("no/such/folder.log", Path("/no/such"), "", ".", 3)
            ],
        ],
        ids=repr,
    )
    def test_arguments(self, name, wrong, rule, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        options = {"storage": "tuning.log", name: wrong}
        with pytest.raises(ValueError, match=f"^{re.escape(f'{name} must be {rule}, got {wrong!r}')}$"):
            tune(**options)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("wrong", [[], [1.0, 2.0], [1.0] * 4, None, 1.0, [1.0, 2.0, "x"], [1.0, 2.0, None]])
    def test_what_the_objective_returns(self, wrong):
        storage = InMemoryStorage()
        message = f"objective must return 3 numbers, one per candidate, got {wrong!r}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            tune(lambda cs: wrong, storage=storage)
        assert states(storage) == ["FAIL"]

    def test_without_optuna(self, monkeypatch):
        for name in [name for name in sys.modules if name.split(".")[0] == "optuna"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "optuna", None)
        monkeypatch.delitem(sys.modules, "bayesadam.tuning")
        with pytest.raises(ImportError, match=r'^bayesadam.tuning needs optuna: pip install "bayesadam\[tune\]"$'):
            importlib.import_module("bayesadam.tuning")


class TestQuiet:
    @pytest.mark.parametrize(
        ("level", "error"), [(logging.INFO, None), (logging.ERROR, None), (logging.NOTSET, RuntimeError)]
    )
    def test_no_notes_no_warnings_and_all_as_before(self, level, error, storage):
        logger, records = logging.getLogger("optuna"), []
        handler = logging.Handler()
        handler.emit = records.append
        before = logger.level
        logger.addHandler(handler)
        logger.setLevel(level)

        def sampler(seed):
            assert logger.level == max(level, logging.WARNING)
            return tpe(seed)

        def objective(candidates):
            assert logger.level == level
            assert warnings.filters == filters
            if error:
                raise error
            return values(candidates)

        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                filters = list(warnings.filters)
                if error:
                    with pytest.raises(error):
                        tune(objective, sampler=sampler, storage=storage, rounds=1)
                else:
                    tune(objective, sampler=sampler, storage=storage, rounds=2)
                assert warnings.filters == filters
            assert logger.level == level
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)
        assert not warned
        assert not records


class TestProgress:
    @pytest.fixture
    def bars(self, monkeypatch):
        """Of every bar: the total, and the amounts and notes that it got."""
        made = []

        @contextmanager
        def bar(description, total, progress):
            assert description == "tuning"
            moves = []
            made.append((total, moves))
            yield lambda amount=1.0, note=None: moves.append((amount, note))

        monkeypatch.setattr(search, "progress_bar", bar)
        return made

    def test_counts_the_trials_to_be_done(self, bars, tmp_path):
        def objective(candidates):
            return [c.study + c.number for c in candidates]

        with pytest.raises(RuntimeError):
            tune(interrupted(objective, 2, RuntimeError()), storage=tmp_path / "a")
        tune(objective, storage=tmp_path / "a")
        tune(objective, storage=tmp_path / "a")
        assert bars == [
            (18, [(0, ""), (3, "median best 1"), (3, "median best 2")]),
            (12, [(0, "median best 2"), *[(3, f"median best {best}") for best in (3, 4, 5, 6)]]),
            (0, [(0, "median best 6")]),
        ]

    def test_the_best_of_one_study(self, bars):
        (study,) = tune(lambda cs: [-v for v in values(cs)], studies=("one",), direction="minimize")
        assert bars[0][1][-1] == (1, f"best {study.best_value:.4g}")

    def test_the_work_of_other_processes(self, bars, tmp_path, monkeypatch):
        monkeypatch.setattr(search, "_LOOK", 0.05)

        def objective(candidates):
            time.sleep(0.2)
            return values(candidates)

        with joblib.parallel_config("threading"):
            tune(objective, storage=tmp_path / "a", jobs=2)
        total, moves = bars[0]
        assert sum(amount for amount, _ in moves) == total == 18
        assert sum(amount > 0 for amount, _ in moves) > 3
        assert moves[-1][1].startswith("median best")

    def test_on_the_screen(self, capsys):
        tune(progress=True)
        assert re.search("tuning.*100%.*median best [0-9.]+", capsys.readouterr().err)
        tune(progress=False)
        assert capsys.readouterr() == ("", "")
