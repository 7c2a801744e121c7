"""The weights that a rule treats alike, of all members: the rule's formulas, applied to rows of matrices."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.core import interpret
from bayesadam.core.record import Program, record
from bayesadam.core.rule import COUNTERS, Hyper, Rule, static_options
from bayesadam.native import device as devices

Numbers = Mapping[str, Any]
"""Hyper-parameters and counters by name: one number if all members agree, otherwise a column ``(k, 1)`` as an array."""


class Segment:
    """The coordinates with noise, or those without, as a matrix with a row for every member.

    Args:
        rule: The rule; it is recorded once for all members.
        tensors: ``"mean"``, the tensors of the rule, and hyper-parameters that differ between weights, each
            ``(k, numel)``.
        numbers: Hyper-parameters.
        part: The segment's coordinates.
        noisy: Whether they are perturbed.
        has_curvature: Whether there is a curvature that the rule does not compute.
    """

    def __init__(
        self,
        rule: Rule,
        tensors: Mapping[str, Tensor],
        numbers: Numbers,
        part: slice,
        *,
        noisy: bool,
        has_curvature: bool,
    ) -> None:
        self.rule, self.part, self.noisy, self.has_curvature = rule, part, noisy, has_curvature
        self.tensors = {name: value[:, part].contiguous() for name, value in tensors.items()}
        self._rows = [name for name in self.tensors if name != "mean" and name not in rule.state]
        self._statics = dict(static_options(rule, numbers))
        self._names = [*(name for name in numbers if name not in (*self._rows, *self._statics)), *COUNTERS]
        if noisy:
            self._sample = self._record(self._sampled, "mean", "eps")
        if noisy or "correction" in self._statics:
            self._precision = self._record(lambda hp, state: {"precision": rule.posterior_precision(state, hp)})
        estimate = None if has_curvature else self._record(self._estimated, "mean", "theta", "grad")
        self._estimate = estimate if estimate is not None and estimate.results else None
        is_curved = has_curvature or self._estimate is not None
        self._update = self._record(self._updated, "mean", "grad", *(["curvature"] if is_curved else []))

    def select(self, rows: Tensor) -> Segment:
        """The segment of some of the members."""
        chosen = copy.copy(self)
        chosen.tensors = {name: value[rows] for name, value in self.tensors.items()}
        return chosen

    def sample(self, eps: Tensor, numbers: Numbers) -> Tensor:
        """Sampled weights of the first members ``(k, S, n)``, from noise of the same shape."""
        return self._run(self._sample, numbers, eps=eps)["theta"]

    def precision(self, numbers: Numbers, tensors: Mapping[str, Tensor]) -> Tensor:
        """Posterior precisions of the first members, ``(k, n)``, given their tensors."""
        return self._run(self._precision, numbers, **tensors)["precision"]

    def updated(
        self, theta: Tensor, grads: Tensor, grad: Tensor, curvature: Tensor | None, before: Numbers, after: Numbers
    ) -> dict[str, Tensor]:
        """The tensors of the first members after a step, each ``(k, n)``.

        Args:
            theta: Weights of all segments, ``(k, S, numel)``.
            grads: Gradients there.
            grad: Their mean over the samples, ``(k, numel)``.
            curvature: Curvatures there, if the segment has one that the rule does not compute.
            before: Hyper-parameters, with the counters before the step.
            after: Hyper-parameters, with the counters after the step.
        """
        inputs = {"grad": grad[:, self.part]}
        if self.has_curvature:
            assert curvature is not None
            inputs["curvature"] = curvature[..., self.part].mean(1)
        elif self._estimate is not None:
            samples = {"theta": theta[..., self.part], "grad": grads[..., self.part]}
            inputs["curvature"] = self._run(self._estimate, before, **samples)["curvature"].mean(1)
        return self._run(self._update, after, **inputs)

    def write(self, tensors: Mapping[str, Tensor], writes: Tensor | None) -> None:
        """Set the tensors of the first members, ``(k, n)``, or only of those where ``writes`` is true, ``(k, 1)``."""
        for name, value in tensors.items():
            rows = self.tensors[name][: len(value)]
            rows.copy_(value if writes is None else torch.where(writes, value, rows))

    def _sampled(self, hp: Hyper, state: Any, mean: Tensor, eps: Tensor) -> dict[str, Tensor]:
        return {"theta": mean + self.rule.precision(state, hp).rsqrt() * eps}

    def _estimated(self, hp: Hyper, state: Any, mean: Tensor, theta: Tensor, grad: Tensor) -> dict[str, Tensor]:
        curvature = self.rule.curvature(grad, theta - mean if self.noisy else None, state, hp)
        return {} if curvature is None else {"curvature": curvature}

    def _updated(self, hp: Hyper, state: Any, mean: Tensor, grad: Tensor, *curvature: Tensor) -> dict[str, Tensor]:
        mean, new = self.rule.update(mean, state, grad, curvature[0] if curvature else None, hp)
        return {**new, "mean": mean}

    def _record(self, function: Callable[..., Mapping[str, Tensor]], *inputs: str) -> Program:
        def run(values: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            rows = {name: values[name] for name in self._rows}
            hp = Hyper(**{"prior_mean": 0.0, **numbers, **self._statics, **rows})
            return function(hp, {name: values[name] for name in self.rule.state}, *(values[name] for name in inputs))

        dtype = self.tensors["mean"].dtype
        return record(run, dict.fromkeys((*self.tensors, *inputs), dtype), self._names)

    def _run(self, program: Program, numbers: Numbers, **inputs: Tensor) -> dict[str, Tensor]:
        """Run a recording for the first members; if inputs have an axis for samples, all other values broadcast."""
        like = next(iter(inputs.values()))
        has_samples = like.ndim == 3

        def column(values: NDArray[np.float64]) -> Tensor:
            dtype = np.float64 if like.dtype == torch.float64 else np.float32
            result = devices.upload(values.astype(dtype), like.device)
            return result.unsqueeze(1) if has_samples else result

        values = inputs
        for name in program.read:
            if name not in inputs:
                rows = self.tensors[name][: len(like)]
                values[name] = rows.unsqueeze(1) if has_samples else rows
        return interpret.run(program, values, interpret.numbers_of_body(program, numbers), operand=column)


def combined(values: Sequence[Any]) -> Any:
    """One number if all members agree, otherwise a column."""
    if all(value == values[0] for value in values):
        return values[0]
    return np.array([math.nan if value is None else float(value) for value in values])[:, None]
