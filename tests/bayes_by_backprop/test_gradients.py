"""The gradients of Bayes by Backprop against the formulae of the paper, written out."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise, priors
from bayesadam.bayes_by_backprop import variational

N, SEED = 40, 11


def double(value):
    return torch.as_tensor(value, dtype=torch.float64)


def Normal(mean, std):
    return torch.distributions.Normal(double(mean), double(std))


LIKELIHOOD = ba.Categorical()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(9, 4, dtype=torch.float64, generator=generator), torch.randint(3, (9,), generator=generator)


PRIORS = {
    "gaussian": lambda: priors.GaussianPrior(2.0, mean=0.1),
    "mixture": lambda: priors.ScaleMixturePrior(pi=0.6, sigma1=1.2, sigma2=0.3),
    "learned": lambda: priors.LearnedGaussianPrior(mean=0.2, std=0.9).double(),
    "posterior": lambda: priors.PosteriorPrior(
        ba.DiagonalGaussian(
            {name: 0.5 * p.detach() for name, p in network().named_parameters()},
            {name: 0.3 + p.detach().square() for name, p in network().named_parameters()},
        )
    ),
}


def log_prior(name, parameter, theta, learned):
    if name == "gaussian":
        return Normal(0.1, 2.0**-0.5).log_prob(theta)
    if name == "mixture":
        parts = [Normal(0.0, s).log_prob(theta) + math.log(w) for w, s in ((0.6, 1.2), (0.4, 0.3))]
        return torch.logsumexp(torch.stack(parts), 0)
    if name == "learned":
        return Normal(learned[0], learned[1].exp()).log_prob(theta)
    p = dict(network().named_parameters())[parameter].detach()
    return Normal(0.5 * p, (0.3 + p.square()).sqrt()).log_prob(theta)


def closed_form(name, parameter, mu, sigma, learned):
    if name == "gaussian":
        prior = Normal(0.1, 2.0**-0.5)
    elif name == "learned":
        prior = Normal(learned[0], learned[1].exp())
    else:
        p = dict(network().named_parameters())[parameter].detach()
        prior = Normal(0.5 * p, (0.3 + p.square()).sqrt())
    return torch.distributions.kl_divergence(Normal(mu, sigma), prior)


def reference(net, name, number, *, closed, kl_weight=1.0):
    """Gradients in mu, rho and the prior's parameters of one draw, as the paper has them."""
    x, y = data()
    mu = {n: p.detach().clone().requires_grad_() for n, p in net.model.named_parameters()}
    rho = {n: net.rho.get_parameter(n.replace(".", "/")).detach().clone().requires_grad_() for n in mu}
    learned = [p.detach().clone().requires_grad_() for p in net.prior.parameters()]
    eps = {n: noise.normal(SEED, number, 0, index, p.shape).double() for index, (n, p) in enumerate(mu.items())}
    sigma = {n: (1 + r.exp()).log() for n, r in rho.items()}
    theta = {n: (mu[n] + sigma[n] * eps[n]).detach().requires_grad_() for n in mu}
    f = LIKELIHOOD.nll(torch.func.functional_call(net.model, theta, x), y)
    for n in mu:
        if closed:
            divergence = closed_form(name, n, mu[n], sigma[n], learned).sum()
        else:
            divergence = (Normal(mu[n], sigma[n]).log_prob(theta[n]) - log_prior(name, n, theta[n], learned)).sum()
        f = f + kl_weight * divergence / N
    variables = [*theta.values(), *mu.values(), *rho.values(), *learned]
    grads = torch.autograd.grad(f, variables, allow_unused=True, materialize_grads=True)
    count = len(mu)
    d_theta, d_mu, d_rho = grads[:count], grads[count : 2 * count], grads[2 * count : 3 * count]
    means = [t + m for t, m in zip(d_theta, d_mu, strict=True)]
    rhos = [t * e / (1 + (-r).exp()) + d for t, e, r, d in zip(d_theta, eps.values(), rho.values(), d_rho, strict=True)]
    return f.item(), means, rhos, grads[3 * count :]


CASES = [(name, kl) for name in PRIORS for kl in ("closed_form", "sampled")]
CASES.remove(("mixture", "closed_form"))


@pytest.mark.parametrize(("name", "kl"), CASES)
def test_gradients_are_those_of_the_paper(name, kl):
    net = variational(
        network(),
        prior=PRIORS[name](),
        initial_std=lambda _, p: 0.05 + p.detach().abs(),
        kl=kl,
        seed=SEED,
    )
    x, y = data()
    for number in range(2):
        net.zero_grad()
        loss = net.loss(x, y, likelihood=LIKELIHOOD, num_data=N, kl_weight=0.8)
        loss.backward()
        value, means, rhos, learned = reference(net, name, number, closed=kl == "closed_form", kl_weight=0.8)
        assert loss.item() == pytest.approx(value, rel=1e-10)
        got = [*net.model.parameters(), *net.rho.parameters(), *net.prior.parameters()]
        assert len(got) == len([*means, *rhos, *learned])
        for parameter, expected in zip(got, [*means, *rhos, *learned], strict=True):
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-10, atol=1e-10)


def test_several_samples_average_the_gradients():
    x, y = data()
    net = variational(network(), prior=2.0, initial_std=0.3, seed=SEED)
    net.loss(x, y, likelihood=LIKELIHOOD, num_data=N, mc_samples=3).backward()
    parts = []
    for number in range(3):
        single = variational(network(), prior=2.0, initial_std=0.3, seed=SEED)
        single._number = number
        single.loss(x, y, likelihood=LIKELIHOOD, num_data=N).backward()
        parts.append([p.grad for p in single.parameters()])
    for parameter, *grads in zip(net.parameters(), *parts, strict=True):
        torch.testing.assert_close(parameter.grad, sum(grads) / 3, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
@pytest.mark.parametrize("kind", [nn.Embedding, partial(nn.Embedding, padding_idx=2), nn.EmbeddingBag])
def test_a_table_with_sparse_gradients_has_dense_ones(estimator, kind):
    indices, found = torch.arange(12).view(4, 3) % 5, []
    for dtype in (torch.float32, torch.float64):
        for sparse in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(kind(6, 3, sparse=sparse), nn.Flatten(), nn.LazyLinear(3)).to(dtype)
            model(indices)
            net = variational(model, estimator=estimator)
            net.loss(indices, torch.arange(4) % 3, likelihood=LIKELIHOOD, num_data=N).backward()
            found.append([p.grad for p in net.parameters()])
    for plain, sparse in (found[:2], found[2:]):
        torch.testing.assert_close(sparse, plain, rtol=1e-5, atol=1e-7)
