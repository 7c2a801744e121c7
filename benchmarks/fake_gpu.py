"""Tensors of a GPU that is not there, and steps on them: what is dispatched, launched and copied, and what waits.

``FakeTensorMode`` makes tensors without memory. Operations that mix devices raise errors, and so does whatever needs a
number of the device. Autograd asks for a device all the same; a few lines of C++ say that there is one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import re
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

_HOOKS = """
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
namespace {
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>)
struct CUDAHooks : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)
}
"""


def say_that_there_is_a_gpu() -> None:
    """To be called before torch is imported."""
    folder = Path(str(importlib.util.find_spec("torch").origin)).parent  # type: ignore[union-attr]
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(folder / "lib" / name), ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory() as place:
        code, library = Path(place) / "hooks.cpp", Path(place) / "hooks.so"
        code.write_text(_HOOKS)
        flags = ["-std=c++20", "-shared", "-fPIC", f"-I{folder / 'include'}", f"-L{folder / 'lib'}"]
        subprocess.run(["c++", *flags, str(code), "-o", str(library), "-lc10", "-ltorch_cpu"], check=True)
        ctypes.CDLL(str(library))


if "torch" not in sys.modules:
    say_that_there_is_a_gpu()

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from bayesadam import noise
from bayesadam.core import launch, update
from bayesadam.native import device as devices
from bayesadam.population import segment
from bayesadam.posterior import around
from contenders import give, ours

CUDA = torch.device("cuda:0")


WITHOUT_LAUNCH = {
    *("view", "detach", "split_with_sizes", "slice", "select", "alias", "t", "expand", "_unsafe_view", "unsqueeze"),
    *("device", "empty", "empty_like", "transpose", "permute", "split", "unbind", "squeeze", "as_strided", "narrow"),
}


class Watch(TorchDispatchMode):
    """Counts operations, copies between devices, and launches of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.copies, self.launches = Counter[str](), Counter[str](), Counter[str]()
        self.uploads, self.waits, self.synchronized = 0, Counter[str](), False

    def wait(self) -> None:
        """Note that a line waits for the device."""
        self.waits[line()] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, first = func.overloadpacket.__name__, next((each for each in args if isinstance(each, Tensor)), None)
        mask = next((each for each in args[1] if each is not None), None) if name in ("index", "index_put_") else None
        chosen = mask is not None and mask.dtype == torch.bool and not (name == "index_put_" and args[2].numel() == 1)
        if name in ("_local_scalar_dense", "nonzero", "equal") or chosen:  # the number, or the shape, must be known
            if first.device.type == "cuda":
                self.wait()
            else:
                with suppress(DataDependentOutputException, DynamicOutputShapeException):
                    return func(*args, **(kwargs or {}))
            return answer(name, first, mask)
        result = func(*args, **(kwargs or {}))
        devices_ = {t.device.type for t in (*args, result) if isinstance(t, Tensor)}
        if len(devices_) > 1 and name in ("_to_copy", "copy_"):
            self.copies[line()] += 1
            if not (kwargs or {}).get("non_blocking", len(args) > 2 and args[2]):
                self.wait()
        elif "cuda" in devices_ or (args and isinstance(args[0], list | tuple)):
            self.operations[name] += 1
        return result

    def clear(self) -> None:
        """Start to count anew."""
        for counter in (self.operations, self.copies, self.launches, self.waits):
            counter.clear()
        self.uploads = 0

    def report(self) -> dict[str, Any]:
        """What was counted."""
        count = sum(number for name, number in self.operations.items() if name not in WITHOUT_LAUNCH)
        found = {"operations": count, "kernels": sum(self.launches.values()), "uploads": self.uploads}
        return {**found, "other_copies": dict(self.copies), "waits": dict(self.waits)}


def line(*, code: bool = False) -> str:
    """The file and function of the library's line that runs, or its code."""
    lines = [each for each in traceback.extract_stack() if "/bayesadam/" in each.filename]
    if not lines:
        return "torch"
    return str(lines[-1].line) if code else f"{Path(lines[-1].filename).name}: {lines[-1].name}"


_AMISS = "failed|outside|wrong|unknown|total|target|isinf|bad|beside|difference|upper|diagonal < 0"
"""Names of masks that are false everywhere if all is well."""


def answer(name: str, tensor: Tensor, mask: Tensor | None) -> Any:
    """What a tensor without numbers says: all is well, and masks are true everywhere."""
    if name == "nonzero":
        return torch.empty(0, tensor.ndim, dtype=torch.int64, device=tensor.device)
    if mask is not None:
        return tensor.flatten(0, mask.ndim - 1) if name == "index" else tensor
    expected = not re.search(_AMISS, line(code=True))
    return expected if name == "equal" or tensor.dtype == torch.bool else float(expected)


class Event:
    """What has not happened when somebody asks, until somebody waits."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def query(self) -> bool:
        """Whether it has happened."""
        return self.watch.synchronized

    def synchronize(self) -> None:
        """Wait for it, and thus for all before it."""
        self.watch.wait()
        self.watch.synchronized = True


@contextmanager
def fake(*, triton: bool) -> Iterator[Watch]:
    """A context in which tensors on the GPU are fake, and kernels are counted."""
    watch = Watch()

    def upload(array: Any, device: torch.device, into: Tensor | None = None) -> Tensor:
        watch.uploads += 1
        if into is None or len(into) != len(array):
            return torch.from_numpy(array).new_empty(array.shape, device=device)
        return into

    def launched(function: Any, programs: int, device: torch.device, *args: Any, **_: Any) -> None:
        watch.launches[getattr(function, "__name__", "kernel")] += 1

    def fill(table: Any, numel: int) -> None:
        watch.launches["fill"] += 1
        watch.uploads += 1

    def read(value: Tensor) -> float:
        watch.wait()
        return 0.0

    usual, listed = launch.program_of, FakeTensor.tolist

    def tolist(self: Tensor) -> Any:
        if self.device.type != "cuda":
            return listed(self)
        watch.wait()
        number = math.inf if "bad_at" in line(code=True) else 1
        return np.full(tuple(self.shape), number, dtype=float if self.is_floating_point() else int).tolist()

    def to(self: nn.Module, device: Any) -> nn.Module:
        """As PyTorch does it, but with new parameters: those of fake tensors cannot be given other contents."""
        for module in self.modules():
            for name, value in module._parameters.items():
                if value is not None:
                    module._parameters[name] = nn.Parameter(value.detach().to(device), value.requires_grad)
            for name, value in module._buffers.items():
                module._buffers[name] = None if value is None else value.to(device)
        return self

    def deepcopy(self: Tensor, memo: Any) -> Tensor:
        copied = self.detach().clone()
        return nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied

    def numpy(self: Tensor, **_: Any) -> Any:
        return np.full(1, devices.NONE) if "host.numpy" in line(code=True) else np.asarray(self.tolist())

    def mark(device: torch.device) -> Event:
        watch.synchronized = False
        return Event(watch)

    def recorded(*args: Any) -> Any:
        with _disable_current_modes():
            return usual(*args)

    changes: list[tuple[Any, str, Any]] = [
        (devices, "is_available", lambda device: triton and device.type == "cuda"),
        (launch.devices, "is_available", lambda device: triton and device.type == "cuda"),
        (sys.modules["bayesadam.core.flat"], "is_available", lambda device: triton and device.type == "cuda"),
        (devices, "is_capturing", lambda device: False),
        (devices, "mark", mark),
        (devices, "upload", upload),
        (devices, "launch", launched),
        (noise, "_kernel", lambda device: fill),
        (around, "has_right_kernel", lambda device: triton and device.type == "cuda"),
        (noise, "_native", lambda out: fill if triton and out.device.type == "cuda" else None),
        (launch, "_fault", lambda *args: None),
        (launch, "program_of", recorded),
        (segment, "program_of", recorded),
        (update, "_read", read),
        (Tensor, "data_ptr", lambda self: id(self)),
        (FakeTensor, "tolist", tolist),
        (Tensor, "pin_memory", lambda self: self),
        (Tensor, "numpy", numpy),
        (Tensor, "__deepcopy__", deepcopy),
        (nn.Module, "to", to),
        (nn.Module, "float", lambda self: self),
        (nn.Module, "double", lambda self: self),
        (Tensor, "__format__", lambda self, spec: "0"),
    ]
    with ExitStack() as stack:
        for where, name, value in changes:
            stack.enter_context(patch.object(where, name, value))
        launch.kernel_of.cache_clear()
        launch._in_triton.cache_clear()
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(watch)
        yield watch
    launch.kernel_of.cache_clear()
    launch._in_triton.cache_clear()


def step(name: str, tensors: int, numel: int, *, triton: bool, mode: str = "train", **options: Any) -> dict[str, Any]:
    """What one step dispatches, with given gradients, once it is in its stride."""
    with fake(triton=triton) as watch:
        params = [nn.Parameter(torch.empty(numel // tensors, device=CUDA)) for _ in range(tensors)]
        give(params, [torch.empty_like(parameter) for parameter in params])
        _, take = ours(params, name, blocks=mode == "block", prior_precision=1.0, **options)
        for _ in range(3):
            watch.clear()
            take()
        return watch.report()


def steps(*, quick: bool) -> dict[str, Any]:
    """Steps with kernels and without, and of many tensors with kernels."""
    names = ("IVON",) if quick else ("Vadam", "IVON", "BayesAdam")
    variants: list[dict[str, Any]] = [{}] if quick else [{}, {"nonfinite": "skip"}]
    found = {}
    for name, options, mode, triton in product(names, variants, ("train", "block"), (True, False)):
        key = " ".join([name, mode, *options, "with Triton" if triton else "without"])
        found[key] = step(name, 16, 10**6, triton=triton, mode=mode, **options)
    found["IVON train, 150 tensors, with Triton"] = step("IVON", 150, 10**6, triton=True)
    return found
