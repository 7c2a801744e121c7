"""The parts of a run by themselves: the folder, copies of rows, odd cells of held-out rows, and the scores by hand."""

import errno
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayesadam.sklearn import RunError, Settings, TableEncoder
from bayesadam.tables.encoder.splits import Split
from bayesadam.tables.estimators import target_transform
from bayesadam.tables.runs import baselines, evaluation
from bayesadam.tables.runs.prepare import prepare
from bayesadam.tables.runs.run_folder import FILES, check_place, new_run, reserve


class TestFolder:
    def test_takes_its_place_at_the_end(self, tmp_path):
        out = tmp_path / "new" / ("x" * 255)
        with new_run(out) as folder:
            assert folder.parent == out.parent
            (folder / "config.json").write_text("{}")
            assert not out.exists()
        assert [path.name for path in out.iterdir()] == ["config.json"]
        with new_run(out, force=True) as folder:
            (folder / "model.json").write_text("{}")
            assert (out / "config.json").exists()
        assert [path.name for path in out.iterdir()] == ["model.json"]
        assert list(out.parent.iterdir()) == [out]

    @pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
    def test_nothing_is_left_after_an_error(self, tmp_path, error):
        out = tmp_path / "run"
        out.mkdir()
        (out / "config.json").write_text("older")
        with pytest.raises(type(error)), new_run(out, force=True) as folder:
            (folder / "config.json").write_text("newer")
            raise error
        assert list(tmp_path.iterdir()) == [out]
        assert (out / "config.json").read_text() == "older"

    def test_of_two_fits_at_once_the_second_is_kept_beside_the_first(self, tmp_path):
        out = tmp_path / "run"
        with pytest.raises(RunError, match=r"contains a run \(to replace it: force\); the new run is in '") as caught:
            with new_run(out) as folder:
                (folder / "config.json").write_text("second")
                out.mkdir()
                (out / "config.json").write_text("first")
        beside = Path(str(caught.value).split("'")[-2])
        assert (out / "config.json").read_text() == "first"
        reserve(out, force=True)  # removes what killed processes leave only
        assert (beside / "config.json").read_text() == "second"
        assert set(tmp_path.iterdir()) == {out, beside}

    def test_only_runs_are_replaced(self, tmp_path):
        out = tmp_path / "run"
        out.mkdir()
        check_place(out, force=False)  # empty
        for name in FILES:
            (out / name).write_text("{}")
        with pytest.raises(RunError, match=r"which contains a run \(to replace it: force\)$"):
            check_place(out, force=False)
        check_place(out, force=True)
        (tmp_path / "link").symlink_to(out)
        (out / "notes.txt").write_text("mine")
        (tmp_path / "file").write_text("mine")
        for place, message in (
            (out, r"in which there is 'notes\.txt'$"),
            (tmp_path / "link", "must be a folder with a name, got the link '"),
            (tmp_path / "file", "must be a folder with a name, got the file '"),
            (type(out)("/"), "must be a folder with a name, got the path '/'$"),
        ):
            for force in (False, True):
                with pytest.raises(RunError, match=message):
                    check_place(place, force=force)


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

    @pytest.mark.parametrize(
        ("copies", "settings", "note"),
        [
            ([3], {"group": "b"}, "1 row is a copy of another one (line 62 of line 5)"),
            ([], {"keep": ("nr",)}, None),
        ],
    )
    def test_that_are_no_groups(self, tmp_path, copies, settings, note):
        found, _ = self.prepared(tmp_path, copies, **settings)
        assert found.groups is None or len(np.unique(found.groups)) < 9
        assert [told for told in found.notes if "cop" in told or "different" in told] == ([note] if note else [])

    def test_of_every_row_stay_together_too(self, tmp_path):
        found, row_of = self.prepared(tmp_path, copies=[*range(60), *range(60)])
        assert not set(row_of[found.split.training]) & set(row_of[found.split.held_out])
        (note,) = (note for note in found.notes if "cop" in note)
        assert note.startswith("120 rows are copies of another one (")

    @pytest.mark.parametrize("share", [0.0, 0.5])
    def test_rows_of_few_categories_are_equal_by_chance(self, share):
        rng = np.random.default_rng(0)
        levels = rng.integers(0, 3, (200, 3))
        y = np.where(rng.random(200) < share, rng.integers(0, 2, 200), levels[:, 0] > 1)
        frame = pd.DataFrame(levels, columns=list("abc"))[list("abc") if share else ["a"]].assign(y=y)
        found = prepare(Settings("t", "y"), frame)
        assert found.groups is None
        (note,) = (note for note in found.notes if "different" in note)
        assert note.startswith(f"only {len(frame.drop_duplicates())} of the 200 rows are different: equal rows may be ")

    def test_by_time_are_one_group_in_training(self, tmp_path):
        found, row_of = self.prepared(tmp_path, copies=[7, 7, *range(30, 50)], time="b")
        assert len(np.unique(found.groups)) == len(np.unique(row_of[found.split.training]))
        assert all("held out together" not in note for note in found.notes)


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

    def test_do_not_move_medians(self, tmp_path):
        found, _ = self.prepared(tmp_path, ("price", "$9000000.00"))
        (price,) = (column for column in found.encoder.columns_ if column.name == "price")
        assert price.largest < 100
        assert found.matrix[found.split.held_out].max() == 9e6


class TestScores:
    def test_of_a_gaussian_by_hand(self):
        rng = np.random.default_rng(0)
        y, mean, std = rng.normal(size=50), rng.normal(size=50), 1.7
        found = evaluation.scores(evaluation.predict_held_out(baselines.gaussian(mean, std), y), 3.0)
        normal = stats.norm(mean, std)
        assert found["NLL"] == pytest.approx(-normal.logpdf(y).mean(), rel=1e-12)
        assert found["RMSE"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-12)
        assert found["coverage 95%"] == np.mean((normal.ppf(0.025) <= y) & (y <= normal.ppf(0.975)))
        z = (y - mean) / std  # Gneiting and Raftery 2007, equation 21
        crps = std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
        assert found["CRPS"] == pytest.approx(crps.mean(), rel=1e-6)
        assert found["fit seconds"] == 3.0
        assert (
            evaluation.scores(
                evaluation.predict_held_out(baselines.gaussian(np.array([0.0]), 1.0), np.array([np.inf])), 1.0
            )["RMSE"]
            is None
        )

    def test_of_probabilities_by_hand(self):
        probs = np.array([[0.7, 0.3], [0.4, 0.6], [1.0, 0.0]])
        found = evaluation.scores(evaluation.predict_held_out(baselines.categorical(probs), np.array([0, 0, 1])), 1.0)
        expected = -(np.log(0.7) + np.log(0.4) + np.log(np.finfo(float).tiny)) / 3
        assert found["NLL"] == pytest.approx(expected)
        assert found["accuracy"] == pytest.approx(1 / 3)
        assert found["Brier"] == pytest.approx((2 * 0.09 + 2 * 0.36 + 2) / 3)

    def test_margins_by_hand(self):
        ours, other = ({"nll": np.array(nll)} for nll in ([1.0, 2.0, 3.0], [2.0, 2.0, 5.0]))
        assert evaluation.margin(ours, other) == pytest.approx([1.0, 1.0 / np.sqrt(3)])
        assert evaluation.margin({"nll": np.zeros(1)}, {"nll": np.ones(1)}) is None
        assert evaluation.margin(ours, {"nll": np.array([1.0, np.inf, 2.0])}) is None

    @pytest.mark.parametrize("classes", [False, True])
    def test_weights_are_numbers_of_copies(self, classes):
        rng = np.random.default_rng(0)
        weight = rng.integers(1, 5, 40)
        if classes:
            probs, y = rng.dirichlet(np.ones(3), 40), rng.integers(0, 3, 40)
            parts = [evaluation.predict_held_out(baselines.categorical(probs), y, weight)]
            rows = np.repeat(np.arange(40), weight)
            parts.append(evaluation.predict_held_out(baselines.categorical(probs[rows]), y[rows]))
        else:
            mean, y = rng.normal(size=(2, 40))
            parts = [evaluation.predict_held_out(baselines.gaussian(mean, 1.0), y, weight)]
            rows = np.repeat(np.arange(40), weight)
            parts.append(evaluation.predict_held_out(baselines.gaussian(mean[rows], 1.0), y[rows]))
        one, other = (evaluation.scores(part, 1.0) for part in parts)
        assert one == pytest.approx(other, rel=1e-12)
        worse = [{**part, "nll": part["nll"] ** 2} for part in parts]
        one, other = (evaluation.margin(*pair) for pair in zip(parts, worse, strict=True))
        assert one[0] == pytest.approx(other[0], rel=1e-12)
        above = worse[0]["nll"] - parts[0]["nll"]
        share = weight / weight.sum()
        assert one[1] == pytest.approx(np.sqrt((share**2 * (above - one[0]) ** 2).sum() * 40 / 39), rel=1e-12)


def messy_table(rows=200):
    """A trend, a number that means a missing value, row numbers, and weights; the price is positive."""
    rng = np.random.default_rng(0)
    day = pd.Timestamp("2023-01-01") + pd.to_timedelta(2 * np.arange(rows), "D")
    size = rng.uniform(1, 9, rows)
    price = np.exp(0.2 * size + 0.002 * np.arange(rows) + 0.3 * rng.normal(size=rows))
    size[::7] = -999.0
    table = {"no": np.arange(rows), "day": day.astype(str), "size": size, "town": rng.choice(["a", "b"], rows)}
    table |= {"w": rng.integers(1, 4, rows), "price": price, "big": np.where(price > 3.0, "yes", "no")}
    return pd.DataFrame(table)


quoted = SimpleNamespace(make_pipeline=make_pipeline, TableEncoder=TableEncoder, StandardScaler=StandardScaler, np=np)
models = (Ridge, PoissonRegressor, LogisticRegression, HistGradientBoostingRegressor, HistGradientBoostingClassifier)
vars(quoted).update({model.__name__: model for model in (TransformedTargetRegressor, *models)})


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({}, "to hold out the last ones instead, as for a forecast: time='day' keep=['day']"),
        ({"time": "day"}, "to use the season and day of the week of 'day' as inputs: keep=['day']"),
        ({"time": "day", "keep": ("day",)}, None),
        ({"time": "no"}, None),
        ({"group": "town"}, None),
        ({"drop": ("big", "day")}, None),
    ],
)
def test_a_series_in_time(options, note):
    notes = prepare(Settings("t", "price", **{"drop": ("big",), **options}), messy_table()).notes
    told = [line for line in notes if "'day'" in line]
    assert told == [] if note is None else (len(told) == 1 and told[0].endswith(note))
    few = prepare(Settings("t", "price"), messy_table().head(100)).notes  # of less than a year
    assert [line for line in few if line.endswith("as for a forecast: time='day'")]
    shuffled = prepare(Settings("t", "price"), messy_table().sample(frac=1, random_state=0)).notes
    assert not [line for line in shuffled if "'day'" in line]


class TestBaselines:
    RNG = np.random.default_rng(0)
    X = RNG.normal(size=(600, 3)).astype(np.float32)

    def fit(self, y, classes=0, weights=None, likelihood=None):
        prepared = SimpleNamespace(
            settings=SimpleNamespace(seed=0, likelihood=likelihood),
            split=Split(np.arange(500), np.arange(500, 600), ""),
            target=SimpleNamespace(classes=range(classes)),
            matrix=self.X,
            y=y,
            weights_of=lambda rows: None if weights is None else weights[rows],
        )
        found = baselines.baselines(prepared)
        return {name: evaluation.scores(*row) for name, row in found.items()}

    def test_of_a_regression(self):
        y = np.where(self.X[:, 0] > 0, 3.0, -3.0) + 0.5 * self.RNG.normal(size=600)
        found = self.fit(y)
        assert found["gradient boosting"]["RMSE"] == pytest.approx(0.55, rel=0.2)
        assert 1.5 < found["linear model"]["RMSE"] < 2.2
        for row in found.values():  # the width is that of new rows, not of those trained on
            assert 0.9 <= row["coverage 95%"] <= 1.0

    def test_of_counts(self):
        """Models of counts have probabilities, which densities of a Gaussian are not."""
        rng = np.random.default_rng(1)
        mean = np.exp(1.0 + 0.8 * self.X[:, 0])
        y = stats.nbinom(2.0, 2.0 / (2.0 + mean)).rvs(random_state=rng).astype(np.float64)
        found = self.fit(y, likelihood="negative_binomial")
        true = -stats.nbinom(2.0, 2.0 / (2.0 + mean)).logpmf(y)[500:].mean()
        alone = -stats.nbinom(1.0, 1.0 / (1.0 + y[:500].mean())).logpmf(y[500:]).mean()
        assert found["linear model"]["NLL"] == pytest.approx(true, abs=0.05)
        assert found["gradient boosting"]["NLL"] == pytest.approx(true, abs=0.2)
        assert found["constant"]["NLL"] == pytest.approx(alone, abs=0.1)
        assert found["linear model"]["NLL"] < found["constant"]["NLL"] - 0.1

    def test_rows_count_by_their_weights(self):
        """Those of hardly any weight have other targets, which neither the fit nor the scores reflect."""
        weights = np.where(np.arange(600) % 3 == 0, 1e-9, 1.0)
        y = np.where(weights == 1.0, self.X[:, 0], 1e3) + 0.1 * self.RNG.normal(size=600)
        linear = self.fit(y, weights=weights)["linear model"]
        assert linear["RMSE"] == pytest.approx(0.1, rel=0.2)
        assert linear["CRPS"] == pytest.approx(0.1 / np.sqrt(np.pi), rel=0.2)
        assert linear["coverage 95%"] == pytest.approx(0.95, abs=0.06)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_of_a_constant(self, weighted):
        weights = np.where(np.arange(600) % 3 == 0, 4.0, 1.0) if weighted else None
        train, test = (None, None) if weights is None else (weights[:500], weights[500:])
        y = self.RNG.normal(size=600) + np.where(np.arange(600) % 3 == 0, 5.0, 0.0)
        constant = self.fit(y, weights=weights)["constant"]
        error = (y[500:] - np.average(y[:500], weights=train)) ** 2
        assert constant["RMSE"] == pytest.approx(np.sqrt(np.average(error, weights=test)))
        label = (y > 3.0).astype(np.int64)
        shares = np.bincount(label[:500], train) / np.bincount(label[:500], train).sum()
        constant = self.fit(label, 2, weights)["constant"]
        assert constant["NLL"] == pytest.approx(-np.average(np.log(shares[label[500:]]), weights=test))

    @pytest.mark.parametrize("options", [{}, {"time": "day"}, {"time": "day", "keep": ("day",)}, {"weights": "w"}])
    @pytest.mark.parametrize("target", ["price", "big"])
    def test_the_quoted_code_gives_the_scores(self, target, options):
        table = messy_table()
        settings = Settings("t", target, drop=("price" if target == "big" else "big",), missing=("-999",), **options)
        prepared = prepare(settings, table)
        weights, X = table["w"], table.drop(columns=target)
        recipes, found = baselines.recipes(prepared), baselines.baselines(prepared)
        assert set(recipes) == {"linear model", "gradient boosting"} == set(found) - {"constant"}
        for name, recipe in recipes.items():
            model = eval(recipe, vars(quoted))
            train, test = (prepared.rows[part] for part in (prepared.split.training, prepared.split.held_out))
            share = (weights / weights[train].mean())[train] if "weights" in options else None
            model.fit(X.iloc[train], table[target][train], **{f"{n}__sample_weight": share for n, _ in model.steps[1:]})
            scores, y = evaluation.scores(*found[name]), table[target].to_numpy()[test]
            kept = weights[test] if "weights" in options else None
            exact = 1e-9 if name == "linear model" else 2e-3  # the order of rows breaks ties between splits of trees
            if target == "price":
                error = np.average((model.predict(X.iloc[test]) - y) ** 2, weights=kept)
                assert scores["RMSE"] == pytest.approx(np.sqrt(error), rel=exact)
            else:
                probs = model.predict_proba(X.iloc[test])[np.arange(len(test)), (y == "yes").astype(int)]
                assert scores["NLL"] == pytest.approx(-np.average(np.log(probs), weights=kept), rel=max(exact, 1e-6))

    @pytest.mark.parametrize("name", ["log", "log1p", "sqrt"])
    def test_of_a_transformed_target(self, name):
        """The densities are those of the target, by hand, and the quoted code predicts the medians."""
        table = messy_table().drop(columns="big")
        prepared = prepare(Settings("t", "price", missing=("-999",)), table)
        train, test = (prepared.rows[part] for part in (prepared.split.training, prepared.split.held_out))
        y, X = table["price"].to_numpy(), table.drop(columns="price")
        functions = [target_transform.fitted(name, y[train])]
        rows, _ = baselines.baselines(prepared, functions)["linear model"]
        recipe = baselines.recipes(prepared, name)["linear model"]
        median = eval(recipe, vars(quoted)).fit(X.iloc[train], y[train]).predict(X.iloc[test])
        if name == "log":
            variance = np.log1p((rows["std"] / rows["mean"]) ** 2)
            np.testing.assert_allclose(rows["mean"], median * np.exp(0.5 * variance), rtol=1e-3)
            density = stats.lognorm(np.sqrt(variance), scale=median).logpdf(y[test])
            np.testing.assert_allclose(rows["nll"], -density, rtol=1e-3, atol=1e-2)
        middle = functions[0](torch.from_numpy(np.array([rows["lower"], rows["upper"]]))).mean(0)
        inside = rows["lower"] > 0
        assert inside.sum() > 10
        found = functions[0].inverse(middle).numpy()[inside]
        np.testing.assert_allclose(found, median[inside], rtol=5e-3 if name == "sqrt" else 1e-6)
        plain, _ = baselines.baselines(prepared)["linear model"]
        assert evaluation.margin(rows, plain)[0] > 0.05

    def test_a_transform_without_a_name_in_numpy_is_not_quoted(self):
        assert baselines.recipes(None, "quantile") == {}

    def test_gains_over_the_constant(self):
        rows = {name: {"nll": np.full(3, nll)} for name, nll in (("linear model", 1.0), ("constant", 3.0))}
        ours = {"nll": np.array([2.0, 2.5, 3.0])}
        found = evaluation.compared(ours, rows)
        assert found["margins"] == {"linear model": evaluation.margin(ours, rows["linear model"])}
        assert found["gains"]["linear model"] == [2.0, 0.0]
        assert found["gains"]["bayesadam"][0] == 0.5
        assert evaluation.compared(ours, {}) == {"margins": {}, "gains": {}}
        ours["nll"][0] = -90.0  # one row that the constant does not expect at all counts for 3 nats
        assert evaluation.compared(ours, rows)["gains"]["bayesadam"][0] == pytest.approx((3.0 + 0.5 + 0.0) / 3)
        assert evaluation.compared(ours, rows)["margins"]["linear model"][0] == pytest.approx((91.0 - 1.5 - 2.0) / 3)
        single = {name: {"nll": row["nll"][:1]} for name, row in rows.items()}
        assert set(evaluation.compared({"nll": np.ones(1)}, single)["gains"].values()) == {None}

    def test_means_that_are_no_better_than_a_constant(self):
        assert evaluation.worse_than_constant({"bayesadam": {"RMSE": 2.0}, "constant": {"RMSE": 2.0}})
        models = {"bayesadam": {"RMSE": 1.0}, "linear model": {"RMSE": 1_017.0}, "constant": {"RMSE": 63.0}}
        assert evaluation.worse_than_constant(models)
        assert not evaluation.worse_than_constant({"bayesadam": {"RMSE": 1.9}, "constant": {"RMSE": 2.0}})
        assert not evaluation.worse_than_constant({"bayesadam": {"RMSE": 2.0}})  # the baselines were left out

    def test_of_a_classification_with_a_class_that_training_rows_do_not_have(self, monkeypatch):
        monkeypatch.setattr(baselines, "MAX_ROWS", 400)
        found = self.fit((self.X[:, 0] > 0).astype(np.int64) * 2, 3)
        assert found["linear model"]["accuracy"] > 0.95
        assert found["gradient boosting"]["NLL"] < 0.3
