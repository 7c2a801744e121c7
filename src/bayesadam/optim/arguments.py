"""Types of the keyword arguments that the optimisers pass on to their base class as ``**options``.

Annotated by these, ``**options`` has names and types for type checkers and editors, which complete ``ba.IVON(`` and
report a misspelt option. At run time :mod:`bayesadam.optim.signatures` shows the same names. The base class
:class:`~bayesadam.optim.PerturbedOptimizer` and each optimiser explain the arguments.
"""

from __future__ import annotations

from typing import TypedDict

from bayesadam.optim.hyperparameters import Continued


class Settings(TypedDict, total=False):
    """Arguments of every optimiser, without those that a constructor may name itself."""

    mc_samples: int
    antithetic: bool
    rank_samples: bool
    low_memory: bool
    seed: int
    maximize: bool
    nonfinite: str
    compile: bool | None
    recipe: str | None


class WithoutPrior(Settings, total=False):
    """Arguments of VadaGrad."""

    betas: tuple[float, float] | None


class WithPrior(Settings, total=False):
    """Arguments of every optimiser with a prior."""

    prior_precision: float | str | None
    prior: float | Continued | None
    initial_precision: float | None


class Tempered(WithPrior, total=False):
    """Arguments of optimisers that name ``betas`` themselves."""

    temperature: float | None


class General(Tempered, total=False):
    """Arguments of optimisers whose rule has no options."""

    betas: tuple[float, float] | None


class Learned(General, total=False):
    """Arguments of optimisers with the recipe ``"learned"``."""

    bridge: bool
    initial_steps: float
    total_steps: float | None
    batch_size: float | None


class OfIVON(Learned, total=False):
    """Arguments of IVON."""

    rescale_lr: bool
    clip_radius: float


class OfVOGN(Learned, total=False):
    """Arguments of VOGN."""

    hessian: str


class OfNaturalVON(Tempered, total=False):
    """Arguments of VON with natural momentum."""

    covariance: str


class OfNGVI(General, total=False):
    """Arguments of NGVI."""

    covariance: str


class OfVAN(WithPrior, total=False):
    """Arguments of VAN."""

    betas: tuple[float, float]
    hessian: str
    covariance: str
    probes: int
    correction: str | None
    clip_radius: float
