"""The Laplace approximation: a Gaussian around trained weights whose precision is the curvature there."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bayesadam.calibration.safe import SAFE, Watched
from bayesadam.checks import check, check_count, check_positive, check_temperature, is_positive, require, truths
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.exclusive import check_weights_are_used, in_eval_mode
from bayesadam.modules.wrappers import buffers_of, unwrapped
from bayesadam.posterior.dense import DenseGaussian
from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.gaussian_posterior import GaussianPosterior
from bayesadam.posterior.low_rank import LowRankGaussian
from bayesadam.posterior.partial import PartialGaussian
from bayesadam.posthoc.diagonal import DiagonalSum
from bayesadam.posthoc.evidence import best_prior_precision, log_evidence
from bayesadam.posthoc.full import FullSum
from bayesadam.posthoc.kronecker import KroneckerCurvature, KroneckerSum, LastLayerKroneckerSum
from bayesadam.posthoc.last_layer import LastLayer, LastLayerSum
from bayesadam.posthoc.prior import Prior, check_prior, continued
from bayesadam.posthoc.trained_network import TrainedNetwork, go_through
from bayesadam.predictive.pairs import Data

Sum: TypeAlias = DiagonalSum | KroneckerSum | FullSum | LastLayerSum | LastLayerKroneckerSum
OF_ALL: dict[str, type[DiagonalSum | KroneckerSum | FullSum]] = {
    "diagonal": DiagonalSum,
    "kron": KroneckerSum,
    "full": FullSum,
}
OF_LAYER: dict[str, type[LastLayerSum | LastLayerKroneckerSum]] = {
    "last_layer": LastLayerSum,
    "last_layer_kron": LastLayerKroneckerSum,
}
STRUCTURES = (*OF_ALL, *OF_LAYER)
EVIDENCE = "marginal_likelihood"


class LaplaceApproximation:
    """The curvature of the log-likelihood at a model's weights, from which posteriors for any prior precision follow.

    The weights ``theta`` should minimise ``sum_n -log p(y_n | x_n, theta) + lambda / 2 |theta|^2``. The model is run in
    evaluation mode, and is afterwards as before. The curvature is summed over the data, never averaged. The options
    are:

    ``curvature="ggn"``
        The generalised Gauss-Newton matrix ``sum_n J_n' H_n J_n``, ``J`` the Jacobian of the outputs and ``H`` the
        expected second derivative of ``-log p(y | output)``: Kessler et al. 2018, eqs. 13-16, for any likelihood. For a
        likelihood that does not define ``fisher_factor``, ``H`` is the second derivative at the targets, without its
        negative eigenvalues.
    ``curvature="empirical_fisher"``
        The empirical Fisher information ``sum_n g_n g_n'``, ``g`` the gradient of ``log p`` of one data point.

    ``structure="diagonal"``
        The diagonal of the curvature. ``"ggn"`` takes as many backward passes as a data point has outputs, and
        ``"empirical_fisher"`` takes one (for sequences of data points, both times their length). No tensor has the size
        of data points times weights. The modules must be supported by :class:`bayesadam.PerExampleSquares`.
    ``structure="kron"``
        Kronecker factors (K-FAC: Martens and Grosse 2015; Ritter et al. 2018), for a model of any depth. The weight of
        a linear or convolutional layer, as a matrix of ``O`` rows and ``I`` columns, has the curvature ``B kron A``.
        Here ``B = sum_n sum_r g g'`` with the gradients ``g`` of the layer's outputs, where ``r`` numbers the columns
        of the factor of ``H_n``, and ``A`` is the mean over the data of ``a a'``, where ``a`` is the vector that the
        weight is multiplied by. Positions of an image or a sequence count as data: sums and means are over them, too.
        In layers whose outputs have the axes of the targets, a position does not count if its target is ignored and no
        target that counts depends on it; in other layers all positions count.
        The bias has the curvature ``B`` and is independent of the weight. This is the default of laplace-torch. All
        other tensors (those of norm layers, embeddings and convolutions with groups, and weights that are shared or
        used more than once) have a diagonal curvature. It takes as many backward passes as ``"diagonal"``.
    ``structure="full"``
        The whole matrix in float64, for a small model.
    ``structure="last_layer"``
        The whole matrix over one linear layer; all other weights are fixed.
    ``structure="last_layer_kron"``
        The Kronecker factors of one linear layer, which may have thousands of outputs. If these are the model's
        outputs, such as the logits of a classifier, neither Jacobians nor matrices of data points are formed.

    Args:
        model: The trained model. A posterior covers its trainable parameters. It may be wrapped in
            ``torch.compile``, or in ``DistributedDataParallel``, and then only this process's data count.
        data: A pair ``(inputs, targets)``, a dict with ``"labels"`` (``model(**data)``), or a loader of such batches.
            Inputs are a tensor, a tuple (``model(*inputs)``) or a dict (``model(**inputs)``), whose first tensor has
            the examples along its first axis.
        likelihood: Likelihood of the targets given the outputs.
        structure: Structure of the curvature matrix, see above.
        curvature: Kind of curvature, see above.
        last_layer: Name of the linear layer for ``structure="last_layer"`` and ``"last_layer_kron"``. The default is
            the last one that the model calls for the first batch; no trainable weights may act after or beside it.
        num_data: Number of training data points, if ``data`` is a part of them, or a chosen number. Curvature and
            log-likelihood are multiplied by its ratio to the number of data points in ``data``, counted as the
            likelihood does. The default is a ratio of 1.
        output: Function that takes the output tensor, with examples along its first axis, out of what the model
            returns.
        batch_size: Rows of a pair in one pass; default 512 for inputs ``(N, D)`` of floating-point numbers, and 128 for
            images and sequences.
        progress: Whether to show a progress bar; by default it is shown for loaders in a terminal.

    Attributes:
        mean: The trainable weights by name; copies in float32 or wider.
        curvature: Tensors by name for ``"diagonal"``; :class:`bayesadam.posthoc.kronecker.KroneckerCurvature` for
            ``"kron"`` and ``"last_layer_kron"``; otherwise ``(D, D)`` in float64 over the weights of ``random``,
            numbered tensor by tensor.
        random: Names of the tensors that are random in the posterior.
        log_likelihood: ``sum_n log p(y_n | x_n, theta)``.
        num_data: Number of data points, as given or counted.

    Raises:
        ValueError: The structure or curvature is unknown; ``likelihood`` is not a likelihood, or has no second
            derivatives for ``"ggn"``; the model is too large for a matrix or a factor, has no such layer, or merges its
            weights in evaluation mode; the default layer does not give the outputs; the data are empty, not pairs, or
            do not fit; or outputs are not finite.
        TypeError: The model does not return a tensor and ``output`` is not given.
    """

    mean: dict[str, Tensor]
    curvature: Tensor | dict[str, Tensor] | KroneckerCurvature
    random: tuple[str, ...]
    log_likelihood: float
    num_data: float

    @torch.inference_mode(False)
    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        likelihood: Likelihood,
        structure: str = "diagonal",
        curvature: str = "ggn",
        last_layer: str | None = None,
        num_data: float | None = None,
        output: Callable[[Any], Tensor] | None = None,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> None:
        if structure not in STRUCTURES:
            raise ValueError(f"structure must be one of {STRUCTURES}, got {structure!r}")
        if last_layer is not None and structure not in OF_LAYER:
            raise ValueError(f"last_layer must only be given for a structure in {tuple(OF_LAYER)}, got {last_layer!r}")
        if num_data is not None:
            check_positive("num_data", num_data)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        inner = unwrapped(model)
        with in_eval_mode(inner):
            network = TrainedNetwork(inner, likelihood, output, curvature)
            total: Sum = OF_ALL[structure](network) if structure in OF_ALL else OF_LAYER[structure](network, last_layer)
            self.mean = {}
            for name, p in network.trainable.items():
                wide = torch.promote_types(p.dtype, torch.float32)
                self.mean[name] = p.detach().to(wide, copy=True, memory_format=torch.contiguous_format)
            try:
                if not isinstance(total, LastLayer):
                    check_weights_are_used(network.model, self.mean)
                log_likelihood, count = go_through(network, total, data, batch_size, progress)
                self.curvature = total.result()
            finally:
                total.close()
            self._buffers = buffers_of(inner)
        self.random = tuple(total.names) if isinstance(total, LastLayer) else tuple(self.mean)
        self.num_data = count if num_data is None else num_data
        values = [self.curvature] if isinstance(self.curvature, Tensor) else list(self.curvature.values())
        if curvature != "empirical_fisher" and not likelihood.defines("fisher_factor"):
            if not any(truths(value.any() for value in values)):  # by the fallback; the posterior would be the prior
                why = "for a Laplace approximation, as its log density has no second derivative"
                raise likelihood.missing(f"fisher_factor {why}")
        rules = []
        for name in self.random:
            error = partial(ValueError, f"weights must be finite, got inf or nan in {name!r}")
            rules.append((self.mean[name].isfinite().all(), error))
        for value in values:
            error = partial(ValueError, "the curvature must be finite, got inf or nan")
            rules.append((value.mul_(self.num_data / count).isfinite().all(), error))
        require(rules)
        self.log_likelihood = log_likelihood * self.num_data / count
        self._settings: dict[str, Any] = {"structure": structure, "curvature": curvature}
        if isinstance(total, LastLayer):
            self._settings |= {"last_layer": total.name, "gives_outputs": total.gives_outputs}

    def posterior(
        self,
        prior_precision: float = 1.0,
        *,
        num_data: float | None = None,
        temperature: float = 1.0,
        rank: int | None = None,
        prior: Prior | None = None,
    ) -> GaussianPosterior:
        """Return the Gaussian around the weights with precision ``curvature / temperature + prior_precision``.

        Args:
            prior_precision: Precision ``lambda`` of the prior ``N(0, 1 / lambda)``.
            num_data: Number of data points to assume instead of ``self.num_data``; the curvature is multiplied by their
                ratio.
            temperature: Factor of the KL divergence (and so of the prior) in the objective. The curvature is divided by
                it, so below 1 the posterior is narrower.
            rank: For ``structure="full"``, number of directions of the covariance that are kept, the widest ones,
                together with a diagonal, in a :class:`bayesadam.posterior.low_rank.LowRankGaussian` of the weights'
                dtype (see its ``from_precision``). It takes ``D (rank + 2)`` numbers instead of ``D^2``. By default all
                directions are kept.
            prior: A posterior of earlier data over the same weights, instead of ``prior_precision``: the precision is
                then ``curvature / temperature`` plus its own. With ``structure="kron"`` this sum is approximated by its
                diagonal in the eigenvectors of its partial traces, with ``"diagonal"`` only the diagonal of the prior's
                precision counts. The mean is that of the weights, which should be trained with the same prior.

        Returns:
            A :class:`bayesadam.DiagonalGaussian`, a :class:`bayesadam.KroneckerGaussian` or a
            :class:`bayesadam.DenseGaussian`; for one layer a :class:`bayesadam.posterior.PartialGaussian` of
            one of these. Kronecker posteriors of the same object share their bases, so each takes only the memory of
            its eigenvalues.

        Raises:
            ValueError: A number is out of range, a rank is given for another structure, or the prior precision is so
                much smaller than the curvature that the sum is not numerically positive definite.
        """
        structure = self._settings["structure"]
        if rank is not None and structure != "full":
            raise ValueError(f"rank must be None for structure={structure!r}, got {rank!r}")
        check_positive("prior_precision", prior_precision)
        check_temperature(temperature, zero=False)
        if prior is not None:
            check_prior(prior, self.mean, structure, prior_precision=prior_precision, rank=rank)
        if num_data is not None:
            check_positive("num_data", num_data)
        return self._posterior(prior_precision, num_data, temperature, rank, prior)

    def _posterior(
        self,
        prior_precision: float,
        num_data: float | None = None,
        temperature: float = 1.0,
        rank: int | None = None,
        prior: Prior | None = None,
    ) -> GaussianPosterior:
        """The result of :meth:`posterior` for arguments that were checked."""
        num_data = self.num_data if num_data is None else num_data
        scale = num_data / self.num_data / temperature
        settings = {"method": "laplace", **self._settings, "num_data": num_data, "temperature": temperature}
        random: dict[str, Tensor] = {}
        fixed: dict[str, Tensor] = {}
        for name, value in self.mean.items():
            (random if name in self.random else fixed)[name] = value.clone()
        posterior: GaussianPosterior
        if prior is not None:
            posterior = continued(self.curvature, scale, random, prior, settings)
        else:
            settings["prior_precision"] = prior_precision
            if isinstance(self.curvature, KroneckerCurvature):
                posterior = self.curvature.posterior(random, scale, prior_precision, settings)
            elif isinstance(self.curvature, dict):
                variance = {k: (scale * c + prior_precision).reciprocal_() for k, c in self.curvature.items()}
                posterior = DiagonalGaussian(random, variance, hyperparameters=settings)
            else:
                precision = scale * self.curvature
                precision.diagonal().add_(prior_precision)
                if rank is None:
                    posterior = DenseGaussian.from_checked_precision(random, precision, hyperparameters=settings)
                else:
                    settings["rank"] = rank
                    posterior = LowRankGaussian.from_precision(random, precision, rank, hyperparameters=settings)
        if fixed:
            posterior = PartialGaussian(posterior, fixed, order=list(self.mean))  # type: ignore[arg-type]
        posterior.buffers = dict(self._buffers)
        return posterior

    def log_marginal_likelihood(self, prior_precision: float = 1.0) -> float:
        """Laplace approximation of the log evidence ``log p(data | lambda)`` (MacKay 1992), in nats.

        It is ``log p(data | theta) - lambda |theta|^2 / 2 + D log(lambda) / 2 - log det(curvature + lambda I) / 2``
        over the ``D`` weights of ``random``. It is exact at the optimum of a model that is linear in them with Gaussian
        noise.

        Raises:
            ValueError: The precision is not positive.
        """
        check_positive("prior_precision", prior_precision)
        return self.log_likelihood + log_evidence(self._eigenvalues, self._squared_norm, prior_precision)

    def best_prior_precision(self) -> float:
        """Return the prior precision with the largest :meth:`log_marginal_likelihood`; there is exactly one.

        The weights do not change, whatever prior precision they were trained with.

        Raises:
            ValueError: The weights of ``random`` or their curvature are all zero, so that the evidence has no maximum.
        """
        return best_prior_precision(self._eigenvalues, self._squared_norm)

    @cached_property
    def _eigenvalues(self) -> Tensor:
        """Eigenvalues of the curvature, ``(D,)`` in float64, none of them negative."""
        if isinstance(self.curvature, dict):
            return torch.cat([value.double().flatten() for value in self.curvature.values()])
        if isinstance(self.curvature, KroneckerCurvature):
            return self.curvature.eigenvalues()
        values: Tensor = torch.linalg.eigvalsh(self.curvature)
        return values.clamp_min_(0.0)

    @property
    def _squared_norm(self) -> float:
        return math.fsum(torch.stack([self.mean[name].double().square().sum() for name in self.random]).tolist())


@torch.inference_mode(False)
def laplace(
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood,
    structure: str = "diagonal",
    curvature: str = "ggn",
    prior_precision: float | str = SAFE,
    temperature: float = 1.0,
    last_layer: str | None = None,
    num_data: float | None = None,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> GaussianPosterior:
    """Return the Laplace posterior of a trained model in one call; the arguments that it shares are those of
    :class:`LaplaceApproximation`.

    By default the posterior does not make the network's predictions worse. If a network has more weights than its data
    determine, a prior precision of 1 often gives a posterior so wide that predictions are worse; for a prior precision
    that you give, a warning is issued in that case.

    Args:
        model: The trained model.
        data: As for :class:`LaplaceApproximation`.
        likelihood: Likelihood of the targets given the outputs.
        structure: ``"diagonal"``, ``"kron"``, ``"full"``, ``"last_layer"`` or ``"last_layer_kron"``.
        curvature: ``"ggn"`` or ``"empirical_fisher"``.
        prior_precision: Precision of the prior. ``"marginal_likelihood"`` chooses the one with the largest marginal
            likelihood. ``"safe"`` takes 1, and then multiplies all standard deviations by the largest factor up to 1
            (``hyperparameters["scaled"]``) with which 512 of the data's rows are predicted as well as by the network,
            to within 0.002 nats and by the default method of :func:`bayesadam.predict`. The network was usually trained
            on these rows, and the posterior is then narrower than is best for new rows;
            :func:`bayesadam.tune_posterior` finds the width with held-out rows.
        temperature: Factor of the KL divergence, see :meth:`LaplaceApproximation.posterior`.
        last_layer: Name of the layer for ``"last_layer"`` and ``"last_layer_kron"``.
        num_data: Number of training data points, if ``data`` is only a part of them.
        output: Function that takes the output tensor out of what the model returns.
        batch_size: Rows of a pair in one pass.
        progress: Whether to show a progress bar; by default it is shown for loaders in a terminal.

    Raises:
        ValueError: As for the class and its methods; numbers are checked before the data are read.
        TypeError: The model does not return a tensor and ``output`` is not given.
    """
    if prior_precision not in (EVIDENCE, SAFE):
        rule = f"a positive, finite number, {EVIDENCE!r} or {SAFE!r}"
        check("prior_precision", prior_precision, rule, is_positive)
    check_temperature(temperature, zero=False)
    watched = Watched(unwrapped(model), data, likelihood, output, batch_size)
    fitted = LaplaceApproximation(
        model,
        watched.data,
        likelihood=likelihood,
        structure=structure,
        curvature=curvature,
        last_layer=last_layer,
        num_data=num_data,
        output=output,
        batch_size=batch_size,
        progress=progress,
    )
    if prior_precision == SAFE:
        return watched.harmless(fitted._posterior(1.0, temperature=temperature))
    chosen = fitted.best_prior_precision() if isinstance(prior_precision, str) else prior_precision
    posterior = fitted._posterior(chosen, temperature=temperature)
    watched.warn_of_harm(posterior)
    return posterior
