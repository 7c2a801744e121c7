"""The likelihoods of all members, at the outputs of several sets of weights each."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.population.layout import Layout
from bayesadam.population.modules import signature, tensors
from bayesadam.population.perceptron import Weights


class Likelihoods:
    """One likelihood per member, all of one kind, which may differ in the values of parameters and buffers.

    Attributes:
        layout: Layout of the trainable parameters, which most likelihoods do not have.
        fixed: All other parameters and buffers, each ``(P, ...)``.
    """

    def __init__(self, likelihoods: Sequence[Likelihood]) -> None:
        for position, likelihood in enumerate(likelihoods):
            check_likelihood(likelihood, where=f" at position {position}")
            if signature(likelihood) != signature(likelihoods[0]):
                raise ValueError(f"likelihood must be of one kind for all members, got another at position {position}")
        self.members = list(likelihoods)
        self.layout = Layout({name: p.shape for name, p in likelihoods[0].named_parameters() if p.requires_grad})
        fixed = [name for name, _ in tensors(likelihoods[0]) if name not in self.layout.shapes]
        self.fixed = {n: torch.stack([dict(tensors(m))[n].detach() for m in likelihoods]) for n in fixed}
        self._alike = not self.layout.shapes and all(value.eq(value[:1]).all() for value in self.fixed.values())
        self._density = _Method(likelihoods[0], "log_density")
        self._score = _Method(likelihoods[0], "score")
        self._closed = not self.layout.shapes and likelihoods[0].defines("score")

    def select(self, rows: Tensor) -> Likelihoods:
        """The likelihoods of some of the members."""
        chosen = copy.copy(self)
        chosen.members = [self.members[row] for row in rows.tolist()]
        chosen.fixed = {name: value[rows] for name, value in self.fixed.items()}
        return chosen

    def log_density(self, weights: Weights, output: Tensor, target: Tensor) -> Tensor:
        """``log p(y | output)`` of every data point of the first ``k`` members, ``(k, S, M)``.

        Args:
            weights: Trainable parameters by name, ``(k, S, *shape)``.
            output: Outputs, ``(k, S, M, ...)``.
            target: Targets ``(k, M, ...)`` that were checked before.
        """
        if self._alike:  # without vmap, which costs as much as all the rest of a small network
            count, samples, points = output.shape[:3]
            rows = output.transpose(0, 1).reshape(samples, count * points, *output.shape[3:])
            density = self.members[0].log_density(rows, target.reshape(count * points, *target.shape[2:]))
            return density.view(samples, count, points, *density.shape[2:]).transpose(0, 1)
        fixed = {name: value[: len(output)] for name, value in self.fixed.items()}
        if weights:
            run = vmap(vmap(self._run, in_dims=(0, None, 0, None)))
            result: Tensor = run(dict(weights), fixed, output, target)
        else:
            result = vmap(lambda *rest: self._run({}, *rest))(fixed, output, target)
        return result

    def slope(self, output: Tensor, target: Tensor) -> Tensor | None:
        """``d log p / d output``, of the output's shape ``(k, S, M, ...)``; ``None`` without a closed form."""
        if not self._closed:
            return None
        target = target.unsqueeze(1)
        if self._alike:
            return self.members[0].score(output, target)
        fixed = {f"likelihood.{name}": value[: len(output)] for name, value in self.fixed.items()}
        if not self.members[0].defines("element_log_density"):
            mapped: Tensor = vmap(lambda *given: functional_call(self._score, given[0], given[1:]))(
                fixed, output, target
            )
            return mapped
        # Parameters are numbers or one per output, so they broadcast, which costs much less than vmap.
        aligned = {n: v.view(len(v), *[1] * (output.ndim - v.ndim), *v.shape[1:]) for n, v in fixed.items()}
        result: Tensor = functional_call(self._score, aligned, (output, target))
        return result

    def _run(self, weights: Weights, fixed: Weights, output: Tensor, target: Tensor) -> Tensor:
        state = {f"likelihood.{name}": value for name, value in {**weights, **fixed}.items()}
        result: Tensor = functional_call(self._density, state, (output, target))
        return result


class _Method(nn.Module):
    """A method of a likelihood as the forward method of a module, as ``functional_call`` needs it."""

    def __init__(self, likelihood: Likelihood, name: str) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.name = name

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        result: Tensor = getattr(self.likelihood, self.name)(output, target)
        return result
