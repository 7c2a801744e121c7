"""One update of all parameters from the gradients of a step, after checks that it can be made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.core import launch, limits
from bayesadam.core.collect import Collection
from bayesadam.core.draws import Draw
from bayesadam.core.finite import DeviceCheck, first_bad
from bayesadam.core.flat import Flat, numbers_of
from bayesadam.core.rule import Hyper, advanced
from bayesadam.core.sampling import Weights, pass_of
from bayesadam.native import device as devices
from bayesadam.sharding import local


class Updates:
    """Turns what was collected into steps of the rule.

    Args:
        weights: Samples and means in the weights.
        collection: What was collected for the step.
    """

    def __init__(self, weights: Weights, collection: Collection) -> None:
        self.weights, self.collection = weights, collection
        self.layout, self.dense, self.source = weights.layout, weights.dense, collection.source
        self._limit = math.inf
        self._check = DeviceCheck()
        self._found: Tensor | None = None

    def first_bad(self) -> Tensor | None:
        """The first parameter whose gradient is not finite, if there is one."""
        trained = [p for flat in self.layout.known() for p in flat.parameters if p.grad is not None]
        grads = [parameter.grad for parameter in trained]
        if any(grad.is_sparse for grad in grads):  # type: ignore[union-attr]
            grads = [self.collection.gradient(parameter) for parameter in trained]  # which names it
        number = first_bad(grads, compiles=self.layout.first["compile"])  # type: ignore[arg-type]
        return None if number is None else trained[number]

    def ready(self) -> bool:
        """Whether to step; raises an error if ``nonfinite="raise"`` and the step cannot be made."""
        self._check_measured()
        self.learn(wait=False)
        self._found = self._start_check()
        if self._found is not None:
            return True
        try:
            self._check_finite()
            if self.dense is not None:
                self.dense.plan(self.collection.gradients(), self.collection.ratios(list(self.collection.gradients())))
            elif self.layout.first.get("correction", "elementwise") != "elementwise":
                kept = self.collection.kept
                trained = [m.parameter for m in self.collection.trained() if m.parameter in kept]
                self._limit = limits.largest_rate(self.layout, kept, self.collection.kept_scales(trained))
        except FloatingPointError:
            if self.layout.first["nonfinite"] == "skip":
                return False
            raise
        return True

    def _check_measured(self) -> None:
        """Refuse gradients without the curvature that the rule collects with every sample."""
        if not self.collection.keeps_curvature or self.source is not None or self.dense is not None:
            return
        for flat in self.layout.known():
            if flat.kind.perturb or not self.layout.rule.needs_noise:
                for parameter in flat.parameters:
                    if parameter.grad is not None and parameter not in self.collection.kept:
                        raise RuntimeError(
                            f"the gradient of parameter {self.layout.name_of(parameter)} must be computed inside "
                            "sampled_params(), got one from outside"
                        )

    def _start_check(self) -> Tensor | None:
        """What a check on the device will find, if the kernels read it there; otherwise the host must know."""
        flats = [flat for flat in self.layout.known() if any(p.grad is not None for p in flat.parameters)]
        places = {flat.kind.device if flat.on_device and not flat.is_sharded else None for flat in flats}
        if len(places) != 1 or None in places or self.layout.first["compile"] is False:
            return None
        if self.collection.keeps_curvature or not noise.has_kernel(flats[0].kind.device):
            return None
        trained = [p for flat in flats for p in flat.parameters if p.grad is not None]
        return self._check.start(trained, [self.collection.gradient(parameter) for parameter in trained])

    def learn(self, *, wait: bool) -> None:
        """Count the steps that a device has skipped since, or raise an error for them.

        Args:
            wait: Whether to wait for the latest steps, too.
        """
        for bad in self._check.results(wait=wait):
            if self.layout.first["nonfinite"] == "skip":
                self.layout.set_all("skipped_steps", self.layout.first["skipped_steps"] + 1)
            else:
                raise self._not_finite(bad, " in an earlier step, which was skipped")

    def _not_finite(self, bad: Tensor, when: str) -> FloatingPointError:
        largest = max(float(group["lr"]) for group in self.layout.owner.param_groups)
        return FloatingPointError(
            f"the gradient of parameter {self.layout.name_of(bad)} must be finite, got inf or nan{when} "
            f"(if the training diverges, use a smaller lr than {largest:g}, or less noise at the start by "
            "a larger initial_precision)"
        )

    def _check_finite(self) -> None:
        bad = self.first_bad()
        if bad is not None:
            raise self._not_finite(bad, "; nothing was changed")
        if self.source is not None and self.source.differentiates:  # they may be infinite where the gradient is finite
            for parameter, kept in self.collection.kept.items():
                if not kept.isfinite().all():
                    name = self.layout.name_of(parameter)
                    raise FloatingPointError(
                        f"the curvature of parameter {name} must be finite, got inf or nan; nothing was changed"
                    )

    def make(self, drop_in: bool, ready: bool) -> None:
        """Make the step, if it is ``ready``, and advance; in drop-in training the weights get their next sample."""
        weights, first = self.weights, self.layout.first
        flats = self.layout.known() if drop_in else self.layout.flats()
        draws = {"eps": weights.draw(0), "next_eps": weights.draw(0, ahead=1)}
        if self.dense is not None and ready:
            self.dense.step(flats, self.collection.gradients(), factor=self.collection.factor, follow=not drop_in)
            for flat in flats:
                hp = Hyper(**numbers_of(self.layout.rule, flat), **flat.before())
                flat.advance(np.arange(len(flat.members)), advanced(self.layout.rule, hp))
        if drop_in and self.dense is not None:
            self.dense.prepare([flat for flat in flats if flat.kind.perturb], draws["next_eps"])
        for flat in flats:
            self._update_flat(flat, draws, drop_in=drop_in and flat.kind.perturb, ready=ready)
        if any(devices.is_capturing(flat.kind.device) for flat in flats):
            return  # nothing has happened
        self.layout.set_all("noise_step", first["noise_step"] + 1)
        if not ready:
            self.layout.set_all("skipped_steps", first["skipped_steps"] + 1)
        self.collection.discard()
        if drop_in:
            weights.settle(weights.flats, draws["next_eps"])
            if self.source is not None:
                self.source.discard()
        else:
            torch.clear_autocast_cache()

    def _update_flat(self, flat: Flat, draws: Mapping[str, Draw], *, drop_in: bool, ready: bool) -> None:
        grads = [parameter.grad for parameter in flat.parameters]
        steps = ready and self.dense is None
        chosen = np.array([i for i, grad in enumerate(grads) if steps and grad is not None], dtype=np.int64)
        if self.collection.keeps_curvature:
            has = np.array([flat.parameters[number] in self.collection.kept for number in chosen], dtype=bool)
            self._launch(flat, chosen[has], grads, draws, drop_in=drop_in, curvature="kept")
            self._launch(flat, chosen[~has], grads, draws, drop_in=drop_in, curvature=None)
        else:
            self._launch(flat, chosen, grads, draws, drop_in=drop_in, curvature="rule")
        if drop_in and len(chosen) < len(grads):
            rest = np.setdiff1d(np.arange(len(grads)), chosen)
            self.weights.write(flat, rest, draws["next_eps"], mean="state" if flat.stored else "sample")

    def _launch(
        self,
        flat: Flat,
        chosen: Any,
        grads: Sequence[Any],
        draws: Mapping[str, Draw],
        *,
        drop_in: bool,
        curvature: str | None,
    ) -> None:
        """Make the rule's step on some members of a flat."""
        if not len(chosen):
            return
        rule = self.layout.rule
        deviation = None
        if curvature == "rule" and rule.needs_noise and flat.kind.perturb:
            deviation = flat.deviation(held=drop_in)
        mean = ("state" if flat.stored else "sample") if drop_in else "weights"
        then = "sample" if drop_in else "mean"
        work = pass_of(self.layout, flat, "update", mean=mean, deviation=deviation, curvature=curvature, then=then)
        lists: dict[str, list[Tensor]] = {"weights": launch.weights_of(flat, chosen)}
        own = list(grads) if len(chosen) == len(grads) else [grads[number] for number in chosen.tolist()]
        lists["grad"] = [local(grad) for grad in own] if flat.is_sharded else own
        kept_scale: Any = 1.0
        if curvature == "kept":
            lists["kept"] = [self.collection.kept[flat.parameters[number]] for number in chosen]
            kept_scale = self.collection.scale_array(flat)
        numbers = numbers_of(
            rule, flat, scale=self.collection.factor, kept_scale=kept_scale, groups=self._limited(flat)
        )
        compile = self.layout.first["compile"]
        launch.run(work, flat, chosen, numbers, lists, draws, compile=compile, found=self._found)

    def _limited(self, flat: Flat) -> list[Mapping[str, Any]]:
        """The groups of a flat, with a smaller rate if back-tracking asks for it."""
        if self.layout.first.get("correction") != "backtracking":
            return list(flat.groups)
        rule: Any = self.layout.rule
        return [rule.with_largest_rate(group, self._limit) for group in flat.groups]
