"""What training gives: posteriors and predictions."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.population import losses
from bayesadam.posterior.report import PER_TENSOR
from population.conftest import ROUNDING, all_alone, assert_same, train
from population.problems import RAGGED, draw, mlp, models_of, noise_of, regression, some_frozen


class TestResults:
    @pytest.fixture(scope="module")
    @staticmethod
    def nets():
        return train(models_of(), regression(), noise_of(4.0, 9.0), epochs=2, seed=3)

    def test_posteriors(self, nets, tmp_path):
        alone = all_alone(models_of(), regression(), noise_of(4.0, 9.0), epochs=2, seed=3, lr=0.02)
        for member, (q, fit) in enumerate(zip(nets.posteriors, alone, strict=True)):
            assert list(q.mean) == list(fit.posterior().mean)
            q.save(tmp_path / "q.safetensors")
            loaded = ba.load_posterior(tmp_path / "q.safetensors")
            for name, mean in nets.mean.items():
                assert loaded.mean[name].equal(mean[member])
                assert loaded.variance[name].equal(nets.variance[name][member])
            expected = {k: v for k, v in fit.posterior().hyperparameters.items() if k != PER_TENSOR}
            assert {name: loaded.hyperparameters.get(name) for name in expected} == expected

    def test_a_posterior_of_bayesadam_says_its_own_temperature(self):
        told = {"epochs": 2, "method": "bayesadam"}
        nets = train(models_of(), regression(), noise_of(4.0, 9.0), **told)
        alone = all_alone(models_of(), regression(), noise_of(4.0, 9.0), **told)
        for q, fit in zip(nets.posteriors, alone, strict=True):
            assert q.hyperparameters["temperature"] == fit.posterior().hyperparameters["temperature"]

    @pytest.mark.parametrize("method", ["monte_carlo", "mean"])
    def test_predict_is_the_prediction_of_each(self, nets, method):
        inputs, options = [draw(n, 3, seed=n) for n in (5, 1, 8, 2)], {"mc_samples": 7, "seed": 9, "method": method}
        for x in (inputs, inputs[0]):
            for member, prediction in enumerate(nets.predict(x, **options)):
                own = x[member] if isinstance(x, list) else x
                model, q, likelihood = models_of()[member], nets.posteriors[member], nets.likelihoods[member]
                expected = ba.predict(model, q, own, likelihood=likelihood, **options)
                torch.testing.assert_close(prediction.means, expected.means, **ROUNDING)
                torch.testing.assert_close(prediction.variances, expected.variances, **ROUNDING)

    def test_predict_with_padding(self):
        models = models_of(lambda: nn.Sequential(nn.Embedding(4, 3, padding_idx=1), nn.Flatten(), nn.Linear(6, 2)))
        x, likelihood = torch.arange(8).view(4, 2) % 4, ba.Gaussian()
        nets = train(models, (x, torch.zeros(4, 2)), likelihood, epochs=1)
        for model, q, found in zip(models, nets.posteriors, nets.predict(x), strict=True):
            torch.testing.assert_close(found.means, ba.predict(model, q, x, likelihood=likelihood).means)

    LIKELIHOODS = {  # noqa: RUF012
        "classes": (ba.Categorical(), 4, lambda n: torch.arange(n) % 4),
        "labels": (ba.Bernoulli(), 2, lambda n: torch.ones(n, 2)),
        "learned noise": (noise_of(1.0, learned=True), 2, lambda n: draw(n, 2)),
        "own variances": (ba.HeteroscedasticGaussian(), 4, lambda n: draw(n, 2)),
    }

    @pytest.mark.parametrize("name", LIKELIHOODS)
    def test_predict_with_every_likelihood(self, name):
        likelihood, outputs, targets = self.LIKELIHOODS[name]
        models = models_of(lambda: nn.Sequential(nn.Dropout(0.5), mlp(outputs)))
        nets = train(models, [(draw(n, 3, seed=n), targets(n)) for n in RAGGED], likelihood, epochs=2)
        x = draw(6, 3, seed=9)
        for member, (model, prediction) in enumerate(zip(models, nets.predict(x, mc_samples=5), strict=True)):
            expected = ba.predict(model, nets.posteriors[member], x, likelihood=nets.likelihoods[member], mc_samples=5)
            assert type(prediction) is type(expected)
            for part in ("means", "variances", "log_probs", "probs"):
                if hasattr(expected, part):
                    torch.testing.assert_close(getattr(prediction, part), getattr(expected, part), **ROUNDING)
        assert all(model.training for model in models)

    def test_predict_with_frozen_parts_and_little_memory(self, monkeypatch):
        models = some_frozen(*range(4))
        few = train(models, regression(), noise_of(4.0), epochs=1)
        monkeypatch.setattr(losses, "CACHE", 1)
        little = train(models, regression(), noise_of(4.0), epochs=1)  # one member and one row at a time
        assert_same(little, few, ROUNDING)
        x = draw(6, 3, seed=9)
        for member, (one, other) in enumerate(zip(few.predict(x), little.predict(x), strict=True)):
            torch.testing.assert_close(one.means, other.means, **ROUNDING)
            expected = ba.predict(models[member], few.posteriors[member], x, likelihood=noise_of(4.0))
            torch.testing.assert_close(one.means, expected.means, **ROUNDING)
