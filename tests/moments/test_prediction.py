"""``predict(method="moments")``: every posterior and likelihood, against ``net(x)`` and samples; batches; refusals."""

import copy
import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.moments import log_predictive
from bayesadam.predictive import GaussianLogitsPredictive, GaussianPredictive
from moments.networks import data, layers, mlp
from moments.references import F64, close, draw, one_hidden_layer, spread

NOISE = ba.Gaussian(4.0)


def diagonal(model, scale=0.1):
    means = {n: p.detach().clone() for n, p in model.named_parameters()}
    return ba.DiagonalGaussian(
        means, {n: scale * (0.1 + spread(*m.shape, seed=i)).to(m) for i, (n, m) in enumerate(means.items())}
    )


def propagate(model, q, x, likelihood=NOISE, **options):
    return ba.predict(model, q, x, likelihood=likelihood, method="moments", **options)


def of(q):
    return lambda name: (q.mean[name], q.variance[name])


def test_gaussian_posteriors():
    model, (x, y) = mlp(), data()
    q = diagonal(model)
    mean, covariance = one_hidden_layer(x[:5], *layers(of(q)))
    ours = propagate(model, q, x[:5])
    assert isinstance(ours, GaussianPredictive)
    close(ours.mean, mean, rtol=1e-6, atol=1e-8)
    close(ours.epistemic_covariance, covariance, rtol=1e-6, atol=1e-8)
    close(ours.epistemic, covariance.diagonal(dim1=1, dim2=2), rtol=1e-6, atol=1e-8)
    close(ours.aleatoric, torch.full_like(mean, 0.25), rtol=1e-7)
    close(ours.variance, ours.epistemic + 0.25, rtol=1e-7)
    total = torch.distributions.MultivariateNormal(mean, covariance + 0.25 * torch.eye(2, **F64))
    close(ours.log_prob(y[:5]), total.log_prob(y[:5]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_it_is_what_the_network_gives(kind):
    net, (x, y) = ba.fawn(mlp(), weights=kind, covariance=True), data()
    ours, theirs = propagate(net.weights.model, net.posterior(), x), net(x)
    close(ours.mean, theirs.mean.detach())
    close(ours.epistemic, theirs.variance.detach())
    close(ours.epistemic_covariance, theirs.covariance.detach())
    close(ours.log_prob(y), log_predictive(NOISE, theirs, y).detach())


def test_partial_gaussian():
    model, (x, _) = mlp(), data()
    whole = diagonal(model)
    last = ["2.weight", "2.bias"]
    random = ba.DiagonalGaussian(*({n: part[n] for n in last} for part in (whole.mean, whole.variance)))
    fixed = {n: whole.mean[n] for n in whole.mean if n not in last}
    q = ba.posterior.PartialGaussian(random, fixed, order=list(whole.mean))
    ours = propagate(model, q, x)
    hidden = torch.relu(x @ fixed["0.weight"].T + fixed["0.bias"])
    close(ours.mean, model(x).detach())
    close(ours.epistemic, hidden.square() @ random.variance["2.weight"].T + random.variance["2.bias"])


def test_noise_that_the_network_gives():
    model, (x, y) = mlp(4), data()
    q = diagonal(model)
    mean, covariance = one_hidden_layer(x, *layers(of(q)))
    ours = propagate(model, q, x, ba.HeteroscedasticGaussian())
    close(ours.mean, mean[:, :2], rtol=1e-6, atol=1e-8)
    close(ours.epistemic_covariance, covariance[:, :2, :2], rtol=1e-6, atol=1e-8)
    noise = (mean[:, 2:] + 0.5 * covariance.diagonal(dim1=1, dim2=2)[:, 2:]).exp()
    close(ours.aleatoric, noise, rtol=1e-6, atol=1e-8)
    total = torch.distributions.MultivariateNormal(mean[:, :2], covariance[:, :2, :2] + torch.diag_embed(noise))
    close(ours.log_prob(y), total.log_prob(y), rtol=1e-6, atol=1e-6)
    single, target = mlp(2), y[:, :1]
    ours = propagate(single, diagonal(single), x, ba.HeteroscedasticGaussian())
    normal = torch.distributions.Normal(ours.mean, ours.variance.sqrt())
    close(ours.log_prob(target), normal.log_prob(target)[:, 0])


@pytest.mark.parametrize(("likelihood", "outputs"), [(ba.Categorical(), 3), (ba.Bernoulli(), 1)])
def test_classes(likelihood, outputs):
    model, (x, _) = mlp(outputs), data()
    q = diagonal(model, 0.5)
    mean, covariance = one_hidden_layer(x, *layers(of(q)))
    drawn = propagate(model, q, x, likelihood, mc_samples=2500, seed=3)
    assert isinstance(drawn, GaussianLogitsPredictive)
    close(drawn.covariance, covariance if outputs > 1 else covariance[..., 0], rtol=1e-6, atol=1e-8)
    assert (drawn.mutual_information >= 0.0).all()
    sampled = ba.predict(model, q, x, likelihood=likelihood, mc_samples=2500, seed=2).probs
    close(drawn.probs, sampled, rtol=0.0, atol=0.03)
    scaled = mean / (1.0 + math.pi / 8.0 * covariance.diagonal(dim1=1, dim2=2)).sqrt()
    probit = propagate(model, q, x, likelihood, link="probit")
    close(probit.probs, scaled.softmax(-1) if outputs > 1 else scaled.sigmoid(), rtol=1e-6, atol=1e-8)
    point = ba.predict(model, q, x, likelihood=likelihood, method="mean").probs
    assert (point - sampled).abs().max() > 0.05  # there is an uncertainty to see


class TestInputs:
    def test_chunks_make_no_difference(self):
        for likelihood, outputs in ((NOISE, 2), (ba.Categorical(), 3)):
            model, (x, _) = mlp(outputs), data()
            q = diagonal(model)
            whole, parts = (propagate(model, q, x, likelihood, batch_size=size) for size in (None, 7))
            for name in ("mean", "covariance") if likelihood is NOISE else ("logits", "covariance", "probs"):
                close(getattr(parts, name), getattr(whole, name))

    @pytest.mark.parametrize(
        ("likelihood", "target", "outputs"),
        [
            (NOISE, draw(3, 5, 2, seed=8), 2),
            (ba.Categorical(), torch.arange(15).view(3, 5) % 3, 3),
            (ba.Bernoulli(), (draw(3, 5, 2, seed=8) > 0).double(), 2),
        ],
    )
    def test_outputs_with_several_axes(self, likelihood, target, outputs):
        """A network that is applied at every position, whose outputs are then taken as independent."""
        model, x = mlp(outputs), draw(3, 5, 4)
        q = diagonal(model)
        ours = propagate(model, q, x, likelihood, mc_samples=500)
        sampled = ba.predict(model, q, x, likelihood=likelihood, mc_samples=500)
        assert ours.log_prob(target).shape == sampled.log_prob(target).shape
        flat = propagate(model, q, x.flatten(0, 1), likelihood)
        if isinstance(likelihood, ba.Gaussian | ba.HeteroscedasticGaussian):
            close(ours.epistemic.flatten(0, 1), flat.epistemic)
            assert ours.covariance.shape == (3, target[0].numel(), target[0].numel())
        else:
            close(ours.logits.flatten(0, 1), flat.logits)
            close(ours.probs, sampled.probs, rtol=0.0, atol=0.1)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_the_models_dtype_decides(self, dtype):
        """As for samples, which are written into the model: a posterior's own dtypes may be others, and differ."""
        model, (x, _) = mlp(dtype=dtype), data()
        q = diagonal(mlp())
        mixed = ba.DiagonalGaussian(q.mean, {n: v.float() for n, v in q.variance.items()})
        ours, truth = propagate(model, mixed, x.to(dtype)), propagate(mlp(), q, x)
        assert ours.mean.dtype == ours.epistemic.dtype == dtype
        close(ours.mean.double(), truth.mean, rtol=1e-5, atol=1e-5)
        close(ours.epistemic.double(), truth.epistemic, rtol=1e-5, atol=1e-5)

    def test_low_precision_is_computed_in_float32(self):
        model = mlp(dtype=torch.bfloat16)
        q, (x, _) = diagonal(model), data()
        ours = propagate(model, q, x.bfloat16())
        wide = ba.DiagonalGaussian(*({n: t.double() for n, t in part.items()} for part in (q.mean, q.variance)))
        truth = propagate(mlp(), wide, x.bfloat16().double())
        assert ours.mean.dtype == torch.float32
        close(ours.mean.double(), truth.mean, rtol=1e-5, atol=1e-5)
        close(ours.variance.double(), truth.variance, rtol=1e-5, atol=1e-5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = propagate(model, q, x.bfloat16())
        assert torch.equal(again.mean, ours.mean)


def test_the_model_is_what_it_was():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2)).double()
    model[3].eval()
    x, q = data()[0], diagonal(model)
    q = ba.DiagonalGaussian({n: m + 1.0 for n, m in q.mean.items()}, q.variance)
    tensors = [*model.parameters(), *model.buffers()]
    values, addresses = [t.clone() for t in tensors], [t.data_ptr() for t in tensors]
    modes = [m.training for m in model.modules()]
    ours = propagate(model, q, x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        propagate(model, q, x[:, :3])
    assert [m.training for m in model.modules()] == modes
    assert all(a is b for a, b in zip(tensors, (*model.parameters(), *model.buffers()), strict=True))
    assert [t.data_ptr() for t in tensors] == addresses
    assert all(map(torch.equal, tensors, values))
    assert all(p.requires_grad for p in model.parameters())
    assert not ours.mean.requires_grad
    close(propagate(model.eval(), q, x).variance, ours.variance, rtol=0, atol=0)  # neither dropout nor batches


def test_a_forward_that_is_set_on_a_layer():
    """The moments are those of a layer with such weights."""
    layer = nn.Linear(3, 4).double()
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(4, 1).double())
    plain = copy.deepcopy(model)
    layer.forward = lambda x: nn.functional.linear(x, 3.0 * layer.weight, layer.bias)
    mean = {name: p.detach() for name, p in plain.named_parameters()}
    variance = {name: torch.full_like(p, 0.01) for name, p in mean.items()}
    scaled = {**mean, "0.weight": 3.0 * mean["0.weight"]}, {**variance, "0.weight": 9.0 * variance["0.weight"]}
    found, expected = (
        ba.predict(net, ba.DiagonalGaussian(*q), draw(5, 3), likelihood=ba.Gaussian().double(), method="moments")
        for net, q in ((model, (mean, variance)), (plain, scaled))
    )
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
