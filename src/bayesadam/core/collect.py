"""Gradients and curvatures of the samples of an unfinished step, and their Monte Carlo averages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.core.flat import Flat, Member, numbers_of
from bayesadam.core.launch import run
from bayesadam.core.sampling import Weights
from bayesadam.core.sources import Source
from bayesadam.curvature import PerExampleSquares
from bayesadam.modules.sharding import average, like, local, rank_and_size
from bayesadam.native.memory import Placed, placed

_GRAD = attrgetter("grad")
Hidden: TypeAlias = list[tuple[Tensor, Tensor | None]]
"""Pairs of a parameter and the gradient that it had before a sampling block."""


class Gradients(NamedTuple):
    """Numbers of the members of a flat that have a gradient, and these gradients."""

    numbers: NDArray[np.int64]
    placed: Placed

    def of(self, positions: Any) -> Gradients:
        """Some of them, by their positions."""
        return Gradients(self.numbers[positions], self.placed.of(positions))


class Collection:
    """What was collected for the next step.

    With one sample per step nothing is kept, and everything is computed from ``p.grad`` at the step. With several
    samples, or with a curvature that is not computed from the gradient, ``p.grad`` is the mean gradient so far and the
    mean curvature is here, on the scale that the gradients had. The step multiplies it by the factor by which
    unscaling and clipping have changed ``p.grad`` since, to the power with which it scales.

    Args:
        weights: Samples and means in the weights.
        source: Source of curvature that the rule does not compute itself.

    Attributes:
        samples: Number of samples collected.
        curvatures: Curvatures by parameter, in the local shape.
        factor: Factor of ``p.grad`` that makes it the gradient of the mean loss.
    """

    def __init__(self, weights: Weights, source: Source | None) -> None:
        self.weights, self.layout, self.source = weights, weights.layout, source
        self.samples = 0
        self.curvatures: dict[Tensor, Tensor] = {}
        self.factor = 1.0
        self._norms: dict[Tensor, Tensor] = {}

    @property
    def collects_curvature(self) -> bool:
        """Whether curvature is collected with every sample, and not computed at the step."""
        first = self.layout.first
        several = first["mc_samples"] > 1 or first["rank_samples"]
        return several or self.source is not None or first.get("correction", "elementwise") != "elementwise"

    def discard(self) -> None:
        """Forget the samples collected so far."""
        self.samples, self.curvatures, self._norms, self.factor = 0, {}, {}, 1.0

    def present(self) -> Hidden:
        """All parameters with their gradients."""
        groups = self.layout.owner.param_groups
        return [(parameter, parameter.grad) for group in groups for parameter in group["params"]]

    def trained(self) -> list[Member]:
        """Members of a flat that have a gradient."""
        return [m for m in self.layout.members() if m.parameter.grad is not None and m.parameter.requires_grad]

    def gather(self) -> dict[Flat, Gradients]:
        """The gradients of all flats.

        Raises:
            RuntimeError: A gradient is sparse, or it does not have the shape and the device of its parameter any more.
        """
        gathered = {}
        for flat in self.layout.built:
            grads, numbers = list(map(_GRAD, flat.parameters)), None
            if type(None) in map(type, grads):
                numbers = [number for number, grad in enumerate(grads) if grad is not None]
                grads = [grads[number] for number in numbers]
            where = self.layout.place(flat, grads, numbers, what="the gradient of ")
            every = range(len(grads)) if numbers is None else numbers
            gathered[flat] = Gradients(np.array(every, dtype=np.int64), where)
        return gathered

    @torch.no_grad()
    def collect(self, hidden: Hidden) -> None:
        """Finish the sample of a block: ``p.grad`` becomes the mean over the samples so far, as does the curvature."""
        if self.collects_curvature:
            self.layout.gather()
            gradients = self.gather()
            trained = self.trained()
            factor = self._gradient_factor()
            if factor != 1.0:
                torch._foreach_mul_(_gradients(trained), factor)
            share = 1.0 / (self.samples + 1)
            self._collect_curvature(trained, gradients, share)
            self._average(hidden if self.samples else [(parameter, None) for parameter, _ in hidden], share)
            if self.samples + 1 == self.layout.first["mc_samples"]:
                self._average_over_ranks()
            self.remember_norms()
        self.samples += 1

    def _average(self, hidden: Hidden, share: float) -> None:
        """Average gradients with those of earlier samples; a sample without a gradient counts as zero."""
        both, new, old = [], [], []
        for parameter, earlier in hidden:
            if not parameter.requires_grad:
                continue
            grad = parameter.grad
            if grad is not None and earlier is not None:
                both.append((earlier, grad))
                parameter.grad = earlier
            elif grad is not None:
                new.append(grad)
            elif earlier is not None:
                old += [earlier, *([self.curvatures[parameter]] if parameter in self.curvatures else [])]
                parameter.grad = earlier
        if both:
            torch._foreach_lerp_([earlier for earlier, _ in both], [grad for _, grad in both], share)
        if new and share != 1.0:
            torch._foreach_mul_(new, share)
        if old:
            torch._foreach_mul_(old, 1.0 - share)

    def _average_over_ranks(self) -> None:
        """With a sample for every rank: average gradients and curvatures over the ranks, all in one message."""
        if not self.layout.first["rank_samples"] or rank_and_size()[1] == 1:
            return
        for member in self.layout.members():
            parameter = member.parameter
            if parameter.requires_grad:  # a parameter without a gradient on this rank counts as zero
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        average(_gradients(self.trained()))
        if self.source is None:
            for flat in self._measured():
                self._begin(flat, [i for i, parameter in enumerate(flat.parameters) if parameter.requires_grad])
        average([self.curvatures[m.parameter] for m in self.layout.members() if m.parameter in self.curvatures])

    def _gradient_factor(self) -> float:
        """Factor that makes the gradients of a sum over examples those of their mean.

        Raises:
            RuntimeError: The loss is a sum in several processes, which may have different numbers of examples.
        """
        squares = self.source
        if not isinstance(squares, PerExampleSquares) or squares.reduction == "mean":
            return 1.0
        if squares.is_parallel:
            raise RuntimeError("reduction must be 'mean' when several processes train together, got 'sum'")
        return 1.0 / max(1, squares.num_examples)

    @torch.no_grad()
    def remember_norms(self, among: Sequence[Tensor] | None = None) -> None:
        """Record the scale of gradients, since it may be changed before the step."""
        parameters = [member.parameter for member in self.trained()] if among is None else among
        self._norms.update(zip(parameters, self._norms_of(parameters), strict=True))

    def collect_drop_in(self) -> None:
        """In drop-in training, collect the curvature of the single sample when the step is made."""
        self.curvatures = {}  # left over from a step that raised an error
        self.factor = self._gradient_factor()
        trained = self.trained()
        unknown = [m.parameter for m in trained if self.source is None or m.parameter not in self._norms]
        self.remember_norms(unknown)
        self._collect_curvature(trained, self.gather(), 1.0)
        if self.layout.first["rank_samples"]:
            self._average_over_ranks()
            self.remember_norms()

    def _collect_curvature(self, trained: Sequence[Member], gradients: Mapping[Flat, Gradients], share: float) -> None:
        """Average the curvature of a sample into the mean over the samples so far."""
        if self.source is not None:
            for member in trained:
                self._collect_from_source(self.source, member, share)
        else:
            for flat in self._measured():
                self._collect_from_rule(flat, gradients[flat], share)

    def _measured(self) -> list[Flat]:
        """Flats whose curvature the rule computes from the gradient."""
        flats = self.layout.built
        return [flat for flat in flats if flat in self.weights.flats] if self.layout.rule.needs_noise else flats

    def _begin(self, flat: Flat, numbers: Sequence[int]) -> None:
        """Begin a mean curvature for each of these members of a flat that has none yet."""
        new = [number for number in numbers if flat.parameters[number] not in self.curvatures]
        parts = flat.parts(flat.vector()) if new else []
        self.curvatures.update({flat.parameters[number]: parts[number] for number in new})

    def _collect_from_rule(self, flat: Flat, gradients: Gradients, share: float) -> None:
        self._begin(flat, gradients.numbers.tolist())
        held = flat in self.weights.flats
        mean = "state" if held else "weights"
        deviation = flat.deviation(held=True) if held and self.layout.rule.needs_noise else None
        lists = {"grad": gradients.placed, "collected": self.curvatures_of(flat, gradients.numbers)}
        numbers, draws = numbers_of(self.layout.rule, flat, share=share), {"eps": self.weights.drawn}
        entries: dict[str, Any] = {"mean": mean, "deviation": deviation, "curvature": "rule"}
        run(self.layout, flat, "collect", gradients.numbers, numbers, lists, draws, **entries)

    def curvatures_of(self, flat: Flat, numbers: NDArray[np.int64], scales: Sequence[Any] = ()) -> Placed:
        """The collected curvatures of members of a flat, multiplied by numbers if there are any."""
        curvatures = [self.curvatures[flat.parameters[number]] for number in numbers]
        if scales:
            curvatures = list(torch._foreach_mul(curvatures, list(scales)))
        return placed(curvatures, [flat.shapes[number] for number in numbers], flat.kind.device, flat.kind.dtype)

    def _collect_from_source(self, source: Source, member: Member, share: float) -> None:
        parameter, group, _ = member
        if not group["perturb"] and not source.covers(parameter):
            return  # for example a learned noise level
        whole = source.mean_squares(parameter) if isinstance(source, PerExampleSquares) else source.diagonal(parameter)
        if whole is None:
            raise RuntimeError(
                f"the curvature of parameter {self.layout.name_of(parameter)} must come with its gradient, got a "
                "gradient alone: use optimizer.backward(loss), and no other backward pass"
            )
        value = local(like(parameter, whole)).to(torch.promote_types(parameter.dtype, torch.float32))
        if group["maximize"] and self.layout.rule.power % 2:
            value = -value
        if group["mc_samples"] == 1:  # not a copy: the source overwrites it when it is started again
            self.curvatures[parameter] = value
        elif parameter not in self.curvatures:
            self.curvatures[parameter] = value * share
        else:
            self.curvatures[parameter].lerp_(value, share)

    def ratios(self, parameters: Sequence[Tensor]) -> Tensor:
        """Factors by which unscaling or clipping changed each gradient since the last sample was collected, on the
        device of the first gradient, which is not waited for.

        A gradient of zero does not determine a factor. It takes that of the other gradients, because unscaling and
        clipping by the norm multiply all gradients by one factor.
        """
        if not parameters:
            return torch.ones(0)
        norms = self._norms_of(parameters)
        norms = [*(self._norms.get(p, norm) for p, norm in zip(parameters, norms, strict=True)), *norms]
        together = torch.stack([norm.to(norms[0].device) for norm in norms])
        together = together if together.device.type == "mps" else together.double()  # which has no float64
        before, now = together.view(2, -1)
        total = torch.linalg.vector_norm(before)
        common = torch.where(total > 0, torch.linalg.vector_norm(now) / total, 1.0)
        return torch.where(before > 0, now / before, common)

    def _norms_of(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Norms of the local gradients, in float32 or wider, since they easily overflow in float16."""
        grads: list[Any] = [local(parameter.grad) for parameter in parameters]  # type: ignore[arg-type]
        wide = {torch.promote_types(grad.dtype, torch.float32) for grad in grads}
        if len(wide) == 1:
            return list(torch._foreach_norm(grads, 2, dtype=wide.pop()))
        return [torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)) for g in grads]

    def collected_scales(self, flat: Flat) -> Any:
        """Factors by which a flat's curvatures must be multiplied to match the present ``p.grad``: one number, or an
        array.
        """
        parameters = [p for p in flat.parameters if p in self.curvatures and p.grad is not None]
        ratios = dict(zip(parameters, self.ratios(parameters).tolist(), strict=True))
        values = [ratios.get(parameter, 1.0) ** self.layout.rule.power for parameter in flat.parameters]
        return values[0] if values.count(values[0]) == len(values) else np.array(values)


def _gradients(members: Sequence[Member]) -> list[Any]:
    return [member.parameter.grad for member in members]
