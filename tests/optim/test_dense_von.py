"""VON with a full covariance: against loops, exact posteriors, and all that a matrix over the weights must survive."""

import re

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from optim.methods import in_blocks, loss_of, make_net, make_step, mean_of, same, snapshot, weights
from optim.problems import START, D, Problem, Regression, eps_of, relative, spread_out, tensor
from references import Setting, dense_von

FULL = {"covariance": "full", "hessian": "exact"}


def matrix_of(opt):
    """The Hessian as it is kept, row by row with the parameters."""
    return torch.cat([opt.state[p]["hessian"] for group in opt.param_groups for p in group["params"]])


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
    "closure": {"mode": "closure"},
    "negative curvature": {"problem": Problem(a=6.0, coupling=1.0), "correction": "elementwise", "temperature": 0.5},
    "another mean of the prior": {"prior": ([0.5, -0.2, 0.1, 0.3, -0.4], [1 / 40.0] * D)},
}
ON_NOISE = ["default", "antithetic", "temperature 0", "temperature 0.5"]


def assert_matches(problem=None, steps=30, schedule=None, mode="block", prior=None, **hp):
    problem, sizes = problem or Problem(), (2, 3)
    hp = {"lr": 0.1, "num_data": 100.0, "betas": (0.0, 0.9), **FULL, **hp}
    names = [f"p{i}" for i in range(len(sizes))]
    if prior is None:
        hp.setdefault("prior_precision", 3.0)
    else:
        mean, variance = (dict(zip(names, tensor(values).split(sizes), strict=True)) for values in prior)
        hp["prior"] = ba.DiagonalGaussian(mean, variance)
    parameters = [nn.Parameter(part.clone()) for part in tensor(START).split(sizes)]
    opt = ba.VON(zip(names, parameters, strict=True), **hp)
    for t in range(steps):
        if schedule is not None:
            opt.param_groups[0]["betas"] = schedule(t)
        make_step(opt, lambda t=t: problem.loss(torch.cat(parameters), t), mode)
    opt.eval()

    exact = hp.pop("hessian") == "exact"
    hp.setdefault("correction", None if exact else "elementwise")
    hp.setdefault("initial_precision", 100.0)
    del hp["covariance"]
    start, eps = START, eps_of(sizes, hp.pop("antithetic", False))
    if hp.pop("prior", None) is not None:
        start = prior[0]
        hp |= {"prior_mean": start, "prior_precision": 1 / prior[1][0]}
    setting = Setting(problem.gradient, eps, **{**hp, "betas": schedule or hp["betas"]})
    setting = Setting(**{**vars(setting), "hessian": problem.whole_hessian if exact else None})
    mean, precision = dense_von(start, steps, setting)
    torch.testing.assert_close(mean_of(opt), tensor(mean), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(precision_of(opt), tensor(precision), rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_exact_hessian_equals_reference_loop(case):
    assert_matches(**CASES[case])


@pytest.mark.parametrize(("case", "mode"), [*((case, "block") for case in ON_NOISE), ("default", "train")])
def test_reparameterized_hessian_equals_reference_loop(case, mode):
    assert_matches(**{"hessian": "reparameterized", "betas": (0.0, 0.99), "lr": 0.01, "mode": mode, **CASES[case]})


# Exact posteriors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("outputs", "bias"), [(1, False), (2, True)])
def test_one_step_reaches_the_exact_posterior_of_linear_regression(outputs, bias, dtype):
    problem, close = Regression(outputs, bias), 1e-12 if dtype == torch.float64 else 1e-5
    mean, precision = problem.exact()
    problem.net.to(dtype)
    problem.x, problem.y = problem.x.to(dtype), problem.y.to(dtype)
    opt = problem.make(ba.VON, lr=1.0, betas=(0.0, 0.0), mc_samples=2, antithetic=True, **FULL)
    for _ in range(3):  # and stays there
        opt.step(problem.loss)
        assert relative(weights(problem.net), mean) < close
        assert isinstance(opt.posterior(), ba.DenseGaussian)
        assert relative(opt.posterior().covariance, torch.linalg.inv(precision)) < close


def test_van_reaches_the_tempered_posterior():
    problem = Regression(2)
    mean, precision = problem.exact(0.5)
    options = {"lr": 0.9, "betas": (0.0, 0.5), "temperature": 0.5, "mc_samples": 2, "antithetic": True}
    opt = problem.make(ba.VAN, **options, **FULL)
    for _ in range(120):
        opt.step(problem.loss)
    assert relative(opt.posterior().covariance, torch.linalg.inv(precision)) < 1e-12
    assert relative(weights(problem.net), mean) < 1e-10


def made_with(precision, sizes, *, num_data=7.0, prior=0.5, **options):
    """An optimiser whose posterior precision is the given matrix, after a step on a quadratic loss of rate 0."""
    parameters = [nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in sizes]
    hp = {"lr": 0.0, "num_data": num_data, "prior_precision": prior, "betas": (0.0, 0.0), **FULL, **options}
    opt = ba.VON([(f"p{i}", p) for i, p in enumerate(parameters)], **hp)
    hessian = (precision - prior * torch.eye(len(precision), dtype=torch.float64)) / num_data

    def quadratic():
        theta = torch.cat([p.flatten() for p in parameters])
        return 0.5 * theta @ hessian @ theta

    opt.step(quadratic)
    return opt, parameters


def test_a_sample_is_the_mean_plus_the_inverse_factor_times_the_noise():
    precision, mean = spread_out(8), torch.arange(8.0).double()
    opt, parameters = made_with(precision, (3, (2, 2), 1), seed=11, mc_samples=2)
    with torch.no_grad():
        for p, part in zip(parameters, mean.split([3, 4, 1]), strict=True):
            p.copy_(part.view(p.shape))
    factor = torch.linalg.cholesky(precision)
    torch.testing.assert_close(opt.posterior().covariance, torch.linalg.inv(precision), rtol=1e-9, atol=1e-12)
    for sample in range(2):
        with opt.sampled_params():
            eps = torch.cat([noise.normal(11, 1, sample, i, p.shape).flatten() for i, p in enumerate(parameters)])
            expected = mean + torch.linalg.solve(factor.T, eps.double())
            theta = torch.cat([p.detach().flatten() for p in parameters])
            torch.testing.assert_close(theta, expected, rtol=1e-11, atol=1e-12)
        assert torch.equal(torch.cat([p.detach().flatten() for p in parameters]), mean)


# The matrix


def test_the_state_has_the_rows_of_every_parameter():
    net = make_net()
    opt = ba.VON(net.named_parameters(), num_data=50, initial_precision=60.0, **FULL, correction="elementwise")
    q = opt.posterior()
    torch.testing.assert_close(q.covariance, torch.eye(50).double() / 60.0, check_dtype=False)
    opt.step(lambda: loss_of(net))
    shapes = [tuple(opt.state[p]["hessian"].shape) for p in net.parameters()]
    assert shapes == [(p.numel(), 50) for p in net.parameters()]
    matrix = matrix_of(opt)
    assert matrix.dtype == torch.float64
    torch.testing.assert_close(matrix, matrix.T, rtol=1e-12, atol=1e-14)
    assert not torch.equal(matrix, torch.diag(matrix.diagonal()))


def test_a_precision_that_float32_could_not_hold():
    """Eigenvalues from the prior's 1e-7 to 1e3: rounded to float32 the matrix would be indefinite."""
    rows = torch.randn(10, 40, generator=torch.Generator().manual_seed(0)) * 10
    parameter = nn.Parameter(torch.zeros(40))
    opt = ba.VON([("w", parameter)], lr=0.1, num_data=1e7, betas=(0.0, 0.0), **FULL, correction="elementwise")
    for _ in range(40):
        opt.step(lambda: 0.5 * (rows.double() @ parameter.double() - 1).square().mean())
    matrix, exact = matrix_of(opt) + 1e-7 * torch.eye(40), rows.double().T @ rows.double() / 10
    assert torch.linalg.eigvalsh(matrix)[0] > 0
    assert torch.linalg.eigvalsh(matrix.float().double())[0] < 0
    assert relative(matrix, exact) < 1e-3


def test_parameters_of_several_dtypes_have_one_posterior():
    narrow, wide = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.float64))
    low = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    rows = torch.randn(20, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    opt = ba.VON([("n", narrow), ("w", wide), ("l", low)], num_data=20, betas=(0.0, 0.0), lr=0.5, **FULL)
    for _ in range(3):
        opt.step(lambda: 0.5 * (rows @ torch.cat([narrow.double(), wide, low.double()])).square().mean())
    assert [v.dtype for v in opt.posterior().mean.values()] == [torch.float32, torch.float64, torch.float32]
    torch.testing.assert_close(precision_of(opt), rows.T @ rows + torch.eye(8), rtol=1e-2, atol=1e-3)


def test_what_is_frozen_from_the_start_is_no_part_of_it():
    """A large frozen network below a small trainable one."""
    body = nn.Linear(3, 20_000).requires_grad_(False)
    last = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = ba.VON([*body.named_parameters(), ("last", last)], num_data=10, **FULL)
    opt.step(lambda: (last - 1).square().sum())
    assert opt.state[last]["hessian"].shape == (2, 2)
    assert list(opt.posterior().mean) == ["last"]
    body.bias.requires_grad_(True)
    before = weights(body)
    with pytest.raises(RuntimeError, match="must not be added, frozen or unfrozen"), opt.sampled_params():
        pass
    assert torch.equal(weights(body), before)


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
def test_a_group_without_noise_is_in_the_same_matrix(hessian):
    net = make_net(torch.float64)
    groups = [
        {"params": list(net[0].named_parameters(prefix="0"))},
        {"params": list(net[2].named_parameters(prefix="2")), "perturb": False},
    ]
    opt = ba.VON(groups, lr=0.05, num_data=50, covariance="full", hessian=hessian, correction="elementwise")
    for step in range(3):
        make_step(opt, lambda step=step: loss_of(net, step))
    q, matrix, noisy = opt.posterior(), matrix_of(opt), 32
    conditional = torch.linalg.inv(50 * matrix[:noisy, :noisy] + torch.eye(noisy))
    torch.testing.assert_close(q.covariance[:noisy, :noisy], conditional, rtol=1e-8, atol=1e-12)
    assert not q.covariance[noisy:].any()
    assert matrix[:noisy, noisy:].any() == (hessian == "exact")
    if hessian == "reparameterized":  # nothing is known of it
        assert torch.equal(matrix[noisy:, noisy:], torch.eye(len(matrix) - noisy).double() * 49 / 50)


def test_groups_may_differ_in_rate_and_prior():
    a, b = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2))
    curve = spread_out(4)
    groups = [{"params": [("a", a)]}, {"params": [("b", b)], "lr": 0.5, "prior_precision": 30.0}]
    hp = {"lr": 1.0, "num_data": 10, "prior_precision": 3.0, "initial_precision": 50.0, "betas": (0.0, 0.0)}
    opt = ba.VON(groups, **hp, mc_samples=2, antithetic=True, **FULL)
    opt.step(lambda: 0.5 * (torch.cat([a, b]) - 1) @ curve @ (torch.cat([a, b]) - 1))
    prior = torch.diag(tensor([3.0, 3.0, 30.0, 30.0]))
    torch.testing.assert_close(precision_of(opt), 10 * curve + prior, rtol=1e-10, atol=0)
    whole = torch.linalg.solve(10 * curve + prior, 10 * curve @ torch.ones(4).double())
    torch.testing.assert_close(torch.cat([a, b]).detach(), whole * tensor([1.0, 1.0, 0.5, 0.5]), rtol=1e-10, atol=0)


def test_per_weight_priors_stand_on_the_diagonal():
    """After one whole step of no data, the posterior is the prior."""
    mean = {"a": torch.randn(2, 2).double(), "b": torch.randn(3).double()}
    variance = {"a": tensor([[0.1, 0.2], [0.3, 0.4]]), "b": tensor([0.05, 0.6, 0.07])}
    parameters = [nn.Parameter(torch.zeros_like(value)) for value in mean.values()]
    prior = ba.DiagonalGaussian(mean, variance)
    opt = ba.VON(zip(mean, parameters, strict=True), lr=1.0, num_data=30.0, betas=(0.0, 0.0), prior=prior, **FULL)
    opt.step(lambda: sum(0.0 * p.square().sum() for p in parameters))
    expected = torch.cat([v.flatten() for v in variance.values()])
    torch.testing.assert_close(opt.posterior().covariance.diagonal(), expected)
    assert all(torch.allclose(p.detach(), m) for p, m in zip(parameters, mean.values(), strict=True))


def after_three_steps(hessian, *, factor=1.0, clip=1.0, scaled=False, maximize=False):
    """With a factor inside the loss, one of the gradients after the block, or a scaler's."""
    net = make_net(torch.float64)
    options = {"covariance": "full", "hessian": hessian, "correction": "elementwise", "mc_samples": 2}
    opt = ba.VON(net.named_parameters(), lr=0.05, num_data=50, maximize=maximize, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    for step in range(3):
        in_blocks(opt, lambda step=step: scaler.scale(factor * loss_of(net, step)))
        for p in net.parameters():
            p.grad.mul_(clip)
        scaler.step(opt)
        scaler.update()
    return weights(net), matrix_of(opt)


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
def test_clipping_maximising_and_unscaling_act_on_the_whole_matrix(hessian):
    plain, close = after_three_steps(hessian), {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(after_three_steps(hessian, scaled=True), plain, **close)
    torch.testing.assert_close(after_three_steps(hessian, factor=-1.0, maximize=True), plain, **close)
    smaller = after_three_steps(hessian, factor=0.25)
    torch.testing.assert_close(after_three_steps(hessian, clip=0.25), smaller, **close)
    assert not torch.allclose(smaller[1], plain[1], rtol=1e-3)


# Refusals


@pytest.mark.parametrize(
    ("name", "value"), [("num_data", 20), ("betas", (0.0, 0.5)), ("temperature", 0.5), ("maximize", True)]
)
def test_what_a_matrix_shares_is_the_same_in_all_groups(name, value):
    net = make_net()
    groups = [{"params": net[0].parameters()}, {"params": net[2].parameters(), name: value}]
    message = f"{name} must be the same in all groups when covariance='full', got {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        ba.VON(groups, num_data=10, **FULL)


def test_parameters_cannot_be_added():
    net = make_net()
    opt = ba.VON(net.named_parameters(), num_data=10, **FULL, correction="elementwise")
    with pytest.raises(
        RuntimeError, match=r"add_param_group\(\) must not be called when covariance='full', got a call"
    ):
        opt.step(lambda: loss_of(net))
        opt.add_param_group({"params": [("more", nn.Parameter(torch.zeros(2)))]})
    assert len(opt.param_groups) == 1
    opt.step(lambda: loss_of(net))


def test_too_many_weights():
    for sizes in ([10_001], [6_000, 6_000]):
        groups = [{"params": [nn.Parameter(torch.zeros(size))]} for size in sizes]
        message = f"covariance must be 'diagonal' above 10,000 weights, got 'full' for {sum(sizes):,}"
        with pytest.raises(ValueError, match=message):
            ba.VON(groups, num_data=10, covariance="full")
    ba.VON([nn.Parameter(torch.zeros(10_000))], num_data=10, covariance="full")


@pytest.mark.parametrize("hessian", ["exact", "reparameterized"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_correction_keeps_the_precision_positive_under_wild_curvature(hessian, temperature):
    parameter = nn.Parameter(tensor([0.3, -0.2, 0.1]))
    options = {"betas": (0.0, 0.1 if hessian == "exact" else 0.9), "correction": "elementwise", "covariance": "full"}
    opt = ba.VON([("w", parameter)], lr=1e-3, num_data=10, temperature=temperature, hessian=hessian, **options)
    mixing, negative = spread_out(3), 0
    for step in range(60):
        with opt.sampled_params():
            theta = mixing @ parameter
            opt.backward((tensor([1.0, 10.0, 0.1]) * torch.cos(theta + step)).sum())
            negative += int((torch.cos(theta + step) > 0).sum())
        opt.step()
        assert torch.linalg.eigvalsh(opt.posterior().covariance)[0] > 0
        assert torch.linalg.eigvalsh(matrix_of(opt) + (0.1 * torch.eye(3) if temperature else 0.0))[0] > 0
    assert negative > 50


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_without_correction_an_indefinite_step_changes_nothing(nonfinite):
    parameter = nn.Parameter(torch.full((3,), 0.3, dtype=torch.float64))
    opt = ba.VON([("w", parameter)], lr=0.3, num_data=20, betas=(0.0, 0.6), nonfinite=nonfinite, **FULL)
    opt.step(lambda: parameter.square().sum())
    before, mean = snapshot(opt)[1], parameter.detach().clone()

    def saddle():  # positive on the diagonal, indefinite all the same
        return 0.5 * parameter.square().sum() + 30 * parameter[0] * parameter[1]

    if nonfinite == "raise":
        with pytest.raises(FloatingPointError, match="posterior precision must stay positive, .* nothing was changed"):
            opt.step(saddle)
        opt.zero_grad()
    else:
        opt.step(saddle)
        assert opt.param_groups[0]["skipped_steps"] == 1
    assert same(snapshot(opt)[1], before)
    assert torch.equal(parameter, mean)
    opt.step(lambda: parameter.square().sum())
    assert not torch.equal(parameter, mean)


def test_a_hessian_that_is_not_finite_changes_nothing():
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    opt = ba.VON([parameter], num_data=10, **FULL)
    opt.step(lambda: parameter.square().sum())
    before = snapshot(opt)
    with pytest.raises(FloatingPointError, match="curvature of the loss must be finite, got inf or nan"):
        opt.step(lambda: (parameter - parameter.detach()).pow(1.5).sum())
    assert same(snapshot(opt), before)


def test_the_posterior_predicts_and_is_saved(tmp_path):
    problem = Regression(1)
    opt = problem.make(ba.VON, lr=1.0, betas=(0.0, 0.0), mc_samples=2, antithetic=True, **FULL)
    opt.step(problem.loss)
    q, path = opt.posterior(), tmp_path / "posterior.safetensors"
    q.save(path)
    loaded = ba.load_posterior(path)
    assert torch.equal(loaded.covariance, q.covariance)
    assert (loaded.hyperparameters["method"], loaded.hyperparameters["num_data"]) == ("VON", 20)
    found = ba.predict(problem.net, loaded, problem.x, likelihood=ba.Gaussian(noise_precision=2.0), mc_samples=4_000)
    inputs = torch.cat([problem.x, torch.ones(20, 1).double()], 1)
    expected = torch.einsum("ni,ij,nj->n", inputs, torch.linalg.inv(problem.exact()[1]), inputs)
    torch.testing.assert_close(found.epistemic.flatten().double(), expected, rtol=0.12, atol=0)


def test_lazy_modules_are_refused():
    net = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(ValueError, match="parameters must be initialized when covariance='full', got those of a lazy"):
        ba.VON(net.named_parameters(), num_data=10.0, covariance="full")
