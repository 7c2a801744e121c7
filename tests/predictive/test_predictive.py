"""The Monte Carlo predictive: against closed forms and brute force, in every kind of input, leaving no trace."""

import math
import sys

import numpy as np
import pytest
import rich.progress
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam import metrics
from bayesadam.predictive import monte_carlo
from bayesadam.predictive.result import from_outputs
from modules import module_of
from posterior.kinds import BOUND, F64, draw
from predictive.networks import (
    OUT_OF_MEMORY,
    Halves,
    Network,
    Scale,
    assert_unchanged,
    close,
    posterior_of,
    raise_,
    snapshot,
    trained_part,
)

N = S = 1000
NOISE = 0.7


@pytest.fixture(scope="module")
def problem():
    """``f_n = c_n w_n``, each data point with its own weight: 1000 points times 1000 samples are a million draws."""
    model = nn.Linear(N, 1, bias=False, **F64)
    mean, variance = draw(1, N, seed=1), draw(1, N, seed=2).exp()
    q = ba.DiagonalGaussian({"weight": mean}, {"weight": variance})
    c = draw(N, seed=3)
    prediction = ba.predict(model, q, torch.diag(c), likelihood=ba.Gaussian(1 / NOISE), mc_samples=S, seed=5)
    return prediction, (c * mean[0])[:, None], (c**2 * variance[0])[:, None]


class TestAgainstTheClosedForm:
    def mean_z(self, found, mean, variance):
        return ((found - mean) / variance.sqrt()).sum().item() * math.sqrt(S / N)

    def variance_z(self, found, variance):
        return (found / variance - 1).sum().item() * math.sqrt((S - 1) / (2 * N))

    def test_mean(self, problem):
        prediction, mean, variance = problem
        assert abs(self.mean_z(prediction.mean, mean, variance)) < BOUND
        assert self.mean_z(prediction.mean + 0.01 * variance.sqrt(), mean, variance) > BOUND

    def test_epistemic_and_aleatoric_variance(self, problem):
        prediction, _, variance = problem
        assert abs(self.variance_z(prediction.epistemic, variance)) < BOUND
        assert self.variance_z(1.015 * prediction.epistemic, variance) > BOUND
        assert self.variance_z(0.985 * prediction.epistemic, variance) < -BOUND
        close(prediction.aleatoric, torch.full((N, 1), NOISE), rtol=1e-6, atol=0)

    def test_method_mean_is_the_network_at_the_mean(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        q, x = posterior_of(model), draw(5, 3, dtype=torch.float32)
        prediction = ba.predict(model, q, x, likelihood=ba.Gaussian(4.0), method="mean", mc_samples=7)
        expected = torch.func.functional_call(model, q.mean, (x,))
        assert prediction.means.equal(expected[None])
        assert prediction.mean.equal(expected)
        assert not prediction.epistemic.any()
        assert prediction.variance.equal(prediction.aleatoric)
        level = prediction.quantile(0.9)
        close(level, expected.double() + 0.5 * stats.norm.ppf(0.9), rtol=1e-6, atol=1e-6)


class TestChunks:
    X = draw(23, 2, dtype=torch.float32)

    def means(self, inputs, model=None, **options):
        model = model or Scale()
        return ba.predict(model, posterior_of(Scale()), inputs, likelihood=ba.Gaussian(), mc_samples=3, **options).means

    @pytest.mark.parametrize("batch_size", [1, 5, 24])
    def test_batch_size_changes_nothing_but_the_rows(self, batch_size):
        model = Scale()
        assert self.means(self.X, model, batch_size=batch_size).equal(self.means(self.X))
        whole, rest = divmod(23, batch_size)
        assert model.rows == 3 * ([batch_size] * whole + [rest] * (rest > 0))

    @pytest.mark.parametrize(("batch", "batch_size", "group_bytes"), [(4, None, 1), (4, 3, 100), (50, None, 2**28)])
    def test_loaders(self, batch, batch_size, group_bytes, monkeypatch):
        monkeypatch.setattr(monte_carlo, "GROUP_BYTES", group_bytes)
        loader = DataLoader(TensorDataset(self.X, torch.arange(23)), batch)
        assert self.means(loader, batch_size=batch_size).equal(self.means(self.X))

    @pytest.mark.parametrize("error", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
    @pytest.mark.parametrize("batch_size", [None, 20])
    def test_memory_that_runs_out_halves_the_rows(self, error, batch_size):
        model = Halves(4, error)
        assert self.means(self.X, model, batch_size=batch_size).equal(self.means(self.X))
        tried = [23, 11, 5, 2] if batch_size is None else [20, 10, 5, 2]
        assert model.rows[:4] == tried
        assert max(model.rows[4:]) == 2  # halved for good, for later samples too

    @pytest.mark.parametrize("batch_size", [None, 1])
    def test_one_row_that_does_not_fit_is_an_error(self, batch_size):
        model = Halves(0, OUT_OF_MEMORY["accelerator"])
        with pytest.raises(RuntimeError, match="memory"):
            self.means(self.X, model, batch_size=batch_size)
        assert model.rows[-1] == 1
        assert not model.weight.any()
        assert model.training


class Sum(Scale):
    def forward(self, a, b):
        return super().forward(a + b)


class TestInputs:
    A, B = draw(10, dtype=torch.float32), draw(10, seed=1, dtype=torch.float32)

    def means(self, model, inputs, **options):
        return ba.predict(model, posterior_of(Scale()), inputs, likelihood=ba.Gaussian(), mc_samples=3, **options).means

    @pytest.mark.parametrize("batch_size", [None, 4])
    @pytest.mark.parametrize(
        "inputs",
        [
            lambda a, b: (a, b),
            lambda a, b: {"b": b, "a": a},
            lambda a, b: [{"a": a[:4], "b": b[:4]}, {"a": a[4:], "b": b[4:]}],
            lambda a, b: ((x, None) for x in zip(a.split(4), b.split(4), strict=True)),
            lambda a, b: DataLoader([((x, y), 0) for x, y in zip(a, b, strict=True)], 4),
            lambda a, b: DataLoader([({"a": x, "b": y}, 0) for x, y in zip(a, b, strict=True)], 4),
        ],
        ids=["tuple", "dict", "list of dicts", "generator", "loader of tuples", "loader of (dict, y)"],
    )
    def test_several_inputs(self, inputs, batch_size):
        found = self.means(Sum(), inputs(self.A, self.B), batch_size=batch_size)
        assert found.equal(self.means(Scale(), self.A + self.B))

    @pytest.mark.parametrize(
        "inputs",
        [
            lambda x: DataLoader(TensorDataset(x, torch.zeros(10)), 4),
            lambda x: DataLoader(x, 4),
            lambda x: (part for part in x.split(3)),
            lambda x: ([part, "a target"] for part in x.split(3)),
        ],
        ids=["loader of (x, y)", "loader of x", "generator", "generator of [x, y]"],
    )
    def test_one_input(self, inputs):
        assert self.means(Scale(), inputs(self.A)).equal(self.means(Scale(), self.A))

    def test_output_takes_the_tensor_out(self):
        class Wrapped(Scale):
            def forward(self, x):
                return {"logits": super().forward(x), "loss": None}

        found = self.means(Wrapped(), self.A, output=lambda out: out["logits"], batch_size=3)
        assert found.equal(self.means(Scale(), self.A))

    def test_float64_stays_and_bfloat16_is_widened(self):
        x = draw(50, 3)
        for dtype, result in [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)]:
            model = nn.Linear(3, 4).to(dtype)
            q = posterior_of(nn.Linear(3, 4), std=0.05)
            prediction = ba.predict(model, q, x.to(dtype), likelihood=ba.Categorical(), mc_samples=8)
            theta = {n: t.to(dtype) for n, t in q.sample(8).items()}
            logits = torch.stack(
                [
                    torch.func.functional_call(model, {n: t[i] for n, t in theta.items()}, (x.to(dtype),))
                    for i in range(8)
                ]
            )
            close(prediction.log_probs, logits.to(result).log_softmax(-1), rtol=1e-5, atol=1e-5)
            assert {prediction.probs.dtype, prediction.entropy.dtype} == {result}
            p = logits.double().softmax(-1).numpy()
            information = stats.entropy(p.mean(0), axis=-1) - stats.entropy(p, axis=-1).mean(0)
            close(prediction.mutual_information, information, rtol=0, atol=1e-6)
            assert information.max() > 1e-3


class TestLeavesNoTrace:
    X = draw(6, 3, dtype=torch.float32)

    def predict(self, model, q=None, inputs=None, **options):
        options = {"likelihood": ba.Gaussian(learned=True), "mc_samples": 3, **options}
        return ba.predict(model, q or trained_part(model), self.X if inputs is None else inputs, **options)

    def test_inside_everything_is_in_eval_mode_and_outside_as_before(self):
        modes = []
        model = Network(lambda m: modes.extend(part.training for part in m.modules()))
        with torch.no_grad():
            model.first.weight.fill_(-0.0)  # bits, not values
        before = snapshot(model)
        first, second = self.predict(model), self.predict(model)
        assert first.means.equal(second.means)  # no dropout
        assert modes
        assert not any(modes)
        assert set(before[1].values()) == {True, False}
        assert_unchanged(model, before)

    @pytest.mark.parametrize("error", [ValueError("in the model"), KeyboardInterrupt()])
    @pytest.mark.parametrize("at", [1, 2])
    def test_after_an_error(self, error, at):
        model = Network(lambda m: raise_(error) if m.calls == at else None)
        before = snapshot(model)
        with pytest.raises(type(error)):
            self.predict(model)
        assert_unchanged(model, before)

    def test_no_gradients_are_tracked(self):
        enabled = []
        model = Network(lambda m: enabled.append(torch.is_grad_enabled()))
        x = self.X.clone().requires_grad_()
        prediction = self.predict(model, inputs=x)
        assert enabled == [False] * 3
        assert torch.is_grad_enabled()
        tensors = (prediction.means, prediction.variances, prediction.mean, prediction.variance)
        assert not any(tensor.requires_grad for tensor in tensors)
        assert x.grad is None

    def test_global_generators_are_untouched(self):
        model = Network()
        torch.manual_seed(3)
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        one = self.predict(model).means
        assert torch.get_rng_state().equal(before)
        assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
        torch.manual_seed(4)
        assert self.predict(model).means.equal(one)


class Adapted(nn.Linear):
    """A frozen layer with an update of low rank."""

    def __init__(self):
        super().__init__(3, 4, **F64)
        self.down, self.up = (nn.Parameter(draw(*shape)) for shape in ((2, 3), (4, 2)))
        self.weight.requires_grad_(False)
        self.merged = False

    def forward(self, x):
        return super().forward(x) + (0 if self.merged else x @ self.down.T @ self.up.T)


class Merging(Adapted):
    """The update is a part of the weight in eval mode, as in loralib."""

    def train(self, mode=True):
        if self.merged == mode:
            self.weight.data += (1 - 2 * mode) * (self.up @ self.down)
            self.merged = not mode
        return super().train(mode)


class Caching(Adapted):
    """What is computed of the weights is computed once in eval mode, as in LeViT."""

    def train(self, mode=True):
        self.whole = None if mode else (self.weight + self.up @ self.down).detach()
        return super().train(mode)

    def forward(self, x):
        return super().forward(x) if self.training else nn.functional.linear(x, self.whole, self.bias)


class Frozen(Adapted):
    """Never in training mode."""

    def train(self, mode=True):
        return super().train(False)


class TestModulesThatChangeWithTheirMode:
    X = draw(6, 3)

    def model(self, kind, mode=True):
        torch.manual_seed(0)
        model = nn.Sequential(kind(), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1, **F64))
        return model.train(mode)

    def posterior(self, model):
        mean = trained_part(model).mean
        return ba.DiagonalGaussian(mean, {name: torch.full_like(value, 0.3) for name, value in mean.items()})

    @pytest.mark.parametrize("mode", [True, False])
    @pytest.mark.parametrize("kind", [Merging, Caching, Frozen])
    def test_samples_are_of_all_weights_and_nothing_is_left(self, kind, mode):
        q = self.posterior(self.model(Adapted))
        model = self.model(kind, mode)
        outputs = model.eval()(self.X)
        before = snapshot(model.train(mode))
        options = {"likelihood": ba.Gaussian(), "mc_samples": 5, "batch_size": 4}
        for method in ("monte_carlo", "mean"):
            expected = ba.predict(self.model(Adapted), q, self.X, method=method, **options).means
            close(ba.predict(model, q, self.X, method=method, **options).means, expected)
            assert_unchanged(model, before)
        with pytest.raises(RuntimeError, match="shapes"):
            ba.predict(model, q, self.X[:, :2], **options)
        assert_unchanged(model, before)
        close(model.eval()(self.X), outputs)

    @pytest.mark.parametrize("mode", [True, False])
    @pytest.mark.parametrize("kind", [Merging, Caching])
    def test_derivatives_are_refused_where_they_would_not_be_seen(self, kind, mode):
        model = self.model(kind, mode)
        before, q = snapshot(model), self.posterior(model)
        y, likelihood = self.X[:, :1], ba.Gaussian()
        message = (
            rf"^model must compute with its weights .*, got module '0' \({kind.__name__}\), which merges or caches "
        )
        for method in ("linearized", "moments"):
            with pytest.raises(ValueError, match=message if method == "linearized" else "^model must "):
                ba.predict(model, q, self.X, likelihood=likelihood, method=method)
            assert_unchanged(model, before)
        for structure in ("diagonal", "full"):
            with pytest.raises(ValueError, match=message):
                ba.posthoc.LaplaceApproximation(model, (self.X, y), likelihood=likelihood, structure=structure)
            assert_unchanged(model, before)
        last = ba.laplace(model, (self.X, y), likelihood=likelihood, structure="last_layer")
        found = ba.predict(model, last, self.X, likelihood=likelihood, method="linearized").epistemic
        plain = ba.predict(self.model(Adapted), last, self.X, likelihood=likelihood, method="linearized").epistemic
        close(found, plain)
        assert_unchanged(model, before)


def halved(net):
    """It computes something else than the module inside, and has the same parameters."""
    return module_of(lambda self, x: self.module(x / 2), module=net)


@pytest.fixture
def wrap(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1)
    yield {
        "DDP": nn.parallel.DistributedDataParallel,
        "compiled": lambda net: torch.compile(net, backend="eager"),
        "DDP of compiled": lambda net: nn.parallel.DistributedDataParallel(torch.compile(net, backend="eager")),
        "module": halved,
        "DDP of module": lambda net: nn.parallel.DistributedDataParallel(halved(net)),
    }
    torch.distributed.destroy_process_group()


class TestWrappers:
    X = draw(6, 2, dtype=torch.float32)

    def found(self, model, q, x, method):
        if method == "applied":
            with q.applied(model, 1, seed=3), torch.no_grad():
                return model(x)
        return ba.predict(model, q, x, likelihood=ba.Gaussian(), mc_samples=3, method=method).epistemic

    def expected(self, name, net, q, method):
        return self.found(net, q, self.X / 2 if "module" in name else self.X, method)

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
    @pytest.mark.parametrize(
        ("name", "names"),
        [
            ("DDP", "inside"),
            ("compiled", "outside"),
            ("DDP of compiled", "inside"),
            ("module", "inside"),
            ("DDP of module", "outside"),
        ],
    )
    def test_posteriors_of_the_wrapper_and_of_the_network_inside(self, wrap, name, names):
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        model = wrap[name](net).eval()
        before = snapshot(net)
        buffers = {"1.running_mean": draw(3, dtype=torch.float32)}
        mean = {key: draw(*p.shape, seed=len(key), dtype=torch.float32) for key, p in net.named_parameters()}
        variance = {key: torch.full_like(value, 0.1) for key, value in mean.items()}
        inside = ba.DiagonalGaussian(mean, variance).with_buffers(buffers)
        own = {id(p): key for key, p in model.named_parameters()}
        prefix = own[id(net[0].weight)].removesuffix("0.weight")
        q = inside
        if names == "outside":
            q = ba.DiagonalGaussian(*({prefix + key: v for key, v in part.items()} for part in (q.mean, q.variance)))
            q = q.with_buffers(buffers)
        for method in ("monte_carlo", "mean", "linearized", "applied", "moments"):
            close(self.found(model, q, self.X, method), self.expected(name, net, inside, method), rtol=1e-5, atol=1e-6)
        assert_unchanged(net, before)

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
    @pytest.mark.parametrize("name", ["DDP", "compiled", "DDP of compiled", "module"])
    def test_what_the_library_makes_of_a_wrapped_network(self, wrap, name):
        net, x = nn.Linear(2, 1), self.X
        model, y = wrap[name](net), x[:, :1]
        adam = torch.optim.Adam(model.parameters())
        ba.Gaussian().nll(model(x), y).backward()
        adam.step()
        vadam = ba.Vadam(model.named_parameters(), num_data=6)
        with vadam.sampled_params():
            ba.Gaussian().nll(model(x), y).backward()
        vadam.step()
        laplace = ba.posthoc.LaplaceApproximation(model, (x, y), likelihood=ba.Gaussian(), structure="full")
        made = [vadam.posterior(), vadam.posterior(model), ba.badam(adam, model, num_data=6), laplace.posterior()]
        for q in made:
            assert ba.predict(model, q, x, likelihood=ba.Gaussian(), mc_samples=3).epistemic.min() > 0
        swag = ba.SWAG(model)
        for collect in (swag.collect,) * 2:
            collect()
        named = [*made[1:3], swag.posterior(), ba.DiagonalGaussian.point_mass(model), ba.ensemble([model])]
        assert all(list(q.mean) == ["weight", "bias"] for q in named)
        for structure in () if name == "module" else ("diagonal", "kron", "last_layer"):
            q, plain = (
                ba.laplace(m, (x, y), likelihood=ba.Gaussian(), structure=structure, prior_precision=1.0)
                for m in (model, net)
            )
            assert list(q.mean) == list(plain.mean)
            assert all(torch.equal(q.variance[key], value) for key, value in plain.variance.items())
        ba.pruning_curve(model, made[1], (x, y), likelihood=ba.Gaussian(), fractions=[0.5])
        options = {"candidates": {"prior_precision": [1.0]}, "scale": [1.0], "likelihood": ba.Gaussian()}
        ba.tune_posterior(laplace.posterior, model, (x, y), **options)


class TestProgress:
    BATCHES = tuple(torch.ones(2) for _ in range(4))

    def predict(self, progress, inputs=None, model=None):
        model = model or Scale()
        return ba.predict(
            model,
            posterior_of(Scale()),
            list(self.BATCHES) if inputs is None else inputs,
            likelihood=ba.Gaussian(),
            mc_samples=3,
            progress=progress,
        )

    @pytest.fixture
    def terminal(self, monkeypatch, capsys):
        monkeypatch.setattr(type(sys.stderr), "isatty", lambda stream: True)
        monkeypatch.setenv("TERM", "xterm")

    @pytest.fixture
    def no_rich(self, monkeypatch):
        for name in ("rich", "rich.console", "rich.progress"):
            monkeypatch.setitem(sys.modules, name, None)

    @pytest.mark.usefixtures("terminal")
    def test_it_moves_with_the_forward_passes_not_with_the_loading(self, monkeypatch):
        calls = []

        def advance(bar, task, amount):
            calls.append(bar.tasks[task].total)

        class Logged(Scale):
            def forward(self, x):
                calls.append("forward")
                return super().forward(x)

        monkeypatch.setattr(rich.progress.Progress, "advance", advance)
        self.predict(None, model=Logged())
        assert calls == ["forward", 12] * 12  # four batches by three samples

    @pytest.mark.usefixtures("no_rich")
    def test_without_rich(self, monkeypatch, capsys):
        model = Scale()
        with pytest.raises(ImportError, match=r'^progress=True needs rich: pip install "bayesadam\[cli\]"$'):
            self.predict(True, model=model)
        assert model.training
        self.predict(False)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        self.predict(None)
        assert capsys.readouterr().err == ""


def regression(*shape, seed=0, **kind):
    return ba.predictive.RegressionPredictive(
        draw(*shape, seed=seed, **kind), draw(*shape, seed=seed + 1, **kind).exp()
    )


def mixture_cdf(prediction, y, at):
    means, scales = (
        prediction.means[(slice(None), *at)].numpy(),
        prediction.variances[(slice(None), *at)].sqrt().numpy(),
    )
    return stats.norm.cdf(y, means, scales).mean()


class TestRegression:
    @pytest.mark.parametrize("shape", [(1, 5), (7, 5, 2)])
    def test_law_of_total_variance(self, shape):
        """Mean and variance of the mixture by its moments; the epistemic part is the unbiased one."""
        prediction = regression(*shape)
        means, variances = prediction.means.numpy(), prediction.variances.numpy()
        close(prediction.mean, means.mean(0))
        close(prediction.aleatoric, variances.mean(0))
        second = (means**2 + variances).mean(0)
        between = second - means.mean(0) ** 2 - variances.mean(0)
        unbiased = between * 7 / 6 if shape[0] > 1 else np.zeros(5)
        close(prediction.epistemic, unbiased)
        close(prediction.variance, variances.mean(0) + unbiased)

    @pytest.mark.parametrize("likelihood", [ba.Gaussian(3.0), ba.HeteroscedasticGaussian(), ba.Bernoulli()])
    @pytest.mark.parametrize("shape", [(5, 2), (5, 7, 2)])
    def test_data_points_are_those_of_the_likelihood(self, likelihood, shape):
        """The last axis has the outputs of one data point, and every axis before it counts data points."""
        output = draw(3, *shape[:-1], shape[-1] * (2 if isinstance(likelihood, ba.HeteroscedasticGaussian) else 1))
        y = (draw(*shape, seed=1) > 0).double()
        prediction = from_outputs(output, likelihood)
        terms = torch.stack([likelihood.log_prob(sample, y) for sample in output])
        assert terms.shape == (3, *shape[:-1])
        close(prediction.log_prob(y), terms.logsumexp(0) - math.log(3))
        close(prediction.joint_log_likelihood(y), terms.flatten(1).sum(1).logsumexp(0) - math.log(3))
        one = from_outputs(output[:1], likelihood)
        assert metrics.nll(one, y) == pytest.approx(likelihood.nll(output[0], y).item(), rel=1e-12)
        assert metrics.joint_log_likelihood(one, y) == pytest.approx(-metrics.nll(one, y), rel=1e-12)

    def test_log_variances_that_leave_float32(self):
        """On far extrapolation a network's log variance is anything: nothing of it may become nan."""
        output = torch.tensor([[[1.0, 100.0], [0.0, -110.0]], [[2.0, 50.0], [0.0, -110.0]]])
        y, likelihood = torch.zeros(2, 1), ba.HeteroscedasticGaussian()
        prediction, same = (from_outputs(o, likelihood) for o in (output, output.double()))
        found = prediction.log_prob(y)
        close(found, likelihood.log_prob(output, y).logsumexp(0) - math.log(2), rtol=1e-6, atol=0)
        assert found[1] == pytest.approx(54.08, abs=0.01)
        levels = [0.025, 0.5, 0.9]
        close(prediction.quantile(levels), same.quantile(levels), rtol=1e-5, atol=0)
        rescaled = prediction.rescale(0.0, 3.0)
        close(rescaled.log_prob(y), found - math.log(3), rtol=1e-5, atol=0)
        close(rescaled.quantile(levels), 3 * prediction.quantile(levels), rtol=1e-5, atol=0)

    def test_far_targets_do_not_underflow(self):
        prediction = ba.predictive.RegressionPredictive(torch.tensor([[0.0], [1.0]]), torch.full((2, 1), 0.01))
        y = torch.tensor([100.0])
        best = stats.norm.logpdf(100, 1, 0.1)
        close(prediction.log_prob(y), [best - math.log(2)], rtol=1e-6, atol=0)
        many = ba.predictive.RegressionPredictive(torch.zeros(2, 100_000), torch.ones(2, 100_000))
        expected = 100_000 * stats.norm.logpdf(3)
        close(many.joint_log_likelihood(torch.full((100_000,), 3.0)), expected, rtol=1e-7, atol=0)

    def test_quantiles_of_widely_separated_components(self):
        """A weight of 1/3 each at -1e6, 0, 1e6: the quantile is one of the middle component alone."""
        prediction = ba.predictive.RegressionPredictive(
            torch.tensor([[-1e6], [0.0], [1e6]], **F64), torch.full((3, 1), 1e-6, **F64)
        )
        for level in (0.35, 0.5, 0.65):
            expected = 1e-3 * stats.norm.ppf(3 * level - 1)
            close(prediction.quantile(level), [expected], rtol=0, atol=1e-11)
        close(prediction.quantile(0.1), [-1e6 + 1e-3 * stats.norm.ppf(0.3)], rtol=1e-15, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_quantiles_of_equal_components_are_those_of_the_gaussian(self, dtype):
        mean, std = draw(4).to(dtype), draw(4, seed=1).exp().to(dtype)
        prediction = ba.predictive.RegressionPredictive(mean.expand(9, 4), std.square().expand(9, 4))
        found = prediction.quantile([1e-9, 0.2, 0.5, 0.99])
        assert found.dtype == dtype
        expected = stats.norm.ppf([[1e-9], [0.2], [0.5], [0.99]], mean.double(), std.double())
        close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)

    @settings(max_examples=20, deadline=None)
    @given(
        st.lists(st.tuples(st.floats(-100, 100), st.floats(1e-3, 1e3)), min_size=1, max_size=6),
        st.floats(0.001, 0.999),
    )
    def test_the_quantile_inverts_the_mixtures_cdf(self, components, level):
        means, scales = torch.tensor(components, **F64).T.unsqueeze(-1)
        prediction = ba.predictive.RegressionPredictive(means, scales.square())
        found = prediction.quantile(level).item()
        step = 1e-9 * max(1.0, abs(found))
        assert mixture_cdf(prediction, found - step, (0,)) <= level + 1e-12
        assert mixture_cdf(prediction, found + step, (0,)) >= level - 1e-12

    @pytest.mark.parametrize("std", [3.0, torch.tensor([0.1, 7.0], **F64)])
    def test_rescale_is_the_transformation_of_every_sample(self, std):
        prediction, shift = regression(6, 4, 2), torch.tensor([5.0, -2.0], **F64)
        rescaled = prediction.rescale(shift, std)
        close(rescaled.mean, shift + std * prediction.mean)
        for part in ("epistemic", "aleatoric", "variance"):
            close(getattr(rescaled, part), std**2 * getattr(prediction, part))
        close(rescaled.quantile([0.1, 0.9]), shift + std * prediction.quantile([0.1, 0.9]))
        y = draw(4, 2, seed=8)
        jacobian = torch.as_tensor(std, **F64).expand(2).log().sum()
        close(rescaled.log_prob(shift + std * y), prediction.log_prob(y) - jacobian)
        close(rescaled.joint_log_likelihood(shift + std * y), prediction.joint_log_likelihood(y) - 4 * jacobian)


def classification(*shape, scale=2.0, seed=0):
    return ba.predictive.ClassificationPredictive((scale * draw(*shape, seed=seed)).log_softmax(-1))


class TestClassification:
    @pytest.mark.parametrize("shape", [(6, 5, 3), (6, 5, 2, 3)])
    def test_against_brute_force(self, shape):
        prediction = classification(*shape)
        p = prediction.log_probs.exp().numpy()
        close(prediction.probs, p.mean(0))
        close(prediction.class_probs, p.mean(0))
        close(prediction.entropy, stats.entropy(p.mean(0), axis=-1))
        close(prediction.mutual_information, stats.entropy(p.mean(0), axis=-1) - stats.entropy(p, axis=-1).mean(0))
        y = torch.arange(math.prod(shape[1:-1])).view(shape[1:-1]) % 3
        chosen = np.take_along_axis(p, np.broadcast_to(y.numpy()[None, ..., None], (6, *y.shape, 1)), -1)[..., 0]
        close(prediction.log_prob(y), np.log(chosen.mean(0)))
        close(prediction.joint_log_likelihood(y), np.log(chosen.reshape(6, -1).prod(1).mean()))

    def test_binary(self):
        model = nn.Linear(3, 1, **F64)
        q, x, y = posterior_of(model), draw(5, 3), torch.tensor([0, 1, 1, 0, 1])
        prediction = ba.predict(
            model, q, x, likelihood=ba.Bernoulli(), mc_samples=6, output=lambda out: out.squeeze(-1)
        )
        theta = q.sample(6)
        p = torch.sigmoid(torch.einsum("nd,sd->sn", x, theta["weight"][:, 0]) + theta["bias"]).numpy()
        assert prediction.probs.shape == (5,)
        assert prediction.class_probs.shape == (5, 2)
        close(prediction.probs, p.mean(0))
        both = np.stack([1 - p, p], -1)
        close(prediction.entropy, stats.entropy(both.mean(0), axis=-1))
        close(
            prediction.mutual_information, stats.entropy(both.mean(0), axis=-1) - stats.entropy(both, axis=-1).mean(0)
        )
        likely = np.where(y.numpy(), p, 1 - p)
        for labels in (y, y.bool(), y.double()):
            close(prediction.log_prob(labels), np.log(likely.mean(0)))
        close(prediction.joint_log_likelihood(y), np.log(likely.prod(1).mean()))

    def test_labels_between_the_classes_are_those_of_the_likelihood(self):
        logits, y = draw(3, 4, 2), torch.tensor([[0.7, 0.0], [0.2, 1.0], [0.5, 0.5], [1.0, 0.0]], **F64)
        terms = ba.Bernoulli().log_prob(logits, y)
        prediction = from_outputs(logits, ba.Bernoulli())
        close(prediction.log_prob(y), terms.logsumexp(0) - math.log(3))
        close(prediction.joint_log_likelihood(y), terms.sum(1).logsumexp(0) - math.log(3))
        single = from_outputs(torch.tensor([[2.0]]), ba.Bernoulli()).log_prob(torch.tensor([0.7]))
        assert single.item() == pytest.approx(-0.7269, abs=1e-4)

    def test_of_a_class_that_cannot_be_only_the_others_count(self):
        prediction = from_outputs(torch.tensor([[math.inf, -math.inf]]), ba.Bernoulli())
        assert prediction.log_prob(torch.tensor([1, 0])).tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("count", [1, 64])
    def test_identical_samples_share_no_information(self, count):
        for seed in range(5):
            one = classification(1, 50, 4, seed=seed).log_probs
            information = ba.predictive.ClassificationPredictive(one.expand(count, -1, -1)).mutual_information
            assert 0 <= information.min() <= information.max() < 1e-14

    def test_samples_that_are_sure_of_different_classes(self):
        prediction = ba.predictive.ClassificationPredictive((1e4 * torch.eye(3)).log_softmax(-1).unsqueeze(1))
        close(prediction.entropy, [math.log(3)], rtol=1e-6, atol=0)
        close(prediction.mutual_information, [math.log(3)], rtol=1e-6, atol=0)

    @pytest.mark.parametrize("likelihood", [ba.Categorical(), ba.Bernoulli()])
    def test_extreme_logits_in_float32_are_finite(self, likelihood):
        log_probs = likelihood.log_probs(torch.tensor([[[1e4, -1e4]], [[1e4, -1e4]]]))
        for values in (log_probs, torch.full_like(log_probs, -math.inf).masked_fill(log_probs == 0, 0.0)):
            prediction = ba.predictive.ClassificationPredictive(values)
            for tensor in (prediction.probs, prediction.entropy, prediction.mutual_information):
                assert tensor.isfinite().all()
            assert not prediction.entropy.any()
        y = torch.tensor([1] if log_probs.ndim == 3 else [[0, 1]])
        assert ba.predictive.ClassificationPredictive(log_probs).log_prob(y).isfinite().all()


def test_says_its_shape():
    assert repr(regression(3, 5)) == "RegressionPredictive((5,), 3 components)"
    assert repr(classification(4, 5, 2)) == "ClassificationPredictive((5, 2), 4 components)"
