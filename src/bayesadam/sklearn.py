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

from bayesadam.tables.encoder.encoder import TableEncoder as TableEncoder
from bayesadam.tables.encoder.findings import TableError as TableError
from bayesadam.tables.estimators.classifier import BayesianMLPClassifier as BayesianMLPClassifier
from bayesadam.tables.estimators.loading import load_estimator as load_estimator
from bayesadam.tables.estimators.member_training import TrainingStatus as TrainingStatus
from bayesadam.tables.estimators.methods import METHODS as METHODS
from bayesadam.tables.estimators.regressor import BayesianMLPRegressor as BayesianMLPRegressor
from bayesadam.tables.estimators.scorers import interval_score as interval_score
from bayesadam.tables.estimators.scorers import neg_crps as neg_crps
from bayesadam.tables.estimators.scorers import neg_nll as neg_nll
from bayesadam.tables.runs.settings import RunError as RunError
from bayesadam.tables.runs.settings import Settings as Settings

if TYPE_CHECKING:
    from bayesadam.tables.runs.fit_table import TableFit as TableFit
    from bayesadam.tables.runs.fit_table import fit_table as fit_table


def __getattr__(name: str) -> Any:
    if name in ("TableFit", "fit_table"):  # which need the report, that predictions do not wait for
        from bayesadam.tables.runs import fit_table

        return getattr(fit_table, name)
    raise AttributeError(f"module 'bayesadam.sklearn' has no attribute {name!r}")
