"""The methods by name: how the members of an estimator are trained, and where their posteriors come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """The way in which members are trained and predict.

    Attributes:
        train: A method of :func:`bayesadam.population.train`.
        predict: A method of :func:`bayesadam.predict`.
        posterior: Source of the posteriors: ``"own"``, the training itself; ``"laplace"``, ``"badam"`` or
            ``"anchored"``, an approximation after the training.
    """

    train: str
    predict: str
    posterior: str


_METHODS = {
    "laplace": Method("adam", "linearized", "laplace"),
    "badam": Method("adam", "linearized", "badam"),
    "anchored": Method("adam", "linearized", "anchored"),
    "ensemble": Method("adam", "mean", "own"),
}
_METHODS |= {name: Method(name, "monte_carlo", "own") for name in ("vadam", "vprop", "ivon", "vogn", "von", "bbb")}

METHODS = tuple(_METHODS)


def method_named(name: object) -> Method:
    """Return the method with a name.

    Raises:
        ValueError: No method has this name.
    """
    if not isinstance(name, str) or name not in _METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {name!r}")
    return _METHODS[name]
