"""The linearised predictive: against closed forms and slow loops, for every network, posterior and way to compute."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import bayesadam as ba
from bayesadam.predictive import GaussianLogitsPredictive, GaussianPredictive, jacobian, layerwise, linearized
from bayesadam.predictive.gaussian_outputs import square_root, standard_normals
from modules import module_of
from posterior import kinds
from posterior.kinds import BOUND, F64, GAUSSIANS, covariance, draw, weights
from posthoc.models import gradient
from predictive.networks import OUT_OF_MEMORY, Halves, Network, assert_unchanged, close, raise_, snapshot, trained_part

LOOSE = {"rtol": 1e-10, "atol": 1e-10}


def linearize(model, q, x, likelihood=None, **options):
    return ba.predict(model, q, x, likelihood=likelihood or ba.Gaussian(2.0), method="linearized", **options)


def reference(model, q, rows, part=lambda z: z):
    """Mean and covariance of the outputs by two loops over data points and outputs."""
    model.eval()
    sigma, found = covariance(q), []
    for row in rows:
        out = part(model(*row)).flatten()
        weights = [dict(model.named_parameters())[name] for name in q.mean]
        j = torch.stack([gradient(o, weights) for o in out]).double()
        found.append(j @ sigma @ j.T)
    model.train()
    return torch.stack(found)


def diagonal(model, scale=0.3):
    return kinds.diagonal(weights(model)).scaled(scale**0.5)


def dense(model):
    return kinds.dense(weights(model))


def some_point_masses(model):
    """Whole tensors and single weights."""
    q = diagonal(model)
    variance = {
        n: torch.where(draw(*v.shape, seed=3) > 0, v, 0) * (i % 3 != 1) for i, (n, v) in enumerate(q.variance.items())
    }
    return ba.DiagonalGaussian(q.mean, variance)


def spd(size, seed=0):
    a = draw(size, size, seed=seed)
    return a @ a.T / size + 0.1 * torch.eye(size, **F64)


POSTERIORS = {
    **{kind: lambda model, make=make: make(weights(model)) for kind, make in GAUSSIANS.items()},
    "some point masses": some_point_masses,
}


class Attention(nn.Module):
    """One pre-norm block with an embedding, on tokens."""

    def __init__(self, outputs=2):
        super().__init__()
        self.tokens, self.norm, self.last = nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, outputs)
        self.q, self.k, self.v = (nn.Linear(4, 4, bias=b) for b in (True, False, True))
        self.up, self.down, self.norm2 = nn.Linear(4, 6), nn.Linear(6, 4), nn.LayerNorm(4)

    def forward(self, x):
        h = self.tokens(x)
        n = self.norm(h)
        h = h + F.scaled_dot_product_attention(self.q(n), self.k(n), self.v(n))
        h = h + self.down(F.gelu(self.up(self.norm2(h))))
        return self.last(h.mean(1))


class Positions(Attention):
    """Learned positions, looked up once for all data points."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(3, 4)

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(3))
        return self.last(self.norm(h).mean(1))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(torch.tanh(self.a(x)))))


class Unused(Twice):
    def forward(self, x):
        return self.b(x)


class Elsewhere(Twice):
    """A weight that its layer is not alone to use."""

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)) @ self.a.weight)


def tied():
    layers = {"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.Linear(3, 2)}
    layers["b"].weight = layers["a"].weight
    return module_of(lambda self, x: self.c(torch.tanh(self.b(torch.tanh(self.a(x))))), **layers)


class InPlace(nn.Module):
    """Outputs of layers that are changed after the call."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = self.a(x).sigmoid_()
        return self.b(h).mul_(2.0).add_(1.0)


class Squeezed(Twice):
    """Without a batch axis where there is one data point."""

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)).squeeze())


class Raw(nn.Module):
    """A parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale, self.a = nn.Parameter(torch.ones(3)), nn.Linear(3, 2)

    def forward(self, x):
        return self.a(self.scale * x)


class Branch(Raw):
    """Control flow that depends on values: not to be mapped."""

    def forward(self, x):
        if not x.isfinite().all():
            raise ValueError("x")
        return super().forward(x)


class Scalar(Raw):
    """A parameter without axes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))


class ScalarBranch(Branch, Scalar):
    """The same, not to be mapped."""


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class CustomFunction(Raw):
    def forward(self, x):
        return self.a(Custom.apply(self.scale * x))


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)).mean(1))


class SequenceFirst(Sequence):
    """As many positions as data points, which the layer sees along its first axis."""

    def forward(self, x):
        return self.b(torch.tanh(self.a(x.transpose(0, 1))).mean(0))


def conv_net():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 3, 2, groups=3, bias=False),
        nn.GroupNorm(1, 3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(3, 2),
    )


def mlp(sizes=(3, 4, 5, 2)):
    layers = [m for i, o in itertools.pairwise(sizes) for m in (nn.Linear(i, o), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def encoder():
    layer = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2))


TOKENS = torch.randint(7, (5, 3), generator=torch.Generator().manual_seed(1))
NETWORKS = {
    "MLP": (mlp, draw(5, 3), "layers"),
    "ReLU in place": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)),
        draw(5, 3),
        "layers",
    ),
    "one output": (lambda: mlp((3, 4, 1)), draw(5, 3), "layers"),
    "no output axis": (lambda: nn.Sequential(mlp((3, 4, 1)), nn.Flatten(0)), draw(5, 3), "layers"),
    "sequence": (Sequence, draw(5, 4, 3), "layers"),
    "CNN": (conv_net, draw(5, 1, 8, 8), "layers"),
    "attention": (Attention, TOKENS, "layers"),
    "positions": (Positions, TOKENS, "map"),
    "as many positions as data points": (Positions, TOKENS[:3], "map"),
    "sequence first": (SequenceFirst, draw(5, 5, 3), "map"),
    "encoder": (encoder, draw(5, 3, 4), "map"),
    "called twice": (Twice, draw(5, 3), "map"),
    "used elsewhere": (Elsewhere, draw(5, 3), "map"),
    "unused": (Unused, draw(5, 3), "map"),
    "tied": (tied, draw(5, 3), "map"),
    "changed in place": (InPlace, draw(5, 3), "layers"),
    "squeezed": (Squeezed, draw(5, 3), "map"),
    "own parameter": (Raw, draw(5, 3), "map"),
    "scalar": (Scalar, draw(5, 3), "map"),
    "scalar and control flow": (ScalarBranch, draw(5, 3), "loop"),
    "control flow": (Branch, draw(5, 3), "loop"),
    "custom function": (CustomFunction, draw(5, 3), "loop"),
}


def network(name):
    make, x, _ = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make().double()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return model, x


@pytest.fixture
def ways(monkeypatch):
    """How the covariances were computed, in order."""
    seen = []
    for cls, method, way in (
        (layerwise.Layerwise, "add_to", "layers"),
        (jacobian.Pulled, "_by_map", "map"),
        (jacobian.Pulled, "_by_loop", "loop"),
    ):
        original = getattr(cls, method)

        def spy(self, *args, original=original, way=way):
            found = original(self, *args)
            seen.append(way)
            return found

        monkeypatch.setattr(cls, method, spy)
    return seen


def only(monkeypatch, way):
    if way != "layers":
        monkeypatch.setattr(layerwise.Layerwise, "__init__", lambda *args: raise_(layerwise.NotLayerwiseError()))
    if way == "loop":
        monkeypatch.setattr(jacobian.Pulled, "_by_map", lambda *args: raise_(RuntimeError("vmap")))


class TestAgainstSlowLoops:
    def check(self, name, kind, ways):
        model, x = network(name)
        q = POSTERIORS[kind](model)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        for parameter in model.parameters():  # the posterior's mean counts, not what the model happens to have
            parameter.data.mul_(-2.0)
        found = linearize(model, q, x)
        model.load_state_dict(state)
        close(found.mean, model.eval()(x).detach())
        expected = reference(model, q, [(row[None],) for row in x])
        close(found.epistemic_covariance, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())
        assert expected.diagonal(dim1=1, dim2=2).min() > 0
        return set(ways)

    @pytest.mark.parametrize("name", NETWORKS)
    @pytest.mark.parametrize("kind", ["diagonal", "dense"])
    def test_of_every_network(self, name, kind, ways):
        assert self.check(name, kind, ways) == {NETWORKS[name][2]}

    @pytest.mark.parametrize("way", ["layers", "map", "loop"])
    @pytest.mark.parametrize("name", ["MLP", "attention"])
    @pytest.mark.parametrize("kind", POSTERIORS)
    def test_of_every_posterior_in_every_way(self, name, kind, way, monkeypatch, ways):
        only(monkeypatch, way)
        assert self.check(name, kind, ways) == {way}

    @pytest.mark.parametrize("outputs", [1, 3])
    def test_as_many_rows_as_outputs(self, outputs):
        """PyTorch 2.13 differentiates this module wrongly inside two calls of ``vmap``."""
        model, x = nn.Sequential(nn.PReLU(3), nn.Linear(3, outputs)).double(), draw(3, 3)
        q = diagonal(model)
        expected = reference(model, q, [(row[None],) for row in x])
        close(linearize(model, q, x).epistemic_covariance, expected, rtol=1e-10, atol=1e-8)

    @pytest.mark.parametrize("way", ["map", "loop"])
    @pytest.mark.parametrize("name", ["CNN", "no output axis"])
    def test_in_ways_that_are_not_needed(self, name, way, monkeypatch, ways):
        only(monkeypatch, way)
        assert self.check(name, "low rank", ways) == {way}

    @settings(max_examples=20, deadline=None)
    @given(st.data())
    def test_any_shape_batch_and_memory(self, data):
        sizes = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
        count, positions = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 2))
        model = mlp(sizes).double()
        if positions:
            model = nn.Sequential(model, nn.Flatten())
        q = POSTERIORS[data.draw(st.sampled_from([*POSTERIORS]))](model)
        x = draw(count, *[positions] * (positions > 0), sizes[0])
        expected = reference(model, q, [(row[None],) for row in x])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(linearized, "CHUNK_BYTES", data.draw(st.sampled_from([1, 100, 1000, 2**26])))
            only(patch, data.draw(st.sampled_from(["layers", "map", "loop"])))
            batch_size = data.draw(st.sampled_from([None, 1, 2, 5]))
            found = linearize(model, q, x, batch_size=batch_size).epistemic_covariance
            close(found, expected, rtol=1e-8, atol=1e-9 * expected.abs().max().item())


class TestLinearModels:
    """Linear in the weights: the linearised predictive is exact."""

    X = draw(6, 3, seed=9)

    @pytest.mark.parametrize(("outputs", "kind"), [(1, "dense"), *((3, kind) for kind in POSTERIORS)])
    def test_closed_form(self, outputs, kind):
        model, noise = nn.Linear(3, outputs, **F64), torch.arange(1.0, outputs + 1)
        q = POSTERIORS[kind](model)
        prediction = linearize(model, q, self.X, ba.Gaussian(noise))
        eye = torch.eye(outputs, **F64)
        parts = [{"weight": torch.kron(eye, x[None]), "bias": eye} for x in self.X]
        j = torch.stack([torch.cat([part[name] for name in q.mean], 1) for part in parts])
        epistemic = j @ covariance(q) @ j.mT
        mean = self.X @ q.mean["weight"].T + q.mean["bias"]
        total = epistemic + (1 / noise).diag()
        close(prediction.mean, mean)
        close(prediction.epistemic_covariance, epistemic)
        close(prediction.covariance, total, rtol=1e-7, atol=1e-7)  # the noise is kept in float32
        close(prediction.epistemic, epistemic.diagonal(dim1=1, dim2=2))
        close(prediction.variance, prediction.covariance.diagonal(dim1=1, dim2=2))
        y = draw(6, outputs, seed=4)
        exact = torch.distributions.MultivariateNormal(mean, prediction.covariance).log_prob(y)
        close(prediction.log_prob(y), exact)
        assert prediction.mean.dtype == prediction.variance.dtype == torch.float64

    def test_what_is_known_well_is_not_lost_in_float32(self, monkeypatch):
        """Two weights with standard deviations of 3e4 whose combination by the input has one of 1e-3."""
        x, a = torch.tensor([[1.0, 0.75]]), 1e5 / 3
        scale_tril = torch.tensor([[a, 0.0], [(1e-3 - a) / 0.75, 1e-3]], **F64)
        q = ba.DenseGaussian.from_scale_tril({"weight": torch.zeros(1, 2)}, scale_tril)
        model = nn.Linear(2, 1, bias=False)
        exact = torch.tensor([[1e-6 * (1 + 0.75**2)]])
        close(linearize(model, q, x).epistemic, exact, rtol=1e-6, atol=0)
        only(monkeypatch, "map")
        close(linearize(model, q, x).epistemic, exact, rtol=1e-6, atol=0)

    def test_heteroscedastic(self):
        """The mean is linearised; the noise is that at the mean of the weights."""
        model = nn.Linear(3, 4, **F64)
        q = dense(model)
        prediction = linearize(model, q, self.X, ba.HeteroscedasticGaussian())
        out = self.X @ q.mean["weight"].T + q.mean["bias"]
        close(prediction.mean, out[:, :2])
        close(prediction.aleatoric, out[:, 2:].exp())
        expected = reference(model, q, [(row[None],) for row in self.X], lambda z: z[:, :2])
        close(prediction.epistemic_covariance, expected)

    @pytest.mark.parametrize(
        "likelihood", [ba.Gaussian(), ba.HeteroscedasticGaussian(), ba.Categorical(), ba.Bernoulli()]
    )
    def test_point_masses_are_the_network_at_the_mean(self, likelihood):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        mean = weights(model)
        q = ba.DiagonalGaussian(mean, {n: torch.zeros_like(m) for n, m in mean.items()})
        x = self.X.float()
        exact = ba.predict(model, q, x, likelihood=likelihood, method="mean")
        found = linearize(model, q, x, likelihood, mc_samples=3)
        if isinstance(found, ba.predictive.RegressionPredictive):
            assert found.mean.equal(exact.mean)
            assert found.variance.equal(exact.variance)
            assert not found.epistemic.any()
        else:
            assert found.log_probs.equal(exact.log_probs.expand(3, *exact.log_probs.shape[1:]))
            probit = linearize(model, q, x, likelihood, link="probit")
            assert probit.log_probs.equal(exact.log_probs)


class TestClassification:
    def problem(self, classes, count=6):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, classes)).double()
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(draw(*p.shape, seed=i))
        x = draw(count, 3, seed=9)
        q = dense(model)
        return model, q, x, model(x).detach(), reference(model, q, [(row[None],) for row in x])

    @pytest.mark.parametrize("classes", [2, 4])
    def test_probit(self, classes):
        model, q, x, m, c = self.problem(classes)
        prediction = linearize(model, q, x, ba.Categorical(), link="probit")
        scaled = m / (1 + math.pi / 8 * c.diagonal(dim1=1, dim2=2)).sqrt()
        close(prediction.probs, special.softmax(scaled.numpy(), axis=-1), **LOOSE)
        p = prediction.probs.numpy()
        close(prediction.entropy, stats.entropy(p, axis=-1))
        y = torch.arange(6) % classes
        close(prediction.log_prob(y), np.log(p[np.arange(6), y]))
        close(prediction.logits, m, **LOOSE)
        close(prediction.covariance, c, **LOOSE)

    @pytest.mark.parametrize("covariance", [True, False])
    def test_draws_of_the_logits_have_their_mean_and_covariance(self, covariance):
        """A million draws of three logits; what they are shows in differences of log probabilities."""
        n = samples = 1000
        c = spd(3) if covariance else torch.tensor([0.5, 1.0, 2.0], **F64).diag()
        logits = draw(n, 3)
        given = c.expand(n, 3, 3) if covariance else c.diagonal().expand(n, 3)
        prediction = GaussianLogitsPredictive(logits, given, ba.Categorical(), mc_samples=samples, seed=3)
        contrast = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [1.0, 0.5, -1.5]], **F64)
        found = prediction.log_probs @ contrast.T
        variance = (contrast @ c @ contrast.T).diagonal()
        error = (found - logits @ contrast.T) / variance.sqrt()
        assert ((error.sum((0, 1)) / math.sqrt(n * samples)).abs() < BOUND).all()
        z = (error.square() - 1).sum((0, 1)) / math.sqrt(2 * n * samples)
        assert (z.abs() < BOUND).all()
        assert (((1.01 * error.square()) - 1).sum((0, 1)) / math.sqrt(2 * n * samples) > BOUND).all()
        for shift in (error[1:] * error[:-1], error[:, 1:] * error[:, :-1]):  # independent draws and data points
            assert ((shift.sum((0, 1)) / math.sqrt(shift[..., 0].numel())).abs() < BOUND).all()

    def test_a_draw_depends_on_seed_number_and_data_point_only(self):
        like = draw(2500, 3)
        whole = standard_normals(9, like, 5)
        assert standard_normals(4, like[:700], 5).equal(whole[:4, :700])
        assert standard_normals(2, like[:1], 5).equal(whole[:2, :1])
        assert not standard_normals(9, like, 6).equal(whole)
        assert len(whole.unique()) > 0.999 * whole.numel()
        assert standard_normals(2, draw(3, 4000), 0).shape == (2, 3, 4000)

    def test_in_batches_the_draws_are_the_same(self):
        model, q, x, *_ = self.problem(3)
        whole = linearize(model, q, x, ba.Categorical(), mc_samples=5, seed=2)
        for inputs, options in ((x, {"batch_size": 2}), (DataLoader(x, 4), {}), (list(x.split(1)), {})):
            close(
                linearize(model, q, inputs, ba.Categorical(), mc_samples=5, seed=2, **options).log_probs,
                whole.log_probs,
                **LOOSE,
            )
        assert not linearize(model, q, x, ba.Categorical(), mc_samples=5).log_probs.equal(whole.log_probs)

    def test_several_points_of_one_input(self):
        """Tokens, say: ``(N, T, C)`` logits."""
        model = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (2, 3))).double()
        q, x = dense(model), draw(4, 3)
        prediction = linearize(model, q, x, ba.Categorical(), mc_samples=7)
        assert prediction.log_probs.shape == (7, 4, 2, 3)
        assert prediction.log_prob(torch.zeros(4, 2, dtype=torch.long)).shape == (4, 2)
        close(prediction.covariance, reference(model, q, [(row[None],) for row in x]))
        mean = x @ q.mean["0.weight"].T + q.mean["0.bias"]
        close(prediction.logits, mean.view(4, 2, 3))
        variance = prediction.covariance.diagonal(dim1=1, dim2=2).view(4, 2, 3)
        probit = linearize(model, q, x, ba.Categorical(), link="probit")
        close(probit.log_probs[0], (mean.view(4, 2, 3) / (1 + math.pi / 8 * variance).sqrt()).log_softmax(-1))


class TestSquareRoot:
    @settings(max_examples=20, deadline=None)
    @given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 100))
    def test_of_any_rank(self, size, rank, seed):
        rows = draw(3, size, rank, seed=seed)
        rows[0, :1] = 0.0  # an output that is certain
        matrix = rows @ rows.mT
        root = square_root(matrix)
        close(root @ root.mT, matrix, rtol=1e-7, atol=1e-7)
        assert not root[0, 0].any()
        assert root.isfinite().all()

    def test_of_a_matrix_that_rounding_made_indefinite(self):
        matrix = torch.tensor([[[1.0, 1.0], [1.0, 1.0 - 1e-9]], [[1.0, 0.5], [0.5, 1.0]]], **F64)
        root = square_root(matrix)
        close(root @ root.mT, matrix, rtol=0, atol=1e-8)
        close(root[1], torch.linalg.cholesky(matrix[1]))


def gaussian(n=4, d=3, shape=None):
    covariance = torch.stack([spd(d, seed=i) for i in range(n)])
    return GaussianPredictive(draw(*(shape or (n, d))), covariance, draw(d if shape is None else 1, seed=5).exp())


def exact_parts(prediction):
    covariance = prediction.epistemic_covariance
    return prediction.mean, prediction.epistemic if covariance is None else covariance, prediction.aleatoric


class TestGaussianPredictive:
    def test_log_prob_uses_the_whole_covariance(self):
        prediction, y = gaussian(), draw(4, 3, seed=8)
        for i in range(4):
            covariance = spd(3, seed=i) + prediction.aleatoric[i].diag()
            exact = stats.multivariate_normal.logpdf(y[i].numpy(), prediction.mean[i].numpy(), covariance.numpy())
            close(prediction.log_prob(y)[i], exact)
        assert (prediction.log_prob(y) - ba.predictive.RegressionPredictive.log_prob(prediction, y)).abs().max() > 0.1
        plain = ba.predictive.RegressionPredictive(prediction.means, prediction.variances)
        close(prediction.quantile([1e-6, 0.3, 0.975]), plain.quantile([1e-6, 0.3, 0.975]))
        close(prediction.variance, prediction.epistemic + prediction.aleatoric)

    def test_without_covariances_outputs_are_independent(self):
        mean, epistemic, aleatoric = draw(4, 3), draw(4, 3, seed=1).exp(), torch.tensor(0.5, **F64)
        prediction, y = GaussianPredictive(mean, epistemic, aleatoric), draw(4, 3, seed=8)
        exact = stats.norm.logpdf(y.numpy(), mean.numpy(), (epistemic + 0.5).sqrt().numpy()).sum(1)
        close(prediction.log_prob(y), exact)
        close(prediction.covariance, torch.diag_embed(epistemic + 0.5))
        assert prediction.epistemic_covariance is None
        close(prediction.epistemic, epistemic)
        with_zeros = GaussianPredictive(mean, torch.diag_embed(epistemic), aleatoric)
        close(with_zeros.log_prob(y), exact)
        rescaled = prediction.rescale(1.0, 2.0)
        close(rescaled.epistemic, 4 * epistemic)
        close(rescaled.aleatoric, torch.full((4, 3), 2.0, **F64))

    @pytest.mark.parametrize("std", [3.0, torch.tensor([0.1, 7.0, 2.0], **F64)])
    def test_rescale(self, std):
        prediction, shift = gaussian(), torch.tensor([5.0, -2.0, 0.0], **F64)
        rescaled = prediction.rescale(shift, std)
        assert isinstance(rescaled, GaussianPredictive)
        scale = torch.as_tensor(std, **F64).expand(3)
        close(rescaled.mean, shift + scale * prediction.mean)
        close(rescaled.covariance, scale[:, None] * prediction.covariance * scale)
        close(rescaled.aleatoric, scale**2 * prediction.aleatoric)
        y = draw(4, 3, seed=8)
        close(rescaled.log_prob(shift + scale * y), prediction.log_prob(y) - scale.log().sum())

    @pytest.mark.parametrize("points", [(), (2, 1)])
    def test_the_last_axis_has_the_outputs_of_a_data_point(self, points):
        """Of the covariance of a whole row, what belongs to one data point counts for its density."""
        count = math.prod(points) * 3
        mean = draw(4, *points, 3)
        rows = torch.stack([spd(count, seed=i) for i in range(4)])
        prediction, y = GaussianPredictive(mean, rows, torch.tensor(0.5, **F64)), draw(4, *points, 3, seed=8)
        found = prediction.log_prob(y)
        assert found.shape == (4, *points)
        for i in range(4):
            for j, value in enumerate(found[i].flatten()):
                part = slice(3 * j, 3 * j + 3)
                normal = [t[i].flatten()[part].numpy() for t in (y, mean)]
                covariance = rows[i, part, part] + 0.5 * torch.eye(3)
                close(value, stats.multivariate_normal.logpdf(*normal, covariance.numpy()))
        close(prediction.rescale(1.0, 2.0).log_prob(1 + 2 * y), found - 3 * math.log(2))

    @pytest.mark.parametrize("kind", ["covariance", "variances"])
    def test_log_variances_that_leave_float32(self, kind):
        """The noise that a network gives far out: as in float64, and nan nowhere."""
        mean, log_noise = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[100.0, -2.0], [-110.0, -110.0]])
        epistemic = torch.tensor([[[1.0, 0.5], [0.5, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
        if kind == "variances":
            epistemic = epistemic.diagonal(dim1=1, dim2=2)
        noises = (log_noise, log_noise.double())
        prediction, exact = (GaussianPredictive(mean.to(v), epistemic.to(v), v.exp(), v) for v in noises)
        y = torch.zeros(2, 2)
        close(prediction.log_prob(y), exact.log_prob(y.double()).float(), rtol=1e-5, atol=0)
        close(exact.log_prob(y.double()), GaussianPredictive(*exact_parts(exact)).log_prob(y.double()))
        close(prediction.quantile([0.1, 0.9]), exact.quantile([0.1, 0.9]).float(), rtol=1e-5, atol=1e-20)
        close(prediction.rescale(0.0, 3.0).log_prob(y), prediction.log_prob(y) - 2 * math.log(3), rtol=1e-5, atol=0)


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp((2, 3, 2))

    def forward(self, a, b, shift=0.0):
        return self.net(a + b) + shift


class TestInputs:
    A, B = draw(7, 2), draw(7, 2, seed=1)

    @pytest.mark.parametrize(("way", "batch_size"), [("layers", None), ("map", 3), ("loop", None)])
    @pytest.mark.parametrize(
        "inputs",
        [
            lambda a, b: (a, b),
            lambda a, b: (a, b, torch.zeros(1, 2)),
            lambda a, b: {"a": a, "b": b, "shift": 0.0},
            lambda a, b: [{"a": a[:4], "b": b[:4]}, {"a": a[4:], "b": b[4:]}],
        ],
    )
    def test_several_inputs(self, inputs, batch_size, way, monkeypatch):
        model = Sum().double()
        q = diagonal(model)
        expected = reference(model, q, [(a[None], b[None]) for a, b in zip(self.A, self.B, strict=True)])
        only(monkeypatch, way)
        found = linearize(model, q, inputs(self.A, self.B), batch_size=batch_size)
        close(found.epistemic_covariance, expected, **LOOSE)

    @pytest.mark.parametrize("way", ["layers", "map"])
    def test_output_takes_the_tensor_out(self, way, monkeypatch):
        class Wrapped(Sum):
            def forward(self, a, b):
                return {"logits": super().forward(a, b), "loss": None}

        model = Wrapped().double()
        q = diagonal(model)
        only(monkeypatch, way)
        found = linearize(model, q, (self.A, self.B), output=lambda out: out["logits"])
        monkeypatch.undo()
        plain = Sum().double()
        plain.load_state_dict(model.state_dict())
        close(found.epistemic_covariance, linearize(plain, q, (self.A, self.B)).epistemic_covariance, **LOOSE)

    def test_no_data_points(self):
        model = nn.Linear(2, 3)
        some, none = torch.ones(2, 2), torch.zeros(0, 2)
        for inputs, rows in ((none, 0), ([none, some], 2), ([some, none], 2)):
            prediction = linearize(model, diagonal(model), inputs, ba.Categorical())
            assert prediction.probs.shape == (rows, 3)
            assert prediction.covariance.shape == (rows, 3, 3)

    @pytest.mark.parametrize(
        ("dtype", "tolerance", "way"),
        [(torch.float32, 1e-5, "layers"), (torch.float32, 1e-5, "map"), (torch.bfloat16, 0.05, "layers")],
    )
    def test_dtypes(self, dtype, tolerance, way, monkeypatch):
        model = mlp((2, 6, 3)).to(dtype)
        for p in model.parameters():
            p.data.copy_(draw(*p.shape))
        only(monkeypatch, way)
        q = diagonal(model.float(), scale=0.1)
        exact = linearize(model.double(), q.to(dtype=torch.float64), self.A, ba.Categorical(), mc_samples=9)
        found = linearize(model.to(dtype), q, self.A.to(dtype), ba.Categorical(), mc_samples=9)
        assert found.log_probs.dtype == found.covariance.dtype == torch.float32
        close(found.covariance.double(), exact.covariance, rtol=tolerance, atol=tolerance)
        close(found.log_probs.double(), exact.log_probs, rtol=2 * tolerance, atol=2 * tolerance)

    def test_autocast_is_for_the_network_only(self):
        """The derivatives of a linear layer are its inputs, which have all their digits."""
        model, x = nn.Linear(2, 3), self.A.float()
        q = diagonal(model)
        with torch.autocast("cpu", torch.bfloat16):
            found = linearize(model, q, x).epistemic
            other = linearize(model, q, x.unsqueeze(1), output=lambda out: out.squeeze(1)).epistemic
            logits = linearize(model, q, x, ba.Categorical(), mc_samples=9).log_probs
        close(found, x.square() @ q.variance["weight"].T + q.variance["bias"], rtol=1e-5, atol=1e-6)
        close(other, found, rtol=1e-5, atol=1e-6)
        with torch.autocast("cpu", torch.bfloat16):
            mean = model(x).float()
        spread = (found.sqrt() * standard_normals(9, mean, 0)).detach()
        close(logits, (mean.detach() + spread).log_softmax(-1), rtol=1e-5, atol=1e-5)


class TestMemory:
    @pytest.mark.parametrize("batch_size", [None, 3])
    @pytest.mark.parametrize("way", ["layers", "map", "loop"])
    def test_a_shared_tensor_that_is_as_long_as_a_chunk(self, way, batch_size, monkeypatch):
        class Kernel(nn.Sequential):
            def forward(self, x, anchors):
                return super().forward((-torch.cdist(x, anchors).square()).exp())

        model, x, anchors = Kernel(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), draw(7, 2), draw(3, 2, seed=1)
        q = diagonal(model)
        only(monkeypatch, way)
        found = linearize(model, q, (x, anchors), batch_size=batch_size).epistemic_covariance
        close(found, reference(model, q, [(row[None], anchors) for row in x]), **LOOSE)

    @pytest.mark.parametrize(
        ("name", "kind"), [("MLP", "dense"), ("CNN", "diagonal"), ("CNN", "low rank"), ("sequence", "dense")]
    )
    def test_data_points_one_by_one_in_a_layer(self, name, kind, monkeypatch):
        """And columns of the factor."""
        model, x = network(name)
        q = POSTERIORS[kind](model)
        expected = linearize(model, q, x).epistemic_covariance
        original = layerwise.chunks
        monkeypatch.setattr(layerwise, "chunks", lambda count, size, limit: original(count, size, 1))
        close(linearize(model, q, x).epistemic_covariance, expected, **LOOSE)

    @pytest.mark.parametrize(
        ("way", "cls", "method"),
        [("map", jacobian.Pulled, "_by_map"), ("layers", linearized.OutputCovariance, "add")],
    )
    def test_derivatives_that_exist_at_once_are_bounded(self, way, cls, method, monkeypatch):
        """Over data points and tensors."""
        model, x = network("CNN")
        sizes, original = [], getattr(cls, method)

        def spy(self, *args):
            found = original(self, *args)
            rows = args[1:2] if found is None else found.values()
            sizes.append(sum(part.numel() * part.element_size() for part in rows))
            return found

        only(monkeypatch, way)
        monkeypatch.setattr(cls, method, spy)
        for limit in (2**12, 2**14):
            sizes.clear()
            monkeypatch.setattr(linearized, "CHUNK_BYTES", limit)
            linearize(model, diagonal(model), x.repeat(4, 1, 1, 1))
            assert max(sizes) <= limit
            assert len(sizes) > 1

    @pytest.mark.parametrize("way", ["layers", "map"])
    def test_graphs_are_bounded(self, way, monkeypatch):
        """A network of two weights and large activations: what the backward passes keep counts."""

        class Wide(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(1, 1)

            def forward(self, x):
                rows.append(len(x))
                h = self.a(x).expand(-1, 1000).exp()
                return torch.stack([h.mean(1), h.square().mean(1)], 1)

        rows, sizes = [], []
        original = jacobian.Pulled._by_map

        def spy(self, part, *args):
            sizes.append(part.count)
            return original(self, part, *args)

        model = Wide()
        only(monkeypatch, way)
        monkeypatch.setattr(jacobian.Pulled, "_by_map", spy)
        monkeypatch.setattr(linearized, "CHUNK_BYTES", 2**17)
        linearize(model, diagonal(model), torch.ones(100, 1))
        assert rows[0] == 100  # the plain forward pass
        found = rows[1:] if way == "layers" else sizes
        assert 2**17 // (4 * 4000) // (1 + (way == "map")) <= max(found) <= 2**17 // 4000 // (1 + (way == "map"))

    @pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank"])
    def test_linear_layers_make_no_derivatives_of_weights(self, kind, monkeypatch):
        monkeypatch.setattr(linearized.OutputCovariance, "add", lambda *args: raise_(AssertionError()))
        model, x = network("MLP")
        linearize(model, POSTERIORS[kind](model), x)

    def test_nothing_is_differentiated_that_is_certain(self, monkeypatch):
        """Neither for tensors of variance 0, nor for the layers before the first that is random."""
        seen = []
        original = linearized.MeanNetwork.__init__

        def spy(self, model, names, *args):
            seen.append(names)
            original(self, model, names, *args)

        monkeypatch.setattr(linearized.MeanNetwork, "__init__", spy)
        model, x = network("MLP")
        last = {name: value for name, value in weights(model).items() if name.startswith("4")}
        fixed = {name: value for name, value in weights(model).items() if name not in last}
        linearize(model, ba.posterior.PartialGaussian(kinds.dense(last), fixed), x)
        assert seen.pop() == ["4.weight", "4.bias"]
        q = some_point_masses(model)
        linearize(model, q, x)
        assert seen.pop() == [name for name, v in q.variance.items() if v.any()] != list(q.mean)

    @pytest.mark.parametrize(("way", "error"), [("layers", "accelerator"), ("map", "CPU")])
    def test_memory_that_runs_out_halves_the_rows(self, error, way, monkeypatch):
        error = OUT_OF_MEMORY[error]

        class Limited(nn.Linear):
            def forward(self, x):
                if len(x) > 4:
                    error()
                return super().forward(x)

        model, x = Limited(2, 2, **F64), draw(23, 2)
        q = diagonal(model)
        only(monkeypatch, way)
        expected = reference(nn.Linear(2, 2, **F64), q, [(row[None],) for row in x])
        close(linearize(model, q, x).epistemic_covariance, expected, **LOOSE)
        with pytest.raises(RuntimeError, match="memory"):
            linearize(
                Halves(0, error), ba.DiagonalGaussian(weights(Halves(0, error)), weights(Halves(0, error))), x[:, 0]
            )

    def test_control_flow_that_comes_later(self, ways):
        """The first data points go through closed forms; then a layer is called twice."""

        class Later(Twice):
            def forward(self, x):
                h = self.a(x)
                if x.max() > 10:
                    h = self.a(h)
                return self.b(h)

        model = Later().double()
        q, x = diagonal(model), draw(6, 3)
        x[4] = 20.0
        expected = reference(model, q, [(row[None],) for row in x])
        found = linearize(model, q, list(x.split(1)))
        close(found.epistemic_covariance, expected, rtol=1e-10, atol=1e-8)
        assert ways == ["layers"] * 4 + ["loop"] * 2

    @pytest.mark.parametrize("last", [1.0, -1.0])
    def test_rows_of_a_layer_that_are_not_data_points(self, last, ways):
        """Only some positions go into the layer: one of the first data point, two of the second; maybe three of three.

        Then nothing but the gradients of single data points tells.
        """

        class Packed(Twice):
            def forward(self, x):
                used = x[..., 0] > 0
                h = torch.zeros(*x.shape[:2], 3, **F64).index_put((used,), self.a(x[used]))
                return self.b(h.sum(1))

        model, x = Packed().double(), draw(3, 2, 3)
        x[..., 0] = torch.tensor([[1.0, -1.0], [2.0, 1.0], [-1.0, last]])
        q = diagonal(model)
        expected = reference(model, q, [(row[None],) for row in x])
        close(linearize(model, q, x).epistemic_covariance, expected, **LOOSE)
        assert ways == ["loop"]
        close(linearize(model, q, list(x.split(1))).epistemic_covariance, expected, **LOOSE)


class TestLeavesNoTrace:
    X = draw(6, 3, dtype=torch.float32)

    def test_model_and_inputs(self):
        model = Network()
        before = snapshot(model)
        hooks = [len(m._forward_hooks) for m in model.modules()]
        x = self.X.clone().requires_grad_()
        one = linearize(model, trained_part(model), x, ba.Gaussian(learned=True))
        assert_unchanged(model, before)
        assert [len(m._forward_hooks) for m in model.modules()] == hooks
        assert x.grad is None
        tensors = (one.mean, one.variance, one.covariance, one.aleatoric, one.log_prob(torch.zeros(6, 1)))
        assert not any(tensor.requires_grad for tensor in tensors)
        assert one.variance.equal(linearize(model, trained_part(model), self.X, ba.Gaussian(learned=True)).variance)

    @pytest.mark.parametrize(("way", "at"), [("layers", 1), ("layers", 2), ("map", 3), ("loop", 4)])
    def test_after_an_error(self, way, at, monkeypatch):
        model = Network(lambda m: raise_(KeyboardInterrupt()) if m.calls == at else None)
        before = snapshot(model)
        only(monkeypatch, way)
        with pytest.raises(KeyboardInterrupt):
            linearize(model, trained_part(model), list(self.X.split(2)))
        assert_unchanged(model, before)
        assert not any(m._forward_hooks for m in model.modules())

    @pytest.mark.parametrize(
        ("way", "mode"),
        [
            ("layers", torch.inference_mode),
            ("map", torch.inference_mode),
            ("loop", torch.no_grad),
            ("map", torch.no_grad),
        ],
    )
    def test_in_any_gradient_mode(self, mode, way, monkeypatch):
        model, x = network("MLP")
        q = diagonal(model)
        expected = reference(model, q, [(row[None],) for row in x])
        only(monkeypatch, way)
        with mode():
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            prediction = linearize(model, q, x * 1.0)
            assert before == (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
            close(prediction.epistemic_covariance, expected, **LOOSE)
            assert prediction.log_prob(torch.zeros(5, 2, **F64)).isfinite().all()

    def test_frozen_weights_and_those_before_them(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        model[0].requires_grad_(False)
        q = ba.DiagonalGaussian(
            {n: m for n, m in weights(model).items() if n[0] == "2"},
            {n: m.exp() for n, m in weights(model).items() if n[0] == "2"},
        )
        x = draw(5, 3)
        close(linearize(model, q, x).epistemic_covariance, reference(model, q, [(row[None],) for row in x]), **LOOSE)
