"""State, checkpoints and the posterior of every registered optimiser: whatever is saved holds the mean."""

import copy
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as dcp_state

import bayesadam as ba
from optim.conftest import Method, batch, every_method, loss_of, make_net, same, snapshot, train, weights
from processes import PROCESSES

MODES = ["block", "closure", "train"]
BF16 = torch.bfloat16


def fresh(method, dtype=torch.float32, **kwargs):
    net = make_net(dtype)
    return net, method(net.named_parameters(), **kwargs)


def scrambled(method, dtype=torch.float32, **kwargs):
    """A network and optimiser in which nothing is as it was saved."""
    net, opt = fresh(method, dtype, **kwargs)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_()
    return net, opt


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_state_has_the_standard_form(method, dtype):
    net, opt = fresh(method, dtype)
    train(net, opt, 2)
    for p in net.parameters():
        state = opt.state[p]
        assert set(state) == {
            *("step", "beta1_product", "beta2_product", "initial_weight", "mean"),
            *method.cls.rule.state,
            *(["prior_precision"] if method.own_prior else []),
        }
        assert state["step"] == 2
        for value in state.values():
            assert isinstance(value, int | float | torch.Tensor)
    assert set(opt.state) == set(net.parameters())
    assert not any(torch.is_tensor(v) for g in opt.param_groups for k, v in g.items() if k != "params")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("model_first", [True, False])
def test_resuming_is_bit_identical(method, mode, dtype, model_first, tmp_path):
    check_resuming(method, mode, dtype, model_first, tmp_path)


@every_method
@pytest.mark.parametrize("mode", MODES)
def test_resuming_every_state_is_bit_identical(method, mode, tmp_path):
    check_resuming(method, mode, torch.float32, True, tmp_path)


def check_resuming(method, mode, dtype, model_first, tmp_path):
    net, opt = fresh(method, dtype)
    opt.attach(net)
    train(net, opt, 3, mode=mode)
    torch.save({"model": net.state_dict(), "opt": opt.state_dict()}, tmp_path / "c.pt")
    train(net, opt, 3, first=3, mode=mode)
    other_net, other = scrambled(method, dtype, seed=99, num_data=7)
    other.attach(other_net)
    saved = torch.load(tmp_path / "c.pt", weights_only=True)
    if model_first:
        other_net.load_state_dict(saved["model"])
    other.load_state_dict(saved["opt"])
    if not model_first:
        other_net.load_state_dict(saved["model"])
    train(other_net, other, 3, first=3, mode=mode)
    assert torch.equal(weights(net), weights(other_net))
    one, two = snapshot(opt), snapshot(other)
    assert same(one, two)
    assert one[0][0]["num_data"] == 50


@pytest.fixture(scope="module")
def elsewhere():
    """Runs a function in another process, which has seen nothing of this one."""
    with ProcessPoolExecutor(1, PROCESSES) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result(timeout=120)


def resumed(key, mode, samples, path):
    torch.set_num_threads(1)
    net = make_net()
    opt = Method(key)(net.named_parameters(), mc_samples=samples)
    saved = torch.load(path, weights_only=True)
    net.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    train(net, opt, 4, first=3, mode=mode)
    opt.eval()
    return weights(net).tolist()


@pytest.mark.parametrize(("mode", "samples"), [("block", 2), ("train", 1)])
def test_resuming_in_a_new_process_is_bit_identical(method, mode, samples, tmp_path, elsewhere):
    net, opt = fresh(method, mc_samples=samples)
    opt.attach(net)
    train(net, opt, 3, mode=mode)
    torch.save({"model": net.state_dict(), "opt": opt.state_dict()}, tmp_path / "c.pt")
    train(net, opt, 4, first=3, mode=mode)
    opt.eval()
    assert elsewhere(resumed, method.key, mode, samples, tmp_path / "c.pt") == weights(net).tolist()


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize("model_first", [True, False])
def test_a_checkpoint_taken_inside_a_block_holds_the_mean(method, attached, model_first):
    net, opt = fresh(method)
    if attached:
        opt.attach(net)
    train(net, opt, 2)
    mean = weights(net)
    with opt.sampled_params(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        saved = copy.deepcopy({"model": net.state_dict(), "opt": opt.state_dict()})
        loss_of(net, 2).backward()
    opt.step()
    other_net, other = scrambled(method)
    loads = [lambda: other_net.load_state_dict(saved["model"]), lambda: other.load_state_dict(saved["opt"])]
    for load in loads if model_first else loads[::-1]:
        load()
    assert torch.equal(torch.cat([m.double().flatten() for m in other.posterior().mean.values()]), mean)
    if attached or model_first:
        assert torch.equal(weights(other_net), mean)
    train(other_net, other, 1, first=2)
    assert torch.equal(weights(net), weights(other_net))


@pytest.mark.parametrize("model_first", [True, False])
def test_a_drop_in_checkpoint_of_an_unattached_model_rebuilds_the_sample(method, model_first):
    net, opt = fresh(method)
    train(net, opt, 2, mode="train")
    with pytest.warns(UserWarning, match=r"posterior sample.*attach\(model\) once, or optimizer.eval\(\) before"):
        saved = copy.deepcopy({"model": net.state_dict(), "opt": opt.state_dict()})
    other_net, other = scrambled(method)
    if model_first:
        other_net.load_state_dict(saved["model"])
    other.load_state_dict(saved["opt"])
    if not model_first:
        other_net.load_state_dict(saved["model"])
    assert torch.equal(weights(net), weights(other_net))
    for one, two in ((net, opt), (other_net, other)):
        train(one, two, 2, first=2, mode="train")
        two.eval()
    assert torch.equal(weights(net), weights(other_net))


def test_the_mean_loaded_behind_an_unattached_drop_in_optimiser_becomes_the_sample_again(method):
    net, opt = fresh(method)
    train(net, opt, 2, mode="train")
    opt.attach(net)
    sample, saved = weights(net), copy.deepcopy(net.state_dict())
    opt2_net, opt2 = scrambled(method)
    opt2.load_state_dict(opt.state_dict())
    opt2_net.load_state_dict(saved)
    assert not torch.equal(weights(opt2_net), sample)
    loss_of(opt2_net).backward()
    with pytest.raises(RuntimeError, match=r"call train\(\) after loading"):
        opt2.step()
    opt2.train()
    assert torch.equal(weights(opt2_net), sample)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_checkpoint_replaces_a_drop_in_run_in_either_order(method, dtype):
    """The sample's mean must not be written over a model that was loaded first."""
    net, opt = fresh(method, dtype)
    train(net, opt, 2)
    saved = copy.deepcopy({"model": net.state_dict(), "opt": opt.state_dict()})
    other_net, other = scrambled(method, dtype)
    other.train()
    other_net.load_state_dict(saved["model"])
    other.load_state_dict(saved["opt"])
    assert torch.equal(weights(other_net), weights(net))
    assert same(other.posterior().mean, opt.posterior().mean)
    assert same(snapshot(other), snapshot(opt))


def test_a_drop_in_run_rolled_back_in_part_restores_the_rest(method):
    """What others wrote the sample's own values to holds the sample all the same."""
    net, opt = fresh(method)
    train(net, opt, 1)
    saved, mean = copy.deepcopy(opt.state_dict()), weights(net)
    opt.train()
    with torch.no_grad():
        net[0].weight.add_(0.0)
        net[2].bias.fill_(7.0)
    opt.load_state_dict(saved)
    assert torch.equal(weights(net[0]), mean[:32])
    assert torch.equal(net[2].weight.detach().double().flatten(), mean[32:48])
    assert net[2].bias.tolist() == [7.0, 7.0]


def test_weights_loaded_during_drop_in_training_are_the_mean_after_eval(method):
    net, opt = fresh(method)
    train(net, opt, 1)
    best = copy.deepcopy(net.state_dict())
    train(net, opt, 2, first=1, mode="train")
    net.load_state_dict(best)
    with pytest.warns(UserWarning, match=r"parameter '0.weight' did not hold the sample .*taken as the mean"):
        opt.eval()
    assert same({n: p.detach() for n, p in net.named_parameters()}, dict(best))
    assert same(opt.posterior().mean, dict(best))
    opt.train()
    opt.eval()
    assert same(opt.posterior().mean, dict(best))


def test_the_mean_loaded_during_drop_in_training_is_kept_by_eval(method):
    net, opt = fresh(method, BF16)
    train(net, opt, 2, mode="train")
    before = opt.posterior().mean
    opt.attach(net)
    mean = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(mean[name])  # as a model that is not attached is loaded
    opt.eval()
    assert same({n: p.detach() for n, p in net.named_parameters()}, dict(mean))
    assert same(opt.posterior().mean, before)  # with the bits that bfloat16 has not


def test_attached_models_give_and_take_the_mean(method):
    net, opt = fresh(method)
    opt.attach(net)
    train(net, opt, 2, mode="train")
    mean = opt.posterior().mean
    assert same(dict(net.state_dict()), mean)
    assert same({k: v.detach() for k, v in net.state_dict(keep_vars=True).items()}, mean)
    wrapper = torch.nn.ModuleDict({"inner": net})
    assert same(dict(wrapper.state_dict()), {f"inner.{k}": v for k, v in mean.items()})
    replacement = {name: value + 1 for name, value in mean.items()}
    net.load_state_dict(replacement)
    assert not torch.equal(net[0].weight, replacement["0.weight"])  # the sample around the new mean
    opt.eval()
    assert same({n: p.detach() for n, p in net.named_parameters()}, replacement)


def test_attached_models_give_the_mean_inside_a_block(method):
    net, opt = fresh(method)
    opt.attach(net)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with opt.sampled_params():
        assert same(dict(net.state_dict()), before)
        loss_of(net).backward()


@pytest.mark.parametrize("wrap", [torch.compile, lambda net: torch.nn.ModuleDict({"module": net})])
def test_what_an_attached_model_wraps_and_its_parts_give_and_take_the_mean(method, wrap):
    net, opt = fresh(method)
    wrapper = wrap(net)
    opt.attach(wrapper)
    train(net, opt, 1, mode="train")
    mean = opt.posterior().mean
    assert same(list(wrapper.state_dict().values()), list(mean.values()))
    assert same(dict(net.state_dict()), mean)
    assert same(dict(net[2].state_dict()), {"weight": mean["2.weight"], "bias": mean["2.bias"]})
    replacement = {"weight": mean["2.weight"] + 1, "bias": mean["2.bias"] + 1}
    net[2].load_state_dict(replacement)
    assert not torch.equal(net[2].weight, replacement["weight"])  # the sample around the new mean
    opt.eval()
    assert same(dict(net[2].state_dict()), replacement)
    assert torch.equal(net[0].weight, mean["0.weight"])


def test_layers_added_to_an_attached_model_give_the_mean_too(method):
    method.skip_matrix("no group can be added")
    net, opt = fresh(method)
    opt.attach(net)
    net.append(torch.nn.Linear(2, 2))
    opt.add_param_group({"params": list(net[3].named_parameters(prefix="3"))})
    opt.train()
    assert same(dict(net.state_dict()), opt.posterior().mean)


def test_attached_models_can_be_copied_and_pickled(method):
    net, opt = fresh(method)
    opt.attach(net)
    opt.train()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert same(dict(other.state_dict()), {n: p.detach() for n, p in net.named_parameters()})


def test_attach_refuses_another_model(method):
    _, opt = fresh(method)
    with pytest.raises(
        ValueError, match="model must have all perturbed parameters of the optimiser, got a model without number 0"
    ):
        opt.attach(make_net())
    assert "param_names" in opt.param_groups[0]


@pytest.mark.parametrize("what", ["missing state", "other shape", "other groups"])
def test_a_foreign_state_dict_is_refused_and_changes_nothing(method, what):
    net, opt = fresh(method)
    train(net, opt, 1, mode="train")
    opt.attach(net)
    saved = copy.deepcopy(opt.state_dict())
    holds, before = weights(net), snapshot(opt)
    if what == "missing state":
        del saved["state"][0]["mean"]
        message = r"the state of parameter 0 must have .*, got none for \['mean'\]"
    elif what == "other shape":
        saved["state"][1]["mean"] = torch.zeros(9)
        message = r"the state of parameter 1 must be of shape \(8,\), got \(9,\)"
    else:
        saved["param_groups"][0]["params"].pop()
        message = r"state_dict must have groups of \[4\] parameters, got \[3\]"
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(saved)
    assert torch.equal(weights(net), holds)
    assert same(snapshot(opt), before)


def test_a_checkpoint_of_another_method_is_refused(method):
    """Also where it has all that is needed."""
    net, opt = fresh(method)
    train(net, opt, 1)
    before, saved = snapshot(opt), copy.deepcopy(opt.state_dict())
    saved["param_groups"][0]["method"] = "Other"
    own = method.cls.__name__
    with pytest.raises(ValueError, match=f"^method of the state_dict must be '{own}', got 'Other'"):
        opt.load_state_dict(saved)
    assert same(snapshot(opt), before)
    del saved["param_groups"][0]["method"]
    with pytest.raises(ValueError, match=f"^method of the state_dict must be '{own}', got None"):
        opt.load_state_dict(saved)
    assert same(snapshot(opt), before)


@pytest.mark.parametrize(("target", "origin"), [("vprop", "vadam"), ("von", "natural_von"), ("van", "von")])
def test_a_checkpoint_with_all_that_another_method_needs_is_refused(target, origin):
    saved = fresh(Method(origin))[1].state_dict()
    with pytest.raises(ValueError, match="method of the state_dict must be"):
        fresh(Method(target))[1].load_state_dict(saved)


def test_loading_does_not_share_tensors(method):
    net, opt = fresh(method)
    train(net, opt, 2)
    saved = opt.state_dict()
    _, other = scrambled(method)
    other.load_state_dict(saved)
    held = copy.deepcopy(saved)
    train(net, opt, 1)
    other_state = [v for s in other.state.values() for v in s.values()]
    assert same(other_state, [v for s in held["state"].values() for v in s.values()])


# Distributed checkpoints, in one process without a process group


def test_a_fresh_step_with_rate_zero_only_creates_state(method):
    net, opt = fresh(method, lr=0.0)
    mean = weights(net)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    opt.step(closure=None)
    assert torch.equal(weights(net), mean)
    assert len(opt.state) == 4
    assert opt.param_groups[0]["noise_step"] == 0
    assert all(s["step"] == 0 for s in opt.state.values())
    net[0].weight.grad.fill_(1.0)
    with pytest.raises(RuntimeError, match=r"step\(\) must follow exactly mc_samples=1"):
        opt.step()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("flat", [False, True])
def test_distributed_checkpoint_round_trip(method, mode, flat, tmp_path):
    net, opt = fresh(method)
    opt.attach(net)
    train(net, opt, 3, mode=mode)
    options = dcp_state.StateDictOptions(flatten_optimizer_state_dict=flat)
    model_sd, opt_sd = dcp_state.get_state_dict(net, opt, options=options)
    quietly(dcp.save, {"model": model_sd, "opt": opt_sd}, checkpoint_id=tmp_path)
    train(net, opt, 3, first=3, mode=mode)
    other_net, other = scrambled(method)
    model_sd, opt_sd = dcp_state.get_state_dict(other_net, other, options=options)
    target = {"model": model_sd, "opt": opt_sd}
    quietly(dcp.load, target, checkpoint_id=tmp_path)
    dcp_state.set_state_dict(
        other_net, other, model_state_dict=target["model"], optim_state_dict=target["opt"], options=options
    )
    train(other_net, other, 3, first=3, mode=mode)
    assert torch.equal(weights(net), weights(other_net))


def quietly(function, *args, **kwargs):
    """torch itself warns when distributed checkpoints are used in a single process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


# The posterior and the prior


def test_posterior_is_named_and_copied(method):
    net, opt = fresh(method)
    train(net, opt, 2)
    q = opt.posterior()
    assert list(q.mean) == [name for name, _ in net.named_parameters()]
    assert q.hyperparameters["method"] == method.cls.__name__
    held = copy.deepcopy(q.mean)
    train(net, opt, 1)
    assert same(q.mean, held)
    opt.train()
    q = opt.posterior()
    held = copy.deepcopy(q.mean)
    train(net, opt, 1, mode="train")
    assert same(q.mean, held)


def test_posterior_needs_names_from_somewhere(method):
    net = make_net()
    opt = method(net.parameters())
    with pytest.raises(RuntimeError, match=r"posterior\(\) must know the parameters' names"):
        opt.posterior()
    names = [name for name, _ in net.named_parameters()]
    assert list(opt.posterior(net).mean) == names
    assert list(opt.posterior(torch.compile(net)).mean) == names  # not compiled before it is called
    with pytest.raises(ValueError, match="model must have all perturbed parameters of the optimiser"):
        opt.posterior(make_net())
    opt.attach(net)
    assert list(opt.posterior().mean) == names


def test_posterior_of_a_model_leaves_out_a_learned_noise_level(method):
    net, likelihood = make_net(), ba.Gaussian(learned=True)
    groups = [{"params": list(net.parameters())}, {"params": list(likelihood.parameters()), "perturb": False}]
    opt = method(groups)
    for step in range(3):
        with opt.sampled_params():
            likelihood.nll(net(batch(step)[0]), batch(step)[1]).backward()
        opt.step()
    assert likelihood.noise_precision.item() != 1.0
    names = [name for name, _ in net.named_parameters()]
    assert list(opt.posterior(net).mean) == names
    opt.attach(net)
    assert list(opt.posterior().mean) == names


@pytest.mark.parametrize("mode", MODES)
def test_posterior_mean_is_where_training_evaluates_the_noise(method, mode):
    net, opt = fresh(method)
    train(net, opt, 3, mode=mode)
    q = opt.posterior()
    opt.eval()
    assert same(q.mean, {n: p.detach() for n, p in net.named_parameters()})
    for variance in q.variance.values():
        assert (variance > 0).all()


@pytest.fixture(params=[name for name in ("vadam", "vprop", "ivon")])
def with_prior(request):
    return Method(request.param)


def test_a_posterior_continues_as_prior(with_prior):
    net, opt = fresh(with_prior)
    train(net, opt, 5)
    q = opt.posterior()
    other_net = make_net()
    other = with_prior(other_net.named_parameters(), prior=q, num_data=500)
    assert torch.equal(weights(other_net), weights(net))
    start = other.posterior()
    for name, variance in q.variance.items():
        assert torch.allclose(start.variance[name], torch.clamp(variance, max=1 / 500), rtol=1e-5)
    train(other_net, other, 5)
    restored_net = make_net()
    restored = with_prior(restored_net.named_parameters(), prior=q)
    restored_net.load_state_dict(other_net.state_dict())
    restored.load_state_dict(other.state_dict())
    for one, two in ((other_net, other), (restored_net, restored)):
        train(one, two, 2, first=5)
    assert torch.equal(weights(other_net), weights(restored_net))


def test_a_posterior_as_prior_pulls_to_its_mean(with_prior):
    net = make_net()
    center = {name: torch.full_like(p, 0.5) for name, p in net.named_parameters()}
    prior = ba.DiagonalGaussian(center, {name: torch.full_like(p, 0.1) for name, p in net.named_parameters()})
    opt = with_prior(net.named_parameters(), prior=prior, num_data=10)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    for _ in range(500):
        with opt.sampled_params():
            for p in net.parameters():
                p.grad = torch.zeros_like(p)
        opt.step()
    assert (weights(net) - 0.5).abs().max() < 0.05


def test_parameters_without_noise_continue_at_their_mean(with_prior):
    net, opt = make_net(), None
    groups = [
        {"params": list(net[0].named_parameters(prefix="0"))},
        {"params": list(net[2].named_parameters(prefix="2")), "perturb": False},
    ]
    opt = with_prior(groups)
    train(net, opt, 3)
    q = opt.posterior()
    other_net, likelihood = make_net(), ba.Gaussian(learned=True)
    other = with_prior(
        [
            {"params": list(other_net[0].named_parameters(prefix="0"))},
            {"params": list(other_net[2].named_parameters(prefix="2")), "perturb": False},
            {"params": list(likelihood.named_parameters()), "perturb": False},
        ],
        prior=q,
    )
    assert torch.equal(weights(other_net), weights(net))
    assert "prior_precision" in other.state[other_net[0].weight]
    assert "prior_precision" not in other.state[other_net[2].weight]
    train(other_net, other, 2)


def test_frozen_parameters_are_left_alone_when_continuing(with_prior):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    net[0].requires_grad_(False)
    frozen = weights(net[0]).clone()
    q = with_prior(net.named_parameters(), num_data=100).posterior(net)
    assert set(q.mean) == {"2.weight", "2.bias"}
    opt = with_prior(net.named_parameters(), prior=q, num_data=100)
    with opt.sampled_params():
        net(torch.ones(5, 3)).square().mean().backward()
    opt.step()
    assert torch.equal(weights(net[0]), frozen)
    assert set(opt.posterior(net).mean) == set(q.mean)


def test_prior_errors(with_prior):
    net, opt = fresh(with_prior)
    q = opt.posterior()
    cases = [
        (net.named_parameters(), {"prior": q, "prior_precision": 2.0}, "prior must not be given together"),
        (net.parameters(), {"prior": q}, "prior must be matched by name"),
        ([("other", torch.nn.Parameter(torch.ones(3)))], {"prior": q}, "prior must have the parameter 'other'"),
        ([("0.bias", torch.nn.Parameter(torch.ones(3)))], {"prior": q}, r"prior of '0.bias' must be of shape \(3,\)"),
        (net.named_parameters(), {"prior": q.prune(0.5)}, "must have positive variances, got 0"),
        (
            net.named_parameters(),
            {"prior": q, "initial_precision": 3.0},
            "initial_precision must be at least the prior",
        ),
    ]
    for params, kwargs, message in cases:
        before = weights(net)
        with pytest.raises(ValueError, match=message):
            with_prior(params, **kwargs)
        assert torch.equal(weights(net), before)


def test_prior_may_be_a_number(with_prior):
    nets = [make_net(), make_net()]
    for net, kwargs in zip(nets, [{"prior": 3.0}, {"prior_precision": 3.0}], strict=True):
        train(net, with_prior(net.named_parameters(), **kwargs), 3)
    assert torch.equal(*map(weights, nets))


# Schedules


def test_beta_scheduler_follows_equation_104(method):
    net, opt = fresh(method, betas=(0.9, 0.99))
    scheduler = ba.BetaScheduler(opt, ba.optim.polynomial_decay())
    for step in range(4):
        assert opt.param_groups[0]["betas"] == (0.9, pytest.approx(1 - 0.01 / (1 + step**0.55)))
        train(net, opt, 1, first=step)
        scheduler.step()
    _, other = fresh(method, betas=(0.9, 0.99))
    resumed = ba.BetaScheduler(other, ba.optim.polynomial_decay())
    resumed.load_state_dict(scheduler.state_dict())
    assert other.param_groups[0]["betas"] == opt.param_groups[0]["betas"]


def test_beta_scheduler_takes_groups_that_are_added_later(method):
    method.skip_matrix("no group can be added")
    net = make_net()
    opt = method(net[0].parameters(), model=net, betas=(0.9, 0.99))
    scheduler = ba.BetaScheduler(opt, ba.optim.polynomial_decay())
    scheduler.step()
    opt.add_param_group({"params": net[2].parameters()})
    scheduler.step()
    expected = (0.9, pytest.approx(1 - 0.01 / (1 + 2**0.55)))
    assert [group["betas"] for group in opt.param_groups] == [expected] * 2


def test_beta_scheduler_errors(method):
    _, opt = fresh(method)
    with pytest.raises(ValueError, match="optimizer must have betas, got SGD"):
        ba.BetaScheduler(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), lambda t: 1.0)
    with pytest.raises(ValueError, match=r"factor must keep betas\[1\] in \[0, 1\), got 1.0 at step 0"):
        ba.BetaScheduler(opt, lambda t: 0.0)
    with pytest.raises(ValueError, match="power must be positive, got 0"):
        ba.optim.polynomial_decay(0)
