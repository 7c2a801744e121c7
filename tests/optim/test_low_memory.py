"""``low_memory=True``: the same training to rounding, without a copy of the mean while the weights hold a sample."""

import copy
import io

import pytest
import torch
from torch import nn

import bayesadam as ba
from optim.methods import (
    EVERY,
    Method,
    loss_of,
    made,
    make_net,
    mean_of,
    methods,
    same,
    scrambled,
    snapshot,
    train,
    variance_of,
    ways,
    weights,
)

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def pair(method, **options):
    """Networks and optimisers in float64, without copies of the means and with."""
    nets = [make_net(torch.float64) for _ in range(2)]
    return [(net, method(net, low_memory=low, **options)) for net, low in zip(nets, (True, False), strict=True)]


def assert_alike(first, second):
    torch.testing.assert_close(weights(first[0]), weights(second[0]), **CLOSE)
    torch.testing.assert_close(mean_of(first[1]), mean_of(second[1]), **CLOSE)
    torch.testing.assert_close(variance_of(first[1]), variance_of(second[1]), **CLOSE)


def bytes_of(opt):
    """Of the state's vectors; the counters are a few numbers for each parameter."""
    return sum(t.numel() * t.element_size() for state in opt.state.values() for t in state.values() if t.ndim)


@ways(EVERY)
def test_every_optimiser_trains_as_with_means(method, mode):
    both = pair(method, mc_samples=1 if mode == "train" else 2)
    for net, opt in both:
        train(net, opt, 4, mode=mode)
    assert_alike(*both)  # in drop-in training the weights hold samples here
    for _, opt in both:
        opt.eval()
    assert_alike(*both)


@pytest.mark.parametrize(("name", "expected"), [("vadam", 8), ("ivon", 8), ("vprop", 4)])
@pytest.mark.parametrize("mode", ["block", "train"])
def test_the_state_is_four_bytes_smaller(name, expected, mode):
    for low_memory in (True, False):
        net, opt = made(Method(name), low_memory=low_memory)
        train(net, opt, 2, mode=mode)
        assert bytes_of(opt) == (expected if low_memory else expected + 4) * 50


def test_low_precision_weights_keep_their_mean():
    """A sample in bfloat16 does not tell it."""
    nets = [make_net(torch.bfloat16) for _ in range(2)]
    for net, low in zip(nets, (True, False), strict=True):
        opt = Method("vadam")(net, low_memory=low)
        train(net, opt, 4, mode="train")
        opt.eval()
        assert {state["mean"].dtype for state in opt.state.values()} == {torch.float32}
    assert torch.equal(*map(weights, nets))


def test_the_mean_of_a_step_is_off_by_rounding_only():
    """Steps of rate 0: after 500 samples the mean is where it was, to a few rounding errors of the weights."""
    net = make_net()
    before = weights(net)
    opt = Method("vadam")(net, lr=0.0, low_memory=True)
    sigma = variance_of(opt).max().sqrt().item()  # it only falls
    train(net, opt, 500, mode="train")
    opt.eval()
    drift = (weights(net) - before).abs().max().item()
    assert 0 < drift < 500**0.5 * 4 * 2.0**-24 * (before.abs().max().item() + 5 * sigma)


@methods(["vadam", "ivon eager", "vogn"])
@pytest.mark.parametrize("optimizer_first", [False, True])
def test_checkpoints_of_samples_are_for_optimisers_with_means_and_without(method, optimizer_first):
    both = pair(method)
    for net, opt in both:
        opt.attach(net)
        train(net, opt, 2, mode="train")
    saved = []
    for net, opt in both:
        file = io.BytesIO()
        torch.save({"model": net.state_dict(), "opt": opt.state_dict()}, file)
        saved.append(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
        train(net, opt, 2, first=2, mode="train")
    for file, low in ((saved[0], True), (saved[0], False), (saved[1], True)):
        net, opt = scrambled(method, torch.float64, low_memory=low)
        opt.attach(net)
        for part in ("opt", "model") if optimizer_first else ("model", "opt"):
            (net if part == "model" else opt).load_state_dict(file[part])
        assert opt.param_groups[0]["low_memory"] is low
        train(net, opt, 2, first=2, mode="train")
        assert_alike((net, opt), both[1])


def test_a_saved_model_has_the_mean_and_a_loaded_one_gives_it():
    both = pair(Method("vadam"))
    for net, opt in both:
        opt.attach(net)
        train(net, opt, 2, mode="train")
    (net, opt), (other, _) = both
    torch.testing.assert_close(net.state_dict(), other.state_dict(), **CLOSE)
    mean = make_net(torch.float64)
    net.load_state_dict(mean.state_dict())
    assert not torch.equal(weights(net), weights(mean))
    opt.eval()
    torch.testing.assert_close(weights(net), weights(mean))


class TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow, self.wide = nn.Parameter(torch.randn(3).bfloat16()), nn.Parameter(torch.randn(2))


def test_loading_one_module_with_weights_of_two_dtypes():
    module, other = TwoDtypes(), TwoDtypes()
    opt = ba.Vadam(module.named_parameters(), num_data=10, low_memory=True)
    opt.attach(module)
    opt.train()
    module.load_state_dict(other.state_dict())
    opt.eval()
    torch.testing.assert_close(module.state_dict(), other.state_dict())


def test_a_state_that_does_not_fit_leaves_the_sample_and_the_mean():
    net, opt = made(Method("vadam"), low_memory=True)
    opt.attach(net)
    train(net, opt, 2, mode="train")
    sample, mean = weights(net), mean_of(opt)
    foreign = copy.deepcopy(opt.state_dict())
    foreign["state"][0]["mean"] = torch.zeros(99)
    groups = snapshot(opt)[0]
    with pytest.raises(ValueError, match="must be of shape"):
        opt.load_state_dict(foreign)
    assert torch.equal(weights(net), sample)
    torch.testing.assert_close(mean_of(opt), mean)
    assert same(snapshot(opt)[0], groups)
    train(net, opt, 1, first=2, mode="train")
    assert loss_of(net).isfinite()
