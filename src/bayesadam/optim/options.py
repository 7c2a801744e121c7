"""The options that optimisers have in common, with their defaults: the keywords behind ``**options``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from inspect import Parameter
from typing import Any, TypedDict

from bayesadam.posterior import DiagonalGaussian


class SamplingOptions(TypedDict, total=False):
    """Options of every optimiser. ``mc_samples``, ``antithetic``, ``rank_samples``, ``nonfinite`` and ``compile``
    must be the same in all groups.

    Attributes:
        betas: Decay rates of the running averages of the gradient and of the curvature, each in [0, 1).
        mc_samples: Number of posterior samples per step.
        antithetic: Whether to draw samples in pairs ``+eps, -eps``; ``mc_samples`` must then be even.
        rank_samples: Whether every process of a data-parallel job draws its own sample. By default all draw the same
            one, and shards their slices of it. With it, the backward pass must be run under ``no_sync()``; gradients
            and curvatures of all samples are then averaged over the processes at the step, or at the end of its last
            block. It is refused for sharded parameters and second derivatives.
        seed: Seed of the noise, which otherwise depends only on the step, the sample and the position of the
            parameter. Two optimisers of one model need different seeds, or their samples are correlated. Groups of
            different seeds are those of different networks, each trained as alone.
        maximize: Whether the loss is to be maximised (a mean log-likelihood).
        nonfinite: What to do when a gradient is not finite: ``"raise"`` a ``FloatingPointError`` that names the
            parameter and change nothing, or ``"skip"`` the step and count it in ``skipped_steps`` of the groups.
        compile: Whether to sample and update all parameters in one compiled kernel, which is several times faster on a
            CPU, equal up to rounding, and compiled once per machine in about a second. Where there is no kernel (no
            C++ compiler, another dtype, a rule that it cannot run), one warning gives the reason, and PyTorch's
            operations are used.
    """

    betas: tuple[float, float]
    mc_samples: int
    antithetic: bool
    rank_samples: bool
    seed: int
    maximize: bool
    nonfinite: str
    compile: bool


class CommonOptions(SamplingOptions, total=False):
    """Options of every optimiser that has a prior, besides those of :class:`SamplingOptions`.

    Where the default of an optimiser depends on other arguments, ``None`` stands for it.

    Attributes:
        prior_precision: Precision of the prior ``N(0, 1 / prior_precision)``.
        prior: A posterior to continue from, in place of ``prior_precision``; it becomes the prior, and the mean starts
            at its mean, also for frozen parameters and for groups that are added later. If it has another temperature,
            its variances are changed in proportion, so that the examples behind it count as much as new ones. It needs
            named parameters.
        initial_precision: Posterior precision at the start, at least ``prior_precision`` (for Bayes by Backprop, which
            trains the widths like the means, it may be smaller). The default is ``max(num_data, prior_precision)``,
            since a network that starts at the prior's precision hardly trains.
        temperature: Factor of the KL divergence in the objective, in [0, 1]: 1 is variational inference, 0
            variational optimisation (Khan et al. 2018, eq. 22).
    """

    prior_precision: float | str | None
    prior: DiagonalGaussian | None
    initial_precision: float | None
    temperature: float | None


class HessianOptions(CommonOptions, total=False):
    """Options of the optimisers with a Hessian; :class:`VON` explains them."""

    hessian: str
    probes: int
    correction: str | None


DEFAULTS: Mapping[str, Any] = {
    "betas": (0.9, 0.999),
    "prior_precision": 1.0,
    "prior": None,
    "initial_precision": None,
    "temperature": 1.0,
    "mc_samples": 1,
    "antithetic": False,
    "rank_samples": False,
    "seed": 0,
    "maximize": False,
    "nonfinite": "raise",
    "compile": True,
}
"""Defaults of the common options, for methods that have no others."""


def defaults_of(optimizer: Any) -> dict[str, Any]:
    """The options of an optimiser or its class with their defaults: the common ones and those of its rule."""
    of_rule = {option.name: option.default for option in optimizer.rule.options}
    defaults = {**DEFAULTS, **of_rule, **optimizer.usual}
    return {name: value for name, value in defaults.items() if optimizer.has_prior or name not in _OF_PRIORS}


def completed(optimizer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an optimiser, from those that were given.

    Raises:
        TypeError: It has no option of a name.
    """
    defaults = defaults_of(optimizer)
    for name, value in options.items():
        if name not in defaults:
            names = ", ".join(defaults)
            raise TypeError(f"{name} must be an option of {type(optimizer).__name__} ({names}), got {value!r}")
    return {**defaults, **options}


def signature_of(cls: Any) -> inspect.Signature:
    """The signature of an optimiser's constructor with all its options in place of ``**options``, for help and
    completion.
    """
    signature = inspect.signature(cls.__init__)
    _, *parameters = signature.parameters.values()
    if parameters[-1].kind is Parameter.VAR_KEYWORD:
        named = {*cls.decided, *(parameter.name for parameter in parameters)}
        parameters[-1:] = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default)
            for name, default in defaults_of(cls).items()
            if name not in named
        ]
    return signature.replace(parameters=parameters)


_OF_PRIORS = ("prior", "prior_precision")
