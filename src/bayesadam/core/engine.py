"""An optimiser from one step to the next: samples in, gradients out, one update of all parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.core import launch, limits
from bayesadam.core.collect import Collection, Hidden
from bayesadam.core.dense import Dense
from bayesadam.core.draws import Draw
from bayesadam.core.finite import first_bad
from bayesadam.core.flat import Flat, numbers_of
from bayesadam.core.interrupts import postponed_interrupt
from bayesadam.core.layout import Layout
from bayesadam.core.sampling import BLOCK, MEAN, TRAIN, Weights, pass_of
from bayesadam.core.sources import CurvatureSource
from bayesadam.sharding import local


def uncompiled(method: Any) -> Any:
    """Make a method break the graph when it is called inside ``torch.compile``, as torch's own optimisers do."""
    return torch._disable_dynamo(method)  # type: ignore[attr-defined]


class Block(ContextDecorator):
    """A context in which the weights hold a posterior sample."""

    def __init__(self, engine: Engine, shown: Hidden = ()) -> None:  # type: ignore[assignment]
        self.engine, self.shown, self._entered = engine, shown, False

    @uncompiled
    def __enter__(self) -> None:
        self.engine.open_block(self.shown)
        self._entered = True

    @uncompiled
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        self.engine.close_block(completed=kind is None)

    def __del__(self) -> None:
        if self._entered:  # abandoned, without an exit
            self.engine.close_block(completed=False)


class Engine:
    """Transient state of an optimiser, rebuilt in a copy and after loading from groups and state.

    Args:
        layout: The flats.
        source: Source of curvature that the rule does not compute itself.
        dense: The joint posterior of all weights, if its covariance is full.
    """

    def __init__(self, layout: Layout, source: CurvatureSource | None = None, dense: Dense | None = None) -> None:
        self.layout, self.source, self.dense = layout, source, dense
        self.weights = Weights(layout, dense)
        self.collection = Collection(self.weights, source)
        self.open = False
        self._before: Hidden = []
        self._cleared = False

    def refuse_inside(self, name: str) -> None:
        """Raise if a sampling block is open."""
        if self.open:
            raise RuntimeError(f"{name} must be called outside sampled_params(), got a call inside")

    def open_block(self, shown: Hidden) -> None:
        """Put the next sample into the weights; earlier gradients are hidden, except for those in ``shown``."""
        self._check_block()
        self._before = self.collection.present()
        try:
            with postponed_interrupt():
                self.open = True
                for parameter, _ in self._before:
                    parameter.grad = None
                self.weights.perturb(self.collection.samples, BLOCK)
                if self.source is not None:
                    self.source.start()
                for parameter, grad in shown:
                    parameter.grad = grad
        except BaseException:
            self._close(failed=True)
            raise

    def close_block(self, *, completed: bool) -> None:
        """Put the mean back into the weights, and with ``completed`` collect the gradients of the sample."""
        done = False
        try:
            with postponed_interrupt():
                if completed:
                    if self.source is not None:
                        self.source.check_gradients()
                    self.collection.collect(self._before)
                    done = True
        finally:
            self._close(failed=not done)

    def _close(self, *, failed: bool) -> None:
        self.weights.restore()
        if self.source is not None:
            self.source.stop()
        for parameter, grad in self._before if failed else ():
            parameter.grad = grad
        self.open, self._before = False, []

    def _check_block(self) -> None:
        count = self.layout.first["mc_samples"]
        if self.open:
            raise RuntimeError("sampled_params() must not be nested, got a block inside a block")
        if self.weights.held == TRAIN:
            raise RuntimeError(
                "sampled_params() must not be used after train(), which has drawn a sample: call eval() first"
            )
        if self.weights.held == BLOCK:  # of a copy or a checkpoint that was made inside a block
            self.weights.resume()
            self.weights.restore()
        if self.collection.samples == count and not self._was_skipped():
            raise RuntimeError(
                f"exactly mc_samples={count} blocks must be run before step(), got one more "
                "(to accumulate gradients, call backward() several times inside one block)"
            )

    def _was_skipped(self) -> bool:
        """Whether a gradient scaler skipped the step of the collected samples, which are then discarded."""
        if self._first_bad() is None:
            return False
        self.layout.set_all("skipped_steps", self.layout.first["skipped_steps"] + 1)
        self.give_up()
        return True

    def give_up(self) -> None:
        """Discard the samples collected for the next step; others will be drawn for it."""
        if self.collection.samples:
            self.layout.set_all("noise_step", self.layout.first["noise_step"] + 1)
        self.collection.discard()

    def check_drop_in(self) -> None:
        """Raise ``RuntimeError`` if there are several samples per step, since weights can hold only one."""
        if self.layout.first["mc_samples"] != 1:
            raise RuntimeError(
                f"mc_samples must be 1 to use train(), got {self.layout.first['mc_samples']!r} (use "
                "sampled_params() or step(closure) for several samples)"
            )

    def train(self) -> None:
        """Put a sample into the weights, for drop-in training."""
        self.check_drop_in()
        if self.open or self.collection.samples:
            raise RuntimeError("train() must be called before sampled_params() or after its step(), got a call between")
        if self.weights.held == TRAIN:
            self.weights.check_same()
            self.weights.reconcile(allow_mean=True)
            if self.source is not None and not self.source.started:
                self.source.start(self.collection.after_backward)
            return
        if self.weights.held == BLOCK:
            self.weights.resume()
            self.weights.restore()
        try:
            with postponed_interrupt():
                self.weights.perturb(0, TRAIN)
                if self.source is not None:  # its data belong to gradients that no step has used
                    pending = any(member.parameter.grad is not None for member in self.layout.members())
                    begin = self.source.resume if pending else self.source.start
                    begin(self.collection.after_backward)
        except BaseException:
            self.weights.restore()
            raise

    def eval(self) -> list[Tensor]:
        """Put the mean into the weights; return those that were modified externally, whose present values are the
        mean.
        """
        self.refuse_inside("eval()")
        others: list[Tensor] = []
        with postponed_interrupt():
            if self.weights.held == BLOCK:
                self.weights.resume()
            if self.weights.held != MEAN:
                others = self.weights.release()
            if self.source is not None:
                self.source.pause()
        return others

    def cleared(self) -> None:
        """Handle cleared gradients: outside a block this also discards the samples collected for the next step."""
        self._cleared = True
        if self.source is not None:
            self.source.discard()
        if not self.open:
            self.give_up()

    def backward(self, loss: Tensor) -> None:
        """Backpropagate a loss at a sample; the source of curvature does it, if there is one."""
        if self.weights.held == MEAN:
            raise RuntimeError("backward() must be called inside sampled_params() or after train(), got a call outside")
        with torch.enable_grad():
            if self.source is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self.source.backward(loss)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update from the collected gradients, if they are complete, or from those that a closure computes."""
        if closure is None:
            self._step()
            return None
        if self.collection.samples:
            raise RuntimeError(
                f"step(closure) draws its own samples and must not follow blocks, got {self.collection.samples}"
            )
        try:
            loss = self._run(closure)
            self._step()
        except BaseException:
            self.collection.discard()
            raise
        return loss

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Call a closure once for every sample, and collect its gradients."""
        if self.weights.held == TRAIN:
            return self._call(closure)
        count = self.layout.first["mc_samples"]
        differentiates = self.source is not None and self.source.differentiates  # it then computes all gradients itself
        earlier = [] if differentiates else [(p, grad) for p, grad in self.collection.present() if grad is not None]
        losses = []
        try:
            for number in range(count):
                # If the closure does not clear gradients, every sample starts from those of earlier micro-batches.
                last = number == count - 1
                shown = [(p, grad if last or grad is None else grad.clone()) for p, grad in earlier]
                self._cleared = False
                versions = [None if grad is None else grad._version for _, grad in shown]
                with Block(self, shown):
                    losses.append(self._call(closure))
                    self._check_cleared(shown, versions)
        except BaseException:
            before = {parameter: grad for parameter, grad in earlier}
            for member in [] if differentiates else self.layout.members():
                member.parameter.grad = before.get(member.parameter)
            raise
        if len(losses) == 1 or losses[0] is None:
            return losses[0]
        if isinstance(losses[0], Tensor):
            return torch.stack([loss.detach() for loss in losses]).mean()
        return sum(losses) / len(losses)

    def _call(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
            return loss if self.source is None else self.source.after_closure(loss)

    def _check_cleared(self, shown: Hidden, versions: Sequence[int | None]) -> None:
        """Refuse gradients from before the closure where curvature is that of its own backward pass."""
        if self.source is None or self._cleared:
            return
        for (parameter, grad), version in zip(shown, versions, strict=True):
            if version is not None and parameter.grad is grad and parameter.grad._version == version + 1:
                raise RuntimeError(
                    "the closure must clear the gradients (optimizer.zero_grad()) for a method that collects curvature "
                    "with them, got gradients from before step(closure): accumulate over micro-batches inside the "
                    "closure, or in sampled_params()"
                )

    def _step(self) -> None:
        weights, collection = self.weights, self.collection
        if weights.held == BLOCK:
            weights.resume()
            weights.restore()
        drop_in = weights.held == TRAIN
        if not drop_in and collection.samples == 0 and self._creates_state_only():
            return
        count = self.layout.first["mc_samples"]
        if not drop_in and collection.samples != count:
            raise RuntimeError(
                f"step() must follow exactly mc_samples={count} sampling blocks, got {collection.samples}: use "
                "`with opt.sampled_params():`, pass a closure, or call train() first (the weights hold the mean)"
            )
        try:
            if drop_in:
                weights.check_same()
                weights.reconcile()
                collection.collect_drop_in()
            ready = self._ready()
        except BaseException:
            if not drop_in:
                collection.discard()
            raise
        with postponed_interrupt():
            self._update(drop_in, ready)

    def _creates_state_only(self) -> bool:
        """Whether this is the ``step()`` with rate 0 and zero gradients by which distributed checkpoints create the
        state.
        """
        if any(float(group["lr"]) != 0 for group in self.layout.owner.param_groups):
            return False
        grads = [self.collection.gradient(member.parameter) for member in self.collection.trained()]
        if any(local(grad).count_nonzero() for grad in grads):
            return False
        self.layout.flats()
        return True

    def _first_bad(self) -> Tensor | None:
        """The first parameter whose gradient is not finite, if there is one."""
        parameters = [member.parameter for member in self.collection.trained()]
        grads = [self.collection.gradient(parameter) for parameter in parameters]
        number = first_bad(grads, compiles=self.layout.first["compile"])
        return None if number is None else parameters[number]

    def _ready(self) -> bool:
        """Whether to step; raises an error if ``nonfinite="raise"`` and the step cannot be made."""
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

    def _check_finite(self) -> None:
        bad = self._first_bad()
        if bad is not None:
            largest = max(float(group["lr"]) for group in self.layout.owner.param_groups)
            raise FloatingPointError(
                f"the gradient of parameter {self.layout.name_of(bad)} must be finite, got inf or nan; nothing was "
                f"changed (if the training diverges, use a smaller lr than {largest:g}, or less noise at the start by "
                "a larger initial_precision)"
            )
        if self.source is not None and self.source.differentiates:  # they may be infinite where the gradient is finite
            for parameter, kept in self.collection.kept.items():
                if not kept.isfinite().all():
                    name = self.layout.name_of(parameter)
                    raise FloatingPointError(
                        f"the curvature of parameter {name} must be finite, got inf or nan; nothing was changed"
                    )

    _limit = float("inf")

    def _update(self, drop_in: bool, ready: bool) -> None:
        """Make the step, if it is ``ready``, and advance; in drop-in training the weights get their next sample."""
        weights, first = self.weights, self.layout.first
        flats = self.layout.known() if drop_in else self.layout.flats()
        draws = {"eps": weights.draw(0), "next_eps": weights.draw(0, ahead=1)}
        if self.dense is not None and ready:
            self.dense.step(flats, self.collection.gradients(), factor=self.collection.factor, follow=not drop_in)
            for flat in flats:
                flat.counters[:] = numbers_of(self.layout.rule, flat).after
        if drop_in and self.dense is not None:
            self.dense.prepare([flat for flat in flats if flat.kind.perturb], draws["next_eps"])
        for flat in flats:
            self._update_flat(flat, draws, drop_in=drop_in and flat.kind.perturb, ready=ready)
        self.layout.set_all("noise_step", first["noise_step"] + 1)
        if not ready:
            self.layout.set_all("skipped_steps", first["skipped_steps"] + 1)
        self.collection.discard()
        if drop_in:
            weights.settle(weights.flats, draws["next_eps"])
            if self.source is not None:
                self.source.discard()
        torch.clear_autocast_cache()

    def _update_flat(self, flat: Flat, draws: Mapping[str, Draw], *, drop_in: bool, ready: bool) -> None:
        grads = [parameter.grad for parameter in flat.parameters]
        if ready and self.dense is None:
            if not any(grad is None for grad in grads) and not self.collection.keeps_curvature:
                chosen = np.arange(len(grads))
                self._launch(flat, chosen, grads, draws, drop_in=drop_in, curvature="rule")
            else:
                chosen = np.array([i for i, grad in enumerate(grads) if grad is not None], dtype=np.int64)
                self._launch_parts(flat, chosen, grads, draws, drop_in=drop_in)
        else:
            chosen = np.zeros(0, dtype=np.int64)
        if drop_in and len(chosen) < len(grads):
            rest = np.setdiff1d(np.arange(len(grads)), chosen)
            self.weights.write(flat, rest, draws["next_eps"], mean="state" if flat.stored else "sample")

    def _launch_parts(
        self, flat: Flat, chosen: Any, grads: Sequence[Any], draws: Mapping[str, Draw], *, drop_in: bool
    ) -> None:
        """Update members with and without a kept curvature in turn."""
        if not self.collection.keeps_curvature:
            self._launch(flat, chosen, grads, draws, drop_in=drop_in, curvature="rule")
            return
        has = np.array([flat.parameters[number] in self.collection.kept for number in chosen], dtype=bool)
        self._launch(flat, chosen[has], grads, draws, drop_in=drop_in, curvature="kept")
        self._launch(flat, chosen[~has], grads, draws, drop_in=drop_in, curvature=None)

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
        lists["grad"] = [local(grads[number]) for number in chosen.tolist()]
        kept_scale: Any = 1.0
        if curvature == "kept":
            lists["kept"] = [self.collection.kept[flat.parameters[number]] for number in chosen]
            kept_scale = self.collection.scale_array(flat)
        counted = numbers_of(
            rule, flat, scale=self.collection.factor, kept_scale=kept_scale, groups=self._limited(flat)
        )
        launch.run(work, flat, chosen, counted.numbers, lists, draws, compile=self.layout.first["compile"])
        flat.counters[chosen] = counted.after[chosen]

    def _limited(self, flat: Flat) -> list[Mapping[str, Any]]:
        """The groups of a flat, with a smaller rate if back-tracking asks for it."""
        if self.layout.first.get("correction") != "backtracking":
            return list(flat.groups)
        rule: Any = self.layout.rule
        return [rule.with_largest_rate(group, self._limit) for group in flat.groups]
