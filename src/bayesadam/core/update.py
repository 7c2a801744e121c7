"""One update of all parameters from the gradients of a step, after checks that it can be made."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesadam import native, noise
from bayesadam.core.collect import Collection, Gradients
from bayesadam.core.device_check import DeviceCheck
from bayesadam.core.flat import Draw, Flat, draw_of, numbers_of
from bayesadam.core.launch import run
from bayesadam.core.sources import HessianSource
from bayesadam.modules.sharding import full
from bayesadam.native import device as devices

BACKTRACK = 0.5
"""Fraction of the largest admissible rate that back-tracking uses, so that no precision more than halves."""


class NotPositive(FloatingPointError):
    """Raised if a step would make a precision negative."""

    def __init__(self) -> None:
        super().__init__(
            "the posterior precision must stay positive, got a curvature that is too negative for this step; nothing "
            "was changed (use correction='elementwise', a smaller 1 - betas[1] or a larger prior_precision)"
        )


class Updates:
    """Turns what was collected into steps of the rule.

    Args:
        collection: What was collected for the step.
    """

    def __init__(self, collection: Collection) -> None:
        self.collection, self.weights, self.layout = collection, collection.weights, collection.layout
        self._largest_rate = math.inf
        self._check = DeviceCheck()
        self._found: Tensor | None = None
        self._gradients: Mapping[Flat, Gradients] = {}

    def ready(self) -> bool:
        """Whether to step; raises an error if ``nonfinite="raise"`` and the step cannot be made."""
        first, collection = self.layout.first, self.collection
        self._gradients = collection.gather()
        self._largest_rate = math.inf  # the correction may be another one than in the last step
        is_corrected = first.get("correction", "elementwise") != "elementwise"
        if collection.collects_curvature and collection.source is None:
            self._check_measured()
        self._found = None
        if self.layout.on_device and first["compile"]:
            self.learn(wait=False)
            trained, grads = trained_of(self._gradients)
            if grads and not is_corrected and not isinstance(collection.source, HessianSource):
                self._found = self._check.start(trained, grads)
                return True
        try:
            bad = first_bad(self._gradients, compiles=first["compile"])
            if bad is not None:
                raise self._not_finite(bad, "; nothing was changed")
            if isinstance(collection.source, HessianSource):
                self._check_curvatures()
            if is_corrected:
                self._largest_rate = self._limit()
        except FloatingPointError:
            if first["nonfinite"] == "skip":
                return False
            raise
        return True

    def _check_measured(self) -> None:
        """Refuse gradients without the curvature that the rule collects with every sample."""
        for flat in self.layout.built:
            if flat.kind.perturb or not self.layout.rule.needs_noise:
                for parameter in flat.parameters:
                    if parameter.grad is not None and parameter not in self.collection.curvatures:
                        raise RuntimeError(
                            f"the gradient of parameter {self.layout.name_of(parameter)} must be computed inside "
                            "sampled_params(), got one from outside"
                        )

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

    def _check_curvatures(self) -> None:
        """Refuse second derivatives that are infinite, perhaps where the gradient is finite."""
        for parameter, curvature in self.collection.curvatures.items():
            if not curvature.isfinite().all():
                self._refuse_curvature(parameter)

    def _refuse_curvature(self, parameter: Tensor) -> None:
        name = self.layout.name_of(parameter)
        raise FloatingPointError(
            f"the curvature of parameter {name} must be finite, got inf or nan; nothing was changed"
        )

    def _limit(self) -> float:
        """The largest rate at which the precisions of all weights stay positive in the next step, where curvature is
        negative and the rule itself does not keep them so (Khan et al. 2018, eq. 63).

        With ``correction="backtracking"`` it is half of the largest one; with ``None`` it is infinite.

        Raises:
            NotPositive: The correction is ``None``, and a precision would become negative at the rule's own rate.
            FloatingPointError: A curvature is not a number.
        """
        rule: Any = self.layout.rule
        correction, smallest = self.layout.first["correction"], math.inf
        for flat in self.layout.built:
            numbers = flat.next_numbers(rule)
            scales = np.broadcast_to(self.collection.collected_scales(flat), len(flat.members))
            for number, parameter in enumerate(flat.parameters):
                curvature = self.collection.curvatures.get(parameter)
                if curvature is None or parameter.grad is None or not curvature.numel():
                    continue
                state, hp = {name: flat.part(name, number) for name in rule.state}, flat.hyper(rule, number, numbers)
                limit = float(rule.largest_rate(state, curvature * float(scales[number]), hp))
                if math.isnan(limit):
                    self._refuse_curvature(parameter)
                if correction is None and not limit > rule.rate(hp):
                    raise NotPositive
                smallest = min(smallest, limit)
        return BACKTRACK * smallest if correction == "backtracking" else math.inf

    def make(self, drop_in: bool, ready: bool) -> None:
        """Make the step, if it is ``ready``, and advance; in drop-in training the weights get their next sample."""
        layout, flats = self.layout, self.layout.built
        following = layout.first["noise_step"] + 1
        draws = {"eps": draw_of(layout.first), "next_eps": draw_of(layout.first, step=following)}
        is_captured = layout.on_device and devices.is_capturing(flats[0].kind.device)
        if drop_in and not is_captured:
            self.weights.writing = "next"
        for flat in flats:
            self._update_flat(flat, draws, drop_in=drop_in and flat.kind.perturb, ready=ready)
        if is_captured:
            return  # there was no step
        layout.set_all("noise_step", layout.first["noise_step"] + 1)
        if not ready:
            layout.set_all("skipped_steps", layout.first["skipped_steps"] + 1)
        self.collection.discard()
        self._gradients = {}
        if drop_in:
            self.weights.settle(draws["next_eps"])
        else:
            torch.clear_autocast_cache()

    def _update_flat(self, flat: Flat, draws: Mapping[str, Draw], *, drop_in: bool, ready: bool) -> None:
        """Make the rule's step on the members with a gradient; in drop-in training all get their next sample."""
        gradients = self._gradients[flat] if ready else self._gradients[flat].of([])
        if self.collection.collects_curvature:
            collected = [flat.parameters[number] in self.collection.curvatures for number in gradients.numbers]
            has = np.array(collected, dtype=bool)
            self._step(flat, gradients.of(np.flatnonzero(has)), draws, drop_in=drop_in, curvature="collected")
            self._step(flat, gradients.of(np.flatnonzero(~has)), draws, drop_in=drop_in, curvature=None)
        else:
            self._step(flat, gradients, draws, drop_in=drop_in, curvature="rule")
        if drop_in and len(gradients.numbers) < len(flat.members):
            rest = np.setdiff1d(np.arange(len(flat.members)), gradients.numbers)
            self.weights.write(flat, rest, draws["next_eps"], mean="state")

    def _step(
        self,
        flat: Flat,
        gradients: Gradients,
        draws: Mapping[str, Draw],
        *,
        drop_in: bool,
        curvature: str | None,
    ) -> None:
        chosen = gradients.numbers
        if not len(chosen):
            return
        rule, collection = self.layout.rule, self.collection
        lists = {"grad": gradients.placed}
        collected_scale: Any = 1.0
        if curvature == "collected":
            scales: Sequence[Tensor] = ()
            if self._found is None:
                collected_scale = collection.collected_scales(flat)
            else:
                ratios = collection.ratios([flat.parameters[number] for number in chosen])
                scales = list(ratios.to(flat.kind.dtype).pow(rule.power))
            lists["collected"] = collection.curvatures_of(flat, chosen, scales)
        groups: list[Mapping[str, Any]] = list(flat.groups)
        if self._largest_rate < math.inf:
            groups = [rule.slowed(group, self._largest_rate) for group in groups]  # type: ignore[attr-defined]
        numbers = numbers_of(rule, flat, scale=collection.factor, collected_scale=collected_scale, groups=groups)
        noisy = curvature == "rule" and rule.needs_noise and flat.kind.perturb
        entries = {
            "mean": "state" if drop_in else "weights",
            "deviation": flat.deviation(held=drop_in) if noisy else None,
            "curvature": curvature,
        }
        run(self.layout, flat, "update", chosen, numbers, lists, draws, self._found, **entries)


def trained_of(gradients: Mapping[Flat, Gradients]) -> tuple[list[Tensor], list[Tensor]]:
    """All parameters that have a gradient, and these gradients."""
    trained = [flat.parameters[number] for flat, each in gradients.items() for number in each.numbers]
    return trained, [parameter.grad for parameter in trained]


def first_bad(gradients: Mapping[Flat, Gradients], *, compiles: bool) -> Tensor | None:
    """The first parameter whose gradient has an element that is not finite or whose square is not, if there is one.

    For sharded gradients it is a collective call, with the same answer on all ranks.

    Args:
        gradients: Gradients of any dtypes.
        compiles: Whether to use a compiled function where possible.
    """
    addresses: list[int] = []
    sizes: list[NDArray[np.int64]] = []
    walk = _compiled() if compiles else None
    for flat, each in gradients.items():
        addresses += each.placed.addresses
        sizes.append(flat.sizes[each.numbers])
        if not (each.placed.is_plain and flat.kind.weights is torch.float32 and flat.kind.device.type == "cpu"):
            walk = None
    if walk is not None:
        table = np.concatenate([np.array(addresses, dtype=np.int64), *sizes])
        threads = 1 if table[len(addresses) :].sum() <= noise.ALONE else torch.get_num_threads()
        number = walk(len(addresses), table.ctypes.data, threads)
        return None if number < 0 else trained_of(gradients)[0][number]
    trained, grads = trained_of(gradients)
    if not grads or math.isfinite(_read(full(nn.utils.get_total_norm(grads)))):
        return None
    for parameter, grad in zip(trained, grads, strict=True):
        wide = torch.promote_types(grad.dtype, torch.float32)  # a norm may overflow in float16, its elements do not
        if not math.isfinite(_read(full(torch.linalg.vector_norm(grad, dtype=wide)))):
            return parameter
    return None


@cache
def _compiled() -> Callable[[int, int, int], int] | None:
    """The compiled function of ``native/finite.cpp``, or ``None`` if there is none."""
    library = native.load(native.read("finite.cpp"))
    if library is None:
        return None
    function: Any = library.first_bad
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int]
    return function  # type: ignore[no-any-return]


def _read(value: Tensor) -> float:
    """A 0-d tensor's number, without a device synchronisation if it is in CPU memory."""
    if value.device.type != "cpu":
        return float(value)
    return float(value.detach().double().numpy())
