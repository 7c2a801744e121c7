"""One Gaussian over all weights together. Its Hessian is a matrix, so that samples and steps are not element-wise.

``S`` is one matrix in float64 for parameters of any dtype: in float32, a precision whose eigenvalues span seven orders
of magnitude may lose its positive definiteness. ``state[p]["hessian"]`` is a view of its rows that belong to ``p``. It
covers the trainable parameters in order, which must not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesadam import noise
from bayesadam.core.flat import Draw, Flat, Member, numbers_of
from bayesadam.core.passes import followed
from bayesadam.core.rule import Rule


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
        owner: The optimiser, whose flats hold only the means and the priors.
        rule: Rule of its method, which gives the initial Hessian.

    Attributes:
        matrix: The Hessian ``S`` of the mean loss, ``(D, D)``.
        random: Whether each weight is perturbed, ``(D,)``.
        spans: The rows of every parameter.
    """

    def __init__(self, owner: Optimizer, rule: Rule) -> None:
        self.owner, self.rule = owner, rule
        self.matrix = torch.zeros(0, 0, dtype=torch.float64)
        self.random = torch.zeros(0, dtype=torch.bool)
        self.spans: dict[Tensor, slice] = {}
        self._places: list[tuple[Member, Flat, int]] = []
        self._moved: dict[Tensor, Tensor] = {}
        self._score = torch.zeros(0)
        self.discard()

    def discard(self) -> None:
        """Forget what was measured for an unfinished step."""
        self._measured: Tensor | None = None
        self._planned: tuple[Tensor, Tensor] | None = None

    def build(self, flats: Sequence[Flat]) -> None:
        """Take the rows of the matrix from the state, or start it from the rule's initial Hessian.

        Raises:
            RuntimeError: Parameters were frozen or added since the training began.
            ValueError: Loaded rows are not those of a precision matrix.
        """
        places = [(member, flat, number) for flat in flats for number, member in enumerate(flat.members)]
        places.sort(key=lambda place: place[0].noise_index)
        sizes = [member.parameter.numel() for member, _, _ in places]
        total, states = sum(sizes), self.owner.state
        rows = [states[m.parameter]["hessian"] for m, _, _ in places if "hessian" in states.get(m.parameter, {})]
        if rows and (len(rows) != len(places) or any(row.shape[1] != total for row in rows)):
            raise RuntimeError(
                "parameters must not be added, frozen or unfrozen when covariance='full', got others than before"
            )
        self._places, self.spans, end = places, {}, 0
        for (member, _, _), size in zip(places, sizes, strict=True):
            self.spans[member.parameter] = slice(end, end + size)
            end += size
        device = places[0][0].parameter.device if places else None
        noisy = torch.tensor([member.group["perturb"] for member, _, _ in places], dtype=torch.bool)
        self.random = noisy.repeat_interleave(torch.tensor(sizes, dtype=torch.long)).to(device)
        if rows:
            self.matrix = torch.cat([row.double() for row in rows])
            self._check_loaded()
            return
        self.matrix = torch.zeros(total, total, dtype=torch.float64, device=device)
        for member, flat, number in places:
            start = self.rule.init(flat.part("mean", number), flat.hyper(self.rule, number))["hessian"]
            self.matrix.diagonal()[self.spans[member.parameter]].copy_(start.flatten())

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

    def prepare(self, draw: Draw) -> None:
        """Draw ``theta - mu = L^-T eps`` with ``L L^T`` the precision, for all perturbed weights together.

        Raises:
            FloatingPointError: The precision is not positive definite.
        """
        members = [member for member, _, _ in self._places if member.group["perturb"]]
        if not members:
            return
        factor, failed = torch.linalg.cholesky_ex(self.precision()[self.random][:, self.random])
        if failed:
            raise FloatingPointError(
                "the posterior precision must be positive definite to draw a sample, got one that is not "
                "(temperature 0 takes the prior's share away, which may have kept it so)"
            )
        sizes = [member.parameter.numel() for member in members]
        normals = torch.empty(len(factor), device=factor.device)
        places = [(m.noise_index, 0, size, size) for m, size in zip(members, sizes, strict=True) if size]
        noise.fill_runs(normals, places, seed=draw.seed, step=draw.step, sample=draw.pair)
        eps = normals.double().mul_(-1.0 if draw.negative else 1.0)
        moved = torch.linalg.solve_triangular(factor.mT, eps[:, None], upper=True)[:, 0].split(sizes)
        self._moved = {member.parameter: part for member, part in zip(members, moved, strict=True)}
        self._score = self.matrix.new_zeros(len(self.matrix)).masked_scatter_(self.random, factor @ eps)  # P (theta-mu)

    def write(self, flat: Flat, *, follow: bool) -> None:
        """Put the sample into the weights of a flat; with ``follow``, first set the means to the weights, which hold
        the mean.
        """
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
        if hessian is None:
            outer = 0.5 * torch.outer(self._score, self._joined(grads))
            hessian = outer + outer.mT
        hessian = -hessian if self.owner.param_groups[0]["maximize"] else hessian
        self._measured = hessian if self._measured is None else self._measured.lerp_(hessian, share)

    def plan(self, grads: Mapping[Tensor, Tensor], ratios: Mapping[Tensor, float]) -> None:
        """Compute the new Hessian, with which the precision must stay positive.

        Raises:
            RuntimeError: A parameter has no gradient.
            FloatingPointError: The curvature is not finite, or the precision would not be positive definite.
        """
        missing = [member.noise_index for member, _, _ in self._places if member.parameter not in grads]
        if missing:
            raise RuntimeError(
                "every trainable parameter must have a gradient when covariance='full', got none for number "
                f"{missing[0]}: freeze it before the optimizer is made"
            )
        if self._measured is None or not self._measured.isfinite().all():
            raise FloatingPointError("the curvature of the loss must be finite, got inf or nan; nothing was changed")
        first = self.owner.param_groups[0]
        rate, tau = 1.0 - first["betas"][1], first["temperature"]
        scale = torch.ones_like(self.matrix.diagonal())
        for parameter, ratio in ratios.items():
            scale[self.spans[parameter]] = ratio**0.5
        error = tau * self.matrix - scale[:, None] * self._measured * scale
        if first["hessian"] == "reparameterized":  # there is no estimate for weights without noise
            error *= torch.outer(self.random, self.random)
        prior = self._prior() / first["num_data"]
        active = torch.diag(prior * (tau > 0))
        planned = self.matrix - rate * error
        if first["correction"] == "elementwise":
            second: Tensor = error @ torch.linalg.solve(self.matrix + active, error)
            planned += 0.25 * rate * rate * (second + second.mT)
        if torch.linalg.cholesky_ex(planned + active).info.item():
            raise NotPositive
        self._planned = planned, planned + torch.diag(prior)

    def step(self, grads: Mapping[Tensor, Tensor], *, factor: float, follow: bool) -> None:
        """Make the Newton step that was computed before; weights that hold the mean are set to the new one."""
        assert self._planned is not None
        planned, divisor = self._planned
        first, means, shifted = self.owner.param_groups[0], [], []
        for member, flat, number in self._places:
            mean = flat.part("mean", number)
            if follow or not member.group["perturb"]:
                mean.copy_(followed(mean, member.parameter))
            center = flat.part("prior_mean", number) if flat.kind.per_weight else 0.0
            means.append(mean)
            shifted.append((mean - center).flatten().double())
        grad = (-1.0 if first["maximize"] else 1.0) * factor * self._joined(grads)
        grad += first["temperature"] * self._prior() / first["num_data"] * torch.cat(shifted)
        move = torch.linalg.solve(divisor, grad)
        for (member, _, _), mean in zip(self._places, means, strict=True):
            radius = float(member.group["clip_radius"])
            part = move[self.spans[member.parameter]].clamp(-radius, radius)
            mean.sub_(float(member.group["lr"]) * part.view(mean.shape).to(mean.dtype))
            if follow or not member.group["perturb"]:
                member.parameter.copy_(mean)
        self.matrix.copy_(planned)
        for flat in {id(flat): flat for _, flat, _ in self._places}.values():
            flat.advance(np.arange(len(flat.members)), self.rule, {**numbers_of(self.rule, flat), **flat.before()})

    def _prior(self) -> Tensor:
        """``lambda`` at every weight."""
        prior = torch.empty_like(self.matrix.diagonal())
        for member, flat, number in self._places:
            value = torch.as_tensor(flat.hyper(self.rule, number).prior_precision)
            prior[self.spans[member.parameter]] = value.flatten().to(prior)
        return prior

    def _joined(self, grads: Mapping[Tensor, Tensor]) -> Tensor:
        """Gradients of all weights in order, 0 where there is none."""
        joined = torch.zeros_like(self.matrix.diagonal())
        for parameter, grad in grads.items():
            joined[self.spans[parameter]] = grad.detach().flatten().double()
        return joined
