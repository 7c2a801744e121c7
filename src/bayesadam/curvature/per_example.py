"""Squared gradients of the examples of a minibatch, collected during an ordinary backward pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.checks import check_model
from bayesadam.curvature import ranks
from bayesadam.curvature.closed import ClosedForm
from bayesadam.curvature.collector import Collector
from bayesadam.curvature.layers import Form
from bayesadam.curvature.passes import Method, Slot
from bayesadam.curvature.reduction import ignored_labels, reduction_of
from bayesadam.modules.sharding import is_sharded
from bayesadam.modules.wrappers import unwrapped


class PerExampleSquares:
    """Computes the mean over a minibatch of the squared gradients of its examples, for every parameter of a model.

    This is the Gauss-Newton approximation of Khan et al. 2018 (section 3.2): the diagonal of the empirical Fisher
    information, ``1/M sum_i (grad f_i)^2`` with ``f_i`` the loss of example ``i``. After :meth:`start`, hooks on the
    model's layers see their inputs and output gradients, and square in cache-sized chunks, so per-example gradients are
    never kept. ``p.grad`` is the ordinary gradient, up to rounding::

        squares = PerExampleSquares(model)
        squares.start()
        loss_fn(model(x), y).backward()               # the mean over the examples
        h = squares.mean_squares(model.weight)

    The first axis of the model's first tensor, and of every layer's input, must count the examples; an axis that only
    has the same length by chance (as for a square of positions) cannot be detected. All positions of a sequence are one
    example, whose loss is their sum. If the loss is their mean, the squares are too small, by a factor of their number
    if they are independent. Rows that a mean leaves out (targets of -100) must not be in the minibatch: they count as
    examples, and the squares are too large by the ratio of all rows to the others. Only :meth:`backward`, which sees
    the loss, can warn of them.

    Layers with a closed form are ``Linear``, ``Conv1d`` to ``Conv3d``, ``Embedding``, ``LayerNorm``, ``RMSNorm``,
    ``GroupNorm``, ``InstanceNorm`` and ``BatchNorm`` in eval mode; recurrent layers and their cells are unrolled. Any
    other module with parameters of its own is called again with its inputs, mapped over the examples by
    :func:`torch.func.vmap`, which costs about two more forward and backward passes of that module; it must not draw
    random numbers. Hooks that compute its weights before a call, as those of weight
    normalisation and pruning do, then run again. An ``Embedding`` of positions that all examples share, of shape
    ``(T,)`` or ``(1, T)``, returns its output once for every example.

    With ``d_i`` the contribution of example ``i`` to ``p.grad`` in a backward pass and ``n`` the number of examples in
    all passes since the start, the result is ``n sum_i d_i^2`` if the loss is a mean (``d_i = grad f_i / M``; with
    ``k`` micro-batches, their mean losses are divided by ``k`` as usual), and ``1/n sum_i d_i^2`` if it is a sum. A
    loss scale enters squared, as for the square of ``p.grad``.

    Backward passes for the gradients of other tensors than parameters, by :func:`torch.autograd.grad`, are not squared.

    With ``DistributedDataParallel`` or ``fully_shard`` the result is the mean over the ranks, as ``p.grad`` is.

    Args:
        model: Model whose squared gradients are computed; it may be wrapped in ``DistributedDataParallel``.
        reduction: How the loss reduces the losses of the examples: ``"mean"`` or ``"sum"``.

    Raises:
        ValueError: The reduction is neither, or the model is compiled or replicated over devices, so that its layers
            have no hooks.
    """

    def __init__(self, model: nn.Module, *, reduction: str = "mean") -> None:
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
        check_model(model)
        for name, module in model.named_modules():
            if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
                raise ValueError(f"model must not be compiled, got a compiled module {name!r}")
            if isinstance(module, nn.DataParallel | torch.jit.ScriptModule):
                raise ValueError(f"model must be a plain module, got {type(module).__name__} {name!r}")
        self.model = model
        self.reduction = reduction
        self._collector = Collector(unwrapped(model), sums=reduction == "sum", closed=self._closed)
        self._slots: dict[Tensor, Slot] = {}
        self._nonzero: set[str] = set()

    @property
    def num_examples(self) -> int:
        """Number of examples in the backward passes since the start, on this rank."""
        return self._collector.num_examples

    @property
    def started(self) -> bool:
        """Whether backward passes are observed."""
        return self._collector.started

    @property
    def is_parallel(self) -> bool:
        """Whether the examples are divided between several ranks."""
        return any(ranks.groups(self.model, parameter) for parameter in self.model.parameters())

    def start(self, after_backward: Callable[[], None] | None = None) -> None:
        """Discard all squares, and observe the backward passes through later forward passes.

        Args:
            after_backward: Function that is called at the end of every backward pass, when gradients are complete.

        Raises:
            RuntimeError: Another object is started on the model, or on a part of it; nothing has changed.
        """
        if "_modules" not in vars(self.model):  # while a module that holds its optimiser is copied
            return
        self._collector.start()
        self._collector.after_backward = after_backward
        self._slots = {}

    def stop(self) -> None:
        """Stop observing forward passes; the squares so far are kept."""
        self._collector.stop()

    def pause(self) -> None:
        """Stop observing forward passes, until :meth:`resume`."""
        self._collector.pause()

    def resume(self, after_backward: Callable[[], None] | None = None) -> None:
        """Add to the squares from before :meth:`pause`; without a pause since the last start, it is :meth:`start`."""
        if not self._collector.resumable:
            self.start(after_backward)
            return
        self._collector.after_backward = after_backward
        self._collector.resume()
        self._slots = {}

    def discard(self) -> None:
        """Discard all squares."""
        self._collector.discard()

    def covers(self, parameter: Tensor) -> bool:
        """Whether a parameter belongs to the model."""
        return any(parameter is covered for covered in self.model.parameters())

    def backward(self, loss: Tensor) -> None:
        """Call ``loss.backward()`` after :meth:`check`."""
        self.check(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def backward_each(self, output: Tensor, vectors: Iterable[Tensor], count: int) -> None:
        """Add the squares of ``v_i' J_i`` for several ``v``, where ``J_i`` is the Jacobian of example ``i``'s output.

        There is one backward pass for each ``v``, all through one forward pass; the examples count once, and no
        ``p.grad`` is computed.

        Args:
            output: Output of the last forward pass.
            vectors: Tensors of its shape, with ``v_i`` for all examples.
            count: Number of these tensors.
        """
        edges = self._collector.expect(output, count)
        for number, vector in enumerate(vectors, 1):
            torch.autograd.grad(output, edges, vector, retain_graph=number < count, allow_unused=True)

    def check(self, loss: Tensor) -> None:
        """Check that the loss of the last forward pass reduces the losses of the examples as announced.

        A warning is issued if it is a mean that leaves out some of the examples.

        Raises:
            ValueError: The loss is a sum where a mean was announced, or the reverse, as far as its graph shows.
        """
        detected = reduction_of(loss, self._collector.last_size)
        if detected is not None and detected != self.reduction:
            raise ValueError(
                f"the loss must be the {self.reduction} of the examples' losses, got their {detected} (say "
                f"PerExampleSquares(model, reduction={detected!r}), or change the loss)"
            )
        ignored = ignored_labels(loss, self._collector.last_size)
        if ignored:
            warnings.warn(
                f"{ignored:,} of {self._collector.last_size:,} examples have a label that the mean of the loss leaves "
                "out, but count as examples in the mean of the squared gradients, which is therefore too large: leave "
                "them out of the minibatch",
                UserWarning,
                stacklevel=3,
            )

    def mean_squares(self, parameter: Tensor) -> Tensor | None:
        """Mean over the examples of their squared gradients with respect to one parameter.

        With several ranks this is a collective call: all ranks must ask for the same parameters in the same order.

        Args:
            parameter: Parameter of the model.

        Returns:
            A tensor of the parameter's full shape in float32 or wider. It must not be changed, and is overwritten by
            later backward passes. None if the parameter had no gradient since the start.

        Raises:
            ValueError: The parameter does not belong to the model.
            RuntimeError: The parameter has a gradient that did not come from a call of its module, as one that only the
                loss uses, or whose squares were discarded.
        """
        slot = self._slot(parameter)
        value = self._collector.read(slot)
        group = ranks.groups(self.model, parameter)
        if group:
            value = ranks.mean(value, parameter, group)
        grad = parameter.grad
        if parameter.requires_grad and grad is not None and self._misses(value, grad, slot.name):
            raise RuntimeError(
                f"the gradient of parameter {slot.name} must come from calls of its module in the model's forward "
                "pass since start(), got one that no hook saw (as of a parameter that only the loss uses: let the "
                "likelihood have it), or whose squares were discarded by the step of another "
                "optimizer with the same PerExampleSquares (use one optimizer with param groups)"
            )
        return value

    @staticmethod
    def _closed(form: Form, module: nn.Module) -> Method:
        """The method of a layer with a closed form."""
        return ClosedForm(form)

    def _misses(self, value: Tensor | None, grad: Tensor, name: str) -> bool:
        """Whether there are no squares, or all are 0 though the gradient is not, as of a parameter that only the loss
        uses.

        Squares are looked at until some are not 0, as a GPU is waited for. The mean square of the examples' gradients
        is at least the square of the mean gradient.
        """
        if value is None:
            return True
        if name in self._nonzero or is_sharded(grad):
            return False
        if value.any():
            self._nonzero.add(name)
            return False
        mean = grad.to(value.dtype) / max(1, self.num_examples)
        return bool(mean.square().any())

    def _slot(self, parameter: Tensor) -> Slot:
        if parameter not in self._slots:
            self._slots = {slot.parameter: slot for slot in self._collector.slots}
        if parameter not in self._slots:
            kind = "a sharded parameter" if is_sharded(parameter) else "one"
            raise ValueError(
                f"parameter must be of the model that PerExampleSquares was given, got {kind} of shape "
                f"{tuple(parameter.shape)}"
            )
        return self._slots[parameter]

    def __getstate__(self) -> dict[str, Any]:
        """Model, reduction, and whether it is started; the squares are not copied."""
        return {"model": self.model, "reduction": self.reduction, "started": self._collector.started}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, which refers to the copied model."""
        self.model, self.reduction = state["model"], state["reduction"]
        self._collector = Collector(unwrapped(self.model), sums=self.reduction == "sum", closed=self._closed)
        self._slots, self._nonzero = {}, set()
        # If the module itself refers to this object, its copy is not complete at this point.
        if state["started"] and "_modules" in vars(self.model):
            self._collector.start()
