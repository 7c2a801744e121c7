"""Hyper-parameters and initial tensors of all members, from the library's own optimisers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.checks import truths
from bayesadam.core.layout import INIT, NARROWER, initial_priors
from bayesadam.core.rule import Hyper, Rule
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
_REFUSED = ("maximize", "curvature", "rank_samples", "low_memory", "compile")
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
        hypers: Hyper-parameters of every member, as numbers and words.
        tensors: ``"mean"``, the tensors of the rule, and hyper-parameters that differ between weights (those of
            priors), each ``(P, numel)``.
    """

    rule: Rule
    noisy: bool
    hypers: list[dict[str, Any]]
    tensors: dict[str, Tensor]

    def numbers(self, members: Sequence[int]) -> dict[str, Any]:
        """Hyper-parameters of some members: one value if they agree, otherwise a column ``(k, 1)``.

        Those that differ between weights are left out.
        """
        hypers = [_with_betas(self.hypers[member]) for member in members]
        names = [name for name in hypers[0] if name in self.rule.state or name not in self.tensors]
        return {name: combined([hyper[name] for hyper in hypers]) for name in names}


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
    """Hyper-parameters and initial tensors of every member, as the library's optimiser would have them.

    The optimisers are constructed, so that defaults, checks, messages and the start from a posterior are theirs.

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
    groups, parameters = [], []
    used = {"num_data", *(option.name for option in rule.options)}
    for member, (model, criterion, given) in enumerate(zip(models, criteria, options, strict=True)):
        for name, value in given.items():
            if name in _REFUSED or (make is Adam and name not in _OF_ADAM):
                raise TypeError(f"{name} must not be given to a population of {called!r}, got {value!r}")
        if given.get("prior") is not None:  # an optimiser that starts from a posterior sets the weights to its mean
            model, criterion = copy.deepcopy(model), copy.deepcopy(criterion)
        sizes = {"num_data": pool.sizes[member], "batch_size": pool.widths[member]}
        sizes["total_steps"] = epochs * pool.batches[member]
        arguments = {**{name: value for name, value in sizes.items() if name in used}, **given}
        weights = list(model.named_parameters())
        learned = [(f"likelihood.{name}", p) for name, p in criterion.named_parameters() if p.requires_grad]
        both = [{"params": list(weights), "perturb": is_noisy}]
        both += [{"params": list(learned), "perturb": False}] if learned else []
        groups.append(make(both, **_arguments(make, arguments, model)).param_groups[0])
        parameters.append({name: p.detach() for name, p in [*weights, *learned]})
    hypers = [_hyper(make, group) for group in groups]
    for name in (*SHARED, *(option.name for option in rule.options if option.static)):
        if any(hyper[name] != hypers[0][name] for hyper in hypers):
            raise ValueError(f"{name} must be the same for all members, got different values")
    priors = [given.get("prior") for given in options]
    has_rows = any(prior is not None for prior in priors) or any(h.get("prior_precision") == INIT for h in hypers)
    members = []
    for hyper, prior, values in zip(hypers, priors, parameters, strict=True):
        members.append({"mean": layout.flatten(values)})
        members[-1] |= _start(
            rule, hyper, members[-1]["mean"], _prior(prior, hyper, values, layout) if has_rows else {}
        )
    return Setup(rule, is_noisy, hypers, {name: torch.stack([m[name] for m in members]) for name in members[0]})


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
    signature = inspect.signature(make).parameters
    if "options" in signature:  # for those of the rule that the constructor does not name
        declared = {option.name for option in make.rule.options} - {*signature}
        arguments["options"] = {name: arguments.pop(name) for name in declared & {*arguments}}
    return arguments


def _hyper(make: type[PerturbedOptimizer], group: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of a member, from the first group of its optimiser."""
    for name, possible in POSSIBLE.items():
        if group.get(name, possible[0]) not in possible:
            raise ValueError(f"{name} must be one of {possible} in a population, got {group[name]!r}")
    names = (*_REPORTED, *(option.name for option in make.rule.options))
    return {name: group[name] for name in names if name in group} | {"lr": float(group["lr"])}


def _prior(
    prior: DiagonalGaussian | None, hyper: Mapping[str, Any], parameters: Mapping[str, Tensor], layout: Layout
) -> dict[str, Tensor]:
    """Means and precisions of the prior of every weight; a member of Adam without a prior has a precision of 0."""
    means, precisions = {}, {}
    shared = hyper.get("prior_precision", 0.0)
    own = [parameters[name] for name in layout.shapes] if shared == INIT else []
    initial = dict(zip(layout.shapes, initial_priors(own), strict=False))
    for name in layout.shapes:
        weights = parameters[name]
        mean: Any = 0.0
        precision: Any = NARROWER * initial[name] if shared == INIT else shared
        if prior is not None and name in prior.mean:
            mean, precision = prior.mean[name], prior.variance[name].reciprocal()
        means[name] = torch.as_tensor(mean).to(weights).expand(weights.shape)
        precisions[name] = torch.as_tensor(precision).to(weights).expand(weights.shape)
    return {"prior_mean": layout.flatten(means), "prior_precision": layout.flatten(precisions)}


def _start(rule: Rule, hyper: dict[str, Any], mean: Tensor, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The initial tensors of a member without its mean; the initial precision is set in its hyper-parameters."""
    hp = Hyper(**{"prior_mean": 0.0, **_with_betas(hyper), **rows})
    if hp.initial_precision is None:
        hp.initial_precision = rule.default_start(hp)
    if rows:
        rows = {**rows, "initial_precision": torch.zeros_like(mean) + hp.initial_precision}
    else:
        hyper["initial_precision"] = hp.initial_precision
    return {**rule.init(mean, hp), **rows}


def _with_betas(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters with ``beta1`` and ``beta2`` in place of ``betas``."""
    beta1, beta2 = hyper["betas"]
    return {**{name: value for name, value in hyper.items() if name != "betas"}, "beta1": beta1, "beta2": beta2}
