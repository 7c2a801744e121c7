"""An optimiser from one step to the next: samples in, gradients out, one update of all parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bayesadam.core.collect import Collection, Hidden
from bayesadam.core.sampling import BLOCK, MEAN, TRAIN, Weights
from bayesadam.core.sources import HessianSource, Source
from bayesadam.core.update import Updates, first_bad
from bayesadam.curvature import PerExampleSquares
from bayesadam.native.device import refilling

Method = TypeVar("Method", bound=Callable[..., Any])


def uncompiled(method: Method) -> Method:
    """Make a method break the graph when it is called inside ``torch.compile``, as torch's own optimisers do."""
    return torch._disable_dynamo(method)  # type: ignore[attr-defined, return-value]


class Block(ContextDecorator):
    """Context in which the weights hold a posterior sample. If it is never left, it ends when the object is deleted."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @uncompiled
    def __enter__(self) -> None:
        self.engine.open_block(id(self))

    @uncompiled
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.close_block(id(self), completed=kind is None)

    def __del__(self) -> None:
        if self.engine.opened == id(self):
            self.engine.close_block(id(self), completed=False)


class Engine:
    """Transient state of an optimiser, rebuilt in a copy and after loading from groups and state.

    Any exception, also one that a signal handler raises between two operations, may end a method half-way. Every method
    that the user calls therefore begins with :meth:`Weights.recover` or :meth:`end_block`.

    Args:
        weights: Samples and means in the weights.
        source: Source of curvature that the rule does not compute itself.
        watch: Called with the gradients of every step in place, before it is made; it may change numbers of the groups.
    """

    def __init__(self, weights: Weights, source: Source | None = None, watch: Callable[[], None] | None = None) -> None:
        self.weights, self.layout, self.source, self.watch = weights, weights.layout, source, watch
        self.collection = Collection(self.weights, source)
        self.updates = Updates(self.collection)
        self.opened: int | None = None  # the identity of the open block
        self._before: Hidden = []
        self._ended_by = ""

    def end_block(self, caller: str) -> None:
        """End a block that an exception has left before its own end, or in which a copy or a checkpoint was made.

        A block that has not been left raises an error when it is.

        Args:
            caller: The method that needs the mean, for the message.
        """
        if self.weights.writing is not None:
            self.weights.recover()
        if self.weights.held == BLOCK:
            if not self.weights.flats:
                self.weights.resume()
            self._close(failed=True)
        self.opened, self._before, self._ended_by = None, [], caller

    def check_mean(self, caller: str) -> None:
        """End a block, and raise ``RuntimeError`` after ``train()``, for a method that needs the mean."""
        self.end_block(caller)
        if self.weights.held != MEAN:
            raise RuntimeError(f"{caller} must be called when the weights hold the mean: call eval() first")

    def open_block(self, block: int) -> None:
        """Put the next sample into the weights; earlier gradients are hidden."""
        self.end_block("another sampled_params()")
        if self.weights.held == TRAIN:
            raise RuntimeError(
                "sampled_params() must not be used after train(), which has drawn a sample: call eval() first"
            )
        if self.collection.samples >= self.layout.first["mc_samples"] and not self._was_skipped():
            self._begin_anew()
        self._before = self.collection.present()
        try:
            self.opened = block
            for parameter, _ in self._before:
                parameter.grad = None
            self.weights.perturb(self.collection.samples, BLOCK)
            if self.source is not None:
                self.source.start()
        except BaseException:
            self.weights.recover()
            self._close(failed=True)
            raise

    def close_block(self, block: int, *, completed: bool) -> None:
        """Put the mean back into the weights, and with ``completed`` collect the gradients of the sample."""
        if self.opened != block:
            if completed:
                raise RuntimeError(
                    f"{self._ended_by} must be called outside sampled_params(), got a call inside, which has ended the "
                    "block: its sample was discarded"
                )
            return
        try:
            if completed:
                if isinstance(self.source, HessianSource):
                    self.source.check_gradients()
                self.collection.collect(self._before)
        except BaseException:
            self.collection.discard()  # gradients may have been averaged in part
            self._close(failed=True)
            raise
        self._close(failed=not completed)

    def _close(self, *, failed: bool) -> None:
        self.opened = None
        if self.weights.held == BLOCK:
            self.weights.restore()
        if self.source is not None:
            self.source.stop()
        for parameter, grad in self._before if failed else ():
            if grad is None or grad.shape == parameter.shape:  # another shape may be what the error is about
                parameter.grad = grad
        self._before = []

    def _begin_anew(self) -> None:
        """Go on after a block beyond the samples of a step; it raises an error where that cannot be."""
        count = self.layout.first["mc_samples"]
        if self.layout.first["rank_samples"]:
            self.collection.discard()
            raise RuntimeError(f"exactly mc_samples={count} blocks must be run before step(), got one more")
        warnings.warn(
            f"sampled_params() was entered again after mc_samples={count} blocks without step(), as after an interrupt "
            "between a block and its step; (to accumulate gradients, call backward() several times inside one block; "
            "to run the network at a sample outside of training, use posterior().applied(model))",
            UserWarning,
            stacklevel=6,
        )
        if not self.collection.collects_curvature:
            self.give_up()

    def _was_skipped(self) -> bool:
        """Whether a gradient scaler skipped the step of the collected samples, which are then discarded."""
        if first_bad(self.collection.gather(), compiles=self.layout.first["compile"]) is None:
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

    def train(self) -> list[Tensor]:
        """Put a sample into the weights, for drop-in training; return those that held one and were modified externally,
        whose mean is these values now.
        """
        self.check_drop_in()
        if isinstance(self.source, HessianSource):
            raise RuntimeError(
                f"hessian must be 'reparameterized' to use train(), got {self.layout.first['hessian']!r}: it needs the "
                "loss, from step(closure) or from backward(loss) inside sampled_params()"
            )
        self.end_block("train()")
        if self.collection.samples:
            raise RuntimeError("train() must be called before sampled_params() or after its step(), got a call between")
        if self.weights.held == TRAIN:
            self.layout.check_unchanged(self.weights.widths)
            others = self.weights.reconcile()
            if self.source is not None and not self.source.started:
                self.source.start(self.collection.remember_norms)
            return others
        try:
            self.weights.perturb(0, TRAIN)
            if self.source is not None:  # it has data of gradients that no step has used
                pending = any(member.parameter.grad is not None for member in self.layout.members())
                begin = self.source.resume if pending else self.source.start
                begin(self.collection.remember_norms)
        except BaseException:
            self.weights.recover()
            self.weights.restore()
            raise
        return []

    def eval(self) -> list[Tensor]:
        """Put the mean into the weights; return those that were modified externally, whose present values are the
        mean.
        """
        self.end_block("eval()")
        others = []
        if self.weights.held != MEAN:
            others = self.weights.reconcile(leaving=True)
            self.weights.restore()
        if isinstance(self.source, PerExampleSquares):
            self.source.pause()  # collected curvatures are kept, since the user may keep the gradients, too
        self.updates.learn(wait=True)
        return others

    def cleared(self) -> None:
        """Handle cleared gradients: outside a block this also discards the samples collected for the next step."""
        if self.weights.writing is not None:
            self.weights.recover()
        if self.source is not None:
            self.source.discard()
        if self.opened is None:
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
        self.end_block("step()")
        if self.collection.samples:
            raise RuntimeError(
                f"step(closure) draws its own samples and must not follow blocks, got {self.collection.samples}"
            )
        try:
            loss = self._call(closure) if self.weights.held == TRAIN else self._run(closure)
            self.step()
        except BaseException:
            self.end_block("step()")
            self.collection.discard()
            raise
        return loss

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Call a closure once for every sample, and collect its gradients."""
        present = self.collection.present()
        earlier = [] if isinstance(self.source, HessianSource) else [p for p, grad in present if grad is not None]
        losses = []
        try:
            for _ in range(self.layout.first["mc_samples"]):
                with Block(self):
                    probes = {parameter: torch.full_like(parameter, math.nan) for parameter in earlier[:1]}
                    for parameter, probe in probes.items():  # in place of an earlier gradient
                        parameter.grad = probe
                    losses.append(self._call(closure))
                    if any(p.grad is probe and probe.isnan().any() for p, probe in probes.items()):
                        raise RuntimeError("closure must clear the gradients, got gradients that were added to others")
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
        self.end_block("step()")
        drop_in = weights.held == TRAIN
        if not drop_in and collection.samples == 0 and self._creates_state_only():
            return
        count = self.layout.first["mc_samples"]
        if not drop_in and collection.samples < count:
            raise RuntimeError(
                f"step() must follow exactly mc_samples={count} sampling blocks, got {collection.samples}: use "
                "`with opt.sampled_params():`, pass a closure, or call train() first (the weights hold the mean)"
            )
        try:
            if drop_in:
                if self.layout.lazy and not all(map(nn.parameter.is_lazy, self.layout.lazy)):
                    # The first gradients of these parameters count as taken at their first sample.
                    self.eval()
                    self.train()
                self.layout.check_unchanged(weights.widths)
                weights.reconcile(strict=True)
                if collection.collects_curvature:
                    collection.collect_drop_in()
            else:
                self.layout.flats()
            ready = self.updates.ready()
            if ready and self.watch is not None:
                self.watch()
            self.updates.make(drop_in, ready)
        except BaseException:
            self.weights.recover()
            if not drop_in:
                collection.discard()
            raise
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
        self.layout.flats()
        gradients = self.collection.gather().values()
        return not any(grad.count_nonzero() for each in gradients for grad in each.placed.tensors)
