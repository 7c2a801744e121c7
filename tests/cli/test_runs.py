"""The parts of a run by themselves: the folder, the settings, and the scores by hand."""

import errno
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bayesadam import commands
from bayesadam.commands.options import fit_command
from bayesadam.runs import RunError, Settings, baselines, contents, folder, scores
from bayesadam.runs.folder import check_place, new_run, partial_path, resumable
from bayesadam.runs.prepare import prepare
from bayesadam.tabular import TableError

SETTINGS = Settings("t.csv", "y")


class TestFolder:
    def test_takes_its_place_at_the_end(self, tmp_path):
        out = tmp_path / "new" / "run"
        with new_run(out) as made:
            assert made == partial_path(out)
            (made / "config.json").write_text("{}")
            assert not out.exists()
        assert [path.name for path in out.iterdir()] == ["config.json"]
        assert list(out.parent.iterdir()) == [out]

    @pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), ValueError("other"), KeyboardInterrupt()])
    def test_nothing_is_left_after_an_error(self, tmp_path, error):
        out = tmp_path / "run"
        out.mkdir()
        (out / "config.json").write_text("older")
        with pytest.raises(type(error)), new_run(out) as made:
            (made / "config.json").write_text("newer")
            raise error
        assert list(tmp_path.iterdir()) == [out]
        assert (out / "config.json").read_text() == "older"

    def test_a_checkpoint_is_left_after_ctrl_c(self, tmp_path):
        out = tmp_path / "run"
        with pytest.raises(KeyboardInterrupt), new_run(out) as made:
            SETTINGS.save(made / "config.json")
            (made / "checkpoint").mkdir()
            (made / "checkpoint" / "chunk").write_text("state")
            raise KeyboardInterrupt
        assert resumable(out) == partial_path(out)
        with pytest.raises(RunError, match="continue it by `resume`, or start again by `force`$"):
            check_place(out, force=False)
        with new_run(out, resume=resumable(out)) as made:
            assert (made / "checkpoint" / "chunk").read_text() == "state"
        assert list(tmp_path.iterdir()) == [out]

    @pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
    def test_resuming_in_vain_costs_nothing(self, tmp_path, error):
        out = tmp_path / "run"
        (out / "checkpoint").mkdir(parents=True)
        (out / "checkpoint" / "chunk").write_text("state")
        SETTINGS.save(out / "config.json")
        with pytest.raises(error), new_run(out, resume=out) as made:
            (made / "checkpoint" / "chunk").write_text("further")
            raise error
        assert (out / "checkpoint" / "chunk").read_text() == "state"
        assert resumable(out) is not None

    def test_a_full_disk_does_not_cost_what_was_stopped(self, tmp_path):
        out = tmp_path / "run"
        partial = partial_path(out)
        (partial / "checkpoint").mkdir(parents=True)
        SETTINGS.save(partial / "config.json")
        with pytest.raises(OSError, match="full"), new_run(out, resume=partial):
            raise OSError("full")
        assert resumable(out) == partial

    def test_force_replaces_runs_only(self, tmp_path):
        out = tmp_path / "run"
        out.mkdir()
        check_place(out, force=False)  # empty
        (out / "config.json").write_text("{}")
        with pytest.raises(RunError, match="which contains a run: replace it by `force`$"):
            check_place(out, force=False)
        check_place(out, force=True)
        (out / "notes.txt").write_text("mine")
        for force in (False, True):
            with pytest.raises(RunError, match=r"in which there is 'notes\.txt'$"):
                check_place(out, force=force)
        with pytest.raises(RunError, match="^`out` must be a folder with a name, got '/'$"):
            check_place(folder.Path("/"), force=True)


class TestSettings:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"method": "vadam", "hidden": (100, 50), "members": 3, "epochs": 7, "seed": 5, "device": "cpu"},
            {"time_budget": 2.5, "group": "a b", "drop": ("x", "it's"), "missing": ("-", "?"), "day_first": True},
            {"noise": "input"},
            {"noise": "0.25"},
            {"keep": ("day", "a b"), "delimiter": ";", "decimal": ","},
            {"time": "day", "delimiter": "\t", "held_out": 0.25, "task": "classification", "hidden": ()},
        ],
    )
    def test_are_kept(self, tmp_path, monkeypatch, options):
        settings = Settings("/data/my table.csv", "the target", **options)
        settings.save(tmp_path / "config.json", interrupted=False)
        assert Settings.load(tmp_path / "config.json") == settings
        assert settings.changed({"seed": settings.seed, "target": "another"}) == ["target"]

        given = {}
        monkeypatch.setattr(
            commands.fit, "fit_table", lambda options, out, config, **rest: given.update(options, out=out)
        )
        with pytest.raises(SystemExit) as stopped:
            commands.app(shlex.split(fit_command(settings, Path("my run")))[1:])
        assert stopped.value.code == 0
        assert str(given.pop("out")) == "my run"
        if "hidden" in given:
            given["hidden"] = tuple(int(units) for units in given["hidden"].split(",") if units)
        assert Settings(**given) == settings

    def test_with_what_an_error_proposes(self):
        settings = Settings("/data/table.csv", "y", drop=("a",), keep=("b", "c"), missing=("?",))
        changed = settings.remedied({"drop": ("c", "a"), "missing": ("-",), "task": "regression"})
        assert (changed.drop, changed.keep, changed.missing) == (("a", "c"), ("b",), ("?", "-"))
        assert changed.task == "regression"
        assert settings.remedied({}) == settings


class TestCopies:
    """Rows that are equal to others."""

    def prepared(self, tmp_path, copies, **settings):
        rng = np.random.default_rng(0)
        rows = [f"{a:.3f},{b},{a + b:.2f}" for a, b in zip(rng.normal(size=60), rng.integers(0, 9, 60), strict=True)]
        rows = [f"{number},{row}" for number, row in enumerate([*rows, *(rows[i] for i in copies)])]
        (tmp_path / "t.csv").write_text("\n".join(["nr,a,b,y", *rows]) + "\n")
        return prepare(Settings(str(tmp_path / "t.csv"), "y", **settings)), np.array([*range(60), *copies])

    def test_stay_together(self, tmp_path):
        found, row_of = self.prepared(tmp_path, copies=[7, 7, *range(30, 50)])
        assert not set(row_of[found.split.training]) & set(row_of[found.split.held_out])
        training = row_of[found.split.training]
        assert len(np.unique(found.groups)) == len(np.unique(training))
        assert len(set(zip(found.groups, training, strict=True))) == len(np.unique(training))
        (note,) = (note for note in found.notes if "cop" in note)
        assert note == (
            "22 rows are copies of another one (line 62 of line 9, line 64 of line 32, line 65 of line 33, ...): "
            "copies are held out together"
        )

    def test_where_the_user_says_what_is_held_out(self, tmp_path):
        found, _ = self.prepared(tmp_path, copies=[3], group="b")
        assert "1 row is a copy of another one (line 62 of line 5)" in found.notes
        assert len(np.unique(found.groups)) < 9

    def test_that_are_what_the_columns_can_say(self, tmp_path):
        found, _ = self.prepared(tmp_path, copies=[*range(60), 1])
        assert found.groups is None
        assert "only 60 of the 121 rows are different: equal rows may be trained on and held out" in found.notes

    def test_none(self, tmp_path):
        found, _ = self.prepared(tmp_path, copies=[], keep=("nr",))
        assert found.groups is None
        assert not any("cop" in note for note in found.notes)


class TestOddCellsOfHeldOutRows:
    """What a cell means does not depend on whether its row is held out; medians and levels do."""

    def prepared(self, tmp_path, cell, **settings):
        """Return what is prepared from a table in which a cell of the first held-out row was replaced, and its line."""
        rng = np.random.default_rng(0)
        columns = {
            "price": [f"${x:.2f}" for x in rng.uniform(10, 99, 60)],
            "day": [f"{d}/{m}/2021" for d, m in rng.integers(1, 13, (60, 2))],
            "size": [f"{x:.3f}" for x in rng.normal(size=60)],
            "y": [f"{x:.3f}" for x in rng.normal(size=60)],
        }
        path = tmp_path / "t.csv"

        def write():
            path.write_text("\n".join(map(",".join, [columns, *zip(*columns.values(), strict=True)])))

        write()
        row = prepare(Settings(str(path), "y")).split.held_out[0]
        columns[cell[0]][row] = cell[1]
        write()
        return prepare(Settings(str(path), "y", **settings)), row + 2

    @pytest.mark.parametrize("cell", [("price", "ask"), ("size", "none here"), ("size", "inf")])
    def test_are_errors_with_their_line_and_a_remedy(self, tmp_path, cell):
        name, text = cell
        found, line = self.prepared(tmp_path, cell, missing=(text,))
        assert np.isfinite(found.held_out_inputs).all()
        told = f"column {name!r} must be .*, got '?{re.escape(text)}'? in line {line}"
        with pytest.raises(TableError, match=told) as raised:
            self.prepared(tmp_path, cell)
        assert raised.value.remedy == {"missing": (text,)}

    def test_decide_the_order_of_dates(self, tmp_path):
        found, _ = self.prepared(tmp_path, ("day", "25/3/2021"))
        (date,) = (column for column in found.preprocessing.inputs.columns if column.name == "day")
        assert date.order == "day, month, year"

    def test_decide_about_units(self, tmp_path):
        found, _ = self.prepared(tmp_path, ("price", "31.00 EUR"))
        assert "several units" in found.preprocessing.inputs.left_out["price"]

    def test_do_not_move_medians(self, tmp_path):
        found, _ = self.prepared(tmp_path, ("price", "$9000000.00"))
        (price,) = (column for column in found.preprocessing.inputs.columns if column.name == "price")
        assert price.largest < 100
        assert found.held_out_inputs.max() > 1e4


class TestScores:
    def test_of_a_gaussian_by_hand(self):
        rng = np.random.default_rng(0)
        y, mean, std = rng.normal(size=50), rng.normal(size=50), 1.7
        found = scores.scores(scores.gaussian(y, mean, std), 3.0)
        normal = stats.norm(mean, std)
        assert found["NLL"] == pytest.approx(-normal.logpdf(y).mean(), rel=1e-12)
        assert found["RMSE"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-12)
        assert found["coverage 95%"] == np.mean((normal.ppf(0.025) <= y) & (y <= normal.ppf(0.975)))
        grid = np.linspace(-15, 15, 60_001)
        steps = [(stats.norm.cdf(grid, m, std) - (grid >= t)) ** 2 for m, t in zip(mean, y, strict=True)]
        assert found["CRPS"] == pytest.approx(np.mean(np.sum(steps, 1)) * (grid[1] - grid[0]), rel=1e-3)
        assert found["fit seconds"] == 3.0

    def test_of_probabilities_by_hand(self):
        probs = np.array([[0.7, 0.3], [0.4, 0.6], [1.0, 0.0]])
        found = scores.scores(scores.categorical(np.array([0, 0, 1]), probs), 1.0)
        expected = -(np.log(0.7) + np.log(0.4) + np.log(np.finfo(float).tiny)) / 3
        assert found["NLL"] == pytest.approx(expected)
        assert found["accuracy"] == pytest.approx(1 / 3)
        assert found["Brier"] == pytest.approx((2 * 0.09 + 2 * 0.36 + 2) / 3)

    def test_a_number_that_is_none(self):
        found = scores.scores(scores.gaussian(np.array([np.inf]), np.array([0.0]), 1.0), 1.0)
        assert found["RMSE"] is None

    def test_margins_by_hand(self):
        ours, other = ({"nll": np.array(nll)} for nll in ([1.0, 2.0, 3.0], [2.0, 2.0, 5.0]))
        assert scores.margin(ours, other) == pytest.approx([1.0, 1.0 / np.sqrt(3)])
        assert scores.margin({"nll": np.zeros(1)}, {"nll": np.ones(1)}) is None
        assert scores.margin(ours, {"nll": np.array([1.0, np.inf, 2.0])}) is None


class TestBaselines:
    RNG = np.random.default_rng(0)
    X = RNG.normal(size=(600, 3)).astype(np.float32)

    def fit(self, y, task, classes=0):
        found = baselines.baselines(self.X[:500], y[:500], self.X[500:], y[500:], task=task, classes=classes, seed=0)
        return {name: scores.scores(*row) for name, row in found.items()}

    def test_of_a_regression(self):
        y = np.where(self.X[:, 0] > 0, 3.0, -3.0) + 0.5 * self.RNG.normal(size=600)
        found = self.fit(y, "regression")
        assert found["gradient boosting"]["RMSE"] == pytest.approx(0.55, rel=0.2)
        assert 1.5 < found["linear model"]["RMSE"] < 2.2
        for row in found.values():  # the width is that of new rows, not of those trained on
            assert 0.9 <= row["coverage 95%"] <= 1.0

    def test_of_a_classification_with_a_class_that_training_rows_do_not_have(self):
        y = (self.X[:, 0] > 0).astype(np.int64) * 2
        found = self.fit(y, "classification", 3)
        assert found["linear model"]["accuracy"] > 0.95
        assert found["gradient boosting"]["accuracy"] > 0.95
        assert found["gradient boosting"]["NLL"] < 0.3

    def test_of_many_rows(self, monkeypatch):
        monkeypatch.setattr(baselines, "MAX_ROWS", 100)
        y = self.X @ np.array([1.0, 2.0, 3.0])
        y[:500][self.X[:500, 1] > 10] = np.nan
        assert self.fit(y, "regression")["linear model"]["RMSE"] < 0.3


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (1699999794.25, 112.0, "1,699,999,790 ± 110"),
        (12.3456, 0.0123, "12.346 ± 0.012"),
        (12.3456, 5.0, "12.3 ± 5.0"),
        (-0.00123456, 1e-5, "-0.001235 ± 0.000010"),
        (0.0, 1.0, "0.0 ± 1.0"),
        (697_882.0, 190_234.0, "700,000 ± 190,000"),
        (12.3456, 0.0999, "12.35 ± 0.10"),
        (3e20, 1e19, "3e+20 ± 1e+19"),
    ],
)
def test_means_have_the_digits_of_their_error(mean, std, text):
    assert contents._with_error(mean, std) == text


def test_training_curves_are_thinned_and_without_gaps():
    loss = np.arange(1000.0).reshape(2, 500)
    loss[:, 1:400] = np.nan
    found = contents._thinned(loss)
    assert [len(values) for values in found] == [300, 300]
    assert [values[0] for values in found] == [0.0, 500.0]
    assert [values[-1] for values in found] == [499.0, 999.0]
    assert set(found[0][1:200]) == {0.0}
    assert contents._thinned(np.full((1, 3), np.nan)) == [[None, None, None]]


FILES = ("config.json", "posterior.safetensors", "model.json", "preprocessing.json", "metrics.json", "report.json")


def make_run(path, what, *, complete=True, interrupted=False, checkpoint=False):
    """A folder with the files of a run, each of which says which one it is of."""
    path.mkdir(parents=True)
    for name in (*FILES[1:], "report.html"):
        (path / name).write_text(what)
    SETTINGS.save(path / "config.json", complete=complete, interrupted=interrupted, training_rows=what)
    if checkpoint:
        (path / "checkpoint").mkdir()
        (path / "checkpoint" / "chunk-0000.safetensors").write_text(what)


class TestSettling:
    """What a fit that was killed at any moment has left is put in order by the next call."""

    @pytest.fixture
    def out(self, tmp_path):
        return tmp_path / "run"

    def left(self, out):
        return sorted(str(path.relative_to(out.parent)) for path in out.parent.rglob("*") if "checkpoint" in path.name)

    def test_a_complete_run_is_put_in_its_place(self, out):
        make_run(partial_path(out), "new", checkpoint=True)
        assert folder.settle(out) is True
        assert (out / "model.json").read_text() == "new"
        assert list(out.parent.iterdir()) == [out]
        assert self.left(out) == []  # the training has ended
        assert folder.settle(out) is False
        assert resumable(out) is None

    def test_a_complete_run_that_was_stopped_keeps_its_checkpoint(self, out):
        make_run(partial_path(out), "new", interrupted=True, checkpoint=True)
        assert folder.settle(out) is True
        assert resumable(out) == out

    def test_one_that_replaces_another(self, out):
        make_run(out, "old")
        make_run(partial_path(out), "new")
        assert folder.settle(out) is True
        assert (out / "model.json").read_text() == "new"
        assert list(out.parent.iterdir()) == [out]

    def test_killed_between_the_two_renames(self, out):
        make_run(folder._old_path(out), "old")
        make_run(partial_path(out), "new")
        folder.settle(out)
        assert (out / "model.json").read_text() == "new"
        assert list(out.parent.iterdir()) == [out]

    def test_killed_between_the_two_renames_without_the_new_one(self, out):
        make_run(folder._old_path(out), "old")
        assert folder.settle(out) is False
        assert (out / "model.json").read_text() == "old"
        assert list(out.parent.iterdir()) == [out]

    def test_killed_after_the_renames(self, out):
        make_run(out, "new", checkpoint=True)
        make_run(folder._old_path(out), "old")
        folder.settle(out)
        assert (out / "model.json").read_text() == "new"
        assert list(out.parent.iterdir()) == [out]
        assert self.left(out) == []

    def test_temporary_files_block_nothing_and_go(self, out):
        make_run(partial_path(out), "half", complete=False, checkpoint=True)
        (partial_path(out) / "posterior.safetensors").unlink()
        for place in (partial_path(out), partial_path(out) / "checkpoint"):
            (place / ".bayesadam-01234567.tmp").mkdir()
            (place / ".bayesadam-01234567.tmp" / "posterior.safetensors").write_text("half")
        check_place(out, force=True)
        with pytest.raises(RunError, match="continue it by `resume`, or start again by `force`$"):
            check_place(out, force=False)
        folder.settle(out)
        assert [path for path in partial_path(out).rglob(".bayesadam-*")] == []
        assert resumable(out) == partial_path(out)

    def test_without_a_checkpoint_there_is_nothing_to_go_on_with(self, out):
        make_run(partial_path(out), "half", complete=False)
        (partial_path(out) / "report.html").unlink()
        (partial_path(out) / "checkpoint").mkdir()
        (partial_path(out) / "checkpoint" / ".bayesadam-01234567.tmp").mkdir()
        check_place(out, force=False)
        assert resumable(out) == partial_path(out)  # with the settings, from the beginning
        with new_run(out) as made:
            assert list(made.iterdir()) == []

    def test_what_others_put_there_is_named_with_its_place(self, out):
        make_run(out, "old")
        make_run(partial_path(out), "new")
        (partial_path(out) / "thesis.txt").write_text("years of work")
        message = f"got {str(out)!r}, but in {str(partial_path(out))!r}, where it would be made, there is 'thesis.txt'"
        with pytest.raises(RunError) as caught:
            check_place(out, force=True)
        assert str(caught.value).endswith(message)
        assert folder.settle(out) is False
        assert (out / "model.json").read_text() == "old"
        (folder._old_path(out)).mkdir()
        (folder._old_path(out) / "thesis.txt").write_text("years of work")
        folder.settle(out)
        assert (folder._old_path(out) / "thesis.txt").exists()

    def test_not_while_a_fit_is_running(self, out):
        with new_run(out) as made:
            make_run(made / "x", "new")
            for path in (made / "x").iterdir():
                path.rename(made / path.name)
            (made / "x").rmdir()
            assert folder.settle(out) is False
            for force in (False, True):
                with pytest.raises(RunError, match="in which a fit is running$"):
                    check_place(out, force=force)
            with pytest.raises(RunError, match="in which a fit is running$"), new_run(out):
                pass
        assert (out / "model.json").read_text() == "new"

    def test_a_copied_checkpoint_is_whole(self, out, monkeypatch):
        make_run(out, "old", interrupted=True, checkpoint=True)

        def killed(*paths):
            raise SystemExit

        monkeypatch.setattr(folder.Path, "rename", killed)
        with pytest.raises(SystemExit), new_run(out, resume=out):
            pass
        monkeypatch.undo()
        folder.settle(out)
        assert resumable(out) == out

    def test_a_linked_folder(self, out):
        there = out.parent / "there"
        make_run(there, "old")
        out.symlink_to(there)
        with new_run(out) as made:
            (made / "config.json").write_text("new")
        assert out.is_symlink()
        assert (there / "config.json").read_text() == "new"
        assert sorted(path.name for path in out.parent.iterdir()) == ["run", "there"]
