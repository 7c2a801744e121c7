"""Memory of parameters, gradients and state that others have changed: an error or the right result."""

import os
import random

import pytest
import torch

from bayesadam import noise
from bayesadam.bayes_by_backprop.fused import sample
from optim.methods import (
    REPRESENTATIVES,
    Method,
    loss_of,
    made,
    make_step,
    mean_of,
    methods,
    same,
    snapshot,
    train,
    weights,
)
from optim.test_refusals import NOT_A_STATE

SENTINEL = 12345.0
TRIALS = int(os.environ.get("MEMORY_TRIALS", "150"))
kernel_methods = methods(["vadam", "ivon", "von elementwise", "ivon eager"])


class Arena:
    """Memory around small tensors, in which a write outside of them is seen."""

    def __init__(self):
        self.whole, self.parts = torch.full((20_000,), SENTINEL), []

    def take(self, shape):
        start = 1000 * (len(self.parts) + 1)
        part = self.whole[start : start + torch.Size(shape).numel()]
        self.parts.append((start, len(part)))
        return part.view(shape).zero_()

    def is_intact(self):
        outside = self.whole.clone()
        for start, size in self.parts:
            outside[start : start + size] = SENTINEL
        return bool((outside == SENTINEL).all())


def large():
    """A layer with many more elements than what takes its place."""
    torch.manual_seed(0)
    return torch.nn.Linear(50, 19)


def give_gradients(net):
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)


@kernel_methods
@pytest.mark.parametrize("way", ["block", "step", "eval"])
@pytest.mark.parametrize("change", ["smaller", "half", "freed", "cut"])
def test_a_parameter_whose_memory_was_replaced_is_named_and_nothing_is_written(method, way, change):
    net, arena = large(), Arena()
    opt = method(net)
    before = weights(net)

    def replace():
        if change == "smaller":
            net.weight.data = arena.take((3,))
        elif change == "half":
            net.weight.data = net.weight.data.half()
        else:
            net.weight.untyped_storage().resize_(0 if change == "freed" else 40)

    message = r"parameter 'weight' must be in memory with shape \(19, 50\)"
    if way == "block":
        with pytest.raises(RuntimeError, match=message), opt.sampled_params():
            give_gradients(net)
            replace()
    else:
        opt.train()
        give_gradients(net)
        replace()
        sample_of_bias = net.bias.detach().clone()
        with pytest.raises(RuntimeError, match=message):
            getattr(opt, way)()
        assert torch.equal(net.bias, sample_of_bias)
    assert arena.is_intact()
    assert torch.equal(opt.state[net.weight]["mean"].double().flatten(), before[: 19 * 50])


@kernel_methods
@pytest.mark.parametrize("change", ["smaller", "freed"])
def test_a_gradient_whose_memory_was_replaced_is_named(method, change):
    net = large()
    opt = method(net)
    with opt.sampled_params():
        give_gradients(net)
    before = weights(net)
    if change == "smaller":
        net.weight.grad.data = torch.ones(3)
    else:
        net.weight.grad.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="the gradient of parameter 'weight' must be in memory"):
        opt.step()
    assert torch.equal(weights(net), before)


@kernel_methods
def test_other_memory_of_the_same_shape_is_used(method):
    ends = []
    for replaces in (False, True):
        net, opt = made(method)
        with opt.sampled_params():
            loss_of(net).backward()
            if replaces:
                for parameter in net.parameters():
                    parameter.data = (
                        parameter.data.mT.contiguous().mT if parameter.ndim == 2 else parameter.data.clone()
                    )
        opt.step()
        # A matrix product rounds otherwise where its operand lies in other memory; this loss does not.
        make_step(opt, lambda net=net: sum(parameter.square().sum() for parameter in net.parameters()))
        ends.append(weights(net))
    assert torch.equal(*ends)


@methods(REPRESENTATIVES)
@pytest.mark.parametrize("held", ["mean", "sample"])
@pytest.mark.parametrize("value", NOT_A_STATE)
def test_a_state_that_was_replaced_by_another_kind_is_refused(method, held, value):
    net, opt = made(method)
    train(net, opt, 1)
    if held == "sample":
        if method.takes_second_derivatives:
            return
        opt.train()
        loss_of(net).backward()
    before = weights(net)
    opt.state[net[0].weight]["mean"] = NOT_A_STATE[value]
    with pytest.raises(RuntimeError, match=r"'0\.weight' must|must not change while the weights hold a sample"):
        train(net, opt, 1) if held == "mean" else opt.step()
    assert torch.equal(weights(net), before)


def test_a_state_that_was_replaced_by_equal_tensors_goes_on():
    """As after moving it to another device and back."""
    ends = []
    for replaces in (False, True):
        net, opt = made(Method("vadam"))
        train(net, opt, 2)
        if replaces:
            for state in opt.state.values():
                state.update({name: value.clone() for name, value in state.items()})
        train(net, opt, 2, first=2)
        ends.append((weights(net), snapshot(opt)))
    assert same(*ends)


def test_a_state_with_other_values_is_used():
    net, opt = made(Method("vadam"))
    train(net, opt, 1)
    opt.state[net[0].weight]["exp_avg_sq"] = torch.full((8, 3), 7.0)
    variance = opt.posterior().variance["0.weight"]
    state = opt.state[net[0].weight]
    assert torch.equal(state["exp_avg_sq"], torch.full((8, 3), 7.0))
    assert (variance < 1 / (50 * 7.0 * 0.9)).all()


def changes(net, opt, arena, chance):
    """A random change of something that a table of a kernel depends on."""
    parameter = chance.choice(list(net.parameters()))
    size = parameter.numel()

    def data(tensor):
        parameter.data = tensor

    def gradient(tensor):
        if parameter.grad is not None:
            parameter.grad.data = tensor

    def of_state(value):
        state = opt.state.get(parameter) or {}
        if state:
            state[chance.choice(list(state))] = value

    def storage():
        parameter.data = parameter.data.clone()
        parameter.untyped_storage().resize_(chance.choice([0, 4, 4 * size]))

    def drop():
        opt.param_groups[0]["params"].remove(parameter)

    kinds = {
        "data": lambda: data(arena.take(chance.choice([(3,), parameter.shape, (size + 5,), (size, 1)]))),
        "strides": lambda: data(arena.take((*parameter.shape, 2))[..., 0]),
        "dtype": lambda: data(parameter.data.to(chance.choice([torch.float16, torch.float64, torch.bfloat16]))),
        "device": lambda: data(torch.empty_like(parameter, device="meta")),
        "storage": storage,
        "gradient": lambda: gradient(torch.ones(chance.choice([0, 2, size]))),
        "gradient's storage": lambda: parameter.grad is not None and parameter.grad.untyped_storage().resize_(0),
        "no gradient": lambda: setattr(parameter, "grad", None),
        "requires_grad": lambda: parameter.requires_grad_(chance.choice([True, False])),
        "group": lambda: opt.param_groups[0].update(chance.choice([{"lr": 0.5}, {"num_data": 7}, {"perturb": False}])),
        "a new group": lambda: opt.add_param_group({"params": [("new", torch.nn.Parameter(arena.take((7,))))]}),
        "dropped": drop,
        "state": lambda: of_state(chance.choice([torch.zeros(2), torch.ones(size), None, torch.zeros(size).half()])),
    }
    return kinds[chance.choice(list(kinds))]


def is_readable(tensor):
    return tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


@pytest.mark.filterwarnings("ignore:.*its values are taken as the mean:UserWarning")
@pytest.mark.filterwarnings("ignore:training goes on without the:RuntimeWarning")  # weights in half precision
@pytest.mark.parametrize("key", ["vadam", "ivon", "von elementwise", "ivon eager"])
def test_random_changes_between_the_calls(key):
    """An error or the right result, and no write outside; ``MEMORY_TRIALS=1000`` for a long run."""
    chance, refused = random.Random(key), 0
    for _ in range(TRIALS // 4):
        net, arena = large(), Arena()
        for parameter in net.parameters():
            shape = parameter.shape
            parameter.data = arena.take(shape)
        opt = Method(key)(net)
        change, calls = changes(net, opt, arena, chance), chance.choice(["block", "drop-in"])
        places = ["before", "inside", "after the gradient", "end"]
        when = chance.choice(places)

        def at(place, change=change, when=when):
            if place == when:
                change()

        try:
            for _ in range(2):
                at("before")
                if calls == "block":
                    with opt.sampled_params():
                        at("inside")
                        give_gradients(net)
                    at("after the gradient")
                else:
                    opt.train()
                    at("inside")
                    give_gradients(net)
                    at("after the gradient")
                opt.step()
                at("end")
            opt.eval()
            if all(map(is_readable, net.parameters())):
                assert mean_of(opt).isfinite().all()
                q = opt.posterior()
                for name, parameter in net.named_parameters():
                    if name in q.mean:
                        assert torch.equal(q.mean[name].to(parameter.dtype), parameter)
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            refused += 1
        assert arena.is_intact()
    assert 0 < refused < TRIALS // 4


def test_noise_is_not_written_beyond_a_tensor():
    arena = Arena()
    with pytest.raises(ValueError, match="out must be in memory and have the elements of all runs"):
        noise.fill_runs(arena.take((3,)), [(0, 0, 900, 900)], seed=0, step=0, sample=0)
    freed = torch.empty(100)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="out must be in memory"):
        noise.fill_many({0: freed}, 0, 0, 0)
    with pytest.raises(RuntimeError, match="must be in memory with shape"):
        noise.Draws({0: freed}, 0).draw([freed], 0)
    assert arena.is_intact()


def test_a_variational_sample_is_not_written_beyond_a_tensor():
    arena = Arena()
    mean, rho, eps = torch.zeros(900), arena.take((3,)), torch.zeros(900)
    with pytest.raises(RuntimeError, match=r"must be in memory with shape \(900,\)"):
        sample([mean], [rho], [eps], 0.0)
    assert arena.is_intact()
