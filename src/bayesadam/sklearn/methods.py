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
        about: A line that helps to choose a method.
    """

    train: str
    predict: str
    posterior: str
    about: str

    @property
    def continues(self) -> bool:
        """Whether a posterior can be the prior for more data."""
        return self.posterior == "own" and self.train != "adam"


def _perturbed(name: str, about: str) -> Method:
    return Method(name, "monte_carlo", "own", about)


_METHODS = {
    "laplace": Method("adam", "linearized", "laplace", "networks by Adam, curvature around them; regression's default"),
    "badam": Method("adam", "linearized", "badam", "networks by Adam, variances read off its second moments; free"),
    "anchored": Method(
        "adam", "linearized", "anchored", "modes of randomised posteriors by Adam, and exact last layers"
    ),
    "ensemble": Method("adam", "mean", "own", "networks by Adam without posteriors: a deep ensemble"),
    "vadam": _perturbed("vadam", "variational inference by Adam on perturbed weights; the default for classification"),
    "vprop": _perturbed("vprop", "variational inference by RMSprop on perturbed weights"),
    "ivon": _perturbed("ivon", "Vadam with a sharper estimate of the curvature"),
    "vogn": _perturbed("vogn", "variational inference with squared gradients per example"),
    "von": _perturbed("von", "variational inference by reparameterised Hessians"),
    "bbb": _perturbed("bbb", "Bayes by Backprop: means and scales by Adam"),
}

METHODS = tuple(_METHODS)


def method_named(name: object) -> Method:
    """Return the method with a name.

    Raises:
        ValueError: No method has this name.
    """
    if not isinstance(name, str) or name not in _METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {name!r}")
    return _METHODS[name]
