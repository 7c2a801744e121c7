"""The weights that a rule treats alike, of all members: the passes of an optimiser, on rows of matrices."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.core import interpret
from bayesadam.core.launch import program_of
from bayesadam.core.passes import Pass
from bayesadam.core.record import Program
from bayesadam.core.rule import Rule, static_options
from bayesadam.native import device as devices

Numbers = Mapping[str, Any]
"""Hyper-parameters and counters by name: one number if all members agree, otherwise a column ``(k, 1)`` as an array."""


class Segment:
    """The coordinates with noise, or those without, as a matrix with a row for every member.

    Args:
        rule: The rule.
        tensors: ``"mean"``, the tensors of the rule, and hyper-parameters that differ between weights, each
            ``(k, numel)``.
        hyper: Hyper-parameters of a member; the rule's static options are those of all members.
        part: The segment's coordinates.
        noisy: Whether they are perturbed.
        has_curvature: Whether there is a curvature that the rule does not compute.
    """

    def __init__(
        self,
        rule: Rule,
        tensors: Mapping[str, Tensor],
        hyper: Mapping[str, Any],
        part: slice,
        *,
        noisy: bool,
        has_curvature: bool,
    ) -> None:
        self.part, self.noisy = part, noisy
        self.tensors = {name: value[:, part].contiguous() for name, value in tensors.items()}
        statics, dtype = static_options(rule, hyper), tensors["mean"].dtype
        common: dict[str, Any] = {
            "per_weight": tuple(name for name in tensors if name != "mean" and name not in rule.state),
            "has_prior": "prior_precision" in hyper,
        }

        def program(kind: str, **entries: Any) -> Program:
            return program_of(Pass(rule, kind, statics, **common, **entries), dtype, dtype)

        if noisy:
            self._sample = program("sample", mean="weights", stored=False)
        if noisy or "correction" in hyper:
            self._precision = program("precision")
        deviation = "weights" if noisy and rule.needs_noise else None
        self._measure = None if has_curvature else program("measure", curvature="rule", deviation=deviation)
        is_curved = self._measure is None or bool(self._measure.results)
        curvature = "collected" if is_curved else None
        self._update = program("update", mean="weights", stored=False, curvature=curvature)

    def select(self, rows: Tensor) -> Segment:
        """The segment of some of the members."""
        chosen = copy.copy(self)
        chosen.tensors = {name: value[rows] for name, value in self.tensors.items()}
        return chosen

    def sample(self, eps: Tensor, numbers: Numbers) -> Tensor:
        """Sampled weights of the first members ``(k, S, n)``, from noise of the same shape."""
        return self._run(self._sample, numbers, next_eps=eps)["weights"]

    def precision(self, numbers: Numbers, tensors: Mapping[str, Tensor]) -> Tensor:
        """Posterior precisions of the first members, ``(k, n)``, given their tensors."""
        return self._run(self._precision, numbers, **tensors)["precision"]

    def updated(
        self, theta: Tensor, grads: Tensor, grad: Tensor, curvature: Tensor | None, numbers: Numbers
    ) -> dict[str, Tensor]:
        """The tensors of the first members after a step, each ``(k, n)``.

        Args:
            theta: Weights of all segments, ``(k, S, numel)``.
            grads: Gradients there.
            grad: Their mean over the samples, ``(k, numel)``.
            curvature: Curvatures there, if the segment has one that the rule does not compute.
            numbers: Hyper-parameters, with the counters before the step.
        """
        inputs = {"grad": grad[:, self.part]}
        if self._measure is None:
            assert curvature is not None
            inputs["collected"] = curvature[..., self.part].mean(1)
        elif self._measure.results:
            samples = {"weights": theta[..., self.part], "grad": grads[..., self.part]}
            inputs["collected"] = self._run(self._measure, numbers, **samples)["collected"].mean(1)
        results = self._run(self._update, numbers, **inputs)
        return {"mean": results.pop("weights"), **results}

    def write(self, tensors: Mapping[str, Tensor], writes: Tensor | None) -> None:
        """Set the tensors of the first members, ``(k, n)``, or only of those where ``writes`` is true, ``(k, 1)``."""
        for name, value in tensors.items():
            rows = self.tensors[name][: len(value)]
            rows.copy_(value if writes is None else torch.where(writes, value, rows))

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
                rows = self.tensors["mean" if name == "weights" else name][: len(like)]
                values[name] = rows.unsqueeze(1) if has_samples else rows
        return interpret.run(program, values, interpret.numbers_of_body(program, numbers), operand=column)


def combined(values: Sequence[Any]) -> Any:
    """One number if all members agree, otherwise a column."""
    if all(value == values[0] for value in values):
        return values[0]
    return np.array([math.nan if value is None else float(value) for value in values])[:, None]
