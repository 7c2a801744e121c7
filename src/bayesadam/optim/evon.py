"""EVON: variational online Newton in the eigenbases of Kronecker factors, with IVON's rule there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from bayesadam.checks import is_whole
from bayesadam.engine import bases
from bayesadam.engine.engine import Engine
from bayesadam.engine.rotated import RotatedGradients, RotatedStore, RotatedWeights
from bayesadam.engine.rule import Option
from bayesadam.engine.run import Runner
from bayesadam.engine.store import Slot
from bayesadam.functional import eigenbasis
from bayesadam.optim.hyperparameters import check_ordered
from bayesadam.optim.ivon import IVON, IVONRule
from bayesadam.optim.recipes import LEARNED, PAPER, Recipes
from bayesadam.posterior import DiagonalGaussian
from bayesadam.posterior.kronecker import KroneckerGaussian
from bayesadam.sharding import is_sharded


class EVONRule(IVONRule):
    """:class:`IVONRule` for the coordinates ``L' W R`` of every weight matrix ``W``::

        A  <- running average of D D',  B <- of D' D          D = g - m_hat, as a matrix
        L, R = eigenvectors of A and B                        every refresh_every steps
        theta = M + L (sigma * eps) R'
        (L' M R, s) <- IVON's step with the gradient L' g R and the noise eps

    When the bases change by ``T_L = L_new' L`` and ``T_R = R_new' R``, mean and momentum are rotated, and the Hessian
    becomes the diagonal of the same matrix in the new bases, ``(T_L * T_L) s (T_R * T_R)'``.
    """

    options = (
        *IVONRule.options,
        Option("refresh_every", 200, "a whole number of at least 1", is_whole),
        Option("collect_every", 10, "a whole number of at least 1", is_whole),
        Option("max_side", 1024, "a whole number of at least 1", is_whole),
        Option("rank", 96, "a whole number of at least 1", is_whole),
    )


class EVON(IVON):
    """Variational online Newton with a Kronecker-structured covariance."""

    rule = EVONRule()
    elementwise = False
    recipes: ClassVar[Recipes] = {
        "learned": {**LEARNED, "lr": 0.1, "betas": (0.9, 0.99999)},
        "paper": {**PAPER, "lr": 0.1, "betas": (0.9, 0.99999)},
    }

    def check_group(self, group: dict[str, Any]) -> None:
        """Also refuse what needs a mean for every element of the weights."""
        super().check_group(group)
        for name in ("low_memory", "rank_samples"):
            if group[name]:
                raise ValueError(f"{name} must be False for {type(self).__name__}, got True")

    def _make_engine(self) -> Engine:
        store = RotatedStore(self, self.rule)
        weights = RotatedWeights(store, Runner())
        gradients = RotatedGradients(store, weights, None)
        return Engine(store, weights, gradients, None)

    def _gaussian(self, covered: Sequence[tuple[str, Slot, dict[str, Any]]]) -> DiagonalGaussian:
        """The posterior over the parameters, a :class:`KroneckerGaussian`."""
        store = self._engine.store
        assert isinstance(store, RotatedStore)
        mean, eigenvalues = {}, {}
        found: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        for name, slot, state in covered:
            mean[name] = self._center(slot, state)
            eigenvalues[name] = store.eigenvalues(slot, state)
            for kept, basis in zip(found, bases.of(state), strict=True):
                if basis is not None:
                    kept[name] = eigenbasis.dense(basis).clone()
        return KroneckerGaussian(mean, eigenvalues, *found, self._hyperparameters())  # type: ignore[return-value]
