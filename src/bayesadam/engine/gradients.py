"""From the gradients at one or several samples to one update: Monte Carlo averages, scaling, and the finite check."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from bayesadam.engine.finite import first_bad
from bayesadam.engine.passes import Pass, numbers_of, own_prior_of, per_weight_of, statics_of
from bayesadam.engine.rule import initial_counters
from bayesadam.engine.run import Draw, Job, Plan, Walk, tensors_of
from bayesadam.engine.sources import CurvatureSource
from bayesadam.engine.store import COUNTERS, NumbersCache, Slot, Store, hyper
from bayesadam.engine.weights import MEAN, TRAIN, Weights, statics_by_group
from bayesadam.sharding import like, local

BACKTRACK = 0.5
"""Fraction of the largest admissible rate that back-tracking uses, so that no precision more than halves."""


Updated: TypeAlias = tuple[Slot, Any, dict[str, Any]]
"""A parameter that is updated, its state, and the counters after the step."""


class Hidden(NamedTuple):
    """A parameter and the gradient that it had."""

    slot: Slot
    grad: Tensor | None


class Gradients:
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

    resamples = True
    """Whether updates draw the next sample as they go."""

    def __init__(self, store: Store, weights: Weights, source: CurvatureSource | None) -> None:
        self.store = store
        self.weights = weights
        self.source = source
        self.collected = 0
        self._curvature: dict[Tensor, Tensor] = {}
        self._norms: dict[Tensor, Tensor] = {}
        self._limit = math.inf
        self._factor = 1.0
        self._walk: tuple[Any, list[Slot], Walk] | None = None

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
        self._curvature, self._norms, self._limit, self._factor = {}, {}, math.inf, 1.0

    def present(self) -> list[Hidden]:
        """All parameters with their gradients."""
        return [Hidden(slot, slot.parameter.grad) for slot in self.store.slots()]

    def hide(self, present: Sequence[Hidden]) -> None:
        """Take gradients away."""
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
            self._average(hidden if self.collected else [Hidden(slot, None) for slot, _ in hidden], share)
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
        self._curvature = {}  # of a step that was refused
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
        rule, jobs, numbers = self.store.rule, [], NumbersCache(self.store.rule)
        fresh: dict[Tensor, Tensor] = {}
        for slot in trained:
            group, parameter, state = slot.group, slot.parameter, self.store.state_of(slot)
            noisy = rule.needs_noise and group["perturb"]
            if rule.needs_noise and not noisy:
                continue  # nothing to read it off
            kept = self._curvature.get(parameter)
            if kept is None:
                kept = fresh[parameter] = torch.zeros_like(local(state["mean"]))
            work = Pass(
                rule, "collect", statics_of(rule, group), noisy=noisy, per_weight=per_weight_of(state), kept=True
            )
            plain, _ = numbers.of(group, state)
            told = numbers.scaled(plain, -1.0 if group["maximize"] else 1.0, share=share)
            tensors = tensors_of(work, parameter, state, grad=self.store.dense_gradient(parameter), kept=kept)
            jobs.append(Job(work, slot.index, parameter, state, tensors, told))
        plan = Plan()
        compiles = self.store.first["compile"]
        Walk(jobs, self.weights.runner, compiles=compiles).add(plan, {"eps": self.weights.draw(self.collected)})
        plan.run()
        self._curvature.update(fresh)

    def _keep_from_source(self, slot: Slot, share: float) -> None:
        assert self.source is not None
        group, parameter = slot.group, slot.parameter
        if not group["perturb"] and not self.source.covers(parameter):
            return  # a learned noise level, say
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

    def are_zero(self) -> bool:
        """Whether every gradient is absent or zero."""
        return not any(
            local(self.store.dense_gradient(slot.parameter)).count_nonzero() for slot in self.store.trained()
        )

    def are_finite(self) -> bool:
        """Whether all gradients are finite, by one read of one number."""
        return self._first_bad() is None

    def ready(self) -> bool:
        """Whether to step; raises an error if ``nonfinite="raise"`` and the step cannot be made."""
        bad = self._first_bad()
        if bad is not None:
            rates = sorted({float(group["lr"]) for group in self.store.owner.param_groups})
            return self._refuse(
                f"the gradient of parameter {self.store.name_of(bad)} must be finite",
                f" (a training that diverges wants a smaller lr than {rates[-1]:g}, or less noise at its start: a "
                "larger initial_precision)",
            )
        return self._curvature_is_finite() and self._limit_rates()

    def _first_bad(self) -> Tensor | None:
        """The first parameter whose gradient is not finite, if there is one."""
        trained, grads = self._gradients()
        number = first_bad(grads, compiles=self.store.first["compile"])
        return None if number is None else trained[number].parameter

    def _curvature_is_finite(self) -> bool:
        """Whether second derivatives are finite, which may be infinite where the gradient is finite."""
        if self.source is None or not self.source.differentiates:
            return True
        for parameter, kept in self._curvature.items():
            if not kept.isfinite().all():
                return self._refuse(f"the curvature of parameter {self.store.name_of(parameter)} must be finite")
        return True

    def _refuse(self, why: str, hint: str = "") -> bool:
        """Skip the step, or raise an error, as ``nonfinite`` says."""
        if self.store.first["nonfinite"] == "skip":
            return False
        raise FloatingPointError(f"{why}, got inf or nan; nothing was changed{hint}")

    def step(self, *, ready: bool) -> None:
        """Apply the rule to every parameter that has a gradient, if ``ready``, and advance to the next step.

        In drop-in training the weights get their next sample. A step that has begun is completed even if an exception
        such as an interrupt occurs, which is raised afterwards.
        """
        drop_in, first = self.weights.held == TRAIN, self.store.first
        step, skipped = first["noise_step"] + 1, first["skipped_steps"] + (not ready)
        draws = {"eps": self.weights.draw(0), "next_eps": self.weights.draw(0, ahead=1)}
        plan, numbers = Plan(), NumbersCache(self.store.rule)
        changed = self._add_updates(plan, draws, numbers, drop_in) if ready else []
        written: list[Tensor] = []
        if drop_in:
            noisy = [slot for slot in self.store.slots() if slot.noisy]
            written = [slot.parameter for slot in noisy]
            done = {id(slot) for slot, _, _ in changed} if self.resamples else set()
            rest = [slot for slot in noisy if id(slot) not in done]
            self.weights.add(plan, rest, draws["next_eps"], numbers, adopt=False)

        def settle(mark: int) -> None:
            for _, state, counters in changed:
                state.update(counters)
            self.store.set_all("skipped_steps", skipped)
            self.store.set_all("noise_step", step)
            self.discard()
            if drop_in:
                self.weights.settle(written, TRAIN, draws["next_eps"])
            if drop_in and self.source is not None:
                self.source.discard()
            torch.clear_autocast_cache()
            plan.done.fill_(mark)

        plan.add(settle)
        try:
            plan.run()
        finally:
            if self._walk is not None:
                self._walk[2].release()

    def _add_updates(
        self, plan: Plan, draws: Mapping[str, Draw], numbers: NumbersCache, drop_in: bool
    ) -> list[Updated]:
        """Add the updates to a plan; return the parameters that they change."""
        trained, grads = self._gradients()
        factors = self._curvature_factors(trained) if self.keeps_curvature else {}
        walk = self._update_walk(trained, grads, drop_in)
        groups = {id(group): self._limited(group) for group in self.store.owner.param_groups}
        changed: list[Updated] = []
        for slot, job, grad in zip(trained, walk.jobs, grads, strict=True):
            group = groups[id(slot.group)]
            job.tensors["grad"] = local(grad)
            factor = 1.0
            if job.work.kept:
                job.tensors["kept"], factor = self._curvature[slot.parameter], factors[slot.parameter]
            plain, after = numbers.of(group, job.state)
            job.numbers = numbers.scaled(plain, (-1.0 if group["maximize"] else 1.0) * self._factor, factor)
            changed.append((slot, job.state, after))
        walk.add(plan, draws)
        return changed

    def _gradients(self) -> tuple[list[Slot], list[Tensor]]:
        """The parameters to step with, and their gradients."""
        trained = self.store.trained()
        return trained, [self.store.dense_gradient(slot.parameter) for slot in trained]

    def _update_walk(self, trained: list[Slot], grads: Sequence[Tensor], drop_in: bool) -> Walk:
        """The jobs of an update; those of the last step are reused if they have not changed."""
        rule, keeps = self.store.rule, self.keeps_curvature
        held_mean = self.weights.held == MEAN
        compiles = self.store.first["compile"]
        kept = [slot.parameter in self._curvature for slot in trained]
        lean = [drop_in and slot.parameter in self.weights.lean.held for slot in trained]
        key = (held_mean, drop_in, keeps, compiles, kept, lean, statics_by_group(self.store))
        if self._walk is not None and self._walk[:2] == (key, trained) and self._walk[2].fits(grads):
            return self._walk[2]
        jobs = []
        for slot, grad, given, recovers in zip(trained, grads, kept, lean, strict=True):
            state, noisy = self.store.state_of(slot), bool(slot.group["perturb"])
            work = Pass(
                rule,
                "update",
                statics_of(rule, slot.group),
                holds_mean=held_mean or not noisy,
                given=keeps,
                noisy=rule.needs_noise and noisy and not keeps,
                resample=drop_in and noisy,
                recovers=recovers,
                per_weight=per_weight_of(state),
                kept=given,
            )
            others = {"grad": grad, **({"kept": self._curvature[slot.parameter]} if given else {})}
            counters = {name: state[name] for name in COUNTERS}
            # At this point only the names are known.
            told = numbers_of(rule, slot.group, counters, counters, own_prior_of(state))
            tensors = tensors_of(work, slot.parameter, state, **others)
            jobs.append(Job(work, slot.index, slot.parameter, state, tensors, told))
        walk = Walk(jobs, self.weights.runner, compiles=compiles)
        self._walk = (key, list(trained), walk)
        return walk

    def _limit_rates(self) -> bool:
        """Make sure that all precisions stay positive, if the rule itself does not."""
        correction = self.store.first.get("correction", "elementwise")
        if correction == "elementwise":
            return True
        rule: Any = self.store.rule
        smallest = math.inf
        trained = [slot for slot in self.store.trained() if slot.parameter in self._curvature]
        trained = [slot for slot in trained if self._curvature[slot.parameter].numel()]
        factors = self._curvature_factors(trained)
        for slot in trained:
            parameter, state = slot.parameter, self.store.state_of(slot)
            views = {name: local(value) for name, value in state.items() if isinstance(value, Tensor)}
            told = hyper(slot.group, state, views)
            limit = float(rule.largest_rate(views, self._curvature[parameter] * factors[parameter], told))
            if math.isnan(limit):
                return self._refuse(f"the curvature of parameter {self.store.name_of(parameter)} must be finite")
            if correction is None and not limit > rule.rate(told):
                return self._not_positive()
            smallest = min(smallest, limit)
        self._limit = BACKTRACK * smallest
        return True

    def _limited(self, group: dict[str, Any]) -> dict[str, Any]:
        """The group's values, with a smaller rate if back-tracking asks for it."""
        if self.store.first.get("correction") != "backtracking":
            return group
        rule: Any = self.store.rule
        if rule.rate(hyper(group, initial_counters(), {})) <= self._limit:
            return group
        limited: dict[str, Any] = rule.with_rate(group, self._limit)
        return limited

    def _not_positive(self) -> bool:
        if self.store.first["nonfinite"] == "skip":
            return False
        raise FloatingPointError(
            "the posterior precision must stay positive, got a curvature that is too negative for this step; nothing "
            "was changed (use correction='elementwise', a smaller 1 - betas[1] or a larger prior_precision)"
        )

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
