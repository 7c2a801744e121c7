"""Hyper-parameters and initial tensors of all members, from the library's own optimisers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.checks import truths
from bayesadam.core.layout import INIT
from bayesadam.core.passes import PER_WEIGHT
from bayesadam.core.rule import Rule
from bayesadam.curvature import PerExampleSquares
from bayesadam.optim import OPTIMIZERS, VOGN, PerturbedOptimizer
from bayesadam.optim.adam import AdamRule
from bayesadam.population.batches import Pool
from bayesadam.population.layout import Layout
from bayesadam.population.segment import combined
from bayesadam.posterior import DiagonalGaussian

METHODS = (*OPTIMIZERS, "adam")
POSSIBLE = {
    "hessian": ("reparameterized", "exact", "empirical_fisher"),
    "correction": ("elementwise", None),
}
_OF_ADAM = ("lr", "betas", "eps", "weight_decay", "seed", "num_data", "prior")
_REFUSED = ("maximize", "curvature", "rank_samples", "compile", "max_memorised")
SHARED = ("mc_samples", "antithetic")
COMMON = ("lr", "betas", "num_data", "temperature", "prior_precision", "initial_precision")
_REPORTED = ("method", "seed", *SHARED, *COMMON)


class Adam(PerturbedOptimizer):
    """Adam for point estimates, as an optimiser whose weights are never perturbed."""

    rule = AdamRule()
    has_prior = False


@dataclass(frozen=True)
class Setup:
    """How all members are trained, and where they start.

    Attributes:
        rule: Rule of the method.
        noisy: Whether the weights of the networks are perturbed.
        hypers: Hyper-parameters of every member, as entries of groups.
        starts: Numbers of every member before its first step, by name; without those that differ between weights.
        tensors: ``"mean"``, the tensors of the rule, and hyper-parameters that differ between weights (those of
            priors), each ``(P, numel)``.
    """

    rule: Rule
    noisy: bool
    hypers: list[dict[str, Any]]
    starts: list[dict[str, Any]]
    tensors: dict[str, Tensor]

    def numbers(self, members: Sequence[int]) -> dict[str, Any]:
        """Numbers of some members before their first step: one value if they agree, otherwise a column ``(k, 1)``."""
        return {name: combined([self.starts[member][name] for member in members]) for name in self.starts[0]}


def member_options(options: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Options of each member: a list has one value per member, anything else is shared."""
    for name, value in options.items():
        if isinstance(value, list) and len(value) != count:
            raise ValueError(f"{name} must have one value for each of {count} members, got {len(value)}")
    return [{n: v[member] if isinstance(v, list) else v for n, v in options.items()} for member in range(count)]


def configure(
    method: str | type[PerturbedOptimizer],
    models: Sequence[nn.Module],
    criteria: Sequence[nn.Module],
    layout: Layout,
    options: Sequence[Mapping[str, Any]],
    pool: Pool,
    epochs: int,
) -> Setup:
    """Hyper-parameters and initial tensors of every member.

    They are those of the library's optimisers, which are constructed; so defaults, checks and messages are theirs, too.

    Args:
        method: As in :func:`bayesadam.population.train`.
        models: One network per member.
        criteria: One likelihood or objective per member.
        layout: Places of the parameters in a row.
        options: Hyper-parameters of each member.
        pool: Data of all members, whose sizes are used for options that are not given.
        epochs: Number of epochs of the training.
    """
    make = _optimizer(method)
    rule, is_noisy = make.rule, make is not Adam
    called = method if isinstance(method, str) else method.__name__
    optimizers, parameters = [], []
    used = {"num_data", *(option.name for option in rule.options)}
    for member, (model, criterion, given) in enumerate(zip(models, criteria, options, strict=True)):
        for name, value in given.items():
            if name in _REFUSED or (make is Adam and name not in _OF_ADAM):
                raise TypeError(f"{name} must not be given to a population of {called!r}, got {value!r}")
        if given.get("prior") is not None:  # an optimiser that starts from a posterior sets the weights to its mean
            model, criterion = copy.deepcopy(model), copy.deepcopy(criterion)
        sizes: dict[str, Any] = {"num_data": pool.sizes[member], "batch_size": pool.widths[member]}
        sizes |= {"total_steps": epochs * pool.batches[member], "max_memorised": None}
        arguments = {**{name: value for name, value in sizes.items() if name in used}, **given}
        weights = list(model.named_parameters())
        learned = [(f"likelihood.{name}", p) for name, p in criterion.named_parameters() if p.requires_grad]
        both = [{"params": list(weights), "perturb": is_noisy}]
        both += [{"params": list(learned), "perturb": False}] if learned else []
        optimizers.append(make(both, **_arguments(make, arguments, model)))
        named = dict([*weights, *learned])
        parameters.append([named[name] for name in layout.shapes])
    hypers = [_hyper(make, optimizer.param_groups[0]) for optimizer in optimizers]
    for name in (*SHARED, *(option.name for option in rule.options if option.static)):
        if any(hyper[name] != hypers[0][name] for hyper in hypers):
            raise ValueError(f"{name} must be the same for all members, got different values")
    priors = [given.get("prior") for given in options]
    has_rows = any(prior is not None for prior in priors) or any(h.get("prior_precision") == INIT for h in hypers)
    names = ("mean", *rule.state, *((*PER_WEIGHT, "initial_precision") if has_rows else ()))
    starts, tensors = [], []
    for optimizer, trained, prior, hyper in zip(optimizers, parameters, priors, hypers, strict=True):
        flats = optimizer._engine.layout.places()
        places = [flats[parameter] for parameter in trained]
        values = [
            vars(hyper) | {name: flat.part(name, number) for name in flat.tensors}
            for hyper, (flat, number) in zip(optimizer._engine.layout.hypers(places), places, strict=True)
        ]
        if make is Adam and has_rows:
            values = [own | _prior_of_adam(prior, name) for name, own in zip(layout.shapes, values, strict=True)]
        tensors.append({name: _row([own[name] for own in values], trained) for name in names})
        starts.append({name: value for name, value in values[0].items() if name not in names})
        if not has_rows:
            hyper["initial_precision"] = values[0]["initial_precision"]
    return Setup(rule, is_noisy, hypers, starts, {name: torch.stack([t[name] for t in tensors]) for name in names})


def _optimizer(method: Any) -> type[PerturbedOptimizer]:
    """The class of a method's optimiser."""
    if method == "adam":
        return Adam
    if isinstance(method, str) and method in METHODS:
        return OPTIMIZERS[method]
    if isinstance(method, type) and issubclass(method, PerturbedOptimizer) and hasattr(method, "rule"):
        return method
    raise ValueError(f"method must be one of {METHODS} or a subclass of PerturbedOptimizer with a rule, got {method!r}")


def _arguments(make: type[PerturbedOptimizer], options: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Arguments of an optimiser, which is never used to make a step."""
    arguments = dict(options)
    if issubclass(make, VOGN):
        arguments["curvature"] = PerExampleSquares(model)
    if make is Adam:  # a posterior mode may have a prior that covers only some of the parameters
        prior = arguments.pop("prior", None)
        if prior is not None:
            if not isinstance(prior, DiagonalGaussian) or not all(
                truths(value.all() for value in prior.variance.values())
            ):
                raise ValueError(f"prior must be a DiagonalGaussian with positive variances for 'adam', got {prior!r}")
            prior.match(model)
        arguments["initial_precision"] = 1.0
    return arguments


def _hyper(make: type[PerturbedOptimizer], group: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of a member, from the first group of its optimiser."""
    for name, possible in POSSIBLE.items():
        if group.get(name, possible[0]) not in possible:
            raise ValueError(f"{name} must be one of {possible} in a population, got {group[name]!r}")
    names = (*_REPORTED, *(option.name for option in make.rule.options))
    told = {name: group[name] for name in names if name in group}
    return told | {"lr": float(group["lr"]), "temperature": make.cooling * group["temperature"]}


def _prior_of_adam(prior: DiagonalGaussian | None, name: str) -> dict[str, Any]:
    """Mean and precision of the prior of a parameter; without a prior, the precision is 0."""
    if prior is None or name not in prior.mean:
        return {"prior_precision": 0.0}
    return {"prior_mean": prior.mean[name], "prior_precision": prior.variance[name].reciprocal()}


def _row(values: Sequence[Any], parameters: Sequence[Tensor]) -> Tensor:
    """A number or a tensor of every parameter, at all of their weights, ``(numel,)``."""
    each = zip(values, parameters, strict=True)
    return torch.cat([torch.as_tensor(v, dtype=p.dtype, device=p.device).expand(p.shape).flatten() for v, p in each])
