"""Passes as compiled kernels: one call for all parameters and one walk over memory, with the noise drawn on the way.

Kernels are only an accelerator: their results are those of the eager code up to rounding, and where no kernel fits
(another device, dtype or layout, no compiler) the eager code is used. The compiled code is the rule's own Python code
(:mod:`bayesadam.engine.recording`). A kernel is compared with the eager code before its first use.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam import native, noise
from bayesadam.engine.passes import Pass
from bayesadam.engine.recording import TYPES, NotElementwise, record

Dtypes: TypeAlias = tuple[torch.dtype, torch.dtype, torch.dtype]
"""Dtypes of the weights, of the gradients, and of the mean and the rule's state."""
Kernel: TypeAlias = Callable[..., None]
"""Compiled function. Its arguments are a row for every run of elements, a row of numbers and one of words for every
group, the number of elements, a 0-d integer tensor and the value to write there when the work is done; and
optionally the address of kept noise, whether that of ``eps`` is there and whether that of ``next_eps`` is to be
written.
"""

_ARGUMENTS: list[Any] = [
    *(ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int64),
    *(ctypes.c_void_p, *[ctypes.c_int] * 3),
]
FIXED = 5
"""Number of columns of a run before its addresses: first element, number of elements, lanes of a tile of noise,
index of the parameter, and the row of numbers and words.
"""
ROOM = 2**21
"""Number of elements up to which noise is kept from the sample to the step: 8 MiB."""


class Recent:
    """Noise of the last sample that kernels drew, kept for rules that use it at the step, so that it is not drawn
    twice.

    Attributes:
        known: The elements, parameters and draw that it belongs to; ``None`` if there is none.
    """

    def __init__(self) -> None:
        self.known: Hashable = None
        self._buffer = np.empty(0, dtype=np.float32)

    def take(self, room: int) -> int:
        """Address of the noise, with room for so many elements."""
        if room:
            self.known = None
        if room > len(self._buffer):
            self._buffer = np.empty(room, dtype=np.float32)
        return self._buffer.ctypes.data


@cache
def available() -> bool:
    """Whether there is a compiler."""
    return native.has_compiler()


def dtypes_fit(dtypes: Dtypes) -> bool:
    """Whether kernels know these dtypes."""
    return all(dtype in (torch.float32, torch.float64, torch.bfloat16) for dtype in dtypes)


def kernel_of(work: Pass, dtypes: Dtypes, names: tuple[str, ...], *, asked: bool) -> Kernel | None:
    """The kernel of a pass, compiled and tested once; ``None`` if it cannot be compiled or its results are wrong.

    Args:
        work: The pass.
        dtypes: Dtypes of its tensors.
        names: Names of the numbers, in the order of the rows.
        asked: Whether the user asked for kernels, and is warned once, with the reason, if there is none.
    """
    if not available():
        found: Kernel | str = "needs a C++ compiler, found none: going on without it"
    else:
        found = _made(work, dtypes, names)
    if not isinstance(found, str):
        return found
    if asked:
        _warn(f"compile=True {found}")
    return None


@cache
def _made(work: Pass, dtypes: Dtypes, names: tuple[str, ...]) -> Kernel | str:
    """A kernel, or the reason why there is none."""
    without = f"goes on without the {work.kind} kernel of {type(work.rule).__name__}"
    try:
        function = native.load(_source(work, dtypes, names)).run
        function.argtypes = _ARGUMENTS
    except (native.CompilationError, NotElementwise) as error:
        return f"{without}: {error}"
    except Exception as error:  # of a rule that cannot be run on just any numbers
        return f"{without}: {type(error).__name__}: {error}"

    def kernel(
        runs: NDArray[np.int64],
        numbers: NDArray[np.float64],
        words: NDArray[np.int64],
        numel: int,
        done: Tensor,
        mark: int,
        kept: int = 0,
        given: bool = False,
        keep: bool = False,
    ) -> None:
        threads = 1 if numel <= noise.ALONE else torch.get_num_threads()
        addresses = [table.ctypes.data for table in (runs, numbers, words)]
        function(len(runs), *addresses, done.data_ptr(), mark, kept, given, keep, threads)

    found, expected = _trial(work, dtypes, names, kernel)
    for name, value in expected.items():
        if not torch.allclose(found[name], value, rtol=1e-2 if torch.bfloat16 in dtypes else 1e-3, atol=1e-5):
            return f"{without}: it gives other numbers than the eager code for {name!r}"
    return kernel


def copy(rows: NDArray[np.int64]) -> bool:
    """Copy memory in one call; each row has the addresses of the copy and of the original, and the number of bytes.

    Returns:
        Whether there is a compiled function to do it; otherwise nothing was copied.
    """
    function = _copier()
    if function is None:
        return False
    threads = 1 if int(rows[:, 2].sum()) <= 4 * noise.ALONE else torch.get_num_threads()
    function(ctypes.c_int64(len(rows)), ctypes.c_void_p(rows.ctypes.data), ctypes.c_int(threads))
    return True


@cache
def _copier() -> Callable[..., None] | None:
    try:
        function: Callable[..., None] = native.load(native.read("copy.cpp")).copy
    except native.CompilationError:
        return None
    return function


@cache
def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _dtype_of(name: str, dtypes: Dtypes) -> torch.dtype:
    weights, grad, mean = dtypes
    return {"weights": weights, "grad": grad}.get(name, mean)


def _source(work: Pass, dtypes: Dtypes, names: Sequence[str]) -> str:
    """The C++ source of a pass."""
    real = dtypes[2]
    values = {name: torch.full((3,), 0.5, dtype=_dtype_of(name, dtypes)) for name in work.reads}
    values.update({name: torch.full((3,), 0.5, dtype=real) for name in work.draws})
    if "grad" in values:
        values["grad"] = values["grad"].to(real)
    numbers = {name: torch.full((), 0.5, dtype=torch.float64) for name in names}
    arguments = {**{f"x_{name}": value for name, value in values.items()}}
    arguments.update({f"n_{name}": value for name, value in numbers.items()})
    program = record(lambda: work.run(dict(values), numbers), arguments)
    changed = {f"x_{name}" for name in work.writes}
    written = frozenset(changed)
    kinds = {name: TYPES[_dtype_of(name, dtypes)] for name in work.reads}
    pointers = [
        f"{'' if f'x_{name}' in written else 'const '}{kind}* const p_{name} = "
        f"reinterpret_cast<{kind}*>(run[{FIXED + i}]) - first;"
        for i, (name, kind) in enumerate(kinds.items())
    ]
    loads = [
        f"const {TYPES[values[name].dtype]} x_{name} = static_cast<{TYPES[values[name].dtype]}>(p_{name}[j]);"
        for name in kinds
    ]
    loads += [f"const {TYPES[real]} x_{name} = static_cast<{TYPES[real]}>({name}[j - lo]);" for name in work.draws]
    follow = []
    if work.kind == "sample" and work.holds_mean and dtypes[0] == real:  # the mean is written only where it is not so
        changed.remove("x_mean")
        span = f"p_mean + begin, p_weights + begin, (end - begin) * sizeof({TYPES[real]})"
        follow = [f"if (std::memcmp({span}) != 0) std::memcpy({span});"]
    stores = [f"p_{name[2:]}[j] = {result};" for name, result in program.results.items() if name in changed]
    fills = {
        "eps": (
            "if (!given) fill_tile(drawn_eps, tile, lanes, Key{low, high, step, number_, index}, "
            "word[6] & 1 ? -1.0f : 1.0f);\n"
            "const float* const eps = given ? held + t * 4 * lanes : drawn_eps;"
        ),
        "next_eps": (
            "fill_tile(drawn_next_eps, tile, lanes, Key{low, high, next_step, next_number, index}, "
            "word[6] & 2 ? -1.0f : 1.0f);\n"
            "const float* const next_eps = drawn_next_eps;"
        ),
    }
    keep = "if (keep) std::memcpy(held + t * 4 * lanes, next_eps, 4 * lanes * sizeof(float));"
    parts = {
        "HEADER": [f"const double n_{name} = number[{i}];" for i, name in enumerate(names)] + program.header,
        "POINTERS": pointers,
        "BUFFERS": [f"alignas(64) float drawn_{name}[TILE];" for name in work.draws],
        "NOISE": [fills[name] for name in work.draws],
        "FOLLOW": follow,
        "KEEP": [keep] if "next_eps" in work.draws else [],
        "BODY": [*loads, *program.body, *stores],
        "NUMBERS": [str(len(names))],
        "COLUMNS": [str(FIXED + len(kinds))],
    }
    source = native.read("run.cpp")
    for name, lines in parts.items():
        source = source.replace(f"/*{name}*/", "\n".join(lines))
    return source


def _trial(
    work: Pass, dtypes: Dtypes, names: Sequence[str], kernel: Kernel
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """Results of the kernel and of the eager code on the same small problem: three runs, one of them in two tiles."""
    sizes = (5, noise.TILE + 70, 130)
    total = sum(sizes)
    generator = torch.Generator().manual_seed(1)

    def some(scale: float = 1.0) -> Tensor:
        return torch.rand(total, generator=generator, dtype=torch.float64).mul_(scale).add_(0.1)

    values = {name: some().to(_dtype_of(name, dtypes)) for name in work.reads}
    if work.holds_mean and "weights" in values:
        values["weights"] = values["mean"].to(dtypes[0], copy=True)
    numbers = dict.fromkeys(names, 0.25) | {"num_data": 50.0, "initial_precision": 20.0, "prior_precision": 3.0}
    numbers |= {"step": 4.0, "new_step": 5.0, "initial_steps": 10.0}
    numbers = {name: numbers[name] for name in names}
    expected = {name: value.clone() for name, value in values.items()}
    shown = {name: value.to(dtypes[2]) if name == "grad" else value for name, value in expected.items()}
    seed, key = 5, {"eps": (3, 1), "next_eps": (4, 0)}
    for name in work.draws:
        draws = [noise.normal(seed, *key[name], index, (size,)) for index, size in enumerate(sizes)]
        shown[name] = torch.cat(draws).to(dtypes[2])
    with torch.no_grad():
        work.run(shown, numbers)
    runs = np.empty((len(sizes), FIXED + len(work.reads)), dtype=np.int64)
    start = 0
    for row, (index, size) in zip(runs, enumerate(sizes), strict=True):
        row[:FIXED] = 0, size, noise.lanes_of(size), index, 0
        row[FIXED:] = [values[name].data_ptr() + start * values[name].element_size() for name in work.reads]
        start += size
    words = np.array([[seed, 0, *key["eps"], *key["next_eps"], 0]], dtype=np.int64)
    kernel(runs, np.array([list(numbers.values())]), words, total, torch.zeros((), dtype=torch.int64), 1)
    return {n: values[n].float() for n in work.writes}, {n: expected[n].float() for n in work.writes}
