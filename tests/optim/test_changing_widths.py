"""Hyper-parameters that determine the width, changed while the weights hold a sample of drop-in training."""

import pytest
import torch

import bayesadam as ba
from optim.conftest import batch, every_method, make_net, train

EXACT = {"rtol": 0, "atol": 0}


def predicted(net, opt):
    """A prediction puts other weights into the network, and then those that it held."""
    ba.predict(net, opt.posterior(), batch(0)[0], likelihood=ba.Gaussian(1.0), mc_samples=2)


@pytest.mark.parametrize("low_memory", [False, True])
@every_method
def test_the_mean_comes_back_after_a_prediction(method, low_memory, net):
    if low_memory:
        method.skip_matrix("it keeps its mean")
    opt = method(net.named_parameters(), low_memory=low_memory)
    train(net, opt, 3, mode="train")
    mean = opt.posterior().mean
    opt.param_groups[0]["num_data"] *= 2.0
    if "temperature" in opt.param_groups[0]:
        opt.param_groups[0]["temperature"] *= 0.5
    predicted(net, opt)
    opt.eval()  # a warning that weights were changed would be an error
    exact = {"rtol": 1e-6, "atol": 1e-6} if low_memory else EXACT
    torch.testing.assert_close({n: p.detach() for n, p in net.named_parameters()}, dict(mean), **exact)


@every_method
def test_a_step_after_a_change_and_a_prediction_is_that_without_the_prediction(method):
    found = []
    for predicts in (False, True):
        net = make_net()
        opt = method(net.named_parameters())
        train(net, opt, 2, mode="train")
        opt.param_groups[0]["num_data"] *= 2.0
        if predicts:
            predicted(net, opt)
        train(net, opt, 2, first=2, mode="train")
        found.append(opt.posterior().mean)
    torch.testing.assert_close(dict(found[0]), dict(found[1]), **EXACT)


@pytest.mark.parametrize("optimizer", [ba.Vadam, ba.Vprop, ba.IVON])
def test_predictions_between_batches_of_different_sizes(optimizer):
    """The optimiser finds the batch size from the training passes, and the width of Vadam depends on it."""
    torch.manual_seed(0)
    x, y = torch.randn(24, 3), torch.randn(24, 2)
    net = torch.nn.Linear(3, 2)
    opt = optimizer(net.named_parameters(), num_data=24)
    opt.attach(net)
    opt.train()
    for _ in range(3):
        for rows in torch.arange(24).split(10):
            opt.zero_grad()
            torch.nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
            opt.step()
        ba.predict(net, opt.posterior(), x, likelihood=ba.Gaussian(1.0), mc_samples=2)
    opt.eval()
