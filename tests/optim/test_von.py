"""Methods that take second derivatives: exact posteriors, precisions that stay positive, and how they are called."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from optim.methods import Method, loss_of, made, make_net, same, snapshot, variance_of, weights
from optim.problems import Regression, relative, tensor

CLASSES = {"von": ba.VON, "van": ba.VAN, "ngvi": ba.NGVI, "natural_von": ba.NaturalVON}
PAIRS = {"mc_samples": 2, "antithetic": True, "hessian": "exact"}


def train(problem, opt, steps):
    for _ in range(steps):
        opt.step(problem.loss)


# Exact posteriors


@pytest.mark.parametrize(
    ("cls", "options", "steps", "outputs"),
    [
        (ba.VON, {"lr": 0.5, "betas": (0.0, 0.0)}, 120, 1),
        (ba.VON, {"lr": 0.5, "betas": (0.0, 0.7)}, 130, 2),
        (ba.NGVI, {"lr": 0.3}, 200, 2),
        (ba.NaturalVON, {"lr": 0.3, "betas": (0.4, 0.7)}, 120, 1),
    ],
    ids=["VON b2=0", "VON", "NGVI", "NaturalVON"],
)
def test_exact_hessian_reaches_the_optimal_mean_field_posterior(cls, options, steps, outputs):
    problem = Regression(outputs)
    mean, precision = problem.exact()
    opt = problem.make(cls, **PAIRS, **options)
    train(problem, opt, steps)
    assert relative(weights(problem.net), mean) < 1e-8
    assert relative(variance_of(opt).reciprocal(), precision.diagonal()) < 1e-8


@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_van_between_optimisation_and_inference_reaches_the_tempered_optimum(tau):
    problem = Regression()
    mean, precision = problem.exact(tau)
    opt = problem.make(ba.VAN, lr=0.9, temperature=tau, betas=(0.0, 0.7), **PAIRS)
    train(problem, opt, 240)
    assert relative(variance_of(opt).reciprocal(), precision.diagonal()) < 1e-8  # N h / tau + lambda
    assert relative(weights(problem.net), mean) < 1e-8


def test_van_at_temperature_0_anneals_to_the_most_likely_weights():
    problem = Regression()
    opt = problem.make(ba.VAN, lr=1.0, betas=(0.0, 0.9), **PAIRS)
    train(problem, opt, 40)
    assert relative(variance_of(opt).reciprocal(), 20.0 + 0.1 * 40 * problem.gram.diagonal()) < 1e-10
    train(problem, opt, 120)
    assert relative(weights(problem.net), problem.exact(tau=0.0)[0]) < 1e-4


def test_hutchinson_is_unbiased_for_a_hessian_with_correlations():
    problem = Regression(2)
    mean, precision = problem.exact()
    opt = problem.make(ba.VON, lr=0.3, betas=(0.0, 0.9), **{**PAIRS, "hessian": "hutchinson"})
    train(problem, opt, 60)
    average = torch.zeros_like(mean)
    for _ in range(300):
        train(problem, opt, 1)
        average += variance_of(opt).reciprocal() / 300
    assert relative(average, precision.diagonal()) < 0.05
    assert relative(weights(problem.net), mean) < 0.01


# Precisions stay positive


@pytest.mark.parametrize(
    ("name", "correction", "hessian", "temperature"),
    [
        ("von", "elementwise", "exact", 0.0),
        ("ngvi", "elementwise", "hutchinson", 1.0),
        ("natural_von", "elementwise", "reparameterized", 0.0),
        ("ngvi", "backtracking", "exact", 1.0),
        ("van", "backtracking", "hutchinson", 0.0),
        ("von", "backtracking", "reparameterized", 1.0),
    ],
)
def test_precision_stays_positive_under_wild_curvature(name, correction, hessian, temperature):
    parameter = nn.Parameter(tensor([0.3, -0.2, 0.1, 0.0]))
    rates = {"lr": 0.5} if name == "ngvi" else {"lr": 1e-3, "betas": (0.5, 0.1)}
    options = {"temperature": temperature, "hessian": hessian, "correction": correction, "mc_samples": 2, **rates}
    opt = CLASSES[name]([("w", parameter)], num_data=10, **options)
    negative = 0
    for step in range(60):
        for _ in range(2):
            with opt.sampled_params():
                wild = tensor([1.0, 30.0, 1e3, 1e-3])
                opt.backward((wild * torch.cos(3.0 * parameter + step)).sum())
                negative += int((torch.cos(3.0 * parameter + step) > 0).sum())
        opt.step()
        assert (variance_of(opt) > 0).all()
        assert variance_of(opt).isfinite().all()
    assert negative > 50


@pytest.mark.parametrize("wild_first", [False, True])
def test_backtracking_halves_the_largest_admissible_rate_of_all_weights_together(wild_first):
    first, second = (nn.Parameter(torch.full((2,), value, dtype=torch.float64)) for value in (0.5, -0.5))
    groups = [{"params": [("a", first)]}, {"params": [("b", second)], "betas": (0.0, 0.99)}]
    options = {"lr": 0.0, "prior_precision": 10.0, "betas": (0.0, 0.5), "hessian": "exact"}
    opt = ba.VON(groups, num_data=100.0, correction="backtracking", **options)
    start = 0.9  # s0 = (100 - 10) / 100, and s + d = 1
    # The second weight falls by 1 at rate 1, the last by 20: it becomes zero at rate 0.05
    curves = [tensor([3.0, -0.1]), tensor([2.0, -19.1])]
    if wild_first:
        curves.reverse()
    opt.step(lambda: 0.5 * sum((c * p.square()).sum() for c, p in zip(curves, (first, second), strict=True)))
    # 0.5 is too much for the first group; the second's own rate is smaller still
    for parameter, curve, rate in ((first, curves[0], 0.025), (second, curves[1], 0.01)):
        expected = start - rate * (start - curve)
        assert opt.state[parameter]["hessian"].tolist() == pytest.approx(expected.tolist(), rel=1e-13)
    opt.step(lambda: first.square().sum() + second.square().sum())  # nothing falls: the group's own rate again
    expected = 0.5 * (start - 0.025 * (start - curves[0]) + 2.0)
    assert opt.state[first]["hessian"].tolist() == pytest.approx(expected.tolist(), rel=1e-13)


def test_a_limit_of_backtracking_ends_with_it():
    """A run that changes the correction equals one that is resumed there in a new optimiser, and has the full rate."""
    found = []
    for resumed in (False, True):
        parameter = nn.Parameter(torch.full((2,), 0.5, dtype=torch.float64))
        options = {"num_data": 100.0, "betas": (0.0, 0.5), "hessian": "exact", "correction": "backtracking"}
        opt = ba.VON([("w", parameter)], **options)
        opt.step(lambda p=parameter: -50.0 * p.square().sum())
        if resumed:
            saved, opt = opt.state_dict(), ba.VON([("w", parameter)], **options)
            opt.load_state_dict(saved)
        before = opt.state[parameter]["hessian"].clone()
        opt.param_groups[0]["correction"] = "elementwise"
        opt.step(lambda p=parameter: p.square().sum())
        found.append((parameter.detach(), snapshot(opt)))
    assert same(*found)
    error = before - 2.0
    expected = before - 0.5 * error + 0.125 * error.square() / (before + 0.01)
    torch.testing.assert_close(opt.state[parameter]["hessian"], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("mode", ["block", "closure"])
def test_without_correction_an_indefinite_step_is_refused_and_nothing_changed(name, mode):
    parameters = [nn.Parameter(torch.full((3,), value, dtype=torch.float64)) for value in (0.5, -0.5)]
    options = {} if name == "ngvi" else {"betas": (0.5, 0.5)}
    opt = CLASSES[name](parameters, lr=0.5, num_data=10, hessian="exact", **options)
    assert opt.param_groups[0]["correction"] is None

    def loss(curve):
        return parameters[0].square().sum() + 0.5 * curve * parameters[1].square().sum()

    opt.step(lambda: loss(2.0))
    before, values = snapshot(opt), [p.detach().clone() for p in parameters]
    with pytest.raises(FloatingPointError, match="posterior precision must stay positive, .* nothing was changed"):
        if mode == "closure":
            opt.step(lambda: loss(-50.0))
        else:
            with opt.sampled_params():
                opt.backward(loss(-50.0))
            opt.step()
    assert same(snapshot(opt), before)
    assert same([p.detach() for p in parameters], values)
    opt.zero_grad()
    opt.step(lambda: loss(-0.01))  # a little negative curvature is no harm


def test_steps_that_are_refused_can_be_skipped_and_are_counted():
    parameter = nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = ba.VON([parameter], num_data=10, hessian="exact", betas=(0.0, 0.5), nonfinite="skip")
    for curve in (1.0, -50.0, 1.0, -50.0):
        states = snapshot(opt)[1]
        opt.step(lambda curve=curve: 0.5 * curve * parameter.square().sum())
        assert same(snapshot(opt)[1], states) == (curve < 0)
    assert opt.param_groups[0]["skipped_steps"] == 2


@pytest.mark.parametrize("correction", [None, "elementwise", "backtracking"])
def test_a_hessian_that_is_not_finite_changes_nothing(correction):
    """At 0 the gradient of ``x^1.5`` is 0 and its second derivative infinite."""
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    opt = ba.VON([parameter], num_data=10, hessian="exact", correction=correction)
    opt.step(lambda: parameter.square().sum())
    opt.zero_grad()
    before = snapshot(opt)
    with pytest.raises(FloatingPointError, match="curvature of parameter number 0 must be finite, got inf or nan"):
        opt.step(lambda: (parameter - parameter.detach()).pow(1.5).sum())
    assert same(snapshot(opt), before)


# How they are called


@pytest.fixture(params=["von exact", "von hutchinson"])
def case(request):
    net = make_net(torch.float64)
    return net, Method(request.param)(net)


def test_zero_grad_in_a_block_forgets_what_was_handed_over():
    results = []
    for twice in (False, True):
        net, opt = made(Method("von exact"), torch.float64)
        with opt.sampled_params():
            if twice:
                opt.backward(loss_of(net, 9))
                opt.zero_grad()
            opt.backward(loss_of(net))
        opt.step()
        results.append((weights(net), snapshot(opt)))
    assert same(*results)


def test_backward_works_under_no_grad(case):
    net, opt = case
    with opt.sampled_params():
        loss = loss_of(net)
        with torch.no_grad():
            opt.backward(loss)
    opt.step()


@pytest.mark.parametrize(("hessian", "expected"), [("exact", 4.0), ("reparameterized", 1.0)])
def test_parameters_without_noise_follow_their_exact_hessian_and_none_that_is_read_off_the_noise(hessian, expected):
    noisy, plain = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    groups = [{"params": [noisy]}, {"params": [plain], "perturb": False}]
    opt = ba.VON(groups, lr=0.5, num_data=10, hessian=hessian, betas=(0.0, 0.0), initial_precision=11.0)
    with opt.sampled_params():
        assert plain.tolist() == [1.0, 1.0]
        opt.backward(noisy.square().sum() + 2 * plain.square().sum())
    opt.step()
    assert opt.state[plain]["hessian"].tolist() == pytest.approx([expected] * 2)
    assert plain.tolist() == pytest.approx([1.0 - 0.5 * (4.0 + 0.1) / (expected + 0.1)] * 2)
