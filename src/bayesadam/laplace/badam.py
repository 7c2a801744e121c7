"""Badam: a posterior from the second moments that an ordinary adaptive optimiser has kept while it trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Adam, NAdam, Optimizer, RAdam, RMSprop

from bayesadam.calibration.safe import SAFE, Watched, harmless_share
from bayesadam.checks import check
from bayesadam.functional.curvature import wide
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.posterior import DiagonalGaussian
from bayesadam.posterior.wrappers import unwrapping
from bayesadam.predictive.pairs import Data
from bayesadam.sharding import full

State = Mapping[str, Any]


def badam(
    optimizer: Optimizer,
    model: nn.Module,
    *,
    num_data: float,
    prior_precision: float | str = SAFE,
    weights: str = "map",
    data: Data | None = None,
    likelihood: Likelihood | None = None,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
) -> DiagonalGaussian:
    """The diagonal Gaussian with precision ``N sqrt(v) + lambda``, ``v`` the optimiser's second moments.

    Source: Kessler et al. 2018, eq. 12 and Algorithm 1, with ``weights="map"`` and ``prior_precision=0``: there the
    prior is part of the loss, as L2 regularisation. Section 3 of the paper's second version is ``weights="mle"``.

    ``v`` is what the optimiser divides by, at its last step:

    ============================== ====================================================================
    Adam, AdamW, NAdam, RAdam      ``exp_avg_sq / (1 - b2^t)``
    with ``amsgrad=True``          ``max_exp_avg_sq / (1 - b2^t)``
    RMSprop                        ``square_avg``; minus ``grad_avg^2``, and at least 0, if centred
    Adagrad                        ``(sum - initial_accumulator_value) / t``, the mean of the squares
    ============================== ====================================================================

    The gradients must have been those of a *mean* loss; whether it was minimised or maximised does not matter, as they
    are squared. ``weight_decay`` adds its gradient before the square (except where it is decoupled), and so do
    penalties in the loss.

    The root of ``v`` stands for a curvature whose scale it does not have, so that the width is a choice. By default it
    is one that does not make the network's predictions worse; :func:`bayesadam.tune_posterior` finds a better one with
    held-out data.

    Args:
        optimizer: Of ``torch.optim``, which has trained the model; any of its implementations.
        model: Its trainable parameters get a posterior; frozen ones have none. Copied. Names are those inside wrappers
            (``DistributedDataParallel``, ``torch.compile``).
        num_data: Number of training examples ``N``, or any number of "pseudo-observations": larger is narrower.
        prior_precision: ``lambda``, of the prior ``N(0, 1 / lambda)``. 0 leaves the prior out, which needs second
            moments above 0. Or ``"safe"``: 1, and then all standard deviations are multiplied by the largest factor up
            to 1 (``hyperparameters["scaled"]``) that is harmless: with ``data``, as for :func:`bayesadam.laplace`;
            without, the noise is 5% of the weights at most, by their root mean squares in every matrix.
        weights: What the trained weights are. ``"map"``: the mode of the posterior, which becomes the mean. ``"mle"``:
            the maximum of the likelihood, the loss having had no prior; the mean is then
            ``theta sqrt(v) / (sqrt(v) + lambda / N)``.
        data: A pair ``(inputs, targets)``, or a loader of such pairs, by which the posterior is compared with the
            network itself: the default width depends on it, and where a prior precision that is given makes predictions
            clearly worse, a warning says so. Data that the network was trained on will do.
        likelihood: What the outputs mean; with ``data``.
        output: Of :func:`bayesadam.predict`; with ``data``.
        batch_size: Of :func:`bayesadam.predict`; with ``data``.

    Returns:
        Means and variances as copies, float32 or wider, of the full tensors.

    Raises:
        TypeError: An optimiser that keeps no second moments that are known here.
        ValueError: A number out of range, data without a likelihood, no trainable parameter, one that the optimiser
            does not hold or that has never had a gradient, second moments that are not finite, or ones of 0 with
            ``prior_precision=0``.
        RuntimeError: The optimiser has not stepped.
    """
    second_moments = _formula(optimizer)
    check("num_data", num_data, "a positive, finite number", lambda v: 0 < v < math.inf)
    if prior_precision != SAFE:
        rule = f"a finite number of at least 0, or {SAFE!r}"
        check("prior_precision", prior_precision, rule, lambda v: 0 <= v < math.inf)
    if data is not None:
        check_likelihood(likelihood)
    if weights not in ("map", "mle"):
        raise ValueError(f"weights must be 'map' or 'mle', got {weights!r}")
    if not any(_steps(state) > 0 for state in optimizer.state.values()):
        raise RuntimeError(f"optimizer must have trained the model, got {type(optimizer).__name__} without a step")
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    *_, inner = unwrapping(model)
    trained = {name: p for name, p in inner.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("model must have a trainable parameter, got none")
    for name, parameter in trained.items():
        if parameter not in groups:
            raise ValueError(f"optimizer must hold the model's trainable parameter {name!r}, got no such parameter")
        if not _steps(optimizer.state.get(parameter, {})) > 0:
            raise ValueError(
                f"optimizer must have stepped with a gradient of {name!r}, got none (a parameter that the loss does "
                "not depend on can be frozen)"
            )
    posterior = badam_from_moments(
        (  # one after another: the whole tensors of a sharded model are large
            (name, full(p.detach()), full(second_moments(optimizer.state[p], groups[p]))) for name, p in trained.items()
        ),
        num_data=num_data,
        prior_precision=1.0 if isinstance(prior_precision, str) else prior_precision,
        weights=weights,
        optimizer=type(optimizer).__name__,
    )
    if data is None or likelihood is None:
        return harmless_share(posterior) if prior_precision == SAFE else posterior
    watched = Watched(inner, data, likelihood, output, batch_size)
    if prior_precision == SAFE:
        return watched.harmless(posterior)
    watched.warn_of_harm(posterior)
    return posterior


@torch.no_grad()
def badam_from_moments(
    trained: Iterable[tuple[str, Tensor, Tensor]],
    *,
    num_data: float,
    prior_precision: float,
    optimizer: str,
    weights: str = "map",
) -> DiagonalGaussian:
    """What :func:`badam` computes once it has read an optimiser: the precision is ``N sqrt(v) + lambda``.

    Args:
        trained: Name, weights and second moments ``v`` of every tensor. Second moments are averages of the squared
            gradients of a mean loss, corrected for their bias, and of the weights' shape. Both are copied.
        num_data: ``N``, positive and finite.
        prior_precision: ``lambda``, finite and at least 0.
        optimizer: Whose moments these are; for the posterior's hyper-parameters.
        weights: ``"map"`` or ``"mle"``; see :func:`badam`.

    Returns:
        Means and variances by these names, float32 or wider.

    Raises:
        ValueError: Second moments that are not finite, or ones of 0 with ``prior_precision=0``.
    """
    mean, variance = {}, {}
    for name, value, moments in trained:
        root = _wide(moments).sqrt_()
        _check_root(root, name, prior_precision)
        mean[name] = _wide(value)
        if weights == "mle":
            mean[name] *= root / (root + prior_precision / num_data)
        variance[name] = root.mul_(num_data).add_(prior_precision).reciprocal_()
    told = {"num_data": num_data, "prior_precision": prior_precision, "weights": weights}
    return DiagonalGaussian(mean, variance, {"method": "badam", "optimizer": optimizer, **told})


def unbiased(exp_avg_sq: Tensor, beta: float, steps: float) -> Tensor:
    """Adam's second moments without the bias of their start at 0: ``exp_avg_sq / (1 - b2^t)``, float32 or wider."""
    return _wide(exp_avg_sq).div_(1.0 - float(beta) ** steps)


def _adam(state: State, group: State) -> Tensor:
    moments = state["max_exp_avg_sq" if group.get("amsgrad", False) else "exp_avg_sq"]
    return unbiased(moments, group["betas"][1], _steps(state))


def _rmsprop(state: State, group: State) -> Tensor:
    moments = _wide(state["square_avg"])
    return moments.sub_(_wide(state["grad_avg"]).square_()).clamp_min_(0.0) if group["centered"] else moments


def _adagrad(state: State, group: State) -> Tensor:
    moments = _wide(state["sum"]).sub_(group["initial_accumulator_value"])
    return moments.clamp_min_(0.0).div_(_steps(state))


FORMULAE: dict[type[Optimizer], Callable[[State, State], Tensor]] = {
    Adam: _adam,  # and AdamW, which is one
    NAdam: _adam,
    RAdam: _adam,
    RMSprop: _rmsprop,
    Adagrad: _adagrad,
}


def _formula(optimizer: object) -> Callable[[State, State], Tensor]:
    for cls, formula in FORMULAE.items():
        if isinstance(optimizer, cls):
            return formula
    hint = " (it has a posterior of its own: optimizer.posterior())" * isinstance(optimizer, PerturbedOptimizer)
    raise TypeError(
        "optimizer must be one of torch.optim's AdamW and "
        f"{', '.join(cls.__name__ for cls in FORMULAE)}, got {type(optimizer).__name__}{hint}"
    )


def _wide(tensor: Tensor) -> Tensor:
    """A copy, float32 or wider."""
    return tensor.to(wide(tensor.dtype), copy=True)


def _steps(state: State) -> float:
    return float(state.get("step", 0.0))


def _check_root(root: Tensor, name: str, prior_precision: float) -> None:
    if not root.isfinite().all():
        raise ValueError(f"the second moments of {name!r} must be finite, got inf or nan")
    if prior_precision == 0 and (zeros := int((root == 0).sum())):
        raise ValueError(
            f"prior_precision must be positive where second moments are 0, got {prior_precision!r} and "
            f"{zeros:,} zeros of {root.numel():,} in {name!r} (inputs that are always 0, or units that are dead)"
        )
