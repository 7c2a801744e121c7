"""Point masses, ensembles and mixtures: against the members, and against sums by hand."""

import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from bayesadam.posterior import Mixture, ensemble
from posterior.kinds import BOUND, F64, assert_same, close, dense, diagonal, draw, flat, low_rank, means


def kinds():
    return [diagonal(seed=0, lr=0.1), low_rank(seed=100), dense(seed=200)]


def network(seed, **kind):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)).to(**kind)
    model(torch.randn(20, 3, **kind))  # moves the running statistics
    return model.eval()


class TestPointMass:
    def test_is_a_copy_of_what_is_trainable(self):
        model = network(0)
        model[3].requires_grad_(False)
        q = ba.DiagonalGaussian.point_mass(model)
        assert_same(q.mean, {name: p.detach() for name, p in model.named_parameters() if p.requires_grad})
        before = {name: mean.clone() for name, mean in q.mean.items()}
        nn.init.zeros_(model[0].weight)
        assert_same(q.mean, before)
        assert not any(m.requires_grad for m in q.mean.values())
        assert not any(v.any() for v in q.variance.values())
        assert {v.untyped_storage().nbytes() for v in q.variance.values()} == {4}

    def test_weights_by_name_are_kept(self):
        weights = {"w": torch.tensor([1.0, -0.0])}
        q = ba.DiagonalGaussian.point_mass(weights, hyperparameters={"lr": 0.1})
        assert q.mean["w"] is weights["w"]
        assert q.hyperparameters == {"lr": 0.1}
        assert q.sample(2)["w"].signbit().tolist() == [[False, True]] * 2
        assert q.log_prob(weights) == 0.0

    def test_no_noise_is_drawn(self, monkeypatch):
        monkeypatch.setattr(noise, "normal_many", None)
        monkeypatch.setattr(noise, "normal", None)
        ba.DiagonalGaussian.point_mass(nn.Linear(200, 200)).sample(2)

    def test_tensors_without_noise_do_not_change_that_of_others(self):
        q = diagonal()
        still = ba.DiagonalGaussian(q.mean, {**q.variance, "z.weight": torch.zeros(5, 4, **F64)})
        assert torch.equal(still.sample(2)["m/bias"], q.sample(2)["m/bias"])
        assert torch.equal(still.sample(2)["z.weight"][1], q.mean["z.weight"])


class TestEnsemble:
    def test_predict_is_the_average_of_the_members(self):
        models, x = [network(seed, **F64) for seed in range(4)], draw(6, 3)
        q = ensemble(models)
        target = torch.tensor([0, 1, 2, 3, 0, 1])
        for model in (models[0], models[2]):
            found = ba.predict(model, q, x, likelihood=ba.Categorical(), mc_samples=10, seed=3)
            assert torch.equal(found.log_probs, torch.stack([m(x).log_softmax(-1) for m in models]))
            average = torch.stack([m(x).softmax(-1) for m in models]).mean(0)
            close(found.probs, average)
            close(found.log_prob(target), average.gather(1, target[:, None])[:, 0].log())

    def test_covers_what_is_trainable_or_differs(self):
        models = [network(seed) for seed in range(2)]
        for model in models:
            model[3].requires_grad_(False)
            model.register_buffer("same", torch.ones(2))
        nn.init.zeros_(models[0][3].bias)
        nn.init.zeros_(models[1][3].bias)
        models[1][1].num_batches_tracked += 3
        q = ensemble(models, hyperparameters={"method": "ensemble"})
        assert list(q.mean) == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight"]
        for model, component in zip(models, q.components, strict=True):
            assert_same(component.buffers, dict(model.named_buffers()))
        assert q.hyperparameters == {"method": "ensemble", "components": [{}, {}]}

    def test_is_a_copy_and_only_one(self):
        models = [network(seed) for seed in range(2)]
        q = ensemble(models)
        for model, component in zip(models, q.components, strict=True):
            for name, parameter in model.named_parameters():
                assert torch.equal(component.mean[name], parameter)
                assert component.mean[name].data_ptr() != parameter.data_ptr()
                assert component.variance[name].untyped_storage().nbytes() == 4
        nn.init.zeros_(models[0][0].weight)
        assert q.components[0].mean["0.weight"].any()


class TestMixture:
    def test_moments_and_density(self):
        q = Mixture(kinds())
        moments = torch.stack([flat(c.mean) for c in q.components])
        squares = torch.stack([flat(c.variance) + flat(c.mean) ** 2 for c in q.components])
        close(flat(q.mean), moments.mean(0))
        close(flat(q.variance), squares.mean(0) - moments.mean(0) ** 2)
        theta = {n: draw(2, 3, *m.shape, seed=7) for n, m in q.mean.items()}
        densities = torch.stack([c.log_prob(theta) for c in q.components])
        close(q.log_prob(theta), densities.logsumexp(0) - math.log(3))
        assert q.log_prob(theta).shape == (2, 3)
        assert repr(q) == "Mixture(3 components, the first DiagonalGaussian(4 tensors, 24 weights))"

    def test_moments_of_samples(self):
        shapes = {"a": (300,), "b": (100,)}
        q = Mixture([diagonal(means(shapes, seed), seed) for seed in (0, 50, 90)])
        count = 3 * 500
        x = flat(q.sample(count, seed=1), count)
        each = [flat(c.variance) for c in q.components]
        # Every component has its share exactly, so that only the variances within them are left to chance.
        z = (x.mean(0) - flat(q.mean)) / (sum(each) / 3 / count).sqrt()
        assert abs(z.sum()) < BOUND * math.sqrt(z.numel())
        for k, component in enumerate(q.components):
            white = (x[k::3] - flat(component.mean)) / each[k].sqrt()
            assert abs(white.square().mean() - 1) < BOUND * math.sqrt(2 / white.numel()) < 0.015

    def test_components_and_seeds_share_no_noise(self):
        standard = ba.DiagonalGaussian({"w": torch.zeros(100_000)}, {"w": torch.ones(100_000)})
        nested = Mixture([Mixture([standard, standard]), Mixture([standard, standard])])
        draws = {
            "standard": standard.sample(3)["w"],
            "mixture": Mixture([standard, standard]).sample(4)["w"],
            "another seed": Mixture([standard, standard]).sample(4, seed=1)["w"],
            "nested": nested.sample(8, seed=2)["w"],
        }
        rows = torch.cat([*draws.values()]).double()
        products = rows @ rows.T / math.sqrt(100_000)
        assert (products.fill_diagonal_(0).abs() < BOUND).all()

    @pytest.mark.parametrize("tied", [False, True])
    def test_padding_rows_have_the_means_of_their_components(self, tied):
        """Except for those of weights that are an output layer as well."""
        model = nn.Sequential(nn.Embedding(4, 3, 1), nn.Linear(3, 4, bias=False)).requires_grad_(False)
        if tied:
            model[1].weight = model[0].weight
        ones = torch.ones(4, 3)
        a, b = (ba.DiagonalGaussian({"0.weight": mean}, {"0.weight": ones}) for mean in (ones, 2 * ones))
        q, found = Mixture([a, Mixture([b, a])]), []
        for number in range(4):
            with q.applied(model, number, seed=2):
                found.append(model[0].weight.clone())
        expected = q.sample(4, seed=2)["0.weight"]
        if not tied:
            expected[:, 1] = torch.stack([each.mean["0.weight"][1] for each in (a, b, a, a)])
        assert torch.equal(torch.stack(found), expected)

    def test_a_component_draws_by_its_own_numbers(self):
        """So a component's samples do not depend on what the others are, and all of a component's numbers occur."""
        a, b, other = (diagonal(seed=seed) for seed in (0, 100, 200))
        first, second = Mixture([a, b]).sample(6), Mixture([a, other]).sample(6)
        assert torch.equal(first["z.weight"][::2], second["z.weight"][::2])
        assert not torch.equal(first["z.weight"][1::2], second["z.weight"][1::2])
        inner = Mixture([diagonal(seed=300), diagonal(seed=400)])
        nested = Mixture([a, inner])
        centers = [c.mean["z.weight"] for c in inner.components]
        close_to = [min((0, 1), key=lambda i: (s - centers[i]).norm()) for s in nested.sample(40)["z.weight"][1::2]]
        assert set(close_to) == {0, 1}

    def test_log_prob_of_an_ensemble(self):
        q = ensemble([nn.Linear(3, 2), nn.Linear(3, 2)])
        assert q.log_prob(q.components[0].mean).item() == pytest.approx(-math.log(2))
        assert q.log_prob(q.mean) == -math.inf

    def test_log_prob_needs_one_measure(self):
        q = diagonal()
        mixture = Mixture([q, q.prune(0.5)])
        message = "^components must have the same point masses for a density, got others in 'z.weight' of component 1$"
        with pytest.raises(ValueError, match=message):
            mixture.log_prob(q.mean)

    def test_the_mean_is_no_network(self):
        models = [network(seed) for seed in range(2)]
        q = ensemble(models)
        before = {name: value.clone() for name, value in models[0].state_dict().items()}
        message = r"^sample must be given for a mixture \(the mean .*, got None$"
        with pytest.raises(ValueError, match=message):
            ba.predict(models[0], q, torch.ones(1, 3), likelihood=ba.Categorical(), method="mean")
        with pytest.raises(ValueError, match=message), q.applied(models[0]):
            pass
        assert_same(dict(models[0].state_dict()), before)


class TestFile:
    def test_eleven_components(self, tmp_path):
        q = Mixture([diagonal(seed=seed) for seed in range(11)])
        q.save(tmp_path / "q")
        assert_same(ba.load_posterior(tmp_path / "q").sample(11), q.sample(11))

    def test_hyperparameters_of_components_are_kept(self, tmp_path):
        q = Mixture(
            [*kinds(), Mixture([diagonal(low=1), low_rank()], hyperparameters={"inner": True})],
            hyperparameters={"lr": 0.1},
        )
        q.save(tmp_path / "q")
        loaded = ba.load_posterior(tmp_path / "q")
        assert [type(c) for c in loaded.components] == [type(c) for c in q.components]
        assert loaded.hyperparameters == q.hyperparameters
        assert loaded.hyperparameters["components"][0] == {"lr": 0.1}
        assert loaded.components[3].hyperparameters == {"inner": True, "components": [{"low": 1}, {}]}
