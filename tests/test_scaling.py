"""One standardisation for matrices and tables: the same inputs reach the network."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bayesadam.scaling import column_scales, in_one_unit, input_scales, standardized
from bayesadam.sklearn import BayesianMLPRegressor, Settings, TableEncoder, fit_table


@pytest.fixture
def reached(monkeypatch):
    """The inputs of every fit in this test, as the members of the ensemble get them."""
    from bayesadam.tables.estimators import base

    seen, divide = [], base.member_parts

    def parts(divided, inputs, *rest):
        seen.append(inputs.numpy().copy())
        return divide(divided, inputs, *rest)

    monkeypatch.setattr(base, "member_parts", parts)
    return seen


class TestTheSameInputs:
    def test_of_every_kind_of_column(self, reached, tmp_path):
        generator = np.random.default_rng(0)
        size, new = generator.normal(50.0, 20.0, 60), generator.random(60) < 0.5
        city = generator.choice(["Oslo", "Rome"], 60)
        absent = np.arange(60) % 7 == 0
        known = pa.array(np.where(absent, np.nan, size), from_pandas=True)
        table = pa.table({"size": known, "new": new, "city": city, "price": size + 0.5})
        parquet.write_table(table, tmp_path / "t.parquet")
        settings = Settings(str(tmp_path / "t.parquet"), "price", members=1, epochs=1, hidden=(2,))
        result = fit_table(settings)
        held_out = np.array(result.report["held_out"]["row"]) - 1
        rows = np.setdiff1d(np.arange(60), held_out)
        filled = np.where(absent, np.median(size[rows][~absent[rows]]), size)
        levels = result.estimator.inputs_.columns_[2].levels
        codes = np.stack([filled, absent, new, city == levels[0], city == levels[1]], axis=1)[rows]
        BayesianMLPRegressor(members=1, epochs=1, hidden=(2,)).fit(codes, table["price"].to_numpy()[rows])
        np.testing.assert_allclose(reached[0], reached[1], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(reached[0].mean(0), 0.0, atol=1e-6)
        np.testing.assert_allclose(reached[0].std(0), 1.0, rtol=1e-6)

    def test_what_is_standardised_already_is_left_as_it_is(self, reached):
        x, y = np.random.default_rng(0).normal(7.0, 3.0, (30, 2)), np.arange(30.0)
        model = BayesianMLPRegressor(members=1, epochs=1, hidden=(2,), standardize=False).fit(x, y)
        np.testing.assert_array_equal(reached[0], x.astype(np.float32))
        assert model.get_params()["standardize"] is False
        with pytest.raises(ValueError, match="^standardize must be True or False, got 'no'$"):
            BayesianMLPRegressor(standardize="no").fit(x, y)


def test_one_unit_is_found_over_all_columns_of_a_table():
    ratings = {"a": [1.0, 5.0, 3.0, 2.0], "b": [1.0, 2.0, 5.0, 5.0], "c": [1.0, 1.0, 2.0, 1.0]}
    model = BayesianMLPRegressor(members=1, epochs=1, hidden=(2,), encoder=TableEncoder())
    model.fit(pa.table(ratings), np.arange(4.0))
    codes = np.stack([np.array(values) for values in ratings.values()], axis=1)
    mean, std = input_scales(codes)
    assert len(set(std)) == 1
    np.testing.assert_array_equal(model._x_mean, mean)
    np.testing.assert_array_equal(model._x_std, std)
    assert in_one_unit(codes.std(0), codes.min(0), codes.max(0)).tolist() == std.tolist()


def test_a_rare_truth_value_is_not_far_from_all_other_rows():
    x = np.stack([np.arange(100.0), 7.0 * (np.arange(100) == 3), 7.0 * (np.arange(100) < 50)], axis=1)
    x[0, 0] = 1e3
    mean, std = input_scales(x)
    known, deviations = column_scales(x)
    np.testing.assert_array_equal(mean, known)
    assert std.tolist() == [deviations[0], 7.0 / 5.0, deviations[2]]


def test_standardising_in_runs_of_rows_is_that_of_all_rows():
    values = np.random.default_rng(0).normal(1.7e9, 100.0, (20_000, 2))
    mean, std = values.mean(0), values.std(0)
    found = standardized(values, mean, std)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, ((values - mean) / std).astype(np.float32))


class TestNumbersFarFromZero:
    STEPS = np.random.default_rng(0).permutation(100).astype(float)

    @pytest.mark.parametrize(("offset", "unit"), [(4e15, 7.0), (-4e15, 8.0), (1.7e18, 1_024.0)])
    @pytest.mark.parametrize("weight", [None, np.arange(100.0) % 3])
    def test_they_are_standardised_like_their_differences(self, offset, unit, weight):
        values = np.stack([self.STEPS * unit, self.STEPS], axis=1)
        moved = values + np.array([offset, 0.0])
        found = standardized(moved, *column_scales(moved, weight))
        np.testing.assert_allclose(found, standardized(values, *column_scales(values, weight)), atol=0.01)

    @pytest.mark.parametrize("value", [1e18 / 7, 1e30, -0.1, 1e-300])
    @pytest.mark.parametrize("weight", [None, np.arange(100.0) % 3])
    def test_the_mean_of_equal_numbers_is_exact(self, value, weight):
        mean, std = column_scales(np.full((100, 1), value), weight)
        assert (mean.tolist(), std.tolist()) == ([value], [1.0])

    def test_numbers_that_differ_by_rounding_are_constant(self):
        """Divided by their deviation, a number of a new row that is truly different would be astronomical."""
        mean, std = column_scales(np.array([[0.1], [0.1 + 2**-56], [0.1 - 2**-56]]))
        assert std == 1.0
        assert mean == pytest.approx(0.1, rel=1e-15)

    def test_equality_is_that_of_rows_with_weight(self):
        mean, std = column_scales(np.array([[7.0], [1e30], [1e30]]), np.array([0.0, 1.0, 2.0]))
        assert (mean.tolist(), std.tolist()) == ([1e30], [1.0])
