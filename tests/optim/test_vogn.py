"""VOGN beyond the contract: what its curvature is, sums and means, mixed-up losses, and when squares are taken."""

import pytest
import torch

import bayesadam as ba
from optim.methods import (
    MODES,
    Method,
    batch,
    in_blocks,
    loss_of,
    make_net,
    make_step,
    same,
    snapshot,
    train,
    weights,
)

X, Y = (t[:12] for t in batch(4, torch.float64))


def made(reduction="mean", **options):
    net = make_net(torch.float64)
    return net, Method("vogn")(net, curvature=ba.PerExampleSquares(net, reduction=reduction), **options)


def nll(net, x=X, y=Y, reduction="mean"):
    losses = (net(x) - y).square().sum(1)
    return losses.mean() if reduction == "mean" else losses.sum()


def hessian_of(net, opt):
    return torch.cat([opt.state[p]["hessian"].flatten() for p in net.parameters()])


def test_the_curvature_is_the_mean_of_the_examples_squared_gradients_at_the_sample():
    net, opt = made(betas=(0.0, 0.0))
    with opt.sampled_params():
        sample = make_net(torch.float64)
        sample.load_state_dict(net.state_dict())
        nll(net).backward()
    opt.step()
    expected = 0.0
    for i in range(len(X)):
        grads = torch.autograd.grad(nll(sample, X[i : i + 1], Y[i : i + 1]), sample.parameters())
        expected += torch.cat([grad.flatten() for grad in grads]).square() / len(X)
    torch.testing.assert_close(hessian_of(net, opt), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("mode", "samples"), [("block", 3), ("closure", 3), ("train", 1)])
@pytest.mark.parametrize("clip", [False, True])
def test_a_summed_loss_makes_the_same_steps(mode, samples, clip):
    runs = []
    for reduction in ("mean", "sum"):
        net, opt = made(reduction, mc_samples=samples)
        for _ in range(3):
            if mode == "block":
                in_blocks(opt, lambda net=net, reduction=reduction: nll(net, reduction=reduction))
                if clip:  # the gradient after the block is the mean's
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                opt.step()
            else:
                make_step(opt, lambda net=net, reduction=reduction: nll(net, reduction=reduction), mode)
        opt.eval()
        runs.append(weights(net))
    torch.testing.assert_close(*runs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("size", [0.0, 1e-5])
def test_a_tensor_with_hardly_any_mean_gradient_is_scaled_like_the_others(size):
    """Of a mean gradient of zero, the common factor is that of the others; of a small one, it is its own."""
    x = torch.tensor([[1.0 + size, 1.0], [-1.0, 1.0]], dtype=torch.float64)

    class Parts(torch.nn.Sequential):
        def forward(self, x):
            return self[0](x[:, :1]) + self[1](x[:, 1:])

    def hessians(scales):
        parts = Parts(*(torch.nn.Linear(1, 1, bias=False).double() for _ in range(2)))
        opt = Method("vogn")(parts, num_data=1e12, betas=(0.0, 0.0))
        with opt.sampled_params():
            parts(x).mean().backward()
        for part, scale in zip(parts, scales, strict=True):
            part.weight.grad *= scale
        opt.step()
        return hessian_of(parts, opt).tolist()

    balanced, plain = hessians((1.0, 1.0))
    assert (balanced, plain) == pytest.approx((0.5 * ((1.0 + size) ** 2 + 1.0), 1.0))
    # Clipped as one, all curvature is scaled by the square of one factor.
    assert hessians((0.25, 0.25)) == pytest.approx([balanced / 16, plain / 16], rel=1e-9)
    if size:
        assert hessians((3.0, 1.0)) == pytest.approx([9 * balanced, plain], rel=1e-9)


@pytest.mark.parametrize("zero_grad", [None, "model", "optimizer"])
def test_squares_are_kept_between_micro_batches_as_gradients_are(zero_grad):
    """Where a validation pass comes between two micro-batches; and forgotten when the gradients are."""
    results = []
    for between in (False, True):
        net, opt = made()
        opt.train()
        if between or zero_grad is None:
            (nll(net, X[:6], Y[:6]) / 2).backward()
        if between:
            opt.eval()
            if zero_grad is not None:
                (net if zero_grad == "model" else opt).zero_grad()
            opt.train()
        (nll(net, X[6:], Y[6:]) / 2).backward()
        opt.step()
        results.append((hessian_of(net, opt), weights(net)))
    assert same(*results)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_mixed_up_loss_is_refused_where_it_can_be_seen(reduction):
    other = {"mean": "sum", "sum": "mean"}[reduction]
    net, opt = made(reduction)
    before, mean = snapshot(opt)[0], weights(net)
    message = f"the loss must be the {reduction} of the examples' losses, got their {other}"
    with pytest.raises(ValueError, match=message), opt.sampled_params():
        opt.backward(nll(net, reduction=other))
    with pytest.raises(ValueError, match=message):
        make_step(opt, lambda: nll(net, reduction=other), "closure")
    assert same((snapshot(opt)[0], weights(net)), (before, mean))
    make_step(opt, lambda: nll(net, reduction=reduction))
    opt.step(lambda: (opt.zero_grad(), nll(net, reduction=reduction).mul(0.5).backward())[1])  # is no mistake


def test_layers_of_the_model_may_be_added_later():
    net = make_net()
    net[2].requires_grad_(False)
    opt = Method("vogn")(net, net[0].named_parameters("0"))
    train(net, opt, 2)
    last = weights(net[2])
    net[2].requires_grad_(True)
    opt.add_param_group({"params": list(net[2].named_parameters("2"))})
    train(net, opt, 2, first=2)
    assert not torch.equal(weights(net[2]), last)


@pytest.mark.parametrize("mode", MODES)
def test_hooks_are_there_only_while_the_weights_hold_a_sample(mode):
    net, opt = made()
    seen = []

    def hooks():
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())

    def compute():
        seen.append(hooks())
        return loss_of(net)

    make_step(opt, compute, mode)
    opt.eval()
    assert seen[0] > 0
    assert hooks() == 0
