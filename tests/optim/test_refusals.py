"""What optimisers refuse: hyper-parameters, groups, calls in a wrong order, losses and files that do not fit."""

import copy
import math
import re

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.optim import polynomial_decay
from optim.methods import Method, in_blocks, loss_of, made, make_net, train
from optim.test_contract_posterior import constant_prior
from refusals import assert_refused, refusals

BAD = [
    ("lr", -0.1, "a number or a 1-element tensor, finite and at least 0"),
    ("lr", torch.ones(2), "a number or a 1-element tensor"),
    ("lr", math.nan, "a number or a 1-element tensor"),
    ("betas", (0.9, 1.0), "a pair of numbers in [0, 1)"),
    ("betas", 0.9, "a pair of numbers"),
    ("num_data", 0, "a positive, finite number"),
    ("num_data", None, "a positive, finite number"),
    ("mc_samples", 0, "a whole number of at least 1"),
    ("mc_samples", 1.5, "a whole number of at least 1"),
    ("seed", -1, "an integer in [0, 2**64)"),
    ("seed", 0.5, "an integer"),
    ("antithetic", 1, "True or False"),
    ("maximize", "no", "True or False"),
    ("nonfinite", "ignore", "'raise' or 'skip'"),
    ("compile", "yes", "True or False"),
    ("initial_precision", -1.0, "a positive, finite number"),
    ("initial_precision", 1e-3, "at least prior_precision="),
    ("prior_precision", 0.0, "a positive, finite number"),
    ("prior_precision", math.inf, "a positive, finite number"),
    ("temperature", 1.5, "in [0, 1]"),
    ("temperature", -0.1, "in [0, 1]"),
]


def made_of(key, **options):
    return lambda net: Method(key)(net, **options)


def dense(**options):
    return lambda net: ba.DenseVON(net.parameters(), **{"num_data": 10, **options})


def dense_of(*parameters):
    return lambda net: ba.DenseVON(list(parameters), num_data=10)


def groups_of(**options):
    return lambda net: ba.param_groups(net, **options)


def parameter(*shape, requires_grad=True, **options):
    return nn.Parameter(torch.zeros(*shape, **options), requires_grad=requires_grad)


def vadagrad(groups):
    return lambda net: ba.VadaGrad(groups(net), num_data=5, initial_precision=3.0)


def covered(net, **changes):
    """A prior for the network, with other variances of some parameters."""
    q = constant_prior(net, 0.25, 0.01)
    for name, value in changes.items():
        q.variance[name.replace("_", ".")].fill_(value)
    return q


def with_prior(params=None, initial_precision=None, **changes):
    options = {} if initial_precision is None else {"initial_precision": initial_precision}
    return lambda net: Method("vadam")(net, params and params(net), prior=covered(net, **changes), **options)


class Sharded(nn.Parameter):
    """What the library takes for a sharded parameter."""

    device_mesh = placements = None


def sharded(**options):
    return lambda net: ba.VON([Sharded(torch.zeros(3))], num_data=10, **options)


WEIGHT_DECAY = r"^weight_decay must be a finite number of at least 0, got "
NO_PRIOR = r"^prior_precision must not be given to VadaGrad, which has no prior, got "
CONSTRUCTORS = [
    *(
        (made_of(key, **{name: value}), f"^{name} must be {re.escape(rule)}.*, got ")
        for key in ("vadam", "ivon", "vogn", "von exact")
        for name, value, rule in BAD
    ),
    *((dense(**{name: value}), f"^{name} must be {re.escape(rule)}.*, got ") for name, value, rule in BAD[:10]),
    # of one method
    (lambda net: ba.BayesAdam(net.parameters(), num_data=5, total_steps=9), TypeError, "batch_size"),
    (made_of("vadagrad", temperature=1.0), TypeError, "temperature"),
    (made_of("vadagrad", initial_precision=None), "initial_precision must be a positive, finite number"),
    (vadagrad(lambda net: ba.param_groups(net, prior_precision=7.0)), NO_PRIOR),
    (vadagrad(lambda net: [{"params": net.parameters(), "prior_precision": "none"}]), NO_PRIOR),
    (made_of("bayesadam", total_steps=-1), "total_steps must be a positive, finite number, got -1"),
    (made_of("ngvi", lr=1.5), "lr must be at most 1, got 1.5"),
    (made_of("vadam", mc_samples=3, antithetic=True), "mc_samples must be even when antithetic=True, got 3"),
    (made_of("vogn", curvature="squares"), "curvature must be a PerExampleSquares of the model, got 'squares'"),
    (made_of("vogn", curvature=ba.PerExampleSquares(make_net())), "curvature must be made for the model of these par"),
    (made_of("von", hessian="diagonal"), r"hessian must be one of \('reparameterized', 'exact', 'hutchinson'\)"),
    (made_of("von", correction="none"), r"correction must be one of \('elementwise', 'backtracking', None\)"),
    (made_of("van", probes=1.5), "probes must be a whole number of at least 1, got 1.5"),
    (sharded(hessian="exact"), "hessian must be 'reparameterized' for sharded parameters, got 'exact'"),
    (sharded(correction="backtracking"), "correction must be 'elementwise' for sharded parameters, got 'backtrack"),
    (sharded(correction=None), "correction must be 'elementwise' for sharded parameters, got None"),
    (dense(hessian="hutchinson"), r"hessian must be one of \('exact', 'reparameterized'\), got 'hutchinson'"),
    (dense(correction="backtracking"), r"correction must be one of \('elementwise', None\), got 'backtracking'"),
    (dense(clip_radius=0.0), "clip_radius must be positive, got 0.0"),
    (dense(initial_precision=1e-3), "initial_precision must be at least prior_precision="),
    (dense(temperature=1.5), r"temperature must be in \[0, 1\]"),
    # parameters
    (lambda net: ba.Vadam(set(net.parameters()), num_data=1), "params must be a list or .* collection, got a set"),
    (lambda net: ba.Vadam(frozenset(net.parameters()), num_data=1), "params must be a list or .*, got a frozenset"),
    (lambda net: ba.DenseVON(set(net.parameters()), num_data=1), "params must be a list or .* collection, got a set"),
    (
        lambda net: ba.Vadam([parameter(2), parameter(2, dtype=torch.complex64)], num_data=1),
        r"parameter 1 of the group must be real, got dtype torch\.complex64",
    ),
    (dense_of(parameter(6_000), parameter(6_000)), "must be 1 to 10,000, got 12000"),
    (dense_of(parameter(3, requires_grad=False)), "parameter 0 must be .*, got Parameter in .*, requires_grad=False"),
    (dense_of(nn.UninitializedParameter()), "parameter 0 must be initialized, trainable and .*, got Uninitialized"),
    (dense_of(parameter(3, dtype=torch.bfloat16)), "parameter 0 must be .*, got Parameter in torch.bfloat16, req"),
    (dense_of({"params": [parameter(3)], "weight_decay": 0.1}), "weight_decay must be given as a prior"),
    (
        lambda net: ba.DenseVON([{"params": part.named_parameters()} for part in (net[0], net[2])], num_data=10),
        RuntimeError,
        "all parameters must be in one group, got another one",
    ),
    # priors
    (with_prior(lambda net: net.parameters()), "prior must be matched by name"),
    (with_prior(lambda net: [("other", parameter(3))]), "prior must have the parameter 'other'"),
    (with_prior(lambda net: [("0.bias", parameter(3))]), r"prior of '0.bias' must be of shape \(3,\)"),
    (with_prior(**{"2_bias": 0.0}), "prior of '2.bias' must have positive variances, got 0"),
    (with_prior(initial_precision=3.0), "initial_precision must be at least the prior"),
    # groups
    (groups_of(weight_decay=0.1, prior_precision=2.0), "weight_decay must not be given together with prior_precision"),
    (groups_of(weight_decay=-0.1, num_data=5), WEIGHT_DECAY + "-0.1"),
    (groups_of(weight_decay="0.1", num_data=5), WEIGHT_DECAY + "'0.1'"),
    (groups_of(weight_decay=0.1), "num_data must be a positive, finite number, to convert weight_decay"),
    (groups_of(weight_decay=0.1, num_data=5, temperature=0.0), r"temperature must be in \(0, 1\], got 0.0"),
    # schedules
    (lambda net: ba.BetaScheduler(torch.optim.SGD(net.parameters()), lambda t: 1.0), "optimizer must have betas, got"),
    (
        lambda net: ba.BetaScheduler(Method("vadam")(net), lambda t: 0.0),
        r"factor must keep betas\[1\] in \[0, 1\), got 1.0 at step 0",
    ),
    (lambda net: polynomial_decay(0), "power must be positive, got 0"),
]


@refusals(CONSTRUCTORS)
def test_constructors(call, error, message):
    if error is TypeError:  # Python's own words
        with pytest.raises(TypeError, match=message):
            call(make_net())
    else:
        assert_refused(call, error, message, make_net())


def test_a_parameter_that_is_there_twice():
    net = make_net()
    with pytest.warns(UserWarning, match="duplicate parameters"):  # PyTorch's, which trains it with two steps
        assert_refused(
            lambda net: ba.Vadam([net[0].weight, net[0].weight], num_data=10),
            ValueError,
            r"^params must have every parameter once .*, got one twice",
            net,
        )


GROUPS = [
    ("von", {"lr": -1.0}, "lr must be"),
    ("von", {"perturb": "no"}, "perturb must be True or False"),
    ("von", {"nonfinite": "skip"}, "nonfinite must be the same in all groups, got 'skip'"),
    ("von", {"mc_samples": 2}, "mc_samples must be the same in all groups, got 2"),
    ("von", {"hessian": "exact"}, "hessian must be the same in all groups, got 'exact'"),
    ("von", {"correction": "backtracking"}, "correction must be the same in all groups, got 'backtracking'"),
    ("von", {"weight_decay": 1e-4}, r"weight_decay must be given as a prior \(ba.*\) converts it\), got 0.0001"),
    ("von", {"params": {parameter(2)}}, "params must be a list or another ordered collection, got a set"),
    ("von exact", {"params": [("s", Sharded(torch.zeros(3)))]}, "hessian must be 'reparameterized' for sharded param"),
    (
        "von backtracking",
        {"params": [("s", Sharded(torch.zeros(3)))]},
        "correction must be 'elementwise' for sharded param",
    ),
    ("vogn", {"params": [("extra", parameter(2))]}, r"does not have the parameter 'extra' of shape \(2,\)"),
]


@pytest.mark.parametrize(("key", "group", "message"), GROUPS)
def test_groups_that_are_added_later(key, group, message):
    net = make_net()
    opt = Method(key)(net, list(net[0].named_parameters("0")))
    group = {"params": net[2].named_parameters("2"), **group}
    assert_refused(lambda opt: opt.add_param_group(group), ValueError, message, opt)
    assert len(opt.param_groups) == 1
    if key == "von":
        train(net, opt, 1)


def inside(function):
    """The function is called in a sampling block."""

    def call(net, opt):
        with opt.sampled_params():
            function(net, opt)

    return call


def after_blocks(function, count=1):
    """The function is called after sampling blocks without a loss."""

    def call(net, opt):
        for _ in range(count):
            with opt.sampled_params():
                pass
        function(net, opt)

    return call


def then_at_the_mean(function):
    """The function is called, and then the weights hold the mean again."""

    def call(net, opt):
        try:
            function(net, opt)
        finally:
            opt.eval()

    return call


def drawn(function):
    """The function is called while the weights hold a sample."""
    return then_at_the_mean(lambda net, opt: (opt.train(), function(net, opt)))


def blocks_and_train(net, opt):
    in_blocks(opt, lambda: loss_of(net))
    opt.train()


def step(net, opt):
    opt.step()


def differentiated(net):
    loss = loss_of(net)
    loss.backward()
    return loss


def handed_over(change):
    """A block in which the gradients are changed after the loss was handed over."""
    return inside(lambda net, opt: (opt.backward(loss_of(net)), change(net)))


def outside_gradient(net, opt):
    loss_of(net).backward()
    opt.step()


def posterior(model=lambda net: None):
    return lambda net, opt: opt.posterior(model(net))


NO_BACKWARD = r"^closure must call backward\(\) on the loss, got no gradient of any parameter"
CALLED_ONCE = r"loss.backward\(\) must not be called"
TWO_SAMPLES = [
    (step, r"sampled_params\(\).*closure.*train\(\)"),
    (after_blocks(step), r"step\(\) must follow exactly mc_samples=2 sampling blocks, got 1"),
    (inside(step), r"step\(\) must follow exactly mc_samples=2"),
    (
        after_blocks(lambda net, opt: opt.step(lambda: None)),
        r"step\(closure\) draws its own samples and must not follow blocks",
    ),
    (after_blocks(outside_gradient, 2), r"gradient of parameter '0\.weight' must be computed inside sampled_params"),
    (lambda net, opt: opt.backward(net[0].bias.sum()), r"backward\(\) must be called inside sampled_params\(\)"),
    (lambda net, opt: opt.train(), r"mc_samples must be 1 to use train\(\), got 2"),
]
ONE_SAMPLE = [
    (step, r"step\(\) must follow"),
    (drawn(inside(step)), r"sampled_params\(\) must not be used after train\(\)"),
    (then_at_the_mean(inside(lambda net, opt: opt.train())), r"train\(\) must be called outside"),
    (inside(lambda net, opt: opt.sampled_params().__enter__()), r"another sampled_params\(\) must be called outside"),
    (inside(lambda net, opt: opt.eval()), r"eval\(\) must be called outside"),
    (blocks_and_train, r"train\(\) must be called before sampled_params\(\)"),
    (lambda net, opt: opt.step(lambda: loss_of(net)), NO_BACKWARD),
    (
        drawn(lambda net, opt: opt.step(lambda: loss_of(net))),
        NO_BACKWARD,
    ),
    (
        lambda net, opt: opt.attach(make_net()),
        ValueError,
        "model must have all perturbed .* without '0.weight'",
    ),
    (posterior(lambda net: make_net()), ValueError, "model must have all perturbed parameters of the optimiser"),
]
DERIVATIVES = [
    (lambda net, opt: opt.step(lambda: differentiated(net)), CALLED_ONCE + " when hessian='"),
    (inside(lambda net, opt: differentiated(net)), r"must not be called .* call optimizer.backward\(loss\)"),
    (inside(lambda net, opt: opt.backward(differentiated(net))), CALLED_ONCE),
    (lambda net, opt: opt.step(lambda: None), TypeError, "closure must return the loss when hessian='.*', got None"),
    (lambda net, opt: opt.step(lambda: 0.5), TypeError, r"closure must return the loss .*, got 0\.5"),
    (
        lambda net, opt: opt.step(lambda: net(torch.ones(2, 3).double())),
        ValueError,
        "loss must be one number, got a tensor of shape",
    ),
    (lambda net, opt: opt.train(), r"hessian must be 'reparameterized' to use train\(\), got"),
    (lambda net, opt: opt.backward(loss_of(net)), "must be called inside sampled_p"),
    (handed_over(lambda net: loss_of(net).backward()), "must not be changed inside"),
    (
        handed_over(lambda net: nn.utils.clip_grad_norm_(net.parameters(), 1e-3)),
        "must not be changed inside the block",
    ),
    (handed_over(lambda net: net.zero_grad()), "must not be changed inside the block"),
]


def calls():
    """Rows of a method, its options, the call, the error and the message."""
    for keys, options, rows in (
        (("vadam", "ivon eager"), {"mc_samples": 2}, TWO_SAMPLES),
        (("vadam", "ivon", "bayesadam", "vogn", "von"), {}, ONE_SAMPLE),
        (("von exact", "von hutchinson"), {"dtype": torch.float64}, DERIVATIVES),
    ):
        for key in keys:
            for call, *error, message in rows:
                yield key, options, call, *(error or [RuntimeError]), message


@pytest.mark.parametrize(("key", "options", "call", "error", "message"), list(calls()))
def test_calls_of_a_trained_optimiser(key, options, call, error, message):
    """After an error, training goes on."""
    net, opt = made(Method(key), **options)
    train(net, opt, 1)
    opt.zero_grad()
    assert_refused(lambda opt: call(net, opt), error, message, opt)
    before = net[0].weight.detach().clone()
    opt.zero_grad()
    train(net, opt, 1)
    assert not torch.equal(net[0].weight, before)


def test_a_factor_out_of_range_changes_no_group():
    net = make_net()
    groups = [
        {"params": net[0].parameters(), "betas": (0.9, 0.999)},
        {"params": net[2].parameters(), "betas": (0.9, 0.5)},
    ]
    scheduler = ba.BetaScheduler(ba.Vadam(groups, num_data=10), lambda step: 1.0 + 2.0 * step)
    message = r"^factor must keep betas\[1\] in \[0, 1\), got -0.5 at step 1"
    assert_refused(lambda opt: scheduler.step(), ValueError, message, scheduler.optimizer)


def without_mean(saved):
    del saved["state"][0]["mean"]


def with_fewer_parameters(saved):
    del saved["param_groups"][0]["params"][-1]


def replaced(number, value, *names):
    def change(saved):
        state = saved["state"][number]
        state[next(name for name in state if name in names)] = value

    return change


SECOND = ("exp_avg_sq", "hessian")
NOT_A_STATE = {
    "of no elements": torch.zeros(0),
    "of three": torch.zeros(3),
    "in half precision": torch.zeros(8, 3, dtype=torch.float16),
    "no tensor": 1.0,
    "missing": None,
}
FILES = [
    (without_mean, r"the state of parameter 0 must have a tensor 'mean' of shape .*, got None"),
    (replaced(1, torch.zeros(9), "mean"), r"the state of parameter 1 must be of shape \(8,\), got \(9,\)"),
    (replaced(2, torch.zeros(9), *SECOND), r"parameter 2 must be of shape \(2, 8\), got \(9,\) for '.*'"),
    *(
        (replaced(0, value, *names), "the state of parameter 0 must")
        for names in (("mean",), ("step",), SECOND)
        for kind, value in NOT_A_STATE.items()
        if (names, kind) != (("step",), "no tensor")
    ),
    (
        with_fewer_parameters,
        r"must have groups of \[4\] parameters, got \[3\]",
    ),
    (
        lambda saved: saved["param_groups"][0].update(method="Other"),
        "method of the .* must be '.*', got 'Other'",
    ),
]


@pytest.mark.parametrize("key", ["vadam", "ivon", "vogn", "von exact"])
@pytest.mark.parametrize("by_hook", [False, True])
@refusals(FILES)
def test_state_dicts(call, error, message, by_hook, key):
    """Also if it is a pre-hook that makes it so."""
    net, opt = made(Method(key))
    train(net, opt, 1)
    opt.attach(net)
    saved = copy.deepcopy(opt.state_dict())
    foreign = copy.deepcopy(saved)
    train(net, opt, 1, first=1)
    if by_hook:
        handle = opt.register_load_state_dict_pre_hook(lambda _, loaded: call(loaded))
    else:
        call(foreign)
    assert_refused(lambda opt: opt.load_state_dict(foreign), error, message, opt)
    if by_hook:
        handle.remove()
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["noise_step"] == 1


@pytest.mark.parametrize(("target", "origin"), [("vprop", "vadam"), ("von", "natural_von"), ("von", "von exact")])
def test_state_dicts_of_another_method_that_have_all_that_is_needed(target, origin):
    saved, (_, opt) = made(Method(origin))[1].state_dict(), made(Method(target))
    assert_refused(lambda opt: opt.load_state_dict(saved), ValueError, "of the state_dict must be", opt)
