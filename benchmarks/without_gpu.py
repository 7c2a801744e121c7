"""What can be known of the kernels of a GPU without one.

    python benchmarks/without_gpu.py            # writes runs/benchmarks/without_gpu.json; needs Triton

Every pass of every rule by Triton's interpreter beside PyTorch's operations, cubins of sm_80 and sm_90 with registers
and spills, bytes per weight, and what steps and other calls dispatch on tensors of a GPU that is not there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from bayesadam.core import gpu, launch
from bayesadam.core.flat import Flat
from bayesadam.core.passes import Pass
from bayesadam.native.device import FILL_COLUMNS
from bayesadam.noise import TILE
from bayesadam.optim import OPTIMIZERS
from contenders import optimizer
from record import arguments, conditions, save

Work = tuple[Pass, torch.dtype, torch.dtype]
"""A pass, and the dtypes of the weights and of the state."""
FEW = ("vadam", "ivon")
CPU = torch.device("cpu")


def passes(names: Sequence[str]) -> list[Work]:
    """All passes that optimisers run, in the variants that GPUs run."""
    found: dict[Work, None] = {}

    def noted(work: Pass, weights: torch.dtype, real: torch.dtype, *_: Any, **__: Any) -> None:
        found[replace(work, guarded=work.kind == "update"), weights, real] = None

    with patch.object(launch, "kernel_of", noted), patch.object(Flat, "on_device", True):
        for name in names:
            variants: list[tuple[torch.dtype, dict[str, Any]]] = [(torch.float32, {})]
            if name in FEW:
                prior = optimizer(name, nn.Linear(3, 2)).posterior()
                variants += [(torch.float32, {"prior": prior}), (torch.float32, {"mc_samples": 2})]
                variants += [(dtype, {}) for dtype in (torch.bfloat16, torch.float16, torch.float64)]
            for dtype, options in variants:
                run_steps(name, dtype, options)
    return list(found)


def run_steps(name: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    """A step in blocks, and one in drop-in training."""
    net = nn.Sequential(nn.Linear(3, 2)).to(dtype)
    if "prior" in options:
        net = net[0]  # type: ignore[assignment]
    opt = optimizer(name, net, **options)
    x, y = torch.ones(4, 3, dtype=dtype), torch.ones(4, 2, dtype=dtype)

    def closure() -> Any:
        opt.zero_grad()
        loss = mse_loss(net(x), y)
        loss.backward()
        return loss

    opt.step(closure)
    if "mc_samples" not in options:
        opt.train()
        opt.step(closure)
        opt.eval()


def title(work: Work) -> str:
    each, weights, real = work
    parts = [
        type(each.rule).__name__,
        each.kind,
        f"mean={each.mean}",
        f"curvature={each.curvature}",
    ]
    parts += ["priors of weights"] * bool(each.per_weight)
    return " ".join([*parts, *(str(dtype).removeprefix("torch.") for dtype in {weights: 0, real: 0})])


def interpreted(names: Sequence[str]) -> dict[str, Any]:
    """Largest relative difference of every pass, run by Triton's interpreter, from PyTorch's operations."""
    results = {}
    for work in passes(names):
        each, weights, real = work
        program = launch.program_of(each, weights, real)
        kernels = gpu.Kernels(program, each.draws, real, CPU)
        worst = 0.0
        for skip in (0.0, 1.0) if each.guarded else (0.0,):
            tried = launch.trial(each, program, real, CPU, kernels.call, sizes=(TILE, 5, 300), skip=skip)
            errors = [relative(*values) for values in tried.values()]
            worst = max([worst, *errors])
        limit = 2 * torch.finfo(weights).eps if weights != real else 2e-5
        results[title(work)] = {"difference": worst, "within_rounding": worst <= limit}
    return {"passes": results, "count": len(results), "equal": all(r["within_rounding"] for r in results.values())}


def relative(before: Tensor, found: Tensor, expected: Tensor) -> float:
    """Largest error relative to the result, or to the value before the pass if that was larger.

    A result is the value before it plus a change. Where the two cancel, as a mean of .8 and a deviation of -.798, the
    sum has the rounding errors of its terms: 5e-7 for a sample of Bayes by Backprop, whose width takes five roundings
    (softplus, square, reciprocal, root, product), which is 2e-5 of a sum of .0017. Without a stored mean, a sample is
    the one before, less its noise, plus the next noise: of 4,401 weights, some have terms that are ten times as large
    as either sample, and their rounding errors with them (8.6e-6 for NGVI, whose widths are near 1 here).
    """
    size = torch.maximum(expected.abs(), before.abs())
    return float(((found - expected).abs() / (1e-3 + size)).max())


RUN = {"parts": "*i32", "table": "*i64", "words": "*i64", "values": "*fp32"}
HEADER = {"table": "*i64", "words": "*i64", "numbers": "*fp64", "counters": "*fp64", "found": "*i32", "values": "*fp32"}


def compiled(names: Sequence[str]) -> dict[str, Any]:
    """Registers and spills of cubins for sm_80 and sm_90, and the bytes that kernels read and write per weight, for the
    steps of drop-in training.
    """
    from bayesadam.native import tiles

    results = {}
    for work in passes(names):
        each, weights, real = work
        if each.kind != "update" or not each.resamples or each.per_weight:
            continue
        text = gpu.source(launch.program_of(each, weights, real), each.draws, real)
        functions = gpu.functions(text)
        values = {"values": "*fp64" if real == torch.float64 else "*fp32"}
        results[title(work)] = {
            "run": cubins(functions["run"], RUN | values),
            "header": cubins(functions["header"], HEADER | values),
            "bytes_per_weight": bytes_per_weight(text),
        }
    for name, columns in (("normals", FILL_COLUMNS), ("samples", FILL_COLUMNS + 4)):
        signature = {"parts": "*i32", "table": "*i64", "columns": "constexpr"}
        results[name] = {"run": cubins(tiles.fill, signature, {"columns": columns})}
    # The check reads every gradient once more than the update: 4 bytes per weight. It cannot be a part of the update,
    # which has written other weights when it meets a bad gradient, while nothing may change: it could be undone only
    # with the old values, which take more memory and traffic. PyTorch's own check writes the gradients, too. Behind the
    # check, the update finds the gradients of up to ten million weights in the cache of a large GPU.
    check = {"parts": "*i32", "table": "*i64", "count": "i32", "found": "*i32"}
    results["check"] = {"run": cubins(tiles.check, check), "bytes_per_weight": 4}
    spills = [
        cubin["spilled"]
        for each in results.values()
        for key in ("run", "header")
        for cubin in each.get(key, {}).values()
    ]
    return {"kernels": results, "count": len(spills), "spilled_bytes": sum(spills)}


def cubins(
    function: Any, signature: dict[str, str], constants: Mapping[str, int] | None = None
) -> dict[str, dict[str, int]]:
    """Registers, and bytes that are spilled, by architecture."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    found = {}
    for arch in (80, 90):
        source = ASTSource(fn=function, signature=signature, constexprs=constants)
        options = {"num_warps": 4, "enable_fp_fusion": False}
        text = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["ptx"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.ptx"
            path.write_text(text)
            target = re.findall(r"\.target (sm_\w+)", text)[0]
            command = [get_ptxas(arch).path, "-v", f"--gpu-name={target}", str(path), "-o", str(path) + ".cubin"]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        registers = int(re.findall(r"Used (\d+) registers", said)[0])
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
        found[f"sm_{arch}"] = {"registers": registers, "spilled": spilled}
    return found


SIZES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


def bytes_per_weight(text: str) -> int:
    """What a kernel's loads and stores move for every weight."""
    dtypes = dict(re.findall(r"p_(\w+) = .*tl\.pointer_type\(tl\.(\w+)\)", text))
    return sum(SIZES[dtypes[name]] for name in re.findall(r"tl\.(?:load|store)\(p_(\w+) \+ \w+,", text))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="one rule")
    options = parser.parse_args()
    names = ["ivon"] if options.quick else list(OPTIMIZERS)
    report = conditions("torch", "bayesadam", "triton")
    calls = {
        "interpreted": f"without_gpu.interpreted({names})",
        "compiled": f"without_gpu.compiled({names})",
        "fake": f"fake_walks.everything(quick={options.quick})",
    }
    workers = {}
    for part, call in calls.items():  # each in its own process, which imports triton or torch in its own way
        code = f"import json, {call.split('.')[0]}; print(json.dumps({call}))"
        environment = {**os.environ, "TRITON_INTERPRET": str(int(part == "interpreted"))}
        folder = Path(__file__).parent
        workers[part] = subprocess.Popen(
            [sys.executable, "-c", code], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
    for part, worker in workers.items():
        printed, _ = worker.communicate()
        report[part] = json.loads(printed.splitlines()[-1])
    save(options.output / "without_gpu.json", report)


if __name__ == "__main__":
    main()
