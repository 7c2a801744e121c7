"""What a posterior predictive costs: 64 samples x 1,024 inputs beside 64 plain forward passes, in one process.

    python benchmarks/prediction.py       # prints the table, writes runs/benchmarks/prediction.json

The network is 784-400-400-10. "ivon-opt" is the peer's own loop over ``sampled_params``; "vmap" stacks the samples and
maps the network over them. "sampling" is ours without the forward passes. Medians of rounds in which all take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import ivon
import torch

import bayesadam as ba
from record import arguments, conditions, save

SAMPLES, INPUTS, ROUNDS = 64, 1024, 5


def contenders() -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    layers = [(784, 400), (400, 400), (400, 10)]
    net = torch.nn.Sequential(*[m for i, o in layers for m in (torch.nn.Linear(i, o), torch.nn.ReLU())][:-1])
    x = torch.randn(INPUTS, 784)
    posterior = ba.Vadam(net.named_parameters(), num_data=60_000).posterior()
    parameters, likelihood = dict(net.named_parameters()), ba.Categorical()
    peer = ivon.IVON(net.parameters(), lr=0.1, ess=60_000)

    @torch.no_grad()
    def forward() -> None:
        for _ in range(SAMPLES):
            net(x)

    def ours() -> None:
        ba.predict(net, posterior, x, likelihood=likelihood, mc_samples=SAMPLES)

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

    return {"plain forward passes": forward, "predict": ours, "sampling": sampling, "ivon-opt": ivon_opt, "vmap": vmap}


def main() -> None:
    options = arguments(__doc__).parse_args()
    started = conditions("torch", "bayesadam", "ivon-opt")
    functions = contenders()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(ROUNDS + 1):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            if round_:
                seconds[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    reference = medians["plain forward passes"]
    report = {
        **started,
        "milliseconds": {name: round(value * 1e3, 1) for name, value in medians.items()},
        "ratio": {name: round(value / reference, 2) for name, value in medians.items()},
    }
    for name in functions:
        print(f"{name:22}{report['milliseconds'][name]:10.1f} ms{report['ratio'][name]:8.2f}")
    save(options.output / "prediction.json", report)


if __name__ == "__main__":
    main()
