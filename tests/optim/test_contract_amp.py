"""Mixed precision with the real CPU GradScaler and autocast."""

import pytest
import torch

from optim.conftest import every_method, loss_of, make_net, same, snapshot, train, weights


def scaled_run(method, steps, *, samples=1, clip=None, scale=2.0**12, mode="block", scaled=True):
    net = make_net(torch.float64)
    opt = method(net.named_parameters(), mc_samples=samples)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scaled, growth_interval=3)
    if mode == "train":
        opt.train()
    for step in range(steps):
        opt.zero_grad()
        for sample in range(samples):
            if mode == "block":
                with opt.sampled_params():
                    scaler.scale(loss_of(net, 10 * step + sample)).backward()
            else:
                scaler.scale(loss_of(net, 10 * step + sample)).backward()
        if clip is not None:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(opt)
        scaler.update()
    opt.eval()
    return net, opt


@pytest.mark.parametrize(("mode", "samples"), [("block", 1), ("block", 3), ("train", 1)])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_scaled_gradients_give_the_same_run(method, mode, samples, clip):
    check_scaled(method, mode, samples, clip)


@every_method
def test_scaled_gradients_give_every_rule_the_same_run(method):
    check_scaled(method, "block", 3, 0.05)


def check_scaled(method, mode, samples, clip):
    """Powers of two scale exactly, so the runs agree to rounding of the norms."""
    plain, _ = scaled_run(method, 8, samples=samples, clip=clip, mode=mode, scaled=False)
    scaled, _ = scaled_run(method, 8, samples=samples, clip=clip, mode=mode)
    assert torch.allclose(weights(plain), weights(scaled), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("mode", "samples"), [("block", 1), ("block", 3), ("train", 1)])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_step_with_infinite_gradients_is_skipped_and_training_goes_on(method, mode, samples, unscale):
    net = make_net()
    opt = method(net.named_parameters(), mc_samples=samples)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    if mode == "train":
        opt.train()
    for step, bad in enumerate([False, True, False, False]):
        mean, before = opt.posterior().mean, snapshot(opt)[1]
        opt.zero_grad()
        for sample in range(samples):
            factor = torch.inf if bad and sample == 0 else 1.0
            if mode == "block":
                with opt.sampled_params():
                    scaler.scale(factor * loss_of(net, step)).backward()
            else:
                scaler.scale(factor * loss_of(net, step)).backward()
        if unscale:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        assert same(opt.posterior().mean, mean) == bad
        if bad:
            assert scaler.get_scale() == 2.0**3
            states = snapshot(opt)[1]
            assert same(
                [{k: v for k, v in s.items() if k != "mean"} for s in states],
                [{k: v for k, v in s.items() if k != "mean"} for s in before],
            )
    assert weights(net).isfinite().all()
    for state in opt.state.values():
        assert all(v.isfinite().all() for v in state.values() if torch.is_tensor(v))


@pytest.mark.parametrize("method_of_call", ["blocks", "closure"])
def test_autocast_samples_differ_within_one_region(method, method_of_call):
    """The cast cache would keep the first sample's weights in low precision."""
    net = make_net()
    opt = method(net.named_parameters(), mc_samples=4)
    outputs = []
    x = torch.ones(2, 3)

    def closure():
        outputs.append(net(x).detach().float().clone())
        loss = net(x).square().mean()
        loss.backward()
        return loss

    with torch.autocast("cpu", dtype=torch.bfloat16):
        mean_before = net(x).detach().float()
        if method_of_call == "closure":
            opt.step(closure)
        else:
            for _ in range(4):
                with opt.sampled_params():
                    closure()
            outputs.append(net(x).detach().float())
            assert torch.equal(outputs.pop(), mean_before)
            opt.step()
        after = net(x).detach().float()
    assert torch.stack(outputs).std(0).min() > 0
    assert not torch.equal(after, mean_before)


def test_autocast_with_bfloat16_parameters_trains(method):
    net = make_net(torch.bfloat16)
    opt = method(net.named_parameters())
    before = loss_of(net).item()
    train(net, opt, 60)
    assert sum(loss_of(net, s).item() for s in range(60)) / 60 < before
