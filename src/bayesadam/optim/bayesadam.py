"""BayesAdam, the library's own method: Adam's step at sampled weights, with a width that is learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from bayesadam.checks import check_positive, check_temperature, is_positive
from bayesadam.core.layout import INIT
from bayesadam.core.rule import Hyper, Number, Option, State, Updated, average, maximum, with_prior
from bayesadam.curvature import PerExampleSquares
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.groups import checked_squares
from bayesadam.optim.options import CommonOptions
from bayesadam.optim.schedules import half_cosine
from bayesadam.optim.vadam import VadamRule, adam_step

INITIAL_STEPS = 30.0
"""Number of steps that the initial precision counts as."""
RECENCY = 3.0
"""How fast the start loses weight: after ``t`` steps it has about ``(k / (t + k))^RECENCY``, ``k = INITIAL_STEPS``."""
START = 0.1
"""Curvature of the mean loss that is assumed at the start."""
LONG = 16_000.0
"""Product of the number of epochs and the square root of the number of steps at which the temperature reaches 1."""
UNPLANNED = 0.01
"""Temperature of trainings of unknown length."""
LEAST = 1e-3
"""Share of the temperature with which the noise begins."""
COOLER = 0.1
"""Temperature of the posterior relative to that of the noise in training."""
FINAL = 0.01
"""Factor of the learning rate at the end of the planned steps."""


class BayesAdamRule(VadamRule):
    """Adam at sampled weights; ``M`` is the number of examples over which a gradient is averaged::

        h     = g^2                                           or 1/M of the mean squared gradient of an example
        m     <- b1 m + (1 - b1) (g + tau lt (mu - mu0))
        v     <- b2 v + (1 - b2) h
        mu    <- mu - lr_t m_hat / (sqrt(v_hat) + tau lt + 1e-8)
        1 / sigma^2 = (1 - B) (N M v_hat / tau + lambda) + B initial_precision
        tau   = temperature max(1e-3, (t / total_steps)^2)

    The square of a mean of ``M`` gradients is ``1 / M`` of their mean square, up to the square of their mean, so that
    ``M v_hat`` is on the scale of the Gauss-Newton diagonal, and the optimum of the tempered objective has the
    precision ``N h / tau + lambda``. ``B`` is the weight of a start that counts as ``k = 30`` steps: a step makes it
    forget the share ``max(1 - b2, 3 / (t + k + 2))``. ``lr_t`` falls along half a cosine to a hundredth at
    ``total_steps``. The noise grows with ``tau``, so that the network first learns its features as with Adam. The
    posterior is that of a tenth of ``temperature`` at any time. If it becomes the prior of further training, ``tau lt``
    in the step is ``0.1 temperature lt`` from the start, so that earlier examples count as much as new ones.
    """

    options = (
        Option("batch_size", 1.0, "a positive, finite number", is_positive, width=True),
        Option("total_steps", None, "None or a positive, finite number", lambda v: v is None or is_positive(v)),
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
        return mean - adam_step(m, v, damping, hp), {"exp_avg": m, "exp_avg_sq": v}

    def forgetting(self, hp: Hyper) -> Number:
        """``max(1 - b2, 3 / (t + k + 2))``."""
        return maximum(1.0 - hp.beta2, RECENCY / (hp.step + INITIAL_STEPS + (RECENCY - 1.0)))

    def default_start(self, hp: Hyper) -> Number:
        """The precision ``lambda + 0.1 N / tau`` of a small curvature."""
        return hp.prior_precision + START * hp.num_data / hp.temperature

    def numbers(self, group: Mapping[str, Any]) -> dict[str, float]:
        """The learning rate of the next step, unless a scheduler of PyTorch replaces the cosine, and the number of
        steps in which the noise grows: 1 if the length of the training is unknown.
        """
        total = group["total_steps"]
        if total is None:
            return {"total_steps": 1.0}
        lr = float(group["lr"])
        return {"total_steps": total, "lr": lr if "initial_lr" in group else lr * annealed(group["noise_step"] / total)}


def temperature_now(hp: Hyper) -> Number:
    """The temperature of a step: it grows with the square of the share of the steps that have been made."""
    left = maximum(0.0, 1.0 - hp.step / hp.total_steps)
    return hp.temperature * maximum(LEAST, (1.0 - left) ** 2)


def annealed(done: float) -> float:
    """Factor of the learning rate after a fraction of the planned steps: half a cosine from 1 to ``FINAL``."""
    return FINAL + (1.0 - FINAL) * half_cosine(min(1.0, done))


def default_temperature(num_data: float, batch_size: float, total_steps: float | None) -> float:
    """The temperature that is used if none is given: ``epochs sqrt(steps) / 16000``, and at most 1.

    Trainings of more epochs and of more steps fit the noise of the data more closely, and need more noise in the
    weights. With many data it reaches 1, the temperature of Bayes' rule.
    """
    check_positive("num_data", num_data)
    check_positive("batch_size", batch_size)
    if total_steps is None:
        return UNPLANNED
    check_positive("total_steps", total_steps)
    epochs = total_steps * batch_size / num_data
    return min(1.0, epochs * math.sqrt(total_steps) / LONG)


class BayesAdam(PerturbedOptimizer):
    """Adam with weight noise whose width is learned: the method to start with. ::

        opt = ba.BayesAdam(
            model.named_parameters(),
            num_data=len(train_set),
            batch_size=32,
            total_steps=epochs * len(loader),
        )

    It is Vadam (Khan et al. 2018, Fig. 1) with seven departures, chosen by measurement (``benchmarks/defaults.py``), so
    that the posterior's width is learned within a training of ordinary length:

    - The curvature is ``M`` times the squared mean gradient, so that the width does not depend on the batch size.
    - The curvature is bias-corrected, and the initial precision counts as 30 steps. In the paper the initial precision
      is forgotten at the rate ``tau (1 - b2)`` per step, over some thousand steps, before which most trainings end.
    - The prior has the scale of each parameter's initialisation in place of ``N(0, 1)``.
    - The temperature of the KL divergence is mostly far below 1; the default is ``epochs sqrt(steps) / 16000``.
    - During the training, the temperature grows from a thousandth of its final value with ``(t / total_steps)^2``.
      Noise at the start keeps recurrent layers and embeddings from learning their features; noise at the end prevents
      overfitting.
    - The posterior has a tenth of the temperature of the noise. Training needs wide noise, but samples of a narrower
      posterior predict better.
    - The learning rate falls along half a cosine, if the number of steps is given.

    The ways to train and the arguments that are not listed are those of :class:`PerturbedOptimizer`.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`.
        lr: Learning rate, not negative.
        num_data: Number of training examples ``N``, in the unit over which the loss is averaged: rows, or tokens for
            the mean loss over tokens.
        batch_size: Number of examples in the loss of one step, in the same unit; with several processes, of all of
            them together.
        total_steps: Number of steps of the training, over which the noise grows and the learning rate falls to a
            hundredth along half a cosine. A scheduler of PyTorch replaces the cosine, except ``ReduceLROnPlateau``,
            which multiplies it, as a change of ``lr`` by hand does. Without ``total_steps``, noise and rate are
            constant.
        betas: Decay rates of the averages of the gradient and of its square, each in [0, 1).
        prior_precision: Precision of the prior. With ``"init"`` each parameter tensor has its own: 0.3 divided by the
            variance of its initial values, where ten times this variance is rounded to a power of two. If the values
            are all equal, their variance is taken as 1.
        temperature: Factor of the KL divergence at the end of the training, in (0, 1]. The default is the number of
            epochs, ``total_steps batch_size / num_data``, times ``sqrt(total_steps) / 16000``, at most 1, and 0.01
            without ``total_steps``. It is the one hyper-parameter that is worth trying values of, for example a third
            and three times the default.
        curvature: A :class:`PerExampleSquares` of the module. The curvature is then the mean of the squared gradients
            of single examples, as in VOGN, in place of ``M`` times the square of their mean. Its widths are the most
            accurate, at the cost of collecting them.

    Raises:
        ValueError: A hyper-parameter is out of its range, or ``curvature`` is not a :class:`PerExampleSquares`.
    """

    rule = BayesAdamRule()
    cooling = COOLER
    usual: ClassVar[Mapping[str, Any]] = {"prior_precision": INIT, "temperature": None}
    decided = ("per_example", "continues")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 5e-3,
        *,
        num_data: float,
        batch_size: float,
        total_steps: float | None = None,
        curvature: PerExampleSquares | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        self._source = None if curvature is None else checked_squares(curvature)
        if options.get("temperature") is None:
            options["temperature"] = default_temperature(num_data, batch_size, total_steps)
        of_rule = {"batch_size": batch_size, "total_steps": total_steps, "per_example": curvature is not None}
        continues = float(options.get("prior") is not None)
        super().__init__(params, lr, num_data=num_data, **of_rule, continues=continues, **options)

    def check_group(self, group: dict[str, Any]) -> None:
        """Check the hyper-parameters of a new group; the prior may be that of the initial values."""
        check_temperature(group["temperature"], zero=False)
        number = 1e-30 if group["prior_precision"] == INIT else group["prior_precision"]
        super().check_group({**group, "prior_precision": number})
