"""``train``, the entry point for training populations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesadam.checks import check_nonfinite, is_whole
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.optim import PerturbedOptimizer
from bayesadam.population.batches import Pair, Pool, per_epoch
from bayesadam.population.chunk import Chunk
from bayesadam.population.mapped import MappedObjective
from bayesadam.population.members import METHODS as METHODS
from bayesadam.population.members import configure, member_options
from bayesadam.population.objective import NegativeLogLikelihood, Objective
from bayesadam.population.population import Population
from bayesadam.population.rates import Decay, Rates, Schedule
from bayesadam.population.record import Record
from bayesadam.progress import Advance, progress_bar

PerMember = Any
"""A hyper-parameter of all members, or a list, an array or a 1-D tensor with one value per member."""
WORKING_SET = {"cpu": 2**24, "other": 2**28}
"""Approximate memory in bytes for the members of one chunk: the size of a core's caches, or enough to fill an
accelerator.
"""


def train(
    models: Sequence[nn.Module],
    data: Pair | Sequence[Pair],
    *,
    likelihood: Likelihood | Sequence[Likelihood] | None = None,
    objective: Objective | Sequence[Objective] | None = None,
    epochs: int,
    batch_size: int,
    method: str | type[PerturbedOptimizer] = "vadam",
    lr: PerMember = None,
    betas: PerMember = None,
    num_data: PerMember = None,
    prior_precision: PerMember = None,
    prior: PerMember = None,
    initial_precision: PerMember = None,
    temperature: PerMember = None,
    mc_samples: int | None = None,
    antithetic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int | Sequence[int] = 0,
    validation: Pair | Sequence[Pair] | None = None,
    patience: int | None = None,
    validation_samples: int = 16,
    lr_schedule: Schedule | None = None,
    lr_decay: Decay | None = None,
    beta_decay: Decay | None = None,
    replacement: bool = False,
    steps_per_epoch: int | None = None,
    sample_weight: Tensor | Sequence[Tensor] | None = None,
    nonfinite: str = "raise",
    on_epoch: Callable[[int, list[int], Population], None] | None = None,
    chunk: int | None = None,
    progress: bool | None = None,
) -> Population:
    """Train networks of one architecture at once, each on its own data with its own hyper-parameters.

    Member ``p`` ends where the library's optimiser would have taken ``models[p]`` alone, with the same options and seed
    and on the same minibatches (:func:`order`), up to rounding. Only dropout uses torch's global generator: a network
    with dropout is trained correctly, but the result is not reproducible from the seed alone.

    Args:
        models: ``P`` networks that take and return one tensor, and differ in parameters and buffers only; everything
            else is taken from the first one. They give the initial weights and are not changed.
        data: Training inputs and targets ``(x, y)`` for all members, or one pair per member; sizes may differ.
        likelihood: Likelihood whose mean negative log-likelihood is the loss: one for all members, or one per member
            (all of one kind). Learned parameters of a likelihood are trained without noise, separately for each member.
        objective: A :class:`bayesadam.population.Objective` that is minimised instead: one for all members, or one per
            member. Without a likelihood there are no predictions, and no validation.
        epochs: Number of passes over the data of every member; each has a new order.
        batch_size: Number of data points per minibatch; the last one of an epoch may be smaller. If it is at least the
            size of the data, there is one minibatch of all data in their own order.
        method: One of ``METHODS``: an optimiser of the library, ``"bbb"`` for Bayes by Backprop
            (:class:`bayesadam.population.BayesByBackprop`), or ``"adam"`` for point estimates. It may also be a
            subclass of :class:`bayesadam.optim.PerturbedOptimizer` with its own rule.
        lr: Learning rate. It and the following are hyper-parameters of the method, whose default is that of the
            optimiser. A list, array or 1-D tensor has one value per member.
        betas: Decay rates of the running averages.
        num_data: Number of training examples; by default the size of each member's data.
        prior_precision: Precision of the prior.
        prior: Posterior to continue from, instead of ``prior_precision``. With Adam, which then finds posterior modes,
            the negative log density of a :class:`bayesadam.DiagonalGaussian`, divided by ``num_data``, is added to the
            loss, and the weights start where the models have them.
        initial_precision: Posterior precision at the start.
        temperature: Factor of the KL divergence, in [0, 1].
        mc_samples: Number of posterior samples per step, the same for all members.
        antithetic: Whether to draw samples in pairs ``+eps, -eps``.
        options: Further hyper-parameters of the method by name, such as ``{"hessian": "exact"}``. ``batch_size`` and
            ``total_steps`` of :class:`bayesadam.BayesAdam` are those of the training.
        seed: Seed of the noise and of the order of the data: one per member, or that of the first member, to which the
            number of the member is added.
        validation: Held-out data, in the form of ``data``. Their mean negative log predictive density is recorded every
            epoch.
        patience: Number of epochs without improvement on the validation data after which a member stops; its best
            weights are returned.
        validation_samples: Number of posterior samples for the density on validation data.
        lr_schedule: Factor of the learning rate as a function of the fraction of the training that is done, in [0, 1).
            It replaces the cosine of :class:`bayesadam.BayesAdam`, and so does ``lr_decay``.
        lr_decay: Factor of the learning rate as a function of the number of steps that the member has made, instead of
            ``lr_schedule``; it works as ``LambdaLR`` stepped after every step of the optimiser.
        beta_decay: Factor of ``1 - betas[1]`` as a function of the number of steps; it works as
            :class:`bayesadam.BetaScheduler` stepped after every step of the optimiser.
        replacement: Whether to draw minibatches with replacement; each then has ``batch_size`` data points, even if
            there are fewer data.
        steps_per_epoch: Number of minibatches per epoch with replacement, for all members; default as many as without.
            Epochs are the unit of ``epochs``, ``validation`` and ``on_epoch``, and each costs some time, so for small
            problems an epoch should have at least a few hundred steps.
        sample_weight: Weights of the data points in the mean loss, ``(n,)``: for all members, or one tensor per member;
            members that share data must share weights. They are divided by their mean, so only their ratios matter.
            They cannot be used with methods that square the gradients of single data points.
        nonfinite: ``"raise"`` an error for a gradient that is not finite, or ``"skip"`` the remaining steps of that
            member, which keeps its last good posterior, while the others continue.
        on_epoch: Function that is called after every epoch of every chunk, with the epoch, the numbers of the members
            that are still trained in this chunk, and a population of them in their current state.
        chunk: Number of members trained at a time; by default as many as fit into the caches. It does not change the
            result.
        progress: Whether to show a progress bar; by default it is shown in a terminal.

    Returns:
        The trained members.

    Raises:
        ValueError: Sizes do not fit, networks have different architectures or batch normalisation in training mode, or
            a hyper-parameter is out of range.
        TypeError: The method does not have an option, or a hyper-parameter is given twice.
        FloatingPointError: A gradient is not finite and ``nonfinite="raise"``.
    """
    models = list(models)
    count = len(models)
    if not models:
        raise ValueError("models must have at least one network, got none")
    counts = {"epochs": epochs, "batch_size": batch_size, "validation_samples": validation_samples}
    for name, value in {**counts, "patience": patience, "chunk": chunk, "steps_per_epoch": steps_per_epoch}.items():
        if value is not None and not is_whole(value):
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    check_nonfinite(nonfinite)
    if steps_per_epoch is not None and not replacement:
        raise ValueError(f"steps_per_epoch must be given with replacement=True only, got {steps_per_epoch!r}")
    if lr_schedule is not None and lr_decay is not None:
        raise ValueError(f"lr_decay must not be given together with lr_schedule, got {lr_decay!r} and {lr_schedule!r}")
    if beta_decay is not None and method == "adam":
        raise TypeError(f"beta_decay must not be given to a population of 'adam', got {beta_decay!r}")
    if patience is not None and validation is None:
        raise ValueError(f"validation must be given with patience={patience!r}, got None")
    pairs = _per_member("data", data, count)
    weights = None if sample_weight is None else _weights(sample_weight, pairs)
    held_out = None if validation is None else _per_member("validation", validation, count)
    criteria = _criteria(likelihood, objective, count)
    if objective is not None and validation is not None:
        raise ValueError("validation must be None with an objective, which makes no predictions, got data")
    losses = NegativeLogLikelihood(models, criteria) if objective is None else MappedObjective(models, criteria)
    seeds = [int(seed) + i for i in range(count)] if isinstance(seed, int | np.integer) else [int(own) for own in seed]
    named = {
        "lr": lr,
        "betas": betas,
        "num_data": num_data,
        "prior_precision": prior_precision,
        "prior": prior,
        "initial_precision": initial_precision,
        "temperature": temperature,
        "mc_samples": mc_samples,
        "antithetic": antithetic,
    }
    members = member_options({**_hyperparameters(named, options or {}), "seed": seeds}, count)
    for own, (x, _) in zip(members, pairs, strict=True):
        own.setdefault("num_data", len(x))
    known = [
        {
            "batch_size": batch_size if replacement else min(batch_size, len(x)),
            "total_steps": epochs * per_epoch(len(x), batch_size, steps_per_epoch),
        }
        for x, _ in pairs
    ]
    rule, hypers, means = configure(method, models, criteria, losses.layout, members, known)
    if weights is not None and hypers[0].get("hessian") in ("empirical_fisher", "exact"):
        raise ValueError(f"sample_weight must be None for a method of squared gradients, got method={method!r}")
    activations = losses.check(means, pairs, "data")
    if held_out is not None:
        losses.check(means, held_out, "validation")
    working_set = WORKING_SET["cpu" if means.device.type == "cpu" else "other"]
    record = Record(losses, criteria, hypers, means, rule.state, epochs, working_set)
    if held_out is not None:
        record.watch(held_out, validation_samples, patience)
    if chunk is None:
        width = batch_size if replacement else min(batch_size, max(len(x) for x, _ in pairs))
        numbers = hypers[0]["mc_samples"] * (2 * activations * width + 4 * means.shape[1])
        chunk = max(1, working_set // (numbers * means.element_size()))
    pool = Pool(pairs, batch_size, replacement=replacement, steps_per_epoch=steps_per_epoch, weights=weights)
    rates = Rates(epochs, lr_schedule, lr_decay, beta_decay)
    with progress_bar("training", sum(pool.batches) * epochs, progress) as bar:
        advance = _Seldom(bar)
        for chosen in _chunks(pool.batches, chunk):
            rows = torch.tensor(chosen, device=means.device)
            theirs = [hypers[member] for member in chosen]
            part = Chunk(chosen, losses.select(rows), rule, theirs, means[rows], pool, rates)
            steps = sum(pool.batches[member] for member in chosen)
            for epoch in range(epochs):
                losses.networks.train()
                loss = part.train_epoch(epoch, nonfinite == "raise")
                record.after_epoch(part, epoch, loss, on_epoch)
                advance(steps if part.members else (epochs - epoch) * steps, loss, not part.members)
                if not part.members:
                    break
    return record.population(range(count), record.rows)


def _hyperparameters(named: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that were given, as arguments or as options."""
    given = {name: value for name, value in named.items() if value is not None}
    for name, value in options.items():
        if name in given or name == "seed":
            raise TypeError(f"options must not have {name!r}, which is an argument, got {value!r}")
    return {**options, **given}


class _Seldom:
    """Updates a progress bar a few times per second, since an epoch may be a single short step."""

    def __init__(self, bar: Advance) -> None:
        self._bar, self._pending, self._moved = bar, 0, 0.0

    def __call__(self, steps: int, loss: Tensor | None, last: bool) -> None:
        self._pending += steps
        if last or time.monotonic() - self._moved > 0.1:
            self._bar(self._pending, None if loss is None else f"loss {loss.nanmedian():.3f}")
            self._pending, self._moved = 0, time.monotonic()


def _chunks(batches: Sequence[int], size: int) -> list[list[int]]:
    """Members by falling number of minibatches, in chunks of nearly equal and at most the given size."""
    ranked = sorted(range(len(batches)), key=lambda member: -batches[member])
    size = math.ceil(len(batches) / math.ceil(len(batches) / size))
    return [ranked[first : first + size] for first in range(0, len(batches), size)]


def _criteria(likelihood: Any, objective: Any, count: int) -> list[Any]:
    """Likelihoods or objectives, one per member."""
    if (likelihood is None) == (objective is None):
        raise ValueError(f"likelihood must be given, or objective in its place, got {likelihood!r} and {objective!r}")
    name, given = ("likelihood", likelihood) if objective is None else ("objective", objective)
    found: list[Any] = list(given) if isinstance(given, Sequence) else [given] * count
    if objective is None and not isinstance(given, Sequence):
        check_likelihood(given)
    if objective is not None and not isinstance(given, Objective | Sequence):
        raise ValueError(f"objective must be a population.Objective, got {given!r}")
    if len(found) != count:
        raise ValueError(f"{name} must be one or one for each of {count} members, got {len(found)}")
    return found


def _per_member(name: str, data: Pair | Sequence[Pair], count: int) -> list[Pair]:
    """One checked pair per member; members that share data have the same objects."""
    shared = len(data) == 2 and isinstance(data[0], Tensor)
    pairs: list[Pair] = [data] * count if shared else list(data)  # type: ignore[list-item, arg-type]
    if len(pairs) != count:
        raise ValueError(f"{name} must be one pair or one for each of {count} members, got {len(pairs)}")
    first = pairs[0][0]
    for member, (x, y) in enumerate(pairs):
        if x.ndim == 0 or y.ndim == 0 or len(x) == 0 or len(x) != len(y):
            found = f"shapes {tuple(x.shape)} and {tuple(y.shape)}"
            raise ValueError(f"{name} of member {member} must have data points, each with a target, got {found}")
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            kind = f"{tuple(first.shape[1:])} {first.dtype}"
            raise ValueError(
                f"{name} of member {member} must have inputs like the first ones, {kind}, "
                f"got {tuple(x.shape[1:])} {x.dtype}"
            )
    return pairs


def _weights(sample_weight: Tensor | Sequence[Tensor], pairs: Sequence[Pair]) -> list[Tensor]:
    """Weights of every member's data points, with a mean of 1 in float64."""
    shared = isinstance(sample_weight, Tensor)
    given: list[Tensor] = [sample_weight] * len(pairs) if shared else list(sample_weight)  # type: ignore[list-item]
    if len(given) != len(pairs):
        raise ValueError(f"sample_weight must be one tensor or one for each of {len(pairs)} members, got {len(given)}")
    for member, (weight, (x, _)) in enumerate(zip(given, pairs, strict=True)):
        if weight.shape != (len(x),):
            raise ValueError(
                f"sample_weight of member {member} must be of shape {(len(x),)}, got {tuple(weight.shape)}"
            )
        if not (weight.isfinite() & (weight >= 0)).all() or not weight.sum() > 0:
            raise ValueError(f"sample_weight of member {member} must be finite, not negative and not all 0")
    return [weight.double() / weight.double().mean() for weight in given]
