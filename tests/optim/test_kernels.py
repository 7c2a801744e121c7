"""Compiled kernels give the eager numbers up to rounding, and leave to the eager code what they do not fit."""

import copy
import warnings

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam import native, noise
from bayesadam.engine import kernels
from bayesadam.engine.run import Walk
from bayesadam.optim import OPTIMIZERS
from optim.conftest import Method, weights

pytestmark = pytest.mark.skipif(not native.has_compiler(), reason="there is no C++ compiler")
SIZES = [(3 * noise.TILE + 77,), (100, 100), (2, noise.TILE), (5,), (noise.BLOCK + 3 * noise.TILE + 1,)]
METHODS = ["vadam", "ivon", "vogn momentum", "von backtracking"]
"""Curvature from the gradient, from the noise, from outside, and kept: each way through the kernels."""


@pytest.fixture(autouse=True)
def _nothing_was_said():
    kernels._warn.cache_clear()


class Quadratic(torch.nn.Module):
    """A loss with a different minimum for every weight."""

    def __init__(self, dtype=torch.float32, sizes=SIZES):
        super().__init__()
        self.p = torch.nn.ParameterList(torch.nn.Parameter(0.1 * torch.ones(size, dtype=dtype)) for size in sizes)

    def loss(self, step):
        return sum(
            ((p.float() - torch.linspace(-1, 1, p.numel()).view(p.shape) - 0.1 * step) ** 2).sum() for p in self.p
        )


def run(name, steps=4, mode="block", dtype=torch.float32, scale=1.0, change=None, *, compile, **options):
    net, method = Quadratic(dtype), Method(name)
    opt = method([(str(i), p) for i, p in enumerate(net.p)], compile=compile, **options)
    if mode == "train":
        opt.train()
    for step in range(steps):
        opt.zero_grad()
        for _ in range(options.get("mc_samples", 1)):
            if mode == "block":
                with opt.sampled_params():
                    (scale * net.loss(step)).backward()
            else:
                (scale * net.loss(step)).backward()
        if change is not None:
            change(net)
        opt.step()
    opt.eval()
    return net, opt


def assert_same(first, second, variance=1e-5, **tolerance):
    tolerance = {"rtol": 2e-6, "atol": 2e-6, **tolerance}
    torch.testing.assert_close(weights(first[0]), weights(second[0]), **tolerance)
    q, other = first[1].posterior(), second[1].posterior()
    for name, value in q.variance.items():
        torch.testing.assert_close(value, other.variance[name], rtol=variance, atol=0)


CASES = {
    "blocks": {},
    "drop-in": {"mode": "train"},
    "antithetic": {"mc_samples": 2, "antithetic": True},
    "maximised": {"maximize": True, "scale": -1.0},
    "clipped": {"change": lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)},
    "without noise": {"perturb": False},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_eager_run(name, case):
    options = dict(CASES[case])
    if options.pop("perturb", True) is False:
        net = [Quadratic(), Quadratic()]
        runs = []
        for each, on in zip(net, (False, True), strict=True):
            opt = Method(name)([{"params": list(each.named_parameters()), "perturb": False}], compile=on)
            for step in range(3):
                with opt.sampled_params():
                    each.loss(step).backward()
                opt.step()
            runs.append((each, opt))
        assert_same(*runs)
        return
    assert_same(run(name, compile=False, **options), run(name, compile=True, **options))


def test_kernels_take_everything_that_is_contiguous_in_one_call(monkeypatch):
    """Whatever the number of parameters and their sizes: one call draws the first sample, one makes each step."""
    calls = []
    kernel_of = kernels.kernel_of

    def counting(work, *args, **options):
        kernel = kernel_of(work, *args, **options)
        return lambda runs, *rest: (calls.append((work.kind, len(runs))), kernel(runs, *rest))[1]

    monkeypatch.setattr(kernels, "kernel_of", counting)
    run("vadam", steps=2, mode="train", compile=True)
    assert calls == [("sample", len(SIZES)), ("update", len(SIZES)), ("update", len(SIZES))]
    calls.clear()
    run("vadam", steps=2, mode="train", compile=None)
    assert len(calls) == 3
    calls.clear()
    run("vadam", steps=1, compile=False)
    assert not calls


def test_layouts_that_no_kernel_takes_go_on_eagerly():
    runs = []
    for compile in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 40, 3), torch.nn.Flatten(), torch.nn.Linear(40 * 4, 2))
        net = net.to(memory_format=torch.channels_last)
        opt = ba.Vadam(net.named_parameters(), num_data=50, compile=compile)
        for _ in range(3):
            with opt.sampled_params():
                net(torch.ones(5, 3, 4, 4)).square().mean().backward()
            opt.step()
        assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
        runs.append((net, opt))
    assert_same(*runs)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_does_not_change_the_numbers(threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        net, _ = run("ivon", mode="train", compile=True)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(weights(net), weights(run("ivon", mode="train", compile=True)[0]))


def test_a_kernel_that_gives_other_numbers_is_not_used(monkeypatch):
    """As one from a cache for another processor did."""
    monkeypatch.setattr(kernels, "_source", spoilt(kernels._source))
    kernels._made.cache_clear()
    with pytest.warns(RuntimeWarning, match="without the sample kernel of VadamRule: it gives other numbers"):
        found = run("vadam", steps=2, compile=True)
    kernels._made.cache_clear()
    assert_same(found, run("vadam", steps=2, compile=False))


def spoilt(source):
    return lambda *args: source(*args).replace("-2.0f * natural_log", "-2.1f * natural_log")


def test_a_kernel_that_does_not_compile_is_not_used(monkeypatch):
    source = kernels._source
    monkeypatch.setattr(kernels, "_source", lambda *args: source(*args) + "nonsense")
    kernels._made.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [run("vadam", steps=2, compile=None)]
    with pytest.warns(
        RuntimeWarning, match="without the .* kernel of VadamRule: the compiler failed: error: .*nonsense"
    ):
        found.append(run("vadam", steps=2, compile=True))
    kernels._made.cache_clear()
    expected = weights(run("vadam", steps=2, compile=False)[0])
    assert all(torch.equal(weights(net), expected) for net, _ in found)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_rule_has_its_kernels(name):
    """What is compiled is the rule's own code; none of the library's falls back."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = (run(name, steps=3, mode="train", compile=on) for on in (False, True))
    assert_same(first, second, variance=1e-4 if name == "bbb" else 1e-5)  # whose width goes through exp and log


def test_low_precision_weights_have_kernels_too():
    """Equal up to their own rounding, which the last bit of a mean may turn."""
    ulp = torch.finfo(torch.bfloat16).eps
    runs = [run("vadam", dtype=torch.bfloat16, compile=on) for on in (False, True)]
    assert_same(*runs, rtol=ulp, atol=2e-6)
    means = [torch.cat([opt.state[p]["mean"].flatten() for p in net.p]) for net, opt in runs]
    torch.testing.assert_close(*means, rtol=1e-3, atol=1e-4)


def test_schedules_do_not_compile_anew(monkeypatch):
    """Rates and counters are the kernels' inputs, not constants in them."""
    net = Quadratic()
    opt = Method("vadam")(net.named_parameters(), compile=True)
    made = []
    monkeypatch.setattr(kernels, "_source", lambda *args, source=kernels._source: (made.append(args), source(*args))[1])
    for step in range(6):
        opt.param_groups[0]["lr"] = 0.1 / (step + 1)
        opt.param_groups[0]["betas"] = (0.9, 0.9 + 0.01 * step)
        with opt.sampled_params():
            net.loss(step).backward()
        opt.step()
        if step == 0:
            made.clear()
    assert not made


def test_a_posterior_as_prior(tmp_path):
    start = run("vadam", compile=False)[1].posterior()
    runs = []
    for on in (False, True):
        net = Quadratic()
        opt = ba.Vadam([(str(i), p) for i, p in enumerate(net.p)], num_data=50, prior=start, compile=on, recipe="paper")
        for step in range(3):
            with opt.sampled_params():
                net.loss(step).backward()
            opt.step()
        runs.append((net, opt))
    assert_same(*runs)


@pytest.mark.parametrize("compile", [True, False, None])
def test_resuming_is_bit_identical(compile):
    """A state dict says how it was trained, and so does a run that goes on from it."""
    net, opt = run("vadam", steps=2, compile=compile)
    other, resumed = copy.deepcopy((net, opt))
    state = copy.deepcopy(opt.state_dict())
    third = Quadratic()
    loaded = Method("vadam")([(str(i), p) for i, p in enumerate(third.p)], compile=not compile)
    third.load_state_dict(net.state_dict())
    loaded.load_state_dict(state)
    assert loaded.param_groups[0]["compile"] is compile
    for each, optimizer in ((net, opt), (other, resumed), (third, loaded)):
        with optimizer.sampled_params():
            each.loss(7).backward()
        optimizer.step()
    assert torch.equal(weights(net), weights(other))
    assert torch.equal(weights(net), weights(third))


def test_without_a_compiler_training_goes_on_eagerly_after_one_warning(monkeypatch):
    expected = run("vadam", steps=2, compile=False)
    kernels.available.cache_clear()
    monkeypatch.setenv("BAYESADAM_NATIVE", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = [run("vadam", steps=2, compile=None)]
        with pytest.warns(RuntimeWarning, match="needs a C\\+\\+ compiler, found none"):
            run("vadam", steps=1, compile=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(run("vadam", steps=2, compile=True))
    finally:
        kernels.available.cache_clear()
    assert all(torch.equal(weights(net), weights(expected[0])) for net, _ in found)


def test_compile_must_be_a_boolean_or_none():
    with pytest.raises(ValueError, match="compile must be True, False or None, got 'yes'"):
        Method("vadam")([torch.nn.Parameter(torch.zeros(3))], compile="yes")


def test_an_interruption_before_a_kernel_ran_keeps_weights_that_were_set_by_hand(monkeypatch):
    """While it is compiled, say: the weights are authoritative until then."""
    net, opt = run("vadam", steps=2, compile=True)
    with torch.no_grad():
        for p in net.p:
            p.fill_(7.0)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Walk, "add", interrupted)
    with pytest.raises(KeyboardInterrupt), opt.sampled_params():
        pass
    assert all((p == 7.0).all() for p in net.p)


def test_numbers_of_numpy_and_schedulers_with_tensor_rates():
    net = Quadratic()
    opt = ba.Vadam(
        net.parameters(), lr=torch.tensor(0.01), num_data=np.int64(50), prior_precision=np.float32(1), compile=True
    )
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)
    for step in range(2):
        with opt.sampled_params():
            net.loss(step).backward()
        opt.step()
        scheduler.step()
    assert weights(net).isfinite().all()


@pytest.mark.parametrize("options", [{"mode": "train"}, {}, {"mc_samples": 2}, {"mc_samples": 2, "antithetic": True}])
def test_noise_is_kept_from_the_sample_to_the_step_and_is_what_would_be_drawn(options, monkeypatch):
    kernel_of, given = kernels.kernel_of, []

    def watching(work, *args, **asked):
        kernel = kernel_of(work, *args, **asked)

        def call(*rest):
            if "eps" in work.draws:
                given.append(rest[7])
            kernel(*rest)

        return call

    monkeypatch.setattr(kernels, "kernel_of", watching)
    found = run("ivon", compile=True, **options)
    assert given == [True] * 4 * options.get("mc_samples", 1)
    given.clear()
    monkeypatch.setattr(kernels, "ROOM", 0)
    expected = run("ivon", compile=True, **options)
    assert given
    assert not any(given)
    assert torch.equal(weights(found[0]), weights(expected[0]))


def test_noise_of_one_parameter_that_was_drawn_since_is_not_taken_for_that_of_all(monkeypatch):
    """Weights that were written to get their sample once more, to see whether it is another."""

    def touch(net):
        with torch.no_grad():
            net.p[1].copy_(net.p[1].clone())

    net, _ = run("ivon", mode="train", change=touch, compile=True)
    monkeypatch.setattr(kernels, "ROOM", 0)
    assert torch.equal(weights(net), weights(run("ivon", mode="train", change=touch, compile=True)[0]))
