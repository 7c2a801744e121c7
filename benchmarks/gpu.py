"""Kernels of a GPU: what can be checked without one, and what steps, iterations and predictions cost with one.

    python benchmarks/gpu.py --without-gpu            # minutes on two CPU cores
    python benchmarks/gpu.py --seconds 280            # on a GPU; ends early and writes what it has

Both write ``gpu.json``, each its own part of it. Without a GPU: every pass of every rule by Triton's interpreter beside
PyTorch's operations, cubins of sm_80 and sm_90 with registers and spills, bytes per weight, and what steps and
predictions dispatch on tensors of a GPU that is not there.

With one: every kernel beside the CPU's numbers; steps with given gradients, iterations of two networks, 64 samples of
``predict``, a diagonal Laplace approximation, peak memory. Times are medians of rounds in which all contenders take
turns with fused Adam, the device being waited for at the end of each; memory is the peak over two steps above what was
allocated before the optimiser was made. A section that fails is recorded with its error.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bayesadam as ba
import without_gpu
from bayesadam import noise
from bayesadam.core import launch
from bayesadam.curvature import PerExampleSquares
from bayesadam.optim import OPTIMIZERS
from contenders import Contender, Step, adam, ivon_opt, optimizer, ours
from record import arguments, conditions, save


class Clock:
    """What is left of the time, and how long the device takes."""

    def __init__(self, device: torch.device, seconds: float, *, tiny: bool) -> None:
        self.device, self.tiny = device, tiny
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def time(self, function: Step, repeats: int) -> float:
        """Seconds for one call."""
        self.wait()
        begin = time.perf_counter()
        for _ in range(repeats):
            function()
        self.wait()
        return (time.perf_counter() - begin) / repeats

    def compare(self, steps: Mapping[str, Step], *, seconds: float) -> dict[str, float]:
        """Medians of rounds in which all take turns, within so many seconds."""
        share = min(seconds, self.left()) / len(steps)
        once = {name: self.time(step, 1) for name, step in steps.items()}
        for name, step in steps.items():  # the first call compiles, and chooses algorithms
            once[name] = self.time(step, 1 if self.tiny or once[name] > share / 4 else 3)
        rounds = 1 if self.tiny else max(1, min(9, int(share / max(once.values()))))
        repeats = {name: max(1, min(20, int(share / rounds / each))) for name, each in once.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(rounds):
            for name, step in steps.items():
                times[name].append(self.time(step, 1 if self.tiny else repeats[name]))
        return {name: statistics.median(values) for name, values in times.items()}

    def peak(self) -> int:
        """Bytes at the peak since :meth:`forget_peak`."""
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0

    def forget_peak(self) -> int:
        """Bytes that are allocated now."""
        gc.collect()  # networks with hooks are in cycles
        if self.device.type != "cuda":
            return 0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()


# Correctness


def kernels_differ(clock: Clock) -> dict[str, Any]:
    """Every pass of every rule, the normals, and trainings, beside the CPU's numbers."""
    found: dict[str, Any] = {"normals": {}, "trainings": {}, "passes": {}}
    for shape in ((7,), (1000,), (3, 5000), (2**20 + 3,)):
        gpu, cpu = (noise.normal(5, 4, 3, 2, shape, device=device) for device in (clock.device, "cpu"))
        found["normals"][str(shape)] = (gpu.cpu() - cpu).abs().max().item()
    count = 1 if clock.tiny else min(12, os.cpu_count() or 1)  # compilation takes a core for minutes
    code = "import gpu, json; print(json.dumps(gpu.compared({}, {}, {!r}, {})))"
    command = [[sys.executable, "-c", code.format(i, count, clock.device.type, clock.tiny)] for i in range(count)]
    folder = Path(__file__).parent
    workers = [subprocess.Popen(each, cwd=folder, stdout=subprocess.PIPE, text=True) for each in command]
    for worker in workers:
        try:
            said, _ = worker.communicate(timeout=max(1.0, min(120.0, clock.left())))
            found["passes"] |= json.loads(said.splitlines()[-1])
        except Exception as error:
            worker.kill()
            found["passes"][f"a process of {count}"] = repr(error)
    found["equal"] = all(each == "equal" for each in found["passes"].values())
    for name in ["ivon"] if clock.tiny else OPTIMIZERS:
        if clock.left() > 0:
            found["trainings"][name] = trained_differently(name, clock.device)
    return found


def compared(number: int, count: int, kind: str, tiny: bool) -> dict[str, str]:
    """For one of so many shares of all passes: whether their kernels give the numbers of PyTorch's operations."""
    works = without_gpu.passes(["ivon"] if tiny else list(OPTIMIZERS))[number::count]
    found = {}
    for work in works:
        kernel = "not tried" if kind == "cpu" else launch._in_triton(*work, torch.device(kind))
        found[without_gpu.title(work)] = kernel if isinstance(kernel, str) else "equal"
    return found


def trained_differently(name: str, device: torch.device) -> float:
    """Largest relative difference of means after three steps of drop-in training."""
    means = []
    for place in (torch.device("cpu"), device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 70), nn.Tanh(), nn.Linear(70, 100)).to(place)
        opt = without_gpu.made(name, net)
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
    "Vadam drop-in low memory": partial(ours, name="Vadam", blocks=False, low_memory=True),
}
CASES = {
    "1e6 in 100": (10**6, 100),
    "1e8 in 150": (10**8, 150),
    "1e7 in 150": (10**7, 150),
    "3e8 in 300": (3 * 10**8, 300),
}


def steps(clock: Clock, case: str) -> dict[str, Any]:
    """Microseconds of a step and its ratio to fused Adam, and bytes per weight at the peak, by contender."""
    numel, tensors = (1000, 4) if clock.tiny else CASES[case]

    def parameters(numel: int) -> list[nn.Parameter]:
        params = [nn.Parameter(torch.full((numel // tensors,), 0.1, device=clock.device)) for _ in range(tensors)]
        for parameter in params:
            parameter.grad = torch.full_like(parameter, 1e-3)
        return params

    results: dict[str, Any] = {}
    for name, make in CONTENDERS.items():
        if clock.left() < 5:
            results[name] = "no time"
            continue
        try:
            make(parameters(1000))[1]()  # what is compiled once takes memory, too
            before = clock.forget_peak()
            opt, step = make(parameters(numel))
            step(), step()
            peak = (clock.peak() - before) / numel
            _, reference = CONTENDERS[REFERENCE](parameters(numel))
            times = clock.compare({REFERENCE: reference, name: step}, seconds=1.5)
            ratio = times[name] / times[REFERENCE]
            results[name] = {"microseconds": 1e6 * times[name], "ratio": ratio, "peak_bytes_per_weight": peak}
            del opt, step, reference
        except Exception:
            results[name] = {"error": traceback.format_exc(limit=-4)}
    return results


# Networks


class Residual(nn.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.main = nn.Sequential(first, nn.BatchNorm2d(outputs), nn.ReLU(), second, nn.BatchNorm2d(outputs))
        short = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.short = nn.Sequential(*(short if stride > 1 or inputs != outputs else []))

    def forward(self, x: Tensor) -> Tensor:
        """Of images."""
        return (self.main(x) + self.short(x)).relu()


def resnet(width: int = 64) -> nn.Sequential:
    """ResNet-18 for images of 32 x 32: 11.2 million weights."""
    blocks: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for stage in range(4):
        inputs, outputs = width * 2 ** max(0, stage - 1), width * 2**stage
        blocks += [Residual(inputs, outputs, 1 + (stage > 0)), Residual(outputs, outputs, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


class Decoder(nn.Module):
    """A pre-norm transformer with tied embeddings; by default 124 million weights."""

    def __init__(self, vocabulary: int = 50_257, width: int = 768, layers: int = 12, context: int = 1024) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        heads = max(1, width // 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next tokens."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            h = layer(h, mask, is_causal=True)
        out: Tensor = self.head(self.norm(h))
        return out


def problem(clock: Clock, kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with its inputs and targets."""
    torch.manual_seed(0)
    if kind == "ResNet-18":
        net: nn.Module = resnet(4 if clock.tiny else 64).to(clock.device, memory_format=torch.channels_last)
        x = torch.randn(2 if clock.tiny else 128, 3, 32, 32).to(clock.device, memory_format=torch.channels_last)
        return net, x, torch.arange(len(x), device=clock.device) % 10
    net = (Decoder(50, 8, 1, 16) if clock.tiny else Decoder()).to(clock.device)
    rows, length, vocabulary = (2, 16, 50) if clock.tiny else (8, 1024, 50_257)
    x = torch.randint(vocabulary, (rows, length + 1)).to(clock.device)
    return net, x[:, :-1], x[:, 1:]


def low(clock: Clock) -> AbstractContextManager[Any]:
    return torch.autocast(clock.device.type, dtype=torch.bfloat16)


def iterations(clock: Clock, kind: str) -> dict[str, Any]:
    """Milliseconds of forward, backward and step, and the ratio to fused Adam's."""
    made: dict[str, Step] = {}

    def iteration(name: str) -> Step:
        net, x, y = problem(clock, kind)
        if name == REFERENCE:
            opt: Any = torch.optim.Adam(net.parameters(), lr=1e-5, fused=True)
        elif name == "VOGN":
            net.eval()  # squares of single examples need batch norm with fixed statistics
            opt = optimizer("VOGN", net.named_parameters(), curvature=PerExampleSquares(net))
        else:
            opt = optimizer(name, net.named_parameters(), prior_precision=1.0)
        if name != REFERENCE:
            opt.train()

        def iterate() -> None:
            opt.zero_grad()
            with low(clock):
                out = net(x)
                loss = cross_entropy(out.float().flatten(0, -2), y.flatten())
            loss.backward()
            opt.step()

        return iterate

    names = [REFERENCE, "Vadam", "IVON", "BayesAdam"]
    if kind != "ResNet-18":
        names.remove("BayesAdam")  # memory
    results: dict[str, Any] = {}
    for name in names:
        before = clock.forget_peak()
        made[name] = iteration(name)
        made[name]()
        results[name] = {"peak_bytes": clock.peak() - before}
    times = clock.compare(made, seconds=20)
    if kind == "ResNet-18":
        try:
            squares = iteration("VOGN")
            times["VOGN"] = clock.compare({"VOGN": squares}, seconds=4)["VOGN"]
            results["VOGN"] = {}
        except Exception:
            results["VOGN"] = {"error": traceback.format_exc(limit=-4)}
    for name, seconds in times.items():
        results[name] |= {"milliseconds": 1e3 * seconds, "ratio": seconds / times[REFERENCE]}
    return results


def predictions(clock: Clock) -> dict[str, Any]:
    """64 samples of ``predict`` beside 64 forward passes of the ResNet, and a diagonal Laplace approximation."""
    net, x, y = problem(clock, "ResNet-18")
    net.eval()
    samples = 2 if clock.tiny else 64
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

    times = clock.compare({"forward passes": forward, "predict": predict}, seconds=10)
    results: dict[str, Any] = {name: 1e3 * seconds for name, seconds in times.items()}
    results["ratio"] = times["predict"] / times["forward passes"]
    rows = [(x, y)] * (1 if clock.tiny else 8)
    fitted = partial(ba.laplace, net, rows, likelihood=ba.Categorical(), structure="diagonal")
    results["diagonal Laplace of 1,024 images"] = 1e3 * clock.compare({"laplace": fitted}, seconds=10)["laplace"]
    return results


def graphs(clock: Clock) -> dict[str, Any]:
    """A step that is captured and replayed, beside the same steps without a graph."""
    means = []
    for captured in (False, True):
        params = [nn.Parameter(torch.linspace(-1, 1, 5000, device=clock.device))]
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
    parser.add_argument("--without-gpu", action="store_true", help="check what can be checked on a CPU")
    parser.add_argument("--quick", action="store_true", help="with it: one rule")
    parser.add_argument("--seconds", type=float, default=280.0, help="default: %(default)s")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="very small problems, to try the script itself")
    options = parser.parse_args()
    path = options.output / "gpu.json"
    report: dict[str, Any] = {"with_gpu": None, "without_gpu": None}
    report |= json.loads(path.read_text()) if path.exists() else {}
    here = conditions("torch", "bayesadam", "triton", "ivon-opt")
    report |= here  # of the part that was made last; every part has its own

    def write() -> None:
        save(options.output / "gpu.json", report)

    if options.without_gpu:
        report["without_gpu"] = here | without_gpu.without_gpu(quick=options.quick)
        write()
        print(f"wrote {path}")
        return
    device = torch.device(options.device)
    clock = Clock(device, options.seconds, tiny=options.tiny)
    card = torch.cuda.get_device_name() if device.type == "cuda" else "none"
    found: dict[str, Any] = {**here, "card": card, "seconds": options.seconds}
    report["with_gpu"] = found
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "correctness": partial(kernels_differ, clock),
        **{f"steps, {case}": partial(steps, clock, case) for case in list(CASES)[:2]},
        "ResNet-18": partial(iterations, clock, "ResNet-18"),
        "transformer": partial(iterations, clock, "transformer"),
        "predictions": partial(predictions, clock),
        **{f"steps, {case}": partial(steps, clock, case) for case in list(CASES)[2:]},
        "graphs": partial(graphs, clock),
    }
    for name, section in sections.items():
        if clock.left() < 10 and not options.tiny:
            found[name] = "no time"
            write()
            continue
        begin = time.monotonic()
        try:
            found[name] = section()
        except Exception:
            found[name] = {"error": traceback.format_exc(limit=-6)}
        print(f"{name}, {time.monotonic() - begin:.0f} s: {json.dumps(found[name])[:2000]}", flush=True)
        write()
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
