"""From the gradients at one or several samples to one update: Monte Carlo means, scaling, and the finite check."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesadam.optim import compiled
from bayesadam.optim.blocks import Block, local
from bayesadam.optim.rule import advance, initial_counters
from bayesadam.optim.sampler import MEAN, Sampler
from bayesadam.optim.state import follow, full, hyper, like, walk

if TYPE_CHECKING:
    from bayesadam.optim.base import PerturbedOptimizer

BACKTRACK = 0.5
"""The share of the largest admissible rate that back-tracking takes: no precision more than halves."""

Hidden = Sequence[tuple[Tensor, Tensor | None]]


class Gradients:
    """Transient: what one unfinished step has collected.

    With one sample per step nothing is kept: everything is computed from ``p.grad`` at the step. With more, or with
    a curvature that is not computed from the gradient, ``p.grad`` is the mean gradient so far and the mean curvature is
    kept here, on the scale that the gradients had; the step rescales it by what unscaling and clipping did to
    ``p.grad`` meanwhile, to the power by which it scales.
    """

    def __init__(self, optimizer: PerturbedOptimizer, sampler: Sampler) -> None:
        self.optimizer = optimizer
        self.sampler = sampler
        self.collected = 0
        self._curvature: dict[Tensor, Tensor] = {}
        self._norms: dict[Tensor, Tensor] = {}
        self._limit = math.inf
        self._factor = 1.0

    def discard(self) -> None:
        """Forget the samples collected so far."""
        self.collected = 0
        self._curvature, self._norms, self._limit, self._factor = {}, {}, math.inf, 1.0

    def hide(self) -> Hidden:
        """Take the gradients away; returns them."""
        hidden = [(parameter, parameter.grad) for _, _, parameter in self.optimizer.parameters()]
        for parameter, _ in hidden:
            parameter.grad = None
        return hidden

    @torch.no_grad()
    def collect(self, hidden: Hidden) -> None:
        """Close a sample: ``p.grad`` becomes the mean over the samples so far, and so does the kept curvature."""
        if self.optimizer.keeps_curvature:
            source = self.optimizer.source
            factor = 1.0 if source is None else source.gradient_factor()
            for (group, index, parameter), (_, earlier) in zip(self.optimizer.parameters(), hidden, strict=True):
                if parameter.requires_grad:
                    if factor != 1.0 and parameter.grad is not None:
                        parameter.grad.mul_(factor)
                    self._collect_one(group, index, parameter, earlier if self.collected else None)
        self.collected += 1

    @torch.no_grad()
    def after_backward(self) -> None:
        """Remember the scale of the gradients, in drop-in training, where others may change it before the step."""
        for _, _, parameter in self.optimizer.trained():
            self._norms[parameter] = self._norm(parameter)

    def collect_drop_in(self) -> None:
        """At a step in drop-in training: keep the curvature of its one sample."""
        if not self.optimizer.keeps_curvature:
            return
        self._curvature = {}  # of a step that was refused
        source = self.optimizer.source
        self._factor = 1.0 if source is None else source.gradient_factor()
        for _, _, parameter in self.optimizer.trained():
            if source is None or parameter not in self._norms:
                self._norms[parameter] = self._norm(parameter)
        self._collect_curvature(1.0)

    def _collect_curvature(self, share: float) -> None:
        for group, index, parameter in self.optimizer.trained():
            self._add_curvature(group, index, parameter, share)

    def _collect_one(self, group: dict[str, Any], index: int, parameter: nn.Parameter, earlier: Tensor | None) -> None:
        """A sample without a gradient counts as one of zero."""
        share = 1.0 / (self.collected + 1)
        grad = parameter.grad
        if grad is not None:
            self._add_curvature(group, index, parameter, share)
            if earlier is not None:
                grad = earlier.lerp_(grad, share)
            elif share != 1.0:
                grad = grad.mul_(share)
        elif earlier is not None:
            if parameter in self._curvature:
                self._curvature[parameter].mul_(1.0 - share)
            grad = earlier.mul_(1.0 - share)
        parameter.grad = grad
        if grad is not None:
            self._norms[parameter] = self._norm(parameter)

    def _add_curvature(self, group: dict[str, Any], index: int, parameter: Tensor, share: float) -> None:
        state, grad = self.optimizer.state_of(parameter, group), local(self._dense(parameter))
        if self.optimizer.source is not None:
            self._add_from_source(group, parameter, share)
            return
        kept = self._curvature.get(parameter)
        if kept is None:
            kept = torch.zeros_like(local(state["mean"]))
        for block, views in walk(parameter, state, grad, kept):
            value = self._block(block, grad, views["mean"], -1.0 if group["maximize"] else 1.0)
            curvature = self._estimate(group, index, block, value, self.collected, state, views)
            if curvature is None:
                return
            block.of(kept).lerp_(curvature, share)
        self._curvature[parameter] = kept

    def _add_from_source(self, group: dict[str, Any], parameter: Tensor, share: float) -> None:
        assert self.optimizer.source is not None
        if not group["perturb"] and not self.optimizer.source.covers(parameter):
            return  # a learned noise level, say
        whole = self.optimizer.source.curvature(parameter)
        if whole is None:
            raise RuntimeError(
                f"the curvature of parameter {self.optimizer.name_of(parameter)} must come with its gradient, got a "
                f"gradient alone: {self.optimizer.source.hint}"
            )
        mean = local(self.optimizer.state_of(parameter, group)["mean"])
        value = local(like(parameter, whole)).to(mean.dtype)
        if group["maximize"] and self.optimizer.rule.power % 2:
            value = -value
        if group["mc_samples"] == 1:  # not copied: the source's own until its next start
            self._curvature[parameter] = value
            return
        if parameter not in self._curvature:
            self._curvature[parameter] = torch.zeros_like(mean)
        self._curvature[parameter].lerp_(value, share)

    def _estimate(
        self,
        group: dict[str, Any],
        index: int,
        block: Block,
        grad: Tensor,
        sample: int,
        state: Mapping[str, Any],
        views: Mapping[str, Tensor],
    ) -> Tensor | None:
        rule = self.optimizer.rule
        noisy = rule.needs_noise and group["perturb"]
        eps = self.sampler.eps(group, index, block, sample, grad) if noisy else None
        return rule.curvature(grad, eps, views, hyper(group, state, views))

    def are_zero(self) -> bool:
        """Whether every gradient is absent or zero."""
        return not any(local(self._dense(p)).count_nonzero() for _, _, p in self.optimizer.trained())

    def are_finite(self) -> bool:
        """Whether to step; raises if the user wants to hear of gradients that are not finite."""
        found = getattr(self.optimizer, "found_inf", None)
        if found is not None and found.item():
            return False
        grads = {parameter: self._dense(parameter) for _, _, parameter in self.optimizer.trained()}
        if not grads or full(nn.utils.get_total_norm(list(grads.values()))).isfinite():
            return True
        for parameter, grad in grads.items():
            # A norm overflows before its elements do, in float16 easily; in float32 it is refused, as squares overflow.
            wide = torch.promote_types(grad.dtype, torch.float32)
            if not full(torch.linalg.vector_norm(grad, dtype=wide)).isfinite():
                return self._refuse(f"the gradient of parameter {self.optimizer.name_of(parameter)} must be finite")
        return True

    def prepare(self) -> bool:
        """Whether to step; raises where the user wants to hear of a step that cannot be made."""
        return self.are_finite() and self._curvature_is_finite() and self._limit_rates()

    def _curvature_is_finite(self) -> bool:
        """The same of second derivatives, which may be infinite where the gradient is not."""
        source = self.optimizer.source
        if source is None or not source.differentiates:
            return True
        for parameter, kept in self._curvature.items():
            if not kept.isfinite().all():
                return self._refuse(f"the curvature of parameter {self.optimizer.name_of(parameter)} must be finite")
        return True

    def _refuse(self, why: str) -> bool:
        """Skip the step, or raise, as the user wants it."""
        if self.optimizer.param_groups[0]["nonfinite"] == "skip":
            return False
        raise FloatingPointError(f"{why}, got inf or nan; nothing was changed")

    def step(self) -> None:
        """Apply the rule to every parameter that has a gradient."""
        for group, index, parameter in self.optimizer.trained():
            self._update(group, index, parameter)

    @property
    def unscale(self) -> float:
        """By which gradients must be multiplied that a gradient scaler has left as they are."""
        scale = getattr(self.optimizer, "grad_scale", None)
        return 1.0 if scale is None else 1.0 / float(scale)

    def _scale(self, group: dict[str, Any]) -> float:
        """By which ``p.grad`` must be multiplied to be the gradient of the mean loss that is minimised."""
        return (-1.0 if group["maximize"] else 1.0) * self.unscale * self._factor

    def _update(self, group: dict[str, Any], index: int, parameter: nn.Parameter) -> None:
        rule, state = self.optimizer.rule, self.optimizer.state_of(parameter, group)
        weights, grad, kept = local(parameter), local(self._dense(parameter)), self._curvature.get(parameter)
        told = self._limited(group)
        counters = advance(state, hyper(told, state, {}))
        holds_mean = self.sampler.weights == MEAN or not group["perturb"]
        factor = self._curvature_factor(parameter)
        scale = self._scale(group)
        compiles = self.optimizer.compiles
        for block, views in walk(parameter, state, grad, *([] if kept is None else [kept]), tiled=compiles):
            if compiles and compiled.fits(block, [block.of(t) for t in (weights, grad)] + [*views.values()]):
                noisy = rule.needs_noise and group["perturb"] and not self.optimizer.keeps_curvature
                compiled.update_(
                    block.of(weights),
                    rule,
                    views,
                    block.of(grad),
                    scale,
                    (None if kept is None else block.of(kept), factor) if self.optimizer.keeps_curvature else None,
                    hyper(told, state, views),
                    hyper(told, counters, views),
                    compiled.Draw(group, index, block, 0) if noisy else None,
                    holds_mean=holds_mean,
                )
                continue
            if holds_mean:
                follow(views["mean"], block.of(weights))
            value = self._block(block, grad, views["mean"], scale)
            if kept is not None:
                curvature: Tensor | None = block.of(kept) * factor
            elif self.optimizer.keeps_curvature:
                curvature = None
            else:
                curvature = self._estimate(group, index, block, value, 0, state, views)
            rule.update_(views["mean"], views, value, curvature, hyper(told, counters, views))
            if holds_mean:
                block.of(weights).copy_(views["mean"])
        state.update(counters)

    def _limit_rates(self) -> bool:
        """See to it that all precisions stay positive, where the rule itself does not."""
        correction = self.optimizer.param_groups[0].get("correction", "elementwise")
        if correction == "elementwise":
            return True
        rule: Any = self.optimizer.rule
        smallest = math.inf
        for group, _, parameter in self.optimizer.trained():
            kept = self._curvature.get(parameter)
            if kept is None:
                continue
            state = self.optimizer.state_of(parameter, group)
            factor = self._curvature_factor(parameter)
            for block, views in walk(parameter, state, kept):
                told = hyper(group, state, views)
                limit = float(rule.largest_rate(views, block.of(kept) * factor, told))
                if math.isnan(limit):
                    return self._refuse(
                        f"the curvature of parameter {self.optimizer.name_of(parameter)} must be finite"
                    )
                if correction is None and not limit > rule.rate(told):
                    return self._not_positive()
                smallest = min(smallest, limit)
        self._limit = BACKTRACK * smallest
        return True

    def _limited(self, group: dict[str, Any]) -> dict[str, Any]:
        """The group's values, with a smaller rate if back-tracking asks for it."""
        if self.optimizer.param_groups[0].get("correction") != "backtracking":
            return group
        rule: Any = self.optimizer.rule
        if rule.rate(hyper(group, initial_counters(), {})) <= self._limit:
            return group
        limited: dict[str, Any] = rule.with_rate(group, self._limit)
        return limited

    def _not_positive(self) -> bool:
        if self.optimizer.param_groups[0]["nonfinite"] == "skip":
            return False
        raise FloatingPointError(
            "the posterior precision must stay positive, got a curvature that is too negative for this step; nothing "
            "was changed (use correction='elementwise', a smaller 1 - betas[1] or a larger prior_precision)"
        )

    def _curvature_factor(self, parameter: Tensor) -> float:
        """By what a kept curvature must be multiplied to go with ``p.grad`` as it is now."""
        if parameter not in self._curvature:
            return 1.0
        return (self.unscale * self._rescaled(parameter)) ** self.optimizer.rule.power

    def _rescaled(self, parameter: Tensor) -> float:
        """By what factor others (unscaling, clipping) changed ``p.grad`` since the last sample was collected.

        A gradient of zero does not tell: the others do, as it is one factor for all wherever curvature can be scaled.
        """
        before = float(self._norms[parameter])
        if before > 0:
            return float(self._norm(parameter)) / before
        known = [p for _, _, p in self.optimizer.trained() if p in self._norms]
        total = math.hypot(*(float(self._norms[p]) for p in known))
        return math.hypot(*(float(self._norm(p)) for p in known)) / total if total > 0 else 1.0

    def _norm(self, parameter: Tensor) -> Tensor:
        """Of the gradient here, in float32 or wider: in float16 it overflows easily."""
        grad = local(self._dense(parameter))
        norm: Tensor = torch.linalg.vector_norm(grad, dtype=torch.promote_types(grad.dtype, torch.float32))
        return norm

    def _block(self, block: Block, grad: Tensor, like: Tensor, factor: float) -> Tensor:
        """A block of the gradient in the state's dtype, in a reused buffer that the rule may overwrite."""
        part = block.of(grad)
        value = self.sampler.scratch.get("grad", part.numel(), like.dtype, like.device).view(part.shape).copy_(part)
        return value if factor == 1.0 else value.mul_(factor)

    def _dense(self, parameter: Tensor) -> Tensor:
        grad = parameter.grad
        assert grad is not None
        if grad.is_sparse:
            name = self.optimizer.name_of(parameter)
            raise RuntimeError(f"the gradient of parameter {name} must be dense, got a sparse one")
        return grad
