"""``variational`` gives any network a Gaussian posterior over its weights, trained by any PyTorch optimiser.

Bayes by Backprop (Blundell et al. 2015, section 3.2): ``weights = mu + softplus(rho) * eps``, and ordinary gradients in
``mu`` and ``rho`` of ``f = log q(weights) - log p(weights) + nll(weights)``::

    d_mu  = df/dweights + df/dmu
    d_rho = df/dweights * eps / (1 + exp(-rho)) + df/drho
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.bayes_by_backprop.draws import Draw, uncompiled
from bayesadam.bayes_by_backprop.estimators import ESTIMATORS
from bayesadam.bayes_by_backprop.loss import kl_scale
from bayesadam.bayes_by_backprop.parameters import (
    InitialStd,
    around,
    as_posterior,
    escaped,
    initial,
    random_parameters,
    replaced,
)
from bayesadam.checks import check_count
from bayesadam.functional import kl as divergences
from bayesadam.functional.reparameterized import inverse_softplus, softplus
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.batch_norm import of_training
from bayesadam.modules.calls import Inputs, call
from bayesadam.modules.recomputation import in_backward, recomputed_by
from bayesadam.posterior import DiagonalGaussian
from bayesadam.priors import GaussianPrior, Prior, as_prior

_MASK = 2**32 - 1


class VariationalModule(nn.Module):
    """A network with random weights; :func:`variational` makes one.

    The parameters of ``model`` are the means: they hold the mean between forward passes, keep the weights from before,
    and stay tied if they were. ``rho`` has one parameter for every random one, and ``prior`` has those that the prior
    learns; ``parameters()`` returns all of them, for an optimiser.

    In training mode every forward pass draws its own weights; in evaluation mode it uses the means, like dropout.
    Inside :meth:`common_draw` all passes use one draw in either mode. The noise is a function of the seed, the number
    of the draw, and the position of the parameter in ``model.named_parameters()``. The state dict contains the number
    of the draw, so a resumed run is bit-identical; copies continue with the same numbers. Data-parallel ranks with the
    same seed draw the same noise; with one seed per rank, the average of their gradients is less noisy.

    ``torch.compile`` of this module compiles ``model`` with the estimator ``"shared"``, and draws outside of the
    compiled graph; with the other estimators nothing is compiled.

    Parts of the model that activation checkpointing (``torch.utils.checkpoint``, of both kinds) runs again in the
    backward pass have the same sample there; what repeats a forward pass by other means would use the means.

    Attributes:
        model: The network.
        prior: Prior over the random weights.
        estimator: ``"shared"``, ``"local"`` or ``"flipout"``.
        closed_form: Whether the KL divergence is computed in closed form and not sampled.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        prior: float | Prior | DiagonalGaussian = 1.0,
        initial_std: InitialStd = 0.05,
        estimator: str = "shared",
        kl: str | None = None,
        select: Callable[[str], bool] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if estimator not in ESTIMATORS:
            raise ValueError(f"estimator must be one of {tuple(ESTIMATORS)}, got {estimator!r}")
        if kl not in (None, "closed_form", "sampled"):
            raise ValueError(f"kl must be 'closed_form', 'sampled' or None, got {kl!r}")
        self.seed, *_ = noise.checked(seed, 0, 0, 0, 0)
        prior = as_prior(prior)
        if kl == "closed_form" and not prior.closed_form:
            raise ValueError(
                f"kl must be 'sampled' with a prior without a closed form, got {kl!r} with {type(prior).__name__}"
            )
        closed_form = prior.closed_form if kl is None else kl == "closed_form"
        indices = random_parameters(model, select)
        means = {name: parameter for name, parameter in model.named_parameters() if name in indices}
        prior.check(means)
        start = {name: initial(name, parameter, initial_std, inverse_softplus) for name, parameter in means.items()}
        self.model = model
        self.prior = prior
        self.rho = nn.Module()
        for name, rho in start.items():
            self.rho.register_parameter(escaped(name), rho)
        self.estimator = estimator
        self.closed_form = closed_form
        self._indices = indices
        self._number = 0
        self._draw: Draw | None = None

    def extra_repr(self) -> str:
        """Name of the estimator, and number of random weights, as text."""
        kind = "closed_form" if self.closed_form else "sampled"
        return f"estimator={self.estimator!r}, kl={kind!r}, random={len(self._indices)}, seed={self.seed}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model at sampled weights in training mode or inside :meth:`common_draw`, otherwise at the mean.

        Raises:
            RuntimeError: A weight is used in a way that the estimator ``"local"`` or ``"flipout"`` does not support, or
                this module as a whole is checkpointed and runs again in a backward pass.
        """
        if not torch.compiler.is_compiling() and in_backward():
            raise RuntimeError(
                "a variational network must not run again in a backward pass, which would draw other weights, got "
                "activation checkpointing of the whole network: checkpoint parts inside of it"
            )
        draw = self._draw
        if draw is None:
            if not self.training:
                return self.model(*args, **kwargs)
            draw = uncompiled(self._new_draw)(mirrored=False)
        estimator = ESTIMATORS[self.estimator]

        def run(weights: Mapping[str, Tensor]) -> Any:
            with replaced(self.model, draw.means, weights):
                return self.model(*args, **kwargs)

        if torch.compiler.is_compiling():
            return estimator(draw, run)

        def run_again(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Run a checkpointed part of the model at the same draw."""

            def run_part(weights: Mapping[str, Tensor]) -> Any:
                with replaced(self.model, draw.means, weights):
                    return function(*args, **kwargs)

            return estimator(draw.again(), run_part)

        with recomputed_by(run_again):
            return estimator(draw, run)

    @contextmanager
    def common_draw(self, *, mirrored: bool = False) -> Iterator[None]:
        """Return a context in which all forward passes and :meth:`kl_divergence` use the same sample, in either mode.

        With the estimators ``"local"`` and ``"flipout"`` they use the same noise.

        Args:
            mirrored: Whether to use the last draw again with the opposite sign of all noise, as an antithetic pair.

        Raises:
            RuntimeError: Contexts are nested, or there is no draw to mirror.
        """
        if self._draw is not None:
            raise RuntimeError("common_draw() must not be nested, got a block inside a block")
        if mirrored and self._number == 0:
            raise RuntimeError("common_draw(mirrored=True) must follow a draw, got none before it")
        self._draw = self._new_draw(mirrored=mirrored)
        try:
            yield
        finally:
            self._draw = None

    def kl_divergence(self) -> Tensor:
        """``KL(q || prior)`` in nats, summed (not averaged) over the random weights; 0-d float64, differentiable.

        It is computed in closed form, or estimated by ``log q - log p`` at one sample. Inside :meth:`common_draw` this
        is the sample of the forward passes; outside it is a new draw. The estimators ``"local"`` and ``"flipout"`` have
        no single sample for all data points, so the divergence has its own sample inside as well.
        """
        draw = self._draw
        if not self.closed_form:
            draw = draw or self._new_draw(mirrored=False)
            log_q = divergences.gaussian_log_prob(draw.sums()[2], draw.eps())
            return log_q - self.prior.log_prob({name: draw.theta(name) for name in self._indices})
        means, rho = self._means(), self._rhos()
        if draw is not None and type(self.prior) is GaussianPrior:
            return self.prior.kl_divergence_from(draw.sums(), sum(mean.numel() for mean in means.values()))
        return self.prior.kl_divergence(
            {name: means[name].to(value.dtype) for name, value in rho.items()},
            {name: softplus(value) for name, value in rho.items()},
        )

    def loss(
        self,
        inputs: Inputs,
        target: Tensor,
        *,
        likelihood: Likelihood,
        num_data: float,
        mc_samples: int = 1,
        antithetic: bool = False,
        kl_weight: float = 1.0,
        temperature: float = 1.0,
        output: Callable[[Any], Tensor] | None = None,
        wrapper: nn.Module | None = None,
    ) -> Tensor:
        """Negative ELBO per data point, estimated from a minibatch: the training loss, 0-d.

        It is the mean over samples of ``mean nll + kl_weight * temperature * KL / num_data``, with both terms at the
        same sample of the weights (Blundell et al. 2015). The weights are sampled in evaluation mode, too, where
        dropout is off.

        Args:
            inputs: A tensor; a tuple (``net(*inputs)``); or a dict (``net(**inputs)``).
            target: Targets, in the form that the likelihood takes.
            likelihood: Likelihood of the targets given the output; its ``nll`` is the mean over the data points of the
                minibatch.
            num_data: Number of data points in the training set.
            mc_samples: Number of samples of the weights.
            antithetic: Whether to draw samples in pairs ``+eps, -eps``; ``mc_samples`` must then be even.
            kl_weight: Factor of this minibatch's KL divergence, from :func:`bayesadam.kl_weights` or
                :func:`bayesadam.kl_warmup`; not negative.
            temperature: Factor of the KL divergence, in [0, 1]; 1 is variational inference.
            output: Function that takes the output tensor out of what the network returns.
            wrapper: Module around this one that is called in its place, such as ``DistributedDataParallel(net)`` or
                ``torch.compile(net)``.

        Raises:
            ValueError: A number is out of its range, or ``wrapper`` does not contain this network.
            TypeError: The network does not return a tensor and ``output`` is not given.
        """
        check_count("mc_samples", mc_samples)
        if antithetic and mc_samples % 2:
            raise ValueError(f"mc_samples must be even when antithetic=True, got {mc_samples!r}")
        scale, net = kl_scale(num_data, kl_weight, temperature), around(self, wrapper)
        terms = []
        for sample in range(mc_samples):
            with self.common_draw(mirrored=antithetic and sample % 2 == 1):
                nll = likelihood.nll(call(net, inputs, output), target)
                if scale and not self.closed_form:
                    nll = nll + (scale * self.kl_divergence()).to(nll)
                elif scale and sample == 0:
                    nll = nll + (mc_samples * scale * self.kl_divergence()).to(nll)
            terms.append(nll)
        return terms[0] if mc_samples == 1 else torch.stack(terms).mean()

    def posterior(self) -> DiagonalGaussian:
        """Return the current posterior, by the model's names, with copies in float32 or wider.

        It covers the random parameters, and with variance 0 those that are trained without noise. Batch norm statistics
        are averages over the draws of training; :func:`bayesadam.predictive.with_batch_norm` computes those of the
        mean.
        """
        settings = {"estimator": self.estimator, "kl": "closed_form" if self.closed_form else "sampled"}
        prior = f"{type(self.prior).__name__}({self.prior.extra_repr()})"
        variance = {name: softplus(rho.detach()).square() for name, rho in self._rhos().items()}
        hyperparameters = {
            "method": "BayesByBackprop",
            "prior": prior,
            "seed": self.seed,
            **settings,
            **of_training(self.model),
        }
        return as_posterior(self.model, variance, hyperparameters)

    def get_extra_state(self) -> Tensor:
        """State of the noise: low and high half of the seed, and number of the next draw."""
        return torch.tensor([self.seed & _MASK, self.seed >> 32, self._number])

    def set_extra_state(self, state: Any) -> None:
        """Restore the result of :meth:`get_extra_state`."""
        low, high, self._number = state.tolist()
        self.seed = low | high << 32

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_draw": None}

    def _new_draw(self, *, mirrored: bool) -> Draw:
        if not mirrored:
            self._number += 1
        return Draw(
            self._means(),
            self._rhos(),
            self._indices,
            seed=self.seed,
            number=self._number - 1,
            sign=-1.0 if mirrored else 1.0,
            center=self.prior.mean if type(self.prior) is GaussianPrior else 0.0,
        )

    def _means(self) -> dict[str, Tensor]:
        return {name: parameter for name, parameter in self.model.named_parameters() if name in self._indices}

    def _rhos(self) -> dict[str, Tensor]:
        return dict(zip(self._indices, self.rho.parameters(), strict=True))


def variational(
    model: nn.Module,
    *,
    prior: float | Prior | DiagonalGaussian = 1.0,
    initial_std: InitialStd = 0.05,
    estimator: str = "shared",
    kl: str | None = None,
    select: Callable[[str], bool] | None = None,
    seed: int = 0,
) -> VariationalModule:
    """Make a network variational: every trainable weight gets an independent Gaussian around its value.

    Train ``net = variational(model)`` with any optimiser over ``net.parameters()`` and the loss
    :meth:`VariationalModule.loss`, and then pass ``model`` and ``net.posterior()`` to :func:`bayesadam.predict`.

    Args:
        model: Any network; it becomes a part of the result and is not copied. Parameters that are frozen now never
            become random.
        prior: One of :mod:`bayesadam.priors`; a number, the precision of a Gaussian prior; or a posterior to continue
            from (the weights do not change).
        initial_std: Standard deviation of the posterior at the start: a number, numbers or tensors by name, or a
            function of a parameter's name and the parameter.
        estimator: ``"shared"``: one weight sample for all data points of a forward pass, which works for every model.
            ``"local"``: local reparameterisation (Kingma et al. 2015), in which the outputs of linear and convolutional
            layers are drawn independently for every data point. Gradients are less noisy, at the cost of a second pass
            through the layer; positions that share weights (those of a convolution) are drawn independently, too, as is
            usual. ``"flipout"``: for the same layers, the sample's deviation from the mean with random signs for every
            data point (a row of the first axis; Wen et al. 2018). All other layers use the shared sample. A weight that
            is used twice in one pass is refused by ``"local"``, and by ``"flipout"`` unless the numbers of data points
            agree.
        kl: ``"closed_form"``, ``"sampled"``, or ``None`` for the closed form if the prior has one.
        select: Function of a parameter's name that tells whether it is random; the others are trained without noise.
        seed: Seed of the noise.

    Raises:
        ValueError: An option is out of its range, the prior has no closed form, no parameter is random, or a posterior
            as prior is not over these weights.
    """
    return VariationalModule(
        model,
        prior=prior,
        initial_std=initial_std,
        estimator=estimator,
        kl=kl,
        select=select,
        seed=seed,
    )
