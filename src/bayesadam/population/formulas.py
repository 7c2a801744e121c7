"""The formulas of a rule for stacked networks: rows of a matrix, with hyper-parameters that may differ by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.core import interpret
from bayesadam.core.passes import PER_WEIGHT, perturbed
from bayesadam.core.record import Program, record
from bayesadam.core.rule import COUNTERS, Hyper, Rule, static_options

Numbers = Mapping[str, Any]
"""Hyper-parameters by name: numbers, words, columns ``(k, 1)`` as arrays, and rows of priors as tensors."""


class Formulas:
    """A rule, recorded once for all members.

    Args:
        rule: The rule.
        hyper: Hyper-parameters of a member or of several.
        noisy: Whether the weights are perturbed.
        dtype: Dtype of the weights.
    """

    def __init__(self, rule: Rule, hyper: Numbers, *, noisy: bool, dtype: torch.dtype) -> None:
        self.rule, self.noisy, self._dtype = rule, noisy, dtype
        self._statics = dict(static_options(rule, hyper)) if noisy or rule.options else {}
        self._rows = [name for name in PER_WEIGHT if isinstance(hyper.get(name), Tensor)]
        names = ("lr", "beta1", "beta2", "num_data", "temperature", "prior_precision", "initial_precision", *COUNTERS)
        options = [option.name for option in rule.options if not option.static]
        self._numbers = [n for n in (*names, *options) if n in hyper or n.startswith("beta") or n in COUNTERS]
        self._numbers = [name for name in self._numbers if name not in self._rows]

    def _record(self, function: Callable[..., Mapping[str, Tensor]], *inputs: str) -> Program:
        def run(values: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            hp = Hyper(**{"prior_mean": 0.0, **numbers, **self._statics, **{name: values[name] for name in self._rows}})
            state = {name: values[name] for name in self.rule.state}
            return function(*(values[name] for name in inputs), state, hp)

        tensors = dict.fromkeys((*inputs, *self.rule.state, *self._rows, "result"), self._dtype)
        return record(run, tensors, self._numbers)

    @cached_property
    def _sample(self) -> Program:
        return self._record(
            lambda mean, eps, state, hp: {"result": perturbed(self.rule, mean, state, eps, hp)}, "mean", "eps"
        )

    @cached_property
    def _precision(self) -> Program:
        return self._record(lambda state, hp: {"result": self.rule.precision(state, hp)})

    @cached_property
    def _curvature(self) -> Program | None:
        def curvature(grad: Tensor, deviation: Tensor, state: Any, hp: Hyper) -> Mapping[str, Tensor]:
            found = self.rule.curvature(grad, deviation if self.noisy else None, state, hp)
            return {} if found is None else {"result": found}

        program = self._record(curvature, "grad", "deviation")
        return program if program.results else None

    def _update(self, *, curved: bool) -> Program:
        def update(mean: Tensor, grad: Tensor, curvature: Tensor, state: Any, hp: Hyper) -> Mapping[str, Tensor]:
            mean, new = self.rule.update(mean, state, grad, curvature if curved else None, hp)
            return {**new, "mean": mean}

        return self._record(update, "mean", "grad", "curvature")

    @cached_property
    def _curved(self) -> Program:
        return self._update(curved=True)

    @cached_property
    def _uncurved(self) -> Program:
        return self._update(curved=False)

    def sample(self, mean: Tensor, eps: Tensor, state: Mapping[str, Tensor], hyper: Numbers) -> Tensor:
        """Sampled weights ``(k, S, n)``, from means and states ``(k, n)`` and noise ``(k, S, n)``."""
        return _run(self._sample, {"mean": mean, "eps": eps, **state}, hyper, samples=True)["result"]

    def variance(self, state: Mapping[str, Tensor], hyper: Numbers) -> Tensor:
        """Posterior variances ``(k, n)``."""
        return _run(self._precision, state, hyper)["result"].reciprocal()

    def curvature(
        self, grads: Tensor, deviation: Tensor | None, state: Mapping[str, Tensor], hyper: Numbers
    ) -> Tensor | None:
        """Curvatures ``(k, n)``, averaged over samples, from gradients and deviations ``(k, S, n)``."""
        if self._curvature is None:
            return None
        values = {"grad": grads, "deviation": grads if deviation is None else deviation, **state}
        return _run(self._curvature, values, hyper, samples=True)["result"].mean(1)

    def update(
        self, mean: Tensor, state: Mapping[str, Tensor], grad: Tensor, curvature: Tensor | None, hyper: Numbers
    ) -> None:
        """Make a step, which changes means and states ``(k, n)``."""
        program = self._uncurved if curvature is None else self._curved
        values = {"mean": mean, "grad": grad, **state}
        if curvature is not None:
            values["curvature"] = curvature
        results = _run(program, values, hyper)
        for name, value in results.items():
            values[name].copy_(value)


def _run(
    program: Program, tensors: Mapping[str, Tensor], hyper: Numbers, *, samples: bool = False
) -> dict[str, Tensor]:
    """Run a recording; with ``samples``, tensors ``(k, n)`` and columns get an axis for samples after the members'."""
    rows = {name: value for name, value in hyper.items() if name in PER_WEIGHT and isinstance(value, Tensor)}
    values = {name: value for name, value in {**tensors, **rows}.items() if name in program.read}
    if samples:
        values = {name: value if value.ndim == 3 else value.unsqueeze(1) for name, value in values.items()}
    like = next(iter(tensors.values()))

    def column(values: NDArray[np.float64]) -> Tensor:
        found = torch.from_numpy(values).to(like.device, like.dtype)
        return found.unsqueeze(1) if samples else found

    numbers = {name: hyper[name] for name in program.numbers}
    return interpret.run(program, values, interpret.numbers_of_body(program, numbers), operand=column)


def with_betas(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters with the two ``betas`` under names of their own."""
    first, second = hyper["betas"]
    return {**hyper, "beta1": first, "beta2": second}


def advanced(rule: Rule, counters: Mapping[str, Any], hyper: Mapping[str, Any]) -> dict[str, Any]:
    """The counters after one more step."""
    step = counters["step"] + 1.0
    hp = Hyper(**{name: value for name, value in {**hyper, **counters}.items() if isinstance(name, str)})
    hp.step = step
    return {
        "step": step,
        "beta1_product": counters["beta1_product"] * hp.beta1,
        "beta2_product": counters["beta2_product"] * hp.beta2,
        "initial_weight": counters["initial_weight"] * (1.0 - rule.forgetting(hp)),
    }
