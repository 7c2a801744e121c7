"""Predictions with one model by several threads at a time."""

import threading

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from bayesadam.predictive.plan import METHODS
from bayesadam.sklearn import BayesianMLPRegressor
from modules import module_of
from posterior.kinds import around

pytestmark = pytest.mark.usefixtures("frequent_switches")
THREADS, CALLS = 4, 5


def in_threads(*functions):
    """Results of all calls of the functions, each called several times by threads of its own."""
    results, errors, together = [[] for _ in functions], [], threading.Barrier(THREADS)

    def work(number):
        try:
            together.wait()
            results[number % len(functions)] += [functions[number % len(functions)]() for _ in range(CALLS)]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return results


def network(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *layers, nn.Tanh(), nn.Linear(8, 1))


def check(model, *functions):
    """Check that all threads find what one finds, and that the model is afterwards as before."""
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = list(map(id, model.parameters()))
    expected = [function() for function in functions]
    for alone, results in zip(expected, in_threads(*functions), strict=True):
        assert all(torch.equal(result, alone) for result in results)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(map(id, model.parameters())) == parameters
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


X = torch.linspace(-2, 2, 80).view(20, 4)
GAUSSIAN = ba.Gaussian()


def predicted(model, q, **options):
    return lambda: ba.predict(model, q, X, likelihood=GAUSSIAN, mc_samples=8, **options).variance


@pytest.mark.parametrize("method", METHODS)
def test_methods(method):
    model = network()
    check(model, predicted(model, around(model), method=method))


def test_samples_are_applied():
    model = network()
    q = around(model)

    def mean():
        total = torch.zeros(20, 1)
        for sample in range(8):
            with q.applied(model, sample), torch.no_grad():
                total += model(X)
        return total

    check(model, mean)


def test_batch_norm_statistics():
    model = network(nn.BatchNorm1d(8))
    check(model, predicted(model, around(model), batch_norm=X))


def test_dropout():
    model = network(nn.Dropout())
    check(model, predicted(model, ba.MCDropout(model)), predicted(model, around(model)))


@pytest.mark.parametrize("structure", ["diagonal", "kron", "full", "last_layer"])
def test_laplace_beside_predictions(structure):
    model = network()
    q = around(model)

    def variance():
        found = ba.laplace(model, (X, X[:, :1]), likelihood=GAUSSIAN, structure=structure)
        return torch.cat([value.flatten() for value in found.variance.values()])

    check(model, variance, predicted(model, q))


def test_networks_with_a_common_part():
    trunk = nn.Linear(4, 8)
    models = [nn.Sequential(trunk, nn.Tanh(), nn.Linear(8, 1)) for _ in range(2)]
    check(nn.ModuleList(models), *(predicted(model, around(model)) for model in models))


def test_wrappers_of_one_network():
    model = network()
    q = around(model)

    def twice():
        return module_of(lambda self, x: 2 * self.inner(x), inner=model)

    outside = around(twice())
    check(model, predicted(model, q), lambda: predicted(twice(), outside)())


def test_other_models_are_not_waited_for():
    model, other = network(), network()
    q = around(model)
    with q.applied(model, 0):
        thread = threading.Thread(target=predicted(other, around(other)))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()


def test_attached_optimizers():
    model = network()
    opt = ba.Vadam(model.named_parameters(), num_data=10)
    opt.attach(model)
    with opt.sampled_params():
        model(X).sum().backward()
    opt.step()
    q = opt.posterior()
    expected = predicted(model, q)()
    (results,) = in_threads(predicted(model, q))
    assert all(torch.equal(result, expected) for result in results)
    assert all(torch.equal(p, q.mean[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("method", ["anchored", "laplace", "vadam"])
def test_estimators(method):
    x, y = X.numpy(), X[:, 0].numpy()
    estimator = BayesianMLPRegressor(method=method, epochs=3, members=2, hidden=(8,), random_state=0).fit(x, y)
    expected = torch.from_numpy(estimator.predictive(x).variance.numpy())
    (results,) = in_threads(lambda: estimator.predictive(x).variance)
    assert all(torch.equal(result, expected) for result in results)


def test_samples_of_targets():
    prediction = ba.predict(network(), around(network()), X.abs(), likelihood=ba.likelihoods.Poisson())
    expected = prediction.sample(50, seed=1)
    (results,) = in_threads(lambda: [prediction.sample(50, seed=1) for _ in range(20)])
    assert all(torch.equal(result, expected) for several in results for result in several)


def test_first_weights():
    def weights():
        models = population.initialize(lambda: nn.Linear(200, 50), seeds=range(3))
        return torch.stack([model.weight.detach() for model in models])

    expected = weights()
    (results,) = in_threads(lambda: [weights() for _ in range(5)])
    assert all(torch.equal(result, expected) for several in results for result in several)
