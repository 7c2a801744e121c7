"""What ``low_memory=True`` saves, and how far the mean drifts for it.

Memory, Linux only: the peak of a process's resident memory over three drop-in steps of one tensor of 5e7 weights, less
what it had before the optimiser was made, in bytes per parameter; weights and gradients are there before. Each in a
process of its own, Adam's (``foreach=False``, the frugal one) beside it.

Drift: 1e5 drop-in steps at the learning rate 0, with the width of the start and of a trained network; the mean should
stay where it is. The largest distance over the weights, beside the bound of a random walk of rounding errors,
``4 sqrt(steps) 2^-24 (|theta| + 5 sigma)``, and beside the posterior's standard deviation.

    python benchmarks/low_memory.py [--output FOLDER]
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from typing import Any

import torch

import bayesadam as ba
from record import arguments, conditions, save

WEIGHTS, STEPS = 50_000_000, 100_000
KINDS = {
    "Adam": {},
    "Vadam": {},
    "Vadam, low memory": {"low_memory": True},
    "IVON": {},
    "IVON, low memory": {"low_memory": True},
}


def resident(name: str) -> int:
    """``VmRSS`` or ``VmHWM``, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def make(kind: str, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    """The optimiser of a row."""
    if kind == "Adam":
        return torch.optim.Adam([parameter], foreach=False)
    cls = {"Vadam": ba.Vadam, "IVON": ba.IVON}[kind.split(",")[0]]
    return cls([("w", parameter)], num_data=1000, **KINDS[kind])


def measure(kind: str) -> dict[str, float]:
    """In a process of its own: peak and state, in bytes per parameter."""
    small = torch.nn.Parameter(torch.zeros(1000))  # compiles kernels and imports what is imported late
    run(kind, make(kind, small), small)
    parameter = torch.nn.Parameter(torch.zeros(WEIGHTS).uniform_(-0.1, 0.1))
    parameter.grad = torch.full_like(parameter, 1e-3)
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    opt = make(kind, parameter)
    start = time.perf_counter()
    run(kind, opt, parameter)
    seconds = time.perf_counter() - start
    own = parameter.untyped_storage().data_ptr()
    tensors = {t.untyped_storage().data_ptr(): t for t in opt.state[parameter].values() if torch.is_tensor(t)}
    state = sum(t.untyped_storage().nbytes() for address, t in tensors.items() if address != own)
    return {
        "peak": (resident("VmHWM") - before) / WEIGHTS,
        "state": state / WEIGHTS,
        "seconds": seconds / 3,
    }


def run(kind: str, opt: Any, parameter: torch.nn.Parameter) -> None:
    """Three steps with a gradient that is there."""
    if parameter.grad is None:
        parameter.grad = torch.full_like(parameter, 1e-3)
    if kind != "Adam":
        opt.train()
    for _ in range(3):
        opt.step()


def drift(kind: str, precision: float) -> dict[str, float]:
    """How far the mean goes in ``STEPS`` steps that should not move it."""
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(1000) * 0.1)
    before = parameter.detach().clone()
    opt = {"Vadam": ba.Vadam, "IVON": ba.IVON}[kind](
        [("w", parameter)],
        lr=0.0,
        num_data=1000,
        prior_precision=1.0,
        initial_precision=precision,
        low_memory=True,
    )
    opt.train()
    parameter.grad = torch.zeros_like(parameter)
    for _ in range(STEPS):
        opt.step()
    opt.eval()
    moved = (parameter.detach() - before).abs()
    sigma = math.sqrt(opt.posterior().variance["w"].max())
    bound = 4 * math.sqrt(STEPS) * 2.0**-24 * (before.abs().max().item() + 5 * sigma)
    return {
        "largest": moved.max().item(),
        "root mean square": moved.square().mean().sqrt().item(),
        "bound": bound,
        "sigma": sigma,
    }


def main() -> None:
    """Print tables and write them."""
    options = arguments(__doc__).parse_args()
    report = conditions("torch", "bayesadam") | {"weights": WEIGHTS, "steps": STEPS, "memory": {}, "drift": {}}
    print(f"{'':20} {'state':>8} {'peak':>8}  bytes per parameter")
    for kind in KINDS:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", kind],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        )
        found = report["memory"][kind] = json.loads(done.stdout.splitlines()[-1])
        print(f"{kind:20} {found['state']:8.2f} {found['peak']:8.2f}  {found['seconds']:.2f} s a step", flush=True)
    for kind in ("Vadam", "IVON"):
        for precision in (1e3, 1e6):
            found = report["drift"][f"{kind}, precision {precision:g}"] = drift(kind, precision)
            print(kind, f"{precision:g}", {name: f"{value:.2g}" for name, value in found.items()}, flush=True)
    save(options.output / "low_memory.json", report)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main()
