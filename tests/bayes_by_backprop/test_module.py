"""The variational module: draws and their coordinates, modes, checkpoints and copies, what is random, and training."""

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import bayesadam as ba
from bayesadam import noise, priors
from bayesadam.bayes_by_backprop import fused, variational
from bayesadam.functional.reparameterized import inverse_softplus, sample_of_variance, softplus
from modules import module_of


def mlp(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)


def data(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(20, 4, generator=generator), torch.randint(3, (20,), generator=generator)


def train(net, optimizer, steps):
    x, y = data()
    for _ in range(steps):
        optimizer.zero_grad()
        net.loss(x, y, likelihood=ba.Categorical(), num_data=20).backward()
        optimizer.step()


def state(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def same(first, second):
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


def test_large_and_small_parameters_have_the_same_noise_as_one_by_one():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(200, 100)).double()
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 2).double()))
    net = variational(model, initial_std=0.5)
    for number in range(2):
        with net.common_draw():
            for index, (name, mean) in enumerate(model.named_parameters()):
                eps = noise.normal(0, number, 0, index, mean.shape).double()
                torch.testing.assert_close(net._draw.theta(name), mean + 0.5 * eps, rtol=1e-12, atol=1e-12)


def test_the_model_holds_the_means_whatever_happens():
    class Failing(nn.Linear):
        def forward(self, x):
            super().forward(x)
            raise KeyError("inside")

    for estimator in ("shared", "local", "flipout"):
        model = Failing(4, 2)
        before = model.weight.detach().clone()
        weight = model.weight
        net = variational(model, estimator=estimator)
        for _ in range(2):
            with pytest.raises(KeyError, match="inside"), net.common_draw():
                net(data()[0])
        assert model.weight is weight
        assert torch.equal(weight, before)


def test_evaluation_mode_uses_the_means_and_draws_nothing():
    net, (x, _) = variational(mlp(), initial_std=0.3).eval(), data()
    assert torch.equal(net(x), net.model(x))
    assert net._number == 0


@pytest.mark.parametrize(
    "prior", [1.0, priors.ScaleMixturePrior(pi=0.5, sigma1=1.0, sigma2=0.1), priors.LearnedGaussianPrior()]
)
def test_a_resumed_run_is_bit_identical(prior):
    whole = variational(mlp(), prior=copy.deepcopy(prior), seed=2**63 + 9)
    optimizer = torch.optim.Adam(whole.parameters(), lr=1e-2)
    train(whole, optimizer, 3)
    file = io.BytesIO()
    torch.save({"net": whole.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(whole, optimizer, 3)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = variational(mlp(seed=8), prior=copy.deepcopy(prior))
    again = torch.optim.Adam(resumed.parameters(), lr=1e-2)
    resumed.load_state_dict(saved["net"])
    again.load_state_dict(saved["optimizer"])
    train(resumed, again, 3)
    assert same(state(whole), state(resumed))
    assert resumed.seed == 2**63 + 9


@pytest.mark.parametrize(
    ("duplicate", "estimator"), [(copy.deepcopy, "local"), (lambda net: pickle.loads(pickle.dumps(net)), "shared")]
)
def test_copies_go_on_as_the_original(duplicate, estimator):
    net = variational(mlp(), prior=priors.LearnedGaussianPrior(), estimator=estimator, seed=3)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), 2)
    with net.common_draw():
        net(data()[0])
        other = duplicate(net)
    x, _ = data()
    assert torch.equal(net(x), other(x))
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), 2)
    assert not torch.equal(net.model[0].weight, other.model[0].weight)
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), 2)
    assert same(state(net), state(other))


def test_tied_weights_have_one_mean_and_one_sample():
    layers = {"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)}
    layers["head"].weight = layers["embedding"].weight
    net = variational(module_of(lambda self, x: self.head(self.embedding(x)), **layers), initial_std=0.5)
    assert [name for name, _ in net.named_parameters()] == ["model.embedding.weight", "rho.embedding/weight"]
    out = net(torch.arange(5))
    assert torch.allclose(out, out.T)  # W W', which it is for one W only
    assert list(net.posterior().mean) == ["embedding.weight"]
    assert net.model.head.weight is net.model.embedding.weight


@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
def test_padding_is_looked_up_without_noise_and_gradient(estimator):
    net = variational(nn.Embedding(4, 3, padding_idx=1), estimator=estimator)
    out, rows = net(torch.arange(4)), torch.tensor([True, False, True, True])
    out.square().sum().backward()
    for changes in (out - net.model(torch.arange(4)), *(parameter.grad for parameter in net.parameters())):
        assert torch.equal((changes != 0).any(1), rows)


@pytest.mark.parametrize(
    ("estimator", "prior"),
    [("shared", 1.0), ("local", priors.LearnedGaussianPrior()), ("flipout", priors.ScaleMixturePrior())],
)
def test_autocast(estimator, prior):
    net = variational(mlp(), prior=prior, initial_std=0.5, estimator=estimator)
    plain = variational(mlp(), prior=prior, initial_std=0.5, estimator=estimator)
    x, y = data()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = net(x), net(x)
        assert first.dtype == torch.bfloat16
        assert not torch.equal(first, second)
        loss = net.loss(x, y, likelihood=ba.Categorical(), num_data=20, mc_samples=2)
    loss.backward()
    plain(x), plain(x)
    expected = plain.loss(x, y, likelihood=ba.Categorical(), num_data=20, mc_samples=2)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=0.02)
    for got, reference in zip(net.parameters(), plain.parameters(), strict=True):
        assert got.grad.dtype == torch.float32
        assert (got.grad - reference.grad).norm() < 0.1 * reference.grad.norm()


@pytest.mark.parametrize(
    ("estimator", "prior", "size"),
    [("shared", 1.0, 4), ("shared", priors.ScaleMixturePrior(), 200), ("local", 1.0, 200), ("flipout", 1.0, 4)],
)
def test_inference_mode_leaves_nothing_behind(estimator, prior, size):
    """A validation pass in inference mode gives what it gives without gradients, and so does training afterwards."""
    x, y = torch.randn(20, size), torch.randint(3, (20,))
    found = []
    for mode in (torch.inference_mode, torch.no_grad):
        torch.manual_seed(1)
        net = variational(
            nn.Sequential(nn.Linear(size, 100), nn.Tanh(), nn.Linear(100, 3)), prior=prior, estimator=estimator
        )
        with mode():
            outputs = [net(x), net.loss(x, y, likelihood=ba.Categorical(), num_data=20)]
            net.eval()
            outputs.append(net(x))
            with net.common_draw():
                outputs.append(net(x))
            assert not any(out.requires_grad for out in outputs)
        net.train()
        with net.common_draw():  # the pass with gradients uses the draw of the one without
            with mode():
                net(x)
                net.kl_divergence()
            outputs.append(net(x))
            (outputs[-1].square().sum() + net.kl_divergence()).backward()
        net.loss(x, y, likelihood=ba.Categorical(), num_data=20).backward()
        found.append([out.detach().clone() for out in outputs] + [p.grad for p in net.parameters()])
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


def test_low_precision_weights_have_spreads_in_float32():
    net = variational(mlp(dtype=torch.bfloat16), initial_std=0.3)
    assert all(rho.dtype == torch.float32 for rho in net.rho.parameters())
    x, y = data()
    out = net(x.bfloat16())
    assert out.dtype == torch.bfloat16
    loss = net.loss(x.bfloat16(), y, likelihood=ba.Categorical(), num_data=20)
    loss.backward()
    assert all(p.grad.dtype == p.dtype for p in net.parameters())
    q = net.posterior()
    assert all(value.dtype == torch.float32 for value in (*q.mean.values(), *q.variance.values()))
    assert torch.equal(q.mean["0.weight"].bfloat16(), net.model[0].weight)
    torch.testing.assert_close(net.kl_divergence(), q.kl_divergence(1.0), rtol=1e-5, atol=1e-4)


def test_what_is_selected_is_random_and_frozen_parameters_never_are():
    model = mlp()
    model[0].bias.requires_grad_(False)
    net = variational(model, initial_std=0.3, select=lambda name: not name.startswith("2.bias"))
    assert [name for name, _ in net.rho.named_parameters()] == ["0/weight", "2/weight"]
    with net.common_draw():
        eps = noise.normal(0, 0, 0, 2, (3, 6))  # number 2: the frozen parameter is counted
        expected = net.model[2].weight + 0.3 * eps
        torch.testing.assert_close(net._draw.theta("2.weight"), expected, rtol=1e-5, atol=1e-6)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), 1)
    assert model[2].bias.grad is not None
    assert model[0].bias.grad is None
    q = net.posterior()
    assert list(q.mean) == ["0.weight", "2.weight", "2.bias"]
    assert (q.variance["2.bias"] == 0).all()
    assert torch.equal(q.mean["2.bias"], model[2].bias)
    expected = ba.DiagonalGaussian(
        {name: q.mean[name] for name in ("0.weight", "2.weight")},
        {name: q.variance[name] for name in ("0.weight", "2.weight")},
    ).kl_divergence(1.0)
    torch.testing.assert_close(net.kl_divergence(), expected, rtol=1e-5, atol=1e-5)


def test_initial_standard_deviations():
    shapes = {name: p.shape for name, p in mlp().named_parameters()}
    by_name = {name: 0.01 * (i + 1) for i, name in enumerate(shapes)}
    by_name["0.weight"] = torch.rand(6, 4) + 0.1
    by_shape = {name: std * shapes[name][0] for name, std in by_name.items()}
    for given_, expected in ((by_name, by_name), (lambda name, p: by_name[name] * p.shape[0], by_shape)):
        q = variational(mlp(), initial_std=given_).posterior()
        for name, shape in shapes.items():
            std = torch.as_tensor(expected[name]).expand(shape)
            torch.testing.assert_close(q.variance[name].sqrt(), std.float(), rtol=2e-6, atol=0)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-30, 1e4))
def test_the_inverse_of_softplus(std):
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        value = torch.tensor(std, dtype=dtype)
        torch.testing.assert_close(softplus(inverse_softplus(value)), value, rtol=tolerance, atol=0)


def test_derivatives_of_spreads():
    rho = torch.linspace(-12, 12, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softplus, rho)
    mean, eps = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean.requires_grad_()
    for normals, around_mean in (([eps], True), ([eps], False), (None, False)):
        assert torch.autograd.gradcheck(
            lambda m, r, e=normals, around=around_mean: fused.sample([m], [r], e, 0.3, around_mean=around)[0][0],
            (mean, rho),
        )
        assert torch.autograd.gradcheck(lambda m, r: fused.sample([m], [r], [eps], 0.3)[1], (mean, rho))
    rho = torch.linspace(-30, 30, 13, dtype=torch.float64, requires_grad=True)
    softplus(rho).sum().backward()
    torch.testing.assert_close(rho.grad, torch.sigmoid(rho.detach()), rtol=1e-12, atol=0)
    variance = torch.tensor([0.0, -1e-9, 4.0], dtype=torch.float64, requires_grad=True)
    mean = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    out = sample_of_variance(mean, variance, torch.tensor([1.0, 1.0, -3.0], dtype=torch.float64))
    assert out.tolist() == [0.0, 0.0, -6.0]
    out.sum().backward()
    assert mean.grad.tolist() == [1.0, 1.0, 1.0]
    assert variance.grad.tolist() == [0.0, 0.0, -0.75]


def test_the_posterior_is_a_copy_with_its_hyperparameters():
    model = mlp()
    net = variational(
        model, prior=priors.ScaleMixturePrior(pi=0.75, sigma1=1.0, sigma2=0.0025), initial_std=0.1, seed=6
    )
    train(net, torch.optim.Adam(net.parameters(), lr=1e-2), 2)
    q = net.posterior()
    assert q.mean["0.weight"].data_ptr() != model[0].weight.data_ptr()
    torch.testing.assert_close(q.variance["2.weight"].sqrt(), softplus(net.rho.get_parameter("2/weight")).detach())
    assert q.hyperparameters == {
        "method": "BayesByBackprop",
        "prior": "ScaleMixturePrior(pi=0.75, sigma1=1.0, sigma2=0.0025)",
        "seed": 6,
        "estimator": "shared",
        "kl": "sampled",
    }


@pytest.mark.parametrize("make", [variational, ba.variational_last_layer])
def test_packed_sequences_are_one_argument(make):
    """As for ``predict``, although the class is a tuple."""
    x, y = torch.randn(4, 5, 2), torch.randn(5, 1)
    losses = []
    for inputs in (x, pack_sequence(list(x.unbind(1)))):
        torch.manual_seed(1)
        layers = {"recurrent": nn.GRU(2, 3), "last": nn.Linear(3, 1)}
        model = module_of(lambda self, x: self.last(self.recurrent(x)[1][-1]), **layers)
        losses.append(make(model).loss(inputs, y, likelihood=ba.Gaussian(), num_data=5))
    torch.testing.assert_close(*losses)


def complex_model():
    model = nn.Module()
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return model


def made(**options):
    return variational(mlp(), **options)


MIXTURE = priors.ScaleMixturePrior()
REFUSED = {
    "estimator": (lambda: made(estimator="global"), r"must be one of \('shared', 'local', 'flipout'\), got 'global'"),
    "kl": (lambda: made(kl="exact"), "kl must be 'closed_form', 'sampled' or None, got 'exact'"),
    "no closed form": (lambda: made(prior=MIXTURE, kl="closed_form"), "kl must be 'sampled' with a prior without a"),
    "negative seed": (lambda: made(seed=-1), r"seed must be an integer in \[0, 2\*\*64\), got -1"),
    "large seed": (lambda: made(seed=2**64), r"seed must be an integer in \[0, 2\*\*64\), got 1844"),
    "prior": (lambda: made(prior="normal"), "prior must be a precision, one of bayesadam.priors or a DiagonalGaussian"),
    "nothing": (lambda: made(select=lambda _: False), "model must have a trainable parameter that is selected, got"),
    "std": (lambda: made(initial_std=0.0), r"initial_std of '0.weight' must be positive and finite, got 0\.0"),
    "std by name": (lambda: made(initial_std={"0.weight": 0.1}), "must have the random parameter '0.bias', got none"),
    "model": (lambda: variational(torch.relu), "model must be a torch.nn.Module, got builtin_function_or_method"),
    "complex": (lambda: variational(complex_model()), "parameter 'phase' must be real to be random, got dtype"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_refusals_of_draws():
    net = variational(mlp())
    with pytest.raises(RuntimeError, match="must follow a draw, got none"), net.common_draw(mirrored=True):
        pass
    with net.common_draw(), pytest.raises(RuntimeError, match="must not be nested, got a block"), net.common_draw():
        pass


@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
@pytest.mark.parametrize("kl", ["closed_form", "sampled"])
def test_a_network_without_random_linear_layers(estimator, kl):
    """All of its weights are sampled one by one, and their divergence is that of the shared draw."""
    losses = []
    for each in (estimator, "shared"):
        net = variational(nn.LayerNorm(4), estimator=each, kl=kl)
        torch.manual_seed(0)
        losses.append(net.loss(torch.ones(5, 4), torch.ones(5, 4), likelihood=ba.Gaussian(), num_data=10))
    losses[0].backward()
    torch.testing.assert_close(*losses)
