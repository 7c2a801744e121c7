"""Equal mixtures of posteriors, and ensembles of trained networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.modules.wrappers import buffers_of, innermost
from bayesadam.posterior.base import Posterior, posterior_kinds
from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.gaussian_posterior import GaussianPosterior

_WORD = 2**64 - 1


class Mixture(Posterior):
    """An equally weighted mixture of posteriors over the same weights.

    Sample number ``i`` is sample number ``i // K`` of component ``i % K``. ``predict`` takes a multiple of ``K``
    samples, which has equally many from each component; a component without variance is run once, and an ensemble of
    networks takes as many passes as it has members. Every component has its own seed, a hash of the mixture's seed and
    the component's number, so that no two components share noise, even in mixtures of mixtures.

    The mean averages weights of networks that may have nothing in common except their architecture (the order of hidden
    units, for example, differs between members). It can be inspected but is never put into a network, not even by
    ``predict(method="mean")``.

    Args:
        components: Gaussian posteriors or mixtures, over weights of the same names and shapes, with buffers of the same
            names. They are kept, not copied.
        hyperparameters: JSON values that say how the mixture was found; those of the components are added as
            ``"components"``.

    Raises:
        ValueError: There are no components, or components of another kind, over different weights or with different
            buffers.
    """

    def __init__(
        self,
        components: Iterable[GaussianPosterior | Mixture],
        *,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.components = tuple(components)
        if not self.components:
            raise ValueError("components must have at least one posterior, got none")
        for number, q in enumerate(self.components):
            if not isinstance(q, GaussianPosterior | Mixture):
                raise ValueError(f"components must be Gaussian posteriors or mixtures, got {type(q).__name__}")
            self.components[0]._check_weights(q, f"components[{number}]")
            self.components[0]._check_buffers(q, f"components[{number}]")
        of_components = [q.hyperparameters for q in self.components]
        self.hyperparameters = {**(hyperparameters or {}), "components": of_components}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.components)} components, the first {self.components[0]!r})"

    @cached_property
    def mean(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Average of the components' means, by name. It is computed at the first access."""
        return _average([q.mean for q in self.components])

    @cached_property
    def variance(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Total variance of every weight, by name: the average variance plus the variance of the means."""
        within = _average([q.variance for q in self.components])
        for name, value in within.items():
            means = torch.stack([q.mean[name].double().to(value.device) for q in self.components])
            within[name] = (value + (means - means.mean(0)).square().mean(0)).to(value.dtype)
        return within

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shape of every weight tensor by name, as in the base class."""
        return self.components[0].shapes

    @property
    def strata(self) -> int:  # type: ignore[override]
        """Number of strata with equal weights: the components, each as often as unequal numbers of components in them
        require.
        """
        return len(self.components) * math.lcm(*(q.strata for q in self.components))

    def repeats(self, count: int) -> list[int]:
        """The numbers of the first equal samples, as in the base class."""
        size = len(self.components)
        parts = [q.repeats(-(-count // size)) for q in self.components]
        return [parts[number % size][number // size] * size + number % size for number in range(count)]

    def match(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the model's parameters that the components cover, by name, as in the base class."""
        return self.components[0].match(model)

    def writer(self, seed: int = 0) -> Callable[[Mapping[str, Tensor], int | None], None]:
        """Return a function that writes samples in place, as in the base class.

        Raises:
            ValueError: The seed is out of range; raised by the function if the number is negative or None.
        """
        seed, *_ = noise.checked(seed, 0, 0, 0, 0)
        count = len(self.components)
        writers = [q.writer(component_seed(seed, number)) for number, q in enumerate(self.components)]

        def write(targets: Mapping[str, Tensor], number: int | None) -> None:
            if number is None:
                raise ValueError(
                    "sample must be given for a mixture (the mean of its components' weights is no "
                    f"network of it; use method='monte_carlo'), got {number!r}"
                )
            if number < 0:
                raise ValueError(f"sample must be an integer of at least 0, got {number!r}")
            writers[number % count](targets, number // count)

        return write

    def _center(self, number: int) -> Mapping[str, Tensor]:
        """Means of the component that the sample is from, as in the base class."""
        count = len(self.components)
        return self.components[number % count]._center(number // count)

    def _buffers_of(self, number: int | None) -> Mapping[str, Tensor]:
        """Buffers of the component that the sample is from, as in the base class."""
        assert number is not None  # which the function of :meth:`writer` refuses
        count = len(self.components)
        return self.components[number % count]._buffers_of(number // count)

    def _scaled(self, factor: float, hyperparameters: Mapping[str, Any]) -> Mixture:
        """The scaled mixture, as in the base class; the variance between the components does not change."""
        return type(self)([q.scaled(factor) for q in self.components], hyperparameters=hyperparameters)

    def log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """Joint log density ``log (1/K sum_k q_k(theta))`` of all weights, in float64.

        Args:
            theta: Weights by name, each of the weight's shape with any leading axes (the same for all names).

        Returns:
            A tensor with the shape of the leading axes.

        Raises:
            ValueError: Different weights are random in different components, so that their densities have no common
                measure.
        """
        point = {name: value == 0 for name, value in self.components[0].variance.items()}
        for number, q in enumerate(self.components):
            for name, value in q.variance.items():
                if not torch.equal(value == 0, point[name].to(value.device)):
                    raise ValueError(
                        "components must have the same point masses for a density, "
                        f"got others in {name!r} of component {number}"
                    )
        terms = [q.log_prob(theta) for q in self.components]
        return torch.stack([term.to(terms[0].device) for term in terms]).logsumexp(0) - math.log(len(terms))

    def _to(self, device: torch.device | str | None, dtype: torch.dtype | None) -> Mixture:
        """The mixture of the moved components."""
        return type(self)([q.to(device, dtype) for q in self.components], hyperparameters=self.hyperparameters)

    def _tensors(self) -> dict[str, Tensor]:
        """``{"<number>/<kind>/<key>": ...}``, with the keys of each component's own tensors."""
        return {
            f"{number}/{type(q).__name__}/{key}": value
            for number, q in enumerate(self.components)
            for key, value in q.tensors().items()
        }

    @classmethod
    def _from_tensors(cls, tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> Mixture:
        """The inverse of :meth:`_tensors`."""
        parts: dict[tuple[str, str], dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, kind, rest = key.split("/", 2)
            parts.setdefault((number, kind), {})[rest] = value
        if [number for number, _ in parts] != [str(i) for i in range(len(parts))]:
            raise ValueError(f"components must be numbered from 0, each of one kind, got {list(parts)}")
        kinds, of_components = posterior_kinds(), hyperparameters["components"]
        components: list[Any] = [
            kinds[kind].from_tensors(part, of)
            for ((_, kind), part), of in zip(parts.items(), of_components, strict=True)
        ]
        return cls(components, hyperparameters=hyperparameters)


def ensemble(models: Iterable[nn.Module], *, hyperparameters: Mapping[str, Any] | None = None) -> Mixture:
    """Make a deep ensemble (Lakshminarayanan et al. 2017) of trained networks: an equal mixture of point masses.

    ``predict`` runs each network once and returns exactly the average of their predictive distributions (section 2.4 of
    the paper).

    Args:
        models: Networks of one architecture, trained from different initial values. Parameters that are trainable in
            any of them are copied, and so are frozen parameters that differ, and buffers such as the running statistics
            of batch norm. Frozen parameters that are equal in all networks are taken from the model given to
            ``predict``. All tensors are moved to the device of the first network; the modes of the networks do not
            matter.
        hyperparameters: JSON values that say how the networks were trained.

    Raises:
        ValueError: There are no models; their parameters or buffers have other names, shapes or dtypes; integer
            parameters differ; or weights are not finite.
    """
    models = list(map(innermost, models))
    if not models:
        raise ValueError("models must have at least one network, got none")
    states, buffers = [dict(model.named_parameters()) for model in models], [buffers_of(model) for model in models]
    kinds = [
        {name: (tuple(value.shape), value.dtype) for name, value in {**state, **others}.items()}
        for state, others in zip(states, buffers, strict=True)
    ]
    for number, kind in enumerate(kinds):
        for name in {**kinds[0], **kind}:
            if kind.get(name) != kinds[0].get(name):
                raise ValueError(
                    f"models must be of one architecture, got {name!r} {kinds[0].get(name)} in model 0 and "
                    f"{kind.get(name)} in model {number}"
                )
    members: list[dict[str, Tensor]] = [{} for _ in states]
    for name, first in states[0].items():
        values = [state[name].detach().to(first.device) for state in states]
        trainable = any(state[name].requires_grad for state in states)
        if trainable or not all(torch.equal(value, values[0]) for value in values):
            for member, value in zip(members, values, strict=True):
                member[name] = value.clone()
    points = [DiagonalGaussian.point_mass(member) for member in members]
    device = next(iter(states[0].values())).device
    components = [q.with_buffers(others).to(device) for q, others in zip(points, buffers, strict=True)]
    return Mixture(components, hyperparameters=hyperparameters)


def _average(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average of tensors by name, computed in float64, in the dtype and on the device of the first."""
    average = {}
    for name, first in parts[0].items():
        total = torch.zeros_like(first, dtype=torch.float64)
        for part in parts:
            total += part[name].to(total)
        average[name] = (total / len(parts)).to(first.dtype)
    return average


def component_seed(seed: int, number: int) -> int:
    """Seed of a component by SplitMix64 (Steele, Lea and Flood 2014); each step is a bijection, so no two seeds are
    equal.
    """
    word = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & _WORD
    return word ^ word >> 31
