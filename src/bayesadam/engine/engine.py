"""The life of an optimiser between two steps: samples are drawn, gradients are collected, and a step is made of
them.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, _GeneratorContextManager, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesadam.engine.collection import Hidden
from bayesadam.engine.gradients import Gradients
from bayesadam.engine.graph_breaks import uncompiled
from bayesadam.engine.sources import CurvatureSource
from bayesadam.engine.store import Store
from bayesadam.engine.weights import BLOCK, MEAN, TRAIN, Weights

BEGUN, COLLECTING, COLLECTED = "begun", "collecting", "collected"
"""Stages of a sampling block; if it is interrupted while it collects, the means are half-updated."""

Running: TypeAlias = Generator[None, None, None]


class Block(_GeneratorContextManager[None]):
    """A sampling block of which ``torch.compile`` traces only the code inside it.

    Its generator gets a reference to the block in the list that is its last argument; when the block is used as a
    decorator, it is made anew for every call.
    """

    def __init__(self, function: Callable[..., Running], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(function, args, kwargs)
        args[-1][:] = [weakref.ref(self.gen)]

    __enter__ = uncompiled(_GeneratorContextManager.__enter__)
    __exit__ = uncompiled(_GeneratorContextManager.__exit__)


class Engine:
    """Transient state of an optimiser, rebuilt in a copy and after loading from groups and state.

    Args:
        store: Groups and state.
        weights: Samples and means in the weights.
        gradients: Gradients collected for the unfinished step.
        source: Source of curvature that the rule does not compute itself.
    """

    def __init__(self, store: Store, weights: Weights, gradients: Gradients, source: CurvatureSource | None) -> None:
        self.store = store
        self.weights = weights
        self.gradients = gradients
        self.source = source
        self._opened: Callable[[], Running | None] = lambda: None
        self._cleared = False

    @property
    def open(self) -> bool:
        """Whether a sampling block is open; the generator that runs it is asked, so a block that was abandoned is
        not.
        """
        running = self._opened()
        return running is not None and inspect.getgeneratorstate(running) != inspect.GEN_CLOSED

    def refuse_inside(self, name: str) -> None:
        """Raise if a sampling block is open."""
        if self.open:
            raise RuntimeError(f"{name} must be called outside sampled_params(), got a call inside")

    def block(self, *, shown: Sequence[Hidden] = ()) -> AbstractContextManager[None]:
        """Context in which the weights are the next sample; earlier gradients are hidden, except for those in
        ``shown``.
        """
        own: list[Callable[[], Running | None]] = []
        return Block(self._block, (shown, own), {})

    def _block(self, shown: Sequence[Hidden], own: Sequence[Callable[[], Running | None]]) -> Running:
        self._check_block()
        before = self.gradients.present()
        stage = BEGUN
        try:
            try:
                self._opened = own[0]
                self.gradients.hide(before)
                self.weights.perturb(self.gradients.collected, BLOCK)
                if self.source is not None:
                    self.source.start()
                for slot, grad in shown:
                    slot.parameter.grad = grad
                yield
                if self.source is not None:
                    self.source.check_gradients()
                stage = COLLECTING
                self.gradients.collect(before)
                stage = COLLECTED
            finally:
                self._close(before, stage)
        except BaseException:  # after an interrupt above the block is closed as well, and the sample does not count
            self._close(before, COLLECTING if stage == COLLECTED else stage)
            raise

    def _check_block(self) -> None:
        count = self.store.first["mc_samples"]
        if self.open:
            raise RuntimeError("sampled_params() must not be nested, got a block inside a block")
        if self.weights.held == TRAIN:
            raise RuntimeError(
                "sampled_params() must not be used after train(), which has drawn a sample: call eval() first"
            )
        if self.gradients.collected == count and not self._was_skipped():
            raise RuntimeError(
                f"exactly mc_samples={count} blocks must be run before step(), got one more "
                "(to accumulate gradients, call backward() several times inside one block)"
            )

    def _close(self, before: Sequence[Hidden], stage: str) -> None:
        """Put the mean back into the weights; it may be called repeatedly."""
        self.weights.restore()
        if self.source is not None:
            self.source.stop()
        if stage == COLLECTING:
            self.gradients.discard()
        if stage != COLLECTED:
            for slot, grad in before:
                slot.parameter.grad = grad

    def _was_skipped(self) -> bool:
        """Whether a gradient scaler skipped the step of the collected samples, which are then discarded."""
        if self.gradients.are_finite():
            return False
        self.give_up("skipped_steps")
        return True

    def give_up(self, counted_as: str = "discarded_steps") -> None:
        """Discard the samples collected for the next step, and count it in the groups; others will be drawn for it."""
        collected = self.gradients.collected
        self.gradients.discard()
        if collected:
            for name in ("noise_step", counted_as):
                self.store.set_all(name, self.store.first[name] + 1)

    def check_drop_in(self) -> None:
        """Raise ``RuntimeError`` if there are several samples per step, since weights can hold only one."""
        if self.store.first["mc_samples"] != 1:
            raise RuntimeError(
                f"mc_samples must be 1 to use train(), got {self.store.first['mc_samples']!r} (use "
                "sampled_params() or step(closure) for several samples)"
            )

    def train(self) -> None:
        """Put a sample into the weights, for drop-in training."""
        self.check_drop_in()
        if self.open or self.gradients.collected:
            raise RuntimeError("train() must be called before sampled_params() or after its step(), got a call between")
        if self.weights.held == TRAIN:
            self.weights.reconcile(0, allow_mean=True)
            if self.source is not None and not self.source.started:
                self.start_source()
            return
        try:
            self.weights.perturb(0, TRAIN)
            if self.source is not None:  # its data belong to gradients that no step has used
                pending = any(slot.parameter.grad is not None for slot in self.store.slots())
                begin = self.source.resume if pending else self.source.start
                begin(self.gradients.after_backward)
        except BaseException:
            self.weights.restore()
            raise

    def eval(self) -> list[Tensor]:
        """Put the mean into the weights; return those that were modified externally, whose present values are the
        mean.
        """
        self.refuse_inside("eval()")
        if self.weights.held == MEAN and not (self.source is not None and self.source.started):
            return []
        if self.weights.held == BLOCK:  # the end of a block was interrupted
            self.weights.restore()
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

    def take_group(self) -> None:
        """Number the parameters of the last group, bring it to the step of the others, and note its learning rate."""
        *others, group = self.store.owner.param_groups
        group["planned_lr"] = float(group["lr"])
        group["noise_index"] = sum(len(other["params"]) for other in others)
        if others:
            for name in ("noise_step", "skipped_steps", "discarded_steps"):
                group[name] = others[0][name]
            if others[0]["weights"] == TRAIN:
                self.weights.perturb(0, TRAIN)
                if self.source is not None:
                    self.source.include(group["params"])
            group["weights"] = others[0]["weights"]

    def backward(self, loss: Tensor) -> None:
        """Backpropagate a loss at a sample; the source of curvature does it, if there is one."""
        if self.weights.held == MEAN:
            raise RuntimeError("backward() must be called inside sampled_params() or after train(), got a call outside")
        with torch.enable_grad():
            if self.source is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self.source.backward(loss)

    def start_source(self) -> None:
        """Start collecting curvature for drop-in training."""
        if self.source is not None and self.weights.held == TRAIN:
            self.source.start(self.gradients.after_backward)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update from the collected gradients, if they are complete, or from those that a closure computes."""
        if closure is None:
            self._step()
            return None
        if self.gradients.collected:
            raise RuntimeError(
                f"step(closure) draws its own samples and must not follow blocks, got {self.gradients.collected}"
            )
        try:
            loss = self._run(closure)
            self._step()
        except BaseException:
            self.gradients.discard()
            raise
        return loss

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Call a closure once for every sample, and collect its gradients."""
        if self.weights.held == TRAIN:
            return self._call(closure)
        count = self.store.first["mc_samples"]
        differentiates = self.source is not None and self.source.differentiates  # it then computes all gradients itself
        slots = [] if differentiates else [slot for slot in self.store.slots() if slot.parameter.grad is not None]
        earlier: list[Hidden] = [(slot, slot.parameter.grad) for slot in slots]
        losses = []
        try:
            for number in range(count):
                # If the closure does not clear gradients, every sample starts from those of earlier micro-batches.
                last = number == count - 1
                shown = [(slot, grad if last or grad is None else grad.clone()) for slot, grad in earlier]
                self._cleared = False
                with self.block(shown=shown), self._watched(shown):
                    losses.append(self._call(closure))
        except BaseException:
            before = {slot.parameter: grad for slot, grad in earlier}
            for slot in [] if differentiates else self.store.slots():
                slot.parameter.grad = before.get(slot.parameter)
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

    @contextmanager
    def _watched(self, shown: Sequence[Hidden]) -> Iterator[None]:
        """Context in which curvature is that of the closure's own backward passes, and so must be the gradient."""
        known: dict[Tensor, tuple[Tensor, int]] = {}
        for slot, grad in shown if self.source is not None else ():
            if grad is not None and slot.parameter.requires_grad:
                known[slot.parameter] = grad, grad._version
        added: list[Tensor] = []

        def look(parameter: Tensor) -> None:  # after a backward pass has added to its gradient for the first time
            if parameter in known:
                grad, version = known.pop(parameter)
                if parameter.grad is grad and grad._version == version + 1:  # it was not zeroed before
                    added.append(parameter)

        watched: list[Any] = list(known)
        handles = [parameter.register_post_accumulate_grad_hook(look) for parameter in watched]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if added and not self._cleared:
            raise RuntimeError(
                "the closure must clear the gradients (optimizer.zero_grad()) for a method that collects curvature "
                "with them, got gradients from before step(closure): accumulate over micro-batches inside the "
                "closure, or in sampled_params()"
            )

    def _step(self) -> None:
        weights, gradients = self.weights, self.gradients
        if weights.held == BLOCK:  # the end of a block was interrupted
            weights.restore()
        if weights.held != TRAIN and gradients.collected == 0 and self._creates_state_only():
            return
        count = self.store.first["mc_samples"]
        if weights.held != TRAIN and gradients.collected != count:
            raise RuntimeError(
                f"step() must follow exactly mc_samples={count} sampling blocks, got {gradients.collected}: use "
                "`with opt.sampled_params():`, pass a closure, or call train() first (the weights hold the mean)"
            )
        weights.reconcile(0)
        weights.refresh()
        if weights.held == TRAIN:
            gradients.collect_drop_in()
        try:
            ready = gradients.ready()
        except BaseException:
            if weights.held != TRAIN:
                gradients.discard()
            raise
        gradients.step(ready=ready)

    def _creates_state_only(self) -> bool:
        """Whether this is the ``step()`` with rate 0 and zero gradients by which distributed checkpoints create the
        state.
        """
        if any(float(group["lr"]) != 0 for group in self.store.owner.param_groups) or not self.gradients.are_zero():
            return False
        for slot in self.store.slots():
            if slot.parameter.requires_grad:
                self.store.state_of(slot)
        return True
