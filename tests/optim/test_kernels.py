"""Compiled kernels give the eager numbers up to rounding, and leave to the eager code what they do not fit."""

import contextlib

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import native, noise
from bayesadam.core import launch
from optim.methods import RATES, Method, make_step, mean_of, methods, variance_of, weights

pytestmark = pytest.mark.skipif(not native.has_compiler(), reason="needs a C++ compiler")
SIZES = [(3 * noise.TILE + 77,), (100, 100), (2, noise.TILE), (5,)]
LARGE = [*SIZES, (noise.BLOCK + 3 * noise.TILE + 1,)]


@pytest.fixture(autouse=True)
def _nothing_was_said():
    launch.kernel_of.cache_clear()


class Shifted(nn.Module):
    """Squared distances of a parameter from a line, times each input."""

    def __init__(self, size, dtype):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.ones(size, dtype=dtype))

    def forward(self, x):
        line = torch.linspace(-1, 1, self.weight.numel()).view(self.weight.shape)
        return x * (self.weight.float() - line).square().sum()


class Quadratic(nn.Module):
    """A loss with a different minimum for every weight."""

    def __init__(self, dtype=torch.float32, sizes=SIZES):
        super().__init__()
        self.parts = nn.ModuleList(Shifted(size, dtype) for size in sizes)

    def forward(self, x):
        return sum(part(x) for part in self.parts)

    def loss(self, step):
        return self(torch.full((1,), 1.0 - 0.1 * step)).mean()


def run(key, steps=3, mode="block", *, compile, dtype=torch.float32, sizes=SIZES, scale=1.0, perturb=True, **options):
    net = Quadratic(dtype, sizes)
    groups = [{"params": list(net.named_parameters()), "perturb": perturb}]
    opt = Method(key)(net, groups, compile=compile, **options)
    for step in range(steps):
        make_step(opt, lambda step=step: scale * net.loss(step), mode)
    opt.eval()
    return net, opt


def assert_same(first, second, variance=1e-5, rtol=2e-6, atol=2e-6):
    torch.testing.assert_close(weights(first[0]), weights(second[0]), rtol=rtol, atol=atol)
    torch.testing.assert_close(variance_of(first[1]), variance_of(second[1]), rtol=variance, atol=0)


CASES = {
    "large": {"sizes": LARGE, "mode": "train"},
    "antithetic": {"mc_samples": 2, "antithetic": True},
    "maximised": {"maximize": True, "scale": -1.0},
    "without noise": {"perturb": False},
    "float64": {"dtype": torch.float64},
}


@pytest.mark.parametrize("key", ["vadam", "ivon", "vogn momentum", "von backtracking"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_eager_run(key, case):
    """Curvature from the gradient, from the noise, from outside, and kept."""
    assert_same(*(run(key, compile=on, **CASES[case]) for on in (False, True)))


@methods([*RATES, "von elementwise"])
def test_every_rule_has_its_kernels(method):
    """What is compiled is the rule's own code; none of the library's falls back."""
    first, second = (run(method.key, mode="train", compile=on) for on in (False, True))  # a warning would be an error
    assert_same(first, second, variance=1e-4 if method.name == "bbb" else 1e-5)  # whose width goes through exp and log


def test_low_precision_weights_have_kernels_too():
    """Equal up to their own rounding, which the last bit of a mean may turn."""
    runs = [run("vadam", dtype=torch.bfloat16, compile=on) for on in (False, True)]
    assert_same(*runs, rtol=torch.finfo(torch.bfloat16).eps)
    torch.testing.assert_close(*(mean_of(opt) for _, opt in runs), rtol=1e-3, atol=1e-4)


def test_a_posterior_as_prior_has_kernels_too():
    prior = run("vadam", compile=False)[1].posterior()
    assert_same(*(run("vadam", compile=on, prior=prior) for on in (False, True)))


def test_layouts_that_no_kernel_takes_go_on_eagerly():
    runs = []
    for on in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 40, 3), nn.Flatten(), nn.Linear(40 * 4, 2))
        net = net.to(memory_format=torch.channels_last)
        opt = Method("vadam")(net, compile=on)
        for _ in range(2):
            make_step(opt, lambda net=net: net(torch.ones(5, 3, 4, 4)).square().mean())
        runs.append((net, opt))
    assert_same(*runs)


def test_the_number_of_threads_does_not_change_the_numbers(set_threads):
    found = []
    for threads in (1, 2, 3):
        set_threads(threads)
        found.append(weights(run("ivon", mode="train", sizes=LARGE, compile=True)[0]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("compile", [True, False])
def test_a_state_dict_says_how_it_was_trained(compile):
    net, opt = run("vadam", compile=compile)
    other, resumed = run("vadam", steps=0, compile=not compile)
    other.load_state_dict(net.state_dict())
    resumed.load_state_dict(opt.state_dict())
    assert resumed.param_groups[0]["compile"] is compile
    for each, its in ((net, opt), (other, resumed)):
        make_step(its, lambda each=each: each.loss(7))
    assert torch.equal(weights(net), weights(other))


# How kernels are made and used: on the core's own functions


@contextlib.contextmanager
def changed_source(monkeypatch, change):
    source = launch.cpp.source
    monkeypatch.setattr(launch.cpp, "source", lambda *args: change(source(*args)))
    for cached in (launch._compiled, launch.kernel_of):
        cached.cache_clear()
    yield
    for cached in (launch._compiled, launch.kernel_of):
        cached.cache_clear()


def test_a_kernel_that_gives_other_numbers_is_not_used(monkeypatch):
    """As one from a cache for another processor did."""
    with changed_source(monkeypatch, lambda text: text.replace("sqrtf(-natural_log", "sqrtf(-1.05f * natural_log")):
        with pytest.warns(RuntimeWarning, match="without the sample kernel of VadamRule: it gives other numbers"):
            found = run("vadam", compile=True)
    assert_same(found, run("vadam", compile=False))


def test_half_precision_says_why_it_has_no_kernel():
    parameter = nn.Parameter(torch.ones(2, dtype=torch.float16))
    opt = ba.Vadam([parameter], num_data=5, compile=True)
    with pytest.warns(RuntimeWarning, match="weights of torch.float16 have none"), opt.sampled_params():
        parameter.sum().backward()


def test_a_kernel_that_does_not_compile_is_not_used(monkeypatch):
    monkeypatch.setattr(native._Process, "has_warned", False)
    with changed_source(monkeypatch, lambda text: text + "nonsense"):
        with pytest.warns(RuntimeWarning, match="^the compiler failed: .*nonsense") as caught:
            net, _ = run("vadam", compile=True)
    assert len(caught) == 1
    assert torch.equal(weights(net), weights(run("vadam", compile=False)[0]))


def test_training_goes_on_eagerly_without_native_code(monkeypatch):
    """Whoever has switched it off is not told so."""
    expected = weights(run("vadam", compile=False)[0])
    monkeypatch.setenv("BAYESADAM_NATIVE", "0")
    caches = (launch.kernel_of, launch._compiled)
    for cached in caches:
        cached.cache_clear()
    net, _ = run("vadam", compile=True)
    torch.testing.assert_close(weights(net), expected, rtol=1e-6, atol=1e-6)
    for cached in caches:
        cached.cache_clear()


def test_one_call_draws_the_first_sample_and_one_makes_each_step(monkeypatch):
    """Whatever the number of parameters and their sizes, and however rates change."""
    calls, kernel_of = [], launch.kernel_of

    def counting(work, *args, **options):
        kernel = kernel_of(work, *args, **options)
        return lambda runs, *rest: (calls.append((work.kind, len(runs))), kernel(runs, *rest))[1]

    monkeypatch.setattr(launch, "kernel_of", counting)
    run("vadam", steps=2, mode="train", compile=True)
    size = len(SIZES)
    assert calls == [("sample", size), ("update", size), ("update", size)]
    calls.clear()
    run("vadam", steps=1, compile=False)
    assert not calls


def test_schedules_do_not_compile_anew(monkeypatch):
    """Rates and counters are the kernels' inputs, not constants in them."""
    net, opt = run("vadam", steps=1, compile=True)
    made, source = [], launch.cpp.source
    monkeypatch.setattr(launch.cpp, "source", lambda *args: (made.append(args), source(*args))[1])
    for step in range(3):
        opt.param_groups[0] |= {"lr": torch.tensor(0.1 / (step + 1)), "betas": (0.9, 0.9 + 0.01 * step)}
        make_step(opt, lambda step=step: net.loss(step))
    assert not made
