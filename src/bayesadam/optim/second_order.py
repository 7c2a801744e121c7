"""The base class of optimisers with a Hessian, with the options that choose where the Hessian comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.groups import SHARED
from bayesadam.posterior import DenseGaussian, DiagonalGaussian
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.posterior.report import PER_TENSOR
from bayesadam.sharding import is_sharded

_ORDINARY = {"hessian": "reparameterized", "covariance": "diagonal", "correction": "elementwise"}
"""Values with which a step needs the gradients of this process only."""
_OF_THE_MATRIX = ("num_data", "betas", "temperature", "maximize")
"""Hyper-parameters of a matrix, which cannot differ between groups."""


class SecondOrderOptimizer(PerturbedOptimizer):
    """Base class of optimisers whose curvature is a Hessian of the loss; :class:`VON` explains the options.

    Attributes:
        covariances: Covariances that the method supports. With ``"full"`` the step is VON's.
    """

    shared: ClassVar[tuple[str, ...]] = (*SHARED, "hessian", "covariance", "probes", "correction")
    covariances: ClassVar[tuple[str, ...]] = ("diagonal",)

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check the options of the Hessian."""
        super().check_group(group)
        if group["covariance"] not in self.covariances:
            raise ValueError(f"covariance must be one of {self.covariances}, got {group['covariance']!r}")
        for name in ("hessian", "covariance") if group["rank_samples"] else ():
            if group[name] != _ORDINARY[name]:
                raise ValueError(f"{name} must be {_ORDINARY[name]!r} with rank_samples=True, got {group[name]!r}")
        if group["covariance"] != "full":
            return
        if group["low_memory"]:
            raise ValueError("low_memory must be False when covariance='full', got True")
        if group["hessian"] == "hutchinson":
            raise ValueError("hessian must be 'exact' or 'reparameterized' when covariance='full', got 'hutchinson'")
        if group["correction"] == "backtracking":
            raise ValueError("correction must be 'elementwise' or None when covariance='full', got 'backtracking'")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as in the base class. With a full covariance this is possible only before training.

        Raises:
            ValueError: As in the base class; or parameters are sharded with second derivatives or a full covariance, or
                there are too many weights for a full covariance.
            RuntimeError: As in the base class; or the covariance is full, and its matrix already has its size.
        """
        full = self.defaults["covariance"] == "full"
        if full and self.state:
            raise RuntimeError("add_param_group() must not be called when covariance='full', got a call")
        super().add_param_group(param_group)
        try:
            self._check_added(self.param_groups[-1], full=full)
        except ValueError:
            self.param_groups.pop()
            raise

    def _check_added(self, group: Mapping[str, Any], *, full: bool) -> None:
        for name in _OF_THE_MATRIX if full else ():
            if group[name] != self.param_groups[0][name]:
                raise ValueError(f"{name} must be the same in all groups when covariance='full', got {group[name]!r}")
        for parameter in group["params"]:
            for name, ordinary in _ORDINARY.items() if is_sharded(parameter) else ():
                if self.defaults[name] != ordinary:
                    raise ValueError(f"{name} must be {ordinary!r} for sharded parameters, got {self.defaults[name]!r}")
        if full and any(is_lazy(parameter) for parameter in group["params"]):
            raise ValueError("parameters must be initialized when covariance='full', got those of a lazy module")
        total = sum(p.numel() for g in self.param_groups for p in g["params"] if p.requires_grad) if full else 0
        if total > MAX_WEIGHTS:
            raise ValueError(f"covariance must be 'diagonal' above {MAX_WEIGHTS:,} weights, got 'full' for {total:,}")

    def train(self, mode: bool = True) -> None:
        """Start drop-in training, as in the base class.

        Raises:
            RuntimeError: As in the base class; or the Hessian is ``"exact"`` or ``"hutchinson"``, which need the loss.
        """
        if mode and self.defaults["hessian"] != "reparameterized":
            raise RuntimeError(
                f"hessian must be 'reparameterized' to use train(), got {self.defaults['hessian']!r}: it needs the "
                "loss, from step(closure) or from backward(loss) inside sampled_params()"
            )
        super().train(mode)

    def posterior(self, model: nn.Module | None = None) -> DiagonalGaussian:
        """Return the posterior, as in the base class; with a full covariance a :class:`DenseGaussian`."""
        dense = self._engine.dense
        if dense is None:
            return super().posterior(model)
        with torch.no_grad():
            covered = self._covered(model)
            mean: dict[str, Tensor] = {name: self._mean_of(flat, number) for name, flat, number in covered}
            wanted = [flat.parameters[number] for _, flat, number in covered]
            chosen = torch.cat([torch.arange(len(dense.matrix))[dense.span(parameter)] for parameter in wanted])
            precision = dense.precision()[chosen][:, chosen]
            random = dense.is_random()[chosen]
            q = DenseGaussian.from_precision(mean, precision, hyperparameters=self._reported(), random=random)
            noisy = [(name, flat, number) for name, flat, number in covered if flat.kind.perturb]
            origins = {name: self._origin(flat, number, q.variance[name]) for name, flat, number in noisy}
        q.hyperparameters[PER_TENSOR] = origins
        return q  # type: ignore[return-value]


def default_correction(hessian: str, correction: str | None) -> str | None:
    """The correction that is used for a Hessian if the user chose none."""
    if correction != "default":
        return correction
    return None if hessian == "exact" else "elementwise"
