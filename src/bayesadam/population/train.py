"""``train``, the entry point for training populations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from bayesadam.checks import check_nonfinite, is_whole, truths
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.native.device import working_set
from bayesadam.optim import PerturbedOptimizer
from bayesadam.population.batches import Pair, Pool
from bayesadam.population.chunk import Chunk, Plan, Schedule
from bayesadam.population.losses import CACHE, Losses
from bayesadam.population.members import configure, member_options
from bayesadam.population.objective import Objective
from bayesadam.population.population import Population
from bayesadam.population.record import Record
from bayesadam.progress import progress_bar

PerMember = Any
"""A hyper-parameter of all members, or a list with one value per member."""


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
    lr_schedule: Schedule | None = None,
    beta_schedule: Schedule | None = None,
    steps_per_epoch: int | None = None,
    sample_weight: Tensor | Sequence[Tensor] | None = None,
    validation: Pair | Sequence[Pair] | None = None,
    patience: int | None = None,
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
        lr: Learning rate. It and the following hyper-parameters are those of the method: defaults and checks are its
            own. A list has one value per member.
        betas: Decay rates of the running averages.
        num_data: Number of training examples; by default the size of each member's data.
        prior_precision: Precision of the prior.
        prior: Posterior to continue from. With Adam, a :class:`bayesadam.DiagonalGaussian` makes the optimum a
            posterior mode: its negative log density, divided by ``num_data``, is added to the loss, and the weights
            start where the models have them.
        initial_precision: Posterior precision at the start.
        temperature: Factor of the KL divergence.
        mc_samples: Number of posterior samples per step, the same for all members.
        antithetic: Whether to draw samples in pairs ``+eps, -eps``.
        options: Further hyper-parameters of the method by name, such as ``{"hessian": "exact"}``. ``batch_size`` of
            :class:`bayesadam.BayesAdam` is that of the training, and so is ``total_steps`` by default.
        seed: Seed of the noise and of the order of the data: one per member, or that of the first member, to which the
            number of the member is added.
        lr_schedule: Factor of the learning rate as a function of the fraction of the training that is done, in [0, 1).
            It replaces the cosine of :class:`bayesadam.BayesAdam`.
        beta_schedule: Factor of ``1 - betas[1]`` as a function of that fraction.
        steps_per_epoch: Number of minibatches per epoch, for all members. With it, minibatches are drawn with
            replacement, and each has ``batch_size`` data points, even if there are fewer data. Epochs are the unit of
            ``epochs``, ``validation`` and ``on_epoch``, and each costs some time, so for small problems an epoch should
            have at least a few hundred steps.
        sample_weight: Weights of the data points in the mean loss, ``(n,)``: for all members, or one tensor per member.
            They are divided by their mean, so only their ratios matter. They cannot be used with methods that square
            the gradients of single data points.
        validation: Held-out data, in the form of ``data``. Their mean negative log predictive density is recorded every
            epoch.
        patience: Number of epochs without improvement on the validation data after which a member stops; its best
            weights are returned.
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
        TypeError: The method does not have a hyper-parameter of this name.
        FloatingPointError: A gradient is not finite and ``nonfinite="raise"``.
    """
    models = list(models)
    count = len(models)
    if not models:
        raise ValueError("models must have at least one network, got none")
    wholes = {"epochs": epochs, "batch_size": batch_size}
    for name, value in {**wholes, "patience": patience, "chunk": chunk, "steps_per_epoch": steps_per_epoch}.items():
        if not is_whole(value) and (value is not None or name in wholes):
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    check_nonfinite(nonfinite)
    if beta_schedule is not None and method == "adam":
        raise TypeError(f"beta_schedule must not be given to a population of 'adam', got {beta_schedule!r}")
    if patience is not None and validation is None:
        raise ValueError(f"validation must be given with patience={patience!r}, got None")
    if objective is not None and validation is not None:
        raise ValueError("validation must be None with an objective, which makes no predictions, got data")
    pairs = _pairs("data", data, count)
    weights = None if sample_weight is None else _weights(sample_weight, pairs)
    held_out = None if validation is None else _pairs("validation", validation, count)
    criteria = _criteria(likelihood, objective, count)
    losses = Losses(models, criteria)
    seeds = [int(seed) + i for i in range(count)] if isinstance(seed, int | np.integer) else list(map(int, seed))
    hyperparameters = {
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
    given = {name: value for name, value in hyperparameters.items() if value is not None}
    for name in {*given, "seed"} & {*(options or {})}:
        raise TypeError(f"{name} must be given once, got it also in options={options!r}")
    of_members = member_options({**given, **(options or {}), "seed": seeds}, count)
    pool = Pool(pairs, batch_size, steps_per_epoch=steps_per_epoch, weights=weights)
    setup = configure(method, models, criteria, losses.layout, of_members, pool, epochs)
    means = setup.tensors["mean"]
    if weights is not None and setup.hypers[0].get("hessian") in ("empirical_fisher", "exact"):
        raise ValueError(f"sample_weight must be None for a method of squared gradients, got method={method!r}")
    losses.check(means, pairs, "data")
    if held_out is not None:
        losses.check(means, held_out, "validation")
    record = Record(losses, criteria, setup, epochs, held_out, patience)
    if chunk is None:
        numbers = setup.hypers[0]["mc_samples"] * (2 * losses.activations * max(pool.widths) + 4 * means.shape[1])
        chunk = max(1, working_set(means.device, CACHE) // (numbers * means.element_size()))
    plan = Plan(pool, epochs, lr_schedule, beta_schedule, skip_nonfinite=nonfinite == "skip")
    with progress_bar("training", sum(pool.batches) * epochs, progress) as advance:
        for chosen in _chunks(pool.batches, chunk):
            part = Chunk(chosen, losses, setup, plan)
            steps = sum(pool.batches[member] for member in chosen)
            for epoch in range(epochs):
                losses.train()
                loss = part.train_epoch(epoch)
                record.after_epoch(part, epoch, loss, on_epoch)
                advance(steps if part.members else (epochs - epoch) * steps, f"loss {loss.nanmedian():.3f}")
                if not part.members:
                    break
    return record.result


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
    criteria = _per_member(name, given, count, shared=not isinstance(given, Sequence))
    for position, criterion in enumerate(criteria):
        if objective is None:
            check_likelihood(criterion, where=f" at position {position}" if isinstance(given, Sequence) else "")
        elif not isinstance(criterion, Objective):
            raise ValueError(f"objective must be a population.Objective, got {criterion!r}")
    return criteria


def _per_member(name: str, value: Any, count: int, *, shared: bool) -> list[Any]:
    """One value per member."""
    values = [value] * count if shared else list(value)
    if len(values) != count:
        raise ValueError(f"{name} must be one or one for each of {count} members, got {len(values)}")
    return values


def _pairs(name: str, data: Pair | Sequence[Pair], count: int) -> list[Pair]:
    """One checked pair per member; members that share data have the same objects."""
    pairs: list[Pair] = _per_member(name, data, count, shared=len(data) == 2 and isinstance(data[0], Tensor))
    kind = [(tuple(part.shape[1:]), part.dtype) for part in pairs[0]]
    for member, (x, y) in enumerate(pairs):
        if x.ndim == 0 or y.ndim == 0 or len(x) == 0 or len(x) != len(y):
            shapes = f"shapes {tuple(x.shape)} and {tuple(y.shape)}"
            raise ValueError(f"{name} of member {member} must have data points, each with a target, got {shapes}")
        other = [(tuple(part.shape[1:]), part.dtype) for part in (x, y)]
        if other != kind:
            raise ValueError(f"{name} of member {member} must have data points like the first, {kind}, got {other}")
    return pairs


def _weights(sample_weight: Tensor | Sequence[Tensor], pairs: Sequence[Pair]) -> list[Tensor]:
    """Weights of every member's data points, with a mean of 1 in float64; members that share them have one object."""
    weights = _per_member("sample_weight", sample_weight, len(pairs), shared=isinstance(sample_weight, Tensor))
    for member, (weight, (x, _)) in enumerate(zip(weights, pairs, strict=True)):
        if weight.shape != (len(x),):
            raise ValueError(
                f"sample_weight of member {member} must be of shape {(len(x),)}, got {tuple(weight.shape)}"
            )
    good = truths((weight.isfinite() & (weight >= 0)).all() & (weight.sum() > 0) for weight in weights)
    if not all(good):
        raise ValueError(f"sample_weight of member {good.index(False)} must be finite, not negative and not all 0")
    scaled = {id(weight): weight.double() / weight.double().mean() for weight in weights}
    return [scaled[id(weight)] for weight in weights]
