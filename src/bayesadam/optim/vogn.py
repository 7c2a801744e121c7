"""VOGN: the variational online Gauss-Newton method (Khan et al. 2018, section 3.2; Osawa et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bayesadam.curvature import PerExampleSquares
from bayesadam.engine.rule import BATCH_SIZE, LEARNING, Hyper, Option, State, add_prior_gradient_, add_scaled_, blend_
from bayesadam.engine.sources import ExampleSource
from bayesadam.optim.arguments import OfVOGN
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.hyperparameters import check_ordered
from bayesadam.optim.newton import damped, follow_curvature_, initial_hessian
from bayesadam.optim.recipes import LEARNED, PAPER, NewtonRate, Recipes
from bayesadam.optim.von import VONRule

if TYPE_CHECKING:
    from typing_extensions import Unpack


class VOGNRule(VONRule):
    """VON with squared per-example gradients (Khan et al. 2018, section 3.2; momentum as Osawa et al. 2019)::

        h  = 1/M sum_i (grad f_i)^2
        m  <- b1 m + (1 - b1) (g + tau lt (mu - mu0))         m_hat = m / (1 - b1^t)
        s  <- (1 - tau (1 - b2)) s + (1 - b2) h
        mu <- mu - lr m_hat / (s + lt)
        1 / sigma^2 = N (s + lt)

    With ``b1 = 0`` there is no momentum, as in Khan et al. 2018. ``s`` is not bias-corrected (all sources agree).

    With ``bridge=False`` the weight of a step's curvature is that of a running average over the whole training, as in
    :class:`IVONRule`, and the step is divided by ``tau``. Since ``s`` approaches ``h / tau``, ``lr`` is then the
    fraction of a Newton step at every temperature.
    """

    state = ("exp_avg", "hessian")
    power = 2
    needs_noise = False
    options = (
        Option("hessian", "empirical_fisher", "'empirical_fisher'", lambda v: v == "empirical_fisher", static=True),
        *LEARNING,
        BATCH_SIZE,
    )

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """Momentum 0, Hessian ``s0``."""
        return {"exp_avg": torch.zeros_like(mean), "hessian": initial_hessian(mean, hp)}

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
        """None, because the curvature needs the gradients of single examples and is collected by hooks."""
        return None

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        average, hessian = state["exp_avg"], state["hessian"]
        add_prior_gradient_(grad, mean, hp)
        blend_(average, grad, 1.0 - hp["betas"][0])
        if curvature is not None:
            follow_curvature_(hessian, curvature, hp, corrected=False)
        step = torch.div(average, damped(hessian, hp), out=grad)
        rate = hp["lr"] if hp["bridge"] else hp["lr"] / hp["temperature"]
        add_scaled_(mean, step, -rate / (1.0 - hp["beta1_product"]))


class VOGN(PerturbedOptimizer):
    """Variational online Gauss-Newton, whose curvature is the mean of the squared gradients of single examples.

    Unlike the squared mean gradient of Vadam, this curvature does not shrink as the minibatch grows, so the width of
    the posterior is right for every batch size. The module is given once, and all three ways to train work::

        opt = ba.VOGN(model.parameters(), num_data=len(train_set), curvature=ba.PerExampleSquares(model))

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`. Groups with ``perturb=False`` may have parameters that do
            not belong to the module (a learned noise level): their curvature is not known, and they follow the running
            average of their gradient.
        lr: Learning rate, not negative.
        num_data: Number of training examples, or a chosen effective number.
        curvature: The :class:`PerExampleSquares` of the module that has the parameters. It knows whether the loss is a
            mean or a sum over the examples of a minibatch. With a sum, ``p.grad`` is the gradient of the mean after a
            sampling block; in drop-in training it is the gradient of the sum, and the step divides it. All backward
            passes of a step must go through the module, and gradients must be cleared by the optimiser's
            ``zero_grad``, which clears the squares too.
        **options: Further arguments of :class:`PerturbedOptimizer`.

    Raises:
        ValueError: A hyper-parameter is out of its range, or ``curvature`` is not a :class:`PerExampleSquares`.
        RuntimeError: Raised by ``step()`` if a parameter has a gradient that did not come through the module.
    """

    rule = VOGNRule()
    recipes: ClassVar[Recipes] = {
        "learned": {**LEARNED, "lr": NewtonRate(0.01), "betas": (0.9, 0.99999)},
        "paper": {**PAPER, "betas": (0.0, 0.999)},
    }
    _source: ExampleSource

    def __init__(
        self,
        params: Any,
        lr: float | Tensor | None = None,
        *,
        num_data: float,
        curvature: PerExampleSquares,
        **options: Unpack[OfVOGN],
    ) -> None:
        if not isinstance(curvature, PerExampleSquares):
            raise ValueError(f"curvature must be a PerExampleSquares of the model, got {curvature!r}")
        self._source = ExampleSource(curvature)
        super().__init__(params, lr, num_data=num_data, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in the base class.

        Raises:
            ValueError: As in the base class; or a perturbed parameter does not belong to the model that ``curvature``
                was made for.
        """
        params = param_group["params"]
        check_ordered(params)
        params = [params] if isinstance(params, Tensor) else list(params)
        for entry in params if param_group.get("perturb", self.defaults["perturb"]) else ():
            parameter = entry[1] if isinstance(entry, tuple) else entry
            if not self._source.covers(parameter):
                known = f"the parameter {entry[0]!r}" if isinstance(entry, tuple) else "a parameter"
                raise ValueError(
                    "curvature must be made for the model of these parameters, got one for a model that does "
                    f"not have {known} of shape {tuple(parameter.shape)}"
                )
        super().add_param_group({**param_group, "params": params})

    def __getstate__(self) -> dict[str, Any]:
        """The state with the curvature, so that a copy of model and optimiser together refers to the copied model."""
        return {**super().__getstate__(), "_source": self._source}
