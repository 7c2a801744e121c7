"""Steps and predictions on tensors of a GPU that is not there: what is dispatched, launched and copied, and what waits.

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
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
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import bayesadam as ba
from bayesadam import noise
from bayesadam.core import finite, launch
from bayesadam.curvature import PerExampleSquares
from bayesadam.native import device as devices

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
        self.uploads, self.waits = 0, Counter[str]()

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
    """The place of the library's line that runs, or its code."""
    lines = [each for each in traceback.extract_stack() if "/bayesadam/" in each.filename]
    if not lines:
        return "torch"
    return str(lines[-1].line) if code else f"{Path(lines[-1].filename).name}:{lines[-1].lineno}"


def answer(name: str, tensor: Tensor, mask: Tensor | None) -> Any:
    """What a tensor without numbers says, if all is well and nothing is chosen."""
    if name == "nonzero":
        return torch.empty(0, tensor.ndim, dtype=torch.int64, device=tensor.device)
    if mask is not None:
        return tensor.new_empty(0, *tensor.shape[mask.ndim :]) if name == "index" else tensor
    expected = not re.search(r"failed|outside|wrong|unknown|total|target", line(code=True))
    return expected if name == "equal" or tensor.dtype == torch.bool else 0.0 if tensor.is_floating_point() else 0


class _Never:
    def query(self) -> bool:
        return False


@contextmanager
def fake(*, triton: bool) -> Iterator[Watch]:
    """A context in which tensors on the GPU are fake, and kernels are counted."""
    watch = Watch()

    def upload(array: Any, device: torch.device, into: Tensor | None = None) -> Tensor:
        watch.uploads += 1
        return torch.empty(len(array), dtype=torch.int64, device=device) if into is None else into

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

    def recorded(*args: Any) -> Any:
        with _disable_current_modes():
            return usual(*args)

    changes: list[tuple[Any, str, Any]] = [
        (devices, "is_available", lambda device: triton and device.type == "cuda"),
        (launch.devices, "is_available", lambda device: triton and device.type == "cuda"),
        (sys.modules["bayesadam.core.flat"], "is_available", lambda device: triton and device.type == "cuda"),
        (devices, "is_capturing", lambda device: False),
        (devices, "mark", lambda device: _Never()),
        (devices, "upload", upload),
        (devices, "launch", launched),
        (noise, "_kernel", lambda device: fill),
        (noise, "_native", lambda out: fill if triton and out.device.type == "cuda" else None),
        (launch, "_differs", lambda *args: None),
        (launch, "program_of", recorded),
        (finite, "_read", read),
        (Tensor, "data_ptr", lambda self: id(self)),
        (FakeTensor, "tolist", tolist),
        (Tensor, "pin_memory", lambda self: self),
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
        opt = getattr(ba, name)(params, num_data=50.0, **options)
        grads = [torch.empty_like(parameter) for parameter in params]
        if mode == "train":
            opt.train()
        for _ in range(3):
            watch.clear()
            if mode == "train":
                _give(params, grads)
            else:
                with opt.sampled_params():
                    _give(params, grads)
            opt.step()
        return watch.report()


def _give(params: Any, grads: Any) -> None:
    for parameter, grad in zip(params, grads, strict=True):
        parameter.grad = grad


def walks() -> dict[str, Any]:
    """What each part of the library dispatches on a GPU, on its second call, or where it stops."""
    found = {}
    for name, function in WALKS.items():
        with fake(triton=True) as watch:
            try:
                with CUDA:
                    again = function()
                again()
                watch.clear()
                again()
                found[name] = watch.report()
            except Exception as error:
                last = [each for each in traceback.extract_tb(error.__traceback__) if "/bayesadam/" in each.filename][
                    -1:
                ]
                where = "".join(f"{Path(each.filename).name}:{each.lineno}" for each in last)
                found[name] = {**watch.report(), "stops": f"{where} {type(error).__name__}: {str(error)[:200]}"}
    return found


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Dropout(0.1), nn.Linear(20, 4))


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 3), torch.zeros(16, dtype=torch.int64)


def training(name: str, mode: str, **options: Any) -> Callable[[], Any]:
    """One step, with forward and backward pass."""
    net, (x, y) = network(), data()
    if name == "VOGN":
        options["curvature"] = PerExampleSquares(net)
    opt = getattr(ba, name)(net.named_parameters(), num_data=50.0, **options)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        return loss

    def step() -> None:
        if mode == "train":
            opt.train()
        if mode == "block":
            with opt.sampled_params():
                closure()
            opt.step()
        else:
            opt.step(closure)

    return step


def posterior() -> ba.DiagonalGaussian:
    # Its check that all numbers are finite reads one, once.
    with patch.object(ba.DiagonalGaussian, "__init__", _unchecked):
        net = network()
        mean = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        return ba.DiagonalGaussian(mean, {name: torch.ones_like(value) for name, value in mean.items()})


def _unchecked(self: Any, mean: Any, variance: Any) -> None:
    self.mean, self.variance, self.hyperparameters = mean, variance, {}


def sampling() -> Callable[[], Any]:
    net, write = network(), posterior().writer(0)
    return lambda: write(dict(net.named_parameters()), 3)


def predicting(method: str) -> Callable[[], Any]:
    net, q, (x, _) = network(), posterior(), data()
    return lambda: ba.predict(net, q, x, likelihood=ba.Categorical(), mc_samples=4, method=method)


def module(make: Callable[[nn.Module], Any]) -> Callable[[], Any]:
    """A step with a network whose weights are random."""
    net, (x, y) = make(nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 4))), data()
    opt = torch.optim.Adam(net.parameters())

    def step() -> None:
        opt.zero_grad()
        net.loss(x, y, likelihood=ba.Categorical(), num_data=50).backward()
        opt.step()

    return step


def laplace(structure: str) -> Callable[[], Any]:
    net = network()
    pair = data()
    return lambda: ba.laplace(net, pair, likelihood=ba.Categorical(), structure=structure, prior_precision=1.0)


def dropout() -> Callable[[], Any]:
    net, (x, _) = network(), data()
    return lambda: ba.predict(net, ba.MCDropout(net), x, likelihood=ba.Categorical(), mc_samples=4)


def population() -> Callable[[], Any]:
    nets = [network()[::3] for _ in range(2)]
    options: dict[str, Any] = {
        "likelihood": ba.Categorical(),
        "epochs": 3,
        "batch_size": 8,
        "lr": 0.01,
        "progress": False,
    }
    pair = data()
    return lambda: ba.population.train(nets, pair, **options)


def metrics() -> Callable[[], Any]:
    probs, target = torch.full((16, 4), 0.25), torch.zeros(16, dtype=torch.int64)
    names = ("accuracy", "brier_score", "expected_calibration_error")
    return lambda: [getattr(ba.metrics, name)(probs, target) for name in names]


WALKS: dict[str, Callable[[], Callable[[], Any]]] = {
    **{
        f"{name} {mode}": partial(training, name, mode)
        for name in ("Vadam", "IVON")
        for mode in ("train", "block", "closure")
    },
    "BayesAdam train": partial(training, "BayesAdam", "train", batch_size=16, prior_precision=1.0),
    "VOGN train": partial(training, "VOGN", "train"),
    "Vadam closure, 2 samples": partial(training, "Vadam", "closure", mc_samples=2),
    "a posterior sample": sampling,
    "predict, Monte Carlo": partial(predicting, "monte_carlo"),
    "predict, mean": partial(predicting, "mean"),
    "predict, linearized": partial(predicting, "linearized"),
    "predict, moments": partial(predicting, "moments"),
    "predict, dropout": dropout,
    "Bayes by Backprop": partial(module, ba.variational),
    "FAWN": partial(module, ba.fawn),
    "Laplace, diagonal": partial(laplace, "diagonal"),
    "Laplace, Kronecker": partial(laplace, "kron"),
    "population, 6 steps": population,
    "metrics": metrics,
}

SIZES = {
    True: ((16, 10**6), (150, 10**6), (150, 10**9), (2000, 10**6)),
    False: ((16, 10**6), (150, 10**6), (150, 10**8)),
}
"""Tensors and weights, with Triton and without: PyTorch's operations keep tables of the noise, 14 bytes per weight."""


def steps(*, quick: bool) -> dict[str, Any]:
    """Steps with kernels and without, at several sizes."""
    extra = {"BayesAdam": {"batch_size": 32, "prior_precision": 1.0}}
    names = ("IVON",) if quick else ("Vadam", "IVON", "BayesAdam")
    variants: list[dict[str, Any]] = [{}] if quick else [{}, {"low_memory": True}, {"nonfinite": "skip"}]
    found = {}
    for triton in (True, False):
        for name in names:
            for options in variants:
                for mode in ("train", "block"):
                    key = " ".join([name, mode, *options, "with Triton" if triton else "without"])
                    several = name == "IVON" and not options and mode == "train" and not quick
                    sizes = SIZES[triton] if several else SIZES[triton][:1]
                    each = [
                        step(name, tensors, numel, triton=triton, mode=mode, **options, **extra.get(name, {}))
                        for tensors, numel in sizes
                    ]
                    found[key] = {
                        **each[0],
                        "same_at": [list(size) for size, e in zip(sizes, each, strict=True) if e == each[0]],
                    }
    return found


def everything(*, quick: bool) -> dict[str, Any]:
    """Steps, and a walk through what the library offers."""
    return {"steps": steps(quick=quick), "walks": walks()}
