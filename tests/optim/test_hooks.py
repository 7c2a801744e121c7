"""``load_state_dict`` pre-hooks that bring saved parameters into another order, as PyTorch's documentation has them."""

import copy

import pytest
import torch

import bayesadam as ba
from optim.conftest import loss_of, same, snapshot, train, weights

METHODS = {
    "vadam": lambda named, net, **options: ba.Vadam(named, 0.01, num_data=50, **options),
    "ivon": lambda named, net, **options: ba.IVON(named, 0.1, num_data=50, **options),
    "vogn": lambda named, net, **options: ba.VOGN(
        named, 0.05, num_data=50, curvature=ba.PerExampleSquares(net), **options
    ),
}
EVERY = [*METHODS, "von full"]
OLD = {"x": "a", "y": "b", "z": "c"}


class Net(torch.nn.Module):
    """Two pairs of layers of the same shapes: what is mixed up is not refused for its shape."""

    def __init__(self, names):
        super().__init__()
        torch.manual_seed(0)
        self.names = names
        for name, shape in zip(sorted(names), [(3, 3), (3, 3), (3, 2)], strict=True):
            setattr(self, name, torch.nn.Linear(*shape))

    def forward(self, x):
        first, second, third = self.names
        return getattr(self, third)(torch.tanh(getattr(self, second)(torch.tanh(getattr(self, first)(x)))))


def make(method, names=("a", "b", "c"), order=1):
    net = Net(names)
    named = list(net.named_parameters())[::order]
    if method == "von full":
        return net, ba.VON(named, 0.05, num_data=50, covariance="full")
    return net, METHODS[method](named, net)


def by_name(matching):
    """The hook of PyTorch's documentation: what a parameter is called in the saved state dict."""

    def adapt(optimizer, state_dict):
        adapted = copy.deepcopy(optimizer.state_dict())
        for name, value in state_dict["param_groups"][0].items():
            if name not in ("params", "param_names"):
                adapted["param_groups"][0][name] = value
        saved = state_dict["param_groups"][0]
        own = adapted["param_groups"][0]
        for identity, name in zip(own["params"], own["param_names"], strict=True):
            found = saved["params"][saved["param_names"].index(matching(name))]
            if found in state_dict["state"]:
                adapted["state"][identity] = copy.deepcopy(state_dict["state"][found])
        return adapted

    return adapt


@pytest.mark.parametrize("drop_in", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_means_and_curvature_come_to_the_parameters_of_their_names(method, drop_in):
    net, opt = make(method)
    opt.attach(net)
    train(net, opt, 3, mode="train" if drop_in else "block")
    saved = copy.deepcopy(opt.state_dict())
    states = {name: opt.state[p] for name, p in net.named_parameters()}

    other, resumed = make(method, order=-1)
    resumed.attach(other)
    resumed.register_load_state_dict_pre_hook(by_name(lambda name: name))
    other.load_state_dict(net.state_dict())
    resumed.load_state_dict(saved)
    for name, parameter in other.named_parameters():
        assert same(resumed.state[parameter], states[name]), name
    assert resumed.param_groups[0]["weights"] == ("train" if drop_in else "mean")
    first, second = opt.posterior(), resumed.posterior()
    for name, value in first.mean.items():
        assert torch.equal(second.mean[name], value)
        assert torch.equal(second.variance[name], first.variance[name])
    train(other, resumed, 1, mode="train" if drop_in else "block")


@pytest.mark.parametrize("method", EVERY)
def test_renamed_parameters_in_the_same_order_go_on_identically(method):
    net, opt = make(method)
    train(net, opt, 3)
    other, resumed = make(method, names=("x", "y", "z"))
    resumed.register_load_state_dict_pre_hook(by_name(lambda name: OLD[name[0]] + name[1:]))
    other.load_state_dict({name: net.state_dict()[OLD[name[0]] + name[1:]] for name in other.state_dict()})
    resumed.load_state_dict(opt.state_dict())
    assert resumed.param_groups[0]["param_names"][0] == "x.weight"
    for each, optimizer in ((net, opt), (other, resumed)):
        train(each, optimizer, 2, first=3)
    assert torch.equal(weights(net), weights(other))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_matrix_in_another_order_is_refused(steps, swapped):
    """Its columns are those of the parameters as they were saved, which a hook that moves states leaves there."""
    net, opt = make("von full")
    train(net, opt, steps)
    with opt.sampled_params():
        pass
    other, resumed = make("von full", order=1 if swapped else -1)
    train(other, resumed, 1)
    before = copy.deepcopy(snapshot(resumed)), weights(other)
    pairs = {"a": "b", "b": "a", "c": "c"}  # of the same shapes
    resumed.register_load_state_dict_pre_hook(by_name(lambda name: pairs[name[0]] + name[1:] if swapped else name))
    message = (
        r"the Hessian of the state_dict must be a precision matrix, got one that is not positive definite \(with "
        r"covariance='full' the parameters must be in the order in which they were saved\)"
    )
    with pytest.raises(ValueError, match=message):
        resumed.load_state_dict(opt.state_dict())
    assert same((snapshot(resumed), weights(other)), before)


def without_mean(optimizer, state_dict):
    adapted = copy.deepcopy(state_dict)
    del adapted["state"][0]["mean"]
    return adapted


def of_another_shape(optimizer, state_dict):
    adapted = copy.deepcopy(state_dict)
    adapted["state"][0]["mean"] = torch.zeros(7)
    return adapted


def of_another_method(optimizer, state_dict):
    adapted = copy.deepcopy(state_dict)
    adapted["param_groups"][0]["method"] = "Another"
    return adapted


def failing(optimizer, state_dict):
    raise ValueError("the hook's own error, got none")


REFUSED = {
    without_mean: "the state of parameter 0 must have .*, got none for \\['mean'\\]",
    of_another_shape: r"the state of parameter 0 must be of shape \(3, 3\), got \(7,\)",
    of_another_method: "method of the state_dict must be '.*', got 'Another'",
    failing: "the hook's own error, got none",
}


@pytest.mark.parametrize("drop_in", [False, True])
@pytest.mark.parametrize("hook", REFUSED)
@pytest.mark.parametrize("method", METHODS)
def test_what_a_hook_makes_is_checked_and_a_refusal_changes_nothing(method, hook, drop_in):
    net, opt = make(method)
    opt.attach(net)
    train(net, opt, 2, mode="train" if drop_in else "block")
    saved = copy.deepcopy(opt.state_dict())
    train(net, opt, 1, mode="train" if drop_in else "block")
    before = snapshot(opt), weights(net)
    handle = opt.register_load_state_dict_pre_hook(hook)
    with pytest.raises(ValueError, match=REFUSED[hook]):
        opt.load_state_dict(saved)
    assert same((snapshot(opt), weights(net)), before)
    handle.remove()
    assert not opt._optimizer_load_state_dict_pre_hooks
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["noise_step"] == 2


@pytest.mark.parametrize("drop_in", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_failing_hook_afterwards_puts_everything_back(method, drop_in):
    net, opt = make(method)
    opt.attach(net)
    mode = "train" if drop_in else "block"
    train(net, opt, 2, mode=mode)
    saved = copy.deepcopy(opt.state_dict())
    train(net, opt, 2, mode=mode)
    before = snapshot(opt), weights(net)

    def fail(optimizer):
        raise ValueError("the hook's own error, got none")

    handle = opt.register_load_state_dict_post_hook(fail)
    with pytest.raises(ValueError, match="the hook's own error, got none"):
        opt.load_state_dict(saved)
    handle.remove()
    assert same((snapshot(opt), weights(net)), before)
    other, resumed = make(method)
    other.load_state_dict(net.state_dict())
    resumed.load_state_dict(opt.state_dict())
    for each, optimizer in ((net, opt), (other, resumed)):
        train(each, optimizer, 1, mode=mode)
    assert torch.equal(weights(net), weights(other))
    assert loss_of(net).isfinite()
