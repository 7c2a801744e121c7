"""VOGN beyond the contract: the module it is given, sums, mixed-up losses, and what its curvature is."""

import copy
import itertools

import pytest
import torch

import bayesadam as ba
from optim.conftest import loss_of, make_net, same, snapshot, train, weights


def data(count=12, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(count, 3, generator=generator).to(dtype), torch.randn(count, 2, generator=generator).to(dtype)


def make(reduction="mean", **options):
    net = make_net(torch.float64)
    squares = ba.PerExampleSquares(net, reduction=reduction)
    return net, ba.VOGN(
        net.named_parameters(), lr=0.05, num_data=50, curvature=squares, **{"recipe": "paper", **options}
    )


def nll(net, x, y, reduction="mean"):
    losses = (net(x) - y).square().sum(1)
    return losses.mean() if reduction == "mean" else losses.sum()


def test_the_curvature_is_the_mean_of_the_examples_squared_gradients_at_the_sample():
    net, opt = make(betas=(0.0, 0.0))
    x, y = data()
    with opt.sampled_params():
        sample = copy.deepcopy(net)
        nll(net, x, y).backward()
    opt.step()
    squares = [torch.zeros_like(p) for p in sample.parameters()]
    for i in range(len(x)):
        for total, grad in zip(
            squares, torch.autograd.grad(nll(sample, x[i : i + 1], y[i : i + 1]), sample.parameters()), strict=True
        ):
            total += grad.square() / len(x)
    for p, expected in zip(net.parameters(), squares, strict=True):
        torch.testing.assert_close(opt.state[p]["hessian"], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("mode", ["block", "closure", "train"])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("samples", [1, 3])
def test_a_summed_loss_makes_the_same_steps(mode, clip, samples):
    if mode == "train" and samples > 1:
        pytest.skip("drop-in training has one sample")
    x, y = data()
    runs = []
    for reduction in ("mean", "sum"):
        net, opt = make(reduction, mc_samples=samples)
        if mode == "train":
            opt.train()
        for _ in range(4):
            if mode == "block":
                for _ in range(samples):
                    with opt.sampled_params():
                        nll(net, x, y, reduction).backward()
                if clip:  # the gradient after the block is the mean's
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                opt.step()
            else:

                def closure(net=net, opt=opt, reduction=reduction):
                    opt.zero_grad()
                    loss = nll(net, x, y, reduction)
                    loss.backward()
                    return loss

                opt.step(closure)
        opt.eval()
        runs.append(weights(net))
    torch.testing.assert_close(*runs, rtol=1e-11, atol=1e-13)


def test_clipping_and_scaling_in_drop_in_training_scale_the_curvature():
    """What a loss scaled by 1/4 gives: gradients by 1/4, their squares by 1/16."""
    x, y = data()
    runs = []
    for inside in (1.0, 0.25):
        net, opt = make()
        opt.train()
        for _ in range(4):
            opt.zero_grad()
            (inside * nll(net, x, y)).backward()
            if inside == 1.0:
                for p in net.parameters():
                    p.grad.mul_(0.25)
            opt.step()
        opt.eval()
        runs.append((weights(net), opt.posterior().variance["0.weight"]))
    torch.testing.assert_close(*runs, rtol=1e-11, atol=0)


@pytest.mark.parametrize("zero_grad", [None, "model", "optimizer"])
def test_squares_are_kept_between_micro_batches_as_gradients_are(zero_grad):
    """Where a validation pass comes between two micro-batches; and forgotten when the gradients are."""
    x, y = data()
    results = []
    for between in (False, True):
        net, opt = make()
        opt.train()
        if between or zero_grad is None:
            (nll(net, x[:6], y[:6]) / 2).backward()
        if between:
            opt.eval()
            if zero_grad is not None:
                (net if zero_grad == "model" else opt).zero_grad()
            opt.train()
        (nll(net, x[6:], y[6:]) / 2).backward()
        opt.step()
        results.append((opt.state[net[0].weight]["hessian"].clone(), weights(net)))
    assert same(*results)


def test_squares_of_others_are_not_taken_for_those_of_pending_gradients():
    x, y = data()
    results = []
    for between in (False, True):
        net = make_net(torch.float64)
        squares = ba.PerExampleSquares(net)
        opt = ba.VOGN(net.named_parameters(), lr=0.05, num_data=50, curvature=squares)
        opt.train()
        opt.eval()
        if between:
            squares.start()
            nll(net, x, y).backward()
            squares.stop()
            for p in net.parameters():
                p.grad.zero_()
        opt.train()
        nll(net, x, y).backward()
        opt.step()
        results.append(opt.state[net[0].weight]["hessian"].clone())
    assert torch.equal(*results)


def test_micro_batches_are_one_batch():
    x, y = data()
    runs = []
    for parts in (1, 3):
        net, opt = make()
        for _ in range(3):
            with opt.sampled_params():
                for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
                    (nll(net, a, b) / parts).backward()
            opt.step()
        runs.append(weights(net))
    torch.testing.assert_close(*runs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_mixed_up_loss_is_refused_where_it_can_be_seen(reduction):
    other = {"mean": "sum", "sum": "mean"}[reduction]
    net, opt = make(reduction)
    x, y = data()
    before = snapshot(opt)
    with (
        pytest.raises(ValueError, match=f"the loss must be the {reduction} of the examples' losses, got their {other}"),
        opt.sampled_params(),
    ):
        opt.backward(nll(net, x, y, other))
    assert same(snapshot(opt)[0], before[0])
    with opt.sampled_params():
        opt.backward(nll(net, x, y, reduction))
    opt.step()


def test_a_closure_is_checked_too():
    net, opt = make()
    x, y = data()

    def closure():
        loss = nll(net, x, y, "sum")
        loss.backward()
        return loss

    mean = weights(net)
    with pytest.raises(ValueError, match="the loss must be the mean of the examples' losses, got their sum"):
        opt.step(closure)
    assert torch.equal(weights(net), mean)


def test_curvature_must_be_given():
    net = make_net()
    with pytest.raises(ValueError, match="curvature must be a PerExampleSquares of the model, got 'squares'"):
        ba.VOGN(net.parameters(), num_data=5, curvature="squares")


def test_parameters_of_another_module_are_refused_at_once():
    with pytest.raises(ValueError, match="curvature must be made for the model of these parameters"):
        ba.VOGN(make_net().parameters(), num_data=5, curvature=ba.PerExampleSquares(make_net()))
    _, opt = make()
    with pytest.raises(ValueError, match=r"does not have the parameter 'extra' of shape \(2,\)"):
        opt.add_param_group({"params": [("extra", torch.nn.Parameter(torch.zeros(2)))]})
    assert len(opt.param_groups) == 1


def test_layers_of_the_model_may_be_added_later():
    net = make_net()
    squares = ba.PerExampleSquares(net)
    opt = ba.VOGN(net[0].named_parameters("0"), lr=0.05, num_data=50, curvature=squares)
    net[2].requires_grad_(False)
    train(net, opt, 2)
    last = weights(net[2])
    net[2].requires_grad_(True)
    opt.add_param_group({"params": list(net[2].named_parameters("2"))})
    train(net, opt, 2, first=2)
    assert not torch.equal(weights(net[2]), last)


def test_hooks_are_there_only_while_the_weights_hold_a_sample():
    net = make_net()
    opt = ba.VOGN(net.named_parameters(), num_data=50, curvature=ba.PerExampleSquares(net))

    def hooks():
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())

    assert hooks() == 0
    with opt.sampled_params():
        assert hooks() > 0
        loss_of(net).backward()
    assert hooks() == 0
    opt.step()
    opt.train()
    assert hooks() > 0
    opt.eval()
    assert hooks() == 0


@pytest.mark.parametrize("size", [1, 2, 12])
def test_unlike_vadam_the_curvature_does_not_shrink_with_the_minibatch(size):
    """Over all minibatches of any size the mean of ``h`` is that of the whole set, at one and the same weights."""
    x, y = data()

    def curvature(rows):
        net, opt = make(betas=(0.0, 0.0))
        with opt.sampled_params():
            nll(net, x[rows], y[rows]).backward()
        opt.step()
        return opt.state[net[0].weight]["hessian"]

    found = [curvature(list(rows)) for rows in itertools.combinations(range(12), size)]
    torch.testing.assert_close(torch.stack(found).mean(0), curvature(list(range(12))), rtol=1e-12, atol=0)


def test_a_closure_with_a_scaled_loss_is_no_mistake():
    """Its graph is gone when it is looked at, which tells nothing of the factor."""
    net, opt = make()
    x, y = data()

    def closure():
        opt.zero_grad()
        loss = 0.5 * nll(net, x, y)
        loss.backward()
        return loss

    opt.step(closure)


def test_a_refused_group_changes_nothing_in_drop_in_training():
    _, opt = make()
    opt.train()
    extra = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="curvature must be made for the model"):
        opt.add_param_group({"params": [("extra", extra)]})
    assert torch.equal(extra, torch.zeros(2))
    opt.attach(opt._source.squares.model)
    opt.state_dict()


def test_examples_whose_gradients_cancel_are_unscaled_with_the_others():
    """A gradient of zero does not show by what it was scaled."""
    net = torch.nn.Linear(1, 2, bias=False).double()
    net_parts = torch.nn.Sequential(net)
    runs = []
    for scale in (1.0, 2.0**16):
        with torch.no_grad():
            net.weight.fill_(0.5)
        opt = ba.VOGN(
            net_parts.named_parameters(),
            num_data=1e12,
            betas=(0.0, 0.0),
            curvature=ba.PerExampleSquares(net_parts),
        )
        with opt.sampled_params():
            output = net_parts(torch.tensor([[1.0], [1.0]], dtype=torch.float64))
            (scale * (output * torch.tensor([[1.0, 1.0], [-1.0, 1.0]])).sum(1).mean()).backward()
        net.weight.grad /= scale
        opt.step()
        runs.append(opt.state[net.weight]["hessian"].clone())
    torch.testing.assert_close(*runs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [0.0, 1e-5])
def test_a_tensor_with_hardly_any_mean_gradient_is_scaled_like_the_others(size):
    """Of a mean gradient of zero, the common factor is that of the others; of a small one, it is its own."""
    x = torch.tensor([[1.0 + size, 1.0], [-1.0, 1.0]], dtype=torch.float64)

    class Parts(torch.nn.Sequential):
        def forward(self, x):
            return self[0](x[:, :1]) + self[1](x[:, 1:])

    def hessians(scales):
        parts = Parts(*(torch.nn.Linear(1, 1, bias=False).double() for _ in range(2)))
        for part in parts:
            torch.nn.init.constant_(part.weight, 0.5)
        options = {"num_data": 1e12, "betas": (0.0, 0.0), "recipe": "paper"}
        opt = ba.VOGN(parts.named_parameters(), curvature=ba.PerExampleSquares(parts), **options)
        with opt.sampled_params():
            parts(x).mean().backward()
        for part, scale in zip(parts, scales, strict=True):
            part.weight.grad *= scale
        opt.step()
        return [opt.state[part.weight]["hessian"].item() for part in parts]

    balanced, plain = hessians((1.0, 1.0))
    assert (balanced, plain) == pytest.approx((0.5 * ((1.0 + size) ** 2 + 1.0), 1.0))
    # Clipped as one, all curvature is scaled by the square of one factor.
    assert hessians((0.25, 0.25)) == pytest.approx([balanced / 16, plain / 16], rel=1e-9)
    if size:
        assert hessians((3.0, 1.0)) == pytest.approx([9 * balanced, plain], rel=1e-9)


def test_a_checkpoint_of_another_method_is_refused():
    net, opt = make()
    other = ba.IVON(net.named_parameters(), num_data=50)
    with pytest.raises(ValueError, match="method of the state_dict must be 'VOGN', got 'IVON'"):
        opt.load_state_dict(other.state_dict())


def test_a_module_that_has_its_optimiser_can_be_copied_in_drop_in_training():
    net, opt = make()
    net.optimizer = opt
    opt.train()
    copied = copy.deepcopy(net)
    x, y = data()
    for model in (net, copied):
        model.optimizer.train()
        model.optimizer.zero_grad()
        nll(model, x, y).backward()
        model.optimizer.step()
        model.optimizer.eval()
    assert torch.equal(weights(net), weights(copied))
