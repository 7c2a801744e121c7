"""Runs passes over parameters, in one compiled kernel for all of them, or eagerly on blocks of many small ones.

In both cases the cost is per element and not per tensor. The eager code works on copies that fit into the cache: one
operation gathers a block from all tensors, the pass is called, and one operation writes the results back. A block is
therefore either changed or not, and an interrupted plan can be completed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import getitem, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.engine import kernels
from bayesadam.engine.blocks import Block, blocks
from bayesadam.engine.draws import Draw as Draw
from bayesadam.engine.passes import Pass
from bayesadam.sharding import is_sharded, local, place

BLOCK = 16 * noise.TILE
"""Elements that the eager code works on at a time."""


@dataclass(eq=False, slots=True)
class Job:
    """A pass over one parameter.

    Attributes:
        work: The pass.
        index: Noise index of the parameter.
        parameter: The parameter; possibly only its state is written.
        state: State of the parameter.
        tensors: Tensors that the pass reads and writes, by name; local ones of a sharded parameter. Gradient and kept
            curvature are those of the step.
        numbers: Numbers of the pass in this step; equal ones are the same object.
    """

    work: Pass
    index: int
    parameter: Tensor
    state: Mapping[str, Any]
    tensors: dict[str, Tensor]
    numbers: dict[str, float] = field(default_factory=dict)


def tensors_of(work: Pass, parameter: Tensor, state: Mapping[str, Any], **others: Tensor) -> dict[str, Tensor]:
    """The local tensors that a pass works on: the state's, the weights, and those given by name."""
    known: dict[str, Tensor] = {"weights": parameter, **others}
    return {name: local(known[name] if name in known else state[name]) for name in work.reads}


@dataclass
class Plan:
    """Steps in order, each of which is either made or not, and the number of steps made.

    Attributes:
        steps: Functions that write their number into ``done`` together with their work.
        touched: Parameters whose weights each step writes to.
    """

    steps: list[Callable[[int], None]] = field(default_factory=list)
    touched: list[list[Tensor]] = field(default_factory=list)
    done: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._count = np.zeros((), dtype=np.int64)  # the same memory, quicker to read
        self.done = torch.from_numpy(self._count)

    def run(self) -> None:
        """Make all steps; if an exception such as an interrupt occurs, complete them before it is raised."""
        try:
            self._advance()
        except BaseException as error:
            with suppress(BaseException):  # a step that cannot be made: what was raised first says why
                self._advance()
            raise error

    def written(self) -> list[Tensor]:
        """Parameters whose weights were written to."""
        return [parameter for touched in self.touched[: int(self._count)] for parameter in touched]

    def add(self, step: Callable[[int], None], touched: Sequence[Tensor] = ()) -> None:
        """Append a step."""
        self.steps.append(step)
        self.touched.append(list(touched))

    def _advance(self) -> None:
        while (number := int(self._count)) < len(self.steps):
            self.steps[number](number + 1)


@dataclass(frozen=True)
class Piece:
    """A job on one block of its parameter."""

    job: Job
    block: Block

    def tensor(self, name: str) -> Tensor:
        """The part of one of the job's tensors."""
        return self.block.of(self.job.tensors[name])

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.block.shape)


Batch = list[Piece]
"""Pieces with equal passes, numbers, dtypes and device, which are processed together."""


class Walk:
    """Jobs that are repeated in many steps; everything that is the same in all steps is computed once.

    Args:
        jobs: Jobs with the tensors and numbers of a step.
        runner: Runs the jobs that no kernel fits.
        compiles: Whether to use kernels where they fit; ``None`` uses them if they are available, without a warning.
    """

    def __init__(self, jobs: Sequence[Job], runner: Runner, *, compiles: bool | None) -> None:
        self.jobs = jobs
        self._runner = runner
        self._kernels: list[_Compiled] = []
        rest: list[Job] = []
        for (work, dtypes), chosen in _alike(jobs).items():
            fit = compiles is not False and kernels.dtypes_fit(dtypes)
            flat = [job for job in chosen if _is_flat(job)] if fit else []  # none on a GPU, where none is asked for
            names = tuple(chosen[0].numbers)
            if flat and (kernel := kernels.kernel_of(work, dtypes, names, asked=compiles is True)) is not None:
                self._kernels.append(_Compiled(kernel, flat, runner.recent))
                known = set(map(id, flat))
                chosen = [job for job in chosen if id(job) not in known]
            rest += chosen
        self._rest = rest
        self._batches: list[Batch] | None = None
        kept = [(j.state, name, t) for j in jobs for name, t in j.tensors.items() if name in j.state]
        self._states = [state for state, _, _ in kept]
        self._names = [name for _, name, _ in kept]
        self._tensors = [tensor for _, _, tensor in kept]
        self._parameters = [job.parameter for job in jobs if type(job.parameter) is nn.Parameter]
        self._addresses = list(map(Tensor.data_ptr, self._parameters))
        grads = [job.tensors["grad"] for job in jobs if "grad" in job.tensors]
        self._dtype = grads[0].dtype if grads else None
        self._repeats = (
            len(self._parameters) == len(jobs)
            and all(job.parameter.is_contiguous() for job in jobs)
            and all(grad.dtype == self._dtype and grad.is_contiguous() for grad in grads)
        )

    def fits(self, grads: Sequence[Tensor]) -> bool:
        """Whether the jobs are still valid with these gradients: the same tensors at the same addresses."""
        return (
            self._repeats
            and all(grad.dtype is self._dtype and grad.is_contiguous() for grad in grads)
            and all(map(is_, map(getitem, self._states, self._names), self._tensors))
            and list(map(Tensor.data_ptr, self._parameters)) == self._addresses
        )

    def copy_means(self, parameters: Sequence[Tensor]) -> bool:
        """Copy the means into the weights by one call, if these are the parameters of the jobs and kernels fit them.

        Returns:
            Whether it was done.
        """
        if self._rest or len(parameters) != len(self.jobs) or len(self._kernels) != 1 or not self.fits(()):
            return False
        found = self._kernels[0]
        return all(map(is_, parameters, found.touched)) and found.copy_means()

    def release(self) -> None:
        """Drop the gradients and kept curvatures of a step, so that their memory can be reused."""
        for job in self.jobs:
            job.tensors.pop("grad", None)
            job.tensors.pop("kept", None)

    def add(self, plan: Plan, draws: Mapping[str, Draw]) -> None:
        """Add the steps of the jobs to a plan; ``draws`` has the noise by name, ``eps`` and ``next_eps``."""
        for compiled in self._kernels:
            compiled.add(plan, draws)
        if not self._rest:
            return
        if self._batches is None or len({id(job.numbers) for job in self._rest}) > 1:
            self._batches = list(_batches(self._rest))
        for batch in self._batches:  # means first: a sample that was written over them can then be taken back from them
            work = batch[0].job.work
            if work.kind == "sample" and work.holds_mean:
                plan.add(partial(self._runner.work, batch, Pass(work.rule, "adopt"), {}, plan))
        for batch in self._batches:
            work = batch[0].job.work
            touched = [piece.job.parameter for piece in batch] if "weights" in work.writes else []
            plan.add(partial(self._runner.work, batch, work, draws, plan), touched)


class _Compiled:
    """The jobs of one kernel."""

    def __init__(self, kernel: kernels.Kernel, jobs: Sequence[Job], recent: kernels.Recent) -> None:
        self.kernel, self.jobs, self.recent, self.total = kernel, jobs, recent, 0
        work = jobs[0].work
        rows, room = [], 0
        for job in jobs:
            size = job.tensors["mean"].numel()
            start, whole = 0, size
            if is_sharded(job.parameter):
                first, whole = _run_of(*place(job.parameter), job.tensors["mean"].shape)
                start = first or 0
            addresses = [job.tensors[name].data_ptr() for name in work.reads]
            rows.append([start, size, noise.lanes_of(whole), job.index, 0, *addresses])
            self.total += size
            room += 4 * noise.lanes_of(whole) * noise.tiles_of(start, size)
        self.table = np.array(rows)
        self.places = self.table[:, : kernels.FIXED - 1].tobytes()
        self.room = room if work.rule.needs_noise and "next_eps" in work.draws and room <= kernels.ROOM else 0
        self.noisy = "eps" in work.draws
        self.changing = [(kernels.FIXED + i, name) for i, name in enumerate(work.reads) if name in ("grad", "kept")]
        self.touched = [job.parameter for job in jobs] if "weights" in work.writes else []
        self.versions = [local(parameter) for parameter in self.touched]

    def add(self, plan: Plan, draws: Mapping[str, Draw]) -> None:
        """Append the call of the kernel."""
        each = [id(job.numbers) for job in self.jobs]
        different = {key: job.numbers for key, job in zip(each, self.jobs, strict=True)}
        rows = {key: row for row, key in enumerate(different)}
        self.table[:, 4] = [rows[key] for key in each] if len(rows) > 1 else 0
        numbers = [list(told.values()) for told in different.values()]
        for column, name in self.changing:
            self.table[:, column] = [job.tensors[name].data_ptr() for job in self.jobs]
        told, words = np.array(numbers), np.array([_words(draws)] * len(numbers))

        def step(mark: int) -> None:
            known = self.noisy and self.recent.known == (self.places, draws["eps"])
            address = self.recent.take(self.room) if known or self.room else 0
            self.kernel(self.table, told, words, self.total, plan.done, mark, address, known, self.room > 0)
            if self.room:
                self.recent.known = self.places, draws["next_eps"]
            if self.versions:
                torch.autograd.graph.increment_version(self.versions)

        plan.add(step, self.touched)

    def copy_means(self) -> bool:
        """Copy the means into the weights, if they are of one dtype and there is a compiled function."""
        mean, weights = (self.jobs[0].tensors[name] for name in ("mean", "weights"))
        if mean.dtype != weights.dtype:
            return False
        names = self.jobs[0].work.reads
        to, start = (kernels.FIXED + names.index(name) for name in ("weights", "mean"))
        rows = np.ascontiguousarray(self.table[:, [to, start, 1]])
        rows[:, 2] *= mean.element_size()
        if not kernels.copy(rows):
            return False
        torch.autograd.graph.increment_version(self.versions)
        return True


class Runner:
    """Runs jobs eagerly, in buffers that are reused."""

    def __init__(self) -> None:
        self.scratch, self.recent = noise.Scratch(), kernels.Recent()
        self._views: dict[Any, list[Tensor]] = {}

    def work(self, batch: Batch, work: Pass, draws: Mapping[str, Draw], plan: Plan, mark: int) -> None:
        """Process one block: gather, run, write back."""
        mean = batch[0].tensor("mean")
        total = sum(piece.numel for piece in batch)
        values, views = {}, {}
        for name in work.reads:
            dtype = batch[0].tensor(name).dtype if name == "weights" else mean.dtype
            values[name], views[name] = self._buffer(name, batch, total, dtype, mean.device)
            if name != "weights" or work.reads_weights:
                torch._foreach_copy_(views[name], [piece.tensor(name) for piece in batch])
        for name in work.draws:
            values[name] = self.normals(name, batch, total, draws[name]).to(mean.dtype)
        work.run(values, batch[0].job.numbers)
        targets = [piece.tensor(name) for name in work.writes for piece in batch]
        sources = [view for name in work.writes for view in views[name]]
        if mean.device.type == "cpu":  # by one operation: both or neither
            torch._foreach_copy_([*targets, plan.done], [*sources, torch.tensor(mark)])
        else:
            torch._foreach_copy_(targets, sources)
            plan.done.fill_(mark)

    def normals(self, name: str, batch: Batch, total: int, draw: Draw) -> Tensor:
        """The noise of a batch, flat and float32, in a buffer that the next call with this name overwrites."""
        eps = self.scratch.get(name, total, torch.float32, batch[0].tensor("mean").device)
        runs = [_run_of(piece.block.full_shape, piece.block.offset, piece.block.shape) for piece in batch]
        if all(start is not None for start, _ in runs):
            places = [
                (piece.job.index, start, piece.numel, whole)
                for piece, (start, whole) in zip(batch, runs, strict=True)
                if start is not None
            ]
            noise.fill_runs(eps, places, seed=draw.seed, step=draw.step, sample=draw.pair, scratch=self.scratch)
        else:
            first = 0
            for piece in batch:
                block, part = piece.block, eps[first : first + piece.numel]
                noise.normal(
                    draw.seed,
                    draw.step,
                    draw.pair,
                    piece.job.index,
                    block.shape,
                    offset=block.offset,
                    full_shape=block.full_shape,
                    out=part.view(block.shape),
                    scratch=self.scratch,
                )
                first += piece.numel
        return eps.neg_() if draw.negative else eps

    def _buffer(
        self, name: str, batch: Batch, total: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, list[Tensor]]:
        """A flat buffer, and its parts in the shapes of the pieces, which are made once for a batch like this."""
        flat = self.scratch.get(f"run {name}", total, dtype, device)
        key = (name, dtype, device, flat.data_ptr(), *[piece.block.shape for piece in batch])
        if key not in self._views:
            parts = flat.split_with_sizes([piece.numel for piece in batch])
            self._views[key] = [part.view(piece.block.shape) for part, piece in zip(parts, batch, strict=True)]
        return flat, self._views[key]


def _alike(jobs: Sequence[Job]) -> dict[tuple[Pass, kernels.Dtypes], list[Job]]:
    """Jobs by pass and dtypes, in order."""
    found: dict[tuple[Pass, kernels.Dtypes], list[Job]] = {}
    for job in jobs:
        mean = job.tensors["mean"].dtype
        weights, grad = (job.tensors[name].dtype if name in job.tensors else mean for name in ("weights", "grad"))
        found.setdefault((job.work, (weights, grad, mean)), []).append(job)
    return found


def _is_flat(job: Job) -> bool:
    """Whether a kernel can walk over the tensors: on a CPU, contiguous, one run of the full tensor."""
    names = job.work.reads
    for name in names:
        tensor = job.tensors[name]
        if not tensor.is_contiguous() or tensor.device.type != "cpu" or type(tensor) not in (Tensor, nn.Parameter):
            return False
    mean = job.tensors["mean"].dtype
    if any(job.tensors[name].dtype != mean for name in names if name not in ("weights", "grad")):
        return False
    return not is_sharded(job.parameter) or _run_of(*place(job.parameter), job.tensors["mean"].shape)[0] is not None


def _run_of(full: Sequence[int], offset: Sequence[int], shape: Sequence[int]) -> tuple[int | None, int]:
    """The element of the full tensor with which a slice begins, if it is one run of it; and the full tensor's size."""
    return noise.contiguous_start(shape, offset, full), math.prod(full)


def _words(draws: Mapping[str, Draw]) -> list[int]:
    """Description of the noise for a kernel.

    It has the halves of the seed, step and number of the draw of ``eps``, the same of ``next_eps``, and the signs as
    two bits.
    """
    nothing = Draw(0, 0, 0, False)
    this, following = draws.get("eps", nothing), draws.get("next_eps", nothing)
    seed = max(this.seed, following.seed)
    signs = int(this.negative) | int(following.negative) << 1
    return [seed & 0xFFFFFFFF, seed >> 32, this.step, this.pair, following.step, following.pair, signs]


def _batches(jobs: Sequence[Job]) -> Iterator[Batch]:
    """Group small parameters up to the size of a block; blocks of large ones are separate."""
    found: dict[Any, Batch] = {}
    totals: dict[Any, int] = {}
    for job in jobs:
        tensors = [job.tensors[name] for name in job.work.reads]
        dtypes = tuple(tensor.dtype for tensor in tensors)
        for block in blocks(job.parameter, tensors, BLOCK):
            piece = Piece(job, block)
            if not block.whole:
                yield [piece]
                continue
            key = (job.work, id(job.numbers), dtypes, tensors[0].device)
            total = totals.get(key, 0) + piece.numel
            if total > BLOCK and key in found:
                yield found.pop(key)
                total = piece.numel
            found.setdefault(key, []).append(piece)
            totals[key] = total
    yield from found.values()
