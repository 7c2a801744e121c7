"""Kronecker factors of the curvature of all layers or of one, and the posteriors that they give with a prior
precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesadam.curvature.factors import KroneckerFactors, LayerFactors
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.posterior.kronecker import KroneckerGaussian
from bayesadam.posthoc.diagonal import BackwardSum
from bayesadam.posthoc.last_layer import Call, LastLayer
from bayesadam.posthoc.trained_network import Hessians, TrainedNetwork


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of one tensor's curvature, in its shape as a matrix, and their bases.

    Attributes:
        values: ``b a'``, ``(O, I)`` in float64; not negative.
        left: Eigenvectors of ``B``, in columns.
        right: Eigenvectors of ``A``, if there is an ``A``.
    """

    values: Tensor
    left: Tensor | None = None
    right: Tensor | None = None


@dataclass(frozen=True)
class KroneckerCurvature:
    """Kronecker-factored curvature of a model, independent between tensors.

    Attributes:
        layers: Factors of the layers whose curvature is factored.
        diagonal: Diagonal curvature of all other tensors, by name.
    """

    layers: tuple[LayerFactors, ...]
    diagonal: Mapping[str, Tensor]

    def values(self) -> list[Tensor]:
        """The tensors by which the curvature can be multiplied by a number."""
        return [*(layer.outputs for layer in self.layers), *self.diagonal.values()]

    @cached_property
    def spectra(self) -> dict[str, Spectrum]:
        """Eigenvalues and bases by name. They are computed at the first access."""
        spectra = {name: Spectrum(value.double()) for name, value in self.diagonal.items()}
        for layer in self.layers:
            b, left = _eigen(layer.outputs)
            if layer.bias is not None:
                spectra[layer.bias] = Spectrum(b, left)
            if layer.weight is not None and layer.inputs is not None:
                a, right = _eigen(layer.inputs)
                spectra[layer.weight] = Spectrum(torch.outer(b, a), left, right)
        return spectra

    @cached_property
    def _bases(self) -> dict[tuple[int, torch.dtype], Tensor]:
        """Eigenvectors in other dtypes, shared by all posteriors, and by a weight and its bias."""
        return {}

    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the whole curvature, ``(D,)`` in float64, none of them negative."""
        return torch.cat([spectrum.values.flatten() for spectrum in self.spectra.values()])

    def posterior(
        self, mean: Mapping[str, Tensor], scale: float, prior_precision: float, hyperparameters: Mapping[str, Any]
    ) -> KroneckerGaussian:
        """Return the Gaussian around the weights with precision ``scale curvature + prior_precision``, in the
        weights' dtypes.
        """
        variance: dict[str, Tensor] = {}
        left: dict[str, Tensor] = {}
        right: dict[str, Tensor] = {}
        for name, value in mean.items():
            spectrum = self.spectra[name]
            inverse = (scale * spectrum.values + prior_precision).reciprocal_()
            variance[name] = inverse.view(value.shape).to(value.dtype)
            for bases, basis in ((left, spectrum.left), (right, spectrum.right)):
                if basis is not None:
                    key = id(basis), value.dtype
                    if key not in self._bases:
                        self._bases[key] = basis.to(value.dtype)
                    bases[name] = self._bases[key]
        return KroneckerGaussian(mean, variance, left, right, hyperparameters=hyperparameters)


class KroneckerSum(BackwardSum):
    """Factors of ``sum_n J_n' H_n J_n``.

    Raises:
        ValueError: A layer is too wide.
    """

    structure = "kron"

    def __init__(self, network: TrainedNetwork) -> None:
        self.factors = KroneckerFactors(network.model, reduction="sum")
        super().__init__(network, self.factors)
        for module, name in self.factors.factored():
            weight: Any = module.weight
            for side, what in ((len(weight), "outputs"), (weight[0].numel(), "inputs")):
                if side > MAX_WEIGHTS:
                    self.close()
                    raise _too_wide(self.structure, side, f"{what} of {name!r}")

    def _announce(self, output: Tensor, hessians: Hessians) -> None:
        self.factors.count_only(hessians.counted if hessians.target.ndim > 1 else None)  # rows were left out before
        if hessians.are_blocks:
            self.factors.give(output, hessians.total)

    def result(self) -> KroneckerCurvature:
        """The factors, and the diagonal for all other tensors."""
        layers = tuple(self.factors.layers())
        factored = {name for layer in layers for name in (layer.weight, layer.bias)}
        return KroneckerCurvature(layers, self.diagonal(but=factored))


class LastLayerKroneckerSum(LastLayer):
    """Kronecker factors of one linear layer with any number of outputs.

    If the layer's outputs are the model's, their Hessians are summed without the factor of any single one (see
    :meth:`bayesadam.likelihoods.Likelihood.fisher_sum`); otherwise they are pulled back through the layers that follow.
    """

    structure = "last_layer_kron"
    needs_factor = False

    def result(self) -> KroneckerCurvature:
        """The factors of the layer."""
        layer = LayerFactors(self.names[0], self.names[1] if len(self.names) > 1 else None, self._outputs, self._inputs)
        return KroneckerCurvature((layer,), {})

    def _begin(self) -> None:
        outputs, width = self.layer.weight.shape
        for side, what in ((outputs, "outputs"), (width, "inputs")):
            if side > MAX_WEIGHTS:
                raise _too_wide(self.structure, side, f"{what} of {self.name!r}")
        device = self.layer.weight.device
        self._outputs, self._total = (
            torch.zeros(side, side, dtype=torch.float64, device=device) for side in (outputs, width)
        )
        self._count: int | Tensor = 0

    @property
    def _inputs(self) -> Tensor:
        return self._total / self._count

    def _collect(self, call: Call, output: Tensor, hessians: Hessians, *, gives: bool) -> None:
        features, counted = call.features.double(), hessians.counted
        if counted is not None and counted.shape != features.shape[:-1]:
            counted = None
        if gives:
            self._outputs += hessians.total()
        else:
            pulled = self._pulled(call, output, hessians)
            matrix = pulled.movedim(-2, 0).flatten(1)
            self._outputs.addmm_(matrix, matrix.mT)
            if counted is not None:  # see KroneckerFactors.count_only
                counted = counted | (torch.linalg.vector_norm(pulled.flatten(-2), dim=-1) != 0.0)
        if counted is not None:
            features = features * counted.unsqueeze(-1)
        features = features.flatten(0, -2)
        self._total.addmm_(features.mT, features)
        self._count += len(features) if counted is None else counted.sum()


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of a matrix that is positive semi-definite, and symmetric up to rounding."""
    values, vectors = torch.linalg.eigh(torch.lerp(matrix, matrix.mT, 0.5))
    return values.clamp_min_(0.0), vectors.contiguous()


def _too_wide(structure: str, side: int, what: str) -> ValueError:
    return ValueError(
        f"structure must be 'diagonal' or 'last_layer' where a factor would have more than {MAX_WEIGHTS:,} rows, "
        f"got {structure!r} for {side:,} {what}, which is {side**2 * 8 / 1e9:,.1f} GB"
    )
