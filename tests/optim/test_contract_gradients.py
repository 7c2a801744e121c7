"""Gradients as they come: not finite, sparse, to be maximised; and mixed precision with the real CPU GradScaler."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from optim.methods import (
    REPRESENTATIVES,
    Method,
    backward,
    closure_of,
    every_method,
    in_blocks,
    loss_of,
    made,
    make_net,
    make_step,
    mean_of,
    methods,
    representatives,
    same,
    snapshot,
    train,
    ways,
    weights,
)


@ways([*REPRESENTATIVES, "von backtracking"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(method, mode, bad):
    net, opt = made(method)
    train(net, opt, 2, mode=mode)
    mean, before, values = mean_of(opt), snapshot(opt), weights(net)
    message = r"gradient of parameter '2.weight' must be finite, got inf or nan"
    with pytest.raises(FloatingPointError, match=message):
        make_step(opt, lambda: loss_of(net) + bad * net[2].weight[0, 1], mode)
    assert same((snapshot(opt), weights(net), mean_of(opt)), (before, values, mean))
    train(net, opt, 1, first=2, mode=mode)  # the refused sample is not counted
    other = make_net()
    train(other, method(other), 3, mode=mode)
    assert torch.equal(weights(net), weights(other))


@methods(["vadam", "ivon eager", "vogn", "von exact"])
def test_steps_with_bad_gradients_can_be_skipped_and_are_counted(method):
    net, opt = made(method, nonfinite="skip")
    for step, bad in enumerate([False, True, False, True]):
        mean, states = weights(net), snapshot(opt)[1]
        in_blocks(opt, lambda step=step: loss_of(net, step))
        if bad:
            net[0].bias.grad[2] = math.nan
        opt.step()
        assert torch.equal(weights(net), mean) == bad
        assert not bad or same(snapshot(opt)[1], states)
    assert opt.param_groups[0]["skipped_steps"] == 2


def test_a_training_that_diverges_says_what_to_change():
    """The noise at the start multiplies from layer to layer, and IVON's default rate does the rest."""
    wide = [nn.Linear(256, 256) for _ in range(3)]
    net = nn.Sequential(nn.Linear(32, 256), *wide, nn.Linear(256, 8))
    opt = Method("ivon")(net, num_data=50)
    x, y = torch.randn(8, 32), torch.randn(8, 8)
    hint = r"must be finite, got inf or nan; .* use a smaller lr than 0.1, .* a larger initial_precision"
    with pytest.raises(FloatingPointError, match=hint):
        for _ in range(20):
            make_step(opt, lambda: nn.functional.mse_loss(net(x), y))


@methods(["ivon", "ivon eager", "von elementwise"])
@pytest.mark.parametrize("size", [3e5, 1e12, 1e18])
def test_a_huge_finite_gradient_leaves_everything_finite(method, size):
    net, x = nn.Linear(2, 1), torch.randn(8, 2)
    opt = method(net, lr=0.1, num_data=100)
    for step in range(8):
        make_step(opt, lambda step=step: size * (step == 3) * net(x).mean() + (net(x) - 1.0).square().mean())
        q = opt.posterior()
        for value in (*net.parameters(), *q.mean.values(), *q.variance.values()):
            assert value.isfinite().all()


@methods(["vadam", "vogn", "von"])
def test_sparse_gradients_are_refused_by_name(method):
    table = nn.Embedding(5, 3, sparse=True)
    opt = method(table)
    before = table.weight.detach().clone()
    with pytest.raises(RuntimeError, match="gradient of parameter 'weight' must be dense, got a sparse one"):
        with opt.sampled_params():  # where curvature is kept, its end already refuses
            table(torch.tensor([1, 2])).square().sum().backward()
        opt.step()
    assert torch.equal(table.weight, before)


@representatives
@pytest.mark.parametrize("samples", [1, 2])
def test_maximize_negates(method, samples):
    nets = [make_net(), make_net()]
    for net, sign in zip(nets, (1.0, -1.0), strict=True):
        opt = method(net, maximize=sign < 0, mc_samples=samples)
        for step in range(3):
            make_step(opt, lambda net=net, sign=sign, step=step: sign * loss_of(net, step))
    assert torch.equal(*map(weights, nets))


# Mixed precision


def scaled_run(method, *, samples=1, clip=None, mode="block", scaled=True):
    net, opt = made(method, torch.float64, mc_samples=samples)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=scaled, growth_interval=3)
    if mode == "train":
        opt.train()
    for step in range(5):
        if mode == "train":
            opt.zero_grad()
            scaler.scale(loss_of(net, step)).backward()
        else:
            in_blocks(opt, lambda step=step: scaler.scale(loss_of(net, step)))
        if clip is not None:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(opt)
        scaler.update()
    opt.eval()
    return weights(net)


def assert_the_scale_does_not_matter(method, **options):
    """Powers of two scale exactly, so the runs agree to rounding of the norms."""
    plain, scaled = (scaled_run(method, scaled=scaled, **options) for scaled in (False, True))
    torch.testing.assert_close(plain, scaled, rtol=1e-12, atol=1e-14)


@every_method
def test_scaled_and_clipped_gradients_give_the_same_run(method):
    assert_the_scale_does_not_matter(method, samples=3, clip=0.05)
    clipped, free = (scaled_run(method, samples=3, clip=clip) for clip in (0.05, 1e9))
    assert not torch.equal(clipped, free)


@ways(["vadam", "ivon", "vogn", "von"], ["block", "train"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_scaled_gradients_of_one_sample_give_the_same_run(method, mode, clip):
    assert_the_scale_does_not_matter(method, clip=clip, mode=mode)


@pytest.mark.parametrize(("samples", "unscale"), [(1, True), (1, False), (3, True)])
@ways(REPRESENTATIVES, ["block", "train"])
def test_a_step_with_infinite_gradients_is_skipped_and_training_goes_on(method, mode, samples, unscale):
    if mode == "train" and samples > 1:
        return
    net, opt = made(method, mc_samples=samples)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    for step, bad in enumerate([False, True, False]):
        if mode == "train":
            opt.train()
        mean, before = mean_of(opt), snapshot(opt)[1]
        opt.zero_grad()
        for sample in range(samples):
            with opt.sampled_params() if mode == "block" else nullcontext():
                backward(opt, scaler.scale((torch.inf if bad and sample == 0 else 1.0) * loss_of(net, step)))
        if unscale:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        assert torch.equal(mean_of(opt), mean) == bad
        if bad:
            assert scaler.get_scale() == 2.0**3
            assert same(snapshot(opt)[1], before)
    assert weights(net).isfinite().all()


@representatives
@pytest.mark.parametrize("way", ["blocks", "closure"])
def test_samples_differ_within_one_region_of_autocast(method, way):
    """The cast cache would keep the first sample's weights in low precision."""
    net, outputs, x = make_net(), [], torch.ones(2, 3)
    opt = method(net, mc_samples=4)

    def compute():
        outputs.append(net(x).detach().float().clone())
        return net(x).square().mean()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        at_the_mean = net(x).detach().float()
        if way == "closure":
            opt.step(closure_of(opt, compute))
        else:
            in_blocks(opt, compute)
            assert torch.equal(net(x).detach().float(), at_the_mean)
            opt.step()
        after = net(x).detach().float()
    assert torch.stack(outputs).std(0).min() > 0
    assert not torch.equal(after, at_the_mean)
