"""``variational``: any network with a Gaussian posterior over its weights, trained by any PyTorch optimiser.

Bayes by Backprop (Blundell et al. 2015, section 3.2): ``weights = mu + softplus(rho) * eps``, and ordinary gradients
in ``mu`` and ``rho`` of ``f = log q(weights) - log p(weights) + nll(weights)``::

    d_mu  = df/dweights + df/dmu
    d_rho = df/dweights * eps / (1 + exp(-rho)) + df/drho
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.checks import check
from bayesadam.functional import kl as divergences
from bayesadam.functional.reparameterized import inverse_softplus, softplus
from bayesadam.posterior import DiagonalGaussian
from bayesadam.priors import Gaussian, Prior, as_prior
from bayesadam.variational.draws import Draw, Noise, uncompiled
from bayesadam.variational.estimators import ESTIMATORS
from bayesadam.variational.parameters import InitialStd, as_posterior, escaped, initial, random_parameters

_MASK = 2**32 - 1


class VariationalModule(nn.Module):
    """A network whose weights are random; :func:`variational` makes one.

    The parameters of ``model`` are the means: between forward passes they always hold the mean, weights from before
    are kept, and tied weights stay tied. ``rho`` has one parameter for every random one, ``prior`` what the prior
    learns; ``parameters()`` has all of them, for an optimiser.

    In training mode every forward pass draws its own weights; in evaluation mode it uses the means, like dropout.
    Inside :meth:`common_draw` everything uses one draw, whatever the mode. The noise is a function of the seed, the
    number of the draw (which the state dict has, so that a resumed run is bit-identical; copies go on with the same
    numbers) and the position of the parameter in ``model.named_parameters()``. Data-parallel ranks draw the same if
    they agree on the seed; with a seed for every rank, the average of their gradients is less noisy.

    ``torch.compile`` of this module compiles ``model`` at a shared sample, and draws outside; with the other estimators
    nothing is compiled.

    A module inside the model that computes again in the backward pass what it did in the forward pass (activation
    checkpointing) would find the means there: such models are not supported.

    Attributes:
        model: The network.
        prior: Over the random weights.
        estimator: ``"shared"``, ``"local"`` or ``"flipout"``.
        closed_form: Whether the KL divergence is the closed form, and not sampled.
    """

    def __init__(
        self,
        model: nn.Module,
        prior: float | Prior | DiagonalGaussian = 1.0,
        *,
        initial_std: InitialStd = 0.05,
        estimator: str = "shared",
        kl: str | None = None,
        sticking_the_landing: bool = False,
        select: Callable[[str], bool] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if estimator not in ESTIMATORS:
            raise ValueError(f"estimator must be one of {tuple(ESTIMATORS)}, got {estimator!r}")
        if kl not in (None, "closed_form", "sampled"):
            raise ValueError(f"kl must be 'closed_form', 'sampled' or None, got {kl!r}")
        check("seed", seed, "an integer in [0, 2**64)", lambda v: isinstance(v, int) and 0 <= v < 2**64)
        check("sticking_the_landing", sticking_the_landing, "True or False", lambda v: isinstance(v, bool))
        prior = as_prior(prior)
        if kl == "closed_form" and not prior.closed_form:
            raise ValueError(
                f"kl must be 'sampled' with a prior without a closed form, got {kl!r} with {type(prior).__name__}"
            )
        closed_form = prior.closed_form if kl is None else kl == "closed_form"
        if sticking_the_landing and closed_form:
            raise ValueError("sticking_the_landing must be False unless kl='sampled', got True")
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
        self.sticking_the_landing = sticking_the_landing
        self.seed = seed
        self._indices = indices
        self._number = 0
        self._draw: Draw | None = None
        self._noise = Noise()

    def extra_repr(self) -> str:
        """How gradients are estimated, and of how much."""
        kind = "closed_form" if self.closed_form else "sampled"
        return f"estimator={self.estimator!r}, kl={kind!r}, random={len(self._indices)}, seed={self.seed}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model at sampled weights in training mode or inside :meth:`common_draw`; else at the mean.

        Raises:
            RuntimeError: A weight is used in a way that the estimator ``"local"`` or ``"flipout"`` is not right for.
        """
        draw = self._draw
        if draw is None:
            if not self.training:
                return self.model(*args, **kwargs)
            draw = uncompiled(self._new_draw)(mirrored=False)
        return ESTIMATORS[self.estimator](self.model, draw, args, kwargs)

    @contextmanager
    def common_draw(self, *, mirrored: bool = False) -> Iterator[None]:
        """Inside, all forward passes and :meth:`kl_divergence` use one and the same sample, whatever the mode.

        With the estimators ``"local"`` and ``"flipout"`` it is the noise that is the same.

        Args:
            mirrored: Use the last draw again with the opposite sign of all noise: an antithetic pair.

        Raises:
            RuntimeError: One inside another, or nothing to mirror.
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
        """``KL(q || prior)`` in nats, summed over the random weights, never a mean: 0-d float64, differentiable.

        A closed form, or ``log q - log p`` at one sample (its expectation): at that of the forward passes inside
        :meth:`common_draw`; outside it makes a draw of its own. The estimators ``"local"`` and ``"flipout"`` do not
        have one sample for all data points: the KL divergence then has a sample to itself, inside too.
        """
        draw = self._draw
        if draw is None and self.closed_form:
            means, rho = self._means(), self._rhos()
            return self.prior.kl_divergence(
                {name: means[name].to(value.dtype) for name, value in rho.items()},
                {name: softplus(value) for name, value in rho.items()},
            )
        draw = draw or self._new_draw(mirrored=False)
        return self._closed_form(draw) if self.closed_form else self._at_sample(draw)

    def _closed_form(self, draw: Draw) -> Tensor:
        sums = draw.sums()
        if sums is not None and isinstance(self.prior, Gaussian):
            return self.prior.kl_divergence_from(sums, sum(mean.numel() for mean in draw.means.values()))
        names = list(self._indices)
        return self.prior.kl_divergence({n: draw.mean(n) for n in names}, {n: draw.std(n) for n in names})

    def _at_sample(self, draw: Draw) -> Tensor:
        sums, theta = draw.sums(), {name: draw.theta(name) for name in self._indices}
        if sums is not None:
            log_q = divergences.gaussian_log_prob_from(sums[2], [draw.eps(name) for name in theta])
        else:
            path_only = self.sticking_the_landing
            log_q = torch.stack(
                [
                    divergences.gaussian_log_prob(value, draw.std(name), draw.eps(name), path_only=path_only)
                    for name, value in theta.items()
                ]
            ).sum()
        return log_q - self.prior.log_prob(theta)

    def posterior(self) -> DiagonalGaussian:
        """The posterior as it stands, by the model's names: copies, in float32 or wider.

        It covers the random parameters, and with variance 0 those that are trained without noise.
        """
        settings = {"estimator": self.estimator, "kl": "closed_form" if self.closed_form else "sampled"}
        prior = f"{type(self.prior).__name__}({self.prior.extra_repr()})"
        variance = {name: softplus(rho.detach()).square() for name, rho in self._rhos().items()}
        return as_posterior(
            self.model, variance, {"method": "BayesByBackprop", "prior": prior, "seed": self.seed, **settings}
        )

    def get_extra_state(self) -> Tensor:
        """Where the noise goes on: low and high half of the seed, and number of the next draw."""
        return torch.tensor([self.seed & _MASK, self.seed >> 32, self._number])

    def set_extra_state(self, state: Any) -> None:
        """The inverse of :meth:`get_extra_state`."""
        low, high, self._number = state.tolist()
        self.seed = low | high << 32

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_draw": None}

    def _new_draw(self, *, mirrored: bool) -> Draw:
        if not mirrored:
            self._number += 1
        center: float | None = None  # where the divergence makes use of the sums that come with a sample
        if self.estimator == "shared" and not self.sticking_the_landing:
            if type(self.prior) is Gaussian:
                center = self.prior.mean
            elif not self.closed_form:
                center = 0.0
        return Draw(
            self._means(),
            self._rhos(),
            self._indices,
            source=self._noise,
            seed=self.seed,
            number=self._number - 1,
            sign=-1.0 if mirrored else 1.0,
            center=center,
        )

    def _means(self) -> dict[str, Tensor]:
        return {name: parameter for name, parameter in self.model.named_parameters() if name in self._indices}

    def _rhos(self) -> dict[str, Tensor]:
        return {name: self.rho.get_parameter(escaped(name)) for name in self._indices}


def variational(
    model: nn.Module,
    prior: float | Prior | DiagonalGaussian = 1.0,
    *,
    initial_std: InitialStd = 0.05,
    estimator: str = "shared",
    kl: str | None = None,
    sticking_the_landing: bool = False,
    select: Callable[[str], bool] | None = None,
    seed: int = 0,
) -> VariationalModule:
    """Make a network variational: every trainable weight gets an independent Gaussian around its value.

    Train ``net = variational(model)`` with any optimiser over ``net.parameters()`` and the loss
    :func:`bayesadam.nelbo`; ``net.posterior()`` then goes with ``model`` into :func:`bayesadam.predict`.

    Args:
        model: Any network; it becomes a part of the result and is not copied. Parameters that are frozen at this
            moment never become random.
        prior: One of :mod:`bayesadam.priors`; a number, the precision of a Gaussian prior; or a posterior to continue
            from (the weights stay what they are).
        initial_std: Standard deviation of the posterior at the start: a number, numbers or tensors by name, or a
            function of a parameter's name and the parameter.
        estimator: ``"shared"``: one weight sample for all data points of a forward pass, right for any model.
            ``"local"``: local reparameterisation (Kingma et al. 2015): linear and convolution layers draw their
            outputs, independent for every data point, which makes gradients less noisy and costs a second pass through
            the layer; positions that share weights (those of a convolution) are drawn independently too, as is usual.
            ``"flipout"``: for the same layers, the sample's deviation from the mean with random signs for every data
            point (a row of the first axis; Wen et al. 2018). Whatever is no linear or convolution layer has the shared
            sample. A weight that is used twice in one pass is refused by ``"local"``, and by ``"flipout"`` unless
            the numbers of data points agree.
        kl: ``"closed_form"``, ``"sampled"``, or ``None``: the closed form if the prior has one.
        sticking_the_landing: Leave out those terms of a sampled KL's gradient that are 0 in expectation (Roeder et
            al. 2017): without noise where the posterior is exact.
        select: Which parameters are random, by name; the others are trained without noise.
        seed: Of the noise.

    Raises:
        ValueError: An option out of its range, no closed form for this prior, no parameter that is random, or a
            posterior as prior that is not over these weights.
    """
    return VariationalModule(
        model,
        prior,
        initial_std=initial_std,
        estimator=estimator,
        kl=kl,
        sticking_the_landing=sticking_the_landing,
        select=select,
        seed=seed,
    )
