"""The runner of experiments: nothing finished is lost or redone, the rest continues, and what people see."""

import io
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from rich.console import Console

from experiments import Context, Number, Result, Table, Unit, published, registry, replacing
from experiments import report as pages
from experiments.commands import app
from experiments.display import Bars, Log, Watch, duration
from experiments.experiment import in_order
from experiments.results import Store, dumps, finished
from experiments.runner import run
from experiments.schedule import Schedule
from experiments.worker import Meter, State
from toy import SOURCE, Toy

ROOT = Path(__file__).parents[2]


class Bench:
    """A toy in a folder of its own."""

    def __init__(self, root):
        self.root, self.toy = root, Toy(root)
        self.results, self.checkpoints = root / "toy" / "results", root / "runs" / "experiments" / "toy"

    def units(self, *units):
        (self.root / "toy.json").write_text(json.dumps(units))
        return self

    def run(self, jobs=1, **options):
        return run(self.toy, jobs=jobs, runs=self.root / "runs" / "experiments", **options)

    def executed(self):
        """Keys of the units that ran since this was asked last, in the order in which they began."""
        path = self.root / "runs.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        self.lines = [line.split() for line in lines]
        return [key for key, *_ in self.lines]

    def found(self, key):
        return json.loads((self.results / f"{key}.json").read_text())

    def values(self):
        return {path.stem: self.found(path.stem)["result"] for path in self.results.glob("*.json")}

    def process(self, *arguments):
        """The command line in a process group of its own."""
        code = (
            "from experiments import registry\nregistry.EXPERIMENTS = {'toy': 'toy'}\n"
            "from experiments.commands import app\napp(prog_name='python -m experiments')"
        )
        paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": paths, "TERM": "dumb", "COLUMNS": "120"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture
def command(bench, capsys, monkeypatch):
    """Runs a command on the toy in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(bench.root)
    monkeypatch.setattr("toy.EXPERIMENT", bench.toy)
    monkeypatch.setattr(registry, "EXPERIMENTS", {"toy": "toy"})
    handler = signal.getsignal(signal.SIGTERM)

    def command(*arguments):
        with pytest.raises(SystemExit) as stopped:
            app([str(argument) for argument in arguments])
        return stopped.value.code, *capsys.readouterr()

    yield command
    signal.signal(signal.SIGTERM, handler)


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestUnit:
    @pytest.mark.parametrize("key", ["", "a/b", "../a", ".a", "a b", "ä", "a\n"])
    def test_keys_are_file_names(self, key):
        with pytest.raises(ValueError, match=r"key must be letters, digits, '\.', '_' and '-', got "):
            Unit(key)

    @pytest.mark.parametrize("cost", [0.0, -1.0, math.inf, math.nan])
    def test_cost(self, cost):
        with pytest.raises(ValueError, match="cost must be positive and finite, got "):
            Unit("a", cost=cost)

    @pytest.mark.parametrize("config", [{"a": math.nan}, {"a": {1}}, {1: "a"}, ["a"], {"a": torch.ones(1)}])
    def test_config(self, config):
        with pytest.raises(ValueError, match=r"config must be JSON \(finite numbers, keys that are str\), got "):
            Unit("a", config)

    def test_needed_ones_come_first_and_the_rest_stays(self):
        units = [Unit("c", needs=("d", "b")), Unit("a"), Unit("b", needs=("e",)), Unit("d"), Unit("e")]
        assert [unit.key for unit in in_order(units)] == ["d", "e", "b", "c", "a"]

    @pytest.mark.parametrize(
        ("units", "message"),
        [
            ([Unit("a"), Unit("A")], "key must be unique, whatever the case of its letters, got 'A' again"),
            ([Unit("a", needs=("b",))], "needs of 'a' must be keys of units, got 'b'"),
            (
                [Unit("a", needs=("c",)), Unit("b", needs=("a",)), Unit("c", needs=("b",))],
                "needs must not go in circles, got a -> c -> b -> a",
            ),
            ([Unit("a", needs=("a",))], "needs must not go in circles, got a -> a"),
        ],
    )
    def test_units_that_contradict_each_other(self, units, message):
        with pytest.raises(ValueError, match=message):
            in_order(units)


class TestResults:
    def test_the_file(self, bench):
        bench.units({"key": "a", "config": {"steps": 4, "list": [1, 2]}}, {"key": "b", "needs": ["a"]}).run()
        found = bench.found("a")
        assert list(found) == [
            *("experiment", "unit", "config", "needs", "result", "seconds", "cpu_seconds", "versions", "machine"),
            "finished",
        ]
        assert (found["experiment"], found["unit"], found["needs"]) == ("toy", "a", {})
        assert found["config"] == {"steps": 4, "list": [1, 2]}
        assert found["result"] == {"walk": [0, 75, 5700, 34353], "got": {}}
        assert 0 <= found["seconds"] < 20
        assert 0 <= found["cpu_seconds"] < 20
        assert found["versions"]["torch"] == torch.__version__
        assert {"python", "numpy", "bayesadam"} < set(found["versions"])
        assert found["machine"]["cpus"] == os.cpu_count()
        assert found["finished"].endswith("+00:00")
        assert list(bench.found("b")["needs"]) == ["a"]
        assert not list(bench.results.glob(".tmp*"))

    def test_lists_of_numbers_are_on_one_line(self):
        value = {"a": [1, 2.5, None], "b": [[1, 2], []], "c": {}, "d": [{"e": "é\n"}], "f": True}
        text = dumps(value)
        assert json.loads(text) == value
        assert text == (
            '{\n "a": [1, 2.5, null],\n "b": [\n  [1, 2],\n  []\n ],\n "c": {},\n "d": [\n  {\n'
            '   "e": "\\u00e9\\n"\n  }\n ],\n "f": true\n}'
        )

    @pytest.mark.parametrize("value", [math.nan, [1.0, math.inf], {"a": -math.inf}])
    def test_json_is_strict(self, value):
        with pytest.raises(ValueError, match="Out of range float values"):
            dumps(value)

    def save(self, tmp_path, result):
        store, unit = Store("toy", tmp_path / "results", tmp_path / "runs"), Unit("a")
        lost = store.save(unit, {}, result, 1.0, 2.0)
        return lost, store.load(unit, {}).result

    def test_what_is_not_finite_is_null_and_told(self, tmp_path):
        lost, result = self.save(
            tmp_path, {"a": math.nan, "b": {"c": [1.0, -math.inf]}, "d": torch.tensor([1, math.inf])}
        )
        assert lost == ["a", "b.c[1]", "d[1]"]
        assert result == {"a": None, "b": {"c": [1.0, None]}, "d": [1.0, None]}

    def test_arrays_and_full_precision(self, tmp_path):
        x = 0.1 + 0.2
        result = {
            "a": np.float32(0.5),
            "b": np.arange(2),
            "c": torch.tensor([[x]], dtype=torch.float64),
            "d": (x, True),
        }
        lost, found = self.save(tmp_path, result)
        assert not lost
        assert found == {"a": 0.5, "b": [0, 1], "c": [[x]], "d": [x, True]}
        assert found["d"][1] is True

    @pytest.mark.parametrize(
        ("result", "message"),
        [
            ([1], r"result must be a dict, got \[1\]"),
            (None, "result must be a dict, got None"),
            ({"a": [{1}]}, r"result must be JSON, got \{1\} in a\[0\]"),
            ({"a": {1: 2}}, "keys of result must be str, got 1 in a"),
        ],
    )
    def test_what_is_no_json_is_refused(self, tmp_path, result, message):
        with pytest.raises(TypeError, match=message):
            self.save(tmp_path, result)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("text", ["<<<<<<< HEAD", "{}", "[1]"])
    def test_a_broken_file_is_no_unfinished_unit(self, bench, text):
        bench.units({"key": "a"}).run()
        (bench.results / "a.json").write_text(text)
        with pytest.raises(ValueError, match=r"toy/results/a\.json must be the result of a unit, got "):
            bench.run()
        assert (bench.results / "a.json").read_text() == text

    def test_a_file_is_replaced_whole_or_not_at_all(self, tmp_path):
        path = tmp_path / "new" / "a.txt"
        with replacing(path) as temporary:
            temporary.write_text("old")
            assert not path.exists()
            assert temporary.suffix == ".txt"
        with pytest.raises(RuntimeError, match="half"), replacing(path) as temporary:
            temporary.write_text("ne")
            raise RuntimeError("half")
        assert path.read_text() == "old"
        assert list(path.parent.iterdir()) == [path]


class TestRun:
    def test_results_are_handed_over_in_order(self, bench):
        bench.units({"key": "c", "needs": ["b", "aa"]}, {"key": "b", "needs": ["aa"]}, {"key": "aa"})
        summary = bench.run()
        assert (summary.finished, summary.units, summary.failed) == (3, 3, {})
        assert bench.executed() == ["aa", "b", "c"]
        last = {key: value["walk"][-1] for key, value in bench.values().items()}
        assert bench.values()["c"]["got"] == {"b": last["b"], "aa": last["aa"]}
        assert last["b"] != last["aa"]
        assert not list(bench.checkpoints.glob("*/"))

    def test_the_longest_way_to_the_end_first(self, bench):
        bench.units(
            {"key": "short"}, {"key": "long", "cost": 5}, {"key": "first", "cost": 0.5}, {"key": "middle", "cost": 2},
            {"key": "second", "cost": 5, "needs": ["first"]},
        )  # fmt: skip
        bench.run()
        assert bench.executed() == ["first", "long", "second", "middle", "short"]

    def test_finished_units_are_not_redone(self, bench):
        bench.units({"key": "a"}, {"key": "b"}).run()
        before = bench.found("a")
        bench.executed()
        bench.units({"key": "a"}, {"key": "b"}, {"key": "c"}).run()
        assert bench.executed() == ["c"]
        assert bench.found("a") == before

    def test_a_changed_config_redoes_what_depends_on_it(self, bench):
        rest = {"key": "b", "needs": ["a"]}, {"key": "c", "needs": ["b"]}, {"key": "d"}
        bench.units({"key": "a", "config": {"steps": 3}}, *rest).run()
        assert len(bench.executed()) == 4
        bench.units({"key": "a", "config": {"steps": 4}}, *rest)
        assert finished(in_order(bench.toy.units()), Store.of(bench.toy)).keys() == {"d"}
        bench.run()
        assert bench.executed() == ["a", "b", "c"]
        bench.units({"key": "a", "config": {"steps": 4, "comment": "same result"}}, *rest).run()
        assert bench.executed() == ["a"]
        assert finished(in_order(bench.toy.units()), Store.of(bench.toy)).keys() == {"a", "b", "c", "d"}

    def test_one_is_not_one_point_nought(self, bench):
        bench.units({"key": "a", "config": {"lr": 1}}).run()
        bench.units({"key": "a", "config": {"lr": True}}).run()
        assert bench.executed() == ["a", "a"]

    def test_only(self, bench):
        units = {"key": "va-boston"}, {"key": "vb-boston", "needs": ["va-boston"]}, {"key": "va-wine"}, {"key": "x"}
        assert bench.units(*units).run(only=["vb", "x"]).finished == 3
        assert sorted(bench.executed()) == ["va-boston", "vb-boston", "x"]
        with pytest.raises(ValueError, match="--only must be part of the key of a unit, got 'vc'"):
            bench.run(only=["va", "vc"])
        assert bench.executed() == []

    def test_optional_units_run_if_the_beginning_of_their_key_is_asked_for(self, bench, command):
        bench.units({"key": "a-wine"}, {"key": "long-wine", "optional": True}, {"key": "long-x", "optional": True})
        summary = bench.run()
        assert (summary.finished, summary.units) == (1, 1)
        bench.run(only=["wine"])
        assert bench.executed() == ["a-wine"]
        with pytest.raises(ValueError, match="--only must be part of the key of a unit, got '-x'"):
            bench.run(only=["-x"])
        summary = bench.run(only=["long-w"])
        assert bench.executed() == ["long-wine"]
        assert (summary.finished, summary.units) == (1, 1)
        assert "1 of 1" in command("list")[1]
        assert command("report", "toy")[0] == 0
        page = (bench.toy.folder / "README.md").read_text()
        assert "Not finished" not in page
        assert "long-wine" in page

    def test_fresh(self, bench):
        units = {"key": "a"}, {"key": "ab", "needs": ["a"]}, {"key": "c", "config": {"do": "fail", "steps": 3}}
        bench.units(*units).run()
        (bench.checkpoints / "c" / "walk.json").write_text("[0, 1]")
        bench.executed()
        bench.run(fresh=True, only=["ab", "c"])
        assert sorted(bench.executed()) == ["ab", "c"]
        assert sorted(bench.lines)[1][1] == "1"  # without the checkpoint

    def test_a_unit_that_fails(self, bench):
        bench.units(
            {"key": "bad", "cost": 9, "config": {"do": "fail"}}, {"key": "good"},
            {"key": "after", "needs": ["good", "bad"]}, {"key": "later", "needs": ["after"]},
        )  # fmt: skip
        summary = bench.run()
        assert bench.executed() == ["bad", "good"]
        assert summary.finished == 1
        assert summary.failed == {
            "bad": "ValueError: no luck",
            "after": "not run: it needs 'bad', which failed",
            "later": "not run: it needs 'after', which failed",
        }
        error = bench.checkpoints / "bad" / "error.txt"
        assert error.read_text().startswith("Traceback")
        assert "ValueError: no luck\nat all" in error.read_text()
        bench.units({"key": "bad"}, {"key": "good"}, {"key": "after", "needs": ["good", "bad"]})
        assert bench.run().failed == {}
        assert sorted(bench.executed()) == ["after", "bad"]
        assert not error.exists()

    @pytest.mark.parametrize("result", ["[1]", "null"])
    def test_a_result_that_is_none(self, bench, result):
        summary = bench.units({"key": "a", "config": {"do": "return", "json": result}}).run()
        assert summary.failed["a"].startswith("TypeError: result must be a dict, got ")
        assert not bench.results.exists()

    def test_not_finite_is_told(self, bench):
        summary = bench.units({"key": "a", "config": {"do": "return", "json": '{"x": [NaN, 1]}'}}).run()
        assert summary.not_finite == {"a": ("x[0]",)}

    def test_checkpoints_live_as_long_as_the_config(self, bench):
        unit = {"key": "a", "config": {"do": "fail"}}
        walk = bench.checkpoints / "a" / "walk.json"
        bench.units(unit).run()
        walk.write_text("[0, 1, 2, 3]")
        bench.run()
        assert (bench.executed(), [line[1] for line in bench.lines]) == (["a", "a"], ["1", "4"])
        bench.units({**unit, "cost": 2.0}).run()
        assert (bench.executed(), bench.lines[0][1]) == (["a"], "4")
        bench.units({"key": "a", "config": {"do": "fail", "steps": 7}}).run()
        assert (bench.executed(), bench.lines[0][1]) == (["a"], "1")
        assert not walk.exists()

    def test_one_run_at_a_time(self, bench):
        class Twice(Toy):
            def run(self, unit, context):
                bench.run()

        bench.units({"key": "a"})
        summary = run(Twice(bench.root), jobs=1, runs=bench.root / "runs" / "experiments")
        assert summary.failed == {"a": "ValueError: 'toy' must be run by one process at a time, got a second"}
        assert bench.run().finished == 1

    def test_a_stop_in_this_process(self, bench):
        class Stopped(Toy):
            def run(self, unit, context):
                if unit.key == "b":
                    raise KeyboardInterrupt
                return super().run(unit, context)

        bench.units({"key": "a", "cost": 2}, {"key": "b"})
        with pytest.raises(KeyboardInterrupt):
            run(Stopped(bench.root), jobs=1, runs=bench.root / "runs" / "experiments")
        assert bench.values().keys() == {"a"}
        assert bench.run().finished == 2


class TestSchedule:
    """What is next after a worker died, and with it the pool."""

    DIED = "its worker process died (killed, perhaps for want of memory)"

    @pytest.fixture
    def schedule(self, bench):
        """The first three of five units run."""
        units = [Unit(key, needs=("a",) if key == "e" else ()) for key in "abcde"]
        schedule = Schedule(units, {}, Store.of(bench.toy, bench.root))
        assert self.take(schedule, 3) == ["a", "b", "c"]
        return schedule

    def take(self, schedule, number=1):
        return [unit and unit.key for unit in (schedule.next() for _ in range(number))]

    def test_suspects_run_alone_at_the_end(self, schedule):
        schedule.crashed({"a", "b"})
        assert self.take(schedule, 3) == ["c", "d", None]
        schedule.ended("d", "failed")
        assert self.take(schedule) == [None]
        schedule.ended("c", "failed")
        assert self.take(schedule, 2) == ["a", None]
        schedule.crashed({"a"})
        assert schedule.failed["a"] == self.DIED
        assert schedule.failed["e"] == "not run: it needs 'a', which failed"
        assert self.take(schedule, 2) == ["b", None]
        schedule.ended("b", "other")
        assert schedule.failed["b"] == "other"
        assert not schedule.waiting

    def test_one_suspect_is_the_one(self, schedule):
        schedule.crashed({"b"})
        assert schedule.failed == {"b": self.DIED}
        assert self.take(schedule, 4) == ["a", "c", "d", None]

    def test_a_crash_before_anything_started_ends_some_day(self, schedule):
        for _ in range(20):
            schedule.crashed(set())
            self.take(schedule, 5)
        assert schedule.failed.keys() == {"a", "b", "c", "d", "e"}


class TestParallel:
    UNITS = (
        *({"key": f"u{'u' * i}", "config": {"steps": 4 + i}, "cost": 1 + i} for i in range(4)),
        {"key": "all", "needs": ["u", "uuuu"]},
    )

    def test_equals_serial(self, bench, tmp_path):
        other = tmp_path / "serial"
        other.mkdir()
        serial = Bench(other).units(*self.UNITS)
        serial.run()
        summary = bench.units(*self.UNITS).run(jobs=2)
        assert (summary.finished, summary.failed) == (5, {})
        assert bench.values() == serial.values()
        assert bench.found("all")["needs"] == serial.found("all")["needs"]
        assert sorted(bench.executed()) == sorted(serial.executed())
        assert {int(pid) for *_, pid in serial.lines} == {os.getpid()}
        assert os.getpid() not in {int(pid) for *_, pid in bench.lines}
        assert {threads for _, _, threads, _ in bench.lines} == {"1"}

    def test_classes_that_no_module_has(self, bench):
        class Local(Toy):
            def run(self, unit, context):
                return {"pid": os.getpid(), "deaf": signal.getsignal(signal.SIGINT) == signal.SIG_IGN}

        bench.units({"key": "a"}, {"key": "b"})
        assert run(Local(bench.root), jobs=2, runs=bench.root / "runs" / "experiments").failed == {}
        assert os.getpid() not in {value["pid"] for value in bench.values().values()}
        assert all(value["deaf"] for value in bench.values().values())
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler

    def test_failures_and_dead_workers_harm_no_other(self, bench):
        bench.units(
            {"key": "killer", "cost": 3, "config": {"do": "die"}}, {"key": "bad", "config": {"do": "fail"}},
            {"key": "a", "cost": 3}, {"key": "b"}, {"key": "after", "needs": ["killer"]},
        )  # fmt: skip
        summary = bench.run(jobs=2)
        assert summary.finished == 2
        assert summary.failed == {
            "killer": "its worker process died (killed, perhaps for want of memory)",
            "after": "not run: it needs 'killer', which failed",
            "bad": "ValueError: no luck",
        }
        assert bench.values().keys() == {"a", "b"}

    def test_the_backend_of_the_user(self, bench):
        bench.units({"key": "a"}, {"key": "b"}, {"key": "c", "needs": ["a", "b"]})
        with joblib.parallel_config(backend="threading", n_jobs=2):
            assert bench.run(jobs=None).finished == 3
        bench.executed()
        assert {int(pid) for *_, pid in bench.lines} == {os.getpid()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Results of a run that nobody stopped."""
    bench = Bench(tmp_path_factory.mktemp("whole")).units(*TestKilled.UNITS)
    (bench.root / "go").touch()
    bench.run()
    return bench.values()


class TestKilled:
    UNITS = (
        {"key": "quick", "cost": 4, "config": {"steps": 4}},
        {"key": "slow", "cost": 3, "config": {"steps": 9, "wait": 5}},
        {"key": "last", "needs": ["quick", "slow"]},
    )

    @pytest.mark.parametrize(
        ("number", "group", "jobs"),
        [(signal.SIGKILL, False, 2), (signal.SIGINT, True, 2), (signal.SIGTERM, False, 1)],
    )
    def test_a_killed_run_continues(self, bench, whole, number, group, jobs):
        process = bench.units(*self.UNITS).process("run", "toy", "--jobs", jobs)
        try:
            wait_for(lambda: (bench.root / "slow.waits").exists() and (bench.results / "quick.json").exists())
            (os.killpg if group else os.kill)(process.pid, number)
            _, err = process.communicate(timeout=60)
            assert sorted(bench.executed()) == ["quick", "slow"]
            wait_for(lambda: not any(alive(pid) for *_, pid in bench.lines), seconds=20)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if number != signal.SIGKILL:
            assert process.returncode == 130
            assert err.splitlines()[-1] == (
                "toy: stopped with 1 of 3 units finished; `python -m experiments run toy` continues where they were"
            )
            assert "Traceback" not in err
        assert bench.values() == {"quick": whole["quick"]}
        quick = bench.found("quick")
        (bench.root / "go").touch()
        summary = bench.run()
        assert (summary.finished, summary.failed) == (3, {})
        assert bench.executed() == ["slow", "last"]
        assert bench.lines[0][1] == "5"
        assert bench.values() == whole
        assert bench.found("quick") == quick


class TestDisplay:
    def watch(self, bench, screen=None):
        """Of 10 shares of work, 2 were finished before and 3 since; of the 4 that run, 1/4 was done before, 3/4 now."""
        units = [Unit("a", cost=2.0), Unit("b", cost=3.0), Unit("c", cost=4.0), Unit("d", cost=1.0)]
        schedule = Schedule(units, {"a": None}, Store.of(bench.toy, bench.root))
        assert [schedule.next().key, schedule.next().key] == ["c", "b"]
        del schedule.running["b"]
        schedule.results["b"] = None
        watch = Watch(screen or Log("toy"), schedule, schedule.store, "me")
        watch.began -= 100.0
        State("me", 0.25, 0.75, "fold 3", 1.0, 1.0).write(schedule.store.folder("c"))
        return watch

    def test_the_whole(self, bench, monkeypatch, capsys):
        monkeypatch.setattr(Log, "EVERY", 0.0)
        self.watch(bench).look()
        first, second = capsys.readouterr().err.splitlines()
        assert first.endswith(" toy: c started at 25%")
        # 5 shares in 100 s, 2 shares to go
        assert second.endswith(" toy: 80% done: 2 of 4 units, 1 running, about 40 s left (c 75% fold 3)")

    def test_states_of_other_runs_are_ignored(self, bench, monkeypatch, capsys):
        monkeypatch.setattr(Log, "EVERY", 0.0)
        watch = self.watch(bench)
        watch.run = "you"
        watch.look()
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(" toy: 50% done: 2 of 4 units")

    def test_a_log_is_silent_for_a_minute(self, bench, capsys):
        screen = Log("toy")
        watch = self.watch(bench, screen)
        for _ in range(3):
            watch.look()
        assert len(capsys.readouterr().err.splitlines()) == 1
        screen.written -= 61
        for _ in range(3):
            watch.look()
        assert len(capsys.readouterr().err.splitlines()) == 1

    def test_bars(self, bench):
        console = Console(file=io.StringIO(), force_terminal=True, width=100, height=5, color_system=None)
        bars = Bars("toy", console)
        watch = self.watch(bench, bars)
        watch.look()
        bars.progress.refresh()
        text = console.file.getvalue()
        assert "2 of 4 units, 1 running, about 40 s left" in text
        assert " 80% " in text
        assert "  c " in text
        assert "fold 3" in text
        bars.show({f"unit{i}": State("me", 0.0, 0.5, "[bold]") for i in range(9)}, 0.5, "text")
        console.file.truncate(0)
        bars.progress.refresh()
        text = console.file.getvalue()
        assert "[bold]" in text
        assert ("unit2" in text, "unit3" in text) == (True, False)
        bars.show({}, 0.5, "text")
        assert len(bars.progress.tasks) == 1
        bars.close()

    def test_the_log_of_a_run(self, bench, capsys):
        bench.units({"key": "a", "cost": 2}, {"key": "b", "config": {"do": "fail"}}).run()
        lines = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
        assert [line.partition(" s ")[2] or line for line in lines] == [
            "toy: a started", "(1 of 2 units)", "toy: b started", "(1 of 2 units, 1 failed)"
        ]  # fmt: skip
        assert lines[1].startswith("toy: a finished in 0.")
        assert lines[3].startswith("toy: b failed after 0.")

    def test_progress_is_written_at_most_twice_a_second(self, tmp_path, monkeypatch):
        clock = [100.0]
        monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
        meter = Meter(tmp_path, "run")
        seen = []
        for step in range(1, 11):
            clock[0] += 0.2
            meter(step, 10, f"step {step}")
            seen.append(round(10 * State.read(tmp_path).fraction))
        assert seen == [0, 0, 3, 3, 3, 6, 6, 6, 9, 9]
        assert State.read(tmp_path).seconds == pytest.approx(1.8)
        assert State.read(tmp_path).note == "step 9"

    def test_progress_continues(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Meter, "EVERY", 0.0)
        State("old", 0.0, 0.5, "note", 1000.0, 2000.0).write(tmp_path)
        meter = Meter(tmp_path, "new")
        state = State.read(tmp_path)
        assert (state.run, state.start, state.fraction, state.note) == ("new", 0.5, 0.5, "note")
        meter(4, 10)  # the checkpoint was older
        state = State.read(tmp_path)
        assert (state.start, state.fraction) == (0.4, 0.4)
        assert 1000 < state.seconds < 1010
        assert 2000 <= state.cpu_seconds < 2010

    @pytest.mark.parametrize(("done", "total", "fraction"), [(3, 2, 1.0), (-1, 2, 0.0), (0, 0, 0.0)])
    def test_progress_is_clipped(self, tmp_path, monkeypatch, done, total, fraction):
        monkeypatch.setattr(Meter, "EVERY", 0.0)
        Meter(tmp_path, "run")(done, total)
        assert State.read(tmp_path).fraction == fraction

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0.04, "0.0 s"), (9.94, "9.9 s"), (10, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (320, "5 min 20 s"),
            (3600, "1 h"), (7530, "2 h 5 min"), (273600, "3 d 4 h"),
        ],
    )  # fmt: skip
    def test_durations(self, seconds, text):
        assert duration(seconds) == text


class TestReport:
    def test_the_files(self, bench):
        bench.units({"key": "a"}, {"key": "b", "config": {"steps": 4}}).run()
        before = pyplot.get_fignums()
        pages.write(bench.toy)
        assert pyplot.get_fignums() == before
        folder = bench.toy.folder
        assert sorted(path.name for path in folder.iterdir()) == ["README.md", "results", "table.md", "the_walks.png"]
        assert pyplot.imread(folder / "the_walks.png").shape[:2] == (720, 960)
        table = (folder / "table.md").read_text()
        assert table == (
            "**Walks**\n\n| unit | ours | paper |\n| --- | ---: | ---: |\n"
            "| a | 5700 ± 120 | 2.5 |\n| b | 34350 ± 120 | 2.5 |\n"
        )
        page = (folder / "README.md").read_text()
        head = (
            "<!-- Written by `python -m experiments report toy`; edit the experiment, not this page. -->\n\n# A toy\n\n"
            f"{SOURCE}\n\n    python -m experiments run toy\n\n{table}\n"
            "![the walks](the_walks.png)\n\n*All* departs.\n\n## Cost\n\n2 units, "
        )
        assert page.startswith(head)
        assert f"torch {torch.__version__}" in page
        assert f"({os.cpu_count()} cores, " in page
        assert "Not finished" not in page
        contents = {path: path.read_bytes() for path in folder.glob("*.*")}
        shutil.rmtree(bench.root / "runs")
        pages.write(bench.toy)
        assert contents == {path: path.read_bytes() for path in folder.glob("*.*")}

    def test_what_is_missing_is_told(self, bench):
        bench.units({"key": "a"}, {"key": "b"}).run(only=["b"])
        pages.write(bench.toy)
        assert "\n**Not finished**: results of 1 of 2 units.\n" in (bench.toy.folder / "README.md").read_text()
        assert "| a |" not in (bench.toy.folder / "table.md").read_text()

    def test_cost_is_summed_and_machines_are_listed_once(self, bench):
        bench.units({"key": "a"}, {"key": "b"}, {"key": "c"}).run()
        for key, cpus, day in (("a", 4, "2031-02-03"), ("b", 4, "2031-02-01"), ("c", 64, "2031-02-02")):
            found = bench.found(key)
            found |= {"seconds": 100.0, "cpu_seconds": 1000.0, "finished": f"{day}T00:00:00+00:00"}
            found["machine"] = {"platform": "Linux", "processor": "Z80", "cpus": cpus}
            (bench.results / f"{key}.json").write_text(json.dumps(found))
        pages.write(bench.toy)
        page = (bench.toy.folder / "README.md").read_text()
        assert "3 units, 5 min one after the other, 50 min of processor time, 2031-02-01 to 2031-02-03.\n" in page
        assert "Machine: Z80 (4 cores, Linux); Z80 (64 cores, Linux).\n" in page


class TestCommands:
    def test_run_ends_with_the_report(self, command, bench):
        bench.units({"key": "a"}, {"key": "b"})
        code, out, err = command("run", "toy", "--jobs", 1, "--only", "b")
        assert (code, out) == (0, "")
        assert err.splitlines()[-1] == "toy: 1 of 2 units are finished"
        assert not (bench.toy.folder / "README.md").exists()
        code, out, err = command("run", "toy", "--jobs", 1)
        assert code == 0
        assert "5700 ± 120" in out
        assert err.splitlines()[-2:] == ["toy: 2 of 2 units are finished", "toy/README.md"]
        assert (bench.toy.folder / "README.md").exists()
        (bench.toy.folder / "README.md").unlink()
        assert command("report", "toy") == (0, out, "toy/README.md\n")
        assert (bench.toy.folder / "README.md").exists()

    def test_the_short_version(self, command, bench):
        bench.units({"key": "a"}, {"key": "quick-a"})
        code, out, err = command("run", "toy", "--jobs", 1, "--quick")
        assert (code, out) == (0, "")
        assert err.splitlines()[-1] == "toy: 1 of 2 units are finished"
        assert bench.found("quick-a")
        message = "experiments: --quick must not be given together with --only, got ['a']\n"
        assert command("run", "toy", "--quick", "--only", "a") == (2, "", message)

    def test_failures(self, command, bench):
        bench.units(
            {"key": "a", "config": {"do": "fail"}},
            {"key": "b", "needs": ["a"]},
            {"key": "c", "config": {"do": "return", "json": '{"x": NaN}'}},
        )
        code, out, err = command("run", "toy", "--jobs", 1)
        assert (code, out) == (1, "")
        assert err.splitlines()[-4:] == [
            "c: not finite, stored as null: x",
            "a failed: ValueError: no luck (runs/experiments/toy/a/error.txt)",
            "b failed: not run: it needs 'a', which failed",
            "toy: 1 of 3 units are finished",
        ]

    @pytest.mark.parametrize("verb", ["run", "report"])
    @pytest.mark.parametrize(
        ("name", "hint"),
        [("tyo", "did you mean 'toy'?"), ("else", "`python -m experiments list` shows them")],
    )
    def test_unknown_names(self, command, bench, verb, name, hint):
        message = f"experiments: NAME must be an experiment, got {name!r}: {hint}\n"
        assert command(verb, name) == (2, "", message)
        assert not list(bench.root.iterdir())

    def test_other_mistakes(self, command, bench):
        bench.units({"key": "a"})
        message = "experiments: --jobs must be positive, or -1 for one for each core, got 0\n"
        assert command("run", "toy", "--jobs", 0) == (2, "", message)
        message = "experiments: --only must be part of the key of a unit, got 'x'\n"
        assert command("run", "toy", "--only", "x") == (2, "", message)
        message = "experiments: 'toy' must have finished units, got none: run it first\n"
        assert command("report", "toy") == (2, "", message)
        assert [path.name for path in bench.root.iterdir()] == ["toy.json"]

    def test_list(self, command, bench, monkeypatch):
        bench.units({"key": "a"}, {"key": "b"})
        command("run", "toy", "--only", "a")
        registry.EXPERIMENTS["other"] = "broken_experiment"
        (bench.root / "broken_experiment.py").write_text("import a_package_that_nobody_has")
        monkeypatch.syspath_prepend(bench.root)
        code, out, err = command("list")
        assert (code, err) == (0, "")
        lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines()]
        assert ["toy", "A toy", SOURCE, "1 of 2"] in lines
        assert "'a_package_that_nobody_has', which is not installed" in " ".join(out.replace("│", " ").split())
        message = "experiments: 'other' needs 'a_package_that_nobody_has', which is not installed\n"
        assert command("run", "other") == (2, "", message)

    def test_an_experiment_under_another_name(self, bench, monkeypatch):
        monkeypatch.setattr(registry, "EXPERIMENTS", {"foo": "toy"})
        with pytest.raises(TypeError, match="EXPERIMENT of toy must be an Experiment named 'foo', got Toy"):
            registry.load("foo")

    def test_as_a_module(self, bench):
        done = subprocess.run(
            [sys.executable, "-m", "experiments", "run", "uci-tabel1"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("experiments: NAME must be an experiment, got 'uci-tabel1': ")
        assert done.stderr.count("\n") == 1

    def test_the_runner_itself_is_light(self):
        code = "import sys, experiments.commands; print({'torch', 'joblib', 'matplotlib'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == "set()\n"

    def test_the_registry_is_right(self):
        for name, module in registry.EXPERIMENTS.items():
            assert module == f"experiments.{name.replace('-', '_')}"


class TestNumber:
    @pytest.mark.parametrize(
        ("number", "text"),
        [
            (Number(3.9312, 0.26), "3.93 ± 0.26"),
            (Number(3.9312, 0.354), "3.93 ± 0.35"),
            (Number(3.9312, 0.3551), "3.9 ± 0.4"),
            (Number(3.9312, 0.9499), "3.9 ± 0.9"),
            (Number(3.9312, 0.951), "3.9 ± 1.0"),
            (Number(3.9312, 0.9996), "3.9 ± 1.0"),
            (Number(-0.00209, 0.000012), "-0.002090 ± 0.000012"),
            (Number(1234.5, 51.0), "1230 ± 50"),
            (Number(1234.5, 12.0), "1234 ± 12"),
            (Number(-0.001, 0.5), "0.0 ± 0.5"),
            (Number(3.9312, 0.26, 3), "3.931 ± 0.260"),
            (Number(3.9312, None, 1), "3.9"),
            (Number(2.0, 0.0, 2), "2.00 ± 0.00"),
            (Number(3.93124, 0.0), "3.931 ± 0"),
            (Number(0.000123456), "0.0001235"),
            (Number(3.9312, math.nan), "3.931"),
            (Number(None), "-"),
            (Number(math.nan, 1.0), "-"),
            (Number(-math.inf, 1.0), "-inf"),
        ],
    )
    def test_text(self, number, text):
        assert str(number) == text

    @pytest.mark.parametrize("ddof", [0, 1])
    def test_mean_and_standard_error(self, ddof):
        values = [1.0, 4.0, -2.0, 7.5]
        number = Number.of(values, ddof=ddof, decimals=3)
        deviation = statistics.stdev(values) if ddof else statistics.pstdev(values)
        assert number.mean == statistics.fmean(values)
        assert number.error == pytest.approx(deviation / 2, rel=1e-14)
        assert number.decimals == 3

    def test_one_value_has_no_error(self):
        assert Number.of(iter([2.5])) == Number(2.5, None)

    @pytest.mark.parametrize("values", [[], [1.0, None], [1.0, math.nan], [math.inf]])
    def test_values_that_are_missing(self, values):
        with pytest.raises(ValueError, match="values must be one or more finite numbers, got "):
            Number.of(values)


class TestTable:
    TABLE = Table(
        "Some [numbers]", ["data|set", "ours", "n", "[b]"], [["a|b", Number(1.0, 0.2), 3, "x"], ["c", None, 0.25, None]]
    )

    def test_markdown(self):
        assert self.TABLE.markdown().splitlines() == [
            "**Some [numbers]**",
            "",
            "| data\\|set | ours | n | [b] |",
            "| --- | ---: | ---: | --- |",
            "| a\\|b | 1.00 ± 0.20 | 3 | x |",
            "| c | - | 0.25 | - |",
        ]

    def test_in_the_terminal(self):
        console = Console(file=io.StringIO(), width=80)
        console.print(self.TABLE.rich())
        lines = console.file.getvalue().splitlines()
        assert lines[0].strip() == "Some [numbers]"
        assert [cell.strip() for cell in lines[2].strip("┃").split("┃")] == ["data|set", "ours", "n", "[b]"]
        assert [cell.strip() for cell in lines[4].strip("│").split("│")] == ["a|b", "1.00 ± 0.20", "3", "x"]
        assert [column.justify for column in self.TABLE.rich().columns] == ["left", "right", "right", "left"]

    def test_rows_have_the_cells_of_the_header(self):
        with pytest.raises(ValueError, match=r"rows must have 2 cells, got \[1\]"):
            Table("title", ["a", "b"], [[1, 2], [1]])


class TestPublished:
    HEADER = "experiment,dataset,method,metric,mean,std_or_stderr,which_error,source\n"

    def load(self, tmp_path, *rows, header=HEADER):
        path = tmp_path / "paper.csv"
        path.write_text(header + "".join(f"{row}\n" for row in rows))
        return published(path)

    def test_numbers_keep_their_decimals(self, tmp_path):
        numbers = self.load(
            tmp_path,
            'T1,Boston,Vadam,rmse,3.9,0.26,stderr over 20 splits,"Khan et al. 2018, Table 1"',
            "T1,Naval,Vadam,rmse,1e-4,,none,Fig. 4",
            "T1,Naval,BBVI,rmse,,0.5,none,Fig. 4",
            "T1,Wine,Vadam,rmse,-12,3,none,Fig. 4",
        )
        boston = numbers["Boston", "Vadam", "rmse"]
        assert (boston.which_error, boston.source) == ("stderr over 20 splits", "Khan et al. 2018, Table 1")
        assert boston.value == Number(3.9, 0.26, 2)
        assert [str(number.value) for number in numbers.values()] == ["3.90 ± 0.26", "0.0001", "-", "-12 ± 3"]

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            (["T,a,b,c,1,,,"] * 2, r"paper\.csv must have every number once, got \('a', 'b', 'c'\) again in line 3"),
            (["T,a,b,c,1.2.3,,,"], r"paper\.csv must have numbers, got \('1\.2\.3', ''\) in line 2"),
        ],
    )
    def test_wrong_rows(self, tmp_path, rows, message):
        with pytest.raises(ValueError, match=message):
            self.load(tmp_path, *rows)

    def test_a_missing_column(self, tmp_path):
        with pytest.raises(ValueError, match=r"paper\.csv must have the columns dataset, .*, got no 'source'"):
            self.load(tmp_path, header=self.HEADER.replace(",source", ""))


def test_contexts_and_results_can_be_made_by_hand(tmp_path):
    """For tests of experiments."""
    context = Context(tmp_path, {}, lambda done, total, note="": None)
    experiment = Toy(tmp_path)
    result = experiment.run(Unit("a"), context)
    made = Result("toy", "a", {}, {}, result, 1.0, 1.0, {}, {}, "")
    (table,) = experiment.report({"a": made}).tables
    pyplot.close("all")
    assert str(table.rows[0][1]) == "5700 ± 120"


@pytest.mark.parametrize("name", registry.EXPERIMENTS)
def test_committed_pages_are_those_of_the_committed_results(name, tmp_path, monkeypatch):
    experiment = registry.load(name)
    committed = experiment.folder
    if not (committed / "results").is_dir():
        pytest.skip("no results are committed: published lengths are for other machines")
    shutil.copytree(committed / "results", tmp_path / name / "results")
    for path in committed.glob("*.csv"):
        shutil.copy(path, tmp_path / name)
    monkeypatch.setattr(type(experiment), "folder", tmp_path / name)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **options: Path(path).touch())
    pages.write(experiment)
    for page in (tmp_path / name).glob("*.md"):
        assert page.read_text() == (committed / page.name).read_text()
    assert {p.name for p in (tmp_path / name).glob("*.png")} == {p.name for p in committed.glob("*.png")}
