"""The three ways to train are one training, equal to the bit, at samples of the posterior."""

import math

import pytest
import torch
from torch import nn

from bayesadam import noise
from optim.methods import (
    EVERY,
    RATES,
    by_name,
    closure_of,
    loss_of,
    made,
    make_net,
    methods,
    representatives,
    same,
    snapshot,
    train,
    ways,
    weights,
)


@ways(EVERY, ["closure", "train"])
def test_the_ways_agree_to_the_bit(method, mode):
    results = []
    for way in ("block", mode):
        net, opt = made(method)
        train(net, opt, 5, mode=way)
        opt.eval()
        results.append((weights(net), snapshot(opt)))
    assert same(*results)


@representatives
@pytest.mark.parametrize("options", [{"mc_samples": 3}, {"mc_samples": 4, "antithetic": True}], ids=str)
def test_they_agree_for_several_samples(method, options):
    nets = [make_net(), make_net()]
    for net, mode in zip(nets, ("block", "closure"), strict=True):
        train(net, method(net, **options), 3, mode=mode)
    assert torch.equal(*map(weights, nets))


@methods(["vadam", "von exact"])
def test_a_closure_gives_the_mean_loss_over_the_samples(method):
    net, losses = make_net(), []
    opt = method(net, mc_samples=3)

    def compute():
        losses.append(loss_of(net))
        return losses[-1]

    result = opt.step(closure_of(opt, compute))
    assert result.item() == pytest.approx(sum(loss.item() for loss in losses) / 3)
    assert result.grad_fn is None
    assert len({loss.item() for loss in losses}) == 3


@methods([key for key in EVERY if "bayesadam" not in key])
def test_a_sample_is_the_mean_plus_sigma_times_the_noise_of_its_coordinates(method):
    """BayesAdam's noise is wider than its posterior, and is in the slow loop of test_bayesadam.py."""
    net, opt = made(method, seed=11, mc_samples=2)
    train(net, opt, 3)
    q = opt.posterior()
    for sample in range(2):
        with opt.sampled_params():
            for index, (name, p) in enumerate(net.named_parameters()):
                eps = noise.normal(11, 3, sample, index, p.shape)
                torch.testing.assert_close(
                    p.detach(), q.mean[name] + q.variance[name].sqrt() * eps, rtol=1e-6, atol=1e-7
                )
        assert same(by_name(net), dict(q.mean))


@methods(["vadam", "ivon", "ivon eager", "bbb"])
def test_noise_of_a_large_tensor_has_the_rules_mean_and_variance(method):
    """It is drawn in several blocks; that it is the noise of its coordinates, too."""
    net = nn.Linear(noise.BLOCK + noise.TILE + 7, 1, bias=False)
    nn.init.constant_(net.weight, 0.3)
    opt = method(net, seed=3)
    with opt.sampled_params():
        (0.1 * net.weight.sum()).backward()
    opt.step()
    q = opt.posterior()
    with opt.sampled_params():
        z = ((net.weight.detach() - q.mean["weight"]) / q.variance["weight"].sqrt()).double()
    torch.testing.assert_close(z, noise.normal(3, 1, 0, 0, z.shape).double(), rtol=1e-4, atol=1e-4)
    count = z.numel()
    assert abs(z.mean().item()) * math.sqrt(count) < 4
    assert abs(z.square().mean().item() - 1) * math.sqrt(count / 2) < 4
    assert abs(1.01 * z.square().mean().item() - 1) * math.sqrt(count / 2) > 4.5  # a variance 1% off is seen


@representatives
def test_the_seed_decides_and_the_global_generator_is_left_alone(method):
    runs = []
    for seed in (0, 0, 1):
        net = make_net()
        before = torch.get_rng_state()
        train(net, method(net, seed=seed), 3)
        assert torch.equal(torch.get_rng_state(), before)
        runs.append(weights(net))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@methods(RATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_decreases(method, dtype):
    net = make_net(dtype)
    before = loss_of(net).item()
    train(net, method(net), 40)
    assert sum(loss_of(net, step).item() for step in range(40)) / 40 < before
