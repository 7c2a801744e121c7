"""Tuning hyper-parameters by Bayesian optimisation in rounds; the candidates of all studies are evaluated together.

A study is one search, for example on one data split. Optuna proposes candidates and records the results. The objective
receives a whole round at once, so that the networks of all studies can be trained as one population. An interrupted run
can be resumed::

    from optuna.distributions import FloatDistribution
    from bayesadam import tuning

    def objective(candidates):
        return [-((c.params["x"] - 0.3) ** 2) - 0.1 * c.study for c in candidates]

    splits = [f"split {i}" for i in range(20)]
    space = {"x": FloatDistribution(0.0, 1.0)}
    found = tuning.tune(objective, space, studies=splits, rounds=20, storage="tuning.log")
    print([study.best_params for study in found])
"""

try:
    import optuna as _optuna  # noqa: F401
except ImportError as error:
    raise ImportError('bayesadam.tuning needs optuna: pip install "bayesadam[tune]"') from error

from bayesadam.tuning.plan import Candidate as Candidate
from bayesadam.tuning.search import tune as tune
