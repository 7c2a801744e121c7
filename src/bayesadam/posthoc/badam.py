"""Badam: a posterior from the second moments of an ordinary adaptive optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop

from bayesadam.calibration.safe import SAFE, Watched, harmless_share
from bayesadam.checks import check, check_positive, require
from bayesadam.functional.curvature import wide
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.modules.sharding import full
from bayesadam.modules.wrappers import buffers_of, innermost
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.posterior import DiagonalGaussian
from bayesadam.predictive.pairs import Data

State = Mapping[str, Any]


@torch.inference_mode(False)
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
    """Return a diagonal Gaussian with precision ``N sqrt(v) + lambda`` from an optimiser's second moments ``v``.

    Source: Kessler et al. 2018. Their eq. 12 and Algorithm 1 are ``weights="map"`` with ``prior_precision=0``, where
    the prior is part of the loss as L2 regularisation. Section 3 of the paper's second version is ``weights="mle"``.

    ``v`` is the estimate by whose root the optimiser divided at its last step:

    ============================== ====================================================================
    optimiser                      ``v``
    ============================== ====================================================================
    Adam, AdamW, NAdam, RAdam      ``exp_avg_sq / (1 - b2^t)``
    with ``amsgrad=True``          ``max_exp_avg_sq / (1 - b2^t)``
    RMSprop                        ``square_avg``; minus ``grad_avg^2``, and at least 0, if centred
    Adagrad                        ``(sum - initial_accumulator_value) / t``, the mean of the squares
    ============================== ====================================================================

    The gradients must have been those of a *mean* loss, minimised or maximised. A ``weight_decay`` adds its gradient
    before the square (unless it is decoupled), and so do penalties in the loss.

    The root of ``v`` does not have the scale of a curvature, so the width of the posterior has to be chosen. The
    default is a width that does not make the network's predictions worse; :func:`bayesadam.tune_posterior` finds a
    better one with held-out data.

    Args:
        optimizer: Optimiser of ``torch.optim`` that has trained the model, in any of its implementations, or a wrapper
            that keeps one as its ``optimizer`` (as that of Accelerate).
        model: Model whose trainable parameters get a posterior; they are copied. Frozen parameters have none. Names are
            those inside wrappers (``DistributedDataParallel``, ``torch.compile``).
        num_data: Number of training examples ``N``, or any number of "pseudo-observations"; a larger number gives a
            narrower posterior.
        prior_precision: Precision ``lambda`` of the prior ``N(0, 1 / lambda)``. 0 omits the prior, which requires
            second moments above 0. ``"safe"`` takes 1, and then multiplies all standard deviations by the largest
            harmless factor up to 1 (``hyperparameters["scaled"]``): with ``data`` as for :func:`bayesadam.laplace`;
            without them such that the noise is at most 5% of the weights, by root mean squares in every matrix.
        weights: Interpretation of the trained weights. ``"map"``: they are the mode of the posterior, which becomes the
            mean. ``"mle"``: they maximise the likelihood, because the loss had no prior; the mean is then
            ``theta sqrt(v) / (sqrt(v) + lambda / N)``.
        data: Data as for :func:`bayesadam.laplace`, on which the posterior is compared with the network itself. The
            default width depends on them, and a warning is issued if a given prior precision makes predictions clearly
            worse. Training data may be used.
        likelihood: Likelihood of the targets given the outputs; required with ``data``.
        output: Function that takes the output tensor out of what the model returns; used with ``data``.
        batch_size: Rows per forward pass; used with ``data``.

    Returns:
        The posterior, with copies of means and variances of the full tensors in float32 or wider.

    Raises:
        TypeError: The optimiser keeps no second moments, or none that are known here.
        ValueError: A number is out of range; data are given without a likelihood; there is no trainable parameter, or
            one that the optimiser does not hold or that has never had a gradient; second moments are not finite, or
            are 0 with ``prior_precision=0``.
        RuntimeError: The optimiser has made no step.
    """
    wrapped: Any = optimizer
    while not isinstance(wrapped, tuple(FORMULAE)) and isinstance(getattr(wrapped, "optimizer", None), Optimizer):
        optimizer = wrapped = wrapped.optimizer
    second_moments = _formula(optimizer)
    check_positive("num_data", num_data)
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
    inner = innermost(model)
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
    ).with_buffers(buffers_of(inner))
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
    """Compute the posterior of :func:`badam` from second moments; the precision is ``N sqrt(v) + lambda``.

    Args:
        trained: Name, weights and second moments ``v`` of every tensor. Second moments are averages of the squared
            gradients of a mean loss, corrected for their bias, and have the weights' shape. Weights and moments are
            copied.
        num_data: Number of data points ``N``, positive and finite.
        prior_precision: Prior precision ``lambda``, finite and at least 0.
        optimizer: Name of the optimiser, for the posterior's hyper-parameters.
        weights: ``"map"`` or ``"mle"``; see :func:`badam`.

    Returns:
        The posterior, with means and variances by these names in float32 or wider.

    Raises:
        ValueError: Second moments are not finite, or are 0 with ``prior_precision=0``.
    """
    mean, variance, rules = {}, {}, []
    for name, value, moments in trained:
        root = _wide(moments).sqrt_()
        rules += _root_rules(root, name, prior_precision)
        mean[name] = _wide(value)
        if weights == "mle":
            mean[name] *= root / (root + prior_precision / num_data)
        variance[name] = root.mul_(num_data).add_(prior_precision).reciprocal_()
    require(rules)
    settings = {"num_data": num_data, "prior_precision": prior_precision, "weights": weights}
    return DiagonalGaussian(mean, variance, hyperparameters={"method": "badam", "optimizer": optimizer, **settings})


def unbiased(exp_avg_sq: Tensor, beta: float, steps: float) -> Tensor:
    """Adam's second moments, corrected for their start at 0: ``exp_avg_sq / (1 - b2^t)``, in float32 or wider."""
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
    Adam: _adam,
    AdamW: _adam,  # a subclass of Adam since PyTorch 2.7 only
    NAdam: _adam,
    RAdam: _adam,
    RMSprop: _rmsprop,
    Adagrad: _adagrad,
}


def _formula(optimizer: object) -> Callable[[State, State], Tensor]:
    for cls, formula in FORMULAE.items():
        if isinstance(optimizer, cls):
            return formula
    names = ", ".join(cls.__name__ for cls in FORMULAE)
    hint = " (it has a posterior of its own: optimizer.posterior())" * isinstance(optimizer, PerturbedOptimizer)
    raise TypeError(f"optimizer must be one of torch.optim's {names}, got {type(optimizer).__name__}{hint}")


def _wide(tensor: Tensor) -> Tensor:
    """Return a copy in float32 or wider."""
    return tensor.to(wide(tensor.dtype), copy=True)


def _steps(state: State) -> float:
    return float(state.get("step", 0.0))


def _root_rules(root: Tensor, name: str, prior_precision: float) -> list[tuple[Tensor, Callable[[], ValueError]]]:
    """The rules of second moments for :func:`bayesadam.checks.require`."""
    count, zeros = root.numel(), (root == 0).sum()

    def has_zeros() -> ValueError:
        return ValueError(
            f"prior_precision must be positive where second moments are 0, got {prior_precision!r} and "
            f"{int(zeros):,} zeros of {count:,} in {name!r} (inputs that are always 0, or units that are dead)"
        )

    message = f"the second moments of {name!r} must be finite, got inf or nan"
    finite = (root.isfinite().all(), partial(ValueError, message))
    return [finite, (zeros == 0, has_zeros)] if prior_precision == 0 else [finite]
