"""Sampling blocks and closures: what happens to samples, gradients and curvature between two steps."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import bayesadam as ba
from optim.methods import (
    Method,
    backward,
    batch,
    closure_of,
    differentiates,
    every_method,
    in_blocks,
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


@representatives
@pytest.mark.parametrize(("error", "samples"), [(KeyboardInterrupt, 1), (ValueError, 3)])
def test_an_exception_inside_a_block_leaves_no_trace(method, error, samples):
    results = []
    for interrupted in (False, True):
        net, opt = made(method, mc_samples=samples)
        train(net, opt, 2)
        for sample in range(samples):
            if interrupted:
                mean, grads, before = weights(net), [p.grad for p in net.parameters()], snapshot(opt)
                with pytest.raises(error), opt.sampled_params():
                    backward(opt, loss_of(net, 7))
                    raise error
                assert torch.equal(weights(net), mean)
                assert all(p.grad is grad for p, grad in zip(net.parameters(), grads, strict=True))
                assert same(snapshot(opt), before)
            with opt.sampled_params():
                backward(opt, loss_of(net, 2 + sample))
        opt.step()
        results.append(weights(net))
    assert torch.equal(*results)


@pytest.mark.parametrize("begin", [ba.Vadam.train, lambda opt: opt.sampled_params().__enter__()])
def test_an_error_while_samples_are_drawn_puts_the_mean_back(begin):
    drawn, overlapping = torch.ones(3, dtype=torch.float64), torch.ones(1).expand(3)  # which cannot be written to
    opt = ba.Vadam([nn.Parameter(drawn), nn.Parameter(overlapping)], num_data=10.0)
    with pytest.raises(RuntimeError, match="single memory location"):
        begin(opt)
    assert drawn.eq(1.0).all()


@representatives
def test_a_failing_closure_discards_its_samples(method):
    net, opt = made(method, mc_samples=3)
    mean, calls = weights(net), []

    def compute():
        calls.append(1)
        if len(calls) == 2:
            raise ValueError
        return loss_of(net)

    with pytest.raises(ValueError, match="^$"):
        opt.step(closure_of(opt, compute))
    assert torch.equal(weights(net), mean)
    opt.step(closure_of(opt, compute))
    assert len(calls) == 5


@methods(["vadam", "ivon eager"])
@pytest.mark.parametrize("name", ["load_state_dict", "add_param_group"])
def test_a_call_that_ends_a_block_is_an_error_and_changes_no_weight(method, name):
    net, opt = made(method)
    opt.attach(net)
    mean = weights(net)
    given = opt.state_dict() if name == "load_state_dict" else {"params": [("new", torch.zeros(1))]}
    with pytest.raises(RuntimeError, match=rf"{name}\(\) must be called outside"), opt.sampled_params():
        getattr(opt, name)(given)
    assert torch.equal(weights(net), mean)
    opt.zero_grad()
    train(net, opt, 1)


@representatives
def test_zero_grad_discards_samples_outside_of_a_block_and_not_inside(method):
    net, opt = made(method, mc_samples=2)
    with opt.sampled_params():
        backward(opt, loss_of(net))
        first = weights(net)
    opt.zero_grad()
    for _ in range(2):
        with opt.sampled_params():
            backward(opt, loss_of(net))
            opt.zero_grad()
            backward(opt, loss_of(net))
            assert not torch.equal(weights(net), first)  # what was discarded is not drawn again
    opt.step()


@representatives
def test_earlier_gradients_are_hidden_and_the_mean_over_samples_is_left(method):
    net, opt = made(method, mc_samples=2)
    for p in net.parameters():
        p.grad = torch.full_like(p, 1e6)
    seen = []
    for step in range(2):
        with opt.sampled_params():
            assert all(p.grad is None for p in net.parameters())
            backward(opt, loss_of(net, step))
            seen.append([p.grad.clone() for p in net.parameters()])
        for p, *each in zip(net.parameters(), *seen, strict=True):
            torch.testing.assert_close(p.grad, torch.stack(each).mean(0), rtol=1e-6, atol=1e-7)


@methods(["vadam", "ivon", "vogn", "von exact"])
def test_micro_batches_inside_a_block_are_one_batch(method):
    nets = [make_net(torch.float64), make_net(torch.float64)]
    for net, parts in zip(nets, (1, 4), strict=True):
        opt = method(net)
        for step in range(2):
            x, y = batch(step, torch.float64)
            with opt.sampled_params():
                for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
                    backward(opt, mse_loss(net(a), b) / parts)
            opt.step()
    torch.testing.assert_close(*map(weights, nets), rtol=1e-10, atol=1e-12)


@every_method
@pytest.mark.parametrize("samples", [1, 3])
def test_scaling_the_gradients_between_block_and_step_scales_the_curvature(method, samples):
    """Clipping by norm, unscaling: the step must be that of the scaled loss, curvature included."""
    nets = [make_net(torch.float64), make_net(torch.float64)]
    for net, scale in zip(nets, (1.0, 0.25), strict=True):
        opt = method(net, mc_samples=samples)
        for step in range(3):
            in_blocks(opt, lambda net=net, scale=scale, step=step: scale * loss_of(net, step))
            if scale == 1.0:
                for p in net.parameters():
                    p.grad.mul_(0.25)
            opt.step()
    torch.testing.assert_close(*map(weights, nets), rtol=1e-9, atol=1e-12)


@ways(["vadam", "ivon", "vogn"])
def test_training_goes_on_after_inference_mode(method, mode):
    """Nothing that is made there and kept may be an inference tensor."""
    nets = [make_net(), make_net()]
    for net, visited in zip(nets, (True, False), strict=True):
        opt = method(net)
        with torch.inference_mode(visited), opt.sampled_params():
            net(batch()[0])
        opt.zero_grad()  # this sample is not drawn again
        if mode == "train" and visited:
            with torch.inference_mode():
                opt.train()
                opt.eval()
        train(net, opt, 2, mode=mode)
        opt.eval()
        saved = opt.state_dict()
        with torch.inference_mode(visited):
            opt.load_state_dict(saved)
        train(net, opt, 1, first=2, mode=mode)
    assert torch.equal(*map(weights, nets))


def test_a_block_is_a_decorator_and_counts_when_it_is_entered():
    net, plain = make_net(), make_net()
    opt = Method("vadam")(net)
    never = opt.sampled_params()

    @opt.sampled_params()
    def compute(step):
        loss_of(net, step).backward()

    for step in range(2):
        opt.zero_grad()
        compute(step)
        opt.step()
    del never
    train(plain, Method("vadam")(plain), 2)
    assert torch.equal(weights(net), weights(plain))


# Closures and gradients from before


def with_gradients(method, samples, before):
    """A run after a step, with gradients of some losses at the mean."""
    net, opt = made(method, torch.float64, mc_samples=samples)
    train(net, opt, 1)
    net.zero_grad()
    for step in range(before):
        loss_of(net, 5 + step).backward()
    return net, opt


def adds(net):
    """A closure that does not clear the gradients."""
    loss = loss_of(net, 3)
    loss.backward()
    return loss


@methods(["vadam", "ivon", "vogn", "von exact"])
@pytest.mark.parametrize("clear", ["optimizer", "model", "model in place"])
def test_a_closure_that_clears_has_nothing_of_before(method, clear):
    """Methods that differentiate the loss themselves hide what is there."""
    runs = []
    for before in (0, 2):
        net, opt = with_gradients(method, 2, before)

        def closure(net=net, opt=opt):
            opt.zero_grad() if clear == "optimizer" else net.zero_grad(set_to_none=clear == "model")
            loss = loss_of(net, 3)
            if not differentiates(opt):
                loss.backward()
            return loss

        opt.step(closure)
        runs.append((weights(net), snapshot(opt)))
    assert same(*runs)


@methods(["vadam", "ivon", "vogn"])
@pytest.mark.parametrize("samples", [1, 2])
def test_a_closure_that_does_not_clear_is_refused(method, samples):
    """Gradients from before are no gradients at the sample, and have no curvature."""
    net, opt = with_gradients(method, samples, 1)
    before, gradient = (weights(net), snapshot(opt)), net[0].weight.grad.clone()
    with pytest.raises(RuntimeError, match="closure must clear the gradients"):
        opt.step(lambda: adds(net))
    assert same((weights(net), snapshot(opt)), before)
    assert torch.equal(net[0].weight.grad, gradient)

    def accumulates():
        opt.zero_grad()
        for step in (1, 3):
            (loss_of(net, step) / 2).backward()

    opt.step(accumulates)
    assert not torch.equal(weights(net), before[0])


@methods(["vadam", "ivon", "vogn"])
@pytest.mark.parametrize("samples", [1, 2])
def test_blocks_beyond_the_samples_of_a_step_warn(method, samples):
    """They are averaged where samples are, and otherwise take the place of those before."""
    ends = []
    for surplus in (0, 1):
        net, opt = made(method, mc_samples=samples)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(samples + surplus):
                with opt.sampled_params():
                    loss_of(net, number).backward()
        assert [w.filename for w in caught] == [__file__] * surplus
        opt.step()
        ends.append(weights(net))
        assert opt.state[net[0].weight]["step"] == 1
    assert not torch.equal(*ends)


@pytest.mark.parametrize("cls", [ba.Vadam, ba.IVON])
def test_backward_of_ordinary_methods_is_that_of_the_loss(cls):
    runs = []
    for handed_over in (False, True):
        net = make_net()
        opt = cls(net.named_parameters(), num_data=50)
        for step in range(2):
            with opt.sampled_params():
                loss = loss_of(net, step)
                opt.backward(loss) if handed_over else loss.backward()
            opt.step()
        runs.append((weights(net), snapshot(opt)))
    assert same(*runs)
