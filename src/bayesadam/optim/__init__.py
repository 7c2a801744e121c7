"""Weight-perturbed optimisers. ``OPTIMIZERS`` registers every one: the contract suite tests what stands there."""

from bayesadam.optim.base import PerturbedOptimizer as PerturbedOptimizer
from bayesadam.optim.ivon import IVON as IVON
from bayesadam.optim.schedules import BetaScheduler as BetaScheduler
from bayesadam.optim.schedules import polynomial_decay as polynomial_decay
from bayesadam.optim.vadagrad import VadaGrad as VadaGrad
from bayesadam.optim.vadam import Vadam as Vadam
from bayesadam.optim.vprop import Vprop as Vprop

OPTIMIZERS: dict[str, type[PerturbedOptimizer]] = {
    "vadam": Vadam,
    "vprop": Vprop,
    "vadagrad": VadaGrad,
    "ivon": IVON,
}
