"""Per-example gradients of any module, by calling it again with its inputs, mapped over the examples."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from bayesadam.curvature.layers import Sink
from bayesadam.curvature.observe import observed
from bayesadam.curvature.passes import Call, Unit, no_batch
from bayesadam.curvature.totals import Scratch, chunks
from bayesadam.functional.curvature import precision, wide, widened
from bayesadam.modules.calls import call_with
from bayesadam.modules.sharding import gathers_weights, is_sharded
from bayesadam.native.device import working_set

LIMIT = 32 * 2**20
"""Memory in bytes for per-example gradients, inputs and outputs that are computed at once on a CPU."""

TOLERANCE, LOW_TOLERANCE = 1e-3, 5e-2
"""Largest difference, relative to their norm, between an example's outputs and those of the first call, and the same in
low precision. Rounding errors are far below it, the effect of another dropout mask far above.
"""


@dataclass(frozen=True)
class Leaf:
    """A tensor among inputs or outputs.

    Attributes:
        position: Position among the leaves of the nested arguments.
        axis: Axis of the examples; None for tensors that all examples share.
        several: Number of rows of axis 0 that belong to one example, if there are several; the module is then called
            with all of them. Otherwise it is called with an axis of length 1 in place of the axis of the examples.
    """

    position: int
    axis: int | None
    several: int = 0


@dataclass
class Context:
    """Record of a call.

    Attributes:
        leaves: Leaves of the arguments, with None for tensors, which are saved.
        spec: Nesting of the arguments.
        inputs: Tensors among the leaves.
        outputs: Outputs through which gradients flow.
        marks: A linear form of each example's outputs, and their norm, for every output.
        low: Whether the call ran in low precision, and is repeated in a wider one.
        derived: Whether the module holds tensors that were computed from its parameters, as by weight normalisation.
    """

    leaves: list[Any]
    spec: TreeSpec
    inputs: list[Leaf]
    outputs: list[Leaf]
    marks: list[tuple[Tensor, Tensor]]
    low: bool
    derived: bool


class _Bare(nn.Module):
    """A module without its hooks, or with those before its calls, which compute weights from its parameters.

    The arguments are those that these hooks have returned, so what they return again is ignored.
    """

    def __init__(self, module: nn.Module, *, hooks: bool) -> None:
        super().__init__()
        self.module = module
        self.hooks = hooks

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.hooks:
            self._derive(args, kwargs)
        return self.module.forward(*args, **kwargs)

    def _derive(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compute the weights in evaluation mode, so that spectral normalisation makes no further iteration."""
        module, training = self.module, self.module.training
        module.training = False
        try:
            for number, hook in module._forward_pre_hooks.items():
                if not gathers_weights(module, hook):
                    hook(module, args, *((kwargs,) if number in module._forward_pre_hooks_with_kwargs else ()))
        finally:
            module.training = training


class Replay:
    """The method of modules without a closed form."""

    def capture(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Part of the :class:`Method` protocol."""
        unit, size, module = call.unit, call.during.size, call.unit.module
        _refuse_random(unit)
        leaves, spec = tree_flatten((args, kwargs))
        out_leaves, out_spec = tree_flatten(output)
        if any(isinstance(value, PackedSequence) for value in (*args, *kwargs.values())):
            raise RuntimeError(
                f"the input of {unit} must be a tensor, got a PackedSequence (pad the sequences, and take no outputs "
                "of the padding)"
            )
        inputs, axis, state_axis = _input_leaves(module, args, kwargs, leaves, size)
        for leaf in inputs:
            if is_sharded(leaves[leaf.position]):
                raise RuntimeError(f"the input of {unit} must be a plain tensor, got a DTensor")
        if not any(leaf.axis is not None for leaf in inputs):
            shapes = [leaves[leaf.position].shape for leaf in inputs]
            raise no_batch(unit, size, shapes[0] if shapes else ())
        outputs = []
        for position, leaf in enumerate(out_leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                expected = axis if position == 0 else state_axis
                if leaf.ndim <= expected or leaf.shape[expected] != size:
                    raise RuntimeError(
                        f"axis {expected} of the output of {unit} must be the {size} examples of the minibatch that "
                        f"the model was called with, got shape {tuple(leaf.shape)}"
                    )
                outputs.append(Leaf(position, expected))
        saved = [leaves[leaf.position] for leaf in inputs]
        results = [out_leaves[leaf.position] for leaf in outputs]
        floats = {t.dtype for t in (*module.parameters(), *saved, *results) if t.is_floating_point()}
        low = any(wide(dtype) != dtype for dtype in floats)
        with torch.no_grad():
            marks = [_mark(result.movedim(leaf.axis, 0)) for leaf, result in zip(outputs, results, strict=True)]
        rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        derived = any(tensor.grad_fn is not None for tensor in _attributes(module).values())
        call.context = Context(rest, spec, inputs, outputs, marks, low, derived)
        for leaf, result in zip(outputs, observed(call, results, saved), strict=True):
            out_leaves[leaf.position] = result
        return tree_unflatten(out_leaves, out_spec)

    def squares(self, call: Call, sink: Sink) -> None:
        """Part of the :class:`Method` protocol."""
        limit = working_set(next(grad.device for grad in call.grads if grad is not None), LIMIT)
        for part in chunks(call.size, self.bytes_each(call), limit):
            gradients_of_part = self.gradients(call, part, tuple(sink.totals), sink.scratch)
            for name, gradients in gradients_of_part.items():
                sink.add(name, gradients)

    def bytes_each(self, call: Call) -> int:
        """Part of the :class:`Method` protocol."""
        weight_bytes = sum(4 * p.numel() for p in call.unit.module.parameters())
        tensors = [t for t in (*call.inputs, *call.grads) if t is not None]
        return 2 * weight_bytes + 4 * sum(t.nbytes for t in tensors) // call.size

    def merges(self, call: Call) -> bool:
        """Part of the :class:`Method` protocol."""
        return False

    def gradients(self, call: Call, part: slice, names: Sequence[str], scratch: Scratch) -> dict[str, Tensor]:
        """Part of the :class:`Method` protocol."""
        context: Context = call.context
        module = call.unit.module
        convert = widened if context.low else _unchanged
        inputs = [convert(_take(t, leaf, part)) for t, leaf in zip(call.inputs, context.inputs, strict=True)]
        grads = []
        for leaf, grad, (mark, _) in zip(context.outputs, call.grads, context.marks, strict=True):
            assert leaf.axis is not None
            if grad is not None:
                grads.append(convert(grad.movedim(leaf.axis, 0)[part]))
            else:
                grads.append(mark.new_zeros(()))
        bare = _Bare(module, hooks=context.derived)
        parameters = {f"module.{name}": convert(module.get_parameter(name).detach()) for name in names}
        fixed = {k: convert(b) for k, b in bare.named_buffers()}
        fixed.update((k, convert(p.detach())) for k, p in bare.named_parameters() if k not in parameters)

        used = [number for number, grad in enumerate(call.grads) if grad is not None]
        with _attributes_kept(module):
            results, gradients = self.replayed(call.unit, context, parameters, fixed, inputs, grads, used)
        for (mark, norm), result in zip(context.marks, results, strict=True):
            replayed, _ = _mark(result)
            tolerance = LOW_TOLERANCE if context.low else max(TOLERANCE, precision(mark) ** 0.5)
            if ((replayed - mark[part]).abs() > tolerance * norm[part]).any():
                raise RuntimeError(
                    f"{call.unit} must give the same output for an example that is alone in the minibatch, got a "
                    "different one: it draws random numbers, mixes the examples, or was given a tensor that is as "
                    "long as the minibatch but has no axis of examples"
                )
        # For an unused parameter vmap returns a single zero gradient instead of one per example.
        return {name: gradients[f"module.{name}"].contiguous() for name in names}

    def replayed(
        self,
        unit: Unit,
        context: Context,
        parameters: dict[str, Tensor],
        fixed: dict[str, Tensor],
        inputs: list[Tensor],
        grads: list[Tensor],
        used: list[int],
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Outputs ``(m, ...)`` and gradients of some examples, by calling the module for each of them alone.

        Args:
            unit: The module.
            context: Record of the call.
            parameters: Trainable parameters by ``module.<name>``.
            fixed: Other tensors of the module by such names.
            inputs: Tensors among the inputs, with the examples along axis 0.
            grads: Gradients of all outputs, likewise.
            used: Numbers of the outputs that have a gradient.

        Raises:
            RuntimeError: The module cannot be mapped over examples.
        """
        bare = _Bare(unit.module, hooks=context.derived)

        def outputs(values: dict[str, Tensor], *tensors: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            """The forward pass of one example; no argument has the axis of the examples."""
            arguments = list(context.leaves)
            for leaf, tensor in zip(context.inputs, tensors, strict=True):
                one_row = leaf.axis is not None and not leaf.several
                arguments[leaf.position] = tensor.unsqueeze(leaf.axis or 0) if one_row else tensor
            args, kwargs = tree_unflatten(arguments, context.spec)
            others = {name: tensor.clone() for name, tensor in fixed.items()}  # which the module may change in place
            leaves, _ = tree_flatten(call_with(bare, {**others, **values}, args, kwargs))
            results = [leaves[leaf.position].squeeze(leaf.axis) for leaf in context.outputs]
            return [results[number] for number in used], results

        def one(grads: list[Tensor], *tensors: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
            ends, pull, results = vjp(lambda values: outputs(values, *tensors), parameters, has_aux=True)  # type: ignore[misc]
            (gradients,) = pull([grad.to(end.dtype) for grad, end in zip(grads, ends, strict=True)])
            return results, gradients

        axes = [None if leaf.axis is None else 0 for leaf in context.inputs]
        mapped = vmap(one, in_dims=(0, *axes), randomness="different")
        try:
            # vmap warns about operations that it loops over, such as flash attention but not the plain kernel.
            with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
                warnings.simplefilter("ignore")
                results: tuple[list[Tensor], dict[str, Tensor]] = mapped([grads[number] for number in used], *inputs)
                return results
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"{unit} must be a module that torch.func.vmap can map over examples while per-example gradients are "
                f"squared, got {str(error).splitlines()[0]!r} (put its parameters into layers with a closed form)"
            ) from error


def _attributes(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that a module holds which are neither parameters nor buffers."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """Context after which these tensors of a module and its children are what they were."""
    before = [(part, _attributes(part)) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes in before:
            vars(part).update(attributes)


def _input_leaves(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any], size: int | None
) -> tuple[list[Leaf], int, int]:
    """Position of the examples in every tensor among the arguments, in the first output, and in the other ones."""
    tensors = [(position, leaf) for position, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if not isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return [Leaf(k, 0 if t.ndim > 0 and len(t) == size else None) for k, t in tensors], 0, 0
    attention = isinstance(module, nn.MultiheadAttention)
    axis = 0 if module.batch_first else 1
    axes = {"query": axis, "key": axis, "value": axis, "input": axis, "key_padding_mask": 0, "hx": 1}
    axes_by_tensor: dict[int, tuple[int | None, int]] = {}
    for name, value in inspect.signature(module.forward).bind(*args, **kwargs).arguments.items():
        for tensor in tree_flatten(value)[0]:
            if isinstance(tensor, Tensor):
                axis_of_examples = axes.get(name)
                fits = (
                    axis_of_examples is not None
                    and tensor.ndim > axis_of_examples
                    and tensor.shape[axis_of_examples] == size
                )
                axes_by_tensor[id(tensor)] = (axis_of_examples if fits else None), 0
                if name == "attn_mask" and tensor.ndim == 3:
                    axes_by_tensor[id(tensor)] = 0, cast(int, module.num_heads)
    return [Leaf(k, *axes_by_tensor[id(t)]) for k, t in tensors], axis, 0 if attention else 1


def _refuse_random(unit: Unit) -> None:
    for module in unit.module.modules():
        if not module.training:
            continue
        rate = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
        if isinstance(module, nn.RNNBase) and module.num_layers == 1:
            rate = 0.0
        if isinstance(rate, float) and rate > 0.0:
            raise RuntimeError(
                f"{unit} must not draw random numbers while per-example gradients are squared, since it is called "
                f"again to compute them, got dropout {rate!r} (set it to 0, put it outside, or use the module's eval "
                "mode; if the module owns a parameter beside its children, put that into a module of its own)"
            )


def _mark(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """A linear form of every example's outputs, and their norm; ``outputs`` is ``(m, ...)``."""
    flat = widened(outputs.reshape(len(outputs), -1))
    weights = torch.arange(1, flat.shape[1] + 1, device=flat.device, dtype=flat.dtype).sin()
    return flat @ weights, torch.linalg.vector_norm(flat, dim=1)


def _take(tensor: Tensor, leaf: Leaf, part: slice) -> Tensor:
    """Some examples, along axis 0."""
    if leaf.several:
        tensor = tensor.view(-1, leaf.several, *tensor.shape[1:])
    return tensor if leaf.axis is None else tensor.movedim(leaf.axis, 0)[part]


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor
