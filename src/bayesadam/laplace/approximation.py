"""The Laplace approximation: a Gaussian whose precision is the curvature at trained weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bayesadam.calibration.safe import SAFE, Watched
from bayesadam.checks import check, is_whole
from bayesadam.curvature.ranks import unwrapped
from bayesadam.functional.curvature import wide
from bayesadam.laplace.diagonal import DiagonalSum
from bayesadam.laplace.evidence import best_prior_precision, log_evidence
from bayesadam.laplace.full import FullSum
from bayesadam.laplace.kronecker import KroneckerCurvature, KroneckerSum, LastLayerKroneckerSum
from bayesadam.laplace.last_layer import LastLayer, LastLayerSum
from bayesadam.laplace.network import Network
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior.dense import DenseGaussian
from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.gaussian import GaussianPosterior
from bayesadam.posterior.kronecker import KroneckerGaussian
from bayesadam.posterior.low_rank import LowRankGaussian
from bayesadam.posterior.partial import PartialGaussian
from bayesadam.predictive.batches import check_weights_are_used
from bayesadam.predictive.pairs import Data, batches_of_rows, length
from bayesadam.progress import progress_bar

STRUCTURES = ("diagonal", "kron", "full", "last_layer", "last_layer_kron")
LAST_LAYER = ("last_layer", "last_layer_kron")
EVIDENCE = "marginal_likelihood"


class Laplace:
    """The curvature of the likelihood at a model's weights, from which posteriors for any prior precision follow.

    The weights ``theta`` should be where ``sum_n -log p(y_n | x_n, theta) + lambda / 2 |theta|^2`` is least. The model
    is run in eval mode, and is what it was afterwards; the curvature is summed over the data, never averaged. Which
    it is:

    ``curvature="ggn"``
        The generalised Gauss-Newton matrix ``sum_n J_n' H_n J_n``, ``J`` the Jacobian of the outputs and ``H`` the
        expected second derivative of ``-log p(y | output)``: Kessler et al. 2018, eqs. 13-16, for any likelihood. Of a
        likelihood that does not define its ``fisher_factor`` it is the second derivative at the targets, without its
        negative eigenvalues.
    ``curvature="empirical_fisher"``
        The empirical Fisher information ``sum_n g_n g_n'``, ``g`` the gradient of ``log p`` of one data point.

    ``structure="diagonal"``
        Of every weight on its own. For ``"ggn"`` as many backward passes as a data point has outputs, for
        ``"empirical_fisher"`` one (of a sequence of data points, both times its length); nothing is as large as data
        points times weights.
        Modules must be such that :class:`bayesadam.PerExampleSquares` can follow them.
    ``structure="kron"``
        Kronecker-factored (K-FAC: Martens and Grosse 2015; Ritter et al. 2018), of a model of any depth. The weight of
        a linear or convolutional layer, as a matrix of ``O`` rows and ``I`` columns, has the curvature ``B kron A``:
        ``B = sum_n sum_r g g'`` with the gradients ``g`` of the layer's outputs, ``r`` numbering the columns of the
        factor of ``H_n``, and ``A`` the mean over the data of ``a a'``, ``a`` being what the weight is multiplied by.
        Positions, of an image or a sequence, count as data: sums and means are over them, too. The bias has the
        curvature ``B`` and is independent of the weight. This is what laplace-torch has by default. All other tensors
        (those of norm layers, embeddings and convolutions with groups, and weights that are shared or used more than
        once) have the diagonal. As many backward passes as for ``"diagonal"``.
    ``structure="full"``
        The whole matrix in float64, of a small model.
    ``structure="last_layer"``
        The whole matrix over one linear layer; all other weights are fixed.
    ``structure="last_layer_kron"``
        The Kronecker factors of one linear layer, with thousands of outputs, too: where they are the model's, a
        classifier's logits say, no Jacobian and no matrix for a data point is formed.

    Args:
        model: Trained. Its trainable parameters are those that a posterior covers; the model may be wrapped in
            ``DistributedDataParallel``, and then only this process's data count.
        data: A pair ``(inputs, targets)``, or a loader of such pairs; inputs are a tensor, a tuple (``model(*inputs)``)
            or a dict (``model(**inputs)``), whose first tensor has the examples along its first axis.
        likelihood: What the outputs mean.
        structure: See above.
        curvature: See above.
        last_layer: Name of the linear layer for ``structure="last_layer"`` and ``"last_layer_kron"``; default the last
            one that the model calls for the first batch.
        num_data: Number of training data points, if ``data`` is a part of them, or a chosen number: curvature and
            log-likelihood are multiplied by its ratio to the number that ``data`` has. Data points are counted as the
            likelihood does. Default: that number.
        output: Takes the output tensor, examples along its first axis, out of what the model returns.
        batch_size: Rows of a pair in one pass; default 512.
        progress: Show a progress bar; default for loaders in a terminal.

    Attributes:
        mean: The trainable weights by name; copies, float32 or wider.
        curvature: By name for ``"diagonal"``; :class:`bayesadam.laplace.kronecker.KroneckerCurvature` for ``"kron"``
            and ``"last_layer_kron"``; else ``(D, D)`` in float64 over the weights of ``random``, numbered tensor by
            tensor.
        random: Names of the tensors that posteriors are random over.
        log_likelihood: ``sum_n log p(y_n | x_n, theta)``.
        num_data: As given, or counted.

    Raises:
        ValueError: An unknown structure or curvature, something that is no likelihood, or one without second
            derivatives for ``"ggn"``, a model that is too large for a matrix or a factor, has no such layer or merges
            its weights in eval mode, data that are empty, no pairs, or do not fit, or outputs that are not finite.
        TypeError: The model returns no tensor and ``output`` is not given.
    """

    mean: dict[str, Tensor]
    curvature: Tensor | dict[str, Tensor] | KroneckerCurvature
    random: tuple[str, ...]
    log_likelihood: float
    num_data: float

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
        if last_layer is not None and structure not in LAST_LAYER:
            raise ValueError(f"last_layer must only be given for a structure in {LAST_LAYER}, got {last_layer!r}")
        if num_data is not None:
            check("num_data", num_data, "a positive, finite number", _is_positive)
        if batch_size is not None:
            check("batch_size", batch_size, "a whole number of at least 1", is_whole)
        network = Network(unwrapped(model), likelihood, output, curvature)
        total = _sum(network, structure, last_layer)
        self.mean = {
            name: p.detach().to(wide(p.dtype), copy=True, memory_format=torch.contiguous_format)
            for name, p in network.trainable.items()
        }
        try:
            with network.evaluated():
                check_weights_are_used(network.model, () if isinstance(total, LastLayer) else self.mean)
                found = _go_through(network, total, data, batch_size, progress)
                self.curvature = total.result()
                _check_curved(network, self.curvature)
        finally:
            total.close()
        self.random = tuple(total.names) if isinstance(total, LastLayer) else tuple(self.mean)
        self.num_data = found.count if num_data is None else num_data
        self._rescale(self.num_data / found.count)
        self.log_likelihood = found.log_likelihood * self.num_data / found.count
        self._told = {"structure": structure, "curvature": curvature}
        if isinstance(total, LastLayer):
            self._told["last_layer"] = total.name

    def posterior(
        self,
        prior_precision: float = 1.0,
        *,
        num_data: float | None = None,
        temperature: float = 1.0,
        rank: int | None = None,
    ) -> GaussianPosterior:
        """The Gaussian around the weights with precision ``curvature / temperature + prior_precision``.

        Args:
            prior_precision: ``lambda``, of the prior ``N(0, 1 / lambda)``.
            num_data: Another number of data points than ``self.num_data``, by whose ratio the curvature is multiplied.
            temperature: Multiplies the KL divergence (the prior's share) in the objective, so it divides the
                curvature: below 1 the posterior is narrower.
            rank: For ``structure="full"``: keep only so many directions of the covariance, the widest ones, beside a
                diagonal, in a :class:`bayesadam.posterior.low_rank.LowRankGaussian` of the weights' dtype (see its
                ``from_precision``). It takes ``D (rank + 2)`` numbers in place of ``D^2``. Default: all.

        Returns:
            A :class:`bayesadam.DiagonalGaussian`, a :class:`bayesadam.KroneckerGaussian`, a
            :class:`bayesadam.DenseGaussian`, or for one layer a :class:`bayesadam.PartialGaussian` of one of these.
            Of the same fit, Kronecker posteriors share their bases, and cost no more than their eigenvalues.

        Raises:
            ValueError: A number out of range, a rank for another structure, or a precision so much smaller than the
                curvature that the sum is not positive definite.
        """
        if rank is not None and self._told["structure"] != "full":
            raise ValueError(f"rank must be None for structure={self._told['structure']!r}, got {rank!r}")
        check("prior_precision", prior_precision, "a positive, finite number", _is_positive)
        check("temperature", temperature, "a positive, finite number", _is_positive)
        num_data = self.num_data if num_data is None else num_data
        check("num_data", num_data, "a positive, finite number", _is_positive)
        scale = num_data / self.num_data / temperature
        numbers = {"num_data": num_data, "prior_precision": prior_precision, "temperature": temperature}
        told = {"method": "laplace", **self._told, **numbers}
        if isinstance(self.curvature, dict):
            variance = {k: (scale * c + prior_precision).reciprocal_() for k, c in self.curvature.items()}
            return DiagonalGaussian(self._copies(), variance, told)
        copies = self._copies()
        mean = {name: copies.pop(name) for name in self.random}
        random: KroneckerGaussian | DenseGaussian
        if isinstance(self.curvature, KroneckerCurvature):
            random = self.curvature.posterior(mean, scale, prior_precision, told)
        else:
            precision = scale * self.curvature
            precision.diagonal().add_(prior_precision)
            if rank is not None:
                return LowRankGaussian.from_precision(mean, precision, rank, {**told, "rank": rank})
            random = DenseGaussian.from_precision(mean, precision, told)
        return PartialGaussian(random, copies, list(self.mean)) if copies else random

    def log_marginal_likelihood(self, prior_precision: float = 1.0) -> float:
        """The logarithm of the evidence ``p(data | lambda)``, approximately (MacKay 1992), in nats.

        ``log p(data | theta) - lambda |theta|^2 / 2 + D log(lambda) / 2 - log det(curvature + lambda I) / 2`` over the
        ``D`` weights of ``random``; exact for a model that is linear in them with Gaussian noise, at its optimum.

        Raises:
            ValueError: A precision that is not positive.
        """
        check("prior_precision", prior_precision, "a positive, finite number", _is_positive)
        return self.log_likelihood + log_evidence(self._eigenvalues, self._squared_norm, prior_precision)

    def best_prior_precision(self) -> float:
        """The prior precision with the largest :meth:`log_marginal_likelihood`; there is exactly one.

        The weights stay those that were trained, whatever precision they were trained with.

        Raises:
            ValueError: The weights of ``random`` or their curvature are all zero: the evidence then has no maximum.
        """
        return best_prior_precision(self._eigenvalues, self._squared_norm)

    @cached_property
    def _eigenvalues(self) -> Tensor:
        """Of the curvature, ``(D,)`` in float64, none of them negative."""
        if isinstance(self.curvature, dict):
            return torch.cat([value.double().flatten() for value in self.curvature.values()])
        if isinstance(self.curvature, KroneckerCurvature):
            return self.curvature.eigenvalues()
        values: Tensor = torch.linalg.eigvalsh(self.curvature)
        return values.clamp_min_(0.0)

    @property
    def _squared_norm(self) -> float:
        return math.fsum(self.mean[name].double().square().sum().item() for name in self.random)

    def _copies(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.mean.items()}

    def _rescale(self, factor: float) -> None:
        for value in _tensors(self.curvature):
            value.mul_(factor)
            if not value.isfinite().all():
                raise ValueError("the curvature must be finite, got inf or nan")


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
    """The Laplace posterior of a trained model, in one call; see :class:`Laplace`, whose arguments these are.

    By default it does not make the network's predictions worse: where a network has more weights than its data
    determine, the posterior of a prior precision of 1 often is so wide that they are. Of a prior precision that is
    given, a warning says so.

    Args:
        model: Trained.
        data: A pair ``(inputs, targets)``, or a loader of such pairs.
        likelihood: What the outputs mean.
        structure: ``"diagonal"``, ``"kron"``, ``"full"``, ``"last_layer"`` or ``"last_layer_kron"``.
        curvature: ``"ggn"`` or ``"empirical_fisher"``.
        prior_precision: Of the prior. Or ``"marginal_likelihood"``: the one with the largest marginal likelihood. Or
            ``"safe"``: 1, and then all standard deviations are multiplied by the largest factor up to 1
            (``hyperparameters["scaled"]``) with which 512 of the data's rows are predicted as well as by the network,
            to 0.002 nats and by the default method of :func:`bayesadam.predict`. Those are usually rows that it was
            trained on, and the posterior is then narrower than new rows would have it;
            :func:`bayesadam.tune_posterior` finds the width with such rows.
        temperature: See :meth:`Laplace.posterior`.
        last_layer: Name of the layer for ``"last_layer"`` and ``"last_layer_kron"``.
        num_data: Number of training data points, if ``data`` has not all of them.
        output: Takes the output tensor out of what the model returns.
        batch_size: Rows of a pair in one pass.
        progress: Show a progress bar; default for loaders in a terminal.

    Raises:
        ValueError: As for the class and its methods; the numbers are checked before the data are gone through.
        TypeError: The model returns no tensor and ``output`` is not given.
    """
    if prior_precision not in (EVIDENCE, SAFE):
        rule = f"a positive, finite number, {EVIDENCE!r} or {SAFE!r}"
        check("prior_precision", prior_precision, rule, _is_positive)
    check("temperature", temperature, "a positive, finite number", _is_positive)
    watched = Watched(unwrapped(model), data, likelihood, output, batch_size)
    fitted = Laplace(
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
        return watched.harmless(fitted.posterior(1.0, temperature=temperature))
    chosen = fitted.best_prior_precision() if isinstance(prior_precision, str) else prior_precision
    posterior = fitted.posterior(chosen, temperature=temperature)
    watched.warn_of_harm(posterior)
    return posterior


Sum: TypeAlias = DiagonalSum | KroneckerSum | FullSum | LastLayerSum | LastLayerKroneckerSum


def _sum(network: Network, structure: str, last_layer: str | None) -> Sum:
    """What adds up the curvature."""
    if structure == "diagonal":
        return DiagonalSum(network)
    if structure == "kron":
        return KroneckerSum(network)
    if structure == "full":
        return FullSum(network)
    return (LastLayerSum if structure == "last_layer" else LastLayerKroneckerSum)(network, last_layer)


def _tensors(curvature: Tensor | dict[str, Tensor] | KroneckerCurvature) -> list[Tensor]:
    """What a curvature is linear in."""
    return [curvature] if isinstance(curvature, Tensor) else list(curvature.values())


@dataclass
class _Found:
    """Number of data points, and the sum of their log-likelihoods."""

    count: int = 0
    log_likelihood: float = 0.0


def _go_through(
    network: Network,
    total: Sum,
    data: Data,
    batch_size: int | None,
    progress: bool | None,
) -> _Found:
    found = _Found()
    device = next(iter(network.trainable.values())).device
    shown = not isinstance(data, tuple)
    with progress_bar("fitting the curvature", length(data, batch_size), progress, shown=shown) as advance:
        for rows, target in batches_of_rows(data, device, batch_size):
            output = total.add(rows, target)
            with torch.no_grad():
                density = network.likelihood.log_density(output, target).double()
            if not density.isfinite().all():
                raise ValueError(f"the log-likelihood must be finite, got {density[~density.isfinite()][0].item()!r}")
            found.count += density.numel()
            found.log_likelihood += density.sum().item()
            advance()
    if not found.count:
        raise ValueError("data must have at least one example, got none")
    return found


def _check_curved(network: Network, curvature: Tensor | dict[str, Tensor] | KroneckerCurvature) -> None:
    """Raise if a likelihood's fallback has found no curvature in all the data: the posterior would be the prior."""
    if network.curvature == "fisher" or network.likelihood.defines("fisher_factor"):
        return
    if not any(value.any() for value in _tensors(curvature)):
        raise network.likelihood.missing("fisher_factor, as its log density has no second derivative")


def _is_positive(value: Any) -> bool:
    return bool(0 < value < math.inf)
