"""State dicts: training resumes to the bit, whatever is saved holds the mean, and what does not fit changes nothing."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state

import bayesadam as ba
from optim import workers
from optim.methods import (
    EVERY,
    REPRESENTATIVES,
    Method,
    backward,
    by_name,
    every_method,
    loss_of,
    made,
    make_net,
    mean_of,
    methods,
    representatives,
    same,
    scrambled,
    snapshot,
    train,
    ways,
    weights,
)

some_methods = methods(["vadam", "ivon", "vogn", "von exact"])
drop_in_methods = methods(["vadam", "ivon", "vogn"])


def saved_of(net, opt):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the weights may hold a sample
        return copy.deepcopy({"model": net.state_dict(), "opt": opt.state_dict()})


def load(net, opt, saved, model_first=True):
    steps = [lambda: net.load_state_dict(saved["model"]), lambda: opt.load_state_dict(saved["opt"])]
    for step in steps if model_first else steps[::-1]:
        step()


def assert_same_end(first, second, *, step, mode="block", steps=2):
    """Two runs, each a network and its optimiser, go on identically."""
    for net, opt in (first, second):
        train(net, opt, steps, first=step, mode=mode)
        opt.eval()
    assert torch.equal(weights(first[0]), weights(second[0]))
    assert same(snapshot(first[1])[1], snapshot(second[1])[1])


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_has_the_standard_form(method, dtype):
    net, opt = made(method, dtype)
    train(net, opt, 2)
    assert set(opt.state) == set(net.parameters())
    for state in opt.state.values():
        assert {"step", "mean", *method.cls.rule.state} <= set(state)
        assert state["step"] == 2
        assert all(isinstance(value, int | float | torch.Tensor) for value in state.values())
    assert not any(torch.is_tensor(v) for g in opt.param_groups for k, v in g.items() if k != "params")


@ways(EVERY)
def test_resuming_is_bit_identical(method, mode, tmp_path):
    check_resuming(method, mode, torch.float32, True, tmp_path)


@ways(REPRESENTATIVES)
def test_resuming_with_low_precision_and_the_optimiser_first_is_bit_identical(method, mode, tmp_path):
    check_resuming(method, mode, torch.bfloat16, False, tmp_path)


def check_resuming(method, mode, dtype, model_first, tmp_path):
    net, opt = made(method, dtype)
    opt.attach(net)
    train(net, opt, 2, mode=mode)
    torch.save({"model": net.state_dict(), "opt": opt.state_dict()}, tmp_path / "c.pt")
    other, resumed = scrambled(method, dtype, seed=99, num_data=7)
    resumed.attach(other)
    load(other, resumed, torch.load(tmp_path / "c.pt", weights_only=True), model_first)
    assert_same_end((net, opt), (other, resumed), step=2, mode=mode)
    assert same(snapshot(resumed)[0], snapshot(opt)[0])


# Saved while the weights hold a sample


@some_methods
@pytest.mark.parametrize(("attached", "model_first"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_checkpoint_taken_inside_a_block_holds_the_mean(method, attached, model_first):
    net, opt = made(method)
    if attached:
        opt.attach(net)
    train(net, opt, 2)
    mean = weights(net)
    with opt.sampled_params():
        saved = saved_of(net, opt)
        backward(opt, loss_of(net, 2))
    opt.step()
    other, resumed = scrambled(method)
    load(other, resumed, saved, model_first)
    assert torch.equal(mean_of(resumed), mean)
    if attached or model_first:
        assert torch.equal(weights(other), mean)
    train(other, resumed, 1, first=2)
    assert torch.equal(weights(net), weights(other))


@drop_in_methods
@pytest.mark.parametrize("model_first", [True, False])
def test_a_drop_in_checkpoint_of_a_model_that_is_not_attached_rebuilds_the_sample(method, model_first):
    net, opt = made(method)
    train(net, opt, 2, mode="train")
    with pytest.warns(UserWarning, match=r"posterior sample.*attach\(model\) once, or optimizer.eval\(\) before"):
        saved = copy.deepcopy({"model": net.state_dict(), "opt": opt.state_dict()})
    other, resumed = scrambled(method)
    load(other, resumed, saved, model_first)
    assert torch.equal(weights(net), weights(other))
    assert_same_end((net, opt), (other, resumed), step=2, mode="train")


@drop_in_methods
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_replaces_a_drop_in_run(method, dtype):
    """The sample's mean must not be written over a model that was loaded first."""
    net, opt = made(method, dtype)
    train(net, opt, 2)
    other, resumed = scrambled(method, dtype)
    resumed.train()
    load(other, resumed, saved_of(net, opt))
    assert torch.equal(weights(other), weights(net))
    assert torch.equal(mean_of(resumed), mean_of(opt))
    assert_same_end((net, opt), (other, resumed), step=2)


# Attached models


@ways(EVERY)
def test_attaching_a_model_changes_no_number(method, mode):
    results = []
    for attached in (False, True):
        net, opt = made(method)
        if attached:
            opt.attach(net)
        train(net, opt, 3, mode=mode)
        opt.eval()
        results.append((weights(net), snapshot(opt)[1]))
    assert same(*results)


@some_methods
def test_attached_models_give_and_take_the_mean(method):
    net, opt = made(method)
    opt.attach(net)
    train(net, opt, 2, mode=method.mode)
    mean = dict(opt.posterior().mean)
    with opt.sampled_params() if method.mode == "block" else warnings.catch_warnings():
        assert not torch.equal(net[0].weight, mean["0.weight"])
        assert same(dict(net.state_dict()), mean)
        assert same({k: v.detach() for k, v in net.state_dict(keep_vars=True).items()}, mean)
        assert same(dict(nn.ModuleDict({"inner": net}).state_dict()), {f"inner.{k}": v for k, v in mean.items()})
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert same(dict(other.state_dict()), by_name(net))  # which is of no optimiser
    if method.mode == "train":
        replacement = {name: value + 1 for name, value in mean.items()}
        net.load_state_dict(replacement)
        assert not torch.equal(net[0].weight, replacement["0.weight"])  # the sample around the new mean
        opt.eval()
        assert same(by_name(net), replacement)


@some_methods
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_copies_of_model_and_optimizer_are_attached(method, copied):
    net, opt = made(method)
    opt.attach(net)
    train(net, opt, 2, mode=method.mode)
    mean = dict(opt.posterior().mean)
    other, another = copied({"net": net, "opt": opt}), copied({"opt": opt, "net": net})
    for both in (other, another):
        assert same(dict(both["net"].state_dict()), mean)
        train(both["net"], both["opt"], 1, first=5, mode=method.mode)
        assert same(dict(both["net"].state_dict()), dict(both["opt"].posterior().mean))
    assert same(dict(net.state_dict()), mean)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
@pytest.mark.parametrize(("key", "attached"), [("vadam", True), ("vogn", False)])
def test_a_model_that_has_its_optimizer_is_copied_with_it(key, attached, copied):
    net, opt = made(Method(key))
    if attached:
        opt.attach(net)
    train(net, opt, 1, mode="train")
    net.opt = opt
    other = copied(net)
    assert_same_end((net, net.opt), (other, other.opt), step=1, mode="train")


@pytest.mark.parametrize("wrap", [torch.compile, lambda net: nn.ModuleDict({"module": net})])
def test_what_an_attached_model_wraps_and_its_parts_give_and_take_the_mean(wrap):
    net, opt = made(Method("ivon"))
    wrapper = wrap(net)
    opt.attach(wrapper)
    train(net, opt, 1, mode="train")
    mean = opt.posterior().mean
    assert same(list(wrapper.state_dict().values()), list(mean.values()))
    assert same(dict(net[2].state_dict()), {"weight": mean["2.weight"], "bias": mean["2.bias"]})
    replacement = {"weight": mean["2.weight"] + 1, "bias": mean["2.bias"] + 1}
    net[2].load_state_dict(replacement)
    assert not torch.equal(net[2].weight, replacement["weight"])
    opt.eval()
    assert same(dict(net[2].state_dict()), replacement)
    assert torch.equal(net[0].weight, mean["0.weight"])


@pytest.mark.parametrize("given", ["parameters", "named", "other names"])
def test_groups_of_an_attached_model_have_its_names_and_give_the_mean(given):
    net, likelihood = make_net(), ba.Gaussian(1.0, learned=True)
    opt = Method("ivon")(net, net[2].parameters())
    opt.attach(net)
    params = {
        "parameters": net[0].parameters(),
        "named": net[0].named_parameters(prefix="0"),
        "other names": net[0].named_parameters(prefix="backbone"),
    }[given]
    opt.add_param_group({"params": likelihood.parameters(), "perturb": False})
    opt.add_param_group({"params": params})
    opt.train()
    assert set(opt.posterior().mean) == set(dict(net.named_parameters()))
    assert same(dict(net.state_dict()), dict(opt.posterior().mean))


def test_two_optimisers_with_one_seed_are_warned_of_once():
    """Their noise is the same."""
    net = make_net()
    first, second = (Method("ivon")(net, net[part].named_parameters(str(part)), seed=3) for part in (0, 2))
    other = Method("ivon")(net, net[2].named_parameters("2"), seed=4)
    first.attach(net)
    other.attach(net)
    with pytest.warns(UserWarning, match="another optimiser of this model has the same seed=3"):
        second.attach(net)
    first.attach(net)
    second.attach(net)


# What does not fit


def by_names(matching):
    """The hook of PyTorch's documentation: what a parameter is called in the saved state dict."""

    def adapt(optimizer, saved):
        adapted = copy.deepcopy(optimizer.state_dict())
        group, loaded = adapted["param_groups"][0], saved["param_groups"][0]
        group |= {name: value for name, value in loaded.items() if name not in ("params", "param_names")}
        for identity, name in zip(group["params"], group["param_names"], strict=True):
            place = loaded["params"][loaded["param_names"].index(matching(name))]
            adapted["state"][identity] = copy.deepcopy(saved["state"][place])
        return adapted

    return adapt


def pair_of_layers(names):
    """Of the same shapes: what is mixed up is not refused for its shape."""
    torch.manual_seed(0)
    return nn.ModuleDict({name: nn.Linear(3, 3) for name in names})


def train_layers(net, opt, steps):
    for _ in range(steps):
        with opt.sampled_params():
            first, second = net.values()
            backward(opt, (torch.tanh(second(torch.tanh(first(torch.ones(4, 3))))) - 0.5).square().mean())
        opt.step()


@methods(["vadam", "ivon"])
def test_a_pre_hook_may_reorder_parameters(method):
    net = pair_of_layers("ab")
    opt = method(net)
    train_layers(net, opt, 2)
    resumed = method(net, list(net.named_parameters())[::-1])
    resumed.register_load_state_dict_pre_hook(by_names(lambda name: name))
    resumed.load_state_dict(opt.state_dict())
    assert all(same(resumed.state[parameter], opt.state[parameter]) for parameter in net.parameters())


def test_a_layer_at_the_place_of_another_is_refused():
    net, other = pair_of_layers("ab"), pair_of_layers("ba")
    opt, resumed = Method("vadam")(net), Method("vadam")(other)
    train_layers(net, opt, 2)
    before = weights(other)
    message = "^state_dict must have parameter 'b.weight' at position 0, got 'a.weight' there"
    with pytest.raises(ValueError, match=message):
        resumed.load_state_dict(opt.state_dict())
    assert torch.equal(weights(other), before)
    wrapped = nn.ModuleDict({"module": other})  # whose names are other ones
    Method("vadam")(wrapped).load_state_dict(resumed.state_dict())


@drop_in_methods
def test_loading_does_not_share_tensors(method):
    net, opt = made(method)
    train(net, opt, 2)
    saved = opt.state_dict()
    _, other = scrambled(method)
    other.load_state_dict(saved)
    before = copy.deepcopy(snapshot(other))
    train(net, opt, 1)
    assert same(snapshot(other), before)


# Distributed checkpoints, in one process without a process group


@representatives
def test_a_fresh_step_with_rate_zero_only_creates_state(method):
    net, opt = made(method, lr=0.0)
    mean = weights(net)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    opt.step(closure=None)
    assert torch.equal(weights(net), mean)
    assert len(opt.state) == 4
    assert opt.param_groups[0]["noise_step"] == 0
    assert all(state["step"] == 0 for state in opt.state.values())
    net[0].weight.grad.fill_(1.0)
    with pytest.raises(RuntimeError, match=r"step\(\) must follow exactly mc_samples=1"):
        opt.step()


@representatives
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.filterwarnings("ignore")  # torch's own, for a single process
def test_a_distributed_checkpoint_resumes_to_the_bit(method, flat, tmp_path):
    net, opt = made(method)
    opt.attach(net)
    train(net, opt, 2, mode=method.mode)
    options = dcp_state.StateDictOptions(flatten_optimizer_state_dict=flat)
    workers.save(net, opt, tmp_path, options)
    other, resumed = scrambled(method)
    resumed.attach(other)
    workers.load(other, resumed, tmp_path, options)
    assert_same_end((net, opt), (other, resumed), step=2, mode=method.mode)
