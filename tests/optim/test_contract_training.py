"""What every registered optimiser must do in a training loop: the three ways to train, and everything around them."""

import copy
import itertools
import math
import pickle
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam import noise
from bayesadam.engine import run
from bayesadam.optim import OPTIMIZERS
from optim.conftest import batch, every_method, loss_of, make_net, same, snapshot, train, weights

MODES = ["block", "closure", "train"]


def finish(opt):
    opt.eval()


# The three ways to train


@every_method
@pytest.mark.parametrize("mode", ["closure", "train"])
def test_modes_agree_bit_for_bit(method, mode):
    first, second = make_net(), make_net()
    one, two = method(first.named_parameters()), method(second.named_parameters())
    train(first, one, 7)
    train(second, two, 7, mode=mode)
    finish(two)
    assert torch.equal(weights(first), weights(second))
    assert same(snapshot(one), snapshot(two))


@pytest.mark.parametrize("options", [{"mc_samples": 3}, {"mc_samples": 4, "antithetic": True}])
def test_closure_agrees_with_blocks_for_several_samples(method, options):
    first, second = make_net(), make_net()
    train(first, method(first.named_parameters(), **options), 5)
    train(second, method(second.named_parameters(), **options), 5, mode="closure")
    assert torch.equal(weights(first), weights(second))


def test_closure_returns_the_mean_loss_over_samples(method, net):
    opt = method(net.named_parameters(), mc_samples=3)
    losses = []

    def closure():
        opt.zero_grad()
        losses.append(loss_of(net))
        losses[-1].backward()
        return losses[-1]

    result = opt.step(closure)
    assert result.item() == pytest.approx(sum(loss.item() for loss in losses) / 3)
    assert len({loss.item() for loss in losses}) == 3


@every_method
def test_theta_is_mean_plus_sigma_eps(method, net):
    method.skip_matrix("theta = mu + L^-T eps there: tests/optim/test_dense_von.py")
    method.skip_rotated("theta = M + L (sigma * eps) R' there: tests/optim/test_evon.py")
    opt = method(net.named_parameters(), seed=11, mc_samples=2)
    train(net, opt, 3)
    q = opt.posterior()
    for sample in range(2):
        with opt.sampled_params():
            for index, (name, p) in enumerate(net.named_parameters()):
                eps = noise.normal(11, 3, sample, index, p.shape)
                assert torch.allclose(p, q.mean[name] + q.variance[name].sqrt() * eps, rtol=1e-6, atol=1e-7)
            loss_of(net).backward()
        assert same({n: p.detach() for n, p in net.named_parameters()}, q.mean)


def test_noise_of_a_step_has_the_rules_mean_and_variance(method):
    method.skip_matrix("theta = mu + L^-T eps there: tests/optim/test_dense_von.py")
    if method.deferred:
        pytest.skip("half a million second derivatives; the noise is drawn by the same code as for the others")
    parameter = torch.nn.Parameter(torch.full((500_000,), 0.3))
    opt = method([("w", parameter)])
    with opt.sampled_params():
        parameter.grad = 0.1 * torch.ones_like(parameter)
    opt.step()
    q = opt.posterior()
    with opt.sampled_params():
        z = ((parameter.detach() - q.mean["w"]) / q.variance["w"].sqrt()).double()
    count = z.numel()
    assert abs(z.mean().item()) * math.sqrt(count) < 4
    z_variance = (z.square().mean().item() - 1) * math.sqrt(count / 2)
    assert abs(z_variance) < 4
    assert abs(((1.01 * z.square()).mean().item() - 1) * math.sqrt(count / 2)) > 4.5  # a variance 1% off is seen


def test_antithetic_samples_mirror_each_other(method):
    net = make_net(torch.float64)
    opt = method(net.named_parameters(), mc_samples=4, antithetic=True)
    samples = []
    for _ in range(4):
        with opt.sampled_params():
            samples.append(weights(net))
            loss_of(net).backward()
    mean = weights(net)
    assert torch.allclose(samples[0] + samples[1], 2 * mean, atol=1e-12)
    assert torch.allclose(samples[2] + samples[3], 2 * mean, atol=1e-12)
    assert not torch.allclose(samples[0], samples[2], atol=1e-3)


def test_same_seed_same_run_and_other_seed_another(method):
    runs = []
    for seed in (0, 0, 1):
        net = make_net()
        train(net, method(net.named_parameters(), seed=seed), 4)
        runs.append(weights(net))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@every_method
def test_global_generator_is_left_alone(method, net):
    before = torch.get_rng_state()
    train(net, method(net.named_parameters()), 2)
    assert torch.equal(torch.get_rng_state(), before)


@every_method
def test_loss_decreases(method, net):
    opt = method(net.named_parameters())
    before = loss_of(net).item()
    train(net, opt, 60)
    assert sum(loss_of(net, s).item() for s in range(60)) / 60 < before


# Blocks


@pytest.mark.parametrize(("error", "samples"), [(ValueError, 1), (KeyboardInterrupt, 3)])
def test_an_exception_inside_a_block_leaves_no_trace(method, error, samples):
    nets, results = [make_net(), make_net()], []
    for net, interrupted in zip(nets, [False, True], strict=True):
        opt = method(net.named_parameters(), mc_samples=samples)
        train(net, opt, 2)
        for sample in range(samples):
            if interrupted:
                mean, grads = weights(net), [p.grad for p in net.parameters()]
                held = snapshot(opt)
                with pytest.raises(error), opt.sampled_params():
                    loss_of(net, 7).backward()
                    raise error
                assert torch.equal(weights(net), mean)
                assert [p.grad is g for p, g in zip(net.parameters(), grads, strict=True)] == [True] * len(grads)
                assert same(snapshot(opt), held)
            with opt.sampled_params():
                loss_of(net, 2 + sample).backward()
        opt.step()
        results.append(weights(net))
    assert torch.equal(*results)


@pytest.mark.parametrize("mode", MODES)
def test_an_interruption_while_the_sample_is_written_restores_the_mean(method, mode, monkeypatch):
    """A KeyboardInterrupt between two blocks of one tensor, and between two tensors."""
    method.skip_matrix("its sample is drawn before anything is written: tests/optim/test_dense_von.py")
    monkeypatch.setattr(run, "BLOCK", noise.TILE)
    net = torch.nn.Linear(100, 100)
    opt = method(net.named_parameters(), compile=False)
    mean, left = weights(net), [0]

    class Interrupting(type(opt.rule)):
        def precision(self, state, hp):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return super().precision(state, hp)

    monkeypatch.setattr(opt._engine.store, "rule", Interrupting())
    for left[0] in (1, 2, 3, 4):  # three blocks of the weight, one of the bias
        with pytest.raises(KeyboardInterrupt):
            if mode == "block":
                with opt.sampled_params():
                    pass
            elif mode == "closure":
                opt.step(lambda: None)
            else:
                opt.train()
        assert torch.equal(weights(net), mean)
        assert opt.param_groups[0]["weights"] == "mean"


def test_too_few_and_too_many_blocks_are_errors(method, net):
    opt = method(net.named_parameters(), mc_samples=2)
    with opt.sampled_params():
        loss_of(net).backward()
    before = snapshot(opt)
    with pytest.raises(RuntimeError, match=r"step\(\) must follow exactly mc_samples=2 sampling blocks, got 1"):
        opt.step()
    assert same(snapshot(opt), before)
    with opt.sampled_params():
        loss_of(net).backward()
    with pytest.raises(RuntimeError, match="exactly mc_samples=2 blocks must be run before step"), opt.sampled_params():
        pass
    opt.step()


def test_a_step_without_a_sample_names_the_ways_to_draw_one(method, net):
    opt = method(net.named_parameters())
    loss_of(net).backward()
    mean = weights(net)
    with pytest.raises(RuntimeError, match=r"sampled_params\(\).*closure.*train\(\)"):
        opt.step()
    opt.train()
    opt.eval()
    with pytest.raises(RuntimeError, match=r"train\(\)"):
        opt.step()
    assert torch.equal(weights(net), mean)


def test_what_must_not_be_called_inside_a_block(method, net):
    opt = method(net.named_parameters())
    calls = {
        r"nested": lambda: opt.sampled_params().__enter__(),
        r"step\(\) must be called outside": opt.step,
        r"eval\(\) must be called outside": opt.eval,
        r"load_state_dict\(\) must be called outside": lambda: opt.load_state_dict(opt.state_dict()),
        r"add_param_group must be called outside": lambda: opt.add_param_group({"params": []}),
    }
    if not method.deferred:
        calls[r"train\(\) must be called before"] = opt.train
    opt.attach(net)
    with opt.sampled_params():
        for message, call in calls.items():
            with pytest.raises(RuntimeError, match=message):
                call()
        loss_of(net).backward()
    opt.step()


@pytest.mark.parametrize("mode", MODES)
def test_training_goes_on_after_inference_mode(method, mode):
    """Nothing that is made there and kept may be an inference tensor."""
    nets = [make_net(), make_net()]
    opts = [method(net.named_parameters()) for net in nets]
    with torch.inference_mode():
        with opts[0].sampled_params():
            nets[0](batch()[0])
        opts[0].zero_grad()  # this sample is not drawn again
        if mode == "train":
            opts[0].train()
            nets[0](batch()[0])
            opts[0].eval()
            opts[0].train()
    with opts[1].sampled_params():
        pass
    opts[1].zero_grad()
    for net, opt in zip(nets, opts, strict=True):
        train(net, opt, 2, mode=mode)
        saved = opt.state_dict() if mode != "train" else None
        if saved is not None:
            with torch.inference_mode():
                opt.load_state_dict(saved)
        train(net, opt, 1, first=2, mode=mode)
    assert torch.equal(*map(weights, nets))


def test_blocks_and_drop_in_do_not_mix(method, net):
    opt = method(net.named_parameters())
    opt.train()
    with (
        pytest.raises(RuntimeError, match=r"sampled_params\(\) must not be used after train\(\)"),
        opt.sampled_params(),
    ):
        pass
    opt.eval()
    with opt.sampled_params():
        loss_of(net).backward()
    with pytest.raises(RuntimeError, match=r"train\(\) must be called before sampled_params\(\)"):
        opt.train()
    with pytest.raises(RuntimeError, match=r"step\(closure\) draws its own samples and must not follow blocks"):
        opt.step(lambda: None)


def test_a_failing_closure_discards_its_samples(method, net):
    opt = method(net.named_parameters(), mc_samples=3)
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError
        loss_of(net).backward()

    with pytest.raises(ValueError, match="^$"):
        opt.step(closure)
    opt.step(closure)
    assert calls == 5


def test_zero_grad_outside_discards_and_inside_does_not(method, net):
    opt = method(net.named_parameters(), mc_samples=2)
    with opt.sampled_params():
        loss_of(net).backward()
        first = weights(net)
    opt.zero_grad()
    for _ in range(2):
        with opt.sampled_params():
            loss_of(net).backward()
            opt.zero_grad()
            loss_of(net).backward()
            assert not torch.equal(weights(net), first)  # what was discarded is not drawn again
    opt.step()


def test_earlier_gradients_are_hidden_and_the_mean_is_left(method, net):
    opt = method(net.named_parameters(), mc_samples=2)
    for p in net.parameters():
        p.grad = torch.full_like(p, 1e6)
    seen = []
    for step in range(2):
        with opt.sampled_params():
            assert all(p.grad is None for p in net.parameters())
            loss_of(net, step).backward()
            seen.append([p.grad.clone() for p in net.parameters()])
        for p, *each in zip(net.parameters(), *seen, strict=True):
            assert torch.allclose(p.grad, torch.stack(each).mean(0), rtol=1e-6, atol=1e-7)


def test_backward_passes_inside_one_block_accumulate(method):
    nets = [make_net(), make_net()]
    opts = [method(net.named_parameters()) for net in nets]
    with opts[0].sampled_params():
        for step in range(2):
            (loss_of(nets[0], step) / 2).backward()
    with opts[1].sampled_params():
        x, y = (torch.cat(pair) for pair in zip(batch(0), batch(1), strict=True))
        torch.nn.functional.mse_loss(nets[1](x), y).backward()
    for opt in opts:
        opt.step()
    assert torch.allclose(*map(weights, nets), rtol=1e-5, atol=1e-6)


@every_method
@pytest.mark.parametrize("samples", [1, 3])
def test_scaling_the_gradients_between_block_and_step_scales_the_curvature(method, samples):
    """Clipping by norm, unscaling: the step must be that of the scaled loss, curvature included."""
    nets = [make_net(torch.float64), make_net(torch.float64)]
    for net, inside in zip(nets, [1.0, 0.25], strict=True):
        opt = method(net.named_parameters(), mc_samples=samples)
        for step in range(4):
            for sample in range(samples):
                with opt.sampled_params():
                    (inside * loss_of(net, 10 * step + sample)).backward()
            if inside == 1.0:
                for p in net.parameters():
                    p.grad.mul_(0.25)
            opt.step()
    assert torch.allclose(*map(weights, nets), rtol=1e-9, atol=1e-12)


def test_clipping_acts_on_what_the_step_uses(method):
    nets = [make_net(), make_net()]
    for net, limit in zip(nets, [1e-3, 1e9], strict=True):
        opt = method(net.named_parameters())
        for step in range(3):
            with opt.sampled_params():
                loss_of(net, step).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), limit)
            opt.step()
    assert not torch.equal(*map(weights, nets))


# Drop-in


def test_train_and_eval_are_idempotent(method, net):
    opt = method(net.named_parameters())
    mean = weights(net)
    opt.eval()
    assert torch.equal(weights(net), mean)
    opt.train()
    sample = weights(net)
    assert not torch.equal(sample, mean)
    opt.train()
    assert torch.equal(weights(net), sample)
    opt.train(False)
    opt.eval()
    assert torch.equal(weights(net), mean)
    opt.train()
    assert torch.equal(weights(net), sample)


def test_drop_in_closure_is_called_once(method, net):
    opt = method(net.named_parameters())
    opt.train()
    calls = []
    assert opt.step(lambda: (loss_of(net).backward(), calls.append(1))[1] or 3.0) == 3.0
    assert calls == [1]


def test_drop_in_needs_one_sample(method, net):
    with pytest.raises(RuntimeError, match=r"mc_samples must be 1 to use train\(\), got 2"):
        method(net.named_parameters(), mc_samples=2).train()


def test_drop_in_accumulates_gradients(method):
    nets = [make_net(), make_net()]
    opts = [method(net.named_parameters()) for net in nets]
    opts[1].train()
    for step in range(3):
        with opts[0].sampled_params():
            for micro in range(2):
                loss_of(nets[0], 2 * step + micro).backward()
        opts[0].step()
        opts[1].zero_grad()
        for micro in range(2):
            loss_of(nets[1], 2 * step + micro).backward()
        opts[1].step()
    opts[1].eval()
    assert torch.equal(*map(weights, nets))


def test_changing_the_weights_while_they_hold_a_sample_is_an_error(method, net):
    opt = method(net.named_parameters())
    opt.train()
    with torch.no_grad():
        net[0].bias.add_(1.0)
    loss_of(net).backward()
    changed = weights(net)
    with pytest.raises(RuntimeError, match=r"parameter '0.bias' must hold the sample .* call train\(\) after loading"):
        opt.step()
    assert torch.equal(weights(net), changed)


def test_changing_the_mean_between_steps_is_followed(method, net):
    opt = method(net.named_parameters(), lr=0.0)
    train(net, opt, 1)
    for p in net.parameters():
        p.data.clamp_(-0.1, 0.1)  # bumps no version counter
    clamped = weights(net)
    train(net, opt, 1, mode="block")
    assert torch.equal(weights(net), clamped)
    opt.train()
    opt.eval()
    assert torch.equal(weights(net), clamped)


# Parameters of all kinds


class PartlyUsed(torch.nn.ModuleDict):
    def forward(self, x):
        return self["used"](x)


@pytest.mark.parametrize("mode", MODES)
def test_frozen_and_unused_parameters_are_not_touched(method, mode):
    torch.manual_seed(0)
    net = PartlyUsed({name: torch.nn.Linear(3, 3) for name in ("frozen", "unused", "used")})
    for p in net["frozen"].parameters():
        p.requires_grad_(False)
        p.grad = torch.ones_like(p)  # stale
    opt = method(net.named_parameters())
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    stale = {name: p.grad for name, p in net["frozen"].named_parameters()}

    def closure():
        for name, p in net["frozen"].named_parameters():
            assert torch.equal(p, before[f"frozen.{name}"])
        for p in net["used"].parameters():
            p.grad = None
        loss = net(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        if mode == "block":
            with opt.sampled_params():
                closure()
            opt.step()
        else:
            if mode == "train":
                opt.train()
            opt.step(closure)
    opt.eval()
    for name, p in net.named_parameters():
        assert torch.equal(p, before[name]) == (not name.startswith("used")), name
    assert set(opt.posterior().mean) == {"unused.weight", "unused.bias", "used.weight", "used.bias"}
    assert stale.keys() == {"weight", "bias"}


def test_an_unused_parameter_does_not_get_its_neighbours_gradient(method):
    """Fault of the 2018 code: gradients taken by counter, not by parameter."""
    alone, both = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    both.load_state_dict(alone.state_dict())
    unused = torch.nn.Parameter(torch.zeros(3, 3))
    opts = [
        method([*[torch.nn.Parameter(torch.zeros(3, 3), requires_grad=False)], *alone.parameters()]),
        method([unused, *both.parameters()]),
    ]
    for net, opt in zip((alone, both), opts, strict=True):
        for _ in range(3):
            with opt.sampled_params():
                net(torch.ones(2, 3)).square().mean().backward()
            opt.step()
    assert torch.equal(weights(alone), weights(both))  # frozen and unused count in the noise index alike
    assert torch.equal(unused, torch.zeros(3, 3))


def test_a_parameter_used_by_some_samples_only_counts_zero_for_the_others(method):
    nets = [make_net(torch.float64), make_net(torch.float64)]
    for net, explicit in zip(nets, [False, True], strict=True):
        opt = method(net.named_parameters(), mc_samples=3)
        for sample in range(3):
            with opt.sampled_params():
                if sample == 1:
                    loss_of(net).backward()
                elif explicit:
                    (0.0 * loss_of(net)).backward()
        opt.step()
    assert torch.allclose(*map(weights, nets), rtol=1e-12)


def test_freezing_in_the_middle_of_drop_in_training_restores_the_mean(method, net):
    opt = method(net.named_parameters())
    train(net, opt, 2, mode="train")
    mean = opt.posterior().mean["0.weight"]
    net[0].weight.requires_grad_(False)
    opt.zero_grad()
    loss_of(net, 2).backward()
    opt.step()
    assert torch.equal(net[0].weight, mean)
    opt.eval()
    assert torch.equal(net[0].weight, mean)


def test_mixed_dtypes_in_one_group(method):
    params = [torch.nn.Parameter(torch.ones(4, dtype=d)) for d in (torch.float32, torch.float64, torch.bfloat16)]
    opt = method(params)
    for _ in range(3):
        with opt.sampled_params():
            sum((p.double() ** 2).sum() for p in params).backward()
        opt.step()
    for p in params:
        assert p.dtype == p.grad.dtype
        assert all((p < 1).tolist())
        tensors = {k: v for k, v in opt.state[p].items() if torch.is_tensor(v)}
        if method.full:  # rounded rows may be no precision of anything
            assert tensors.pop("hessian").dtype == torch.float64
        assert {t.dtype for t in tensors.values()} == {torch.float64 if p.dtype == torch.float64 else torch.float32}


@pytest.mark.parametrize("mode", MODES)
def test_low_precision_parameters_have_a_float32_master(method, mode):
    """Steps far below bfloat16's resolution must add up."""
    parameter = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    narrow = {"num_data": 1e12, "lr": 1.0} if method.has_prior else {"num_data": 1, "lr": 1e5}
    opt = method([("w", parameter)], initial_precision=1e12, **narrow)
    if mode == "train":
        opt.train()
    wide = []
    for _ in range(50):

        def closure():
            opt.zero_grad()
            (parameter.float() * 1e-5).sum().backward()

        if mode == "block":
            with opt.sampled_params():
                closure()
            opt.step()
        else:
            opt.step(closure)
        wide.append(opt.state[parameter]["mean"].clone())
    opt.eval()
    moves = [(a - b).max().item() for a, b in itertools.pairwise(wide)]
    assert all(move > 0 for move in moves)
    assert torch.equal(parameter, wide[-1].bfloat16())


def test_tied_weights_stay_tied(method):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Tanh(), torch.nn.Linear(4, 4, bias=False))
    net[2].weight = net[0].weight
    opt = method(net.named_parameters())
    for _ in range(3):
        with opt.sampled_params():
            assert net[2].weight is net[0].weight
            net(torch.ones(2, 4)).square().mean().backward()
        opt.step()
    assert net[2].weight.data_ptr() == net[0].weight.data_ptr()
    assert list(opt.posterior().mean) == ["0.weight"]


@pytest.mark.parametrize("mode", MODES)
def test_storages_and_views_stay_where_they_are(method, mode):
    net = make_net()
    flat = torch.nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    torch.nn.utils.vector_to_parameters(flat, net.parameters())  # every parameter is now a view of flat
    addresses = [p.data_ptr() for p in net.parameters()]
    train(net, method(net.named_parameters()), 3, mode=mode)
    assert [p.data_ptr() for p in net.parameters()] == addresses
    assert torch.equal(flat.double(), weights(net))


def conv_net(channels_last):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.ReLU(), torch.nn.Conv2d(5, 4, 2)).double()
    return net.to(memory_format=torch.channels_last) if channels_last else net


@pytest.mark.parametrize("samples", [1, 2])
def test_channels_last_is_preserved_and_gives_the_same_numbers(method, samples):
    nets = [conv_net(False), conv_net(True)]
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    for net in nets:
        opt = method(net.named_parameters(), mc_samples=samples)
        for _ in range(3):
            for _ in range(samples):
                with opt.sampled_params():
                    net(x).square().mean().backward()
            opt.step()
    assert nets[1][0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not nets[1][0].weight.is_contiguous()
    for first, second in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(first, second, rtol=1e-10, atol=1e-12)


def test_blocks_of_large_tensors_do_not_change_the_numbers(method, monkeypatch):
    method.skip_matrix("a matrix over 15,150 weights is refused")
    results = []
    for size in (noise.BLOCK, noise.TILE):
        monkeypatch.setattr(run, "BLOCK", size)
        torch.manual_seed(0)
        net = torch.nn.Linear(100, 150)
        opt = method(net.named_parameters())
        for _ in range(2):
            with opt.sampled_params():
                net(torch.ones(4, 100)).square().mean().backward()
            opt.step()
        results.append(weights(net))
    assert torch.equal(*results)


def test_empty_and_scalar_parameters(method):
    params = [torch.nn.Parameter(torch.zeros(0, 3)), torch.nn.Parameter(torch.tensor(1.0))]
    opt = method(params)
    with opt.sampled_params():
        (params[0].sum() + params[1] ** 2).backward()
    opt.step()
    assert params[1].item() < 1


def test_perturb_false_is_trained_without_noise(method, net):
    opt = method(
        [
            {"params": list(net[0].named_parameters(prefix="0"))},
            {"params": list(net[2].named_parameters(prefix="2")), "perturb": False},
        ]
    )
    before = net[2].weight.detach().clone()
    for step in range(5):
        mean = net[2].weight.detach().clone()
        with opt.sampled_params():
            assert torch.equal(net[2].weight, mean)
            loss_of(net, step).backward()
        opt.step()
    assert not torch.equal(net[2].weight, before)
    q = opt.posterior()
    assert (q.variance["2.weight"] == 0).all()
    assert (q.variance["0.weight"] > 0).all()


@pytest.mark.parametrize("mode", ["block", "train"])
def test_add_param_group_after_training_began(method, mode):
    """New parameters get the next noise indices; those of the others and their noise stay."""
    method.skip_matrix("refused: tests/optim/test_dense_von.py")
    if method.name == "vogn":
        pytest.skip("what is not the model's is refused: tests/optim/test_vogn.py")
    net, extra = make_net(), torch.nn.Parameter(torch.zeros(2))
    opt = method(net.named_parameters(), seed=5)
    train(net, opt, 2, mode=mode)
    opt.add_param_group({"params": [("extra", extra)], "lr": 0.5})
    for step in (2, 3):
        if mode == "block":
            with opt.sampled_params():
                eps = noise.normal(5, step, 0, 4, (2,))
                sigma = opt.posterior().variance["extra"].sqrt()
                assert torch.allclose(extra.detach(), opt.posterior().mean["extra"] + sigma * eps, atol=1e-6)
                (loss_of(net, step) + (extra - 1).square().sum()).backward()
        else:
            assert not torch.equal(extra, opt.posterior().mean["extra"])
            opt.zero_grad()
            (loss_of(net, step) + (extra - 1).square().sum()).backward()
        opt.step()
    opt.eval()
    reference = make_net()
    train(reference, method(reference.named_parameters(), seed=5), 4)
    assert torch.equal(weights(net), weights(reference))
    assert (extra != 0).all()


# Gradients that must be refused


@pytest.mark.parametrize(("start", "diverges"), [(None, True), (1e4, False)])
def test_a_training_that_diverges_says_what_to_change(start, diverges):
    """The noise at the start multiplies from layer to layer, and IVON's default rate does the rest."""
    wide = [torch.nn.Linear(512, 512) for _ in range(3)]
    net = torch.nn.Sequential(torch.nn.Linear(32, 512), *wide, torch.nn.Linear(512, 8))
    opt = ba.IVON(net.named_parameters(), num_data=100, recipe="paper", initial_precision=start)
    x, y = torch.randn(8, 32), torch.randn(8, 8)
    hint = r"must be finite, got inf or nan; .* use a smaller lr than 0.1, .* a larger initial_precision"
    with pytest.raises(FloatingPointError, match=hint) if diverges else nullcontext():
        for _ in range(20):
            with opt.sampled_params():
                opt.zero_grad()
                torch.nn.functional.mse_loss(net(x), y).backward()
            opt.step()


@pytest.mark.parametrize(("bad", "mode"), [(math.nan, "block"), (math.inf, "closure"), (-math.inf, "train")])
def test_a_gradient_that_is_not_finite_changes_nothing(method, net, bad, mode):
    opt = method(net.named_parameters())
    train(net, opt, 2, mode=mode)
    mean, before, holds = opt.posterior().mean, snapshot(opt), weights(net)

    def closure():
        opt.zero_grad()
        if method.deferred:  # their gradients must not be changed inside
            (loss_of(net) + bad * net[2].weight[0, 1]).backward()
        else:
            loss_of(net).backward()
            net[2].weight.grad[0, 1] = bad

    with pytest.raises(FloatingPointError, match=r"gradient of parameter '2.weight' must be finite, got inf or nan"):
        if mode == "block":
            with opt.sampled_params():
                closure()
            opt.step()
        elif mode == "closure":
            opt.step(closure)
        else:
            closure()
            opt.step()
    assert same(snapshot(opt), before)
    assert torch.equal(weights(net), holds)
    assert same(opt.posterior().mean, mean)
    train(net, opt, 1, first=2, mode=mode)  # the refused sample is not counted
    other_net = make_net()
    other = method(other_net.named_parameters())
    train(other_net, other, 3, mode=mode)
    assert torch.equal(weights(net), weights(other_net))


def test_steps_with_bad_gradients_can_be_skipped_and_are_counted(method, net):
    opt = method(net.named_parameters(), nonfinite="skip")
    for step, bad in enumerate([False, True, False, True]):
        mean, states = weights(net), snapshot(opt)[1]
        with opt.sampled_params():
            loss_of(net, step).backward()
        if bad:
            net[0].bias.grad[2] = math.nan
        opt.step()
        assert torch.equal(weights(net), mean) == bad
        assert not bad or same(snapshot(opt)[1], states)
    assert opt.param_groups[0]["skipped_steps"] == 2


def test_sparse_gradients_are_refused_by_name(method):
    table = torch.nn.Embedding(5, 3, sparse=True)
    opt = method(table.named_parameters())
    before = table.weight.detach().clone()
    with pytest.raises(RuntimeError, match="gradient of parameter 'weight' must be dense, got a sparse one"):
        with opt.sampled_params():  # where curvature is kept, its end already refuses
            table(torch.tensor([1, 2])).square().sum().backward()
        opt.step()
    assert torch.equal(table.weight, before)


def test_complex_parameters_are_refused(method):
    with pytest.raises(ValueError, match="parameter 1 of the group must be real, got dtype torch.complex64"):
        method([torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))])


@pytest.mark.parametrize("samples", [1, 2])
def test_maximize_negates(method, samples):
    nets = [make_net(), make_net()]
    for net, sign in zip(nets, [1.0, -1.0], strict=True):
        opt = method(net.named_parameters(), maximize=sign < 0, mc_samples=samples)
        for step in range(3):
            for _ in range(samples):
                with opt.sampled_params():
                    (sign * loss_of(net, step)).backward()
            opt.step()
    assert torch.equal(*map(weights, nets))


# torch's own machinery


def test_hooks_fire_once(method, net):
    opt = method(net.named_parameters())
    fired = []
    opt.register_step_pre_hook(lambda *_: fired.append("pre"))
    opt.register_step_post_hook(lambda *_: fired.append("post"))
    train(net, opt, 1)
    assert fired == ["pre", "post"]


@pytest.mark.parametrize(
    "make",
    [
        lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=10),
        lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10),
        lambda opt: torch.optim.lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=3),
    ],
    ids=["OneCycleLR", "CosineAnnealingLR", "CyclicLR"],
)
def test_schedulers_of_torch(method, net, make):
    opt = method(net.named_parameters())
    scheduler = make(opt)
    seen = set()
    for step in range(6):
        train(net, opt, 1, first=step)
        scheduler.step()
        seen.add((opt.param_groups[0]["lr"], opt.param_groups[0]["betas"]))
    assert len(seen) == 6
    assert isinstance(opt.param_groups[0]["betas"], tuple)


def test_learning_rate_may_be_a_tensor_that_is_filled_in_place(method):
    nets = [make_net(), make_net()]
    rate = torch.tensor(0.01)
    opts = [method(nets[0].named_parameters(), lr=rate), method(nets[1].named_parameters(), lr=0.01)]
    for step, value in enumerate((0.01, 0.02)):
        rate.fill_(value)
        opts[1].param_groups[0]["lr"] = float(torch.tensor(value))
        for net, opt in zip(nets, opts, strict=True):
            train(net, opt, 1, first=step)
    assert torch.equal(*map(weights, nets))


@every_method
def test_learning_rate_zero_with_a_sample_updates_the_statistics_only(method, net):
    if method.name in ("ngvi", "bbb"):
        pytest.skip("its learning rate is that of mean and precision")
    opt = method(net.named_parameters(), lr=0.0)
    mean, precision = weights(net), opt.posterior().variance["0.weight"]
    train(net, opt, 3)
    assert torch.equal(weights(net), mean)
    assert not torch.equal(opt.posterior().variance["0.weight"], precision)


def test_averaged_model_outside_blocks(method, net):
    opt = method(net.named_parameters())
    average = torch.optim.swa_utils.AveragedModel(net)
    seen = []
    for step in range(3):
        train(net, opt, 1, first=step)
        average.update_parameters(net)
        seen.append(weights(net))
    assert torch.allclose(weights(average.module), torch.stack(seen).mean(0), atol=1e-6)


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize("mode", MODES)
def test_copies_go_on_identically(method, net, copier, mode):
    opt = method(net.named_parameters())
    train(net, opt, 3, mode=mode)
    other_net, other = copier((net, opt))
    for one, two in ((net, opt), (other_net, other)):
        train(one, two, 3, first=3, mode=mode)
        two.eval()
    assert torch.equal(weights(net), weights(other_net))
    assert same(snapshot(opt), snapshot(other))


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deepcopy", "pickle"]
)
def test_a_copy_made_in_drop_in_training_knows_what_holds_a_sample(method, net, copier):
    opt = method(net.named_parameters())
    train(net, opt, 1)
    net[2].bias.requires_grad_(False)
    net[2].bias.fill_(5.0)  # while it holds the mean: no sample of it is drawn
    opt.train()
    mean = opt.posterior().mean
    other_net, other = copier((net, opt))
    other.attach(other_net)
    for name in ("0.weight", "0.bias", "2.weight"):
        assert torch.equal(other_net.state_dict()[name], mean[name])
    other_net[0].requires_grad_(False)
    other.eval()
    assert torch.equal(other_net[0].weight, mean["0.weight"])
    assert torch.equal(other_net[2].weight, mean["2.weight"])
    assert other_net[2].bias.tolist() == [5.0, 5.0]


def test_a_copy_made_inside_a_block_knows_the_mean(method, net):
    opt = method(net.named_parameters())
    train(net, opt, 2)
    mean = weights(net)
    with opt.sampled_params():
        other_net, other = copy.deepcopy((net, opt))
        loss_of(net, 2).backward()
    opt.step()
    assert not torch.equal(weights(other_net), mean)
    assert torch.equal(torch.cat([m.double().flatten() for m in other.posterior().mean.values()]), mean)
    train(other_net, other, 1, first=2)
    assert torch.equal(weights(net), weights(other_net))


# Hyper-parameters

BAD = [
    ("lr", -0.1, "a number or a 1-element tensor, finite and at least 0"),
    ("lr", torch.ones(2), "a number or a 1-element tensor"),
    ("lr", math.nan, "a number or a 1-element tensor"),
    ("betas", (0.9, 1.0), r"a pair of numbers in \[0, 1\)"),
    ("betas", 0.9, "a pair of numbers"),
    ("num_data", 0, "a positive, finite number"),
    ("num_data", None, "a positive, finite number"),
    ("mc_samples", 0, "a whole number of at least 1"),
    ("mc_samples", 1.5, "a whole number of at least 1"),
    ("seed", -1, r"an integer in \[0, 2\*\*64\)"),
    ("seed", 0.5, "an integer"),
    ("antithetic", 1, "True or False"),
    ("maximize", "no", "True or False"),
    ("nonfinite", "ignore", "'raise' or 'skip'"),
    ("initial_precision", -1.0, "a positive, finite number"),
]
BAD_PRIOR = [
    ("prior_precision", 0.0, "a positive, finite number"),
    ("prior_precision", math.inf, "a positive, finite number"),
    ("initial_precision", 0.5, "at least prior_precision=1.0"),
    ("temperature", 1.5, r"in \[0, 1\]"),
    ("temperature", -0.1, r"in \[0, 1\]"),
]


@pytest.mark.parametrize(("name", "value", "rule"), BAD, ids=[f"{n}={v}" for n, v, _ in BAD])
def test_bad_hyperparameters(method, net, name, value, rule):
    with pytest.raises(ValueError, match=f"^{name} must be {rule}.*, got "):
        method(net.named_parameters(), **{name: value})


@every_method
@pytest.mark.parametrize(("name", "value", "rule"), BAD_PRIOR, ids=[f"{n}={v}" for n, v, _ in BAD_PRIOR])
def test_bad_hyperparameters_of_methods_with_a_prior(method, net, name, value, rule):
    if name == "initial_precision" and method.may_start_wider:
        assert method(net.named_parameters(), **{name: value}).param_groups[0][name] == value
    elif method.has_prior:
        options = {"prior_precision": 1.0} if method.own_prior and name != "prior_precision" else {}
        with pytest.raises(ValueError, match=f"^{name} must be {rule}.*, got "):
            method(net.named_parameters(), **options, **{name: value})
    else:
        with pytest.raises((TypeError, ValueError), match=name):
            method(net.named_parameters(), **{name: value} if name != "initial_precision" else {name: 0.0})


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("betas", [0.9, 0.99], (0.9, 0.99)),
        ("betas", np.array([0.9, 0.99]), (0.9, 0.99)),
        ("num_data", np.int64(40), 40),
        ("lr", np.float64(0.01), 0.01),
        ("mc_samples", 2.0, 2),
        ("mc_samples", np.int64(2), 2),
        ("seed", np.uint32(3), 3),
        ("maximize", np.False_, False),
    ],
    ids=repr,
)
def test_numbers_from_files_and_numpy_are_taken_as_pythons(method, net, name, value, taken):
    opt = method(net.named_parameters(), **{name: value})
    assert opt.param_groups[0][name] == taken
    assert type(opt.param_groups[0][name]) is type(taken)
    train(net, opt, 1)
    if not method.full and name not in ("mc_samples", "seed"):
        extra = torch.nn.Linear(2, 2)
        net.append(extra)
        opt.add_param_group({"params": list(extra.named_parameters(prefix="3")), name: value})
        assert type(opt.param_groups[1][name]) is type(taken)


def test_a_prior_may_be_numpys_number(method, net):
    if method.has_prior:
        assert method(net.named_parameters(), prior=np.int64(2)).param_groups[0]["prior_precision"] == 2


def test_antithetic_needs_pairs(method, net):
    with pytest.raises(ValueError, match="mc_samples must be even when antithetic=True, got 3"):
        method(net.named_parameters(), mc_samples=3, antithetic=True)


def test_a_bad_group_is_refused_and_not_added(method, net):
    method.skip_matrix("any group is refused: tests/optim/test_dense_von.py")
    opt = method(net[0].parameters(), model=net)
    for group, message in [
        ({"lr": -1.0}, "lr must be"),
        ({"perturb": "no"}, "perturb must be True or False"),
        ({"seed": 3}, "seed must be the same in all groups, got 3"),
        ({"mc_samples": 2}, "mc_samples must be the same in all groups, got 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            opt.add_param_group({"params": net[2].parameters(), **group})
    assert len(opt.param_groups) == 1


@every_method
def test_initial_precision_is_where_the_posterior_starts(method, net):
    opt = method(net.named_parameters(), initial_precision=123.0)
    assert opt.posterior().variance["0.weight"].flatten().tolist() == pytest.approx([1 / 123.0] * 24)
    if method.has_prior and not method.learned:
        default = method(net.named_parameters(), num_data=77)
        assert default.posterior().variance["0.weight"].flatten().tolist() == pytest.approx([1 / 77.0] * 24)


def test_registry_names_every_exported_optimiser():
    import bayesadam as ba
    import bayesadam.population

    exported = {v for v in vars(ba).values() if isinstance(v, type) and issubclass(v, torch.optim.Optimizer)}
    assert exported | {ba.population.BayesByBackprop} == set(OPTIMIZERS.values())
