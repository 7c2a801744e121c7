"""EVON: variational online Newton in the eigenbases of Kronecker factors, with IVON's rule there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from bayesadam.checks import is_whole
from bayesadam.engine import bases
from bayesadam.engine.engine import Engine
from bayesadam.engine.rotated import RotatedGradients, RotatedStore, RotatedWeights
from bayesadam.engine.rule import Option
from bayesadam.engine.run import Runner
from bayesadam.engine.store import Slot
from bayesadam.functional import eigenbasis
from bayesadam.optim.arguments import OfEVON
from bayesadam.optim.ivon import IVON, IVONRule
from bayesadam.optim.recipes import HOTTEST, NewtonRate, Recipes
from bayesadam.posterior import DiagonalGaussian
from bayesadam.posterior.kronecker import KroneckerGaussian
from bayesadam.sharding import is_sharded

if TYPE_CHECKING:
    from typing_extensions import Unpack


class EVONRule(IVONRule):
    """:class:`IVONRule` for the coordinates ``X = L' M R`` of the mean ``M`` of every weight matrix::

        theta = M + L (sigma * eps) R'                        1 / sigma^2 = N (s + d)
        X, m, s <- IVON's step with the gradient L' g R and the noise eps
        D = g - m_hat                                         m_hat from before this step
        A, B <- running averages of D D' and D' D
        L, R <- eigenvectors of A and B                       every refresh_every steps

    When the bases change, with ``S = L_new' L`` and ``T = R_new' R``, mean and momentum become ``S X T'`` and
    ``S m T'``, and the Hessian ``(S * S) s (T * T)'``: the diagonal of the same matrix in the new bases, which
    minimises ``KL(q_new || q_old)``. ``*`` multiplies element by element.

    The ``c``-th gradient in ``A`` and ``B`` has the weight ``3 / (c + 2)``, as the curvature of IVON's running average.
    """

    options = (
        *IVONRule.options,
        Option("refresh_every", 200, "a whole number of at least 1", is_whole),
        Option("collect_every", 10, "a whole number of at least 1", is_whole),
        Option("max_side", 1024, "a whole number of at least 1", is_whole),
        Option("rank", 96, "a whole number of at least 1", is_whole),
    )


class EVON(IVON):
    """Improved variational online Newton in the eigenbases of Kronecker factors.

    The weights of a matrix are correlated in this posterior: its covariance is
    ``(L kron R) diag(sigma^2) (L kron R)'``, where ``L`` and ``R`` are orthogonal, as in a Kronecker-factored Laplace
    approximation, and every ``sigma`` is learned. :meth:`posterior` returns a :class:`KroneckerGaussian`. A weight of
    more than two axes is a matrix of its first axis and all others, as in a convolution. Vectors, such as biases, are
    independent, as are groups with ``perturb=False`` without noise; their steps are IVON's. If a matrix has one row, as
    in logistic regression, the covariance of its weights is full.

    Arguments and ways to train are those of :class:`IVON`. So are the recipes, but with ``"learned"`` the temperature
    is 0.1 and the learning rate twice IVON's: steps in the eigenbases are shorter in directions of large curvature and
    longer in all others, where a low temperature lets the network fit the noise of the data.

    EVON's own options are

    - ``refresh_every``: number of steps from one computation of the bases to the next; 200 by default. Before the
      first of these, bases are computed at the steps 1, 2, 4, 8, and so on.
    - ``collect_every``: number of steps from one gradient that is added to the factors to the next; 10 by default.
    - ``max_side``: sides of a matrix with more rows or columns than this have no basis; 1,024 by default.
    - ``rank``: number of leading eigenvectors in a basis, 96 by default. The other vectors of the basis complete these
      by reflections that change the coordinates as little as possible. A side of less than twice as many rows or
      columns has all its eigenvectors.

    All of these can differ between groups; ``max_side`` and ``rank`` must not change after the first step. For a matrix
    with ``n`` rows or columns and a rank ``k``, a basis takes ``min(n, 2 k)`` and a factor ``n`` times the memory of
    ``n`` weights, and the state 4 bytes per weight more than IVON's. Drop-in training (:meth:`train`) is the fastest
    way to train: blocks and closures turn the mean back in every step.

    A ``prior`` posterior, which must be a :class:`DiagonalGaussian`, is exact in the gradient. Of its precision only
    the diagonal in the bases is kept.

    Raises:
        ValueError: As in :class:`IVON`; or ``low_memory`` or ``rank_samples`` is True, or a parameter is sharded.
    """

    rule = EVONRule()
    recipes: ClassVar[Recipes] = {
        "learned": {**IVON.recipes["learned"], "lr": NewtonRate(0.2), "temperature": HOTTEST},
        "paper": IVON.recipes["paper"],
    }
    elementwise = False

    if TYPE_CHECKING:

        def __init__(
            self, params: Any, lr: float | Tensor | None = None, *, num_data: float, **options: Unpack[OfEVON]
        ) -> None: ...

    def check_group(self, group: dict[str, Any]) -> None:
        """Also refuse what needs a mean for every element of the weights."""
        super().check_group(group)
        for name in ("low_memory", "rank_samples"):
            if group[name]:
                raise ValueError(f"{name} must be False for {type(self).__name__}, got True")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as in the base class.

        Raises:
            ValueError: As in the base class; or a parameter is sharded.
        """
        super().add_param_group(param_group)
        for position, parameter in enumerate(self.param_groups[-1]["params"]):
            if is_sharded(parameter):
                self.param_groups.pop()
                raise ValueError(f"parameters of {type(self).__name__} must not be sharded, got one, number {position}")

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
        return KroneckerGaussian(mean, eigenvalues, *found, hyperparameters=self._hyperparameters())  # type: ignore[return-value]
