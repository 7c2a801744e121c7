"""scikit-learn estimators: calibrated predictions for tables, in two lines::

    from bayesadam.sklearn import BayesianMLPRegressor
    mean, std = BayesianMLPRegressor().fit(X, y).predict(X_new, return_std=True)

Fitted estimators are saved without pickle by their method ``save``, and loaded by :func:`load_estimator`.
"""

from typing import TYPE_CHECKING, Any

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError:
    raise ImportError('bayesadam.sklearn needs scikit-learn: pip install "bayesadam[sklearn]"') from None

from bayesadam.tables.encoder.encoder import TableEncoder
from bayesadam.tables.encoder.findings import TableError
from bayesadam.tables.estimators.classifier import BayesianMLPClassifier
from bayesadam.tables.estimators.loading import load_estimator
from bayesadam.tables.estimators.member_training import TrainingStatus
from bayesadam.tables.estimators.methods import METHODS
from bayesadam.tables.estimators.regressor import BayesianMLPRegressor
from bayesadam.tables.estimators.scorers import interval_score, neg_crps, neg_nll
from bayesadam.tables.runs.settings import RunError, Settings

if TYPE_CHECKING:
    from bayesadam.tables.runs.fit_table import TableFit, fit_table

__all__ = [
    "METHODS",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "RunError",
    "Settings",
    "TableEncoder",
    "TableError",
    "TableFit",
    "TrainingStatus",
    "fit_table",
    "interval_score",
    "load_estimator",
    "neg_crps",
    "neg_nll",
]


def __getattr__(name: str) -> Any:
    if name in ("TableFit", "fit_table"):  # which need the report, that predictions do not wait for
        from bayesadam.tables.runs import fit_table

        return getattr(fit_table, name)
    raise AttributeError(f"module 'bayesadam.sklearn' has no attribute {name!r}")
