"""``step(closure)`` with gradients from before: a closure that does not clear them adds to them."""

import pytest
import torch

import bayesadam as ba
from optim.conftest import loss_of, make_net, same, snapshot, train, weights

METHODS = {
    "vadam": lambda net, **options: ba.Vadam(net.parameters(), 0.01, num_data=50, **options),
    "ivon": lambda net, **options: ba.IVON(net.parameters(), 0.1, num_data=50, **options),
    "von": lambda net, **options: ba.VON(net.parameters(), 0.05, num_data=50, **options),
    "von full": lambda net, **options: ba.VON(net.parameters(), 0.05, num_data=50, covariance="full", **options),
}
every_method = pytest.mark.parametrize("method", METHODS)


def vogn(net, **options):
    return ba.VOGN(net.parameters(), 0.05, num_data=50, curvature=ba.PerExampleSquares(net), **options)


def started(make, samples):
    """A run after a step, without gradients."""
    net = make_net(torch.float64)
    opt = make(net, mc_samples=samples)
    train(net, opt, 1)
    net.zero_grad()
    return net, opt


@pytest.mark.parametrize("samples", [1, 2])
@every_method
def test_gradients_from_before_are_part_of_every_sample(method, samples):
    """Two backward passes at the mean and one at the sample, as a closure that makes all three itself."""
    net, opt = started(METHODS[method], samples)
    loss_of(net, 1).backward()
    loss_of(net, 2).backward()

    def adds():
        loss = loss_of(net, 3)
        loss.backward()
        return loss

    opt.step(adds)

    other, reference = started(METHODS[method], samples)
    mean = [parameter.detach().clone() for parameter in other.parameters()]

    def makes_all():
        reference.zero_grad()
        drawn = [parameter.detach().clone() for parameter in other.parameters()]
        put(other, mean)
        loss_of(other, 1).backward()
        loss_of(other, 2).backward()
        put(other, drawn)
        loss = loss_of(other, 3)
        loss.backward()
        return loss

    reference.step(makes_all)
    torch.testing.assert_close(weights(net), weights(other), rtol=1e-13, atol=1e-15)
    for found, expected in zip(snapshot(opt)[1], snapshot(reference)[1], strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-15)

    only, alone = started(METHODS[method], samples)
    alone.step(lambda: (loss_of(only, 3).backward(), loss_of(only, 3).detach())[1])
    assert (weights(net) - weights(only)).abs().max() > 1e-4


@torch.no_grad()
def put(net, values):
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.copy_(value)


CLEARS = {
    "opt.zero_grad()": lambda net, opt: opt.zero_grad(),
    "opt.zero_grad(set_to_none=False)": lambda net, opt: opt.zero_grad(set_to_none=False),
    "model.zero_grad()": lambda net, opt: net.zero_grad(),
    "model.zero_grad(set_to_none=False)": lambda net, opt: net.zero_grad(set_to_none=False),
}


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("clear", CLEARS)
@pytest.mark.parametrize("method", [*METHODS, "vogn"])
def test_a_closure_that_clears_has_nothing_of_before(method, clear, samples):
    """To the bit."""
    runs = []
    for before in (0, 2):
        net, opt = started(METHODS.get(method, vogn), samples)
        for step in range(before):
            loss_of(net, 5 + step).backward()

        def closure(net=net, opt=opt):
            CLEARS[clear](net, opt)
            loss = loss_of(net, 3)
            loss.backward()
            return loss

        opt.step(closure)
        runs.append((weights(net), snapshot(opt)))
    assert same(*runs)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_method_that_collects_curvature_says_where_to_accumulate(samples):
    net, opt = started(vogn, samples)
    loss_of(net, 1).backward()
    before, grads = (weights(net), snapshot(opt)), [p.grad.clone() for p in net.parameters()]

    def adds():
        loss = loss_of(net, 3)
        loss.backward()
        return loss

    message = (
        r"the closure must clear the gradients \(optimizer\.zero_grad\(\)\) for a method that collects curvature with "
        r"them, got gradients from before step\(closure\): accumulate over micro-batches inside the closure, or in "
        r"sampled_params\(\)"
    )
    with pytest.raises(RuntimeError, match=message):
        opt.step(adds)
    assert same((weights(net), snapshot(opt)), before)
    if samples > 1:  # the first sample has a copy
        assert all(torch.equal(p.grad, grad) for p, grad in zip(net.parameters(), grads, strict=True))

    def accumulates():
        opt.zero_grad()
        for step in (1, 3):
            (loss_of(net, step) / 2).backward()

    opt.step(accumulates)
    assert not torch.equal(weights(net), before[0])


@pytest.mark.parametrize("samples", [1, 2])
def test_second_derivatives_are_of_the_closures_loss_alone(samples):
    """The method makes gradients itself: those from before are hidden."""
    runs = []
    for before in (0, 2):
        net, opt = started(lambda net, **o: ba.VON(net.parameters(), 0.05, num_data=50, hessian="exact", **o), samples)
        for step in range(before):
            loss_of(net, 5 + step).backward()
        opt.step(lambda net=net: loss_of(net, 3))
        runs.append((weights(net), snapshot(opt)))
    assert same(*runs)
