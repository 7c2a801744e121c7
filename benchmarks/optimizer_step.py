"""What one step costs: sample the weights, and update from a given gradient.

    python benchmarks/optimizer_step.py                  # prints the table, writes runs/benchmarks/optimizer_step.json

Time: ratios to ``torch.optim.Adam(fused=True)``, which neither samples nor keeps a posterior. The gradient is there
already: no forward or backward pass is timed. "blocks" is ``with opt.sampled_params(): ...`` and ``opt.step()``,
"drop-in" is ``opt.step()`` after ``opt.train()``. "compiled" is ``compile=True``. "noise alone" fills tensors like the
weights with normals once, as a step of Vadam does; that of IVON draws its noise twice. With ``-march=x86-64-v3`` in the
environment variable ``BAYESADAM_CXXFLAGS`` all kernels are those of a processor with AVX2 and without AVX-512.

Memory, Linux only: "state" is the optimiser's tensors. "extra" is the peak of the resident memory (``VmHWM``, reset
through ``/proc/self/clear_refs``) over two steps at the largest size, less parameters, gradients, state, and what the
process used before; a process of its own for every contender, which has taken steps with a small optimiser of the same
kind before and given freed memory back. Reused buffers are in it, so it is what must fit besides the tensors that
everybody needs. It repeats to about 0.2 bytes per parameter.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import noise
from contenders import Contender, adam, give, ivon_opt, ours
from memory import in_new_process, resident
from record import arguments, conditions, save
from turns import take_turns

LARGEST = "1e7 in 16"
CASES = {
    "1e4 in 16": (10**4, 16, 401),
    "1e5 in 100": (10**5, 100, 201),
    "1e6 in 100": (10**6, 100, 101),
    "1e6 in 16": (10**6, 16, 101),
    LARGEST: (10**7, 16, 21),
    "1000 of 64": (64_000, 1000, 51),
}
"""Weights, tensors of equal size, and number of rounds."""
REFERENCE = "Adam fused"
CONTENDERS: dict[str, Contender] = {
    REFERENCE: partial(adam, fused=True),
    "Adam foreach": partial(adam, foreach=True),
    "ivon-opt": ivon_opt,
    **{
        f"{name} {'blocks' if blocks else 'drop-in'}{' compiled' if compile else ''}": partial(
            ours, name=name, blocks=blocks, compile=compile
        )
        for compile in (False, True)
        for name in ("BayesAdam", "Vadam", "IVON")
        for blocks in (True, False)
    },
}


def gradients(numel: int, tensors: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(numel // tensors, generator=generator).mul_(0.01) for _ in range(tensors)]


def parameters(grads: Sequence[Tensor]) -> list[nn.Parameter]:
    """With these gradients."""
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(grad.shape, generator=generator)) for grad in grads]
    give(params, grads)
    return params


def state_bytes(opt: Any) -> int:
    """Of all tensors that the optimiser keeps from step to step; ivon-opt has some of them in its groups."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in getattr(opt, "param_groups", [])]
    states = [value for value in opt.state.values() if isinstance(value, dict)]
    return sum(t.nbytes for values in (*groups, *states) for t in values.values() if isinstance(t, Tensor))


def measure_time(case: str, names: Sequence[str]) -> dict[str, Any]:
    count, tensors, rounds = CASES[case]
    print(f"\n{case}")
    grads = gradients(count, tensors)
    made = {name: CONTENDERS[name](parameters(grads)) for name in names}
    steps = {name: step for name, (_, step) in made.items()}
    steps["noise alone"] = partial(noise.fill_many, dict(enumerate(map(torch.empty_like, grads))), 0, 1, 0)
    results = take_turns(steps, rounds, warm=False)
    for name, (opt, _) in made.items():
        results[name]["state_bytes_per_parameter"] = round(state_bytes(opt) / count, 2)
    return {"parameters": count, "tensors": tensors, "rounds": rounds, "results": results}


def extra_memory(name: str) -> int:
    """In a new process: the peak of two steps less what is not the optimiser's doing, in bytes."""
    count, tensors, _ = CASES[LARGEST]
    _, step = CONTENDERS[name](parameters(gradients(noise.BLOCK)))
    for _ in range(3):
        step()
    del step
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    opt, step = CONTENDERS[name](parameters(gradients(count, tensors)))
    for _ in range(2):
        step()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(2):
        step()
    return resident("VmHWM") - before - 2 * count * 4 - state_bytes(opt)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = list(dict.fromkeys([REFERENCE, *options.contenders]))
    report: dict[str, Any] = {**conditions("torch", "bayesadam", "ivon-opt"), "cases": {}}
    if LARGEST in options.cases and sys.platform == "linux":
        report["extra_peak_bytes"] = {name: in_new_process(extra_memory, name) for name in names}
        print("extra peak, bytes:", report["extra_peak_bytes"])
    for case in options.cases:
        report["cases"][case] = measure_time(case, names)
    report["load_averages"].append(os.getloadavg())
    save(options.output / "optimizer_step.json", report)


if __name__ == "__main__":
    main()
