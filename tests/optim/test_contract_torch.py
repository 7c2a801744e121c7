"""What PyTorch does with an optimiser: hooks, schedulers, averages of models, copies, pickles, ``torch.compile``."""

import copy
import math
import pickle

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.optim import lr_scheduler

import bayesadam as ba
from bayesadam.optim import half_cosine, polynomial_decay
from optim.methods import (
    EVERY,
    REPRESENTATIVES,
    Method,
    loss_of,
    made,
    make_net,
    make_step,
    mean_of,
    methods,
    representatives,
    same,
    snapshot,
    train,
    variance_of,
    ways,
    weights,
)


@representatives
def test_hooks_fire_once(method):
    net, fired = make_net(), []
    opt = method(net)
    opt.register_step_pre_hook(lambda *_: fired.append("pre"))
    opt.register_step_post_hook(lambda *_: fired.append("post"))
    train(net, opt, 1)
    assert fired == ["pre", "post"]


# Schedules

SCHEDULERS = {
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=10),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=10),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=3),
}


@methods(["vadam", "von exact"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_torch(method, name):
    net, opt = made(method)
    scheduler = SCHEDULERS[name](opt)
    seen = set()
    for step in range(5):
        train(net, opt, 1, first=step)
        scheduler.step()
        seen.add((opt.param_groups[0]["lr"], opt.param_groups[0]["betas"]))
    assert len(seen) == 5
    assert isinstance(opt.param_groups[0]["betas"], tuple)


@representatives
def test_a_learning_rate_in_a_tensor_is_filled_in_place(method):
    nets, rate = [make_net(), make_net()], torch.tensor(0.01)
    opts = [method(nets[0], lr=rate), method(nets[1], lr=0.01)]
    for step, value in enumerate((0.01, 0.02)):
        rate.fill_(value)
        opts[1].param_groups[0]["lr"] = rate.item()
        for net, opt in zip(nets, opts, strict=True):
            train(net, opt, 1, first=step)
    assert torch.equal(*map(weights, nets))


@methods([key for key in EVERY if key not in ("ngvi", "bbb")])  # whose learning rate is also that of the precision
def test_a_learning_rate_of_zero_updates_the_statistics_only(method):
    net, opt = made(method, lr=0.0)
    mean, variance = weights(net), variance_of(opt)
    train(net, opt, 2)
    assert torch.equal(weights(net), mean)
    assert not torch.equal(variance_of(opt), variance)


def test_beta_scheduler_follows_equation_104():
    net = make_net()
    opt = Method("vadam")(net, net[0].named_parameters("0"), betas=(0.9, 0.99))
    scheduler = ba.BetaScheduler(opt, polynomial_decay())
    for step in range(4):
        assert opt.param_groups[0]["betas"] == (0.9, pytest.approx(1 - 0.01 / (1 + step**0.55)))
        train(net, opt, 1, first=step)
        scheduler.step()
    other = Method("vadam")(net, net[0].named_parameters("0"), betas=(0.9, 0.99))
    resumed = ba.BetaScheduler(other, polynomial_decay())
    resumed.load_state_dict(scheduler.state_dict())
    assert other.param_groups[0]["betas"] == opt.param_groups[0]["betas"]
    opt.add_param_group({"params": list(net[2].named_parameters("2"))})
    scheduler.step()
    assert [group["betas"] for group in opt.param_groups] == [(0.9, pytest.approx(1 - 0.01 / (1 + 5**0.55)))] * 2


def test_half_cosine_is_that_of_torch():
    opt = torch.optim.SGD([torch.ones(1)], lr=1.0)
    scheduler = lr_scheduler.CosineAnnealingLR(opt, T_max=20)
    for step in range(21):
        assert half_cosine(step / 20) == pytest.approx(opt.param_groups[0]["lr"], abs=1e-14)
        opt.step()
        scheduler.step()
    assert half_cosine(0.0, flat=0.25) == half_cosine(0.25, flat=0.25) == 1.0
    assert half_cosine(0.5, flat=0.25) == pytest.approx(0.5 * (1.0 + math.cos(math.pi / 3.0)))
    assert half_cosine(1.0, flat=0.25) == 0.0


# Models and copies


def test_an_averaged_model_has_the_means():
    net, opt = made(Method("vadam"))
    average, seen = torch.optim.swa_utils.AveragedModel(net), []
    for step in range(3):
        train(net, opt, 1, first=step)
        average.update_parameters(net)
        seen.append(weights(net))
    torch.testing.assert_close(weights(average.module), torch.stack(seen).mean(0), rtol=0, atol=1e-6)


COPIERS = {"deepcopy": copy.deepcopy, "pickle": lambda pair: pickle.loads(pickle.dumps(pair))}


@ways([*REPRESENTATIVES, "ivon eager"])
@pytest.mark.parametrize("copier", COPIERS)
def test_copies_go_on_identically(method, mode, copier):
    net, opt = made(method)
    train(net, opt, 2, mode=mode)
    other, its = COPIERS[copier]((net, opt))
    assert torch.equal(mean_of(its), mean_of(opt))
    for one, two in ((net, opt), (other, its)):
        train(one, two, 2, first=2, mode=mode)
        two.eval()
    assert torch.equal(weights(net), weights(other))
    assert same(snapshot(opt), snapshot(its))


@representatives
def test_a_copy_made_inside_a_block_knows_the_mean(method):
    net, opt = made(method)
    train(net, opt, 2)
    mean = weights(net)
    with opt.sampled_params():
        other, its = copy.deepcopy((net, opt))
    assert not torch.equal(weights(other), mean)
    assert torch.equal(mean_of(its), mean)
    opt.zero_grad()
    plain = make_net()
    train(plain, method(plain), 2)
    assert torch.equal(weights(net), weights(plain))
    train(other, its, 1, first=2)


# torch.compile around a whole step: the graph breaks where it must, and numbers are the same


def run_compiled(key, mode, samples, backend):
    torch._dynamo.reset()
    counters.clear()
    net, opt = made(Method(key), mc_samples=samples)

    def train_step(x, y):
        make_step(opt, lambda: torch.nn.functional.mse_loss(net(x), y), mode)

    if mode == "train":
        opt.train()
    if backend is not None:
        train_step = torch.compile(train_step, backend=backend)
    for step in range(3):
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
        train_step(x, x[:, :2].sin())
    opt.eval()
    torch._dynamo.reset()
    assert opt.param_groups[0]["noise_step"] == 3
    assert (counters["frames"]["ok"] > 0) == (backend is not None)
    return weights(net), variance_of(opt)


COMPILED = [
    ("vadam", "block", 1, "eager"),
    ("vadam", "closure", 2, "eager"),
    ("ivon", "block", 2, "eager"),
    ("ivon eager", "train", 1, "eager"),
    ("vogn", "train", 1, "eager"),
    ("vadam", "train", 1, "aot_eager"),
]


@pytest.mark.parametrize(("key", "mode", "samples", "backend"), COMPILED)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_step_gives_the_same_numbers(key, mode, samples, backend):
    found, expected = (run_compiled(key, mode, samples, each) for each in (backend, None))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_model_that_is_compiled_alone_gives_the_same_numbers():
    net, other = make_net(), make_net()
    compiled = torch.compile(net, backend="eager")
    for model in (compiled, other):
        opt = Method("vadam")(model)
        for step in range(3):
            make_step(opt, lambda model=model, step=step: loss_of(model, step))
    torch.testing.assert_close(weights(net), weights(other), rtol=1e-6, atol=1e-7)
    torch._dynamo.reset()
