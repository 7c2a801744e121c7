"""Anchored ensembles: modes of randomised posteriors, whose spread is that of the posterior."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.checks import check, check_count, check_new, check_pair, check_positive, is_positive
from bayesadam.core.layout import INIT
from bayesadam.functional.initial_priors import initial_priors
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.optim import half_cosine
from bayesadam.population import Population, initialize, train
from bayesadam.posterior import DenseGaussian, DiagonalGaussian, Mixture, PartialGaussian
from bayesadam.posterior.gaussian_posterior import GaussianPosterior
from bayesadam.posthoc import LaplaceApproximation
from bayesadam.predictive.pairs import batches

Pair = tuple[Tensor, Tensor]

NEWTON_STEPS = 50
"""Maximum number of Newton steps for the weights of a last layer; with Gaussian noise there are two."""

CLOSE = 1e-6
"""Squared distance to the mode of a last layer, in posterior standard deviations, below which the search ends."""

_TARGETS, _WEIGHTS = 2, 3
"""Purposes of draws besides the anchors, which are coordinates of the noise."""


def anchored_ensemble(
    make_model: Callable[[], nn.Module],
    data: Pair,
    *,
    likelihood: Likelihood,
    members: int = 20,
    prior_precision: float | str = 1.0,
    last_layer: bool = True,
    steps: int = 2_000,
    batch_size: int = 1024,
    lr: float = 0.01,
    seed: int = 0,
    progress: bool | None = None,
) -> Mixture:
    """Train an ensemble whose members differ as much as draws from the posterior do.

    Every member ``m`` minimises a randomised version of the negative log posterior density, with a draw ``theta_m`` of
    the weights from the prior, its anchor, in the place of the prior's mean::

        -sum_n log p(y_n + e_mn | x_n, theta) + lambda / 2 |theta - theta_m|^2,    theta_m ~ N(0, I / lambda)

    where ``e_mn`` is a draw of the likelihood's noise (Lu and Van Roy 2017 and Osband et al. 2018; Pearce et al. 2020,
    who named the anchors, leave the targets as they are). For a model that is linear in its weights with Gaussian noise
    the minimum is an exact draw from the posterior. Where targets have no noise that could be added to them (classes,
    counts), the log-likelihoods of the data points get random weights instead, independent standard exponential ones
    divided by their mean (Newton and Raftery 1994). The perturbation of the gradient then has the covariance of the
    scores, which is the Fisher information where the model describes the data.

    With ``last_layer``, the weights of the last linear layer are not drawn but integrated out: given a member's
    features, they have their own posterior, from the data as they are. It is exact for Gaussian noise, and a Laplace
    approximation otherwise. The variance within a member is then not estimated from a few draws.

    All members are trained at once (:func:`bayesadam.population.train`) by Adam. Each starts from the initial weights
    of its own network from ``make_model``, and the learning rate falls to zero along half a cosine.

    Args:
        make_model: Function that returns a network, which takes and returns one tensor, with initial weights from
            torch's generator. Everything that is not trainable must be the same in every network.
        data: Training inputs and targets ``(x, y)``.
        likelihood: Likelihood of the targets given the outputs, without learned parameters.
        members: Number of members.
        prior_precision: ``lambda`` of the prior ``N(0, 1 / lambda)`` of every weight. With ``"init"``, each parameter
            has its own prior, with ten times the variance of its values in a new network (rounded to a power of two; if
            the values are equal, their variance is taken as 1).
        last_layer: Whether the last linear layer that the network calls is integrated out. Otherwise members are point
            masses.
        steps: Minimum number of steps of Adam.
        batch_size: Number of data points per minibatch.
        lr: Initial learning rate.
        seed: Seed of initial weights, anchors, perturbations and the order of the data.
        progress: Whether to show a progress bar; by default it is shown in a terminal.

    Returns:
        An equal mixture of one posterior per member: a Gaussian over the weights of the last layer
        (:class:`bayesadam.posterior.PartialGaussian`), or a point mass.

    Raises:
        ValueError: A number is out of range; ``likelihood`` is not a likelihood or has learned parameters; the data are
            not a pair or do not match; or ``make_model`` is no function that returns new networks, or these have
            different constants or no such last layer.
        FloatingPointError: A gradient is not finite.
    """
    for name, value in {"members": members, "steps": steps, "batch_size": batch_size}.items():
        check_count(name, value)
    check_positive("lr", lr)
    if prior_precision != INIT:
        check("prior_precision", prior_precision, f"a positive, finite number or {INIT!r}", is_positive)
    check_likelihood(likelihood, learned=False)
    check_pair(data)
    models = _made(make_model, range(seed, seed + members))
    prior = prior_of(models[0], prior_precision)
    if last_layer:
        _curvature(models[0], (data[0][:1], data[1][:1]), likelihood)  # raises if there is no such layer
    randomized = [perturbed(data, likelihood, member, seed) for member in range(members)]
    weights = [weight for _, weight in randomized if weight is not None]
    epochs = math.ceil(steps / math.ceil(len(data[0]) / batch_size))
    nets = train(
        models,
        [pair for pair, _ in randomized],
        likelihood=likelihood,
        method="adam",
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        lr_schedule=half_cosine,
        prior=anchored(prior, members, seed),
        sample_weight=weights or None,
        seed=seed,
        progress=progress,
    )
    settings = {
        "method": "anchored_ensemble",
        "prior_precision": prior_precision,
        "steps": steps,
        "batch_size": batch_size,
        "lr": lr,
        "seed": seed,
    }
    return Mixture(_posteriors(nets, models[0], data, likelihood, prior, last_layer), hyperparameters=settings)


def _made(make_model: Callable[[], nn.Module], seeds: range) -> list[nn.Module]:
    """Create the networks, and check that everything that is not trained is the same in all of them."""
    models = initialize(make_model, seeds=seeds)
    check_new(models)
    constants = _constants(models[0])
    for model in models:
        for name, value in _constants(model).items():
            if name not in constants or not torch.equal(value, constants[name]):
                raise ValueError(f"make_model must give networks with the same constants, got others for {name!r}")
    return models


def _constants(model: nn.Module) -> dict[str, Tensor]:
    return {**{name: p for name, p in model.named_parameters() if not p.requires_grad}, **dict(model.named_buffers())}


def prior_of(model: nn.Module, prior_precision: float | str) -> DiagonalGaussian:
    """Return the prior of the trainable weights."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("make_model must give networks with trainable parameters, got none")
    values = list(trained.values())
    precisions = initial_priors(values) if isinstance(prior_precision, str) else [prior_precision] * len(values)
    variances = [torch.full_like(p, 1.0 / precision) for p, precision in zip(values, precisions, strict=True)]
    variance = dict(zip(trained, variances, strict=True))
    return DiagonalGaussian({name: torch.zeros_like(p) for name, p in trained.items()}, variance)


def anchored(prior: DiagonalGaussian, members: int, seed: int) -> list[DiagonalGaussian]:
    """Return the prior of every member, whose mean is a draw from the actual one: the member's anchor."""
    anchors = prior.sample(members, seed=seed)
    return [DiagonalGaussian({k: v[member] for k, v in anchors.items()}, prior.variance) for member in range(members)]


def perturbed(data: Pair, likelihood: Likelihood, member: int, seed: int) -> tuple[Pair, Tensor | None]:
    """Return the data of a member, and random weights of its data points if the targets cannot be perturbed."""
    x, y = data
    learned = any(parameter.requires_grad for parameter in likelihood.parameters())
    if likelihood.defines("rescaled") and likelihood.defines("mean_and_log_variance") and not learned:
        scale = (0.5 * likelihood.mean_and_log_variance(y)[1]).exp()  # y is output plus noise
        return (x, y + scale * _normal(y, member, _TARGETS, seed)), None
    rows = torch.empty(len(y), dtype=torch.float64, device=y.device)
    return data, -torch.special.log_ndtr(_normal(rows, member, _WEIGHTS, seed))  # standard exponential


def _normal(like: Tensor, member: int, purpose: int, seed: int) -> Tensor:
    draw = noise.normal(seed, purpose, member, 0, like.shape, stream=noise.POSTERIOR, device=like.device)
    return draw.to(like.dtype)


def _posteriors(
    nets: Population,
    model: nn.Module,
    data: Pair,
    likelihood: Likelihood,
    prior: DiagonalGaussian,
    last_layer: bool,
) -> list[GaussianPosterior]:
    """Return the posterior of every member."""
    if not last_layer:
        return [DiagonalGaussian.point_mass(q.mean).with_buffers(q.buffers) for q in nets.posteriors]
    return [integrated(model, q, data, likelihood, prior) for q in nets.posteriors]


def integrated(
    model: nn.Module, trained: GaussianPosterior, data: Pair, likelihood: Likelihood, prior: DiagonalGaussian
) -> GaussianPosterior:
    """Return the posterior of a member, whose trained weights are the mean of ``trained``, over its last layer."""
    x, y = (part.double() if part.is_floating_point() else part for part in data)
    model = copy.deepcopy(model).double()
    with torch.no_grad():
        for name, weight in trained.match(model).items():
            weight.copy_(trained.mean[name])
    mode = _mode(model, (x, y), likelihood, prior).to(dtype=next(iter(prior.mean.values())).dtype)
    return mode.with_buffers(trained.buffers)


def _mode(model: nn.Module, data: Pair, likelihood: Likelihood, prior: DiagonalGaussian) -> GaussianPosterior:
    """Return the Laplace approximation over the last layer at its mode, which Newton's method finds.

    For a Gaussian likelihood the first step is exact. The curvature is the Fisher information, so that steps go
    downhill; a step that is too long is halved.

    Raises:
        RuntimeError: The mode is not found.
    """
    weights = dict(model.named_parameters())
    before, step, least = torch.zeros(0), torch.zeros(0), math.inf
    for _ in range(NEWTON_STEPS):
        fitted = _curvature(model, data, likelihood)
        layer = [weights[name] for name in fitted.random]
        theta = nn.utils.parameters_to_vector(layer).detach()
        decay = torch.cat([prior.variance[name].double().reciprocal().flatten() for name in fitted.random])
        value = 0.5 * (decay * theta.square()).sum().item() - fitted.log_likelihood
        if value > least + CLOSE:
            step = 0.5 * step
        else:
            least, before = value, theta
            gradient = decay * theta - _score(model, layer, data, likelihood)
            assert isinstance(fitted.curvature, Tensor)
            precision = fitted.curvature + decay.diag()
            step = torch.linalg.solve(precision, gradient)
            if gradient @ step <= CLOSE:
                return _around(fitted, precision)
        nn.utils.vector_to_parameters(before - step, layer)
    raise RuntimeError(
        f"the mode of the last layer must be reached in {NEWTON_STEPS} Newton steps, got a log density of {-least!r}"
    )


def _curvature(model: nn.Module, data: Pair, likelihood: Likelihood) -> LaplaceApproximation:
    return LaplaceApproximation(model, data, likelihood=likelihood, structure="last_layer")


def _around(fitted: LaplaceApproximation, precision: Tensor) -> GaussianPosterior:
    settings = {"method": "laplace", "structure": "last_layer"}
    random = DenseGaussian.from_precision(
        {name: fitted.mean[name] for name in fitted.random}, precision, hyperparameters=settings
    )
    fixed = {name: value for name, value in fitted.mean.items() if name not in fitted.random}
    return PartialGaussian(random, fixed, order=list(fitted.mean)) if fixed else random


def _score(model: nn.Module, layer: list[nn.Parameter], data: Pair, likelihood: Likelihood) -> Tensor:
    """Return the gradient of the log-likelihood with respect to the weights of a layer."""
    total = torch.zeros(())
    model.eval()
    for inputs, target in batches(data, layer[0].device):
        density = likelihood.log_density(model(inputs), target).sum()
        total = total + torch.cat([part.flatten() for part in torch.autograd.grad(density, layer)])
    return total
