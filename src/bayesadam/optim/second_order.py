"""The base class of optimisers with a Hessian, with the options that choose where the Hessian comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesadam.engine.dense import DenseGradients, DenseHessianSource, DenseStore, DenseWeights, layout
from bayesadam.engine.engine import Engine
from bayesadam.engine.gradients import Gradients
from bayesadam.engine.ranks import LocalSource
from bayesadam.engine.run import Runner
from bayesadam.engine.sources import HessianSource
from bayesadam.engine.store import Slot, Store
from bayesadam.engine.weights import Weights
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.posterior import DenseGaussian, DiagonalGaussian
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.sharding import is_sharded

_SHARDED = {"hessian": "reparameterized", "covariance": "diagonal", "correction": "elementwise"}
_SHARED_BY_A_MATRIX = ("num_data", "betas", "temperature", "maximize")


class SecondOrderOptimizer(PerturbedOptimizer):
    """Base class of optimisers whose curvature is a Hessian of the loss; :class:`VON` explains the options.

    Attributes:
        covariances: Covariances that the method supports. With ``"full"`` the step is VON's.
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
        options |= {"hessian": hessian, "probes": probes, "correction": correction, "covariance": covariance}
        super().__init__(params, lr, num_data=num_data, **options)
        self._made = True

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check the options of the Hessian."""
        for name in ("hessian", "covariance"):
            if group[name] != self.defaults[name]:
                raise ValueError(f"{name} must be the same in all groups, got {group[name]!r}")
        super().check_group(group)
        if group["covariance"] not in self.covariances:
            raise ValueError(f"covariance must be one of {self.covariances}, got {group['covariance']!r}")
        for name, ordinary in _SHARDED.items() if group["rank_samples"] else ():
            if name != "correction" and group[name] != ordinary:
                raise ValueError(f"{name} must be {ordinary!r} with rank_samples=True, got {group[name]!r}")
        if group["low_memory"] and group["covariance"] == "full":
            raise ValueError("low_memory must be False when covariance='full', got True")
        if group["covariance"] == "full" and group["hessian"] == "hutchinson":
            raise ValueError("hessian must be 'exact' or 'reparameterized' when covariance='full', got 'hutchinson'")
        if group["covariance"] == "full" and group["correction"] == "backtracking":
            raise ValueError("correction must be 'elementwise' or None when covariance='full', got 'backtracking'")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as in the base class. With a full covariance this is possible only during construction.

        Raises:
            ValueError: As in the base class; or parameters are sharded with second derivatives or a full covariance, or
                there are too many weights for a full covariance.
            RuntimeError: As in the base class; or the covariance is full, and its matrix already has its size.
        """
        full = self.defaults["covariance"] == "full"
        if full and self._made and not self._engine.open:
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

    def _gaussian(self, covered: Sequence[tuple[str, Slot, dict[str, Any]]]) -> DiagonalGaussian:
        """The posterior, as in the base class; with a full covariance a :class:`DenseGaussian`."""
        store = self._engine.store
        if not isinstance(store, DenseStore):
            return super()._gaussian(covered)
        mean = {name: self._center(slot, state) for name, slot, state in covered}
        precision = store.precision([slot for _, slot, _ in covered])
        random = torch.cat([torch.full((s.parameter.numel(),), bool(s.group["perturb"])) for _, s, _ in covered])
        return DenseGaussian.from_precision(  # type: ignore[return-value]
            mean, precision, hyperparameters=self._hyperparameters(), random=random
        )

    def _make_engine(self) -> Engine:
        self._made = bool(getattr(self, "param_groups", ()))
        full = self.defaults["covariance"] == "full"
        store = DenseStore(self, self.rule) if full else Store(self, self.rule)
        weights = DenseWeights(store, Runner()) if isinstance(store, DenseStore) else Weights(store, Runner())
        source: HessianSource | LocalSource | None = None
        if self.defaults["hessian"] != "reparameterized":
            make = DenseHessianSource if full else HessianSource
            source = make(store, lambda: gradients.collected)  # type: ignore[arg-type]
        elif self.defaults.get("rank_samples", False):
            source = LocalSource(store, weights, lambda: gradients.collected)
        kind = DenseGradients if full else Gradients
        gradients = kind(store, weights, source)  # type: ignore[arg-type]
        return Engine(store, weights, gradients, source)
