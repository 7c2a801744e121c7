"""What optimisers with a Hessian add to the perturbed optimiser: their options, and where the Hessian comes from."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.blocks import is_sharded
from bayesadam.optim.dense import (
    DenseGradients,
    DenseHessianSource,
    DenseSampler,
    dense_state,
    layout,
)
from bayesadam.optim.newton import check_hessian
from bayesadam.optim.sources import HessianSource
from bayesadam.posterior import DenseGaussian, DiagonalGaussian
from bayesadam.posterior.dense import MAX_WEIGHTS

_SHARDED = {"hessian": "reparameterized", "covariance": "diagonal", "correction": "elementwise"}
_SHARED_BY_A_MATRIX = ("num_data", "betas", "temperature", "maximize")


class SecondOrderOptimizer(PerturbedOptimizer):
    """A perturbed optimiser whose curvature is a Hessian of the loss; :class:`VON` explains the options.

    Attributes:
        covariances: Those that the method knows; the step with a full one is VON's.
    """

    _shared: ClassVar[tuple[str, ...]] = (
        *PerturbedOptimizer._shared,
        "hessian",
        "covariance",
        "probes",
        "correction",
    )

    covariances: ClassVar[tuple[str, ...]] = ("diagonal",)
    _made: bool

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        *,
        num_data: float,
        hessian: str,
        probes: int,
        correction: str | None,
        covariance: str = "diagonal",
        **options: Any,
    ) -> None:
        if correction == "default":
            correction = None if hessian == "exact" else "elementwise"
        extra = {"hessian": hessian, "probes": probes, "correction": correction, "covariance": covariance}
        super().__init__(params, lr, num_data=num_data, extra=extra, **options)
        self._made = True

    def check_group(self, group: dict[str, Any]) -> None:
        """Also the options of the Hessian."""
        super().check_group(group)
        for name in ("hessian", "covariance"):
            if group[name] != self.defaults[name]:
                raise ValueError(f"{name} must be the same in all groups, got {group[name]!r}")
        check_hessian(group)
        if group["covariance"] not in self.covariances:
            raise ValueError(f"covariance must be one of {self.covariances}, got {group['covariance']!r}")
        if group["covariance"] == "full" and group["hessian"] == "hutchinson":
            raise ValueError("hessian must be 'exact' or 'reparameterized' when covariance='full', got 'hutchinson'")
        if group["covariance"] == "full" and group["correction"] == "backtracking":
            raise ValueError("correction must be 'elementwise' or None when covariance='full', got 'backtracking'")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; with a full covariance only while the optimiser is made.

        Raises:
            ValueError: Also: sharded parameters with second derivatives or a full covariance, or too many weights.
            RuntimeError: Also: a full covariance, whose matrix is made for the parameters that there are.
        """
        full = self.defaults["covariance"] == "full"
        if full and self._made and not self._open:
            raise RuntimeError("add_param_group() must not be called when covariance='full', got a call")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for name in _SHARED_BY_A_MATRIX if full else ():
                if group[name] != self.param_groups[0][name]:
                    raise ValueError(
                        f"{name} must be the same in all groups when covariance='full', got {group[name]!r}"
                    )
            for parameter in group["params"]:
                for name, ordinary in _SHARDED.items() if is_sharded(parameter) else ():
                    if self.defaults[name] != ordinary:
                        raise ValueError(
                            f"{name} must be {ordinary!r} for sharded parameters, got {self.defaults[name]!r}"
                        )
            if full:
                total = layout(self.param_groups)
                if total > MAX_WEIGHTS:
                    raise ValueError(
                        f"covariance must be 'diagonal' above {MAX_WEIGHTS:,} weights, got 'full' for {total:,}"
                    )
        except ValueError:
            self.param_groups.pop()
            raise

    def train(self, mode: bool = True) -> None:
        """Drop-in training; see the base class.

        Raises:
            RuntimeError: Also: the Hessian is exact or Hutchinson's, which need the loss.
        """
        if mode and self.defaults["hessian"] != "reparameterized":
            raise RuntimeError(
                f"hessian must be 'reparameterized' to use train(), got {self.defaults['hessian']!r}: it needs the "
                "loss, from step(closure) or from backward(loss) inside sampled_params()"
            )
        super().train(mode)

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> DiagonalGaussian:
        """As every optimiser's; with a full covariance a :class:`DenseGaussian`."""
        if not isinstance(self._sampler, DenseSampler):
            return super().posterior(model)
        covered = list(self._covered(model))
        mean = {name: self._center(group, p, state) for name, group, _, p, state in covered}
        precision = self._sampler.precision([(group, index, p) for _, group, index, p, _ in covered])
        random = torch.cat([torch.full((p.numel(),), bool(group["perturb"])) for _, group, _, p, _ in covered])
        return DenseGaussian.from_precision(  # type: ignore[return-value]
            mean, precision, hyperparameters=self._hyperparameters(), random=random
        )

    def new_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """With a full covariance the Hessian has rows."""
        state = super().new_state(parameter, group)
        if self.defaults["covariance"] == "full":
            dense_state(state, parameter, self.param_groups)
        return state

    def start_rule(self, parameter: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """See :meth:`new_state`."""
        super().start_rule(parameter, group, state)
        if self.defaults["covariance"] == "full":
            dense_state(state, parameter, self.param_groups)

    @property
    def keeps_curvature(self) -> bool:
        """Also where the whole step must be seen before any of it is made."""
        first = self.param_groups[0]
        return super().keeps_curvature or first["covariance"] == "full" or first["correction"] != "elementwise"

    def _reset(self, attached: bool = False) -> None:
        super()._reset(attached)
        self._made = bool(getattr(self, "param_groups", ()))
        full = self.defaults["covariance"] == "full"
        if full:
            sampler = self._sampler = DenseSampler(self)
            self._gradients = DenseGradients(self, sampler)
        if self.defaults["hessian"] != "reparameterized":
            self._source = DenseHessianSource(self) if full else HessianSource(self)
