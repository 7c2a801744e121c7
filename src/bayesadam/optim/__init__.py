"""Weight-perturbed optimisers. ``OPTIMIZERS`` maps names to classes; the contract tests cover every class in it."""

from bayesadam.optim.base import PerturbedOptimizer as PerturbedOptimizer
from bayesadam.optim.bayesadam import BayesAdam as BayesAdam
from bayesadam.optim.bbb import BayesByBackprop as BayesByBackprop
from bayesadam.optim.dense_von import DenseVON as DenseVON
from bayesadam.optim.ivon import IVON as IVON
from bayesadam.optim.natural import NaturalVadam as NaturalVadam
from bayesadam.optim.natural import NaturalVON as NaturalVON
from bayesadam.optim.ngvi import NGVI as NGVI
from bayesadam.optim.param_groups import param_groups as param_groups
from bayesadam.optim.schedules import BetaScheduler as BetaScheduler
from bayesadam.optim.schedules import half_cosine as half_cosine
from bayesadam.optim.schedules import polynomial_decay as polynomial_decay
from bayesadam.optim.vadagrad import VadaGrad as VadaGrad
from bayesadam.optim.vadam import Vadam as Vadam
from bayesadam.optim.van import VAN as VAN
from bayesadam.optim.vogn import VOGN as VOGN
from bayesadam.optim.von import VON as VON
from bayesadam.optim.vprop import Vprop as Vprop

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
