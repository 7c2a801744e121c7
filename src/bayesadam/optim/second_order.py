"""The base class of optimisers with a Hessian, with the options that choose where the Hessian comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bayesadam.optim import groups
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.posterior import DenseGaussian, DiagonalGaussian
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.posterior.report import PER_TENSOR
from bayesadam.sharding import is_sharded

_OWN_SAMPLES = {"hessian": ("reparameterized",), "covariance": ("diagonal",)}
_SHARDED = {**_OWN_SAMPLES, "correction": ("elementwise",)}
_MATRIX = {"low_memory": (False,), "hessian": ("exact", "reparameterized"), "correction": ("elementwise", None)}
"""Values of options for which every process may draw its own sample; for which a step needs the gradients of this
process only; and which a full covariance allows.
"""
_OF_THE_MATRIX = ("num_data", "betas", "temperature", "maximize")
"""Hyper-parameters of a matrix, which cannot differ between groups."""


class SecondOrderOptimizer(PerturbedOptimizer):
    """Base class of optimisers whose curvature is a Hessian of the loss; :class:`VON` explains the options."""

    shared: ClassVar[tuple[str, ...]] = (*groups.SHARED, "hessian", "covariance", "probes", "correction")

    def _set_up(self, arguments: Mapping[str, Any]) -> None:
        """Also choose the correction, if none is given."""
        correction = arguments.get("correction", "default")
        if correction == "default":
            correction = None if arguments.get("hessian") == "exact" else "elementwise"
        super()._set_up({**arguments, "correction": correction})

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check the options of the Hessian."""
        super().check_group(group)
        if group["rank_samples"]:
            _check_possible(group, _OWN_SAMPLES, "with rank_samples=True")
        if group.get("covariance") == "full":
            _check_possible(group, _MATRIX, "when covariance='full'")

    def check_added(self, group: dict[str, Any]) -> None:
        """Also refuse sharded parameters if a step needs whole ones, and options that a full covariance does not
        allow.
        """
        super().check_added(group)
        if any(map(is_sharded, group["params"])):
            _check_possible(group, _SHARDED, "for sharded parameters")
        if group.get("covariance") != "full":
            return
        if self.state:
            raise RuntimeError("add_param_group() must not be called when covariance='full', got a call")
        groups.check_shared(group, self.param_groups, _OF_THE_MATRIX, when=" when covariance='full'")
        if any(map(is_lazy, group["params"])):
            raise ValueError("parameters must be initialized when covariance='full', got those of a lazy module")
        total = sum(p.numel() for g in self.param_groups for p in g["params"] if p.requires_grad)
        if total > MAX_WEIGHTS:
            raise ValueError(f"covariance must be 'diagonal' above {MAX_WEIGHTS:,} weights, got 'full' for {total:,}")

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> DiagonalGaussian:
        """Return the posterior, as in the base class; with a full covariance a :class:`DenseGaussian`."""
        dense = self._engine.layout.dense
        if dense is None:
            return super().posterior(model)
        covered = self._covered(model)
        mean = {name: self._mean_of(flat, number) for name, flat, number in covered}
        spans = [dense.spans[flat.parameters[number]] for _, flat, number in covered]
        chosen = torch.cat([torch.arange(span.start, span.stop) for span in spans])
        precision, random = dense.precision()[chosen][:, chosen], dense.random[chosen]
        q = DenseGaussian.from_precision(mean, precision, hyperparameters=self._reported(), random=random)
        noisy = [(name, flat, number) for name, flat, number in covered if flat.kind.perturb]
        q.hyperparameters[PER_TENSOR] = self._origins(noisy, q.variance, self._hypers(noisy))
        return q  # type: ignore[return-value]


def _check_possible(group: Mapping[str, Any], options: Mapping[str, tuple[Any, ...]], when: str) -> None:
    for name, possible in options.items():
        if group.get(name, possible[0]) not in possible:
            raise ValueError(f"{name} must be {' or '.join(map(repr, possible))} {when}, got {group[name]!r}")
