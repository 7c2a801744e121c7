"""``low_memory=True``: the same training to rounding, without a copy of the mean while the weights hold a sample."""

import copy
import io
import pickle

import pytest
import torch

import bayesadam as ba
from optim.conftest import Method, batch, every_method, loss_of, make_net, snapshot, train, weights

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def pair(method, mode="train", **options):
    """An optimiser without copies of the means and one with, in float64."""
    nets = [make_net(torch.float64) for _ in range(2)]
    opts = [
        method(net.named_parameters(), low_memory=low, **options) for net, low in zip(nets, (True, False), strict=True)
    ]
    return list(zip(nets, opts, strict=True))


def assert_alike(first, second):
    (net, opt), (other, reference) = first, second
    torch.testing.assert_close(weights(net), weights(other), **CLOSE)
    q, expected = opt.posterior(net), reference.posterior(other)
    torch.testing.assert_close(q.mean, expected.mean, **CLOSE)
    torch.testing.assert_close(q.variance, expected.variance, **CLOSE)


def bytes_of(opt):
    """Of the state's own memory: what is shared with the weights is theirs."""
    own = {p.untyped_storage().data_ptr() for group in opt.param_groups for p in group["params"]}
    tensors = [t for state in opt.state.values() for t in state.values() if torch.is_tensor(t)]
    return sum(t.untyped_storage().nbytes() for t in tensors if t.untyped_storage().data_ptr() not in own)


@every_method
@pytest.mark.parametrize("mode", ["block", "closure", "train"])
def test_every_optimiser_trains_as_with_means(method, mode):
    if method.full:
        with pytest.raises(ValueError, match="low_memory must be False when covariance='full', got True"):
            method(make_net().named_parameters(), low_memory=True)
        return
    samples = 1 if mode == "train" else 2
    both = pair(method, mc_samples=samples)
    for net, opt in both:
        train(net, opt, 5, mode=mode)
    assert_alike(*both)  # in drop-in training the weights hold samples here
    for _, opt in both:
        opt.eval()
    assert_alike(*both)


@pytest.mark.parametrize(("name", "expected"), [("vadam", 8), ("ivon", 8), ("vprop", 4)])
@pytest.mark.parametrize("mode", ["block", "train"])
def test_the_state_is_four_bytes_smaller(name, expected, mode):
    net = make_net()
    opt = Method(name)(net.named_parameters(), low_memory=True)
    train(net, opt, 2, mode=mode)
    assert bytes_of(opt) == expected * len(weights(net))
    opt.eval()
    assert bytes_of(opt) == expected * len(weights(net))


def test_low_precision_weights_keep_their_mean():
    """A sample in bfloat16 does not tell it."""
    nets = [make_net(torch.bfloat16) for _ in range(2)]
    for net, low in zip(nets, (True, False), strict=True):
        opt = ba.Vadam(net.named_parameters(), num_data=50, low_memory=low)
        train(net, opt, 5, mode="train")
        opt.eval()
        assert {state["mean"].dtype for state in opt.state.values()} == {torch.float32}
    assert torch.equal(*map(weights, nets))


def test_the_mean_of_a_step_is_off_by_rounding_only():
    """Steps of rate 0: after 2,000 samples the mean is where it was, to a few rounding errors of the weights."""
    net = make_net()
    before = weights(net)
    opt = ba.Vadam(net.named_parameters(), num_data=50, batch_size=16, lr=0.0, low_memory=True)
    train(net, opt, 2000, mode="train")
    sigma = max(v.sqrt().max().item() for v in opt.posterior().variance.values())
    opt.eval()
    drift = (weights(net) - before).abs().max().item()
    assert 0 < drift < 2000**0.5 * 4 * 2.0**-24 * (before.abs().max().item() + 5 * sigma)


@pytest.mark.parametrize("name", ["vadam", "ivon", "ivon eager", "vogn"])
def test_checkpoints_copies_and_pickles(name):
    """Taken while the weights hold a sample; of an optimiser with means or without, for one with or without."""
    method = Method(name)
    (net, opt), (other, reference) = pair(method)
    for one, its in ((net, opt), (other, reference)):
        its.attach(one)
        train(one, its, 3, mode="train")
    for source, its, low in ((net, opt, True), (net, opt, False), (other, reference, True)):
        file = io.BytesIO()
        torch.save({"model": source.state_dict(), "opt": its.state_dict()}, file)
        for order in ("model first", "optimiser first"):
            saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            resumed_net = make_net(torch.float64)
            with torch.no_grad():
                for parameter in resumed_net.parameters():
                    parameter.normal_()
            resumed = method(resumed_net.named_parameters(), low_memory=low)
            resumed.attach(resumed_net)
            for step in ("model", "opt") if order == "model first" else ("opt", "model"):
                (resumed_net if step == "model" else resumed).load_state_dict(saved[step])
            assert resumed.param_groups[0]["low_memory"] is low
            train(resumed_net, resumed, 3, first=3, mode="train")
            goes_on = copy.deepcopy((source, its)) if name != "vogn" else None
            if goes_on is not None:
                train(*goes_on, 3, first=3, mode="train")
                assert_alike((resumed_net, resumed), goes_on)
    if name != "vogn":
        copied_net, copied = pickle.loads(pickle.dumps((net, opt)))
        train(copied_net, copied, 2, first=3, mode="train")
        train(other, reference, 2, first=3, mode="train")
        assert_alike((copied_net, copied), (other, reference))


def test_a_saved_model_has_the_mean():
    (net, opt), (other, reference) = pair(Method("vadam"))
    for one, its in ((net, opt), (other, reference)):
        its.attach(one)
        train(one, its, 3, mode="train")
    torch.testing.assert_close(net.state_dict(), other.state_dict(), **CLOSE)
    assert (weights(net) - torch.cat([v.flatten() for v in net.state_dict().values()])).abs().max() > 0.01


def test_hyperparameters_that_change_under_a_sample():
    """The width that a sample was drawn with is remembered, and the next step begins with the new one."""
    both = pair(Method("ivon"))
    for net, opt in both:
        train(net, opt, 2, mode="train")
        for group in opt.param_groups:
            group["num_data"] = 500
            group["lr"] = 0.01
    (_, opt), (_, reference) = both
    torch.testing.assert_close(opt.posterior().mean, reference.posterior().mean, **CLOSE)
    for net, opt in both:
        opt.zero_grad()
        loss_of(net, 2).backward()
        opt.eval()
    torch.testing.assert_close(weights(both[0][0]), weights(both[1][0]), **CLOSE)
    for net, opt in both:
        opt.zero_grad()
        train(net, opt, 2, first=3, mode="train")
    assert_alike(*both)


def test_frozen_and_added_parameters():
    both = pair(Method("vadam"))
    for net, opt in both:
        train(net, opt, 2, mode="train")
        net[0].weight.requires_grad_(False)
        net[0].weight.grad = None
        train(net, opt, 2, first=2, mode="train")
        net[0].weight.requires_grad_(True)
        net.register_parameter("extra", torch.nn.Parameter(torch.ones(4, dtype=torch.float64)))
        opt.add_param_group({"params": [("extra", net.extra)]})
        train(net, opt, 2, first=4, mode="train")
    assert_alike(*both)
    for _, opt in both:
        opt.eval()
    assert_alike(*both)


def test_weights_that_others_wrote():
    net = make_net()
    opt = ba.Vadam(net.named_parameters(), num_data=50, low_memory=True)
    train(net, opt, 2, mode="train")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.clone())  # the same sample, as a prediction leaves it
    train(net, opt, 1, first=2, mode="train")
    with torch.no_grad():
        net[0].weight.add_(1.0)
    loss_of(net).backward()
    with pytest.raises(RuntimeError, match="'0.weight' must hold the sample that train.* drew, got other values"):
        opt.step()
    written = net[0].weight.detach().clone()
    with pytest.warns(UserWarning, match="its values are taken as the mean"):
        opt.eval()
    assert torch.equal(net[0].weight, written)
    opt.attach(net)
    opt.train()
    mean = make_net()
    net.load_state_dict(mean.state_dict())
    assert not torch.equal(weights(net), weights(mean))
    torch.testing.assert_close(torch.cat([v.flatten() for v in net.state_dict().values()]).double(), weights(mean))
    opt.eval()
    torch.testing.assert_close(weights(net), weights(mean))


def test_a_load_that_fails_leaves_the_sample_and_the_mean(monkeypatch):
    def interrupted(store):
        raise KeyboardInterrupt

    net = make_net()
    opt = ba.Vadam(net.named_parameters(), num_data=50, low_memory=True)
    opt.attach(net)
    train(net, opt, 2, mode="train")
    held, mean = weights(net), opt.posterior().mean
    state = copy.deepcopy(opt.state_dict())
    first = next(iter(state["state"].values()))
    first["exp_avg"] = "not a tensor"
    first["mean"] = torch.zeros(99)
    before = snapshot(opt)[0]
    with pytest.raises(ValueError, match="must be of shape"):
        opt.load_state_dict(state)
    assert torch.equal(weights(net), held)
    torch.testing.assert_close(opt.posterior().mean, mean)
    assert snapshot(opt)[0] == before
    state = copy.deepcopy(opt.state_dict())
    state["param_groups"][0]["temperature"] = 0.5
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(opt._engine.store.__class__, "check_loaded", interrupted)  # after the mean was put back
        opt.load_state_dict(state)
    assert torch.equal(weights(net), held)
    torch.testing.assert_close(opt.posterior().mean, mean)
    train(net, opt, 1, first=2, mode="train")
    x, _ = batch()
    assert net(x).isfinite().all()
