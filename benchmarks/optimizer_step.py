"""What one step costs: sample the weights, and update from a given gradient.

    python benchmarks/optimizer_step.py                  # prints the table, writes runs/benchmarks/optimizer_step.json

Time: ratios to ``torch.optim.Adam(fused=True)``, which neither samples nor keeps a posterior. The gradient is there
already: no forward or backward pass is timed. "blocks" is ``with opt.sampled_params(): ...`` and ``opt.step()``,
"drop-in" is ``opt.step()`` after ``opt.train()``. "compiled" is ``compile=True``, and "low memory" also
``low_memory=True``.

Memory, Linux only: "state" is the optimiser's tensors. "extra" is the peak of the resident memory (``VmHWM``, reset
through ``/proc/self/clear_refs``) over two steps at the largest size, less parameters, gradients, state, and what the
process used before; a process of its own for every contender, which has taken steps with a small optimiser of the same
kind before and given freed memory back. Reused buffers are in it, so it is what must fit besides the tensors that
everybody needs. It repeats to about 0.2 bytes per parameter.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import noise
from record import arguments, conditions, save
from turns import take_turns

Shapes = Sequence[Sequence[int]]
Step = Callable[[], Any]

NUM_DATA, BATCH_SIZE = 1000.0, 128
LARGEST = "1e7 in 16"


def transformer(vocabulary: int = 1000, width: int = 256, layers: int = 4, context: int = 64) -> Shapes:
    """Parameters of a pre-norm decoder."""
    norm = [(width,), (width,)]
    attention = [(3 * width, width), (3 * width,), (width, width), (width,)]
    mlp = [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    head = [(vocabulary, width), (vocabulary,)]
    return [(vocabulary, width), (context, width), *(norm + attention + norm + mlp) * layers, *norm, *head]


def equal(numel: int, tensors: int) -> Shapes:
    """So many weights in tensors of equal size."""
    return [(numel // tensors,)] * tensors


CASES: dict[str, tuple[Shapes, int]] = {
    "1e4 in 16": (equal(10_000, 16), 401),
    "1e5 in 100": (equal(100_000, 100), 201),
    "1e6 in 100": (equal(1_000_000, 100), 101),
    "1e6 in 16": (equal(1_000_000, 16), 101),
    LARGEST: (equal(10_000_000, 16), 21),
    "1000 of 64": (equal(64_000, 1000), 51),
    "1e6 in 1": (equal(1_000_000, 1), 51),
    "mlp 784-400-400-10": ([(400, 784), (400,), (400, 400), (400,), (10, 400), (10,)], 101),
    "transformer": (transformer(), 31),
}
"""Shapes of the parameters, and number of rounds."""


def parameters(shapes: Shapes) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(*shape, generator=generator)) for shape in shapes]


def gradients(shapes: Shapes) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator).mul_(0.01) for shape in shapes]


def assign(params: Sequence[nn.Parameter], grads: Sequence[Tensor]) -> None:
    for p, g in zip(params, grads, strict=True):
        p.grad = g


def adam(implementation: str, params: Sequence[nn.Parameter], grads: Sequence[Tensor]) -> tuple[Any, Step]:
    opt = torch.optim.Adam(params, **{implementation: True})
    assign(params, grads)
    return opt, opt.step


def ivon_opt(params: Sequence[nn.Parameter], grads: Sequence[Tensor]) -> tuple[Any, Step]:
    import ivon

    opt = ivon.IVON(params, lr=0.1, ess=NUM_DATA, weight_decay=1.0 / NUM_DATA)

    def step() -> None:
        with opt.sampled_params(train=True):
            assign(params, grads)
        opt.step()

    return opt, step


def ours(
    method: str, dropin: bool, params: Sequence[nn.Parameter], grads: Sequence[Tensor], **options: bool
) -> tuple[Any, Step]:
    extra = {"batch_size": BATCH_SIZE} if method == "BayesAdam" else {}
    opt = getattr(ba, method)(params, num_data=NUM_DATA, **extra, **options)
    if dropin:
        opt.train()
        assign(params, grads)
        return opt, opt.step

    def step() -> None:
        with opt.sampled_params():
            assign(params, grads)
        opt.step()

    return opt, step


REFERENCE = "Adam fused"
CONTENDERS: dict[str, Callable[[Sequence[nn.Parameter], Sequence[Tensor]], tuple[Any, Step]]] = {
    REFERENCE: partial(adam, "fused"),
    "Adam foreach": partial(adam, "foreach"),
    "ivon-opt": ivon_opt,
    **{
        f"{method} {'drop-in' if dropin else 'blocks'}{' compiled' if compile else ''}": partial(
            ours, method, dropin, compile=compile
        )
        for compile in (False, True)
        for method in ("BayesAdam", "Vadam", "IVON")
        for dropin in (False, True)
    },
    "Vadam drop-in low memory": partial(ours, "Vadam", True, compile=True, low_memory=True),
    "IVON drop-in low memory": partial(ours, "IVON", True, compile=True, low_memory=True),
}


def state_bytes(opt: Any) -> int:
    """Of all tensors that the optimiser keeps from step to step; ivon-opt has some of them in its groups."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in getattr(opt, "param_groups", [])]
    states = [value for value in opt.state.values() if isinstance(value, dict)]
    return sum(t.nbytes for values in (*groups, *states) for t in values.values() if isinstance(t, Tensor))


def measure_time(case: str, names: Sequence[str]) -> dict[str, Any]:
    shapes, rounds = CASES[case]
    grads = gradients(shapes)
    count = sum(g.numel() for g in grads)
    print(f"\n{case}: {count:,} parameters in {len(shapes)}")
    made = {name: CONTENDERS[name](parameters(shapes), grads) for name in names}
    results = take_turns({name: step for name, (_, step) in made.items()}, rounds)
    for name, (opt, _) in made.items():
        results[name]["state_bytes_per_parameter"] = round(state_bytes(opt) / count, 2)
    return {"parameters": count, "tensors": len(shapes), "rounds": rounds, "results": results}


def memory_kib(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1])


def print_extra_memory(name: str) -> None:
    """Run in a process of its own: the peak of two steps less what is not the optimiser's doing, in bytes."""
    shapes, _ = CASES[LARGEST]
    count = sum(torch.Size(shape).numel() for shape in shapes)
    _, step = CONTENDERS[name](*(make([(noise.BLOCK,)]) for make in (parameters, gradients)))
    for _ in range(3):
        step()
    del step
    ctypes.CDLL(None).malloc_trim(0)
    before = memory_kib("VmRSS") * 1024
    opt, step = CONTENDERS[name](parameters(shapes), gradients(shapes))
    for _ in range(2):
        step()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(2):
        step()
    print(memory_kib("VmHWM") * 1024 - before - 2 * count * 4 - state_bytes(opt))


def measure_memory(name: str) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    command = [sys.executable, __file__, "--extra-memory-of", name]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--extra-memory-of", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.extra_memory_of:
        print_extra_memory(options.extra_memory_of)
        return
    names = list(dict.fromkeys([REFERENCE, *options.contenders]))
    report: dict[str, Any] = {
        **conditions("torch", "bayesadam", "ivon-opt"),
        "cases": {},
    }
    if LARGEST in options.cases:
        report["extra_peak_bytes"] = {name: measure_memory(name) for name in names}
        print("extra peak, bytes:", report["extra_peak_bytes"])
    for case in options.cases:
        report["cases"][case] = measure_time(case, names)
    report["load_averages"].append(os.getloadavg())
    save(options.output / "optimizer_step.json", report)


if __name__ == "__main__":
    main()
