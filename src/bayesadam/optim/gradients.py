"""From the gradients at one or several samples to one update: Monte Carlo means, scaling, and the finite check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesadam.optim.blocks import Block, local
from bayesadam.optim.rule import advance
from bayesadam.optim.sampler import MEAN, Sampler
from bayesadam.optim.state import follow, full, hyper, walk

if TYPE_CHECKING:
    from bayesadam.optim.base import PerturbedOptimizer

Hidden = Sequence[tuple[Tensor, Tensor | None]]


class Gradients:
    """Transient: what one unfinished step has collected.

    With one sample per step nothing is kept: everything is computed from ``p.grad`` at the step. With more, ``p.grad``
    is the mean gradient so far and the mean curvature is kept here, on the scale that the gradients had; the step
    rescales it by what unscaling and clipping did to ``p.grad`` meanwhile, to the power by which it scales.
    """

    def __init__(self, optimizer: PerturbedOptimizer, sampler: Sampler) -> None:
        self.optimizer = optimizer
        self.sampler = sampler
        self.collected = 0
        self._curvature: dict[Tensor, Tensor] = {}
        self._norms: dict[Tensor, Tensor] = {}

    def discard(self) -> None:
        """Forget the samples collected so far."""
        self.collected = 0
        self._curvature, self._norms = {}, {}

    def hide(self) -> Hidden:
        """Take the gradients away; returns them."""
        hidden = [(parameter, parameter.grad) for _, _, parameter in self.optimizer.parameters()]
        for parameter, _ in hidden:
            parameter.grad = None
        return hidden

    @torch.no_grad()
    def collect(self, hidden: Hidden) -> None:
        """Close a sample: ``p.grad`` becomes the mean over the samples so far, and so does the kept curvature."""
        if self.optimizer.param_groups[0]["mc_samples"] > 1:
            for (group, index, parameter), (_, earlier) in zip(self.optimizer.parameters(), hidden, strict=True):
                if parameter.requires_grad:
                    self._collect_one(group, index, parameter, earlier if self.collected else None)
        self.collected += 1

    def _collect_one(self, group: dict[str, Any], index: int, parameter: nn.Parameter, earlier: Tensor | None) -> None:
        """A sample without a gradient counts as one of zero."""
        share = 1.0 / (self.collected + 1)
        grad = parameter.grad
        if grad is not None:
            self._add_curvature(group, index, parameter, share)
            grad = grad.mul_(share) if earlier is None else earlier.lerp_(grad, share)
        elif earlier is not None:
            if parameter in self._curvature:
                self._curvature[parameter].mul_(1.0 - share)
            grad = earlier.mul_(1.0 - share)
        parameter.grad = grad
        if grad is not None:
            self._norms[parameter] = torch.linalg.vector_norm(local(grad))

    def _add_curvature(self, group: dict[str, Any], index: int, parameter: Tensor, share: float) -> None:
        state, grad = self.optimizer.state_of(parameter, group), local(self._dense(parameter))
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
                if self.optimizer.param_groups[0]["nonfinite"] == "skip":
                    return False
                raise FloatingPointError(
                    f"the gradient of parameter {self.optimizer.name_of(parameter)} must be finite, got inf or nan; "
                    "nothing was changed"
                )
        return True

    def update(self, group: dict[str, Any], index: int, parameter: Tensor) -> None:
        """Apply the rule to one parameter."""
        rule, state = self.optimizer.rule, self.optimizer.state_of(parameter, group)
        weights, grad, kept = local(parameter), local(self._dense(parameter)), self._curvature.get(parameter)
        counters = advance(state, hyper(group, state, {}))
        holds_mean = self.sampler.weights == MEAN or not group["perturb"]
        scale = getattr(self.optimizer, "grad_scale", None)
        unscale = 1.0 if scale is None else 1.0 / float(scale)
        factor = 1.0 if kept is None else (unscale * self._rescaled(parameter, grad)) ** rule.power
        for block, views in walk(parameter, state, grad, *([] if kept is None else [kept])):
            if holds_mean:
                follow(views["mean"], block.of(weights))
            value = self._block(block, grad, views["mean"], -unscale if group["maximize"] else unscale)
            if kept is None:
                curvature = self._estimate(group, index, block, value, 0, state, views)
            else:
                curvature = block.of(kept) * factor
            rule.update_(views["mean"], views, value, curvature, hyper(group, counters, views))
            if holds_mean:
                block.of(weights).copy_(views["mean"])
        state.update(counters)

    def _rescaled(self, parameter: Tensor, grad: Tensor) -> float:
        """By what factor others (unscaling, clipping) changed ``p.grad`` since the last sample was collected."""
        before = self._norms[parameter]
        return float(torch.linalg.vector_norm(grad) / before) if before > 0 else 1.0

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
