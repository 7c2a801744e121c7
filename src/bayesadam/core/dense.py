"""One Gaussian over all weights together, where the Hessian is a matrix, and samples and steps are not element-wise.

``S`` is one matrix in float64 for parameters of any dtype: in float32 a precision whose eigenvalues span seven orders
of magnitude need not be positive. ``state[p]["hessian"]`` is a view of its rows that belong to ``p``. The parameters
are the trainable ones in order; they must stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.core.draws import Draw
from bayesadam.core.flat import Flat, Member
from bayesadam.core.passes import followed
from bayesadam.core.rule import Rule

_SCRATCH = noise.Scratch()


class Owner(Protocol):
    """The part of an optimiser that is used here; groups and state may be replaced at any time, as by loading."""

    param_groups: list[dict[str, Any]]
    state: Any


class NotPositive(FloatingPointError):
    """Raised if a step would make a precision negative."""

    def __init__(self) -> None:
        super().__init__(
            "the posterior precision must stay positive, got a curvature that is too negative for this step; nothing "
            "was changed (use correction='elementwise', a smaller 1 - betas[1] or a larger prior_precision)"
        )


class Dense:
    """The matrix, the samples and the steps of an optimiser with a full covariance.

    Args:
        owner: The optimiser; its flats have vectors of means and of priors only.
        rule: Rule of its method, which gives the initial Hessian.

    Attributes:
        matrix: The Hessian ``S`` of the mean loss, ``(D, D)``.
    """

    def __init__(self, owner: Owner, rule: Rule) -> None:
        self.owner, self.rule = owner, rule
        self.matrix = torch.zeros(0, 0, dtype=torch.float64)
        self.members: list[Member] = []
        self._flats: Sequence[Flat] = ()
        self._spans: dict[Tensor, slice] = {}
        self._moved: dict[Tensor, Tensor] = {}
        self._score = torch.zeros(0)
        self._measured: Tensor | None = None
        self._planned: tuple[Tensor, Tensor] | None = None

    def build(self, flats: Sequence[Flat]) -> None:
        """Take the rows of the matrix from the state, or start it from the rule's initial Hessian.

        Raises:
            RuntimeError: Parameters were frozen or added since the training began.
            ValueError: Loaded rows are not those of a precision matrix.
        """
        self._flats = flats
        members = sorted((member for flat in flats for member in flat.members), key=lambda member: member.noise_index)
        states = self.owner.state
        rows = [states[m.parameter]["hessian"] for m in members if "hessian" in states.get(m.parameter, {})]
        total = 0
        spans: dict[Tensor, slice[Any, Any, Any]] = {}
        for member in members:
            spans[member.parameter] = slice(total, total + member.parameter.numel())
            total += member.parameter.numel()
        if rows and (len(rows) != len(members) or any(row.shape[1] != total for row in rows)):
            raise RuntimeError(
                "parameters must not be added, frozen or unfrozen when covariance='full', got others than before"
            )
        self.members, self._spans = members, spans
        if rows:
            self.matrix = torch.cat([row.double() for row in rows])
            self._check_loaded()
            return
        device = members[0].parameter.device if members else None
        self.matrix = torch.zeros(total, total, dtype=torch.float64, device=device)
        for flat in flats:
            for number, parameter in enumerate(flat.parameters):
                mean, hp = flat.part(flat.tensors["mean"], number), flat.hyper(self.rule, number)
                start = self.rule.init(mean, hp)["hessian"]
                self.matrix.diagonal()[spans[parameter]].copy_(start.flatten())

    def rows(self, parameter: Tensor) -> Tensor:
        """The rows of a parameter, ``(numel, D)``."""
        return self.matrix[self._spans[parameter]]

    def span(self, parameter: Tensor) -> slice:
        """The rows of a parameter, as a slice."""
        return self._spans[parameter]

    def _check_loaded(self) -> None:
        matrix = self.precision()
        symmetric = torch.allclose(matrix, matrix.mT, rtol=1e-6, atol=1e-9 * float(matrix.abs().max()))
        if not symmetric or torch.linalg.cholesky_ex(matrix).info.item():
            raise ValueError(
                "the Hessian of the state_dict must be a precision matrix, got one that is not positive definite (with "
                "covariance='full' the parameters must be in the order in which they were saved)"
            )

    def precision(self) -> Tensor:
        """``N S + lambda I`` over all weights in order; without the prior's part at ``tau = 0``."""
        first = self.owner.param_groups[0]
        data: Tensor = first["num_data"] * self.matrix
        return data + torch.diag(self._prior() * (first["temperature"] > 0))

    def is_random(self) -> Tensor:
        """Whether each weight is perturbed, ``(D,)``."""
        sizes = torch.tensor([member.parameter.numel() for member in self.members])
        return torch.tensor([bool(m.group["perturb"]) for m in self.members]).repeat_interleave(sizes)

    def prepare(self, flats: Sequence[Flat], draw: Draw) -> None:
        """Draw ``theta - mu = L^-T eps`` with ``L L^T`` the precision, for all perturbed weights together.

        Raises:
            FloatingPointError: The precision is not positive definite.
        """
        members = [member for member in self.members if member.group["perturb"]]
        if not members:
            return
        random = self.is_random().to(self.matrix.device)
        factor, failed = torch.linalg.cholesky_ex(self.precision()[random][:, random])
        if failed:
            raise FloatingPointError(
                "the posterior precision must be positive definite to draw a sample, got one that is not "
                "(temperature 0 takes the prior's share away, which may have kept it so)"
            )
        sizes = [member.parameter.numel() for member in members]
        normals = torch.empty(len(factor), device=factor.device)
        places = [(m.noise_index, 0, size, size) for m, size in zip(members, sizes, strict=True) if size]
        noise.fill_runs(normals, places, seed=draw.seed, step=draw.step, sample=draw.pair, scratch=_SCRATCH)
        eps = normals.double().mul_(-1.0 if draw.negative else 1.0)
        moved = torch.linalg.solve_triangular(factor.mT, eps[:, None], upper=True)[:, 0].split(sizes)
        self._moved = {member.parameter: part for member, part in zip(members, moved, strict=True)}
        self._score = self.matrix.new_zeros(len(self.matrix)).masked_scatter_(random, factor @ eps)  # P (theta - mu)

    def write(self, flat: Flat, *, follow: bool) -> None:
        """Put the sample into the weights of a flat, whose means first ``follow`` them if these hold the mean."""
        for parameter, mean in zip(flat.parameters, flat.parts(flat.tensors["mean"]), strict=True):
            if follow:
                mean.copy_(followed(mean, parameter))
            parameter.copy_(mean + self._moved[parameter].view(mean.shape).to(mean.dtype))

    def measure(self, grads: Mapping[Tensor, Tensor], hessian: Tensor | None, share: float) -> None:
        """Average the Hessian of a sample into that of the step.

        Args:
            grads: Gradients of the sample.
            hessian: Its Hessian, or ``None`` to estimate it from gradient and noise.
            share: Weight of the sample.
        """
        sign = -1.0 if self.owner.param_groups[0]["maximize"] else 1.0
        if hessian is not None:
            found = sign * hessian
        else:
            outer = 0.5 * sign * torch.outer(self._score, self._joined(grads))
            found = outer + outer.mT
        self._measured = found if self._measured is None else self._measured.lerp_(found, share)

    def discard(self) -> None:
        """Forget what was measured for an unfinished step."""
        self._measured, self._planned = None, None

    def plan(self, grads: Mapping[Tensor, Tensor], ratios: Mapping[Tensor, float]) -> None:
        """Compute the new Hessian, with which the precision must stay positive.

        Raises:
            RuntimeError: A parameter has no gradient.
            FloatingPointError: The curvature is not finite, or the precision would not be positive definite.
        """
        missing = [member.noise_index for member in self.members if member.parameter not in grads]
        if missing:
            raise RuntimeError(
                "every trainable parameter must have a gradient when covariance='full', got none for number "
                f"{missing[0]}: freeze it before the optimizer is made"
            )
        if self._measured is None or not self._measured.isfinite().all():
            raise FloatingPointError("the curvature of the loss must be finite, got inf or nan; nothing was changed")
        first = self.owner.param_groups[0]
        rate, tau = 1.0 - first["betas"][1], first["temperature"]
        sizes = torch.tensor([member.parameter.numel() for member in self.members])
        known = torch.tensor([ratios.get(m.parameter, 1.0) for m in self.members], dtype=torch.float64)
        scale = known.repeat_interleave(sizes).sqrt().to(self.matrix.device)
        error = tau * self.matrix - scale[:, None] * self._measured * scale
        if first["hessian"] == "reparameterized":  # there is no estimate for weights without noise
            random = self.is_random().to(error)
            error = random[:, None] * error * random
        prior = self._prior() / first["num_data"]
        active = torch.diag(prior * (tau > 0))
        planned = self.matrix - rate * error
        if first["correction"] == "elementwise":
            second: Tensor = error @ torch.linalg.solve(self.matrix + active, error)
            planned += 0.25 * rate * rate * (second + second.mT)
        if torch.linalg.cholesky_ex(planned + active).info.item():
            raise NotPositive
        self._planned = planned, planned + torch.diag(prior)

    def step(self, flats: Sequence[Flat], grads: Mapping[Tensor, Tensor], *, factor: float, follow: bool) -> None:
        """Make the Newton step that was planned; the weights follow the means if these are in them."""
        assert self._planned is not None
        planned, divisor = self._planned
        first = self.owner.param_groups[0]
        means = {
            p: mean for flat in flats for p, mean in zip(flat.parameters, flat.parts(flat.tensors["mean"]), strict=True)
        }
        centers = {
            p: part
            for flat in flats
            if flat.kind.per_weight
            for p, part in zip(flat.parameters, flat.parts(flat.tensors["prior_mean"]), strict=True)
        }
        for member in self.members:
            if follow or not member.group["perturb"]:
                mean = means[member.parameter]
                mean.copy_(followed(mean, member.parameter))
        shifted = torch.cat(
            [(means[m.parameter] - centers.get(m.parameter, 0.0)).flatten().double() for m in self.members]
        )
        grad = (-1.0 if first["maximize"] else 1.0) * factor * self._joined(grads)
        grad += first["temperature"] * self._prior() / first["num_data"] * shifted
        move = torch.linalg.solve(divisor, grad)
        for member in self.members:
            mean, radius = means[member.parameter], float(member.group["clip_radius"])
            part = move[self._spans[member.parameter]].clamp(-radius, radius)
            mean.sub_(float(member.group["lr"]) * part.view(mean.shape).to(mean.dtype))
            if follow or not member.group["perturb"]:
                member.parameter.copy_(mean)
        self.matrix.copy_(planned)

    def _prior(self) -> Tensor:
        """``lambda`` at every weight."""
        parts = {}
        for flat in self._flats:
            for number, parameter in enumerate(flat.parameters):
                value = torch.as_tensor(flat.hyper(self.rule, number).prior_precision, dtype=torch.float64)
                parts[parameter] = value.to(self.matrix.device).expand(parameter.shape).flatten()
        return torch.cat([parts[member.parameter] for member in self.members])

    def _joined(self, grads: Mapping[Tensor, Tensor]) -> Tensor:
        """Gradients of all weights in order, 0 where there is none."""
        parts = [grads.get(m.parameter, torch.zeros_like(m.parameter)) for m in self.members]
        return torch.cat([part.detach().flatten().double() for part in parts])
