"""VON with one Gaussian over all weights together (Khan et al. 2018, eqs. 52-54)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from bayesadam import noise
from bayesadam.checks import check
from bayesadam.core.flat import draw_of
from bayesadam.core.update import NotPositive
from bayesadam.functional import hessian as derivatives
from bayesadam.modules.batch_norm import of_training
from bayesadam.modules.sharding import rank_and_size
from bayesadam.modules.wrappers import buffers_of, names_in
from bayesadam.optim import groups
from bayesadam.optim.newton import CLIP_RADIUS
from bayesadam.optim.options import DEFAULTS
from bayesadam.posterior import DenseGaussian
from bayesadam.posterior.dense import MAX_WEIGHTS

_WORDS = {"hessian": ("exact", "reparameterized"), "correction": ("elementwise", None)}


class DenseVON(Optimizer):
    """Variational online Newton with a full covariance, for small models (Khan et al. 2018, eqs. 52-54)::

        S  <- (1 - tau (1 - b2)) S + (1 - b2) H
        mu <- mu - lr clip((S + lt I)^-1 (g + tau lt mu), +-clip_radius)
        Sigma^-1 = N (S + lt I)

    ``H`` is the whole Hessian of the mean loss at the sampled weights, and ``S`` is one matrix in float64: in
    float32, a precision whose eigenvalues span seven orders of magnitude may lose its
    positive definiteness. Other symbols are those of :class:`VON`. At ``tau = 0`` there is no ``lt I`` in the
    precision.

    There is one way to train, ``opt.step(closure)``, in which the optimiser differentiates the loss itself. Outside of
    it the parameters hold the mean, and their ``.grad`` is not used. All parameters are in one group and trainable.

    Args:
        params: Parameters or named parameters, without frozen ones.
        lr: Learning rate, not negative; 1 makes full Newton steps.
        num_data: Number of training examples, or a chosen effective number.
        betas: Decay rates; ``betas[1]`` is that of the Hessian, and ``betas[0]`` is not used.
        prior_precision: Precision of the prior ``N(0, 1 / prior_precision)``.
        initial_precision: Posterior precision at the start, at least ``prior_precision``; by default
            ``max(num_data, prior_precision)``.
        temperature: Factor of the KL divergence, in [0, 1].
        hessian: ``"exact"``, by one backward pass per weight, or ``"reparameterized"``, an estimate from the noise and
            the gradient. From one sample the latter has rank 2 and a size that grows with the gradient, so it is stable
            only if ``1 - betas[1]`` is small against ``1 / sqrt(num_data)``.
        correction: With ``None``, a step that would make the precision negative raises an error; with
            ``"elementwise"``, ``0.5 (1 - b2)^2 E (S + lt I)^-1 E`` with ``E = tau S - H`` is added to ``S``, which
            keeps it positive for every ``H`` (Lin et al. 2020).
        clip_radius: Largest absolute value of the Newton step of a weight, before the learning rate.
        mc_samples: Number of posterior samples per step.
        antithetic: Whether to draw samples in pairs ``+eps, -eps``; ``mc_samples`` must then be even.
        seed: Seed of the noise, which otherwise depends only on the step, the sample and the position of the parameter.
        maximize: Whether the loss is to be maximised.

    Raises:
        ValueError: A hyper-parameter is out of its range; a parameter is frozen, lazy, there twice, or neither in
            float32 nor in float64; or there are more than 10,000 weights.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        *,
        num_data: float,
        betas: tuple[float, float] = (0.0, 0.999),
        prior_precision: float = 1.0,
        initial_precision: float | None = None,
        temperature: float = 1.0,
        hessian: str = "exact",
        correction: str | None = None,
        clip_radius: float = math.inf,
        mc_samples: int = 1,
        antithetic: bool = False,
        seed: int = 0,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "num_data": num_data,
            "betas": betas,
            "prior_precision": prior_precision,
            "initial_precision": initial_precision,
            "temperature": temperature,
            "hessian": hessian,
            "correction": correction,
            "clip_radius": clip_radius,
            "mc_samples": mc_samples,
            "antithetic": antithetic,
            "seed": seed,
            "maximize": maximize,
        }
        groups.check_ordered(params)
        super().__init__(params, groups.settled(defaults))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the parameters, which the constructor does; further groups are refused."""
        if self.param_groups:
            raise RuntimeError("all parameters must be in one group, got another one")
        groups.check_effective(param_group, self.defaults)
        super().add_param_group(param_group)
        group, parameters = self.param_groups[0], self.param_groups[0]["params"]
        groups.check_common({**groups.BOOKKEEPING, **DEFAULTS, **group})
        groups.check_prior(group)
        for name, values in _WORDS.items():
            check(name, group[name], f"one of {values}", values.__contains__, words=True)
        CLIP_RADIUS.check(group["clip_radius"])
        groups.check_distinct(parameters)
        for position, p in enumerate(parameters):
            if is_lazy(p) or p.dtype not in (torch.float32, torch.float64) or not p.requires_grad:
                raise ValueError(
                    f"parameter {position} must be initialized, trainable and in float32 or float64, "
                    f"got {type(p).__name__} in {p.dtype}, requires_grad={p.requires_grad}"
                )
        size, count, prior = sum(p.numel() for p in parameters), group["num_data"], group["prior_precision"]
        check("the number of weights", size, f"1 to {MAX_WEIGHTS:,}", lambda v: 1 <= v <= MAX_WEIGHTS)
        start = ((group["initial_precision"] or max(count, prior)) - prior * (group["temperature"] > 0)) / count
        eye = torch.eye(size, dtype=torch.float64, device=parameters[0].device)
        self.state[parameters[0]] = {"step": 0, "hessian": start * eye}

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        """Make a Newton step.

        Args:
            closure: Function that returns the mean loss, a tensor on which ``backward()`` was not called. It is called
                once for each of ``mc_samples`` samples, which are in the weights meanwhile.

        Returns:
            The loss, averaged over the samples.

        Raises:
            RuntimeError: ``backward()`` was called on the loss, a parameter is frozen, or there are several processes.
            FloatingPointError: Gradient or Hessian are not finite, or the precision would not stay positive. Nothing
                has changed.
        """
        if rank_and_size()[1] > 1:
            raise RuntimeError("DenseVON must train in one process, got several")
        self._recover()
        group, state, mean = self.param_groups[0], self._state(), _joined(self.param_groups[0]["params"])
        loss, grad, curvature = self._measure(closure, mean)
        for name, value in (("gradient", grad), ("curvature", curvature)):
            if not value.isfinite().all():
                raise FloatingPointError(
                    f"the {name} of the loss must be finite, got inf or nan; nothing was changed (if the training "
                    f"diverges, use a smaller lr than {float(group['lr']):g}, or a larger initial_precision)"
                )
        rate, tau, prior = 1.0 - group["betas"][1], group["temperature"], group["prior_precision"] / group["num_data"]
        damping = prior * torch.eye(len(mean)).to(curvature)
        active = damping * (tau > 0)
        error = tau * state["hessian"] - curvature
        hessian = state["hessian"] - rate * error
        if group["correction"] == "elementwise":
            second = error @ torch.linalg.solve(state["hessian"] + active, error)
            hessian += 0.25 * rate * rate * (second + second.mT)
        _factor(hessian + active)
        move = torch.linalg.solve(hessian + damping, grad + tau * prior * mean)
        self._write(mean - float(group["lr"]) * move.clamp(-group["clip_radius"], group["clip_radius"]))
        state.update(step=state["step"] + 1, hessian=hessian)
        return loss

    def _measure(self, closure: Callable[[], Tensor], mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, gradient and Hessian, averaged over samples ``mu + L^-T eps``, where ``L L^T`` is the precision."""
        group, factor, losses = self.param_groups[0], _factor(self._precision()), []
        parameters, samples, step = group["params"], group["mc_samples"], self._state()["step"]
        grad, curvature = torch.zeros_like(mean), torch.zeros_like(factor)
        self._state()["mean"] = mean
        try:
            for sample in range(samples):
                draw = draw_of(group, sample, step=step)
                drawn = {i: torch.empty(p.shape, device=p.device) for i, p in enumerate(parameters)}
                noise.fill_many(drawn, group["seed"], draw.step, draw.number)
                eps = _joined(drawn.values()) * (-1.0 if draw.negative else 1.0)
                self._write(mean + torch.linalg.solve_triangular(factor.mT, eps[:, None], upper=True)[:, 0])
                with torch.enable_grad():
                    loss = closure()
                    if not isinstance(loss, Tensor):
                        raise TypeError(f"closure must return the loss, got {loss!r}")
                    grads = derivatives.gradients(-loss if group["maximize"] else loss, parameters)
                joined = _joined(
                    torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)
                )
                if group["hessian"] == "exact":
                    curvature += derivatives.matrix(grads, parameters) / samples
                else:
                    outer = torch.outer(factor @ eps, joined)  # of the precision times theta - mu
                    curvature += 0.5 * (outer + outer.mT) / samples
                grad += joined / samples
                losses.append(loss.detach())
        finally:
            self._recover()
        return torch.stack(losses).mean(), grad, curvature

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> DenseGaussian:
        """Return the current posterior, with copies of means and precision.

        Args:
            model: Module from which the parameters' names and the buffers are taken. Without it, the posterior has no
                buffers, and the optimiser must have been made from named parameters.

        Raises:
            RuntimeError: The name of a parameter is not known.
        """
        self._recover()
        group = self.param_groups[0]
        names = group.get("param_names", [None])
        if model is not None:
            names = list(map(names_in(model).get, group["params"]))
        if None in names:
            raise RuntimeError(
                "posterior() must know the parameters' names: give it the model, or construct the optimiser from "
                "model.named_parameters()"
            )
        mean = {name: p.detach().clone() for name, p in zip(names, group["params"], strict=True)}
        told = {name: group[name] for name in ("num_data", "prior_precision", "temperature", "seed")}
        told["method"] = type(self).__name__
        if model is None:
            return DenseGaussian.from_precision(mean, self._precision(), hyperparameters=told)
        told |= of_training(model)
        return DenseGaussian.from_precision(mean, self._precision(), hyperparameters=told).with_buffers(
            buffers_of(model)
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict; with the parameters of that time, the training continues to the bit.

        Raises:
            ValueError: The state dict is of another optimiser or of another number of weights; nothing has changed.
        """
        saved, own = [each.get("hessian") for each in state_dict["state"].values()], self._state()["hessian"]
        if len(saved) != 1 or saved[0] is None or saved[0].shape != own.shape:
            raise ValueError(f"state_dict must be of a DenseVON with {len(own)} weights, got another one")
        super().load_state_dict(state_dict)
        self._state()["hessian"] = saved[0].to(own, copy=True)  # torch has cast it to the dtype of the parameter

    def _state(self) -> dict[str, Any]:
        """``S`` and the number of steps, which are kept with the first parameter."""
        state: dict[str, Any] = self.state[self.param_groups[0]["params"][0]]
        return state

    def _recover(self) -> None:
        """Put the mean back into the parameters that hold a sample, also where a signal has interrupted a step."""
        state = self._state()
        if "mean" in state:
            self._write(state["mean"])
            del state["mean"]

    def _precision(self) -> Tensor:
        """``N S + lambda I``, without the prior's part at ``tau = 0``."""
        group, hessian = self.param_groups[0], self._state()["hessian"]
        precision: Tensor = group["num_data"] * hessian
        return precision + group["prior_precision"] * (group["temperature"] > 0) * torch.eye(len(hessian)).to(hessian)

    def _write(self, values: Tensor) -> None:
        """Put a vector over all weights into the parameters."""
        parameters = self.param_groups[0]["params"]
        for p, part in zip(parameters, values.split_with_sizes([p.numel() for p in parameters]), strict=True):
            p.copy_(part.view(p.shape))
        torch.clear_autocast_cache()


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    """One vector of all elements, in float64."""
    return torch.cat([tensor.detach().flatten().double() for tensor in tensors])


def _factor(precision: Tensor) -> Tensor:
    """The Cholesky factor of a precision.

    Raises:
        NotPositive: It is not positive definite.
    """
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(precision)
    if failed:
        raise NotPositive
    return factor
