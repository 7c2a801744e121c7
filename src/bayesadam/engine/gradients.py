"""From the gradients of a step to one update of all parameters, after checks that the step can be made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesadam.engine.collection import Collection
from bayesadam.engine.finite import first_bad
from bayesadam.engine.passes import Pass, numbers_of, own_prior_of, per_weight_of, statics_of
from bayesadam.engine.rule import initial_counters
from bayesadam.engine.run import Draw, Job, Plan, Walk, tensors_of
from bayesadam.engine.sources import CurvatureSource
from bayesadam.engine.store import COUNTERS, NumbersCache, Slot, Store, hyper
from bayesadam.engine.weights import TRAIN, Weights, statics_by_group
from bayesadam.sharding import local

BACKTRACK = 0.5
"""Fraction of the largest admissible rate that back-tracking uses, so that no precision more than halves."""


Updated: TypeAlias = tuple[Slot, Any, dict[str, Any]]
"""A parameter that is updated, its state, and the counters after the step."""


class Gradients(Collection):
    """Turns the gradients of a step into one update of all parameters.

    Args:
        store: Groups and state of the optimiser.
        weights: Samples and means in the weights.
        source: Source of curvature that the rule does not compute itself.
    """

    resamples = True
    """Whether updates draw the next sample as they go."""

    def __init__(self, store: Store, weights: Weights, source: CurvatureSource | None) -> None:
        super().__init__(store, weights, source)
        self._limit = math.inf
        self._walk: tuple[Any, list[Slot], Walk] | None = None
        self._present: tuple[list[Slot], list[Tensor]] | None = None

    def discard(self) -> None:
        """Forget the samples collected so far."""
        super().discard()
        self._limit = math.inf

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
        self._present = None
        self._present = self._gradients()
        bad = self._first_bad()
        if bad is not None:
            rates = sorted({float(group["lr"]) for group in self.store.owner.param_groups})
            return self._refuse(
                f"the gradient of parameter {self.store.name_of(bad)} must be finite",
                f" (if the training diverges, use a smaller lr than {rates[-1]:g}, or less noise at the start by a "
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
        """Skip the step or raise an error, depending on ``nonfinite``."""
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
            self.weights.add(plan, rest, draws["next_eps"], numbers)

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
            self._present = None
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
        signs = {key: -self._factor if group["maximize"] else self._factor for key, group in groups.items()}
        changed: list[Updated] = []
        for slot, job, grad in zip(trained, walk.jobs, grads, strict=True):
            key, factor = id(slot.group), 1.0
            job.tensors["grad"] = local(grad)
            if job.work.kept:
                job.tensors["kept"], factor = self._curvature[slot.parameter], factors[slot.parameter]
            plain, after = numbers.of(groups[key], job.state)
            job.numbers = numbers.scaled(plain, signs[key], factor)
            changed.append((slot, job.state, after))
        walk.add(plan, draws)
        return changed

    def _gradients(self) -> tuple[list[Slot], list[Tensor]]:
        """The parameters to step with, and their gradients."""
        if self._present is not None:
            return self._present
        trained = self.store.trained()
        return trained, [self.store.dense_gradient(slot.parameter) for slot in trained]

    def _update_walk(self, trained: list[Slot], grads: Sequence[Tensor], drop_in: bool) -> Walk:
        """The jobs of an update; those of the last step are reused if they have not changed."""
        rule, keeps = self.store.rule, self.keeps_curvature
        compiles, holds = self.store.first["compile"], self.weights.holding(trained)
        kept = [slot.parameter in self._curvature for slot in trained] if self._curvature else [False] * len(trained)
        sampled = self.weights.sampled(trained) if rule.needs_noise and not keeps else [False] * len(trained)
        own = self.weights.lean.held
        lean = [held and slot.parameter in own for held, slot in zip(holds, trained, strict=True)]
        key = (holds, sampled, drop_in, keeps, compiles, kept, lean, statics_by_group(self.store))
        if self._walk is not None and self._walk[:2] == (key, trained) and self._walk[2].fits(grads):
            return self._walk[2]
        jobs = []
        for slot, grad, given, recovers, held, noisy in zip(trained, grads, kept, lean, holds, sampled, strict=True):
            state = self.store.state_of(slot)
            work = Pass(
                rule,
                "update",
                statics_of(rule, slot.group),
                holds_mean=not held,
                given=keeps,
                noisy=noisy,
                resample=drop_in and bool(slot.group["perturb"]),
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
