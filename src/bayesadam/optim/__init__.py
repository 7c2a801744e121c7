"""Weight-perturbed optimisers. ``OPTIMIZERS`` maps names to classes; the contract tests cover every class in it."""

from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.bayesadam import BayesAdam
from bayesadam.optim.bbb import BayesByBackprop
from bayesadam.optim.dense_von import DenseVON
from bayesadam.optim.ivon import IVON
from bayesadam.optim.natural import NaturalVadam, NaturalVON
from bayesadam.optim.ngvi import NGVI
from bayesadam.optim.param_groups import param_groups
from bayesadam.optim.schedules import BetaScheduler, half_cosine, polynomial_decay
from bayesadam.optim.vadagrad import VadaGrad
from bayesadam.optim.vadam import Vadam
from bayesadam.optim.van import VAN
from bayesadam.optim.vogn import VOGN
from bayesadam.optim.von import VON
from bayesadam.optim.vprop import Vprop

__all__ = [
    "IVON",
    "NGVI",
    "OPTIMIZERS",
    "VAN",
    "VOGN",
    "VON",
    "BayesAdam",
    "BayesByBackprop",
    "BetaScheduler",
    "DenseVON",
    "NaturalVON",
    "NaturalVadam",
    "PerturbedOptimizer",
    "VadaGrad",
    "Vadam",
    "Vprop",
    "half_cosine",
    "param_groups",
    "polynomial_decay",
]

OPTIMIZERS: dict[str, type[PerturbedOptimizer]] = {
    "bayesadam": BayesAdam,
    "vadam": Vadam,
    "vprop": Vprop,
    "vadagrad": VadaGrad,
    "von": VON,
    "vogn": VOGN,
    "van": VAN,
    "ngvi": NGVI,
    "natural_von": NaturalVON,
    "natural_vadam": NaturalVadam,
    "ivon": IVON,
    "bbb": BayesByBackprop,
}
