"""``fawn``: a network that gives the mean and the variance of its outputs in one pass, without sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bayesadam.bayes_by_backprop.loss import Inputs, call, kl_scale
from bayesadam.bayes_by_backprop.parameters import InitialStd, around
from bayesadam.curvature.observe import without_autocast
from bayesadam.likelihoods import Likelihood
from bayesadam.moments.graph import Graph
from bayesadam.moments.objectives import OBJECTIVES, log_fit
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

    def loss(
        self,
        inputs: Inputs,
        target: Tensor,
        *,
        likelihood: Likelihood,
        num_data: float,
        objective: str = "ropd",
        kl_weight: float = 1.0,
        temperature: float = 1.0,
        wrapper: nn.Module | None = None,
    ) -> Tensor:
        """Training loss per data point, 0-d: the mean of ``-fit``, plus ``kl_weight * temperature * KL / num_data``.

        ``torch.compile`` takes this method, or the network, as a whole, since the loss has many small operations.

        Args:
            inputs: A tensor; a tuple (``net(*inputs)``); or a dict (``net(**inputs)``).
            target: Targets, in the form that the likelihood takes.
            likelihood: One of :mod:`bayesadam.likelihoods`, or your own. The noise of a ``Gaussian`` may be learned:
                give its parameters to the optimiser as well.
            num_data: Number of data points in the training set.
            objective: ``"ropd"``: regularised optimisation of the predictive distribution (Bayer et al. 2015, section
                3.4): ``fit = log p(y | x)`` with the weights integrated out. The variance of the weights then describes
                the scatter of the targets, which improves densities more than means. ``"vi"``: variational inference
                (section 3.3): ``fit = E log p(y | x, weights)``. Both have a closed form for Gaussian noise; for
                classes see :func:`log_predictive` and :func:`expected_log_likelihood`.
            kl_weight: Factor of this minibatch's KL divergence, from :func:`bayesadam.kl_weights` or
                :func:`bayesadam.kl_warmup`; not negative.
            temperature: Factor of the KL divergence, in [0, 1]; 1 is variational inference.
            wrapper: Module around this one that is called in its place, such as ``DistributedDataParallel(net)`` or
                ``torch.compile(net)``.

        Raises:
            ValueError: A number or an option is out of its range, ``wrapper`` does not contain this network, or a
                target does not fit.
        """
        if objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {OBJECTIVES}, got {objective!r}")
        scale = kl_scale(num_data, kl_weight, temperature)
        fit = log_fit(objective, likelihood, call(around(self, wrapper), inputs), target)
        return -fit.mean() + (scale * self.kl_divergence()).to(fit) if scale else -fit.mean()

    def posterior(self) -> DiagonalGaussian | BernoulliPosterior:
        """The posterior as it stands, by the model's names: copies, in float32 or wider.

        Weights that are trained without noise have no variance.
        """
        return self.weights.posterior({"method": "FAWN"})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_graph": None}


def fawn(
    model: nn.Module,
    *,
    prior: float | Prior | DiagonalGaussian | None = None,
    weights: str = "gaussian",
    initial_std: InitialStd = 0.05,
    covariance: bool = False,
    select: Callable[[str], bool] | None = None,
    scales: str = "outputs",
) -> MomentModule:
    """Fast adaptive weight noise (Bayer et al. 2015): give weights a distribution, and train it without sampling.

    Train ``net = fawn(model)`` with any optimiser over ``net.parameters()`` and the loss :meth:`MomentModule.loss`;
    ``net.posterior()`` then goes with ``model`` into :func:`bayesadam.predict`.

    Args:
        model: Linear and convolution layers, embeddings, element-wise functions, average and max pooling, dropout,
            batch normalisation in eval mode, sums and products (of what counts as independent, as in a residual
            network; not of a value and a function of itself), put together in any fixed way. It becomes a part of the
            result and is not copied.
            Parameters that are frozen at this moment never become random.
        prior: ``None``: one Gaussian for all weights, always the best one for them
            (:class:`bayesadam.priors.EmpiricalGaussianPrior`). Another of :mod:`bayesadam.priors` that has a divergence
            in closed form; a number, the precision of a Gaussian prior; or a posterior to continue from. With Bernoulli
            weights the probability of a weight being there; ``None``: the best one.
        weights: ``"gaussian"``: an independent Gaussian around every weight. ``"bernoulli"``: every weight is there or
            not, and when it is it has a value that it shares with others; half as many parameters, see
            :class:`bayesadam.moments.BernoulliWeights`.
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
    return MomentModule(BernoulliWeights(model, prior, select, scales=scales), covariance=covariance)
