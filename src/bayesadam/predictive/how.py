"""The keyword arguments of ``predict``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from bayesadam import noise
from bayesadam.checks import check_count
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.posterior import NetworkDistribution

METHODS = ("auto", "monte_carlo", "linearized", "moments", "mean")
AUTO = "auto"
"""Value of ``batch_norm`` that stands for the statistics of the posterior, with a warning if they are poor."""
GAUSSIAN = ("linearized", "moments")
"""Methods with Gaussian outputs, for which a link converts logits to probabilities."""
LINKS = ("monte_carlo", "probit")


@dataclass(frozen=True)
class How:
    """The keyword arguments of :func:`bayesadam.predict`, and one that it does not have.

    Attributes:
        common: Whether draws of Gaussian outputs use the same standard normals at all rows.
    """

    likelihood: Likelihood
    mc_samples: int = 64
    seed: int = 0
    method: str = "auto"
    link: str | None = None
    output: Callable[[Any], Tensor] | None = None
    batch_size: int | None = None
    batch_norm: Any = AUTO
    progress: bool | None = None
    common: bool = False

    def checked(self) -> How:
        """The same arguments after checks, with integers of any type, such as NumPy's, as Python integers.

        Raises:
            ValueError: As for :func:`bayesadam.predict`, for the checks that need neither model nor posterior.
        """
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {METHODS}, got {self.method!r}")
        for name in ("mc_samples", *(() if self.batch_size is None else ("batch_size",))):
            check_count(name, getattr(self, name))
        check_likelihood(self.likelihood)
        if isinstance(self.batch_norm, str) and self.batch_norm != AUTO:
            raise ValueError(f"batch_norm must be {AUTO!r}, None or inputs, got {self.batch_norm!r}")
        if self.link is not None:
            if self.link not in LINKS:
                raise ValueError(f"link must be one of {LINKS}, got {self.link!r}")
            if self.method not in GAUSSIAN or not self.likelihood.defines("log_probs"):
                raise ValueError(
                    f"link must be given for a method in {GAUSSIAN} and classification only, "
                    f"got {self.link!r} for {self.method!r} and {type(self.likelihood).__name__}"
                )
        if self.method == "moments" and self.output is not None:
            raise ValueError(f"output must be None for method='moments', got {self.output!r}")
        mc_samples, batch_size = int(self.mc_samples), self.batch_size and int(self.batch_size)
        if self.method in GAUSSIAN:
            noise.normal(self.seed, 0, mc_samples - 1, 0, (0,))  # refuses a seed out of range before the model runs
        return replace(self, mc_samples=mc_samples, batch_size=batch_size)

    def count_for(self, posterior: NetworkDistribution) -> int:
        """Number of samples, rounded up to equally many of every stratum of the posterior."""
        return -(-self.mc_samples // posterior.strata) * posterior.strata
