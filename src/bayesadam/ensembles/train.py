"""``train_ensemble``: several networks, trained by any optimiser of the library, as one mixture of posteriors."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from bayesadam.checks import check_count, check_new, check_pair, check_positive, made_by
from bayesadam.ensembles.in_turn import Generators, InTurn, Loss, random_state, with_channels_last
from bayesadam.ensembles.minibatches import Data, Minibatch, minibatches
from bayesadam.ensembles.together import Together, stack, without_fast_attention
from bayesadam.ensembles.training import Training
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.population import METHODS
from bayesadam.posterior import Mixture
from bayesadam.progress import progress_bar

_FLOPS = 10_000_000
"""Floating point operations of a forward pass from which on a CPU computes members faster one after another."""
_HOOKS = "vogn squares the gradients of single examples, which hooks collect in each network"


@torch.inference_mode(False)
@torch.enable_grad()
def train_ensemble(
    make_model: Callable[[], nn.Module],
    data: Data,
    *,
    likelihood: Likelihood | None = None,
    loss: Loss | None = None,
    epochs: int,
    batch_size: int | None = None,
    members: int = 5,
    method: str = "bayesadam",
    lr: float | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    together: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Mixture:
    """Train several networks from different first weights, each with a posterior of its own, and return their mixture.

    It is a deep ensemble (Lakshminarayanan et al. 2017) whose members are posteriors and not points: the mixture has
    the variance within every member, and that between them. Member ``m`` is trained as it would be alone, with the seed
    ``seed + m``, which decides its first weights, the order of its data, its dropout and its noise. It takes one sample
    per step, and the learning rate falls to zero by half a cosine. The optimiser is told the number of data points over
    which the likelihood's loss is a mean, such as the tokens of sequences.

    The members are trained together: one optimiser makes a step of all of them, and their gradients are computed at
    once where ``torch.func.vmap`` gives those that each network has alone, which is tried on the first minibatch. This
    holds for perceptrons (by closed forms), convolutions, attention, all kinds of normalisation and dropout. Otherwise,
    as for recurrent layers, the gradients are computed in turn, and a warning says why. On a CPU those of convolutions,
    and of networks with more than ten million operations in a pass, are computed in turn, because it is faster. The
    same seeds give the same members either way, up to rounding, but for two kinds of dropout whose numbers are others
    together: that of a tensor whose memory is not in the order of its elements, as after the attention of a
    ``TransformerEncoderLayer(batch_first=True)``, and that inside the attention kernels of a GPU.

    Args:
        make_model: Makes a network that takes and returns one tensor, with its first weights from torch's generator.
        data: Training inputs and targets ``(x, y)``, on the device of the network; or a ``DataLoader`` of such pairs,
            whose minibatches are read once for all members, in an order that ``seed`` decides.
        likelihood: What the outputs mean. Its ``nll`` is the loss. Numbers in it that are learned, such as a noise
            level, are the same for all members, and are trained by the sum of their losses, by Adam with a rate of
            0.01.
        loss: Function of outputs and targets that returns the mean loss of a minibatch, in place of a likelihood.
        epochs: Passes over the data.
        batch_size: Data points per minibatch; of a loader, by default its own.
        members: How many networks.
        method: ``"bayesadam"`` or another name of an optimiser of the library, or ``"adam"`` for point masses, an
            ordinary deep ensemble.
        lr: Learning rate at the start; default: that of the optimiser.
        options: Further arguments of the optimiser by name.
        seed: Seed of the first member.
        together: ``True`` computes the gradients at once or raises an error, and ``False`` computes them in turn.
        checkpoint: File that is written after every epoch. If it exists, the training goes on after its epoch, and ends
            as without the interruption.
        progress: Whether to show a progress bar; by default it is shown in a terminal.

    Returns:
        An equal mixture of the members' posteriors. Its hyper-parameter ``"trained"`` is ``"together"``, or ``"in
        turn"`` with the reason. The statistics of batch norm layers are those of every member's mean; give
        :func:`bayesadam.predict` training inputs as ``batch_norm`` for those of every sample.

    Raises:
        ValueError: A number is out of range, the method is unknown, something is no likelihood, the data are no pair of
            as many inputs as targets, ``make_model`` is no function that returns new networks, the checkpoint is of
            another training, or gradients cannot be computed together and ``together`` is true.
        TypeError: The optimiser does not have an option.
        FloatingPointError: A gradient is not finite.

    Warns:
        UserWarning: The gradients cannot be computed at once.
    """
    batch_size = _checked_batch_size(data, batch_size)
    for name, value in {"epochs": epochs, "batch_size": batch_size, "members": members}.items():
        check_count(name, value)
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if lr is not None:
        check_positive("lr", lr)
    if likelihood is not None and loss is None:
        check_likelihood(likelihood)
        loss = likelihood.nll
    elif likelihood is not None or loss is None:
        raise ValueError(f"likelihood must be given, or loss in its place, got {likelihood!r} and {loss!r}")
    given = dict(options or {}) if lr is None else {"lr": lr, **(options or {})}
    told = {"method": method, "epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed, **(options or {})}
    per_epoch = len(data) if isinstance(data, DataLoader) else math.ceil(len(data[0]) / batch_size)
    if not per_epoch:
        raise ValueError("data must have minibatches, got an empty loader")
    num_data = len(data.dataset if isinstance(data, DataLoader) else data[0])  # type: ignore[arg-type]
    seeds = range(seed, seed + members)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        models, generators = _initialized(make_model, seeds)
        device = next(models[0].parameters()).device
        batch = next(minibatches(data, seeds, batch_size, 0, device))
        first = _first_pass(models[0], likelihood, batch)
        gradients, trained = _gradients(models, loss, generators, batch, first, method, together)
        plan = {
            "num_data": round(first.points * num_data),
            "batch_size": round(first.points * min(num_data, batch_size)),
            "total_steps": per_epoch * epochs,
        }
        training = Training(models, likelihood, generators, method, seeds, plan, given)
        done = 0 if checkpoint is None else training.load(checkpoint, told)
        training.start()
        with progress_bar(
            f"training {members} members {trained.partition(':')[0]}", per_epoch * epochs, progress
        ) as advance:
            advance(per_epoch * done)
            for epoch in range(done, epochs):
                losses: list[Tensor] = []
                for batch in minibatches(data, seeds, batch_size, epoch, device):
                    losses.append(gradients.backward(batch))
                    if not losses[-1].is_cuda and not losses[-1].isfinite().all():
                        break
                    training.step()
                    advance()
                _check_finite(losses, seed)  # a GPU, whose parameters nan makes nan, is waited for here alone
                if checkpoint is not None:
                    training.save(checkpoint, told, epoch + 1)
        training.end()
        posteriors = training.posteriors(data if isinstance(data, DataLoader) else data[0])
    return Mixture(posteriors, hyperparameters={**told, "trained": trained})


def _checked_batch_size(data: Any, batch_size: int | None) -> int:
    """The size of the minibatches, after a check of the data."""
    if not isinstance(data, DataLoader):
        check_pair(data)
    elif batch_size is None:
        batch_size = data.batch_size
    return batch_size  # type: ignore[return-value]  # it is checked with other numbers


def _initialized(make_model: Callable[[], nn.Module], seeds: Sequence[int]) -> tuple[list[nn.Module], Generators]:
    """Networks in training mode, and the random numbers that follow those of their first weights."""
    models, states = [], []
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(made_by(make_model).train())
        check_new(models)
        states.append(random_state())
    return models, Generators(states)


class _FirstPass(NamedTuple):
    """What a forward pass of one network shows.

    Attributes:
        points: How many data points an example has in the mean, such as the tokens of a sequence.
        is_large: Whether it has so much to compute that several networks at once are not faster on a CPU.
        channels_last: Whether it may have images with the channels last in memory, which are faster for convolutions
            on a CPU.
    """

    points: float
    is_large: bool
    channels_last: bool


@torch.no_grad()
def _first_pass(model: nn.Module, likelihood: Likelihood | None, batch: Minibatch) -> _FirstPass:
    """Run a network in evaluation mode."""
    x, y = batch.of(0)
    is_convolutional = any(isinstance(module, _ConvNd) for module in model.modules())
    channels_last = is_convolutional and x.ndim == 4 and not x.is_cuda
    with without_fast_attention(), FlopCounterMode(display=False) as counter:
        model.eval()
        try:
            output = model(with_channels_last(x) if channels_last else x)
        except RuntimeError:
            if not channels_last:
                raise
            channels_last, output = False, model(x)
        model.train()
    points, counted = len(y), None if likelihood is None else likelihood.counted(y)
    if counted is not None:
        points = int(counted.sum())
    elif likelihood is not None:
        points = likelihood.log_prob(output, y).numel()
    is_large = is_convolutional or counter.get_total_flops() > _FLOPS
    return _FirstPass(points / len(y), is_large, channels_last)


def _gradients(
    models: Sequence[nn.Module],
    loss: Loss,
    generators: Generators,
    batch: Minibatch,
    first: _FirstPass,
    method: str,
    together: bool | None,
) -> tuple[Together | InTurn, str]:
    """How the gradients are computed, with the words for it.

    Raises:
        ValueError: They cannot be computed together, and ``together`` is true.
    """
    reason = "as asked"
    if together is None and first.is_large and not batch.x.is_cuda:
        reason = "on a CPU such networks are faster so"
    elif together is not False:
        stacked = _HOOKS if method == "vogn" else stack(models, loss, generators, batch)
        if isinstance(stacked, Together):
            return stacked, "together"
        reason = stacked
        if together:
            raise ValueError(f"together must be None or False for these networks, got True: {reason}")
        warnings.warn(f"the members of the ensemble are trained in turn: {reason}", UserWarning, stacklevel=3)
    return InTurn(models, loss, generators, channels_last=first.channels_last), f"in turn: {reason}"


def _check_finite(losses: Sequence[Tensor], seed: int) -> None:
    """Raise an error for the first loss that is not finite, given those of each step."""
    every = torch.stack(list(losses))
    if not (finite := every.isfinite()).all():
        step, member = (~finite).nonzero()[0].tolist()
        raise FloatingPointError(
            f"the loss of member {seed + member} must be finite, got {every[step, member].item()!r}"
        )
