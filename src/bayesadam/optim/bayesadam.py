"""BayesAdam, the library's own method: Adam's step at sampled weights, with a width that is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from bayesadam.checks import check_temperature, is_positive
from bayesadam.core.layout import INIT
from bayesadam.core.rule import Hyper, Number, Option, State, Updated, average, maximum, with_prior
from bayesadam.curvature import PerExampleSquares
from bayesadam.optim import overfitting
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.groups import checked_squares
from bayesadam.optim.options import CommonOptions
from bayesadam.optim.schedules import annealed, default_temperature, warmed_up
from bayesadam.optim.vadam import VadamRule, adam_step

INITIAL_STEPS = 30.0
"""Number of steps that the initial precision counts as."""
RECENCY = 3.0
"""How fast the start loses weight: after ``t`` steps it has about ``(k / (t + k))^RECENCY``, ``k = INITIAL_STEPS``."""
START = 0.1
"""Curvature of the mean loss that is assumed at the start."""
LEAST = 1e-3
"""Share of the temperature with which the noise begins."""
COOLER = 0.1
"""Temperature of the posterior relative to that of the noise in training."""
NARROW = 64.0
"""Prior precision above which the learning rate is smaller: in wide layers, with ``"init"``."""


class BayesAdamRule(VadamRule):
    """Adam at sampled weights; ``M`` is the number of examples over which a gradient is averaged::

        h     = g^2                                           or 1/M of the mean squared gradient of an example
        m     <- b1 m + (1 - b1) (g + tau lt (mu - mu0))
        v     <- b2 v + (1 - b2) h
        mu    <- mu - lr_t min(1, 8 / sqrt(lambda)) m_hat / (sqrt(v_hat) + tau lt + 1e-8)
        1 / sigma^2 = (1 - B) (N M v_hat / tau + lambda) + B initial_precision
        tau   = temperature max(1e-3, (t / total_steps)^4)

    The square of a mean of ``M`` gradients is ``1 / M`` of their mean square, up to the square of their mean, so that
    ``M v_hat`` is on the scale of the Gauss-Newton diagonal, and the optimum of the tempered objective has the
    precision ``N h / tau + lambda``. ``B`` is the weight of a start that counts as ``k = 30`` steps: a step makes it
    forget the share ``max(1 - b2, 3 / (t + k + 2))``. ``lr_t`` rises over a twentieth of the steps and falls along half
    a cosine to a hundredth at ``total_steps``. The noise grows with ``tau``, so that the network first learns its
    features as with Adam. The posterior is that of a tenth of ``temperature`` at any time. If it becomes the prior of
    further training, ``tau lt`` in the step is ``0.1 temperature lt`` from the start, so that earlier examples count as
    much as new ones, and the rate does not depend on ``lambda``.
    ``lr`` is multiplied and ``temperature`` divided by ``slowdown``, which is 1 unless the training overfits.
    """

    options = (
        Option("batch_size", 1.0, "a positive, finite number", is_positive, width=True),
        Option("total_steps", None, "None or a positive, finite number", lambda v: v is None or is_positive(v)),
        Option("max_memorised", 0.6, "None or a positive, finite number", lambda v: v is None or is_positive(v)),
        Option("slowdown", 1.0, "a number in (0, 1]", lambda v: 0.0 < v <= 1.0),
        Option("per_example", False, "True or False", lambda v: isinstance(v, bool), static=True),
        Option("continues", 0.0, "0 or 1", lambda v: v in (0.0, 1.0)),
    )

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``1 / sigma^2``; see the class."""
        return self._precision(state, hp, temperature_now(hp))

    def posterior_precision(self, state: State, hp: Hyper) -> Tensor:
        """``1 / sigma^2`` at a tenth of ``temperature``, however many steps have been made."""
        return self._precision(state, hp, COOLER * hp.temperature)

    def _precision(self, state: State, hp: Hyper, temperature: Number) -> Tensor:
        corrected = (1.0 - hp.initial_weight) / maximum(1.0 - hp.beta2_product, 1e-30)
        return (hp.num_data * hp.batch_size / temperature * corrected) * state["exp_avg_sq"] + self.floor(hp)

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        if curvature is None:  # of a parameter without noise
            curvature = grad * grad
        elif hp.per_example:
            curvature = curvature / hp.batch_size
        temperature = hp.continues * COOLER * hp.temperature + (1.0 - hp.continues) * temperature_now(hp)
        m = average(state["exp_avg"], with_prior(grad, mean, hp, temperature), hp.beta1)
        v = average(state["exp_avg_sq"], curvature, hp.beta2)
        damping = temperature * hp.prior_precision / hp.num_data + 1e-8
        slower = maximum(1.0, (1.0 - hp.continues) * hp.prior_precision / NARROW) ** 0.5
        return mean - adam_step(m, v, damping, hp) / slower, {"exp_avg": m, "exp_avg_sq": v}

    def forgetting(self, hp: Hyper) -> Number:
        """``max(1 - b2, 3 / (t + k + 2))``."""
        return maximum(1.0 - hp.beta2, RECENCY / (hp.step + INITIAL_STEPS + (RECENCY - 1.0)))

    def default_start(self, hp: Hyper) -> Number:
        """The precision ``lambda + 0.1 N / tau`` of a small curvature."""
        return hp.prior_precision + START * hp.num_data / hp.temperature

    def numbers(self, group: Mapping[str, Any]) -> dict[str, float]:
        """The learning rate of the next step, in which a scheduler of PyTorch may replace the cosine, and the
        temperature; both with the factor that overfitting has led to.
        """
        if group["total_steps"] is None:
            raise RuntimeError("total_steps must be filled in by plan() or by the callback of a trainer, got None")
        slowdown, steps = group["slowdown"], group["noise_step"]
        rate = float(group["lr"]) * warmed_up(steps, group["total_steps"])
        if "initial_lr" not in group:
            rate *= annealed(steps / group["total_steps"])
        numbers = {"lr": slowdown * rate}
        if slowdown < 1.0 and not group["continues"]:  # noise would favour the examples of the prior
            numbers["temperature"] = min(1.0, group["temperature"] / slowdown)
        return numbers

    def remembered(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The means from which movements are measured, unless the training is not watched."""
        return () if group["max_memorised"] is None else overfitting.MEANS


def temperature_now(hp: Hyper) -> Number:
    """The temperature of a step: it grows with the fourth power of the share of the steps that have been made."""
    left = maximum(0.0, 1.0 - hp.step / hp.total_steps)
    squared = (1.0 - left) ** 2
    return hp.temperature * maximum(LEAST, squared**2)


class BayesAdam(PerturbedOptimizer):
    """Adam with weight noise whose width is learned: the method to start with. ::

        opt = ba.BayesAdam(
            model.named_parameters(),
            num_data=len(train_set),
            batch_size=32,
            total_steps=epochs * len(loader),
        )

    It is Vadam (Khan et al. 2018, Fig. 1) with nine departures, chosen by measurement (``benchmarks/defaults.py``), so
    that the posterior's width is learned within a training of ordinary length:

    - The curvature is ``M`` times the squared mean gradient, so that the width does not depend on the batch size.
    - The curvature is bias-corrected, and the initial precision counts as 30 steps. In the paper the initial precision
      is forgotten at the rate ``tau (1 - b2)`` per step, over some thousand steps, before which most trainings end.
    - The prior has the scale of each parameter's initialisation in place of ``N(0, 1)``.
    - The temperature of the KL divergence is mostly far below 1; the default is ``epochs sqrt(steps) / 16000``.
    - During the training, the temperature grows from a thousandth of its final value with ``(t / total_steps)^4``.
      Noise at the start keeps networks from learning their features; noise at the end prevents overfitting.
    - The posterior has a tenth of the temperature of the noise. Training needs wide noise, but samples of a narrower
      posterior predict better.
    - The learning rate rises over a twentieth of the steps and falls along half a cosine. It is smaller for wide
      layers, whose weights have a narrow prior: at the same rate deep networks do not learn.
    - A training that memorises its rows becomes slower and noisier: gradients show it, without held-out data.

    The ways to train and the arguments that are not listed are those of :class:`PerturbedOptimizer`.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`.
        lr: Learning rate, not negative; for parameters with a prior precision above 64 it is multiplied by
            ``8 / sqrt(prior_precision)``.
        num_data: Number of training examples ``N``, in the unit over which the loss is averaged: rows, or tokens for
            the mean loss over tokens.
        batch_size: Number of examples in the loss of one step, in the same unit; with several processes, of all of
            them together.
        total_steps: Number of steps of the training, over which the noise grows and the learning rate, after a warm-up,
            falls to a hundredth along half a cosine. A scheduler of PyTorch replaces the cosine and not the warm-up,
            except ``ReduceLROnPlateau``, which multiplies it, as a change of ``lr`` by hand does. A training that ends
            earlier has the rate, the noise and the posterior of that moment; further steps have those of the end.
            ``None`` leaves it to :meth:`plan`, which the callbacks of trainers call (:mod:`bayesadam.integrations`).
        betas: Decay rates of the averages of the gradient and of its square, each in [0, 1).
        prior_precision: Precision of the prior. With ``"init"`` each parameter tensor has its own: 0.3 divided by the
            variance of its initial values, where ten times this variance is rounded to a power of two. If the values
            are all equal, their variance is taken as 1.
        temperature: Factor of the KL divergence at the end of the training, in (0, 1]. The default is the number of
            epochs, ``total_steps batch_size / num_data``, times ``sqrt(total_steps) / 16000``, at most 1. It is the one
            hyper-parameter that is worth trying values of, for example a third and three times the default.
        max_memorised: How many nats per data point the training may memorise, as gradients show it without held-out
            data, before it becomes slower and noisier; see :mod:`bayesadam.optim.overfitting`. It takes two more
            vectors of the size of the weights, and has an effect in trainings of at least two epochs of at least four
            steps. ``None`` is without them and without this control, as populations are.
        curvature: A :class:`PerExampleSquares` of the module. The curvature is then the mean of the squared gradients
            of single examples, as in VOGN, in place of ``M`` times the square of their mean. Its widths are the most
            accurate, at the cost of collecting them.

    Raises:
        ValueError: A hyper-parameter is out of its range, or ``curvature`` is not a :class:`PerExampleSquares`.
    """

    rule = BayesAdamRule()
    cooling = COOLER
    usual: ClassVar[Mapping[str, Any]] = {"prior_precision": INIT, "temperature": None}
    decided = ("per_example", "continues", "slowdown")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 5e-3,
        *,
        num_data: float,
        batch_size: float,
        total_steps: float | None,
        max_memorised: float | None = 0.6,
        curvature: PerExampleSquares | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        self._source = None if curvature is None else checked_squares(curvature)
        if options.get("temperature") is None and total_steps is not None:
            options["temperature"] = default_temperature(num_data, batch_size, total_steps)
        of_rule = {"batch_size": batch_size, "total_steps": total_steps, "per_example": curvature is not None}
        of_rule |= {"max_memorised": max_memorised, "continues": float(options.get("prior") is not None)}
        super().__init__(params, lr, num_data=num_data, **of_rule, **options)
        for group in self.param_groups if max_memorised is not None else ():
            group["overlaps"] = overfitting.start()

    def plan(self, total_steps: float) -> None:
        """Set ``total_steps`` where it was given as ``None``, before the first step.

        Raises:
            ValueError: It is not a positive, finite number.
        """
        for group in self.param_groups:
            if group["total_steps"] is None:
                temperature = default_temperature(group["num_data"], group["batch_size"], total_steps)
                group["total_steps"] = total_steps
                group["temperature"] = temperature if group["temperature"] is None else group["temperature"]

    def watch(self) -> None:
        """Measure by the gradients of a step, before it is made, whether the training memorises its rows; networks that
        are trained at once have seeds of their own.
        """
        if self.param_groups[0]["max_memorised"] is None:
            return
        for seed in dict.fromkeys(group["seed"] for group in self.param_groups):
            overfitting.watch([group for group in self.param_groups if group["seed"] == seed], self.state)

    def check_group(self, group: dict[str, Any]) -> None:
        """Check the hyper-parameters of a new group; the prior may be that of the initial values."""
        is_planned = group["temperature"] is not None or group["total_steps"] is not None
        if is_planned:
            check_temperature(group["temperature"], zero=False)
        elif group["continues"]:
            raise ValueError("total_steps must be a number for a training that continues from a prior, got None")
        number = 1e-30 if group["prior_precision"] == INIT else group["prior_precision"]
        temperature = group["temperature"] if is_planned else 1.0
        super().check_group({**group, "prior_precision": number, "temperature": temperature})
