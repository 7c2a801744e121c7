"""An optimiser from one step to the next: samples in, gradients out, one update of all parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesadam.core.collect import Collection, Hidden
from bayesadam.core.dense import Dense
from bayesadam.core.interrupts import postponed_interrupt
from bayesadam.core.layout import Layout
from bayesadam.core.sampling import BLOCK, MEAN, TRAIN, Weights
from bayesadam.core.sources import CurvatureSource
from bayesadam.core.update import Updates
from bayesadam.native.device import refilling
from bayesadam.sharding import local

Method = TypeVar("Method", bound=Callable[..., Any])


def uncompiled(method: Method) -> Method:
    """Make a method break the graph when it is called inside ``torch.compile``, as torch's own optimisers do."""
    return torch._disable_dynamo(method)  # type: ignore[attr-defined, return-value]


class Block(ContextDecorator):
    """A context in which the weights hold a posterior sample; it ends with the object, if it is never left."""

    def __init__(self, engine: Engine, shown: Hidden | None = None) -> None:
        self.engine, self.shown = engine, shown or []

    @uncompiled
    def __enter__(self) -> None:
        self.engine.open_block(id(self), self.shown)

    @uncompiled
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.close_block(completed=kind is None)

    def __del__(self) -> None:
        if self.engine.opened == id(self):
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
        self.updates = Updates(self.weights, self.collection)
        self.opened: int | None = None  # the identity of the open block
        self._before: Hidden = []
        self._cleared = False

    @property
    def open(self) -> bool:
        """Whether a sampling block is open."""
        return self.opened is not None

    def refuse_inside(self, name: str) -> None:
        """Raise if a sampling block is open."""
        if self.open:
            raise RuntimeError(f"{name} must be called outside sampled_params(), got a call inside")

    def open_block(self, block: int, shown: Hidden) -> None:
        """Put the next sample into the weights; earlier gradients are hidden, except for those in ``shown``."""
        self._check_block()
        self._before = self.collection.present()
        try:
            with postponed_interrupt():
                self.opened = block
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
        with postponed_interrupt():
            done = False
            try:
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
        self.opened, self._before = None, []

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
        if self.updates.first_bad() is None:
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
        self.updates.learn(wait=True)
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

    def step_with(self, closure: Callable[[], Any]) -> Any:
        """Update from the gradients that a closure computes; return its mean loss."""
        if self.collection.samples:
            raise RuntimeError(
                f"step(closure) draws its own samples and must not follow blocks, got {self.collection.samples}"
            )
        try:
            loss = self._run(closure)
            self.step()
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
        present = [] if differentiates else self.collection.present()
        earlier = [(parameter, grad) for parameter, grad in present if grad is not None]
        losses = []
        try:
            for number in range(count):
                # If the closure does not clear gradients, every sample starts from those of earlier micro-batches.
                last = number == count - 1
                shown: Hidden = [(parameter, grad if last else grad.clone()) for parameter, grad in earlier]
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
            if grad is not None and version is not None and parameter.grad is grad and grad._version == version + 1:
                raise RuntimeError(
                    "the closure must clear the gradients (optimizer.zero_grad()) for a method that collects curvature "
                    "with them, got gradients from before step(closure): accumulate over micro-batches inside the "
                    "closure, or in sampled_params()"
                )

    def step(self) -> None:
        """Update from the collected gradients, if they are complete."""
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
            if drop_in and self.layout.has_initialized():  # their first gradients count as taken at their first sample
                self.eval()
                self.train()
            if drop_in:
                weights.check_same()
                weights.reconcile()
                collection.collect_drop_in()
            ready = self.updates.ready()
        except BaseException:
            if not drop_in:
                collection.discard()
            raise
        with postponed_interrupt():
            self.updates.make(drop_in, ready)

    def prepare_replay(self) -> None:
        """Make a step on the host alone, and bring its numbers to where a graph with the kernels of a step reads them."""
        if self.weights.held != TRAIN or not all(flat.on_device for flat in self.layout.known()):
            raise RuntimeError("prepare_replay() must be called after train(), for parameters on a GPU with kernels")
        with refilling():
            self.step()

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
