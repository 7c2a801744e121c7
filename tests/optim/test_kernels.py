"""Compiled kernels give the eager numbers up to rounding, and leave to the eager code what they do not fit."""

import copy
import warnings

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam import noise
from bayesadam.optim import compiled
from optim.conftest import Method, weights

pytestmark = pytest.mark.skipif(not compiled.available(), reason="there is no C++ compiler")
SIZES = [(3 * noise.TILE + 77,), (100, 100), (2, noise.TILE), (5,), (noise.BLOCK + 3 * noise.TILE + 1,)]
METHODS = ["vadam", "ivon", "vogn momentum", "von backtracking"]
"""Curvature from the gradient, from the noise, from outside, and kept: each way through the kernels."""


class Quadratic(torch.nn.Module):
    """A loss with a different minimum for every weight."""

    def __init__(self, dtype=torch.float32, sizes=SIZES):
        super().__init__()
        self.p = torch.nn.ParameterList(torch.nn.Parameter(0.1 * torch.ones(size, dtype=dtype)) for size in sizes)

    def loss(self, step):
        return sum(
            ((p.float() - torch.linspace(-1, 1, p.numel()).view(p.shape) - 0.1 * step) ** 2).sum() for p in self.p
        )


def run(name, steps=4, mode="block", dtype=torch.float32, scale=1.0, change=None, **options):
    net, method = Quadratic(dtype), Method(name)
    opt = method([(str(i), p) for i, p in enumerate(net.p)], **options)
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


def assert_same(first, second, **tolerance):
    tolerance = {"rtol": 2e-6, "atol": 2e-6, **tolerance}
    torch.testing.assert_close(weights(first[0]), weights(second[0]), **tolerance)
    q, other = first[1].posterior(), second[1].posterior()
    for name, variance in q.variance.items():
        torch.testing.assert_close(variance, other.variance[name], rtol=1e-5, atol=0)


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
    assert_same(run(name, **options), run(name, compile=True, **options))


def test_kernels_are_used_where_they_fit_and_only_there(monkeypatch):
    """Two tiles or more: small parameters, and a short end of a large one, are left to the eager code."""
    sampled, updated = [], []
    sample_, update_ = compiled.sample_, compiled.update_
    monkeypatch.setattr(
        compiled, "sample_", lambda w, *rest, **kw: (sampled.append(w.numel()), sample_(w, *rest, **kw))
    )
    monkeypatch.setattr(
        compiled, "update_", lambda w, *rest, **kw: (updated.append(w.numel()), update_(w, *rest, **kw))
    )
    run("vadam", steps=1, compile=True)
    expected = [3 * noise.TILE + 77, 100 * 100, 2 * noise.TILE, noise.BLOCK, 3 * noise.TILE + 1]
    assert sampled == updated == expected
    sampled.clear()
    run("vadam", steps=1, compile=True, dtype=torch.bfloat16)
    assert not sampled
    run("vadam", steps=1)
    assert not sampled


def test_low_precision_weights_go_on_eagerly():
    assert_same(run("vadam", dtype=torch.bfloat16), run("vadam", dtype=torch.bfloat16, compile=True))


def test_schedules_do_not_compile_anew():
    """Rates and counters are the kernels' inputs, not constants in them."""
    net = Quadratic()
    opt = Method("vadam")(net.named_parameters(), compile=True)
    torch._dynamo.reset()
    compiled._sampling.cache_clear()
    compiled._updating.cache_clear()
    counted = torch._dynamo.utils.counters["stats"]
    frames = None
    for step in range(6):
        opt.param_groups[0]["lr"] = 0.1 / (step + 1)
        opt.param_groups[0]["betas"] = (0.9, 0.9 + 0.01 * step)
        with opt.sampled_params():
            net.loss(step).backward()
        opt.step()
        if step == 2:
            frames = counted["unique_graphs"]
    assert counted["unique_graphs"] == frames > 0


def test_a_posterior_as_prior(tmp_path):
    start = run("vadam")[1].posterior()
    runs = []
    for on in (False, True):
        net = Quadratic()
        opt = ba.Vadam([(str(i), p) for i, p in enumerate(net.p)], num_data=50, prior=start, compile=on)
        for step in range(3):
            with opt.sampled_params():
                net.loss(step).backward()
            opt.step()
        runs.append((net, opt))
    assert_same(*runs)


def test_resuming_is_bit_identical():
    net, opt = run("vadam", steps=2, compile=True)
    other, resumed = copy.deepcopy((net, opt))
    state = copy.deepcopy(opt.state_dict())
    third = Quadratic()
    loaded = Method("vadam")([(str(i), p) for i, p in enumerate(third.p)])
    third.load_state_dict(net.state_dict())
    loaded.load_state_dict(state)
    assert loaded.compiles
    for each, optimizer in ((net, opt), (other, resumed), (third, loaded)):
        with optimizer.sampled_params():
            each.loss(7).backward()
        optimizer.step()
    assert torch.equal(weights(net), weights(other))
    assert torch.equal(weights(net), weights(third))


def test_an_interruption_between_kernels_restores_the_mean(monkeypatch):
    net = Quadratic()
    opt = Method("vadam")(net.named_parameters(), compile=True)
    mean, left = weights(net), [0]
    sample_ = compiled.sample_

    def interrupting(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        sample_(*args, **kwargs)

    monkeypatch.setattr(compiled, "sample_", interrupting)
    for left[0] in (1, 2, 4, 5):
        with pytest.raises(KeyboardInterrupt), opt.sampled_params():
            pass
        assert torch.equal(weights(net), mean)


def test_without_a_compiler_training_goes_on_eagerly_after_one_warning(monkeypatch):
    expected = run("vadam", steps=2)
    compiled.available.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: None)
    try:
        with pytest.warns(RuntimeWarning, match="needs a C\\+\\+ compiler, found none"):
            found = run("vadam", steps=1, compile=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = run("vadam", steps=2, compile=True)
    finally:
        compiled.available.cache_clear()
    assert torch.equal(weights(found[0]), weights(expected[0]))


def test_compile_must_be_a_boolean():
    with pytest.raises(ValueError, match="compile must be True or False, got 'yes'"):
        Method("vadam")([torch.nn.Parameter(torch.zeros(3))], compile="yes")


def test_an_interruption_before_a_kernel_ran_keeps_weights_that_others_set(monkeypatch):
    """While it is compiled, say: the weights are authoritative until then."""
    net, opt = run("vadam", steps=2, compile=True)
    with torch.no_grad():
        for p in net.p:
            p.fill_(7.0)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiled, "sample_", interrupted)
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
