"""The units: one per method, each on twenty draws of the data at once. The figure shows one of the draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.experiment import Context, Experiment, Report, Unit
from experiments.logistic_regression.comparison import cost
from experiments.logistic_regression.protocol import VON, settings
from experiments.logreg_toy.report import SHOWN, report
from experiments.results import Result

if TYPE_CHECKING:
    from experiments.logistic_regression.problem import Problem

ITERATIONS = 500_000


class Toy(Experiment):
    """Posteriors of two weights. The arguments shorten the protocol for tests."""

    name = "logreg-toy"
    title = "Logistic regression with two weights"
    source = "Khan et al. 2018, Fig. 2a"

    def __init__(self, draws: int = 20, shorter: int = 1, **von: Any) -> None:
        vadam = settings("vadam", 10, ITERATIONS // shorter, 0.1, 0.1, decay=0.55)
        newton = {**VON, "iterations": VON["iterations"] // shorter, **von}
        self._draws = list(range(draws))
        self._methods: dict[str, dict[str, Any]] = {
            "mf-exact": {"method": "mf-exact"},
            "von": newton,
            "von-full": {**newton, "method": "von-full"},
            "vogn-1": {**vadam, "method": "vogn", "batch_size": 1},
            "vadam-matlab": {**vadam, "method": "vadam-matlab"},
            "vadam": vadam,
        }

    def units(self) -> list[Unit]:
        """Return one unit per method."""
        shown = [SHOWN] if SHOWN in self._draws else self._draws[:1]
        return [
            Unit(key, {**config, "draws": shown if key == "von-full" else self._draws}, cost(config, 0.0003))
            for key, config in self._methods.items()
        ]

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Return means, standard deviations and divergences from MF-Exact, or means and covariances."""
        from experiments.logistic_regression.methods import fit
        from experiments.logistic_regression.metrics import symmetric_kl
        from experiments.logistic_regression.mf_exact import mf_exact
        from experiments.logreg_toy.data import draw

        config = unit.config
        problems = [draw(seed) for seed in config["draws"]]
        if config["method"] == "von-full":
            return {"runs": [_full(problem, config, context) for problem in problems]}
        exact = [mf_exact(problem.x, problem.y, problem.prior).posterior for problem in problems]
        found = exact
        if config["method"] != "mf-exact":
            seeds = config["draws"]
            found = fit(problems, config, seeds, start=1.0, checkpoint=context.folder, progress=context.progress)
        return {
            "runs": [
                {"mean": q.mean, "deviation": q.deviation, "symmetric_kl": symmetric_kl(q, p)}
                for q, p in zip(found, exact, strict=True)
            ]
        }

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return tables, and a figure with contours and ellipses."""
        return report(results)


def _full(problem: Problem, config: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Run the library's VON with a full covariance, with the same schedule and the same averaging."""
    import math

    import numpy as np
    import torch
    from torch import nn

    import bayesadam as ba

    model = nn.Linear(2, 1, bias=False).double()
    nn.init.ones_(model.weight)
    x, y = torch.from_numpy(problem.x), torch.from_numpy(problem.y[:, None])
    prior = float(problem.prior[0])
    optimizer = ba.VON(
        model.named_parameters(),
        config["lr"],
        num_data=len(y),
        betas=(0.0, 1.0 - config["rate"]),
        prior_precision=prior,
        initial_precision=1.0 + prior,
        covariance="full",
        hessian="exact",
        seed=config["draws"][0],
    )
    likelihood, steps = ba.Bernoulli(), config["iterations"]
    begin = steps - math.ceil(config["averaged"] * steps)
    mean, precision = np.zeros(2), np.zeros((2, 2))

    def decay(step: int) -> float:
        return 1.0 / (1.0 + step / float(config["half_life"]))

    schedulers: list[Any] = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, decay),
        ba.BetaScheduler(optimizer, decay),
    ]
    for step in range(steps):
        optimizer.step(lambda: likelihood(model(x), y))
        for scheduler in schedulers:
            scheduler.step()
        if step >= begin:
            found: Any = optimizer.posterior()  # a DenseGaussian
            mean += found.mean["weight"].numpy().ravel()
            precision += torch.cholesky_inverse(found.scale_tril).numpy()
        if step % 100 == 0:
            context.progress(step, steps)
    count = steps - begin
    return {"mean": mean / count, "covariance": np.linalg.inv(precision / count)}


EXPERIMENT = Toy()
