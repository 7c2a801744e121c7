"""Parameters that get or lose their noise during drop-in training: they are frozen, unfrozen, added, or no longer
perturbed.
"""

import torch

from optim.conftest import every_method, loss_of, train, weights

EXACT = {"rtol": 0, "atol": 0}


def held(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


@every_method
def test_the_mean_stays_when_a_group_is_no_longer_perturbed(method, net):
    opt = method(net.named_parameters(), lr=0.0)
    mean = held(net)
    train(net, opt, 2, mode="train")
    opt.param_groups[0]["perturb"] = False
    torch.testing.assert_close(opt.posterior().mean, mean, **EXACT)
    for step in (2, 3):
        train(net, opt, 1, first=step, mode="train")
        torch.testing.assert_close(held(net), mean, **EXACT)
        torch.testing.assert_close(opt.posterior().mean, held(net), **EXACT)
    opt.param_groups[0]["perturb"] = True
    train(net, opt, 1, first=4, mode="train")
    assert not any(torch.equal(p, mean[name]) for name, p in net.named_parameters())
    opt.eval()
    torch.testing.assert_close(held(net), mean, **EXACT)


def test_training_goes_on_from_the_mean_when_a_group_is_no_longer_perturbed(method, net):
    opt = method(net.named_parameters())
    train(net, opt, 2, mode="train")
    opt.param_groups[0]["perturb"] = False
    train(net, opt, 2, first=2, mode="train")
    moved = weights(net)
    opt.eval()
    assert torch.equal(weights(net), moved)
    before = loss_of(net)
    train(net, opt, 20, mode="train")
    assert loss_of(net) < before
