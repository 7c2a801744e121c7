"""What a posterior predictive costs beside plain forward passes, in one process.

    python benchmarks/prediction.py       # prints the tables, writes runs/benchmarks/prediction.json

The ordinary network is 784-400-400-10: 64 samples x 1,024 inputs beside as many forward passes. "ivon-opt" is the
peer's own loop over ``sampled_params``; "vmap" stacks the samples and maps the network over them; "sampling" is ours
without the forward passes. The small network is 64-64-10 with 4,000 inputs beside one forward pass. "last layer" is a
Laplace posterior over the last layer of the ordinary network, beside laplace-torch's 64 samples (left out if it is not
installed; see ``laplace.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ivon
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from networks import perceptron
from peers import laplace_torch
from record import arguments, conditions, save
from turns import take_turns

SAMPLES = 64
Contenders = dict[str, Callable[[], Any]]
LIKELIHOOD = ba.Categorical()


def passes(net: nn.Module, x: Tensor, count: int = 1) -> Callable[[], None]:
    """Plain forward passes."""

    @torch.no_grad()
    def run() -> None:
        for _ in range(count):
            net(x)

    return run


def predicting(net: nn.Module, posterior: Any, x: Tensor) -> Callable[[], Any]:
    return lambda: ba.predict(net, posterior, x, likelihood=LIKELIHOOD, mc_samples=SAMPLES)


def ordinary() -> Contenders:
    net, x = perceptron(784, 400, 400, 10), torch.randn(1024, 784)
    posterior = ba.Vadam(net.named_parameters(), num_data=60_000).posterior()
    parameters, peer = dict(net.named_parameters()), ivon.IVON(net.parameters(), lr=0.1, ess=60_000)

    def sampling() -> None:
        write = posterior.writer(0)
        for number in range(SAMPLES):
            write(parameters, number)

    @torch.no_grad()
    def ivon_opt() -> None:
        logits = []
        for _ in range(SAMPLES):
            with peer.sampled_params():
                logits.append(net(x))
        torch.stack(logits).softmax(-1).mean(0)

    @torch.no_grad()
    def vmap() -> None:
        call = torch.func.vmap(lambda p: torch.func.functional_call(net, p, (x,)))
        call(posterior.sample(SAMPLES)).softmax(-1).mean(0)

    plain, ours = passes(net, x, SAMPLES), predicting(net, posterior, x)
    return {"plain forward passes": plain, "predict": ours, "sampling": sampling, "ivon-opt": ivon_opt, "vmap": vmap}


def small() -> Contenders:
    nets, x = [perceptron(64, 64, 10) for _ in range(3)], torch.randn(4000, 64)
    found: Contenders = {"one forward pass": passes(nets[0], x)}
    for name, posterior in (("point mass", ba.DiagonalGaussian.point_mass(nets[0])), ("three", ba.ensemble(nets))):
        found[name] = predicting(nets[0], posterior, x)
    return found


def last_layer(rows: int) -> Contenders:
    net, x = perceptron(784, 400, 400, 10), torch.randn(2000, 784)
    y = torch.randint(10, (2000,))
    fitted = ba.laplace(net, (x, y), likelihood=LIKELIHOOD, structure="last_layer")
    found = {"one forward pass": passes(net, x[:rows]), "predict": predicting(net, fitted, x[:rows])}
    try:
        peer = laplace_torch().Laplace(net, "classification", hessian_structure="full")
    except ImportError as error:
        print(f"laplace-torch: left out, {error}")
        return found
    peer.fit(DataLoader(TensorDataset(x, y), batch_size=500))
    options = {"pred_type": "nn", "link_approx": "mc", "n_samples": SAMPLES}
    return {**found, "laplace-torch": lambda: peer(x[:rows], **options)}


CASES: dict[str, tuple[Callable[[], Contenders], int]] = {
    "784-400-400-10, 64 samples x 1,024 inputs": (ordinary, 5),
    "64-64-10, 4,000 inputs": (small, 41),
    "last layer, 1,000 inputs": (lambda: last_layer(1000), 11),
    "last layer, 1 input": (lambda: last_layer(1), 11),
}


def main() -> None:
    options = arguments(__doc__).parse_args()
    report: dict[str, Any] = {**conditions("torch", "bayesadam", "ivon-opt", "laplace-torch"), "cases": {}}
    torch.manual_seed(0)
    for title, (make, rounds) in CASES.items():
        print(title)
        report["cases"][title] = take_turns(make(), rounds)
    save(options.output / "prediction.json", report)


if __name__ == "__main__":
    main()
