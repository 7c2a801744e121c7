"""What ``test_gpu.py`` runs in a process with ``TRITON_INTERPRET=1``: kernels beside PyTorch's operations."""

import json
import os
import traceback
import warnings
from contextlib import nullcontext
from unittest.mock import Mock, patch

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss, softplus

import bayesadam as ba
from bayesadam import noise
from bayesadam.core import launch, update
from bayesadam.core.rule import Rule
from bayesadam.native import device as devices
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.posterior import around
from optim.methods import Method, make_step

CPU = torch.device("cpu")


class Launches(list):
    """Names of the functions that are launched, in a context."""

    def __enter__(self):
        usual = devices.launch

        def noted(function, *args, **options):
            self.append(function.__name__)
            usual(function, *args, **options)

        self.patch = patch.object(devices, "launch", noted)
        self.patch.start()
        return self

    def __exit__(self, *_):
        self.patch.stop()


def noise_of_operations():
    """Noise is drawn by PyTorch's operations, which also takes less time than a kernel in the interpreter."""
    return patch.object(noise, "_native", lambda out: None)


def trained(key, mode, compile=True, steps=3, bad=None, clip=False, dtype=torch.float32, **options):
    """Means, variances and state after some steps; the gradients of step ``bad`` are not finite.

    Without ``compile``, all is computed by PyTorch's operations, but for the noise in float64: its last bits matter.
    """
    with nullcontext() if compile or dtype is torch.float64 else noise_of_operations():
        return _trained(key, mode, steps, bad, clip, dtype, compile=compile, **options)


def _trained(key, mode, steps, bad, clip, dtype, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 2, bias=False)).to(dtype)
    opt = Method(key)(net, **options)
    x, y = torch.randn(16, 3).to(dtype), torch.randn(16, 2).to(dtype)
    if clip:
        opt.register_step_pre_hook(lambda *_: nn.utils.clip_grads_with_norm_(net.parameters(), 0.1, torch.ones(())))
    for step in range(steps):
        make_step(opt, lambda step=step: mse_loss(net(x), y) * (float("nan") if step == bad else 1.0), mode)
    opt.eval()
    q = opt.posterior()
    values = [v.double().flatten() for part in (q.mean, q.variance) for v in part.values()]
    return torch.cat(values), opt


def assert_same(key, mode, rtol=1e-5, atol=1e-6, **options):
    with Launches() as launches:
        found, _ = trained(key, mode, compile=True, **options)
    expected, _ = trained(key, mode, compile=False, **options)
    assert "run" in launches
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def case_drop_in_training_gives_the_numbers_of_operations():
    for key in ("vadam", "ivon"):
        assert_same(key, "train")
    assert_same("bbb", "train", rtol=1e-4)  # whose width goes through exp and log


def case_blocks_and_several_samples():
    assert_same("vadam", "block")
    assert_same("ivon", "closure", mc_samples=2, antithetic=True)


def case_low_precision_and_float64():
    assert_same("vadam", "train", dtype=torch.float64, rtol=1e-12, atol=1e-12)
    assert_same("vadam", "train", dtype=torch.float16, rtol=2e-3, atol=2e-3)
    assert_same("vadam", "train", dtype=torch.bfloat16, rtol=2e-2, atol=2e-2)


def case_channels_may_be_last_in_memory():
    means = []
    for layout in (torch.contiguous_format, torch.channels_last):
        weight = nn.Parameter(torch.linspace(-1, 1, 4 * 3 * 6).view(4, 3, 2, 3).to(memory_format=layout))
        opt = ba.IVON([weight], num_data=10.0)
        opt.train()
        for _ in range(2):
            weight.grad = torch.linspace(0, 1, 72).view(4, 3, 2, 3).to(memory_format=layout)
            with Launches() as launches:
                opt.step()
            assert launches[-2:] == ["header", "run"]
        opt.eval()
        means.append(weight.detach().clone(memory_format=torch.contiguous_format))
    assert torch.equal(*means)


def case_one_launch_updates_and_samples():
    weights = [nn.Parameter(torch.ones(size)) for size in (5, 70)]
    opt = ba.IVON(weights, num_data=10.0)
    opt.train()
    for weight in weights:
        weight.grad = torch.full_like(weight, 0.1)
    opt.step()
    with Launches() as launches:
        opt.step()
    assert launches == ["check", "header", "run"]


def case_noise_has_the_numbers_of_operations():
    assert noise.has_kernel(CPU)
    shapes = [(7,), (3, 500), (5000,)]
    outs = {index: torch.empty(shape) for index, shape in enumerate(shapes)}
    outs[3] = torch.empty(6, 5, dtype=torch.bfloat16).T
    with Launches() as launches:
        noise.fill_many(outs, 5, 4, 3, stream=noise.POSTERIOR)
        part = torch.empty(900)
        noise.fill_runs(part, [(2, 4090, 900, 5000)], seed=5, step=4, sample=3, stream=noise.POSTERIOR)
        many = noise.normal_many([5, 6], [4, 4], [3, 9], {2: 5000, 0: 7}, stream=noise.POSTERIOR)
    assert launches == ["fill"] * 3
    with noise_of_operations():
        for index, out in outs.items():
            expected = noise.normal(5, 4, 3, index, out.shape, stream=noise.POSTERIOR)
            torch.testing.assert_close(out, expected.to(out.dtype), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(part, outs[2][4090:4990])
        torch.testing.assert_close(many[0, 0], torch.cat([outs[2], outs[0]]))
        other = noise.normal(6, 4, 9, 0, (7,), stream=noise.POSTERIOR)
        torch.testing.assert_close(many[1, 1, 5000:], other, rtol=1e-5, atol=1e-6)


def case_posterior_samples_take_one_launch_in_any_memory_format():
    assert around.has_right_kernel(CPU)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 70, 5), nn.Conv2d(70, 4, 1), nn.Flatten(), nn.Linear(36, 2))
    for number, memory in enumerate((torch.contiguous_format, torch.channels_last)):
        net = net.to(memory_format=memory)
        mean = {name: p.detach().clone() for name, p in net.named_parameters()}
        q = ba.DiagonalGaussian(mean, {name: 0.1 + value.square() for name, value in mean.items()})
        write, versions = q.writer(3), [p._version for p in net.parameters()]
        for sample in (5, 6):
            with Launches() as launches:
                write(dict(net.named_parameters()), sample)
            assert launches == ["fill"], launches
            for index, (name, p) in enumerate(net.named_parameters()):
                with noise_of_operations():
                    eps = noise.normal(3, 0, sample, index, p.shape, stream=noise.POSTERIOR)
                torch.testing.assert_close(p.data, mean[name] + q.variance[name].sqrt() * eps, rtol=1e-5, atol=1e-6)
        assert all(p._version > version for p, version in zip(net.parameters(), versions, strict=True))
        assert net[0].weight.is_contiguous(memory_format=memory), number
    odd = {name: p.detach().clone().double() for name, p in net.named_parameters()}  # written in other ways
    with Launches() as launches:
        write(odd, 5)
    assert launches == ["fill"], launches
    with noise_of_operations():
        eps = noise.normal(3, 0, 5, 1, (70,), stream=noise.POSTERIOR)
    expected = mean["0.bias"] + q.variance["0.bias"].sqrt() * eps
    torch.testing.assert_close(odd["0.bias"].float(), expected, rtol=1e-5, atol=1e-6)


def case_a_step_with_nan_changes_nothing_and_is_counted():
    """As on a CPU, where the host knows at once."""
    for mode in ("train", "block"):
        options = {"nonfinite": "skip", "bad": 1}
        found, opt = trained("ivon", mode, compile=True, **options)
        opt._engine.updates.learn(wait=True)
        assert opt.param_groups[0]["skipped_steps"] == 1
        assert all(float(state["step"]) == 2 for state in opt.state.values())
        expected, _ = trained("ivon", mode, compile=False, **options)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def case_kept_curvature_follows_clipping_and_is_skipped_without_a_wait():
    """Curvature from single examples, or averaged over samples."""
    for key, mode, options in (("vogn", "train", {}), ("vadam", "block", {"mc_samples": 2})):
        results = []
        for compile in (True, False):
            with patch.object(update, "_read", Mock(side_effect=update._read)) as read:
                found, opt = trained(key, mode, bad=1, clip=True, nonfinite="skip", compile=compile, **options)
            assert read.called is not compile
            opt._engine.updates.learn(wait=True)
            assert opt.param_groups[0]["skipped_steps"] == 1
            results.append(found)
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def case_an_error_names_the_parameter_one_step_later():
    weights = [("first", nn.Parameter(torch.ones(5))), ("second", nn.Parameter(torch.ones(70)))]
    opt = ba.Vadam(weights, num_data=10.0)
    opt.train()
    for bad in (False, True):
        for _, weight in weights:
            weight.grad = torch.full_like(weight, 0.1)
        weights[1][1].grad[3] = torch.nan if bad else 0.1
        opt.step()
    before = [weight.clone() for _, weight in weights]
    with pytest.raises(FloatingPointError, match="parameter 'second' must be finite, .* in an earlier step, which was"):
        opt.step()
    assert all(torch.equal(old, weight) for old, (_, weight) in zip(before, weights, strict=True))
    assert float(opt.state[weights[0][1]]["step"]) == 1


def case_a_captured_step_is_replayed():
    """Launches of a captured step are recorded and run again, as by a graph; schedules and noise go on."""
    means = []
    for captured in (False, True):
        weight = nn.Parameter(torch.linspace(-1, 1, 300))
        opt = ba.BayesAdam([weight], num_data=50.0, batch_size=8, total_steps=9, prior_precision=1.0)
        opt.train()
        weight.grad = torch.linspace(0, 1, 300)
        opt.step()
        recorded = []
        if captured:
            record = Mock()
            with patch.object(devices, "is_capturing", lambda device: True), patch.object(devices, "launch", record):
                opt.step()
            recorded = [call.args for call in record.call_args_list]
            assert [function.__name__ for function, *_ in recorded] == ["check", "header", "run"]
        for step in range(4):
            weight.grad.fill_(torch.nan if step == 1 else 0.1 * step)
            if captured:
                opt.prepare_replay()
                for function, programs, device, *args in recorded:
                    devices.launch(function, programs, device, *args)
            else:
                opt.param_groups[0]["nonfinite"] = "skip"
                opt.step()
            opt.param_groups[0]["nonfinite"] = "skip"
        opt.eval()
        means.append(weight.detach().clone())
        assert float(opt.state[weight]["step"]) == 4
        assert opt.param_groups[0]["skipped_steps"] == 1
        assert opt.param_groups[0]["noise_step"] == 5
    assert torch.equal(*means)


class Everything(Rule):
    """Many operations, for printing alone."""

    state = ("s",)

    def precision(self, state, hp):
        return hp.num_data * state["s"].abs().clamp_min(1e-3) + torch.sigmoid(state["s"])

    def curvature(self, grad, deviation, state, hp):
        return grad.square().clamp(0.0, 4.0)

    def update(self, mean, state, grad, curvature, hp):
        s = state["s"].lerp(curvature, 0.25) if curvature is not None else state["s"]
        wave = torch.tanh(mean) + torch.sin(grad) * torch.cos(mean) - torch.expm1(-s) + torch.log1p(s)
        wave = torch.maximum(wave, -mean) + torch.minimum(mean, grad) + softplus(mean) + torch.sign(grad) * 0.1
        wave = (
            torch.where(torch.logical_and(mean > 0, torch.logical_not(grad > 1)), wave, wave * 0.5)
            + s.pow(1.5)
            + mean.pow(3)
            + (s - s).pow(0)
            + (s + 1).log()
            + s.exp()
        )
        wave = torch.addcmul(wave, mean, grad, value=0.1) + torch.addcdiv(mean, grad, s + 1, value=0.1)
        return mean - hp.lr * torch.rsub(wave, 1.0), {"s": s}


class EverythingOptimizer(PerturbedOptimizer):
    rule = Everything()


def case_rules_of_users_are_printed_whatever_they_call():
    means = []
    for compile in (True, False):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.linspace(-2, 2, 300))
        opt = EverythingOptimizer([weight], num_data=10.0, lr=0.1, compile=compile)
        opt.train()
        for step in range(2):
            weight.grad = torch.linspace(-1, 2, 300) * (step + 1)
            with Launches() as launches:
                opt.step()
            assert ("run" in launches) is compile
        opt.eval()
        means.append(weight.detach().clone())
    torch.testing.assert_close(*means, rtol=1e-4, atol=1e-5)


def case_a_kernel_that_differs_is_not_used():
    clear()
    with patch.object(launch, "trial", lambda *args: {"mean": (torch.ones(1), torch.zeros(1), torch.ones(1))}):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found, opt = trained("vadam", "train", steps=2, bad=1, nonfinite="skip")
    clear()
    assert any("goes on without the update kernel of VadamRule" in str(each.message) for each in said)
    expected, _ = trained("vadam", "train", steps=2, bad=1, nonfinite="skip", compile=False)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert all(float(state["step"]) == 1 for state in opt.state.values())


def case_a_state_dict_resumes_with_its_counters():
    first, second = trained("ivon", "train", steps=2)[1], trained("ivon", "train", steps=0)[1]
    second.load_state_dict(first.state_dict())
    for ours, theirs in zip(first.state.values(), second.state.values(), strict=True):
        assert float(ours["step"]) == 2
        assert all(torch.equal(ours[name], theirs[name]) for name in ours if name != "mean")


def clear():
    for cached in (launch.kernel_of, launch._in_triton):
        cached.cache_clear()


if __name__ == "__main__":
    assert os.environ["TRITON_INTERPRET"] == "1"
    launch.trial.__kwdefaults__["sizes"] = (5, 300)  # the interpreter is slow
    failures = {}
    for name, case in list(globals().items()):
        if name.startswith("case_"):
            try:
                case()
                failures[name] = ""
            except Exception:
                failures[name] = traceback.format_exc()
    print(json.dumps(failures))
