"""The regressor's likelihoods by name, and the constants from which their training starts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam import likelihoods
from bayesadam.likelihoods import Likelihood
from bayesadam.tables.encoder.encoder import are_whole

NAMES = ("gaussian", "student_t", "poisson", "negative_binomial", "log_normal", "gamma")

COUNTS = ("poisson", "negative_binomial")
"""Likelihoods of counts."""

LOGARITHMIC = (*COUNTS, "gamma")
"""Likelihoods with the logarithm of the mean as output, which can make a mean huge."""

FEW = 50
"""Rows from which on targets can look like counts: fewer are whole by chance or by hand."""

SMALL = 20
"""Median of counts from which on a Gaussian describes them as well."""

START_ROWS = 10_000
"""Maximum number of rows that are used to find the best constant output."""


def check(value: object) -> None:
    """Raise ``ValueError`` if ``value`` is neither the name of a likelihood nor a likelihood for regression."""
    if isinstance(value, Likelihood):
        if value.defines("log_probs"):
            raise ValueError(f"likelihood must be one of numbers, not classes, for a regressor, got {value!r}")
        if value.outputs_per_target > 1 and not value.defines("mean_and_log_variance"):
            raise ValueError(f"likelihood must have one output per target, or be Gaussian, got {value!r}")
    elif not isinstance(value, str) or value not in NAMES:
        raise ValueError(f"likelihood must be one of {NAMES} or a bayesadam.likelihoods.Likelihood, got {value!r}")


def may_be_counts(targets: NDArray[np.float64]) -> bool:
    """Whether targets are whole, not negative, more than two, and too small for a Gaussian to be a model of counts."""
    if len(targets) < FEW:
        return False
    values = np.unique(targets)
    return are_whole(values) and values[0] >= 0.0 and len(values) > 2 and float(np.median(targets)) < SMALL


def made(value: Any, outputs: int) -> Likelihood:
    """Return a copy of the given likelihood, or create the named one, with learned parameters for each target."""
    if isinstance(value, Likelihood):
        return copy.deepcopy(value).float()
    each: dict[str, Any] = {"learned": True}
    ones = torch.ones(outputs)
    if value == "poisson":
        return likelihoods.Poisson()
    if value == "negative_binomial":
        return likelihoods.NegativeBinomial(ones, **each)
    if value == "log_normal":
        return likelihoods.LogNormal(ones, **each)
    if value == "gamma":
        return likelihoods.Gamma(ones, **each)
    assert value == "student_t"
    return likelihoods.StudentT(4.0 * ones, scale=0.5 * ones, **each)


def best_constant(likelihood: Likelihood, targets: Tensor) -> tuple[Likelihood, Tensor]:
    """Find the constant output and the parameters that describe the targets best, from which training starts.

    Args:
        likelihood: Likelihood whose trainable parameters are fitted, too.
        targets: ``(N, K)``.

    Returns:
        A copy of the likelihood with fitted parameters, and the output in float32, one number for each output of the
        network.

    Raises:
        ValueError: The likelihood does not allow a target.
    """
    rows = torch.linspace(0, len(targets) - 1, min(len(targets), START_ROWS), dtype=torch.float64).long()
    observed = targets[rows].cpu().double()
    width = targets.shape[1] * likelihood.outputs_per_target
    likelihood.check(torch.zeros(len(targets), width), targets.cpu())
    logs = observed.abs().mean(0).clamp_min(1e-6).log().repeat(likelihood.outputs_per_target)
    starts = [torch.zeros(width, dtype=torch.float64), logs]
    fits = [_fitted(likelihood, observed, start) for start in starts]
    _, changed, output = min(fits, key=lambda fit: fit[0])
    return changed.float(), output.float()


def average(members: Sequence[Likelihood]) -> Likelihood:
    """Return one likelihood with the means of the members' parameters, most of which are stored as logarithms."""
    states = [member.state_dict() for member in members]
    result = copy.deepcopy(members[0])
    numbers = [name for name, value in states[0].items() if value.is_floating_point()]
    means = {name: torch.stack([state[name] for state in states]).mean(0) for name in numbers}
    result.load_state_dict({**states[0], **means})
    return result


def _fitted(likelihood: Likelihood, targets: Tensor, start: Tensor) -> tuple[float, Likelihood, Tensor]:
    changed, output = copy.deepcopy(likelihood).double(), start.clone().requires_grad_()
    shape = (len(targets), len(start))
    learned = [p for p in changed.parameters() if p.requires_grad]
    minimise([output, *learned], lambda: -changed.log_density(output.expand(shape), targets).mean())
    with torch.no_grad():
        loss = float(-changed.log_density(output.expand(shape), targets).mean())
    fine = all(bool(p.isfinite().all()) for p in (output, *learned)) and loss < torch.inf
    return (loss, changed, output.detach()) if fine else (torch.inf, copy.deepcopy(likelihood), start)


def minimise(parameters: Sequence[Tensor], loss: Callable[[], Tensor]) -> None:
    """Change parameters so that a differentiable loss is least."""
    optimizer = torch.optim.LBFGS(parameters, max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
