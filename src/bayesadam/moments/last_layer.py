"""``variational_last_layer``: a network with a random last layer, trained by an evidence lower bound without sampling.

Variational Bayesian last layers (Harrison, Willes and Snoek 2024, arXiv 2404.11599). The outputs of a linear layer with
Gaussian weights are Gaussian, and the expected log-likelihood under them has a closed form, or a bound in closed form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from bayesadam.bayes_by_backprop.loss import kl_scale
from bayesadam.bayes_by_backprop.parameters import InitialStd, around, escaped, initial
from bayesadam.checks import check_model
from bayesadam.functional.autocast import without_autocast
from bayesadam.functional.curvature import wide
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.calls import Inputs, arguments, version_of
from bayesadam.modules.last_layer import is_plain_linear, parameters_of_layer
from bayesadam.modules.wrappers import buffers_of
from bayesadam.moments.objectives import expected_log_likelihood
from bayesadam.moments.observer import Observer
from bayesadam.moments.values import Moments
from bayesadam.posterior import DenseGaussian, DiagonalGaussian, PartialGaussian
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.priors import Prior, as_prior

COVARIANCES = ("full", "diagonal")


class LastLayerModule(nn.Module):
    """A network whose last layer has Gaussian weights; :func:`variational_last_layer` makes one.

    Row ``k`` of the layer's weight, with its bias as the last entry, is ``N(m_k, S_k)``, independent of the other rows.
    The means ``m_k`` are the network's own parameters. ``S_k = L_k L_k'`` with ``L_k = diag(s_k) (I + C_k)``, where
    ``C_k`` is strictly lower triangular, or zero for ``covariance="diagonal"``. ``parameters()`` has the logarithms of
    ``s``, the matrices ``C``, all parameters of the network, and those that the prior learns, for any optimiser. All
    weights before the last layer are trained without noise.

    A hook on the last layer takes down its inputs, so ``DistributedDataParallel`` and ``torch.compile`` work, while the
    threads of ``DataParallel`` would mix them up.

    Attributes:
        model: The network.
        prior: Prior over the weights of the last layer.
        last_layer: Name of that layer.
        covariance: ``"full"`` or ``"diagonal"``.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        prior: float | Prior | DiagonalGaussian = 1.0,
        covariance: str = "full",
        initial_std: InitialStd = 0.05,
        last_layer: str | None = None,
    ) -> None:
        super().__init__()
        check_model(model)
        if covariance not in COVARIANCES:
            raise ValueError(f"covariance must be one of {COVARIANCES}, got {covariance!r}")
        name = _chosen(model, last_layer)
        means = parameters_of_layer(model, name)
        prior = as_prior(prior)
        if not prior.closed_form:
            raise ValueError(f"prior must have a divergence in closed form, got {type(prior).__name__}")
        prior.check(means)
        outputs, width = len(next(iter(means.values()))), sum(p[0].numel() for p in means.values())
        if covariance == "full" and outputs * width > MAX_WEIGHTS:
            raise ValueError(
                f"covariance must be 'diagonal' for a layer of more than {MAX_WEIGHTS:,} weights, "
                f"got 'full' for {outputs * width:,}"
            )
        start = {key: initial(key, parameter, initial_std, torch.log) for key, parameter in means.items()}
        self.model = model
        self.prior = prior
        self.log_scale = nn.Module()
        for key, log_scale in start.items():
            self.log_scale.register_parameter(escaped(key), log_scale)
        like = next(iter(start.values())).detach()
        self.lower = nn.Parameter(like.new_zeros(outputs, width, width)) if covariance == "full" else None
        self.last_layer = name
        self.covariance = covariance
        self._names = list(means)
        self._observer = Observer()
        model.get_submodule(name).register_forward_hook(self._observer, prepend=True, with_kwargs=True)

    def extra_repr(self) -> str:
        """The layer and the kind of its covariance, as text."""
        return f"last_layer={self.last_layer!r}, covariance={self.covariance!r}"

    def forward(self, *args: Any, **kwargs: Any) -> Moments:
        """Mean and variance of the outputs, in the dtype of the layer's weights (float32 or wider), also in autocast.

        The variances are ``a' S_k a`` for the inputs ``a`` of the last layer, with a 1 for the bias.

        Raises:
            ValueError: The layer is not called exactly once, or its outputs are not those of the network. (A network
                may return them inside a tuple or a dict.)
            RuntimeError: The layer is called without gradients, as inside of a reentrant checkpoint, but they are
                enabled outside.
        """
        calls: list[tuple[Tensor, Tensor, int]] = []
        self._observer.calls = calls
        self._observer.gradients = torch.is_grad_enabled()
        try:
            result = self.model(*args, **kwargs)
        finally:
            self._observer.calls = None
        if len(calls) != 1:
            raise ValueError(
                f"last_layer must be called once in the model's forward, got {len(calls)} calls of {self.last_layer!r}"
            )
        features, output, version = calls[0]
        if version_of(output) != version or not any(leaf is output for leaf in tree_leaves(result)):
            raise ValueError(
                f"last_layer must give the network's outputs, got {self.last_layer!r}, after which they change"
            )
        with without_autocast([features]):
            return self._moments(features)

    def _moments(self, features: Tensor) -> Moments:
        """Of the outputs of the layer, given its inputs ``(..., D)``."""
        scale = self._scale()
        weight, *bias = (parameter.to(scale.dtype) for parameter in self._means().values())
        features = features.to(scale.dtype)
        mean = functional.linear(features, weight, *bias)
        if bias:
            features = torch.cat([features, torch.ones_like(features[..., :1])], -1)
        if self.lower is None:
            return Moments(mean, functional.linear(features.square(), scale.square()))
        scaled = features.unsqueeze(-2) * scale  # (..., K, D)
        projected = scaled + torch.einsum("...kd,kde->...ke", scaled, self.lower.tril(-1))
        return Moments(mean, projected.square().sum(-1))

    def kl_divergence(self) -> Tensor:
        """``KL(q || prior)`` in nats, summed over the weights of the last layer, never a mean: 0-d float64.

        It is the divergence of the product of the marginals, by the prior's own closed form, plus the multi-information
        of ``q``, ``1/2 sum log(1 + sum_j C_ij^2)``, since all priors are products over weights.
        """
        scale = self._scale()
        means = {name: mean.to(scale.dtype) for name, mean in self._means().items()}
        correlated = torch.zeros_like(scale) if self.lower is None else self.lower.tril(-1).square().sum(-1)
        parts = torch.split(scale * (1.0 + correlated).sqrt(), [mean[0].numel() for mean in means.values()], 1)
        std = {name: part.reshape(mean.shape) for (name, mean), part in zip(means.items(), parts, strict=True)}
        return self.prior.kl_divergence(means, std) + 0.5 * torch.log1p(correlated).sum(dtype=torch.float64)

    def loss(
        self,
        inputs: Inputs,
        target: Tensor,
        *,
        likelihood: Likelihood,
        num_data: float,
        kl_weight: float = 1.0,
        temperature: float = 1.0,
        wrapper: nn.Module | None = None,
    ) -> Tensor:
        """Negative evidence lower bound per data point, 0-d: the training loss.

        It is ``-E log p(y | outputs)``, averaged over the minibatch, plus ``kl_weight * temperature * KL / num_data``.
        The expectation is that of :func:`bayesadam.moments.expected_log_likelihood`: exact for Gaussian noise (Harrison
        et al. 2024, Theorem 1); a lower bound for classes, that of the paper (Theorem 2) with
        ``likelihood=Categorical(bound="jensen")``, and a tighter one by default.

        Args:
            inputs: A tensor; a tuple (``net(*inputs)``); or a dict (``net(**inputs)``).
            target: Targets, in the form that the likelihood takes.
            likelihood: One of :mod:`bayesadam.likelihoods`, or your own. The noise of a ``Gaussian`` may be learned:
                give its parameters to the optimiser as well.
            num_data: Number of data points in the training set.
            kl_weight: Factor of this minibatch's KL divergence, from :func:`bayesadam.kl_weights` or
                :func:`bayesadam.kl_warmup`; not negative.
            temperature: Factor of the KL divergence, in [0, 1]; 1 is variational inference.
            wrapper: Module around this one that is called in its place, such as ``DistributedDataParallel(net)`` or
                ``torch.compile(net)``.

        Raises:
            ValueError: A number is out of its range, ``wrapper`` does not contain this network, a target does not fit,
                or as for :meth:`forward`.
        """
        scale = kl_scale(num_data, kl_weight, temperature)
        args, kwargs = arguments(inputs)
        fit = expected_log_likelihood(likelihood, around(self, wrapper)(*args, **kwargs), target)
        return -fit.mean() + (scale * self.kl_divergence()).to(fit) if scale else -fit.mean()

    @torch.no_grad()
    def posterior(self) -> PartialGaussian | DenseGaussian | DiagonalGaussian:
        """The posterior as it stands, by the model's names: copies, in float32 or wider.

        It is a :class:`bayesadam.posterior.PartialGaussian` with the weights before the last layer fixed, or a Gaussian
        over the layer's weights if there are no others. :func:`bayesadam.predict` then has a closed form: the outputs
        are Gaussian.
        """
        prior = f"{type(self.prior).__name__}({self.prior.extra_repr()})"
        hyperparameters = {"method": "variational_last_layer", "structure": "last_layer", "prior": prior}
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad or name in self._names}
        values = {name: p.detach().to(wide(p.dtype), copy=True) for name, p in trained.items()}
        mean = {name: values[name] for name in self._names}
        fixed = {name: value for name, value in values.items() if name not in mean}
        random: DenseGaussian | DiagonalGaussian
        if self.lower is None:
            variance = {name: (2.0 * log_scale.detach()).exp() for name, log_scale in self._log_scales().items()}
            random = DiagonalGaussian(mean, variance, hyperparameters=hyperparameters)
        else:
            random = DenseGaussian.from_scale_tril(mean, self._scale_tril(), hyperparameters=hyperparameters)
        posterior = PartialGaussian(random, fixed, order=list(values)) if fixed else random
        return posterior.with_buffers(buffers_of(self.model))

    def _scale_tril(self) -> Tensor:
        """Cholesky factor of the covariance of all weights, row by row, followed by that of the biases."""
        assert self.lower is not None
        scale = self._scale().double()
        factors = torch.diag_embed(scale) + scale.unsqueeze(-1) * self.lower.double().tril(-1)
        outputs, width = scale.shape
        inputs = next(iter(self._means().values())).shape[1]
        places = torch.arange(outputs * inputs, device=scale.device).view(outputs, inputs)
        if width > inputs:
            places = torch.cat([places, outputs * inputs + torch.arange(outputs, device=scale.device)[:, None]], 1)
        whole = scale.new_zeros(scale.numel(), scale.numel())
        for place, factor in zip(places, factors, strict=True):
            whole[place[:, None], place] = factor  # triangular, since the order inside of a row is kept
        return whole

    def _scale(self) -> Tensor:
        """``s``, ``(K, D)``, with a column for the bias if there is one."""
        return torch.cat([value.view(len(value), -1) for value in self._log_scales().values()], 1).exp()

    def _means(self) -> dict[str, Tensor]:
        return {name: self.model.get_parameter(name) for name in self._names}

    def _log_scales(self) -> dict[str, Tensor]:
        return {name: self.log_scale.get_parameter(escaped(name)) for name in self._names}


def variational_last_layer(
    model: nn.Module,
    *,
    prior: float | Prior | DiagonalGaussian = 1.0,
    covariance: str = "full",
    initial_std: InitialStd = 0.05,
    last_layer: str | None = None,
) -> LastLayerModule:
    """Give the last layer of a network a Gaussian posterior, trained together with the layers before it.

    Train ``net = variational_last_layer(model)`` with any optimiser over ``net.parameters()`` and the loss
    :meth:`LastLayerModule.loss`; ``net.posterior()`` then goes with ``model`` into :func:`bayesadam.predict`. These are
    the variational Bayesian last layers of Harrison, Willes and Snoek 2024.

    Args:
        model: Any network whose outputs are those of an ``nn.Linear``. It becomes a part of the result and is not
            copied.
        prior: Prior of the last layer: one of :mod:`bayesadam.priors` with a divergence in closed form; a number, the
            precision of a Gaussian prior; or a posterior to continue from. The other weights have no prior: use the
            weight decay of the optimiser.
        covariance: ``"full"``: the weights that belong to an output are correlated, for at most 10,000 weights in the
            layer. ``"diagonal"``: all weights are independent.
        initial_std: Standard deviation of the weights at the start: a number, numbers or tensors by name, or a function
            of a parameter's name and the parameter.
        last_layer: Name of the layer; default: the last ``nn.Linear`` in ``model.named_modules()``.

    Raises:
        ValueError: An option is out of its range, the prior does not fit, or there is no such layer with trainable
            parameters of its own.
    """
    return LastLayerModule(model, prior=prior, covariance=covariance, initial_std=initial_std, last_layer=last_layer)


def _chosen(model: nn.Module, name: str | None) -> str:
    layers = [key for key, module in model.named_modules() if is_plain_linear(module)]
    if not layers:
        raise ValueError("model must have an nn.Linear, got none")
    if name is not None and name not in layers:
        raise ValueError(f"last_layer must be the name of an nn.Linear, one of {layers}, got {name!r}")
    return layers[-1] if name is None else name
