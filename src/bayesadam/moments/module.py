"""``fawn``: networks that compute the mean and the variance of their outputs in one pass, without sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bayesadam.bayes_by_backprop.loss import kl_scale
from bayesadam.bayes_by_backprop.parameters import InitialStd, around
from bayesadam.checks import check_model
from bayesadam.functional.autocast import without_autocast
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.calls import Inputs, arguments
from bayesadam.moments.graph import Graph
from bayesadam.moments.objectives import OBJECTIVES
from bayesadam.moments.values import Moments
from bayesadam.moments.weights import BernoulliWeights, GaussianWeights
from bayesadam.posterior import BernoulliPosterior, DiagonalGaussian
from bayesadam.priors import Prior

WEIGHTS = ("gaussian", "bernoulli")


class MomentModule(nn.Module):
    """A network whose random weights are integrated out in closed form; :func:`fawn` makes one.

    ``parameters()`` contains the parameters of the random weights, the weights that are trained without noise, and the
    parameters of the prior, for any optimiser. Training and evaluation mode differ in dropout only, whose noise is
    propagated as well.

    Attributes:
        weights: Weights of the network, with the network itself as ``model``.
        covariance: Whether the outputs of a data point have a full covariance.
    """

    def __init__(self, weights: GaussianWeights | BernoulliWeights, *, covariance: bool = False) -> None:
        super().__init__()
        self._graph: Graph | None = Graph(weights.model)
        if covariance and not self._graph.has_covariance:
            raise ValueError("covariance must be False unless nn.Linear after other layers gives the outputs, got True")
        self.weights = weights
        self.covariance = covariance

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return f"covariance={self.covariance}"

    def forward(self, *args: Any, **kwargs: Any) -> Moments:
        """Return the moments of the model's output: mean and variance, and the covariance if it was requested.

        The inputs are tensors or :class:`Moments`, in the dtype of the weights; autocast is disabled. With one hidden
        layer the moments are exact, if those of its activation are. With more layers, units are treated as independent
        and Gaussian.

        Raises:
            ValueError: The model adds or multiplies a random value and itself, or a function of itself.
        """
        if self._graph is None:
            self._graph = Graph(self.weights.model)
        with without_autocast([next(self.parameters())]):
            model, weights = self.weights.model, self.weights.moments()
            return self._graph.run(model, weights, args, kwargs, covariance=self.covariance)

    def train(self, mode: bool = True) -> MomentModule:
        """Set training or evaluation mode; the computation of the model may depend on it."""
        self._graph = None
        return super().train(mode)

    def kl_divergence(self) -> Tensor:
        """``KL(q || prior)`` in nats, summed over the random weights, not averaged: 0-d float64, differentiable."""
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
        """Return the training loss per data point, 0-d.

        It is the mean of ``-fit`` plus ``kl_weight * temperature * KL / num_data``.

        Compile this method or the network as a whole (``torch.compile``), since the loss has many small operations.

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
            raise ValueError(f"objective must be one of {tuple(OBJECTIVES)}, got {objective!r}")
        scale = kl_scale(num_data, kl_weight, temperature)
        args, kwargs = arguments(inputs)
        fit = OBJECTIVES[objective](likelihood, around(self, wrapper)(*args, **kwargs), target)
        return -fit.mean() + (scale * self.kl_divergence()).to(fit) if scale else -fit.mean()

    def posterior(self) -> DiagonalGaussian | BernoulliPosterior:
        """Return the current posterior by the model's names, with copies in float32 or wider.

        The variance of weights that are trained without noise is 0.
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
    scales: str = "inputs",
) -> MomentModule:
    """Return a network with random weights that are trained without sampling (FAWN: Bayer et al. 2015).

    Train ``net = fawn(model)`` with any optimiser over ``net.parameters()`` and the loss :meth:`MomentModule.loss`;
    then pass ``model`` and ``net.posterior()`` to :func:`bayesadam.predict`.

    Args:
        model: Linear and convolution layers, embeddings, element-wise functions, average and max pooling, dropout,
            batch normalisation in eval mode, and sums and products (of values that are treated as independent, as in a
            residual network, but not of a value and a function of itself), combined in any fixed way. The model becomes
            a part of the result and is not copied. Parameters that are frozen at this moment do not become random.
        prior: Prior of the weights. With ``None`` it is one Gaussian for all weights, which maximises the ELBO
            (:class:`bayesadam.priors.EmpiricalGaussianPrior`). It may be another prior of :mod:`bayesadam.priors` whose
            divergence has a closed form; a number, the precision of a Gaussian prior; or a posterior to continue from.
            For Bernoulli weights it is the probability that a weight is not 0; with ``None`` it is the one that
            maximises the ELBO.
        weights: ``"gaussian"``: every weight has an independent Gaussian distribution. ``"bernoulli"``: every weight is
            either 0 or a value that it shares with other weights, which takes half as many parameters; see
            :class:`bayesadam.moments.BernoulliWeights`.
        initial_std: Standard deviation of Gaussian weights at the start: a number, numbers or tensors by name, or a
            function of a parameter's name and the parameter.
        covariance: Whether to compute the full covariance of the outputs of a data point ("Co-FAWN"), for several
            correlated targets. The last layer must be ``nn.Linear``.
        select: Function that selects the random parameters by name; the other parameters are trained without noise.
        scales: Whether Bernoulli weights have a value per input (``"inputs"``) or per output (``"outputs"``) of a
            layer, which the paper does not state. With ``"outputs"`` the mean of a network with one output and one
            hidden layer, whose activation is convex (as ReLU is), can only be convex or concave.

    Raises:
        ValueError: An option is out of its range, no parameter is random, or moments cannot be propagated through a
            layer or function (the message names the first one).
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {WEIGHTS}, got {weights!r}")
    check_model(model)
    Graph(model)  # refuses a model before its parameters are touched
    if weights == "gaussian":
        return MomentModule(GaussianWeights(model, prior, initial_std, select), covariance=covariance)
    if isinstance(prior, nn.Module | DiagonalGaussian):
        raise ValueError(f"prior must be a probability or None for Bernoulli weights, got {type(prior).__name__}")
    return MomentModule(BernoulliWeights(model, prior, select, scales=scales), covariance=covariance)
