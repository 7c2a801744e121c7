"""Gradients and curvatures of the samples of an unfinished step, and their Monte Carlo averages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from typing import TypeAlias

import torch
from torch import Tensor

from bayesadam.engine.passes import Pass, per_weight_of, statics_of
from bayesadam.engine.run import Job, Plan, Walk, tensors_of
from bayesadam.engine.sources import CurvatureSource
from bayesadam.engine.store import NumbersCache, Slot, Store
from bayesadam.engine.weights import Weights
from bayesadam.sharding import like, local

Hidden: TypeAlias = tuple[Slot, Tensor | None]
"""A parameter and the gradient that it had."""


class Collection:
    """Transient gradients and curvatures collected for an unfinished step.

    With one sample per step nothing is kept, and everything is computed from ``p.grad`` at the step. With several
    samples, or with a curvature that is not computed from the gradient, ``p.grad`` is the mean gradient so far and the
    mean curvature is kept here, on the scale that the gradients had. The step multiplies it by the factor by which
    unscaling and clipping have changed ``p.grad`` since, to the power with which it scales.

    Args:
        store: Groups and state of the optimiser.
        weights: Samples and means in the weights.
        source: Source of curvature that the rule does not compute itself.
    """

    def __init__(self, store: Store, weights: Weights, source: CurvatureSource | None) -> None:
        self.store = store
        self.weights = weights
        self.source = source
        self.collected = 0
        self._curvature: dict[Tensor, Tensor] = {}
        self._norms: dict[Tensor, Tensor] = {}
        self._factor = 1.0

    @property
    def keeps_curvature(self) -> bool:
        """Whether curvature is collected with every sample, and not computed at the step."""
        first = self.store.first
        return (
            self.source is not None
            or first["mc_samples"] > 1
            or first.get("correction", "elementwise") != "elementwise"
        )

    def discard(self) -> None:
        """Forget the samples collected so far."""
        self.collected = 0
        self._curvature, self._norms, self._factor = {}, {}, 1.0

    def present(self) -> list[Hidden]:
        """All parameters with their gradients."""
        return [(slot, slot.parameter.grad) for slot in self.store.slots()]

    def hide(self, present: Sequence[Hidden]) -> None:
        """Set the gradients to ``None``."""
        for slot, _ in present:
            slot.parameter.grad = None

    @torch.no_grad()
    def collect(self, hidden: Sequence[Hidden]) -> None:
        """Finish a sample: ``p.grad`` becomes the mean over the samples so far, and so does the kept curvature."""
        if self.keeps_curvature:
            factor = 1.0 if self.source is None else self.source.gradient_factor()
            if factor != 1.0:
                torch._foreach_mul_([self.store.dense_gradient(s.parameter) for s in self.store.trained()], factor)
            share = 1.0 / (self.collected + 1)
            self._keep(self.store.trained(), share)
            self._average(hidden if self.collected else [(slot, None) for slot, _ in hidden], share)
            self._remember_norms()
        self.collected += 1

    def _average(self, hidden: Sequence[Hidden], share: float) -> None:
        """Average gradients with those of earlier samples; a sample without a gradient counts as zero."""
        both, new, old = [], [], []
        for slot, earlier in hidden:
            parameter = slot.parameter
            if not parameter.requires_grad:
                continue
            grad = parameter.grad
            if grad is not None and earlier is not None:
                both.append((earlier, grad))
                parameter.grad = earlier
            elif grad is not None:
                new.append(grad)
            elif earlier is not None:
                old += [earlier, *([self._curvature[parameter]] if parameter in self._curvature else [])]
                parameter.grad = earlier
        if both:
            earlier_ones, grads = zip(*both, strict=True)
            torch._foreach_lerp_(earlier_ones, grads, share)
        if new and share != 1.0:
            torch._foreach_mul_(new, share)
        if old:
            torch._foreach_mul_(old, 1.0 - share)

    @torch.no_grad()
    def after_backward(self) -> None:
        """Record the scale of the gradients in drop-in training, since it may be changed before the step."""
        self._remember_norms()

    def _remember_norms(self) -> None:
        parameters = [slot.parameter for slot in self.store.trained()]
        self._norms.update(zip(parameters, self._norms_of(parameters), strict=True))

    def collect_drop_in(self) -> None:
        """Keep the curvature of the one sample at a step of drop-in training."""
        if not self.keeps_curvature:
            return
        self._curvature = {}  # remains of a step that was refused
        self._factor = 1.0 if self.source is None else self.source.gradient_factor()
        trained = self.store.trained()
        unknown = [s.parameter for s in trained if self.source is None or s.parameter not in self._norms]
        self._norms.update(zip(unknown, self._norms_of(unknown), strict=True))
        self._keep(trained, 1.0)

    def _keep(self, trained: Sequence[Slot], share: float) -> None:
        """Average a sample's curvature into the one that is kept."""
        if self.source is not None:
            for slot in trained:
                self._keep_from_source(slot, share)
            return
        fresh: dict[Tensor, Tensor] = {}
        samples = []
        for slot in measurable(self.weights, trained):
            parameter = slot.parameter
            if parameter not in self._curvature:
                fresh[parameter] = torch.zeros_like(local(self.store.state_of(slot)["mean"]))
            kept = fresh[parameter] if parameter in fresh else self._curvature[parameter]
            samples.append((slot, self.store.dense_gradient(parameter), kept))
        add_curvature(self.weights, samples, self.collected, share, signed=True)
        self._curvature.update(fresh)

    def _keep_from_source(self, slot: Slot, share: float) -> None:
        assert self.source is not None
        group, parameter = slot.group, slot.parameter
        if not self.weights.sampled([slot])[0] and not self.source.covers(parameter):
            return  # for example a learned noise level
        whole = self.source.curvature(parameter)
        if whole is None:
            raise RuntimeError(
                f"the curvature of parameter {self.store.name_of(parameter)} must come with its gradient, got a "
                f"gradient alone: {self.source.hint}"
            )
        mean = local(self.store.state_of(slot)["mean"])
        value = local(like(parameter, whole)).to(mean.dtype)
        if group["maximize"] and self.store.rule.power % 2:
            value = -value
        if group["mc_samples"] == 1:  # not copied: the source's own until its next start
            self._curvature[parameter] = value
            return
        if parameter not in self._curvature:
            self._curvature[parameter] = torch.zeros_like(mean)
        self._curvature[parameter].lerp_(value, share)

    def _curvature_factors(self, trained: Sequence[Slot]) -> dict[Tensor, float]:
        """Factors by which kept curvatures must be multiplied to match the present ``p.grad``."""
        return {parameter: ratio**self.store.rule.power for parameter, ratio in self._rescaled(trained).items()}

    def _rescaled(self, trained: Sequence[Slot]) -> dict[Tensor, float]:
        """Factors by which unscaling or clipping changed each gradient since the last sample was collected.

        A zero gradient has no such factor and takes that of the others, since wherever curvature can be scaled the
        factor is the same for all.
        """
        parameters = [slot.parameter for slot in trained if slot.parameter in self._norms]
        if not parameters:
            return {}
        device = self._norms[parameters[0]].device
        norms = [*[self._norms[p] for p in parameters], *self._norms_of(parameters)]
        values = torch.stack([norm.to(device) for norm in norms]).tolist()
        before, now = values[: len(parameters)], values[len(parameters) :]
        total = math.hypot(*before)
        common = math.hypot(*now) / total if total > 0 else 1.0
        return {p: n / b if b > 0 else common for p, b, n in zip(parameters, before, now, strict=True)}

    def _norms_of(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Norms of the local gradients, in float32 or wider, since they easily overflow in float16."""
        grads = [local(self.store.dense_gradient(parameter)) for parameter in parameters]
        wide = {torch.promote_types(grad.dtype, torch.float32) for grad in grads}
        if len(wide) == 1:
            return list(torch._foreach_norm(grads, 2, dtype=wide.pop()))
        return [torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)) for g in grads]


def measurable(weights: Weights, slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots whose curvature the rule can compute; without noise, a rule that needs it cannot."""
    if not weights.store.rule.needs_noise:
        return list(slots)
    return list(compress(slots, weights.sampled(slots)))


def add_curvature(
    weights: Weights,
    samples: Sequence[tuple[Slot, Tensor, Tensor]],
    number: int,
    share: float,
    *,
    signed: bool,
) -> None:
    """Average the rule's curvature of one sample into running means.

    Args:
        weights: The weights, which hold the sample.
        samples: Parameters, with a gradient and the running mean of the curvature, which is changed.
        number: Number of the sample in this step.
        share: Weight of the sample.
        signed: Whether gradients of a loss that is maximised are negated.
    """
    store, jobs = weights.store, []
    rule, numbers = store.rule, NumbersCache(store.rule)
    for slot, grad, kept in samples:
        group, state = slot.group, store.state_of(slot)
        noisy, per_weight = rule.needs_noise, per_weight_of(state)
        work = Pass(rule, "collect", statics_of(rule, group), noisy=noisy, per_weight=per_weight, kept=True)
        sign = -1.0 if signed and group["maximize"] else 1.0
        told = numbers.scaled(numbers.of(group, state)[0], sign, share=share)
        found = tensors_of(work, slot.parameter, state, grad=grad, kept=kept)
        jobs.append(Job(work, slot.index, slot.parameter, state, found, told))
    plan = Plan()
    Walk(jobs, weights.runner, compiles=store.first["compile"]).add(plan, {"eps": weights.draw(number)})
    plan.run()
