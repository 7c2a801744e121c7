"""A member of a population is what the library's optimiser makes of the same model alone, on the same minibatches."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

import bayesadam as ba
from bayesadam import population
from population.conftest import ROUNDING, TOLERANCE, assert_same, compare, train
from population.problems import BATCH, F32, F64, RAGGED, draw, mlp, models_of, noise_of, regression

OWN = {
    "lr": [0.01, 0.02, 0.03, 0.04],
    "betas": [(0.9, 0.99), (0.8, 0.95), (0.5, 0.9), (0.0, 0.97)],
    "prior_precision": [1.0, 2.0, 0.5, 10.0],
    "initial_precision": [20.0, 15.0, 30.0, 25.0],
    "num_data": [13, 70, 2.5, 20],
    "temperature": [1.0, 0.5, 0.1, 0.0],
    "seed": [11, 2**63, 0, 5],
}
OWN_ADAM = {
    "lr": OWN["lr"],
    "betas": OWN["betas"],
    "eps": [1e-8, 1e-3, 0.1, 1e-6],
    "weight_decay": [0.0, 0.1, 1.0, 0.01],
    "seed": OWN["seed"],
}


def own_options(method):
    if method == "adam":
        return OWN_ADAM
    absent = ("prior_precision", "temperature") if method == "vadagrad" else ()
    more = {"bbb": {"eps": OWN_ADAM["eps"]}, "bayesadam": {"temperature": [1.0, 0.5, 0.1, 0.01]}}.get(method, {})
    return {name: values for name, values in OWN.items() if name not in absent} | more


def own_noise(dtype):
    return [noise_of(*pair, dtype=dtype) for pair in [(1.0, 4.0), (2.0, 2.0), (0.5, 9.0), (3.0, 0.1)]]


def sampling(method, mc_samples, antithetic):
    return {} if method == "adam" else {"mc_samples": mc_samples, "antithetic": antithetic}


SAMPLES = [(1, False), (10, False), (10, True)]
WAYS = [
    *((method, *SAMPLES[i % 3], (F32, F64)[i % 2]) for i, method in enumerate(population.METHODS) if method != "adam"),
    *((method, *SAMPLES[i], dtype) for method in ("vadam", "ivon") for i in range(3) for dtype in (F32, F64)),
    *(("adam", 1, False, dtype) for dtype in (F32, F64)),
]
"""Every method once, and in all ways one whose curvature is of the gradients, and one whose is of the noise."""


@pytest.mark.parametrize(("method", "mc_samples", "antithetic", "dtype"), sorted(set(WAYS), key=str))
def test_everything_differs_among_members(method, mc_samples, antithetic, dtype):
    models, data, likelihood = models_of(lambda: mlp(dtype=dtype)), regression(dtype=dtype), own_noise(dtype)
    options = {"method": method, "epochs": 3, **own_options(method), **sampling(method, mc_samples, antithetic)}
    if method == "van":  # a curvature of one sample may be negative
        options["correction"] = "elementwise"
    nets = compare(models, data, likelihood, TOLERANCE[dtype], **options)
    assert nets.epochs.tolist() == [3] * 4
    assert nets.stopped == ["epochs"] * 4


@pytest.mark.parametrize("method", population.METHODS)
def test_nothing_differs_but_the_data_and_the_seeds(method):
    """As many minibatches for all, whose last ones differ."""
    models, data, likelihood = models_of(), regression((13, 11, 12, 15)), noise_of(4.0)
    compare(models, data, likelihood, method=method, epochs=3, seed=7, **sampling(method, 2, True))


def test_one_option_at_a_time():
    """A column beside numbers, for every option."""
    models, data, likelihood = models_of(), regression(), noise_of(4.0)
    for method in ("vadam", "adam", "bbb"):
        for name, values in own_options(method).items():
            compare(models, data, likelihood, **{"method": method, "epochs": 1, name: values})


# Networks


class Mixed(nn.Module):
    """Frozen parameters before and between trained ones, buffers, a 0-d parameter; all drawn at random."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(3, 5)
        self.hidden = nn.Linear(5, 4)
        self.register_buffer("shift", torch.randn(4))
        self.scale = nn.Parameter(torch.randn(()))
        self.between = nn.Parameter(torch.randn(4), requires_grad=False)
        self.last = nn.Linear(4, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        hidden = self.hidden(self.frozen(x).tanh()) + self.shift
        return self.scale * self.last(hidden.tanh() * self.between)


class Twice(nn.Module):
    """One weight in two places."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last((self.second(self.first(x).tanh()) @ self.first.weight).tanh())


def tied(name):
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    setattr(second, name, getattr(first, name))
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(3, 2))


def in_common():
    frozen = nn.Linear(3, 6).requires_grad_(False)
    frozen.load_state_dict({"weight": draw(6, 3), "bias": draw(6)})
    return nn.Sequential(frozen, nn.Tanh(), nn.Linear(6, 2))


def squashed(layer):
    return register_parametrization(layer, "weight", nn.Tanh())


def normalised():
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    nn.init.normal_(net[1].running_mean)
    return net.eval()


ACTIVATIONS = (nn.LeakyReLU(), nn.Sigmoid(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.Softplus(), nn.Identity(), nn.Tanh())
ALL_LAYERS = [layer for activation in ACTIVATIONS for layer in (nn.Linear(3, 3), activation)]
VECTORS, IMAGES = (3,), (1, 5, 5)
NETWORKS = {
    "one layer": (lambda: nn.Linear(3, 2), VECTORS),
    "perceptron": (lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
                   VECTORS),
    "no biases": (lambda: nn.Sequential(nn.Linear(3, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False)), VECTORS),
    "all activations": (lambda: nn.Sequential(*ALL_LAYERS, nn.Linear(3, 2), nn.Softplus()), VECTORS),
    "large tensors": (lambda: nn.Sequential(nn.Linear(3, 6000), nn.ReLU(), nn.Linear(6000, 2)), VECTORS),
    "frozen parts and buffers": (Mixed, VECTORS),
    "a frozen layer in common": (in_common, VECTORS),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(27, 2)),
                    IMAGES),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2)), VECTORS),
    "batch norm in eval mode": (normalised, VECTORS),
    "parametrised": (lambda: nn.Sequential(squashed(nn.Linear(3, 6)), nn.ReLU(), nn.Linear(6, 2)), VECTORS),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(6, 2)), "integers"),
    "padding": (lambda: nn.Sequential(nn.Embedding(7, 2, padding_idx=3), nn.Flatten(), nn.Linear(6, 2)), "integers"),
    "a weight twice": (Twice, VECTORS),
    "a weight twice in a perceptron": (lambda: tied("weight"), VECTORS),
    "a bias twice in a perceptron": (lambda: tied("bias"), VECTORS),
}  # fmt: skip


def inputs_of(kind, size, seed):
    if kind == "integers":
        return torch.randint(7, (size, 3), generator=torch.Generator().manual_seed(seed))
    return draw(size, *kind, seed=seed)


class TestNetworks:
    @pytest.mark.parametrize(
        ("name", "method"),
        [*((name, "vadam") for name in NETWORKS), *((name, "ivon") for name in ("perceptron", "convolution"))],
    )
    def test_equals_the_model_alone(self, name, method):
        make, kind = NETWORKS[name]
        models, likelihood = models_of(lambda: make().to(F64)), noise_of(4.0)
        data = [(inputs_of(kind, size, seed=i), draw(size, 2, seed=10 + i)) for i, size in enumerate(RAGGED)]
        compare(models, data, likelihood, method=method, lr=0.001, mc_samples=2, seed=3)

    @pytest.mark.parametrize("make", [nn.Sequential, lambda *layers: nn.Sequential(nn.Sequential(*layers))])
    def test_dropout_is_another_mask_for_every_member(self, make):
        (model,) = models_of(lambda: make(nn.Linear(1, 50), nn.Dropout(0.5), nn.Linear(50, 1)), 1)
        pair = torch.ones(1, 1), torch.ones(1, 1)
        nets = train([model] * 3, pair, ba.Gaussian(4.0), epochs=1, method="adam", seed=[0, 0, 0])
        (gradients,) = (state for name, state in nets.state["exp_avg"].items() if state.shape[1:] == (1, 50))
        dropped = [tuple((gradient[0] == 0).tolist()) for gradient in gradients]
        assert len(set(dropped)) == 3
        assert all(5 < sum(mask) < 45 for mask in dropped)


# Likelihoods


def squeezed():
    return nn.Sequential(mlp(outputs=1), nn.Flatten(0))


def classes(*shape, high, seed):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def scaled(kind, values):
    return [noise_of(*value, learned=kind == "learned") for value in values]


VECTOR_NOISE = [(1.0, 4.0), (2.0, 3.0), (0.5, 9.0), (3.0, 0.1)]
LIKELIHOODS = {
    "Gaussian, a precision per output": (scaled("fixed", VECTOR_NOISE), mlp, lambda n, i: draw(n, 2, seed=i)),
    "Gaussian of numbers": (noise_of(3.0), squeezed, lambda n, i: draw(n, seed=i)),
    "learned noise, one for all": (noise_of(1.0, learned=True), mlp, lambda n, i: draw(n, 2, seed=i)),
    "learned noise, own starts": (scaled("learned", VECTOR_NOISE), mlp, lambda n, i: draw(n, 2, seed=i)),
    "heteroscedastic": (ba.HeteroscedasticGaussian(), mlp, lambda n, i: draw(n, 1, seed=i)),
    "Bernoulli": (ba.Bernoulli(), squeezed, lambda n, i: classes(n, high=2, seed=i)),
    "Bernoulli, several labels": (ba.Bernoulli(), mlp, lambda n, i: classes(n, 2, high=2, seed=i).to(F64)),
    "Categorical": (ba.Categorical(), lambda: mlp(outputs=4), lambda n, i: classes(n, high=4, seed=i)),
}


class TestLikelihoods:
    @pytest.mark.parametrize(
        ("name", "method"),
        [
            *((name, "vadam") for name in LIKELIHOODS),
            *((name, method) for name in ("learned noise, own starts", "Categorical") for method in ("ivon", "bbb")),
            *((name, "adam") for name in ("learned noise, own starts", "Bernoulli")),
        ],
    )
    def test_equals_the_likelihood_alone(self, name, method):
        likelihood, make, targets = LIKELIHOODS[name]
        models = models_of(make)
        data = [(draw(size, 3, seed=i), targets(size, 10 + i)) for i, size in enumerate(RAGGED)]
        compare(models, data, likelihood, method=method, **sampling(method, 2, False))

    def test_tokens(self):
        data = [(draw(n, 6, 3, seed=i), classes(n, 6, high=4, seed=i)) for i, n in enumerate(RAGGED)]
        compare(models_of(lambda: mlp(outputs=4)), data, ba.Categorical(), mc_samples=2)


# Continuing from a posterior


@pytest.fixture(scope="module")
def earlier():
    """Posteriors with different variances at every weight."""
    nets = train(models_of(), regression(), noise_of(4.0), epochs=3, lr=[0.01, 0.02, 0.03, 0.04])
    return nets.posteriors


@pytest.mark.parametrize("method", ["vadam", "vprop", "ivon", "bbb", "bayesadam"])
class TestPriors:
    def compare(self, **options):
        compare(models_of(), regression(seed=100), noise_of(4.0), mc_samples=2, **options)

    def test_one_posterior_for_each_or_for_all(self, method, earlier):
        self.compare(method=method, prior=earlier)
        self.compare(method=method, prior=earlier[2])

    def test_with_other_hyperparameters(self, method, earlier):
        largest = max(variance.reciprocal().max().item() for q in earlier for variance in q.variance.values())
        starts = [largest * factor for factor in (2e3, 3e3, 1.5e3, 4e3)]  # for colder ones
        self.compare(
            method=method, prior=earlier, temperature=own_options(method)["temperature"], initial_precision=starts
        )

    def test_some_members_only(self, method, earlier):
        self.compare(method=method, prior=[earlier[0], None, None, earlier[3]], prior_precision=0.7)


def test_priors_from_initial_values_beside_numbers():
    options = {"prior_precision": ["init", 2.1, 0.3, "init"], "initial_precision": [None, 30.0, None, 100.0]}
    compare(models_of(), regression(), noise_of(4.0), method="bayesadam", **options)


class TestPriorsOfAdam:
    """Adam finds the mode of the posterior: the loss has the negative log density of the prior in it."""

    PRIORS = (
        ba.DiagonalGaussian(
            {name: draw(*p.shape, seed=i) for i, (name, p) in enumerate(mlp().named_parameters())},
            {name: draw(*p.shape, seed=9 + i).exp() for i, (name, p) in enumerate(mlp().named_parameters())},
        ),
        None,
    )

    @pytest.mark.parametrize("learned", [False, True])
    def test_equals_torch_with_the_prior_in_the_loss(self, learned):
        models, data = models_of(count=2), regression((6, 9))
        likelihood = noise_of(4.0, learned=learned)
        nets = train(
            models, data, likelihood, method="adam", epochs=20, batch_size=9, num_data=[6, 5.0], prior=list(self.PRIORS)
        )
        for number, (prior, size) in enumerate(zip(self.PRIORS, (6, 5.0), strict=True)):
            (x, y), model, own = data[number], copy.deepcopy(models[number]), copy.deepcopy(likelihood)
            adam = torch.optim.Adam([*model.parameters(), *own.parameters()], lr=0.02)
            for _ in range(20):
                adam.zero_grad()
                loss = own(model(x), y)
                if prior is not None:
                    loss = loss - prior.log_prob(dict(model.named_parameters())) / size
                loss.backward()
                adam.step()
            for name, p in model.named_parameters():
                torch.testing.assert_close(nets.mean[name][number], p.detach(), **TOLERANCE[F64])


# What a member does not depend on

COMPANY = {"epochs": 3, "mc_samples": 2, **{name: values for name, values in OWN.items() if name != "seed"}}


@pytest.fixture(scope="module")
def together():
    return train(models_of(), regression(), own_noise(F64), seed=5, **COMPANY)


class TestCompany:
    """Equal to rounding: matrix products of several sizes add up in several orders."""

    @pytest.mark.parametrize("chunk", [1, 2, 3])
    def test_chunk(self, together, chunk):
        nets = train(models_of(), regression(), own_noise(F64), seed=5, chunk=chunk, **COMPANY)
        assert_same(nets, together, ROUNDING)

    def test_shared_data_is_data(self):
        models, pair = models_of(), regression((13,))[0]
        copies = [(pair[0].clone(), pair[1].clone()) for _ in models]
        shared = train(models, pair, noise_of(4.0), epochs=2)
        assert_same(shared, train(models, copies, noise_of(4.0), epochs=2))
        assert_same(shared, train(models, [pair] * 4, noise_of(4.0), epochs=2))

    def test_shared_inputs_with_other_targets(self):
        x, y = regression((13,))[0]
        compare(models_of(count=2), [(x, y), (x, -y)], noise_of(4.0))

    @pytest.mark.parametrize("batch_size", [1, 4, 13, 1000])
    def test_batch_sizes(self, batch_size):
        compare(models_of(), regression(), noise_of(4.0), batch_size=batch_size)

    def test_two_members_and_one_pair_of_pairs(self):
        """Two members with a pair each look like a pair themselves."""
        compare(models_of(count=2), tuple(regression((13, 7))), noise_of(4.0), epochs=1)


def test_order():
    """A permutation that depends on seed and epoch, and on nothing else."""
    orders = [population.order(20, seed=seed, epoch=epoch) for seed in (0, 1, 2**64 - 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6
    assert population.order(20, seed=1, epoch=1).tolist() == orders[3].tolist()
    assert BATCH < 20
