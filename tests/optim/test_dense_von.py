"""VON with a full covariance: against loops, exact posteriors, and all that a matrix over the weights must survive."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from bayesadam.engine import dense
from optim.conftest import loss_of, make_net, same, snapshot, train, weights
from optim.test_von import PAIRS, START, D, Problem, Regression, eps_of, relative, tensor
from references import dense_von

FULL = {"covariance": "full", "hessian": "exact"}


class Coupled(Problem):
    """With the whole Hessian."""

    def hessian(self, x, t):
        matrix = np.diag(super().hessian(x, t))
        for j in range(D):
            matrix[j, (j + 1) % D] += self.coupling
            matrix[(j + 1) % D, j] += self.coupling
        return matrix.tolist()


def matrix_of(opt):
    """The Hessian as it is kept, row by row with the parameters."""
    return torch.cat([opt.state[p]["hessian"] for group in opt.param_groups for p in group["params"]])


def precision_of(opt):
    return torch.linalg.inv(opt.posterior().covariance)


def eps_in_parts(sizes, antithetic=False):
    def eps(t, sample):
        pair = sample // 2 if antithetic else sample
        draw = torch.cat([noise.normal(0, t, pair, index, (size,)).double() for index, size in enumerate(sizes)])
        return (-draw if antithetic and sample % 2 else draw).tolist()

    return eps


# Against loops

CASES = {
    "default": {},
    "three samples": {"mc_samples": 3},
    "antithetic": {"mc_samples": 4, "antithetic": True},
    "temperature 0": {"temperature": 0.0},
    "temperature 0.5": {"temperature": 0.5},
    "elementwise": {"correction": "elementwise"},
    "b2 = 0": {"betas": (0.0, 0.0)},
    "started elsewhere": {"initial_precision": 30.0},
    "clipped": {"initial_precision": 30.0, "clip_radius": 0.1},
    "schedule": {"schedule": lambda t: (0.0, 1 - 0.3 / (1 + t**0.55))},
}


def assert_matches(problem, sizes=(2, 3), steps=40, schedule=None, mode="block", **hp):
    hp = {"lr": 0.1, "num_data": 100.0, "betas": (0.0, 0.9), "prior_precision": 3.0, **FULL, **hp}
    parameters = [nn.Parameter(part.clone()) for part in tensor(START).split(sizes)]
    opt = ba.VON([(f"p{i}", p) for i, p in enumerate(parameters)], **hp)
    for t in range(steps):
        if schedule is not None:
            opt.param_groups[0]["betas"] = schedule(t)
        if mode == "train":
            opt.train()
            opt.zero_grad()
            problem.loss(torch.cat(parameters), t).backward()
            opt.step()
        elif mode == "closure":
            opt.step(lambda t=t: problem.loss(torch.cat(parameters), t))
        else:
            for _ in range(hp.get("mc_samples", 1)):
                with opt.sampled_params():
                    opt.backward(problem.loss(torch.cat(parameters), t))
            opt.step()
    opt.eval()
    exact = hp["hessian"] == "exact"
    own = ("covariance", "hessian", "correction", "antithetic", "betas")
    mean, precision = dense_von(
        START,
        problem.gradient,
        eps_in_parts(sizes, hp.get("antithetic")),
        steps,
        betas=schedule or hp["betas"],
        hessian=problem.hessian if exact else None,
        correction=hp.get("correction", None if exact else "elementwise"),
        **{"initial_precision": 100.0, **{k: v for k, v in hp.items() if k not in own}},
    )
    assert torch.allclose(torch.cat([p.detach() for p in parameters]), tensor(mean), rtol=1e-9, atol=1e-10)
    assert torch.allclose(precision_of(opt), tensor(precision), rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("mode", ["block", "closure"])
@pytest.mark.parametrize("case", CASES)
def test_exact_hessian_equals_reference_loop(case, mode):
    assert_matches(Coupled(), mode=mode, **CASES[case])


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_negative_curvature_equals_reference_loop(temperature):
    assert_matches(Coupled(a=6.0, coupling=1.0), correction="elementwise", temperature=temperature)


@pytest.mark.parametrize("mode", ["block", "train"])
def test_reparameterized_hessian_equals_reference_loop(mode):
    assert_matches(Coupled(), hessian="reparameterized", betas=(0.0, 0.99), lr=0.01, mode=mode)


@pytest.mark.parametrize("case", ["three samples", "antithetic", "temperature 0", "temperature 0.5"])
def test_reparameterized_hessian_with_options_equals_reference_loop(case):
    assert_matches(Coupled(), **{"hessian": "reparameterized", "betas": (0.0, 0.99), "lr": 0.01, **CASES[case]})


def test_a_prior_with_another_mean_equals_reference_loop():
    center, variance = [0.5, -0.2, 0.1, 0.3, -0.4], 1 / 40.0
    prior = ba.DiagonalGaussian({"w": tensor(center)}, {"w": torch.full((D,), variance, dtype=torch.float64)})
    parameter, problem = nn.Parameter(torch.zeros(D, dtype=torch.float64)), Coupled()
    opt = ba.VON([("w", parameter)], lr=0.1, num_data=100.0, betas=(0.0, 0.9), prior=prior, **FULL)
    assert parameter.tolist() == center
    for t in range(30):
        opt.step(lambda t=t: problem.loss(parameter, t))
    mean, precision = dense_von(
        center,
        problem.gradient,
        eps_of(),
        30,
        lr=0.1,
        betas=(0.0, 0.9),
        num_data=100.0,
        prior_precision=40.0,
        prior_mean=center,
        initial_precision=100.0,
        hessian=problem.hessian,
        correction=None,
    )
    assert torch.allclose(parameter.detach(), tensor(mean), rtol=1e-9)
    assert torch.allclose(precision_of(opt), tensor(precision), rtol=1e-8, atol=1e-7)


def test_per_weight_priors_stand_on_the_diagonal():
    """A posterior of other variances as the prior: after one whole step of no data, the posterior is the prior."""
    mean = {"a": torch.randn(2, 2).double(), "b": torch.randn(3).double()}
    variance = {"a": tensor([[0.1, 0.2], [0.3, 0.4]]), "b": tensor([0.05, 0.6, 0.07])}
    parameters = [nn.Parameter(torch.zeros_like(value)) for value in mean.values()]
    named = list(zip(mean, parameters, strict=True))
    prior = ba.DiagonalGaussian(mean, variance)
    opt = ba.VON(named, lr=1.0, num_data=30.0, betas=(0.0, 0.0), prior=prior, **FULL)
    opt.step(lambda: sum(0.0 * p.square().sum() for p in parameters))
    assert torch.allclose(opt.posterior().covariance.diagonal(), torch.cat([v.flatten() for v in variance.values()]))
    assert all(torch.allclose(p.detach(), mean[name]) for name, p in named)
    opt = ba.VON(named, lr=1.0, num_data=30.0, betas=(0.0, 0.0), prior=prior, **FULL)
    opt.step(lambda: 0.5 * (parameters[0] - 2).square().sum() + 0.0 * parameters[1].square().sum())
    assert torch.allclose(opt.posterior().variance["a"], 1 / (1 / variance["a"] + 30.0))


# Exact posteriors


@pytest.mark.parametrize("mode", ["block", "closure"])
@pytest.mark.parametrize("samples", [2, 6])
@pytest.mark.parametrize(("outputs", "bias"), [(1, False), (1, True), (2, True)])
def test_one_step_reaches_the_exact_posterior_of_linear_regression(outputs, bias, samples, mode):
    problem = Regression(outputs, bias)
    mean, precision = problem.exact()
    hp = {**PAIRS, **FULL, "mc_samples": samples, "lr": 1.0, "betas": (0.0, 0.0)}
    opt = ba.VON(problem.net.named_parameters(), num_data=20, prior_precision=2.0, **hp)
    found, _ = problem.train(opt, 1, mode)
    assert relative(found, mean) < 1e-12
    q = opt.posterior()
    assert isinstance(q, ba.DenseGaussian)
    assert relative(q.covariance, torch.linalg.inv(precision)) < 1e-12
    problem.train(opt, 2, mode)  # and stays there
    assert relative(weights(problem.net), mean) < 1e-12
    assert relative(opt.posterior().covariance, torch.linalg.inv(precision)) < 1e-12


def test_one_step_of_van_reaches_the_tempered_posterior():
    problem = Regression(2)
    hp = {**PAIRS, **FULL, "lr": 1.0, "betas": (0.0, 0.0), "temperature": 1.0}
    opt = ba.VAN(problem.net.named_parameters(), num_data=20, prior_precision=2.0, **hp)
    problem.train(opt, 1)
    assert relative(weights(problem.net), problem.exact()[0]) < 1e-12
    opt = ba.VAN(
        problem.net.named_parameters(), num_data=20, prior_precision=2.0, **{**hp, "temperature": 0.5, "lr": 0.9}
    )
    opt.param_groups[0]["betas"] = (0.0, 0.5)
    problem.train(opt, 120)
    mean, precision = problem.exact(0.5)
    assert relative(opt.posterior().covariance, torch.linalg.inv(precision)) < 1e-12
    assert relative(weights(problem.net), mean) < 1e-10


def test_in_float32():
    problem = Regression(2)
    mean, precision = problem.exact()
    problem.net.float()
    problem.x, problem.y = problem.x.float(), problem.y.float()
    opt = ba.VON(
        problem.net.named_parameters(), lr=1.0, num_data=20, prior_precision=2.0, betas=(0.0, 0.0), **{**PAIRS, **FULL}
    )
    problem.train(opt, 2)
    assert relative(weights(problem.net), mean) < 1e-5
    assert relative(opt.posterior().covariance, torch.linalg.inv(precision)) < 1e-5


def test_reparameterized_hessian_converges_to_the_exact_posterior_with_decaying_rates():
    problem = Regression(rows=40)
    mean, precision = problem.exact()
    exact = torch.linalg.inv(precision)
    opt = ba.VON(
        problem.net.named_parameters(),
        lr=0.1,
        num_data=40,
        prior_precision=2.0,
        betas=(0.0, 0.99),
        covariance="full",
        mc_samples=4,
        antithetic=True,
    )
    for t in range(1_000):
        opt.param_groups[0]["betas"] = (0.0, 1 - 0.02 / (1 + t / 50) ** 0.75)
        problem.train(opt, 1)
    spread = exact.diagonal().sqrt()
    found = opt.posterior().covariance
    assert ((weights(problem.net) - mean) / spread).abs().max() < 0.1
    assert ((found - exact) / spread / spread[:, None]).abs().max() < 0.1
    correlation = exact / spread / spread[:, None] - torch.eye(4)
    assert correlation.abs().max() > 0.3  # which a diagonal covariance would miss


# The noise


def made_with(precision, sizes, *, num_data=7.0, prior=0.5, **options):
    """An optimiser whose posterior precision is the given matrix."""
    parameters = [nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in sizes]
    hp = {"lr": 0.0, "num_data": num_data, "prior_precision": prior, "betas": (0.0, 0.0), **FULL, **options}
    opt = ba.VON([(f"p{i}", p) for i, p in enumerate(parameters)], **hp)
    hessian = (precision - prior * torch.eye(len(precision), dtype=torch.float64)) / num_data

    def quadratic():
        theta = torch.cat([p.flatten() for p in parameters])
        return 0.5 * theta @ hessian @ theta

    for _ in range(opt.param_groups[0]["mc_samples"]):
        with opt.sampled_params():
            opt.backward(quadratic())
    opt.step()
    return opt, parameters, quadratic


def spread_out(size, seed=0):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T + torch.diag(torch.linspace(1.0, 5.0, size, dtype=torch.float64))


def test_a_sample_is_the_mean_plus_the_inverse_factor_times_the_noise():
    sizes = (3, (2, 2), 1)
    precision = spread_out(8)
    opt, parameters, quadratic = made_with(precision, sizes, seed=11, mc_samples=2)
    mean = torch.arange(8.0).double()
    with torch.no_grad():
        for p, part in zip(parameters, mean.split([3, 4, 1]), strict=True):
            p.copy_(part.view(p.shape))
    factor = torch.linalg.cholesky(precision)
    assert torch.allclose(opt.posterior().covariance, torch.linalg.inv(precision), rtol=1e-11)
    for sample in range(2):
        with opt.sampled_params():
            eps = torch.cat([noise.normal(11, 1, sample, i, p.shape).flatten() for i, p in enumerate(parameters)])
            expected = mean + torch.linalg.solve(factor.T, eps.double())
            theta = torch.cat([p.detach().flatten() for p in parameters])
            assert torch.allclose(theta, expected, rtol=1e-11, atol=1e-12)
            opt.backward(quadratic())
        assert torch.equal(torch.cat([p.detach().flatten() for p in parameters]), mean)


def test_mean_and_covariance_of_the_noise():
    """A precision of 100 equal blocks: every sample draws 100 times from one Gaussian of three weights."""
    block = tensor([[2.0, 0.9, -0.6], [0.9, 1.5, 0.3], [-0.6, 0.3, 1.0]])
    precision = torch.kron(torch.eye(100, dtype=torch.float64), block)
    samples = 1_500
    opt, parameters, _ = made_with(precision, (150, 150), seed=2)
    for group in opt.param_groups:
        group["mc_samples"] = samples
    draws = []
    for _ in range(samples):
        with opt.sampled_params():
            draws.append(torch.cat([p.detach() for p in parameters]).view(100, 3))
    theta = torch.cat(draws)
    count = len(theta)
    covariance = torch.linalg.inv(block)
    spread = covariance.diagonal().sqrt()
    assert ((theta.mean(0) / spread) * math.sqrt(count)).abs().max() < 4
    found = theta.T @ theta / count
    error = (covariance.square() + torch.outer(covariance.diagonal(), covariance.diagonal())).sqrt() / math.sqrt(count)
    assert ((found - covariance) / error).abs().max() < 4
    scale = torch.einsum("ni,ij,nj->n", theta, block, theta).mean().item() / 3
    assert abs(scale - 1) * math.sqrt(3 * count / 2) < 4
    assert (1.01 * scale - 1) * math.sqrt(3 * count / 2) > 4.5  # a variance 1% off is seen
    later = torch.stack(draws).view(samples, 300)
    assert abs((later[1:] * later[:-1]).sum().item() / later.square().sum().item()) * math.sqrt(samples * 300) < 4


def test_antithetic_samples_mirror_each_other():
    opt, parameters, quadratic = made_with(spread_out(6), (2, 4), mc_samples=4, antithetic=True)
    seen = []
    for _ in range(4):
        with opt.sampled_params():
            seen.append(torch.cat([p.detach() for p in parameters]))
            opt.backward(quadratic())
    assert torch.equal(seen[0], -seen[1])
    assert torch.equal(seen[2], -seen[3])
    assert not torch.allclose(seen[0], seen[2], atol=1e-3)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize(("place", "count"), [("eps", 1), ("follow", 1), ("follow", 3)])
def test_an_interruption_while_a_sample_is_drawn_leaves_the_mean(monkeypatch, place, error, count):
    net = make_net()
    opt = ba.VON(net.named_parameters(), num_data=50, **FULL, correction="elementwise")
    opt.step(lambda: loss_of(net))
    before, held = snapshot(opt), weights(net)
    left = [count]
    owner, name = (noise, "fill_runs") if place == "eps" else (dense, "follow_")
    original = getattr(owner, name)

    def interrupted(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(error), opt.sampled_params():
        raise AssertionError
    monkeypatch.undo()
    assert torch.equal(weights(net), held)
    assert same(snapshot(opt), before)
    other = make_net()
    again = ba.VON(other.named_parameters(), num_data=50, **FULL, correction="elementwise")
    again.step(lambda: loss_of(other))
    for one, two in ((net, opt), (other, again)):
        two.step(lambda one=one: loss_of(one))
    assert torch.equal(weights(net), weights(other))


# State


def test_state_has_the_rows_of_every_parameter():
    net = make_net()
    opt = ba.VON(net.named_parameters(), num_data=50, initial_precision=60.0, **FULL, correction="elementwise")
    total = sum(p.numel() for p in net.parameters())
    with opt.sampled_params():
        opt.backward(loss_of(net))
    start = matrix_of(opt)
    assert torch.allclose(start, torch.eye(total).double() * 59 / 50)
    opt.step()
    assert [tuple(opt.state[p]["hessian"].shape) for p in net.parameters()] == [
        (p.numel(), total) for p in net.parameters()
    ]
    matrix = matrix_of(opt)
    assert torch.allclose(matrix, matrix.T, rtol=1e-12, atol=1e-14)
    assert matrix.dtype == torch.float64
    assert not torch.equal(matrix, torch.diag(matrix.diagonal()))


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
def test_resuming_from_a_file_is_bit_identical(tmp_path, hessian):
    net = make_net()
    options = {"num_data": 50, "covariance": "full", "hessian": hessian, "correction": "elementwise", "mc_samples": 2}
    opt = ba.VON(net.named_parameters(), **options)
    train(net, opt, 3)
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, tmp_path / "file")
    train(net, opt, 3, first=3)
    saved = torch.load(tmp_path / "file", weights_only=True)
    other = make_net()
    again = ba.VON(other.named_parameters(), **options)
    again.load_state_dict(saved["opt"])
    other.load_state_dict(saved["net"])
    train(other, again, 3, first=3)
    assert torch.equal(weights(net), weights(other))
    assert same(snapshot(opt), snapshot(again))
    assert torch.equal(opt.posterior().covariance, again.posterior().covariance)


def test_a_copy_in_the_middle_of_drop_in_training_goes_on_identically():
    net = make_net()
    opt = ba.VON(net.named_parameters(), num_data=50, covariance="full")
    train(net, opt, 3, mode="train")
    other, again = copy.deepcopy((net, opt))
    for one, two in ((net, opt), (other, again)):
        train(one, two, 3, first=3, mode="train")
        two.eval()
    assert torch.equal(weights(net), weights(other))
    with pytest.raises(RuntimeError, match=r"add_param_group\(\) must not be called when covariance='full'"):
        again.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def test_a_state_dict_of_a_diagonal_covariance_is_refused():
    diagonal = ba.VON(make_net().named_parameters(), num_data=10)
    opt = ba.VON(make_net().named_parameters(), num_data=10, covariance="full")
    with pytest.raises(ValueError, match="covariance of the state_dict must be 'full', got 'diagonal'"):
        opt.load_state_dict(diagonal.state_dict())


def test_a_precision_that_float32_could_not_hold():
    """Eigenvalues from the prior's 1e-7 to 1e3: rounded to float32 the matrix would be indefinite."""
    rows = torch.randn(10, 40, generator=torch.Generator().manual_seed(0)) * 10
    parameter = nn.Parameter(torch.zeros(40))
    hp = {"lr": 0.1, "num_data": 1e7, "betas": (0.0, 0.0), **FULL, "correction": "elementwise"}
    opt = ba.VON([("w", parameter)], **hp)
    exact = rows.double().T @ rows.double() / 10
    for _ in range(40):
        opt.step(lambda: 0.5 * (rows.double() @ parameter.double() - 1).square().mean())
    kept = matrix_of(opt) + 1e-7 * torch.eye(40)
    assert torch.linalg.eigvalsh(kept)[0] > 0
    assert torch.linalg.eigvalsh(kept.float().double())[0] < 0
    assert torch.linalg.matrix_norm(kept - exact) / torch.linalg.matrix_norm(exact) < 1e-3


def test_parameters_of_several_dtypes_have_one_posterior():
    narrow, wide = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.float64))
    low = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    rows = torch.randn(20, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hp = {"num_data": 20, "betas": (0.0, 0.0), "lr": 0.5, **FULL}
    opt = ba.VON([("narrow", narrow), ("wide", wide), ("low", low)], **hp)
    for _ in range(3):
        opt.step(lambda: 0.5 * (rows @ torch.cat([narrow.double(), wide, low.double()])).square().mean())
    q = opt.posterior()
    assert [v.dtype for v in q.mean.values()] == [torch.float32, torch.float64, torch.float32]
    expected = torch.linalg.inv(rows.T @ rows + torch.eye(8))
    assert torch.allclose(q.covariance, expected, rtol=1e-2, atol=1e-3)
    assert torch.allclose(precision_of(opt)[3:6, 3:6], (rows.T @ rows + torch.eye(8))[3:6, 3:6], rtol=1e-10)


# Parts of the weights


def test_frozen_from_the_start_is_no_part_of_it():
    """A large frozen network below a small trainable one."""
    body, head = nn.Linear(3, 20_000), nn.Linear(20_000, 1, bias=False).requires_grad_(False)
    last = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    body.requires_grad_(False)
    parameters = [*body.named_parameters(), *head.named_parameters(prefix="head"), ("last", last)]
    for hessian in ("exact", "reparameterized"):
        opt = ba.VON(parameters, num_data=10, covariance="full", hessian=hessian)
        for _ in range(2):
            with opt.sampled_params():
                opt.backward((last - 1).square().sum())
            opt.step()
        assert opt.state[last]["hessian"].shape == (2, 2)
        assert list(opt.posterior().mean) == ["last"]
    body.bias.requires_grad_(True)
    before = weights(body)
    with (
        pytest.raises(RuntimeError, match="parameter number 1 must be trainable when the optimiser is made"),
        opt.sampled_params(),
    ):
        pass
    assert torch.equal(weights(body), before)


def trained_together(seed=3):
    """Two parameters after some steps on a quadratic loss; returns a function that goes on."""
    a, b = (nn.Parameter(torch.full((n,), 0.3, dtype=torch.float64)) for n in (2, 3))
    curve = spread_out(5, seed)
    opt = ba.VON([("a", a), ("b", b)], lr=0.3, num_data=20, betas=(0.0, 0.6), seed=4, **FULL)

    def loss(scale=1.0):
        theta = torch.cat([a, b])
        return 0.5 * scale * (theta - 1) @ curve @ (theta - 1) / 10

    for _ in range(4):
        opt.step(loss)
    return a, b, curve, opt, loss


def test_weights_frozen_and_changed_in_drop_in_training_are_refused_by_name():
    net = make_net()
    opt = ba.VON(net.named_parameters(), num_data=20, covariance="full")
    opt.train()
    net[2].bias.requires_grad_(False)
    net[2].bias.fill_(5.0)
    loss_of(net).backward()
    with pytest.raises(RuntimeError, match=r"parameter '2.bias' must hold the sample that train\(\) drew"):
        opt.step()
    with pytest.warns(UserWarning, match="parameter '2.bias' did not hold the sample"):
        opt.eval()
    assert net[2].bias.tolist() == [5.0, 5.0]


def test_frozen_in_the_middle_the_others_follow_the_conditional_posterior():
    a, b, curve, opt, loss = trained_together()
    matrix, fixed = matrix_of(opt).clone(), b.detach().clone()
    b.requires_grad_(False)
    alone = nn.Parameter(a.detach().clone())
    other = ba.VON([("a", alone)], lr=0.3, num_data=20, betas=(0.0, 0.6), seed=4, **FULL)
    other.step(lambda: 0.0 * alone.square().sum())
    other.state[alone]["hessian"].copy_(matrix[:2, :2])
    other.param_groups[0]["noise_step"] = opt.param_groups[0]["noise_step"]
    with torch.no_grad():
        alone.copy_(a)

    def rest():
        theta = torch.cat([alone, fixed])
        return 0.5 * (theta - 1) @ curve @ (theta - 1) / 10

    for _ in range(3):
        seen = []
        for one, function, parameter in ((opt, loss, a), (other, rest, alone)):
            with one.sampled_params():
                seen.append(parameter.detach().clone())
                assert torch.equal(b, fixed)
                one.backward(function())
            one.step()
        assert torch.allclose(*seen, rtol=1e-12)
        assert not torch.allclose(seen[0], a, atol=1e-3)
    assert torch.allclose(a, alone, rtol=1e-12)
    kept = matrix_of(opt)
    assert torch.allclose(kept[:2, :2], other.state[alone]["hessian"], rtol=1e-12)
    conditional = torch.linalg.inv(20 * kept[:2, :2] + torch.eye(2))
    assert torch.allclose(other.posterior().covariance, conditional, rtol=1e-10)


@pytest.mark.parametrize("correction", [None, "elementwise"])
@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
def test_what_is_frozen_in_the_middle_keeps_its_marginal_posterior_and_can_be_trained_again(scale, correction):
    _, b, _, opt, loss = trained_together()
    opt._engine.store.set_all("correction", correction)
    before = opt.posterior()
    slopes = torch.linalg.solve(precision_of(opt)[:2, :2], precision_of(opt)[:2, 2:])
    b.requires_grad_(False)
    for _ in range(10):
        opt.step(lambda: loss(scale))
    after = opt.posterior()
    assert torch.allclose(after.variance["b"], before.variance["b"], rtol=1e-9)
    assert torch.allclose(after.covariance[2:, 2:], before.covariance[2:, 2:], rtol=1e-9)
    assert torch.allclose(torch.linalg.solve(precision_of(opt)[:2, :2], precision_of(opt)[:2, 2:]), slopes, rtol=1e-7)
    assert not torch.allclose(precision_of(opt)[:2, :2], torch.linalg.inv(before.covariance)[:2, :2], rtol=1e-2)
    matrix = matrix_of(opt)
    assert torch.allclose(matrix, matrix.T, rtol=1e-12)
    b.requires_grad_(True)
    held = b.detach().clone()
    for _ in range(30):
        opt.step(loss)
    assert not torch.equal(b, held)
    assert torch.allclose(b, torch.ones(3).double(), atol=0.5)


def test_what_has_no_gradient_in_a_step_keeps_its_marginal_posterior():
    a, b, _, opt, _ = trained_together()
    before = opt.posterior()
    for step in range(6):
        used = (a, b)[step % 2]
        held = (a, b)[1 - step % 2].detach().clone()
        marginal = opt.posterior().variance["ba"[step % 2]]
        opt.step(lambda used=used: 0.02 * used.square().sum())
        assert torch.equal((a, b)[1 - step % 2], held)
        assert torch.allclose(opt.posterior().variance["ba"[step % 2]], marginal, rtol=1e-9)
    assert (opt.posterior().covariance.diagonal() > 1.5 * before.covariance.diagonal()).all()


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
def test_perturb_false_is_trained_without_noise_in_the_same_matrix(hessian):
    net = make_net(torch.float64)
    groups = [
        {"params": list(net[0].named_parameters(prefix="0"))},
        {"params": list(net[2].named_parameters(prefix="2")), "perturb": False},
    ]
    opt = ba.VON(groups, lr=0.05, num_data=50, covariance="full", hessian=hessian, correction="elementwise")
    start = net[2].weight.detach().clone()
    for step in range(5):
        held = net[2].weight.detach().clone(), net[0].weight.detach().clone()
        with opt.sampled_params():
            assert torch.equal(net[2].weight, held[0])
            assert not torch.equal(net[0].weight, held[1])
            opt.backward(loss_of(net, step))
        opt.step()
    assert not torch.equal(net[2].weight, start)
    q = opt.posterior()
    noisy = sum(p.numel() for p in net[0].parameters())
    matrix = matrix_of(opt)
    conditional = torch.linalg.inv(50 * matrix[:noisy, :noisy] + torch.eye(noisy))
    assert torch.allclose(q.covariance[:noisy, :noisy], conditional, rtol=1e-8, atol=1e-12)
    assert not q.covariance[noisy:].any()
    cross = matrix[:noisy, noisy:]
    assert cross.any() == (hessian == "exact")
    if hessian == "reparameterized":  # nothing is known of it
        assert torch.equal(matrix[noisy:, noisy:], torch.eye(len(matrix) - noisy).double() * 49 / 50)


def test_nothing_with_noise_is_newtons_method():
    parameter, curve = nn.Parameter(torch.zeros(4, dtype=torch.float64)), spread_out(4)
    groups = [{"params": [("w", parameter)], "perturb": False}]
    opt = ba.VON(groups, lr=1.0, num_data=10, prior_precision=1e-8, initial_precision=1.0, betas=(0.0, 0.0), **FULL)
    opt.step(lambda: 0.5 * (parameter - 1) @ curve @ (parameter - 1))
    assert torch.allclose(parameter, torch.ones(4).double(), atol=1e-7)
    assert not opt.posterior().covariance.any()


def test_groups_may_differ_in_rate_and_prior():
    a, b = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2))
    curve = spread_out(4)
    groups = [{"params": [("a", a)]}, {"params": [("b", b)], "lr": 0.5, "prior_precision": 30.0}]
    hp = {"lr": 1.0, "num_data": 10, "prior_precision": 3.0, "initial_precision": 50.0, "betas": (0.0, 0.0)}
    opt = ba.VON(groups, **hp, mc_samples=2, antithetic=True, **FULL)
    assert torch.allclose(opt.posterior().covariance, torch.eye(4).double() / 50)
    opt.step(lambda: 0.5 * (torch.cat([a, b]) - 1) @ curve @ (torch.cat([a, b]) - 1))
    prior = torch.diag(tensor([3.0, 3.0, 30.0, 30.0]))
    assert torch.allclose(precision_of(opt), 10 * curve + prior, rtol=1e-10)
    whole = torch.linalg.solve(10 * curve + prior, 10 * curve @ torch.ones(4).double())
    assert torch.allclose(torch.cat([a, b]).detach(), whole * tensor([1.0, 1.0, 0.5, 0.5]), rtol=1e-10)


# The posterior


def test_posterior_predicts_and_saves(tmp_path):
    problem = Regression(1)
    opt = ba.VON(
        problem.net.named_parameters(), lr=1.0, num_data=20, prior_precision=2.0, betas=(0.0, 0.0), **{**PAIRS, **FULL}
    )
    problem.train(opt, 1)
    q = opt.posterior()
    q.save(tmp_path / "posterior.safetensors")
    loaded = ba.load_posterior(tmp_path / "posterior.safetensors")
    assert isinstance(loaded, ba.DenseGaussian)
    assert torch.equal(loaded.covariance, q.covariance)
    assert loaded.hyperparameters["method"] == "VON"
    assert loaded.hyperparameters["num_data"] == 20
    before = weights(problem.net)
    likelihood = ba.Gaussian(noise_precision=2.0)
    found = ba.predict(problem.net, loaded, problem.x, likelihood=likelihood, mc_samples=4_000)
    assert torch.equal(weights(problem.net), before)
    inputs = torch.cat([problem.x, torch.ones(20, 1).double()], 1)
    _, precision = problem.exact()
    expected = torch.einsum("ni,ij,nj->n", inputs, torch.linalg.inv(precision), inputs)
    assert torch.allclose(found.epistemic.flatten().double(), expected, rtol=0.12)


def test_posterior_before_the_first_step():
    net = make_net()
    q = ba.VON(net.named_parameters(), num_data=50, initial_precision=80.0, covariance="full").posterior()
    assert torch.allclose(q.covariance, torch.eye(50).double() / 80.0)


# Refusals

REFUSED = [
    ({"covariance": "low-rank"}, r"covariance must be one of \('diagonal', 'full'\), got 'low-rank'"),
    (
        {"covariance": "full", "hessian": "hutchinson"},
        "hessian must be 'exact' or 'reparameterized' when covariance='full', got 'hutchinson'",
    ),
    (
        {"covariance": "full", "correction": "backtracking"},
        "correction must be 'elementwise' or None when covariance='full', got 'backtracking'",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[str(options) for options, _ in REFUSED])
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(ValueError, match=message):
        ba.VON(make_net().named_parameters(), num_data=10, **options)


@pytest.mark.parametrize(
    ("name", "value"), [("num_data", 20), ("betas", (0.0, 0.5)), ("temperature", 0.5), ("maximize", True)]
)
def test_what_a_matrix_shares_is_the_same_in_all_groups(name, value):
    net = make_net()
    groups = [{"params": net[0].parameters()}, {"params": net[2].parameters(), name: value}]
    message = f"{name} must be the same in all groups when covariance='full', got {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        ba.VON(groups, num_data=10, **FULL)
    ba.VON(
        [{"params": net[0].parameters()}, {"params": net[2].parameters(), name: value}], num_data=10, hessian="exact"
    )


def test_parameters_cannot_be_added():
    net, extra = make_net(), nn.Parameter(torch.zeros(2))
    opt = ba.VON(net.named_parameters(), num_data=10, **FULL, correction="elementwise")
    message = r"add_param_group\(\) must not be called when covariance='full', got a call"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message):
            opt.add_param_group({"params": [extra]})
        assert len(opt.param_groups) == 1
        opt.step(lambda: loss_of(net))
    again = ba.VON(make_net().named_parameters(), num_data=10, **FULL, correction="elementwise")
    again.load_state_dict(opt.state_dict())
    with pytest.raises(RuntimeError, match=message):
        again.add_param_group({"params": [extra]})


def test_too_many_weights():
    with pytest.raises(ValueError, match="covariance must be 'diagonal' above 10,000 weights, got 'full' for 10,001"):
        ba.VON([nn.Parameter(torch.zeros(10_001))], num_data=10, covariance="full")
    ba.VON([nn.Parameter(torch.zeros(10_000))], num_data=10, covariance="full")
    frozen = nn.Parameter(torch.zeros(10_001), requires_grad=False)
    ba.VON([frozen, nn.Parameter(torch.zeros(3))], num_data=10, covariance="full")
    halves = [{"params": [nn.Parameter(torch.zeros(6_000))]} for _ in range(2)]
    with pytest.raises(ValueError, match="got 'full' for 12,000"):
        ba.VON(halves, num_data=10, covariance="full")


class Sharded(nn.Parameter):
    """What the library takes for a sharded parameter."""

    device_mesh = placements = None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariance": "full"}, "covariance must be 'diagonal' for sharded parameters, got 'full'"),
        ({"hessian": "exact"}, "hessian must be 'reparameterized' for sharded parameters, got 'exact'"),
        ({"hessian": "hutchinson"}, "hessian must be 'reparameterized' for sharded parameters, got 'hutchinson'"),
        ({"correction": "backtracking"}, "correction must be 'elementwise' for sharded parameters, got 'backtrack"),
        ({"correction": None}, "correction must be 'elementwise' for sharded parameters, got None"),
    ],
    ids=str,
)
def test_sharded_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        ba.VON([Sharded(torch.zeros(3))], num_data=10, **options)
    ba.VON([Sharded(torch.zeros(3))], num_data=10)
    if "covariance" not in options:
        opt = ba.VON([nn.Parameter(torch.zeros(3))], num_data=10, **options)
        with pytest.raises(ValueError, match=message):
            opt.add_param_group({"params": [Sharded(torch.zeros(3))]})
        assert len(opt.param_groups) == 1


# Steps


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_correction_keeps_the_precision_positive_under_wild_curvature(hessian, temperature):
    parameter = nn.Parameter(tensor([0.3, -0.2, 0.1]))
    opt = ba.VON(
        [("w", parameter)],
        lr=1e-3,
        num_data=10,
        temperature=temperature,
        betas=(0.0, 0.1 if hessian == "exact" else 0.9),
        correction="elementwise",
        covariance="full",
        hessian=hessian,
    )
    mixing, negative = spread_out(3), 0
    for step in range(60):
        with opt.sampled_params():
            theta = mixing @ parameter
            opt.backward((tensor([1.0, 10.0, 0.1]) * torch.cos(theta + step)).sum())
            negative += int((torch.cos(theta + step) > 0).sum())
        opt.step()
        first = opt.posterior()
        assert torch.linalg.eigvalsh(first.covariance)[0] > 0
        matrix = matrix_of(opt) + (0.1 * torch.eye(3) if temperature else 0.0)
        assert torch.linalg.eigvalsh(matrix)[0] > 0
    assert negative > 50


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_without_correction_an_indefinite_step_changes_nothing(nonfinite):
    a, b, _, opt, loss = trained_together()
    opt._engine.store.set_all("nonfinite", nonfinite)
    before, held = snapshot(opt)[1], (a.detach().clone(), b.detach().clone())

    def saddle():  # positive on the diagonal, indefinite all the same
        theta = torch.cat([a, b])
        return 0.5 * theta.square().sum() + 30 * a[0] * b[0]

    if nonfinite == "raise":
        groups = snapshot(opt)[0]
        with pytest.raises(FloatingPointError, match="posterior precision must stay positive, .* nothing was changed"):
            opt.step(saddle)
        assert same(snapshot(opt)[0], groups)
        opt.zero_grad()
    else:
        opt.step(saddle)
        assert opt.param_groups[0]["skipped_steps"] == 1
    assert same(snapshot(opt)[1], before)
    assert torch.equal(a, held[0])
    assert torch.equal(b, held[1])
    opt.step(loss)
    assert not torch.equal(a, held[0])


def test_a_hessian_that_is_not_finite_changes_nothing():
    for correction in (None, "elementwise"):
        parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        opt = ba.VON([parameter], num_data=10, **FULL, correction=correction)
        opt.step(lambda p=parameter: p.square().sum())
        before = snapshot(opt)
        with pytest.raises(FloatingPointError, match="curvature of the loss must be finite, got inf or nan"):
            opt.step(lambda p=parameter: (p - p.detach()).pow(1.5).sum())
        assert same(snapshot(opt), before)


def test_a_prior_that_kept_the_precision_positive_cannot_be_taken_away():
    parameter = nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = ba.VON([parameter], num_data=10, prior_precision=5.0, betas=(0.0, 0.0), **FULL)
    opt.step(lambda: -0.1 * parameter.square().sum())
    opt._engine.store.set_all("temperature", 0.0)
    held = parameter.detach().clone()
    with pytest.raises(FloatingPointError, match="posterior precision must be positive definite"), opt.sampled_params():
        pass
    assert torch.equal(parameter, held)


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
@pytest.mark.parametrize("samples", [1, 2])
def test_clipping_and_unscaling_between_block_and_step_act_on_the_whole_matrix(hessian, samples):
    results = []
    for inside, between in ((1.0, 0.25), (0.25, 1.0), (1.0, 1.0)):
        net = make_net(torch.float64)
        opt = ba.VON(
            net.named_parameters(),
            lr=0.05,
            num_data=50,
            covariance="full",
            hessian=hessian,
            correction="elementwise",
            mc_samples=samples,
        )
        for step in range(3):
            for sample in range(samples):
                with opt.sampled_params():
                    opt.backward(inside * loss_of(net, 10 * step + sample))
            for p in net.parameters():
                p.grad.mul_(between)
            opt.step()
        results.append((weights(net), matrix_of(opt)))
    for kind in range(2):
        assert torch.allclose(results[0][kind], results[1][kind], rtol=1e-9, atol=1e-12)
        assert not torch.allclose(results[0][kind], results[2][kind], rtol=1e-3)


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
def test_gradients_left_to_the_scaler_are_unscaled(hessian):
    results = []
    for scaled in (False, True):
        net = make_net()
        opt = ba.VON(net.named_parameters(), num_data=50, covariance="full", hessian=hessian, correction="elementwise")
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for step in range(3):
            with opt.sampled_params():
                opt.backward(scaler.scale(loss_of(net, step)))
            scaler.step(opt)
            scaler.update()
        results.append((weights(net), matrix_of(opt)))
    for kind in range(2):
        assert torch.allclose(results[0][kind], results[1][kind], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
def test_maximize_negates_the_matrix_too(hessian):
    options = {"num_data": 50, "covariance": "full", "hessian": hessian, "correction": "elementwise", "mc_samples": 2}
    results = []
    for sign in (1.0, -1.0):
        net = make_net(torch.float64)
        opt = ba.VON(net.named_parameters(), maximize=sign < 0, **options)
        for step in range(3):
            for _ in range(2):
                with opt.sampled_params():
                    opt.backward(sign * loss_of(net, step))
            opt.step()
        results.append((weights(net), matrix_of(opt)))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
