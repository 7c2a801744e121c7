"""An optimiser from one step to the next: samples in, gradients out, one update of all parameters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesadam.core.collect import Collection, Hidden
from bayesadam.core.interrupts import postponed_interrupt
from bayesadam.core.sampling import BLOCK, MEAN, TRAIN, Weights
from bayesadam.core.sources import HessianSource, Source
from bayesadam.core.update import Updates
from bayesadam.curvature import PerExampleSquares
from bayesadam.native.device import refilling
from bayesadam.sharding import local

Method = TypeVar("Method", bound=Callable[..., Any])


def uncompiled(method: Method) -> Method:
    """Make a method break the graph when it is called inside ``torch.compile``, as torch's own optimisers do."""
    return torch._disable_dynamo(method)  # type: ignore[attr-defined, return-value]


class Block(ContextDecorator):
    """Context in which the weights hold a posterior sample. If it is never left, it ends when the object is deleted."""

    def __init__(self, engine: Engine, shown: Hidden | None = None) -> None:
        self.engine, self.shown = engine, shown or []

    @uncompiled
    def __enter__(self) -> None:
        try:
            self.engine.open_block(id(self), self.shown)
        except KeyboardInterrupt:
            self.engine.abandon()
            raise

    @uncompiled
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.engine.close_block(completed=kind is None)
            if kind is KeyboardInterrupt:
                self.engine.abandon()
        except KeyboardInterrupt:
            self.engine.abandon()
            raise

    def __del__(self) -> None:
        if self.engine.opened == id(self):
            self.engine.close_block(completed=False)


class Engine:
    """Transient state of an optimiser, rebuilt in a copy and after loading from groups and state.

    Args:
        weights: Samples and means in the weights.
        source: Source of curvature that the rule does not compute itself.
    """

    def __init__(self, weights: Weights, source: Source | None = None) -> None:
        self.weights, self.layout, self.source = weights, weights.layout, source
        self.collection = Collection(self.weights, source)
        self.updates = Updates(self.collection)
        self.opened: int | None = None  # the identity of the open block
        self._before: Hidden = []

    @property
    def open(self) -> bool:
        """Whether a sampling block is open."""
        return self.opened is not None

    def refuse_inside(self, name: str) -> None:
        """Raise if a sampling block is open."""
        if self.open:
            raise RuntimeError(f"{name} must be called outside sampled_params(), got a call inside")

    def abandon(self) -> None:
        """Discard the samples of an unfinished step after Ctrl-C, since the loop will start anew."""
        if self.open:
            self.close_block(completed=False)
        self.collection.discard()

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
                    if isinstance(self.source, HessianSource):
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
            if grad is None or grad.shape == parameter.shape:  # another shape may be what the error is about
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
        self.weights.finish_block()
        if self.collection.samples == count and not self._was_skipped():
            self.collection.discard()  # a loop may be started again after an interrupt between a block and its step
            raise RuntimeError(
                f"exactly mc_samples={count} blocks must be run before step(), got one more "
                "(to accumulate gradients, call backward() several times inside one block; to run the network at a "
                "sample outside of training, use posterior().applied(model))"
            )

    def _was_skipped(self) -> bool:
        """Whether a gradient scaler skipped the step of the collected samples, which are then discarded."""
        if self.updates.first_bad() is None:
            return False
        self.layout.set_all("skipped_steps", self.layout.first["skipped_steps"] + 1)
        self.give_up()
        return True

    def give_up(self) -> None:
        """Discard the samples collected for the next step, for which new ones will be drawn."""
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
        if isinstance(self.source, HessianSource):
            raise RuntimeError(
                f"hessian must be 'reparameterized' to use train(), got {self.layout.first['hessian']!r}: it needs the "
                "loss, from step(closure) or from backward(loss) inside sampled_params()"
            )
        if self.open or self.collection.samples:
            raise RuntimeError("train() must be called before sampled_params() or after its step(), got a call between")
        if self.weights.held == TRAIN:
            self.weights.check_same()
            self.weights.reconcile("mean")
            if self.source is not None and not self.source.started:
                self.source.start(self.collection.remember_norms)
            return
        self.weights.finish_block()
        try:
            with postponed_interrupt():
                self.weights.perturb(0, TRAIN)
                if self.source is not None:  # it has data of gradients that no step has used
                    pending = any(member.parameter.grad is not None for member in self.layout.members())
                    begin = self.source.resume if pending else self.source.start
                    begin(self.collection.remember_norms)
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
            self.weights.finish_block()
            if self.weights.held != MEAN:
                others = self.weights.release()
            if isinstance(self.source, PerExampleSquares):
                self.source.pause()  # collected curvatures are kept, since the user may keep the gradients, too
        self.updates.learn(wait=True)
        return others

    def cleared(self) -> None:
        """Handle cleared gradients: outside a block this also discards the samples collected for the next step."""
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
            loss = self._call(closure) if self.weights.held == TRAIN else self._run(closure)
            self.step()
        except BaseException:
            self.collection.discard()
            raise
        return loss

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Call a closure once for every sample, and collect its gradients.

        If the closure does not clear gradients, every sample adds to the gradients of earlier micro-batches. If the
        curvature does not come from the gradient, those gradients are hidden, as in a block, because they have no
        curvature.
        """
        count = self.layout.first["mc_samples"]
        present = self.collection.present()
        earlier = [(p, grad) for p, grad in present if grad is not None and self.source is None]
        losses = []
        try:
            for number in range(count):
                last = number == count - 1
                with Block(self, [(parameter, grad if last else grad.clone()) for parameter, grad in earlier]):
                    losses.append(self._call(closure))
        except BaseException:
            for parameter, grad in present:
                parameter.grad = grad
            raise
        if len(losses) == 1 or losses[0] is None:
            return losses[0]
        if isinstance(losses[0], Tensor):
            return torch.stack([loss.detach() for loss in losses]).mean()
        return sum(losses) / len(losses)

    def _call(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
            if isinstance(self.source, HessianSource):
                return self.source.after_closure(loss)
            if self.source is not None and isinstance(loss, Tensor):
                self.source.check(loss)
            trained = [p for g in self.layout.owner.param_groups for p in g["params"] if p.requires_grad]
            if isinstance(loss, Tensor) and loss.requires_grad and trained and all(p.grad is None for p in trained):
                raise RuntimeError("closure must call backward() on the loss, got no gradient of any parameter")
            return loss

    def step(self) -> None:
        """Update from the collected gradients, if they are complete."""
        weights, collection = self.weights, self.collection
        weights.finish_block()
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
                if self.layout.has_initialized():
                    # The first gradients of these parameters count as taken at their first sample.
                    self.eval()
                    self.train()
                weights.check_same()
                weights.reconcile("sample")
                collection.collect_drop_in()
            ready = self.updates.ready()
        except BaseException:
            if not drop_in:
                collection.discard()
            raise
        with postponed_interrupt():
            self.updates.make(drop_in, ready)
            if drop_in and self.source is not None:
                self.source.discard()

    def prepare_replay(self) -> None:
        """Prepare the replay of a step that a graph has recorded: write its numbers to the memory that the recorded
        kernels read.
        """
        on_device = all(flat.on_device for flat in self.layout.built)
        if self.weights.held != TRAIN or not on_device or self.collection.collects_curvature:
            raise RuntimeError(
                "prepare_replay() must be called after train(), for parameters on a GPU with kernels and a method that "
                "computes curvature from the gradient"
            )
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
