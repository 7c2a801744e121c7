"""Kernels of a GPU beside the CPU's numbers, and what steps, iterations and predictions cost.

    python benchmarks/gpu.py               # writes runs/benchmarks/gpu.json after each section: it may be stopped

Steps have given gradients, and those of each contender take turns with those of fused Adam. There are iterations of two
networks, 64 samples of ``predict``, a diagonal Laplace approximation, five networks beside one, and a captured step.
Times are those of ``turns.py``, where the device is waited for at the end of each turn. A section that fails is
recorded with its error.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bayesadam as ba
from bayesadam import noise
from bayesadam.core import launch
from bayesadam.optim import OPTIMIZERS
from contenders import Contender, Step, adam, give, ivon_opt, optimizer, ours
from networks import Transformer, resnet
from record import arguments, conditions, save
from turns import take_turns
from without_gpu import Work, passes, title

# Correctness


def kernels_differ(device: torch.device, tiny: bool) -> dict[str, Any]:
    """Every pass of every rule, the normals, and trainings, beside the CPU's numbers."""
    found: dict[str, Any] = {"normals": {}, "trainings": {}, "passes": {}}
    for shape in ((7,), (1000,), (3, 5000), (2**20 + 3,)):
        gpu, cpu = (noise.normal(5, 4, 3, 2, shape, device=place) for place in (device, "cpu"))
        found["normals"][str(shape)] = (gpu.cpu() - cpu).abs().max().item()
    names = ["ivon"] if tiny else list(OPTIMIZERS)
    works = passes(names)
    count = min(12, os.cpu_count() or 1)  # compilation takes a core for minutes
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        verdicts = pool.map(compared, works, [device.type] * len(works))
        found["passes"] = dict(zip(map(title, works), verdicts, strict=True))
    found["equal"] = all(each == "equal" for each in found["passes"].values())
    found["trainings"] = {name: trained_differently(name, device) for name in names}
    return found


def compared(work: Work, kind: str) -> str:
    """Whether the kernel of a pass gives the numbers of PyTorch's operations."""
    kernel = "not tried" if kind == "cpu" else launch._in_triton(*work, torch.device(kind))
    return kernel if isinstance(kernel, str) else "equal"


def trained_differently(name: str, device: torch.device) -> float:
    """Largest relative difference of means after three steps of drop-in training."""
    means = []
    for place in (torch.device("cpu"), device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 70), nn.Tanh(), nn.Linear(70, 100)).to(place)
        opt = optimizer(name, net, lr=0.01, num_data=50)
        x, y = torch.linspace(-1, 1, 640).view(32, 20).to(place), torch.linspace(0, 1, 3200).view(32, 100).to(place)
        opt.train()
        for _ in range(3):
            opt.zero_grad()
            (net(x) - y).square().mean().backward()
            opt.step()
        opt.eval()
        means.append(torch.cat([p.detach().flatten().cpu() for p in net.parameters()]))
    return float(((means[0] - means[1]).abs() / (1e-3 + means[0].abs())).max())


# Steps with given gradients


REFERENCE = "Adam fused"
CONTENDERS: dict[str, Contender] = {
    REFERENCE: partial(adam, fused=True),
    "Adam foreach": partial(adam, foreach=True),
    "ivon-opt": ivon_opt,
    **{
        f"{name} {'blocks' if blocks else 'drop-in'}": partial(ours, name=name, blocks=blocks, prior_precision=1.0)
        for blocks in (False, True)
        for name in ("Vadam", "IVON", "BayesAdam")
    },
}
CASES = {
    "1e6 in 100": (10**6, 100),
    "1e8 in 150": (10**8, 150),
    "1e7 in 150": (10**7, 150),
    "3e8 in 300": (3 * 10**8, 300),
}


def steps(device: torch.device, tiny: bool, case: str) -> dict[str, Any]:
    """A step of each contender, in turns with one of fused Adam."""
    numel, tensors = (1000, 4) if tiny else CASES[case]

    def parameters() -> list[nn.Parameter]:
        params = [nn.Parameter(torch.full((numel // tensors,), 0.1, device=device)) for _ in range(tensors)]
        give(params, [torch.full_like(parameter, 1e-3) for parameter in params])
        return params

    def beside_adam(name: str) -> dict[str, float]:
        _, reference = CONTENDERS[REFERENCE](parameters())
        _, step = CONTENDERS[name](parameters())
        return timed({REFERENCE: reference, name: step}, 9, tiny, repeats=20)[name]

    return {name: beside_adam(name) for name in CONTENDERS}


def timed(functions: dict[str, Step], rounds: int, tiny: bool, *, repeats: int = 1) -> dict[str, dict[str, float]]:
    return take_turns(functions, 2 if tiny else rounds, repeats=1 if tiny else repeats, warm=False)


# Networks


def problem(device: torch.device, tiny: bool, kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with its inputs and targets."""
    torch.manual_seed(0)
    if kind == "ResNet-18":
        net: nn.Module = resnet(4 if tiny else 64).to(device, memory_format=torch.channels_last)
        x = torch.randn(2 if tiny else 128, 3, 32, 32).to(device, memory_format=torch.channels_last)
        return net, x, torch.arange(len(x), device=device) % 10
    rows, length, tokens, width, depth = (2, 16, 50, 8, 1) if tiny else (8, 1024, 50_257, 768, 12)
    decoder = Transformer(tokens, width=width, depth=depth, length=length, heads=max(1, width // 64))
    decoder.head.weight = decoder.tokens.weight  # 124 million weights
    x = torch.randint(tokens, (rows, length + 1)).to(device)
    return decoder.to(device), x[:, :-1], x[:, 1:]


def iterations(device: torch.device, tiny: bool, kind: str) -> dict[str, Any]:
    """Forward and backward pass, and step."""

    def iteration(name: str) -> Step:
        net, x, y = problem(device, tiny, kind)
        if name == REFERENCE:
            opt: Any = torch.optim.Adam(net.parameters(), lr=1e-5, fused=True)
        else:
            net.train(name != "VOGN")  # squares of single examples need batch norm with fixed statistics
            opt = optimizer(name, net, prior_precision=1.0)
            opt.train()

        def iterate() -> None:
            opt.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                out = net(x)
                loss = cross_entropy(out.float().flatten(0, -2), y.flatten())
            loss.backward()
            opt.step()

        return iterate

    names = [REFERENCE, "Vadam", "IVON"]
    if kind == "ResNet-18":
        names += ["BayesAdam", "VOGN"]  # memory of the other is short
    return timed({name: iteration(name) for name in names}, 9, tiny, repeats=4)


def predictions(device: torch.device, tiny: bool) -> dict[str, Any]:
    """64 samples of ``predict`` beside 64 forward passes of the ResNet, and a diagonal Laplace approximation."""
    net, x, y = problem(device, tiny, "ResNet-18")
    net.eval()
    samples = 2 if tiny else 64
    posterior = ba.DiagonalGaussian(
        {name: p.detach().clone() for name, p in net.named_parameters()},
        {name: torch.full_like(p, 1e-6) for name, p in net.named_parameters()},
    )

    @torch.no_grad()
    def forward() -> None:
        for _ in range(samples):
            net(x)

    def predict() -> None:
        ba.predict(net, posterior, x, likelihood=ba.Categorical(), mc_samples=samples, batch_norm=None)

    rows = [(x, y)] * (1 if tiny else 8)
    fitted = partial(ba.laplace, net, rows, likelihood=ba.Categorical(), structure="diagonal")
    return {
        **timed({"forward passes": forward, "predict": predict}, 9, tiny),
        **timed({"diagonal Laplace of 1,024 images": fitted}, 2, tiny),
    }


def ensembles(device: torch.device, tiny: bool) -> dict[str, Any]:
    """Five ResNets by ``train_ensemble`` beside one in a loop, for an epoch of 16 minibatches."""
    batch, steps = (2, 2) if tiny else (128, 16)
    x, y = torch.randn(batch * steps, 3, 32, 32, device=device), torch.arange(batch * steps, device=device) % 10
    options: dict[str, Any] = {"likelihood": ba.Categorical(), "epochs": 1, "batch_size": batch, "progress": False}

    def make() -> nn.Module:
        return resnet(4 if tiny else 64).to(device)

    def one() -> None:
        net = make()
        opt = ba.BayesAdam(net.named_parameters(), num_data=len(x), batch_size=batch, total_steps=steps)
        opt.train()
        for rows in torch.randperm(len(x), device=device).split(batch):
            opt.zero_grad()
            cross_entropy(net(x[rows]), y[rows]).backward()
            opt.step()

    five = partial(ba.train_ensemble, make, (x, y), members=5, together=True, **options)
    in_turn = partial(ba.train_ensemble, make, (x, y), members=5, together=False, **options)
    return timed({"one network": one, "five together": five, "five in turn": in_turn}, 5, tiny)


def graphs(device: torch.device) -> dict[str, Any]:
    """A step that is captured and replayed, beside the same steps without a graph."""
    means = []
    for captured in (False, True):
        params = [nn.Parameter(torch.linspace(-1, 1, 5000, device=device))]
        params[0].grad = torch.full_like(params[0], 1e-2)
        opt = ba.IVON(params, num_data=50.0)
        opt.train()
        for _ in range(3):
            opt.step()
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                opt.step()
        for _ in range(5):
            if captured:
                opt.prepare_replay()
                graph.replay()
            else:
                opt.step()
        opt.eval()
        means.append(params[0].detach().cpu())
    return {"difference": (means[0] - means[1]).abs().max().item()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="very small problems, to try the script itself")
    options = parser.parse_args()
    device, tiny = torch.device(options.device), options.tiny
    card = torch.cuda.get_device_name() if device.type == "cuda" else "none"
    report = {**conditions("torch", "bayesadam", "triton", "ivon-opt"), "card": card}
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "correctness": partial(kernels_differ, device, tiny),
        **{f"steps, {case}": partial(steps, device, tiny, case) for case in CASES},
        **{kind: partial(iterations, device, tiny, kind) for kind in ("ResNet-18", "transformer")},
        "predictions": partial(predictions, device, tiny),
        "ensembles": partial(ensembles, device, tiny),
        "graphs": partial(graphs, device),
    }
    for name, section in sections.items():
        begin = time.monotonic()
        try:
            report[name] = section()
        except Exception:
            report[name] = {"error": traceback.format_exc(limit=-6)}
        print(f"{name}, {time.monotonic() - begin:.0f} s", flush=True)
        save(options.output / "gpu.json", report)


if __name__ == "__main__":
    main()
