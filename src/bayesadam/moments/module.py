"""``fawn``: a network that gives the mean and the variance of its outputs in one pass, without sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bayesadam.bayes_by_backprop.parameters import InitialStd
from bayesadam.curvature.observe import without_autocast
from bayesadam.moments.graph import Graph
from bayesadam.moments.values import Moments
from bayesadam.moments.weights import BernoulliWeights, GaussianWeights
from bayesadam.posterior import BernoulliPosterior, DiagonalGaussian
from bayesadam.priors import Prior

WEIGHTS = ("gaussian", "bernoulli")


class MomentModule(nn.Module):
    """A network whose random weights are integrated out in closed form; :func:`fawn` makes one.

    ``parameters()`` has what describes the random weights, those that are trained without noise, and what the prior
    learns, for any optimiser. Training and evaluation mode differ in dropout only, whose noise is propagated too.

    Attributes:
        weights: Of the network; it has the ``model``.
        covariance: Whether outputs of a data point have a full covariance.
    """

    def __init__(self, weights: GaussianWeights | BernoulliWeights, *, covariance: bool = False) -> None:
        super().__init__()
        self._graph: Graph | None = Graph(weights.model)
        if covariance and not self._graph.has_covariance:
            raise ValueError("covariance must be False unless nn.Linear after other layers gives the outputs, got True")
        self.weights = weights
        self.covariance = covariance

    def extra_repr(self) -> str:
        """Whether outputs have a covariance."""
        return f"covariance={self.covariance}"

    def forward(self, *args: Any, **kwargs: Any) -> Moments:
        """Moments of the model's output: its mean and variance, and its covariance if that was asked for.

        The inputs are certain, or :class:`Moments` themselves, in the dtype of the weights: autocast is left out. With
        one hidden layer the moments are exact, as far as those of its activation are; with more, units are taken as
        independent and as Gaussian.

        Raises:
            ValueError: The model adds or multiplies what is random and itself, or a function of itself.
        """
        if self._graph is None:
            self._graph = Graph(self.weights.model)
        with without_autocast([next(self.parameters())]):
            model, weights = self.weights.model, self.weights.moments()
            return self._graph.run(model, weights, args, kwargs, covariance=self.covariance)

    def train(self, mode: bool = True) -> MomentModule:
        """Training or evaluation mode; the model may compute something else in each."""
        self._graph = None
        return super().train(mode)

    def kl_divergence(self) -> Tensor:
        """``KL(q || prior)`` in nats, summed over the random weights, never a mean: 0-d float64, differentiable."""
        return self.weights.kl_divergence()

    def posterior(self) -> DiagonalGaussian | BernoulliPosterior:
        """The posterior as it stands, by the model's names: copies, in float32 or wider.

        Weights that are trained without noise have no variance.
        """
        return self.weights.posterior({"method": "FAWN"})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_graph": None}


def fawn(
    model: nn.Module,
    weights: str = "gaussian",
    prior: float | Prior | DiagonalGaussian | None = None,
    *,
    initial_std: InitialStd = 0.05,
    covariance: bool = False,
    select: Callable[[str], bool] | None = None,
    scales: str = "outputs",
) -> MomentModule:
    """Fast adaptive weight noise (Bayer et al. 2015): give weights a distribution, and train it without sampling.

    Train ``net = fawn(model)`` with any optimiser over ``net.parameters()`` and the loss :func:`bayesadam.fawn_loss`;
    ``net.posterior()`` then goes with ``model`` into :func:`bayesadam.predict`.

    Args:
        model: Linear and convolution layers, embeddings, element-wise functions, average and max pooling, dropout,
            batch normalisation in eval mode, sums and products (of what counts as independent, as in a residual
            network; not of a value and a function of itself), put together in any fixed way. It becomes a part of the
            result and is not copied.
            Parameters that are frozen at this moment never become random.
        weights: ``"gaussian"``: an independent Gaussian around every weight. ``"bernoulli"``: every weight is there or
            not, and when it is it has a value that it shares with others; half as many parameters, see
            :class:`bayesadam.moments.BernoulliWeights`.
        prior: ``None``: one Gaussian for all weights, always the best one for them
            (:class:`bayesadam.priors.EmpiricalGaussianPrior`). Another of :mod:`bayesadam.priors` that has a divergence in
            closed form; a number, the precision of a Gaussian prior; or a posterior to continue from. With Bernoulli
            weights the probability of a weight being there; ``None``: the best one.
        initial_std: Standard deviation of Gaussian weights at the start: a number, numbers or tensors by name, or a
            function of a parameter's name and the parameter.
        covariance: Give the outputs of a data point their full covariance ("Co-FAWN"), by which several targets that
            go together are predicted together. The last layer must be ``nn.Linear``.
        select: Which parameters are random, by name; the others are trained without noise.
        scales: What the values of Bernoulli weights belong to: ``"outputs"`` or ``"inputs"`` of a layer. With
            ``"outputs"`` the mean of a network with one hidden layer and one output can only be convex or concave.

    Raises:
        ValueError: An option out of its range, no parameter that is random, or a layer or function that moments cannot
            be propagated through, the first of which is named.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {WEIGHTS}, got {weights!r}")
    if isinstance(model, nn.Module):
        Graph(model)  # refuses a model before its parameters are touched
    if weights == "gaussian":
        return MomentModule(GaussianWeights(model, prior, initial_std, select), covariance=covariance)
    if isinstance(prior, nn.Module | DiagonalGaussian):
        raise ValueError(f"prior must be a probability or None for Bernoulli weights, got {type(prior).__name__}")
    return MomentModule(BernoulliWeights(model, prior, select, scales), covariance=covariance)
