"""The optimisers of the members of an ensemble, their checkpoints and their posteriors."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesadam.curvature import PerExampleSquares
from bayesadam.ensembles.in_turn import Generators
from bayesadam.files import reading, whole_file
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.batch_norm import statistics_are_fixed
from bayesadam.optim import OPTIMIZERS, VOGN, BayesAdam, PerturbedOptimizer
from bayesadam.posterior import DenseGaussian, DiagonalGaussian, KroneckerGaussian, PartialGaussian
from bayesadam.predictive import with_batch_norm

LIKELIHOOD_RATE = 0.01
"""Learning rate of a likelihood's parameters, with which a noise level follows the residuals."""
WHOLE = {"nonfinite", "correction"}
"""Options of optimisers by which some parameters decide about the step of all."""
Gaussians = DenseGaussian | DiagonalGaussian | KroneckerGaussian


class Training:
    """The networks of an ensemble with their optimisers, and learning rates that fall to zero by half a cosine.

    Args:
        models: The networks.
        likelihood: What their outputs mean, whose parameters are trained without noise; ``None`` for a loss.
        generators: Their random numbers.
        method: Name of the optimiser.
        seeds: Seeds of their noise.
        plan: ``num_data``, ``batch_size`` and ``total_steps`` of the training.
        options: Arguments of the optimiser.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        likelihood: Likelihood | None,
        generators: Generators,
        method: str,
        seeds: Sequence[int],
        plan: Mapping[str, int],
        options: Mapping[str, Any],
    ) -> None:
        self._models, self._generators = models, generators
        self._optimizers = _optimizers(models, method, seeds, plan, options)
        self._steps, self._total_steps = 0, plan["total_steps"]
        for group in self._groups():
            group["initial_lr"] = group["lr"]  # as schedulers of PyTorch do, which replace that of an optimiser
        learned = [] if likelihood is None else [p for p in likelihood.parameters() if p.requires_grad]
        self._likelihoods = [likelihood] if learned else []
        self._followers = [torch.optim.Adam(learned, lr=LIKELIHOOD_RATE)] if learned else []

    def start(self) -> None:
        """Put samples into the weights."""
        for follower in self._followers:
            follower.zero_grad()
        for optimizer in self._optimizers:
            if isinstance(optimizer, PerturbedOptimizer):
                optimizer.train()

    def step(self) -> None:
        """Make a step of all members."""
        for optimizer in self._optimizers:
            optimizer.step()
        self._steps += 1
        share = 0.5 * (1.0 + math.cos(math.pi * self._steps / self._total_steps))
        for group in self._groups():
            group["lr"] = share * group["initial_lr"]
        for follower in self._followers:
            follower.step()
            follower.zero_grad()

    def end(self) -> None:
        """Put the means into the weights."""
        for optimizer in self._optimizers:
            if isinstance(optimizer, PerturbedOptimizer):
                optimizer.eval()

    def save(self, path: str | os.PathLike[str], told: Mapping[str, Any], epochs: int) -> None:
        """Write a checkpoint after a number of epochs, with what was told about the training; weights hold samples
        before and afterwards.
        """
        self.end()
        with whole_file(path) as file:
            states = {name: [part.state_dict() for part in parts] for name, parts in self._parts().items()}
            counts = {"epochs": epochs, "steps": self._steps}
            torch.save({"told": repr(told), **counts, "generators": self._generators.states, **states}, file)
        self.start()

    def load(self, path: str | os.PathLike[str], told: Mapping[str, Any]) -> int:
        """Read a checkpoint, if there is one; return its number of epochs.

        Raises:
            ValueError: It is of another training.
        """
        if not Path(path).exists():
            return 0
        with reading("checkpoint must be a file of train_ensemble", path):
            state = torch.load(path, weights_only=True)
            saved, epochs, steps = state["told"], int(state["epochs"]), int(state["steps"])
        if saved != repr(told):
            raise ValueError(f"checkpoint must be of this training, {told}, got one of {saved}")
        for name, parts in self._parts().items():
            for part, saved_part in zip(parts, state[name], strict=True):
                part.load_state_dict(saved_part)
        self._generators.states, self._steps = state["generators"], steps
        return epochs

    def _groups(self) -> Iterator[dict[str, Any]]:
        """The groups of all optimisers of networks."""
        return chain.from_iterable(optimizer.param_groups for optimizer in self._optimizers)

    def _parts(self) -> dict[str, Sequence[Any]]:
        """What a checkpoint has the state dicts of."""
        return {
            "models": self._models,
            "optimizers": self._optimizers,
            "likelihoods": self._likelihoods,
            "followers": self._followers,
        }

    def posteriors(self, inputs: Any) -> list[Gaussians | PartialGaussian]:
        """The posteriors of all members, with the constants that are not the same for all and with the batch norm
        statistics of their means, for training inputs in any form that ``predict`` takes.
        """
        constants = [
            {n: p.detach().clone() for n, p in m.named_parameters() if not p.requires_grad} for m in self._models
        ]
        differing = [n for n, value in constants[0].items() if any(not value.equal(each[n]) for each in constants)]
        posteriors: list[Gaussians | PartialGaussian] = []
        optimizers = self._optimizers * (len(self._models) // len(self._optimizers))
        for model, optimizer, constant in zip(self._models, optimizers, constants, strict=True):
            model.eval()
            posterior: Gaussians = DiagonalGaussian.point_mass(model)
            if isinstance(optimizer, PerturbedOptimizer):
                posterior = optimizer.posterior(model)
                if not statistics_are_fixed(model):
                    posterior = with_batch_norm(model, posterior, inputs)
            if differing:
                partial = PartialGaussian(posterior, {name: constant[name] for name in differing})
                posteriors.append(partial.with_buffers(posterior.buffers))
            else:
                posteriors.append(posterior)
        return posteriors


def _optimizers(
    models: Sequence[nn.Module], method: str, seeds: Sequence[int], plan: Mapping[str, Any], options: Mapping[str, Any]
) -> list[torch.optim.Optimizer]:
    """One optimiser of all networks; or one for each, if it sees more of a network than element after element."""
    if method == "adam":
        trained = [p for model in models for p in model.parameters() if p.requires_grad]
        fastest = {} if "foreach" in options else {"fused": trained[0].device.type in ("cpu", "cuda")}
        return [torch.optim.Adam(trained, **{**fastest, **options})]
    kind = OPTIMIZERS[method]
    names = ("num_data", "batch_size", "total_steps") if kind is BayesAdam else ("num_data",)
    given = {**{name: plan[name] for name in names}, **options}
    groups = [{"params": list(m.named_parameters()), "seed": seed} for m, seed in zip(models, seeds, strict=True)]
    if kind is VOGN:
        squares = map(PerExampleSquares, models)
        return [kind([group], **given, curvature=each) for group, each in zip(groups, squares, strict=True)]
    if WHOLE & {*options}:
        return [kind([group], **given) for group in groups]
    return [kind(groups, **given)]
