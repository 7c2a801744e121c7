"""Networks made by ``fawn``: what is random and trained, divergences, copies and checkpoints, posteriors, training."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel

import bayesadam as ba
from bayesadam import priors
from bayesadam.moments import MomentModule
from bayesadam.posterior import BernoulliPosterior
from moments.networks import data, mlp
from moments.references import close, draw
from two_ranks import in_two_ranks


def train(net, optimizer, steps):
    x, y = data()
    for _ in range(steps):
        optimizer.zero_grad()
        net.loss(x, y, likelihood=ba.Gaussian(20.0), num_data=20).backward()
        optimizer.step()


def names(net):
    return [name for name, p in net.named_parameters() if p.requires_grad]


def same_state(first, second):
    first, second = first.state_dict(), second.state_dict()
    return list(first) == list(second) and all(torch.equal(first[n], second[n]) for n in first)


KINDS = {
    "gaussian": {},
    "covariance": {"covariance": True},
    "number": {"prior": 4.0},
    "learned": {"prior": priors.LearnedGaussianPrior()},
    "bernoulli": {"weights": "bernoulli"},
    "sparse": {"weights": "bernoulli", "prior": 0.1},
}


def made(kind, dtype=torch.float64, seed=0, **options):
    model = mlp(dtype=dtype, seed=seed)
    if kind == "last layer":
        return ba.variational_last_layer(model, covariance="full", prior=priors.LearnedGaussianPrior())
    return ba.fawn(model, **{**copy.deepcopy(KINDS[kind]), **options})


EVERY = pytest.mark.parametrize("kind", [*KINDS, "last layer"])


class TestGaussian:
    def test_the_weights_are_around_the_models_own(self):
        model = mlp()
        before = copy.deepcopy(model.state_dict())
        net = ba.fawn(model, initial_std=0.3)
        assert isinstance(net, MomentModule)
        assert net.weights.model is model
        for name, moments in net.weights.moments().items():
            assert torch.equal(moments.mean, before[name])
            close(moments.variance, torch.full_like(moments.mean, 0.09))
        assert names(net) == [
            *(f"weights.model.{name}" for name in before),
            *(f"weights.log_variance.{name.replace('.', '/')}" for name in before),
        ]

    def test_divergences(self):
        """From formulae over all weights as one vector."""
        q = ba.fawn(mlp(), initial_std=lambda _, p: draw(*p.shape, seed=5).exp()).posterior()
        m, v = (torch.cat([t.flatten() for t in part.values()]) for part in (q.mean, q.variance))

        def kl(center, variance):
            terms = 0.5 * ((v + (m - center) ** 2) / variance - 1.0 - (v / variance).log())
            return terms.sum()

        def net(prior):
            return ba.fawn(mlp(), prior=prior, initial_std=lambda _, p: draw(*p.shape, seed=5).exp())

        close(net(2.0).kl_divergence(), kl(0.0, 0.5))
        close(net(priors.GaussianPrior(2.0, mean=0.3)).kl_divergence(), kl(0.3, 0.5))
        close(net(priors.LearnedGaussianPrior(mean=0.1, std=0.7)).kl_divergence(), kl(0.1, 0.49), rtol=1e-6)
        best = (v + (m - m.mean()) ** 2).mean()
        close(net(None).kl_divergence(), kl(m.mean(), best))
        for shift, factor in ((0.01, 1.0), (-0.01, 1.0), (0.0, 1.02), (0.0, 0.98)):
            assert net(None).kl_divergence() < kl(m.mean() + shift, factor * best)
        other = ba.DiagonalGaussian(
            {n: draw(*t.shape, seed=8) for n, t in q.mean.items()},
            {n: draw(*t.shape, seed=9).exp() for n, t in q.mean.items()},
        )
        center, variance = (torch.cat([t.flatten() for t in part.values()]) for part in (other.mean, other.variance))
        close(net(other).kl_divergence(), kl(center, variance))
        close(net(q).kl_divergence(), torch.zeros((), dtype=torch.float64), atol=1e-10)
        assert net(None).kl_divergence().dtype == torch.float64
        for prior in (None, 2.0, other):
            assert net(prior).kl_divergence().requires_grad

    def test_selected_weights_are_random(self):
        net = ba.fawn(mlp(), select=lambda name: name.startswith("2."))
        assert [n for n in names(net) if "log_variance" in n] == [
            "weights.log_variance.2/weight",
            "weights.log_variance.2/bias",
        ]
        assert len(names(net)) == 6
        q = net.posterior()
        assert list(q.mean) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert q.variance["0.weight"].eq(0).all()
        assert q.variance["2.bias"].gt(0).all()
        x = draw(3, 4)
        hidden = torch.relu(net.weights.model[0](x))
        close(net(x).variance, (hidden.square().sum(1, keepdim=True) + 1.0).expand(3, 2) * 0.05**2)

    def test_frozen_parameters_stay_what_they_are(self):
        model = mlp()
        model[0].requires_grad_(False)
        net = ba.fawn(model)
        before = model[0].weight.clone()
        train(net, torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.1), 3)
        assert torch.equal(model[0].weight, before)
        assert list(net.posterior().mean) == ["2.weight", "2.bias"]


class TestBernoulli:
    @pytest.mark.parametrize(("scales", "shape"), [("outputs", (6, 1)), ("inputs", (1, 4))])
    def test_moments_are_those_of_the_weights_and_start_in_their_order(self, scales, shape):
        model = mlp()
        before = model[0].weight.detach().clone()
        net = ba.fawn(model, weights="bernoulli", scales=scales)
        scale, logit = net.weights._of("0.weight")
        assert scale.shape == shape
        p = 1.0 / (1.0 + (-logit).exp())
        found = net.weights.moments()["0.weight"]
        close(found.mean, scale * p)
        close(found.variance, scale**2 * p * (1.0 - p))
        assert list(net.weights.moments()) == ["0.weight", "2.weight"]  # biases are point masses
        groups = (before, found.mean) if scales == "outputs" else (before.T, found.mean.T)
        for old, new in zip(*groups, strict=True):
            assert torch.equal(old.argsort(), new.argsort())
            assert (new * (1.0 if old.sum() >= 0.0 else -1.0) > 0.0).all()

    def test_convolutions_with_scales_of_inputs(self):
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).double()
        net = ba.fawn(model, weights="bernoulli", scales="inputs")
        assert net.weights._of("0.weight")[0].shape == (1, 2, 1, 1)
        assert net(draw(3, 2, 4, 4)).variance.min() > 0.0
        close(net.posterior().variance["0.weight"], net.weights.moments()["0.weight"].variance)

    def test_weights_of_zeros(self):
        zero = nn.Sequential(nn.Linear(4, 2)).double()
        nn.init.zeros_(zero[0].weight)
        found = ba.fawn(zero, weights="bernoulli", scales="outputs").weights.moments()["0.weight"]
        close(found.mean, torch.full_like(found.mean, 0.5))

    def test_divergences(self):
        def bits(p, other):
            return (p * (p / other).log() + (1.0 - p) * ((1.0 - p) / (1.0 - other)).log()).sum()

        net = made("bernoulli")
        p = torch.cat([net.weights._of(name)[1].sigmoid().flatten() for name in ("0.weight", "2.weight")])
        close(net.kl_divergence(), bits(p, p.mean()))
        close(made("sparse").kl_divergence(), bits(p, torch.tensor(0.1, dtype=torch.float64)))
        assert net.kl_divergence() < bits(p, p.mean() + 0.01)
        assert net.kl_divergence() < bits(p, p.mean() - 0.01)

    def test_posterior(self):
        net = made("sparse")
        q = net.posterior()
        assert isinstance(q, BernoulliPosterior)
        assert q.hyperparameters == {"method": "FAWN", "prior": 0.1}
        assert list(q.mean) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        for name, moments in net.weights.moments().items():
            close(q.mean[name], moments.mean)
            close(q.variance[name], moments.variance)
        for name in ("0.bias", "2.bias"):
            assert torch.equal(q.mean[name], net.weights.model.get_parameter(name))
            assert q.variance[name].eq(0).all()
        train(net, torch.optim.Adam(net.parameters(), lr=0.1), 1)
        assert not torch.equal(net.posterior().mean["0.weight"], q.mean["0.weight"])
        assert not q.mean["0.bias"].requires_grad

    def test_selected_weights(self):
        net = made("bernoulli", select=lambda name: name == "2.weight")
        assert list(net.weights.moments()) == ["2.weight"]
        assert "weights.model.0.weight" in names(net)
        q = net.posterior()
        assert q.probability["0.weight"].eq(1).all()
        assert 0.0 < q.probability["2.weight"].min()
        assert q.probability["2.weight"].max() < 1.0


class TestEveryKind:
    @EVERY
    def test_every_parameter_has_a_gradient(self, kind):
        net = made(kind)
        x, y = data()
        net.loss(x, y, likelihood=ba.Gaussian(4.0), num_data=20).backward()
        for name, parameter in net.named_parameters():
            assert (parameter.grad is not None) == parameter.requires_grad, name
            if parameter.requires_grad:
                assert parameter.grad.isfinite().all()
                assert parameter.grad.abs().sum() > 0.0, name

    @EVERY
    def test_a_checkpoint_continues_bit_for_bit(self, kind):
        def start(seed):
            net = made(kind, seed=seed)
            return net, torch.optim.Adam(net.parameters(), lr=0.05)

        net, optimizer = start(0)
        train(net, optimizer, 3)
        file = io.BytesIO()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
        train(net, optimizer, 3)
        other, its = start(1)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        other.load_state_dict(state["net"])
        its.load_state_dict(state["optimizer"])
        assert not same_state(net, other)
        train(other, its, 3)
        assert same_state(net, other)

    @pytest.mark.parametrize("kind", KINDS)
    def test_precision(self, kind):
        double, single, half = (made(kind, dtype) for dtype in (torch.float64, torch.float32, torch.float32))
        x, _ = data()
        assert double(x).variance.dtype == torch.float64
        assert single(x.float()).variance.dtype == torch.float32
        close(single(x.float()).variance.double(), double(x).variance, rtol=1e-4, atol=1e-6)
        close(half.double()(x).variance, double(x).variance, rtol=1e-4, atol=1e-6)
        assert double.posterior().mean["0.weight"].dtype == torch.float64
        for net in (double, single):
            assert net.kl_divergence().dtype == torch.float64

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_posterior_is_a_copy_with_its_hyperparameters(self, kind):
        net = made(kind)
        q = net.posterior()
        priors_of = {"number": "GaussianPrior(precision=4.0, mean=0.0)", "learned": "LearnedGaussianPrior()"}
        priors_of |= {"bernoulli": None, "sparse": 0.1}
        expected = priors_of.get(kind, "EmpiricalGaussianPrior()")
        assert q.hyperparameters == {"method": "FAWN", "prior": expected}
        before = {name: t.clone() for name, t in q.tensors().items()}
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 1)
        for name, value in q.tensors().items():
            assert not value.requires_grad
            assert torch.equal(value, before[name])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
@pytest.mark.parametrize("kind", ["learned", "last layer"])
def test_copies(kind, copied):
    net, (x, _) = made(kind), data()
    ours = net(x)
    other = copied(net)
    assert torch.equal(ours.variance, other(x).variance)
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), 1)
    assert torch.equal(net(x).mean, ours.mean)
    assert not torch.equal(other(x).mean, ours.mean)


def test_a_model_that_asks_for_its_mode():
    class Model(nn.Linear):
        def forward(self, x):
            return 2.0 * super().forward(x) if self.training else super().forward(x)

    net, x = ba.fawn(Model(4, 2).double()), draw(3, 4)
    twice = net(x).mean
    close(net.eval()(x).mean, 0.5 * twice)
    close(net.train()(x).mean, twice)


def test_other_wrappers():
    net = DataParallel(made("gaussian"))  # without devices it only calls its module
    x, y = data()
    ours = net.module.loss(x, y, likelihood=ba.Gaussian(), num_data=20, wrapper=net)
    assert torch.equal(ours, net.module.loss(x, y, likelihood=ba.Gaussian(), num_data=20))


def test_two_ranks(tmp_path):
    in_two_ranks("moments.workers", ["data_parallel", "bayes_by_backprop"], tmp_path)


def test_autocast_leaves_moments_alone():
    net, x = ba.fawn(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))), torch.ones(5, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = net(x)
    outside = net(x)
    assert torch.equal(inside.mean, outside.mean)
    assert torch.equal(inside.variance, outside.variance)
