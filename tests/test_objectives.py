"""Objectives: the loss against its formula, minibatch weights, and the ELBO against closed forms."""

import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise, priors
from bayesadam.bayes_by_backprop import variational
from bayesadam.objectives import elbo, kl_warmup, kl_weights
from modules import module_of

LIKELIHOOD = ba.Gaussian(noise_precision=4.0)


def regression(count=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, dtype=torch.float64, generator=generator)
    return x, torch.randn(count, 1, dtype=torch.float64, generator=generator)


def linear(seed=1):
    torch.manual_seed(seed)
    return nn.Linear(3, 1).double()


def sampled(net, number, sign=1.0):
    """Weights of a draw, by the definition."""
    theta = {}
    for index, (name, mean) in enumerate(net.model.named_parameters()):
        eps = noise.normal(net.seed, number, 0, index, mean.shape).double()
        theta[name] = mean + sign * nn.functional.softplus(net.rho.get_parameter(name.replace(".", "/"))) * eps
    return theta


def term(net, x, y, number, weight, num_data, sign=1.0):
    """One sample's part of the loss, by the definition."""
    theta = sampled(net, number, sign)
    nll = LIKELIHOOD.nll(torch.func.functional_call(net.model, theta, x), y)
    if net.closed_form:
        divergence = net.posterior().kl_divergence(net.prior.precision)
    else:
        divergence = -net.prior.log_prob(theta)
        for name, value in theta.items():
            mean = dict(net.model.named_parameters())[name]
            std = nn.functional.softplus(net.rho.get_parameter(name))
            divergence = divergence + torch.distributions.Normal(mean, std).log_prob(value).sum()
    return (nll + weight * divergence / num_data).item()


@pytest.mark.parametrize("prior", [2.0, priors.ScaleMixturePrior(pi=0.6, sigma1=1.0, sigma2=0.1)])
@pytest.mark.parametrize("antithetic", [False, True])
def test_the_loss_is_the_mean_over_samples_of_both_terms(prior, antithetic):
    x, y = regression()
    net = variational(linear(), prior=prior, initial_std=0.3, seed=4)
    loss = net.loss(
        x,
        y,
        likelihood=LIKELIHOOD,
        num_data=50,
        mc_samples=4,
        antithetic=antithetic,
        kl_weight=0.7,
        temperature=0.5,
    )
    draws = [(0, 1.0), (0, -1.0), (1, 1.0), (1, -1.0)] if antithetic else [(n, 1.0) for n in range(4)]
    expected = [term(net, x, y, number, 0.35, 50, sign) for number, sign in draws]
    assert loss.shape == ()
    assert loss.item() == pytest.approx(sum(expected) / 4, rel=1e-12)


def named():
    return module_of(lambda self, features, scale: {"prediction": self.inner(features) * scale}, inner=linear())


def test_inputs_may_be_a_tuple_or_a_dict_and_output_takes_the_tensor_out():
    x, y = regression()
    options = {"likelihood": LIKELIHOOD, "num_data": 12, "output": lambda out: out["prediction"]}
    losses = [
        variational(named(), seed=3).loss(inputs, y, **options).item()
        for inputs in ((x, 2.0), {"features": x, "scale": 2.0})
    ]
    assert losses[0] == losses[1]
    plain = variational(named(), seed=3).loss((x, 1.0), y, **options).item()
    assert plain != losses[0]
    with pytest.raises(TypeError, match="output must be given for a model that returns no tensor .* got dict"):
        variational(named()).loss((x, 1.0), y, likelihood=LIKELIHOOD, num_data=12)


@pytest.mark.parametrize("num_batches", [1, 3, 50, 1000, 100_000])
@pytest.mark.parametrize("schedule", ["uniform", "blundell"])
def test_weights_of_minibatches_sum_to_one(num_batches, schedule):
    weights = kl_weights(num_batches, schedule=schedule)
    assert weights.dtype == torch.float64
    assert weights.shape == (num_batches,)
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-12)
    if schedule == "blundell" and num_batches < 60:
        expected = [2 ** (num_batches - i) / (2**num_batches - 1) for i in range(1, num_batches + 1)]
        torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=0)


@pytest.mark.parametrize("schedule", ["uniform", "blundell"])
@pytest.mark.parametrize("count", [12, 10])
def test_an_epoch_of_minibatches_is_the_whole_objective(schedule, count):
    """F_i = pi_i KL + sum of the minibatch's nll, for equal minibatches and for a smaller last one."""
    x, y = regression(count)
    net = variational(linear(), initial_std=0.3)
    net.rho.get_parameter("weight").data.fill_(-60.0)  # next to no noise, so that all draws agree
    net.rho.get_parameter("bias").data.fill_(-60.0)
    batches = list(zip(x.split(4), y.split(4), strict=True))
    shares = kl_weights(len(batches), schedule=schedule).tolist()
    total = 0.0
    for (inputs, target), share in zip(batches, shares, strict=True):
        weight = share * count / len(target)
        if count == 12:
            assert weight == pytest.approx(len(batches) * share)
        loss = net.loss(inputs, target, likelihood=LIKELIHOOD, num_data=count, kl_weight=weight)
        total += len(target) * loss.item()
    divergence = net.posterior().kl_divergence(1.0).item()
    expected = divergence + count * LIKELIHOOD.nll(net.model(x), y).item()
    assert divergence > 10
    assert total == pytest.approx(expected, rel=1e-12)


def test_warmup():
    assert [kl_warmup(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def gaussian_posterior(zero=False):
    generator = torch.Generator().manual_seed(2)
    mean = {"weight": torch.randn(1, 3, generator=generator).double(), "bias": torch.tensor([0.3]).double()}
    variance = {"weight": torch.tensor([[0.04, 0.0 if zero else 0.02, 0.01]]).double(), "bias": torch.tensor([0.05])}
    return ba.DiagonalGaussian(mean, {name: value.double() for name, value in variance.items()})


@pytest.mark.parametrize(
    "prior",
    [
        3.0,
        priors.GaussianPrior(3.0),
        priors.ScaleMixturePrior(pi=0.6, sigma1=1.0, sigma2=0.1),
    ],
)
def test_elbo_is_the_mean_log_likelihood_of_the_samples_less_the_divergence(prior):
    x, y = regression()
    q = gaussian_posterior()
    theta = q.sample(30, seed=5)
    model, expected, sampled = linear(), 0.0, 0.0
    for s in range(30):
        part = {name: value[s] for name, value in theta.items()}
        expected += LIKELIHOOD.log_prob(torch.func.functional_call(model, part, x), y).sum().item() / 30
        if isinstance(prior, priors.ScaleMixturePrior):
            sampled += (q.log_prob(part) - prior.log_prob(part)).item() / 30
    if not isinstance(prior, priors.ScaleMixturePrior):
        sampled = q.kl_divergence(3.0).item()
    got = elbo(model, q, x, y, likelihood=LIKELIHOOD, prior=prior, mc_samples=30, seed=5)
    assert got.item() == pytest.approx(expected - sampled, rel=1e-10)


def test_elbo_of_a_part_of_the_data_and_of_a_dense_posterior():
    x, y = regression()
    q = gaussian_posterior()
    whole = elbo(linear(), q, x, y, likelihood=LIKELIHOOD, prior=3.0).item()
    scaled = elbo(linear(), q, x, y, likelihood=LIKELIHOOD, prior=3.0, num_data=24).item()
    divergence = q.kl_divergence(3.0).item()
    assert scaled + divergence == pytest.approx(2 * (whole + divergence), rel=1e-10)
    flat = torch.cat([q.variance[name].flatten() for name in q.mean])
    dense = ba.DenseGaussian(q.mean, flat.diag())
    for prior, tolerance in ((3.0, 1e-9), (priors.GaussianPrior(3.0), 0.02)):
        value = elbo(linear(), dense, x, y, likelihood=LIKELIHOOD, prior=prior).item()
        assert value == pytest.approx(whole, rel=tolerance)


@pytest.mark.parametrize("prior", [3.0, "posterior"])
def test_elbo_of_a_mixture(prior):
    """It is the bound of its samples, by the definition."""
    x, y = regression()
    q = gaussian_posterior()
    other = ba.DiagonalGaussian({name: value + 0.5 for name, value in q.mean.items()}, q.variance)
    if prior == "posterior":
        prior = ba.DiagonalGaussian(q.mean, {name: torch.full_like(m, 0.5) for name, m in q.mean.items()})
    mixture = ba.Mixture([q, ba.Mixture([other])])
    theta, model, expected = mixture.sample(30, seed=5), linear(), 0.0
    for s in range(30):
        part = {name: value[s] for name, value in theta.items()}
        fit = LIKELIHOOD.log_prob(torch.func.functional_call(model, part, x), y).sum().item()
        density = sum(
            torch.distributions.Normal(prior.mean[name], prior.variance[name].sqrt()).log_prob(value).sum().item()
            if isinstance(prior, ba.DiagonalGaussian)
            else torch.distributions.Normal(0.0, 3.0**-0.5).log_prob(value).sum().item()
            for name, value in part.items()
        )
        each = [math.exp(component.log_prob(part).item()) for component in (q, other)]
        expected += (fit - math.log(sum(each) / 2) + density) / 30
    options = {"likelihood": LIKELIHOOD, "prior": prior}
    for mc_samples in (29, 30):  # as many samples of each component
        found = elbo(model, mixture, x, y, mc_samples=mc_samples, seed=5, **options).item()
        assert found == pytest.approx(expected, rel=1e-9)


def test_elbo_of_point_masses_in_a_mixture_is_refused():
    for mixture in (
        ba.ensemble([linear(1), linear(2)]),
        ba.Mixture([ba.Mixture([gaussian_posterior()]), ba.Mixture([gaussian_posterior(zero=True)])]),
    ):
        with pytest.raises(ValueError, match="^posterior must have no point masses if it is a mixture, got some in "):
            elbo(linear(), mixture, *regression(), likelihood=LIKELIHOOD, prior=1.0)


def call(**options):
    x, y = regression()
    return variational(linear()).loss(x, y, **{"likelihood": LIKELIHOOD, "num_data": 12, **options})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: call(mc_samples=1.5), "mc_samples must be a whole number of at least 1, got 1.5"),
        (lambda: call(mc_samples=3, antithetic=True), "mc_samples must be even when antithetic=True, got 3"),
        (lambda: call(num_data=0), "num_data must be a positive, finite number, got 0"),
        (lambda: call(kl_weight=-1.0), r"kl_weight must be finite and not negative, got -1\.0"),
        (lambda: call(temperature=math.inf), r"temperature must be in \[0, 1\], got inf"),
        (lambda: call(wrapper=nn.DataParallel(linear())), "wrapper must contain the network whose loss is computed,"),
        (lambda: kl_weights(0), "num_batches must be a whole number of at least 1, got 0"),
        (lambda: kl_weights(3, schedule="linear"), r"schedule must be one of \('uniform', 'blundell'\), got 'linear'"),
        (lambda: kl_warmup(0, 0), "steps must be a whole number of at least 1, got 0"),
        (lambda: kl_warmup(-1, 3), "step must not be negative, got -1"),
        (
            lambda: elbo(linear(), gaussian_posterior(), *regression(), likelihood=LIKELIHOOD, prior=1.0, mc_samples=0),
            "mc_samples must be a whole number of at least 1, got 0",
        ),
        (
            lambda: elbo(linear(), gaussian_posterior(), *regression(), likelihood=LIKELIHOOD, prior=1.0, batch_size=0),
            "batch_size must be a whole number of at least 1, got 0",
        ),
        (
            lambda: elbo(linear(), gaussian_posterior(), *regression(), likelihood=None, prior=1.0),
            "likelihood must be ",
        ),
        (lambda: gaussian_posterior().kl_divergence("2"), "prior must be a positive, finite precision or .*, got '2'"),
        (lambda: ba.priors.GaussianPrior("2"), "precision must be positive and finite, got '2'"),
        (lambda: gaussian_posterior().prune("0.5"), r"fraction must be in \[0, 1\], got '0.5'"),
        (
            lambda: ba.MCDropout(nn.Sequential(linear(), nn.Dropout()), rate="0.1"),
            r"rate must be in \(0, 1\), got '0.1'",
        ),
        (lambda: call(kl_weight="1"), "kl_weight must be finite and not negative, got '1'"),
        (lambda: ba.Mixture([gaussian_posterior()]).sample(1, seed=1.5), r"seed must be an integer in .*, got 1\.5"),
        (lambda: variational(linear(), seed=-1), r"seed must be an integer in \[0, 2\*\*64\), got -1"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
