"""What an iteration of Bayes by Backprop costs: forward, KL, backward and step, beside one of plain Adam.

    python benchmarks/variational.py       # prints the table, writes runs/benchmarks/variational.json

The network is 784-400-400-10 at batch 128, and "tiny" is 20-50-50-3 at batch 32. All contenders, peers too, are trained
by ``torch.optim.Adam(fused=True)``, live in one process and take turns, round by round. The table has medians of the
rounds, of processor time on one thread, and the ratio to the plain network. Peers that are not installed are left out;
they pin old versions of others:
``pip install --no-deps bayesian-torch==0.5.0 torchbnn==1.2``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import priors
from bayesadam.bayes_by_backprop import variational
from contenders import Step, iteration_of_adam
from networks import perceptron
from record import arguments, conditions, save
from turns import take_turns

NUM_DATA = 60_000
WIDTHS, BATCH = (784, 400, 400, 10), 128
TINY, TINY_BATCH = (20, 50, 50, 3), 32
REFERENCE, ROUNDS = "plain", 41
Loss = Callable[[Tensor, Tensor], Tensor]
Make = Callable[[Sequence[int]], tuple[nn.Module, Loss]]


def plain(widths: Sequence[int]) -> tuple[nn.Module, Loss]:
    net = perceptron(*widths, seed=0)
    return net, lambda x, y: nn.functional.cross_entropy(net(x), y)


def ours(prior: Any = 1.0, **options: Any) -> Make:
    def make(widths: Sequence[int]) -> tuple[nn.Module, Loss]:
        net, likelihood = variational(perceptron(*widths, seed=0), prior=prior, **options), ba.Categorical()
        return net, lambda x, y: net.loss(x, y, likelihood=likelihood, num_data=NUM_DATA)

    return make


def bayesian_torch(kind: str) -> Make:
    def make(widths: Sequence[int]) -> tuple[nn.Module, Loss]:
        from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

        net = perceptron(*widths, seed=0)
        moments = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
        dnn_to_bnn(net, {**moments, "type": kind, "moped_enable": False})
        return net, lambda x, y: nn.functional.cross_entropy(net(x), y) + get_kl_loss(net) / NUM_DATA

    return make


def torchbnn(widths: Sequence[int]) -> tuple[nn.Module, Loss]:
    import torchbnn as bnn

    def layer(fan_in: int, fan_out: int) -> nn.Module:
        return bnn.BayesLinear(prior_mu=0, prior_sigma=1.0, in_features=fan_in, out_features=fan_out)

    net = perceptron(*widths, layer=layer, seed=0)
    divergence = bnn.BKLLoss(reduction="sum", last_layer_only=False)
    return net, lambda x, y: nn.functional.cross_entropy(net(x), y) + divergence(net).sum() / NUM_DATA


CONTENDERS: dict[str, Make] = {
    REFERENCE: plain,
    "shared": ours(),
    "shared, scale mixture": ours(priors.ScaleMixturePrior(pi=0.75, sigma1=1.0, sigma2=0.0025)),
    "local": ours(estimator="local"),
    "flipout": ours(estimator="flipout"),
    "bayesian-torch": bayesian_torch("Reparameterization"),
    "bayesian-torch flipout": bayesian_torch("Flipout"),
    "torchbnn": torchbnn,
}


def iterations(widths: Sequence[int], batch: int) -> dict[str, Step]:
    x, y = torch.randn(batch, widths[0]), torch.randint(widths[-1], (batch,))

    def iteration(make: Make) -> Step:
        net, loss = make(widths)
        return iteration_of_adam(net.parameters(), lambda: loss(x, y).backward())

    result = {}
    for name, make in CONTENDERS.items():
        try:
            result[name] = iteration(make)
        except ImportError as error:
            print(f"{name}: left out, {error}")
    return result


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = {
        **conditions("torch", "bayesadam", "bayesian-torch", "torchbnn"),
        "rounds": ROUNDS,
        "ordinary": take_turns(iterations(WIDTHS, BATCH), ROUNDS),
        "tiny": take_turns(iterations(TINY, TINY_BATCH), ROUNDS),
    }
    save(options.output / "variational.json", report)


if __name__ == "__main__":
    main()
