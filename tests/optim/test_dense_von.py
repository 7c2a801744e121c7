"""VON with a full covariance: against loops, exact posteriors, and all that a matrix over the weights must survive."""

import copy
import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from optim.methods import loss_of, make_net, same, snapshot, weights
from optim.problems import START, Problem, Regression, eps_of, relative, spread_out, tensor
from references import Setting, dense_von

PAIR = {"mc_samples": 2, "antithetic": True}
READ_OFF = {"hessian": "reparameterized", "betas": (0.0, 0.99), "lr": 0.01}


def matrix_of(opt):
    """The Hessian as it is kept."""
    return opt.state[opt.param_groups[0]["params"][0]]["hessian"]


def precision_of(opt):
    return torch.linalg.inv(opt.posterior().covariance)


# Against loops

CASES = {
    "default": {},
    "three samples": {"mc_samples": 3},
    "antithetic": {"mc_samples": 4, "antithetic": True},
    "temperature 0": {"temperature": 0.0},
    "temperature 0.5": {"temperature": 0.5},
    "elementwise": {"correction": "elementwise"},
    "b2 = 0": {"betas": (0.0, 0.0)},
    "clipped": {"initial_precision": 30.0, "clip_radius": 0.1},
    "schedule": {"schedule": lambda t: (0.0, 1 - 0.3 / (1 + t**0.55))},
    "negative curvature": {"problem": Problem(a=6.0, coupling=1.0), "correction": "elementwise", "temperature": 0.5},
    "maximize": {"maximize": True},
    "read off the noise": READ_OFF,
    "read off, elementwise": {**READ_OFF, "correction": "elementwise"},
    "read off, antithetic": {**READ_OFF, "mc_samples": 4, "antithetic": True},
    "read off, temperature 0": {**READ_OFF, "temperature": 0.0, "correction": "elementwise"},
    "read off, temperature 0.5": {**READ_OFF, "temperature": 0.5},
    "read off, maximize": {**READ_OFF, "maximize": True},
}


def assert_matches(problem=None, steps=30, schedule=None, **hp):
    problem, sizes = problem or Problem(), (2, 3)
    hp = {"lr": 0.1, "num_data": 100.0, "betas": (0.0, 0.9), "prior_precision": 3.0, **hp}
    parameters = [nn.Parameter(part.clone()) for part in tensor(START).split(sizes)]
    opt = ba.DenseVON([(f"p{i}", p) for i, p in enumerate(parameters)], **hp)
    sign = -1.0 if hp.pop("maximize", False) else 1.0
    for t in range(steps):
        if schedule is not None:
            opt.param_groups[0]["betas"] = schedule(t)
        opt.step(lambda t=t: sign * problem.loss(torch.cat(parameters), t))

    exact = hp.pop("hessian", "exact") == "exact"
    hp.setdefault("initial_precision", 100.0)
    eps = eps_of(sizes, hp.pop("antithetic", False))
    hp |= {"betas": schedule or hp["betas"], "hessian": problem.whole_hessian if exact else None}
    mean, precision = dense_von(START, steps, Setting(problem.gradient, eps, **hp))
    torch.testing.assert_close(torch.cat(parameters).detach(), tensor(mean), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(precision_of(opt), tensor(precision), rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_equals_reference_loop(case):
    assert_matches(**CASES[case])


# Exact posteriors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("outputs", "bias"), [(1, False), (2, True)])
def test_one_step_reaches_the_exact_posterior_of_linear_regression(outputs, bias, dtype):
    problem, close = Regression(outputs, bias), 1e-12 if dtype == torch.float64 else 1e-5
    mean, precision = problem.exact()
    problem.net.to(dtype)
    problem.x, problem.y = problem.x.to(dtype), problem.y.to(dtype)
    opt = problem.make(ba.DenseVON, lr=1.0, betas=(0.0, 0.0), **PAIR)
    for _ in range(3):  # and stays there
        opt.step(problem.loss)
        assert relative(weights(problem.net), mean) < close
        assert isinstance(opt.posterior(), ba.DenseGaussian)
        assert relative(opt.posterior().covariance, torch.linalg.inv(precision)) < close


def test_it_reaches_the_tempered_posterior():
    problem = Regression(2)
    mean, precision = problem.exact(0.5)
    opt = problem.make(ba.DenseVON, lr=0.9, betas=(0.0, 0.5), temperature=0.5, **PAIR)
    for _ in range(120):
        opt.step(problem.loss)
    assert relative(opt.posterior().covariance, torch.linalg.inv(precision)) < 1e-12
    assert relative(weights(problem.net), mean) < 1e-10


def test_a_sample_is_the_mean_plus_the_inverse_factor_times_the_noise():
    """After a step on a quadratic loss of rate 0 the precision is known."""
    precision, mean = spread_out(8), torch.arange(8.0).double()
    parameters = [nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in ((3,), (2, 2), (1,))]
    named = [(f"p{i}", p) for i, p in enumerate(parameters)]
    opt = ba.DenseVON(named, lr=0.0, num_data=7.0, prior_precision=0.5, betas=(0.0, 0.0), seed=11, mc_samples=2)
    hessian, seen = (precision - 0.5 * torch.eye(8).double()) / 7.0, []

    def quadratic():
        theta = torch.cat([p.flatten() for p in parameters])
        seen.append(theta.detach())
        return 0.5 * theta @ hessian @ theta

    opt.step(quadratic)
    torch.testing.assert_close(opt.posterior().covariance, torch.linalg.inv(precision), rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        for p, part in zip(parameters, mean.split([3, 4, 1]), strict=True):
            p.copy_(part.view(p.shape))
    loss = opt.step(quadratic)
    factor = torch.linalg.cholesky(precision)
    for sample, theta in enumerate(seen[2:]):
        eps = torch.cat([noise.normal(11, 1, sample, i, p.shape).flatten() for i, p in enumerate(parameters)])
        expected = mean + torch.linalg.solve(factor.T, eps.double())
        torch.testing.assert_close(theta, expected, rtol=1e-11, atol=1e-12)
    assert loss.item() == pytest.approx(sum(0.5 * theta @ hessian @ theta for theta in seen[2:]).item() / 2)
    assert torch.equal(torch.cat([p.detach().flatten() for p in parameters]), mean)


# The matrix


def test_a_precision_that_float32_could_not_hold():
    """Eigenvalues from the prior's 1e-7 to 1e3: rounded to float32 the matrix would be indefinite."""
    rows = torch.randn(10, 40, generator=torch.Generator().manual_seed(0)) * 10
    parameter = nn.Parameter(torch.zeros(40))
    opt = ba.DenseVON([("w", parameter)], lr=0.1, num_data=1e7, betas=(0.0, 0.0), correction="elementwise")
    for _ in range(40):
        opt.step(lambda: 0.5 * (rows.double() @ parameter.double() - 1).square().mean())
    matrix, exact = matrix_of(opt) + 1e-7 * torch.eye(40), rows.double().T @ rows.double() / 10
    assert torch.linalg.eigvalsh(matrix)[0] > 0
    assert torch.linalg.eigvalsh(matrix.float().double())[0] < 0
    assert relative(matrix, exact) < 1e-3


def test_parameters_of_two_dtypes_have_one_posterior():
    narrow, wide = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.float64))
    rows = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    opt = ba.DenseVON([("n", narrow), ("w", wide)], num_data=20, betas=(0.0, 0.0), lr=0.5)
    for _ in range(3):
        opt.step(lambda: 0.5 * (rows @ torch.cat([narrow.double(), wide])).square().mean())
    assert [v.dtype for v in opt.posterior().mean.values()] == [torch.float32, torch.float64]
    torch.testing.assert_close(precision_of(opt), rows.T @ rows + torch.eye(6), rtol=1e-5, atol=1e-5)


def test_a_parameter_that_is_frozen_later_is_refused():
    net = make_net()
    opt = ba.DenseVON(net.named_parameters(), num_data=10, correction="elementwise")
    opt.step(lambda: loss_of(net))
    net[0].requires_grad_(False)
    before, mean = copy.deepcopy(snapshot(opt)), weights(net)
    with pytest.raises(RuntimeError, match="One of the differentiated Tensors does not require grad"):
        opt.step(lambda: loss_of(net))
    assert same(snapshot(opt), before)
    assert torch.equal(weights(net), mean)


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr("bayesadam.optim.dense_von.rank_and_size", lambda: (0, 2))
    parameter = nn.Parameter(torch.zeros(2))
    with pytest.raises(RuntimeError, match="DenseVON must train in one process, got several"):
        ba.DenseVON([parameter], num_data=10).step(lambda: parameter.square().sum())


def test_a_parameter_that_the_loss_does_not_use_tends_to_the_prior():
    used, unused = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    opt = ba.DenseVON([("used", used), ("unused", unused)], lr=1.0, num_data=10, betas=(0.0, 0.0), prior_precision=3.0)
    opt.step(lambda: used.square().sum())
    assert opt.posterior().variance["unused"].tolist() == pytest.approx([1 / 3] * 2)
    assert unused.tolist() == pytest.approx([0.0] * 2)


# Saving


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", ["state_dict", "deepcopy"])
def test_a_resumed_training_is_the_same_to_the_bit(way, dtype, tmp_path):
    def made():
        net = make_net(dtype)
        return net, ba.DenseVON(net.named_parameters(), 0.05, num_data=50, betas=(0.0, 0.9), correction="elementwise")

    net, opt = made()
    for step in range(2):
        opt.step(lambda step=step: loss_of(net, step))
    if way == "deepcopy":
        other, resumed = copy.deepcopy((net, opt))
    else:
        torch.save((net.state_dict(), opt.state_dict()), tmp_path / "saved.pt")
        other, resumed = made()
        for part, saved in zip((other, resumed), torch.load(tmp_path / "saved.pt"), strict=True):
            part.load_state_dict(saved)
    assert matrix_of(resumed).dtype == torch.float64
    for step in range(2, 4):
        opt.step(lambda step=step: loss_of(net, step))
        resumed.step(lambda step=step: loss_of(other, step))
    assert torch.equal(weights(net), weights(other))
    assert same(snapshot(opt), snapshot(resumed))


def test_another_state_dict_is_refused_and_nothing_changed():
    net, single = make_net(), nn.Parameter(torch.zeros(3))
    opt = ba.DenseVON(net.named_parameters(), num_data=50, correction="elementwise")
    opt.step(lambda: loss_of(net))
    before, others = snapshot(opt), [ba.VON(net.named_parameters(), num_data=50), ba.DenseVON([single], num_data=50)]
    others[0].step(lambda: loss_of(net).backward())
    others[1].step(lambda: single.square().sum())
    for other in others:
        with pytest.raises(ValueError, match="state_dict must be of a DenseVON with 50 weights, got another one"):
            opt.load_state_dict(other.state_dict())
    assert same(snapshot(opt), before)


def test_the_posterior_predicts_and_is_saved(tmp_path):
    problem = Regression(1)
    opt = problem.make(ba.DenseVON, lr=1.0, betas=(0.0, 0.0), **PAIR)
    opt.step(problem.loss)
    q, path = opt.posterior(), tmp_path / "posterior.safetensors"
    q.save(path)
    loaded = ba.load_posterior(path)
    assert torch.equal(loaded.covariance, q.covariance)
    assert (loaded.hyperparameters["method"], loaded.hyperparameters["num_data"]) == ("DenseVON", 20)
    assert loaded.report().rows == q.report().rows
    found = ba.predict(problem.net, loaded, problem.x, likelihood=ba.Gaussian(noise_precision=2.0), mc_samples=4_000)
    inputs = torch.cat([problem.x, torch.ones(20, 1).double()], 1)
    expected = torch.einsum("ni,ij,nj->n", inputs, torch.linalg.inv(problem.exact()[1]), inputs)
    torch.testing.assert_close(found.epistemic.flatten().double(), expected, rtol=0.12, atol=0)


def test_names_may_come_from_the_model():
    net = make_net()
    opt = ba.DenseVON(net.parameters(), num_data=50)
    assert list(opt.posterior(nn.DataParallel(net)).mean) == [name for name, _ in net.named_parameters()]
    for model in (None, net[0]):
        with pytest.raises(RuntimeError, match=r"posterior\(\) must know the parameters' names: give it the model"):
            opt.posterior(model)


# Refusals


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_correction_keeps_the_precision_positive_under_wild_curvature(hessian, temperature):
    parameter = nn.Parameter(tensor([0.3, -0.2, 0.1]))
    options = {"betas": (0.0, 0.1 if hessian == "exact" else 0.9), "correction": "elementwise", "hessian": hessian}
    opt = ba.DenseVON([("w", parameter)], lr=1e-3, num_data=10, temperature=temperature, **options)
    mixing, negative = spread_out(3), []

    def wild(step):
        theta = mixing @ parameter
        negative.append((torch.cos(theta + step) > 0).sum())
        return (tensor([1.0, 10.0, 0.1]) * torch.cos(theta + step)).sum()

    for step in range(60):
        opt.step(lambda step=step: wild(step))
        assert torch.linalg.eigvalsh(opt.posterior().covariance)[0] > 0
        assert torch.linalg.eigvalsh(matrix_of(opt) + (0.1 * torch.eye(3) if temperature else 0.0))[0] > 0
    assert sum(negative) > 50


def saddle(p):
    """Positive on the diagonal, indefinite all the same."""
    return 0.5 * p.square().sum() + 30 * p[0] * p[1]


def differentiated(p):
    loss = p.exp().sum()
    loss.backward()
    return loss


FAULTS = {
    "indefinite": (saddle, FloatingPointError, "posterior precision must stay positive, .* nothing was changed"),
    "Hessian": (lambda p: (p - p.detach()).pow(1.5).sum(), FloatingPointError, "curvature of the loss must be finite"),
    "gradient": (lambda p: math.inf * p.sum(), FloatingPointError, "gradient of the loss must be finite, got inf"),
    "no loss": (lambda p: None, TypeError, "closure must return the loss, got None"),
    "backward": (differentiated, RuntimeError, "backward through the graph a second time"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_cannot_be_made_changes_nothing(fault):
    parameter = nn.Parameter(torch.full((3,), 0.3, dtype=torch.float64))
    opt = ba.DenseVON([("w", parameter)], lr=0.3, num_data=20, betas=(0.0, 0.6))
    opt.step(lambda: parameter.square().sum())
    before, mean = copy.deepcopy(snapshot(opt)), parameter.detach().clone()
    loss, error, message = FAULTS[fault]
    with pytest.raises(error, match=message):
        opt.step(lambda: loss(parameter))
    assert same(snapshot(opt), before)
    assert torch.equal(parameter, mean)
    opt.step(lambda: parameter.square().sum())
    assert not torch.equal(parameter, mean)
