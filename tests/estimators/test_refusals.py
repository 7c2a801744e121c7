"""What the estimators refuse: every kind of mistake once, with a word or two of the message."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor, interval_score, neg_crps, neg_nll
from bayesadam.tables.encoder.frames import as_table

pytestmark = pytest.mark.usefixtures("few_trees")
TINY = {"members": 2, "hidden": (4,), "epochs": 2, "random_state": 0}
X = np.random.default_rng(0).uniform(-3.0, 3.0, (60, 2))
Y = np.sin(X[:, 0]) + 5.0
LABELS = np.array(["ash", "oak"])[np.arange(60) % 2]
TEXT = pd.DataFrame({"size": np.linspace(0.0, 1.0, 60), "city": LABELS})
NO_FINITE = r"must be finite \(below 1e\+38\)"
NO_TARGET = "^y must have a target in every row, got"


def regressor(**options):
    return BayesianMLPRegressor(**{**TINY, **options})


def changed(values, place, value):
    values = np.array(values, dtype=object if value is None or isinstance(value, str) else float)
    values[place] = value
    return values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "method must be one of"),
        ({"hidden": 50}, "hidden must be a tuple of whole numbers of at least 1, got 50"),
        ({"hidden": (5, 0)}, "hidden must be"),
        ({"activation": "step"}, "activation must be one of"),
        ({"members": 0}, "members must be None or a whole number of at least 1, got 0"),
        ({"epochs": 1.5}, "epochs must be None or"),
        ({"batch_size": True}, "batch_size must be None or"),
        ({"lr": 0.0}, "lr must be a positive, finite number, got 0.0"),
        ({"prior_precision": np.inf}, "prior_precision must be"),
        ({"time_budget": -1.0}, "time_budget must be"),
        ({"early_stopping": 5}, "early_stopping must be True or False, got 5"),
        ({"calibrate": "yes"}, "calibrate must be True or False, got 'yes'"),
        ({"mc_samples": 0}, "mc_samples must be a whole number of at least 1, got 0"),
        ({"device": "abacus"}, "device must be one that PyTorch can use, got 'abacus'"),
        ({"device": "meta"}, "device must be .*it holds no numbers"),
        ({"encoder": "auto"}, "encoder must be None or a TableEncoder, got 'auto'"),
        ({"noise": "yes"}, r"noise must be one of \('auto', 'constant', 'input'\) or a positive"),
        ({"noise": True}, "noise must be one of"),
        ({"noise": np.nan}, "noise must be one of"),
        ({"noise": "input", "calibrate": False}, "calibrate must be True with noise='input', got False"),
        ({"noise": 0.5, "likelihood": "poisson"}, "noise must be 'auto' with likelihood='poisson', got 0.5"),
        ({"target_transform": "cube"}, r"target_transform must be None or one of \('auto', 'none', .*got 'cube'"),
        ({"target_transform": "log", "likelihood": "student_t"}, "target_transform must be 'none' or 'auto' with"),
        ({"target_transform": "log"}, "y must be positive for target_transform='log', got -"),
        ({"target_transform": "sqrt"}, "y must be at least 0 for target_transform='sqrt', got -"),
    ],
)
def test_options(options, message):
    model = regressor(**options)
    with pytest.raises(ValueError, match=f"^{message}"):
        model.fit(X, Y - 5.0)
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (changed(X, (4, 1), 1e200), Y, {}, f"^X {NO_FINITE}, got .* at \\(4, 1\\)$"),
        (X, changed(Y, 3, -2e38), {}, f"^y {NO_FINITE}, got .* at \\(3,\\)$"),
        (TEXT, changed(Y, 3, np.nan), {}, f"{NO_TARGET} 1 row of 60 without a target: leave out such rows$"),
        (X, changed(Y, [3, 8], np.nan), {}, f"{NO_TARGET} 2 rows of 60 without a target: leave out such rows$"),
        (X, np.stack([changed(Y, 3, np.nan), changed(Y, [3, 5], np.nan)], axis=1), {}, f"{NO_TARGET} 2 rows of 60 "),
        (X, pd.Series(["$5", None, "", *["$7"] * 57]), {}, f"{NO_TARGET} 2 rows of 60 "),
        (TEXT, Y[:-1], {}, "inconsistent numbers of samples"),
        (changed(changed(X, (1, 0), np.nan), (4, 1), np.inf), Y, {}, "^column 'x1' must hold finite .*'inf' in row 4$"),
        (TEXT.assign(city="Rome", size=1), Y, {}, "there must be a column to predict from, got none"),
        (TEXT, Y, {"sample_weight": 0.0 * Y}, "at least one"),
        (X, Y, {"groups": [1, 2]}, r"groups must be of shape \(60,\), got \(2,\)"),
        (X, Y, {"groups": pd.Series([None, "a"] * 30, dtype="string")}, "groups must have no missing values, got <NA>"),
        (X, Y, {"groups": changed(np.ones(60), 0, np.nan)}, "groups must have no missing values, got .*nan"),
        (X, Y, {"groups": changed(np.ones(60), 0, "a")}, "groups must be all texts or all numbers, got both"),
    ],
)
@pytest.mark.filterwarnings("ignore:columns are left out")
def test_data(x, y, options, message):
    model = regressor()
    with pytest.raises(ValueError, match=message):
        model.fit(x, y, **options)
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([1, *LABELS[1:]], dtype=object), "^y must be all texts or all numbers, got both"),
        (np.array([None, *LABELS[1:]], dtype=object), f"{NO_TARGET} 1 row of 60 "),
        (pd.Series([pd.NA, *LABELS[1:]], dtype="string"), f"{NO_TARGET} 1 row of 60 "),
        ([np.nan, *LABELS[1:].tolist()], f"{NO_TARGET} 1 row of 60 "),  # of which NumPy makes the text "nan"
        (changed(np.arange(60) % 2, 0, np.nan), f"{NO_TARGET} 1 row of 60 "),
    ],
)
def test_labels(y, message):
    with pytest.raises(ValueError, match=message):
        BayesianMLPClassifier(**TINY).fit(X, y)


@pytest.mark.parametrize("method", ["anchored", "vogn"])
def test_weights_of_rows(method):
    for model, y in ((BayesianMLPRegressor, Y), (BayesianMLPClassifier, LABELS)):
        with pytest.raises(ValueError, match="^sample_weight must be None"):
            model(method, **TINY).fit(X, y, sample_weight=np.ones(60))


class TestPredictions:
    @pytest.fixture(scope="class")
    @staticmethod
    def fitted():
        numbers = regressor(method="ensemble")
        return {
            "numbers": numbers.fit(X, Y),
            "blind": regressor(calibrate=False).fit(X, Y),
            "table": regressor().fit(TEXT, Y),
            "classes": BayesianMLPClassifier(**TINY).fit(X, LABELS),
        }

    @pytest.mark.parametrize(
        ("name", "call", "message"),
        [
            ("numbers", lambda m: m.predict_interval(X, method="jackknife"), "method must be one of"),
            ("numbers", lambda m: m.predict_interval(X, 1.0), r"coverage must be in \(0, 1\), got 1.0"),
            ("numbers", lambda m: m.predict_interval(X, "0.9"), r"coverage must be in \(0, 1\), got '0.9'"),
            ("numbers", lambda m: m.predict(X, quantiles=0.5), "^quantiles must be a list of probabilities, got 0.5"),
            ("table", lambda m: m.predict(TEXT[:0]), "^X must have at least one row, got none$"),
            ("numbers", lambda m: m.predict_interval(X, 0.999, method="cross"), "coverage must be at most"),
            (
                "blind",
                lambda m: m.predict_interval(X, method="cross"),
                "method must be 'bayes' for counts and other targets",
            ),
            ("numbers", lambda m: m.predict(X, True, [0.5]), r"return_std must be False with quantiles=\[0.5\]"),
            (
                "numbers",
                lambda m: m.predict(changed(X, (0, 0), 1e200)),
                r"^X must be near the training inputs, got 1e\+200 in row 0",
            ),
            ("classes", lambda m: m.predict(changed(X, (4, 1), 9e37)), "^X must be near the training inputs, .* row 4"),
            (
                "numbers",
                lambda m: m.predict([[1e200, np.nan]]),
                r"^X must be near the training inputs, got 1e\+200 in row 0",
            ),
            ("table", lambda m: m.predict(TEXT.rename(columns={"size": "area"})), "it lacks 'size'"),
            ("table", lambda m: m.predict(TEXT[["size"]]), "it lacks 'city'"),
            ("table", lambda m: m.predict(TEXT.assign(size="many")), "column 'size' must hold .*'many'"),
            ("table", lambda m: m.predict(TEXT.assign(size=1e200)), "column 'size' must hold .*'1e.200'"),
            ("numbers", lambda m: neg_nll(m, X, Y[:-1]), "must be of"),
            ("classes", lambda m: neg_crps(m, X, Y), "^estimator must have .*, got BayesianMLPClassifier"),
            ("classes", lambda m: interval_score(m, X, Y), "^estimator must have"),
        ],
    )
    def test_calls(self, fitted, name, call, message):
        with pytest.raises(ValueError, match=message):
            call(fitted[name])


def test_what_is_no_estimator_of_ours_has_no_score():
    with pytest.raises(ValueError, match=r"^estimator must have .*, got LinearRegression\(\)$"):
        neg_nll(LinearRegression().fit(X, Y), X, Y)


def test_two_columns_of_one_name():
    with pytest.raises(ValueError, match=r"^X must have a name of its own for every column, got 'a' more than once$"):
        as_table(pd.DataFrame([["x", "y"]], columns=["a", "a"]))
