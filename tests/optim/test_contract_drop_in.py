"""Drop-in training, ``train()`` and ``eval()``: who may write to weights that hold a sample."""

import copy

import pytest
import torch

import bayesadam as ba
from optim.methods import (
    Method,
    batch,
    by_name,
    closure_of,
    every_method,
    loss_of,
    made,
    make_net,
    methods,
    representatives,
    same,
    train,
    variance_of,
    weights,
)

drop_in_methods = methods(["vadam", "bayesadam", "ivon", "vogn"])


@drop_in_methods
def test_train_and_eval_are_idempotent(method):
    net, opt = made(method)
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


def test_a_closure_is_called_once():
    net, calls = make_net(), []
    opt = Method("vadam")(net)
    opt.train()
    loss = opt.step(closure_of(opt, lambda: (calls.append(1), loss_of(net))[1]))
    assert loss.item() > 0
    assert calls == [1]


@drop_in_methods
def test_gradients_accumulate_until_they_are_cleared(method):
    """Also where a validation pass at the mean comes between two micro-batches."""
    results = []
    for mode, validates in (("block", False), ("train", False), ("train", True)):
        net, opt = made(method)
        for step in range(2):
            opt.zero_grad()
            if mode == "block":
                with opt.sampled_params():
                    for micro in range(2):
                        loss_of(net, 2 * step + micro).backward()
            else:
                opt.train()
                loss_of(net, 2 * step).backward()
                if validates:
                    opt.eval()
                    with torch.no_grad():
                        net(batch()[0])
                    opt.train()
                loss_of(net, 2 * step + 1).backward()
            opt.step()
        opt.eval()
        results.append(weights(net))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@drop_in_methods
def test_changing_weights_that_hold_a_sample_is_an_error(method):
    net, opt = made(method)
    opt.train()
    with torch.no_grad():
        net[0].bias.add_(1.0)
    loss_of(net).backward()
    changed = weights(net)
    with pytest.raises(RuntimeError, match=r"parameter '0.bias' must hold the sample .* call train\(\) after loading"):
        opt.step()
    assert torch.equal(weights(net), changed)


@representatives
def test_changing_the_mean_between_steps_is_followed(method):
    net, opt = made(method, lr=0.0)
    train(net, opt, 1)
    for p in net.parameters():
        p.data.clamp_(-0.1, 0.1)  # bumps no version counter
    clamped = weights(net)
    train(net, opt, 1)
    assert torch.equal(weights(net), clamped)
    if not method.takes_second_derivatives:
        opt.train()
        opt.eval()
        assert torch.equal(weights(net), clamped)


@drop_in_methods
def test_weights_loaded_during_drop_in_training_are_the_mean_after_eval(method):
    net, opt = made(method)
    train(net, opt, 1)
    best = copy.deepcopy(net.state_dict())
    train(net, opt, 2, first=1, mode="train")
    net.load_state_dict(best)
    with pytest.warns(UserWarning, match=r"parameter '0.weight' did not hold the sample .*taken as the mean"):
        opt.eval()
    assert same(by_name(net), dict(best))
    assert same(dict(opt.posterior().mean), dict(best))
    opt.train()
    opt.eval()
    assert same(by_name(net), dict(best))


@every_method
def test_a_prediction_between_two_steps_changes_nothing(method):
    """It puts other weights into the network, and then those that it held."""
    results = []
    for predicts in (False, True):
        net, opt = made(method)
        for step in range(3):
            train(net, opt, 1, first=step, mode=method.mode)
            if predicts:
                ba.predict(net, opt.posterior(), batch()[0], likelihood=ba.Gaussian(1.0), mc_samples=2)
        opt.eval()
        results.append(weights(net))
    assert torch.equal(*results)


# Groups and parameters that change between eval() and train()


@methods(["vadam", "ivon", "vogn", "ivon eager", "von"])
def test_what_is_frozen_between_two_phases_keeps_its_values(method):
    net, opt = made(method)
    train(net, opt, 2, mode="train")
    opt.eval()
    net[0].requires_grad_(False)
    with torch.no_grad():
        net[0].weight.fill_(0.5)
    train(net, opt, 2, first=2, mode="train")
    assert (net[0].weight == 0.5).all()
    opt.eval()
    net[0].requires_grad_(True)
    train(net, opt, 1, first=4, mode="train")
    assert not (net[0].weight == 0.5).any()
    opt.eval()
    assert ((net[0].weight - 0.5).abs() < 0.3).all()


@methods(["vadam", "ivon", "vogn", "von"])
def test_a_group_may_lose_and_regain_its_noise_between_two_phases(method):
    net, opt = made(method, lr=0.0)
    mean = weights(net)
    train(net, opt, 2, mode="train")
    opt.eval()
    opt.param_groups[0]["perturb"] = False
    train(net, opt, 2, first=2, mode="train")
    assert torch.equal(weights(net), mean)
    opt.eval()
    opt.param_groups[0]["perturb"] = True
    opt.train()
    assert not torch.equal(weights(net), mean)
    opt.eval()
    assert torch.equal(weights(net), mean)


@methods(["vadam", "ivon"])
def test_widths_that_change_between_two_phases_are_those_of_the_next_sample(method):
    net, opt = made(method, torch.float64)
    train(net, opt, 3)
    mean, noise, widths = weights(net), [], []
    for num_data in (50, 5_000):
        for group in opt.param_groups:
            group["num_data"] = num_data
        opt.train()
        widths.append(variance_of(opt).sqrt())
        noise.append((weights(net) - mean) / widths[-1])
        opt.eval()
        assert torch.equal(weights(net), mean)
    torch.testing.assert_close(*noise, rtol=1e-6, atol=1e-9)
    assert (widths[0] > 1.1 * widths[1]).all()
