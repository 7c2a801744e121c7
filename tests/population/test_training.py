"""Training as a whole: early stops, gradients that are not finite, callbacks, progress, and no traces."""

import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from bayesadam.curvature.perceptron import IN_PLACE, Perceptron
from bayesadam.curvature.totals import Scratch
from bayesadam.population import chunk, plain_layers
from population.conftest import ROUNDING, assert_same, rows_of, train
from population.problems import F64, NAN, draw, mlp, models_of, noise_of, regression

EPOCHS = 12


def run(epochs=EPOCHS, **changes):
    """Members that differ in everything: frozen weights, noise, rates, sizes."""
    models = models_of()
    for model in models:
        model[0].bias.requires_grad_(False)
    likelihood = [noise_of(precision) for precision in (16.0, 20.0, 9.0, 25.0)]
    options = {"epochs": epochs, "lr": [0.05, 0.002, 0.1, 0.02], "mc_samples": 2, "seed": 3, **changes}
    return models, train(models, regression(), likelihood, **options)


def held_out():
    return regression((9, 4, 6, 1), seed=50)


@pytest.fixture(scope="module")
def trajectory():
    """The population after 1, 2, ... epochs, each trained from the start, and its validation values."""
    steps, values = [], []
    for epochs in range(1, EPOCHS + 1):
        models, nets = run(epochs)
        parts = zip(models, nets.posteriors, nets.likelihoods, held_out(), strict=True)
        values.append(
            [-ba.predict(m, q, x, likelihood=p, mc_samples=16).log_prob(y).mean() for m, q, p, (x, y) in parts]
        )
        steps.append(nets)
    return steps, torch.tensor(values, dtype=F64).T


def stop(values, patience):
    """Epochs trained and number of the best one, counted from 1."""
    best, at = math.inf, 0
    for epoch, value in enumerate(values.tolist(), 1):
        if value < best:
            best, at = value, epoch
        if epoch - at >= patience:
            return epoch, at
    return len(values), at


class TestEarlyStop:
    @pytest.mark.parametrize(("patience", "chunk"), [(1, None), (2, 3), (4, 1)])
    def test_is_the_best_epoch_of_the_whole_trajectory(self, trajectory, patience, chunk):
        steps, values = trajectory
        _, nets = run(validation=held_out(), patience=patience, chunk=chunk)
        found = [stop(own, patience) for own in values]
        assert nets.epochs.tolist() == [epochs for epochs, _ in found]
        assert len({epochs for epochs, _ in found}) > 1
        assert nets.stopped == ["epochs" if epochs == EPOCHS else "patience" for epochs, _ in found]
        for member, (epochs, best) in enumerate(found):
            expected = rows_of(steps[best - 1], [member])
            torch.testing.assert_close(rows_of(nets, [member]), expected, **ROUNDING)
            for name, whole in (("validation", values[member]), ("loss", steps[-1].history["loss"][member])):
                expected = whole.clone()
                expected[epochs:] = NAN
                torch.testing.assert_close(nets.history[name][member], expected, equal_nan=True, **ROUNDING)

    def test_without_patience_it_only_watches(self, trajectory):
        steps, values = trajectory
        _, nets = run(validation=held_out())
        torch.testing.assert_close(nets.history.pop("validation"), values, **ROUNDING)
        assert_same(nets, steps[-1], ROUNDING)

    def test_nothing_good_gives_the_last(self):
        pair = draw(4, 3), torch.full((4, 2), math.inf, dtype=F64)
        data = regression()
        nets = train(models_of(), data, noise_of(4.0), epochs=9, validation=pair, patience=3, lr=0.02)
        assert nets.epochs.tolist() == [4] * 4
        assert nets.stopped == ["patience"] * 4
        assert nets.history["validation"][:, :4].eq(math.inf).all()
        last = train(models_of(), data, noise_of(4.0), epochs=4, lr=0.02)
        torch.testing.assert_close(rows_of(nets, slice(None)), rows_of(last, slice(None)), **ROUNDING)


class TestNotFinite:
    """Member 1 has a target that is not a number, in the second minibatch of its first epoch; it has three."""

    SEEDS = (5, 6, 7, 8)

    def problem(self, bad=NAN):
        data = regression((13, 12, 3, 20))
        row = population.order(12, seed=self.SEEDS[1], epoch=0)[6]
        data[1][1][row] = bad
        return models_of(), data, noise_of(4.0)

    @pytest.fixture(params=[False, True], ids=["cpu", "gpu"])
    def device(self, request, monkeypatch):
        """With the mask of a GPU, which is read after an epoch alone."""
        if request.param:
            monkeypatch.setattr(chunk, "_is_on_gpu", lambda tensor: True)

    @pytest.mark.usefixtures("device")
    @pytest.mark.parametrize(("bad", "size"), [(NAN, None), (math.inf, 1), (-math.inf, 3)])
    def test_raise_names_the_member(self, bad, size):
        message = "^the gradient of member 1 must be finite, got inf or nan in its step 1$"
        with pytest.raises(FloatingPointError, match=message):
            train(*self.problem(bad), epochs=2, seed=list(self.SEEDS), chunk=size)

    @pytest.mark.usefixtures("device")
    @pytest.mark.parametrize("method", ["von", "ngvi", "natural_von"])
    def test_raise_without_a_correction(self, method):
        with pytest.raises(FloatingPointError, match="^the gradient of member 1 must be finite"):
            train(*self.problem(), epochs=2, seed=list(self.SEEDS), method=method, correction=None)

    @pytest.mark.usefixtures("device")
    @pytest.mark.parametrize("method", population.METHODS)
    def test_stop_keeps_the_last_good_one(self, method):
        models, data, likelihood = self.problem(math.inf if method == "vadam" else NAN)
        planned = {"total_steps": 9, "temperature": 0.1} if method == "bayesadam" else {}
        options = {"method": method, "epochs": 3, "lr": 0.02, **planned}
        nets = train(models, data, likelihood, seed=list(self.SEEDS), nonfinite="skip", **options)
        assert nets.stopped == ["epochs", "nonfinite", "epochs", "epochs"]
        assert nets.epochs.tolist() == [3, 1, 3, 3]
        assert nets.history["loss"].isfinite().all(1).tolist() == [True, False, True, True]
        others = [0, 2, 3]
        alone = train(
            *([part[i] for i in others] for part in (models, data)),
            likelihood,
            seed=[self.SEEDS[i] for i in others],
            **options,
        )
        torch.testing.assert_close(rows_of(nets, others), rows_of(alone, [0, 1, 2]), **ROUNDING)
        order = population.order(12, seed=self.SEEDS[1], epoch=0)
        first = tuple(t[order[:5]] for t in data[1])  # its only step, whose order does not matter
        before = train([models[1]], first, likelihood, seed=self.SEEDS[1], num_data=12, **options | {"epochs": 1})
        torch.testing.assert_close(rows_of(nets, [1]), rows_of(before, [0]), rtol=1e-10, atol=1e-12)
        assert len(nets.posteriors) == 4


class TestOnEpoch:
    def test_on_epoch(self):
        seen = []
        options = {"lr": 0.02, "chunk": 3}
        train(models_of(), regression(), noise_of(4.0), epochs=3, on_epoch=lambda *now: seen.append(now), **options)
        chunks = [3, 0], [1, 2]  # by falling number of minibatches, in chunks of the same size
        assert [call[:2] for call in seen] == [(epoch, members) for members in chunks for epoch in range(3)]
        for epoch, members, nets in seen:
            after = train(models_of(), regression(), noise_of(4.0), epochs=epoch + 1, **options)
            assert len(nets) == len(members)
            torch.testing.assert_close(rows_of(nets, slice(None)), rows_of(after, members), **ROUNDING)
            expected = torch.cat([after.history["loss"][members], torch.full((len(members), 2 - epoch), NAN)], dim=1)
            torch.testing.assert_close(nets.history["loss"], expected, equal_nan=True, **ROUNDING)
            assert nets.epochs.tolist() == [epoch + 1] * len(members)

    def test_on_epoch_may_do_as_it_likes(self):
        def spoil(epoch, members, nets):
            nets.predict(draw(2, 3))
            members.clear()
            for value in (*nets.mean.values(), *nets.variance.values()):
                value.zero_()

        spoilt, own = (
            train(models_of(), regression(), noise_of(4.0), epochs=3, on_epoch=call) for call in (spoil, None)
        )
        assert_same(spoilt, own)


def test_initialize():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        population.initialize(lambda: 1 / 0, seeds=[1])
    assert torch.get_rng_state().equal(before)
    models = population.initialize(mlp, seeds=[3, 0, 2**40])
    assert torch.get_rng_state().equal(before)
    for seed, model in zip([3, 0, 2**40], models, strict=True):
        torch.manual_seed(seed)
        torch.testing.assert_close(model.state_dict(), mlp().state_dict(), rtol=0, atol=0)
    torch.set_rng_state(before)


def test_leaves_no_trace():
    models, data, likelihood = models_of(), regression(), noise_of(4.0, learned=True)
    models[0].train(False)
    models[0][1].train()
    modes = [[module.training for module in model.modules()] for model in models]
    prior = train(models, data, likelihood, epochs=1).posteriors
    given = copy.deepcopy((models, data, likelihood, [q.tensors() for q in prior]))
    states = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    nets = train(models, data, likelihood, epochs=2, prior=prior, validation=data, patience=1)
    nets.predict(data[0][0])
    assert torch.get_rng_state().equal(states[0])
    assert (random.getstate(), repr(np.random.get_state())) == states[1:]  # noqa: NPY002
    for model, before in zip([*models, likelihood], [*given[0], given[2]], strict=True):
        torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=0)
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        assert not any(module._forward_hooks for module in model.modules())
    assert modes == [[module.training for module in model.modules()] for model in models]
    torch.testing.assert_close((data, [q.tensors() for q in prior]), (given[1], given[3]), rtol=0, atol=0)


@pytest.mark.parametrize("progress", [True, None])
def test_progress(progress, capsys):
    """Nothing is shown by default where there is no terminal."""
    population.train(models_of(), regression(), likelihood=noise_of(4.0), epochs=2, batch_size=5, progress=progress)
    out, err = capsys.readouterr()
    assert out == ""
    assert all(word in err for word in ("training", "100%", "loss")) if progress else err == ""


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_tanh_of_training_is_tanh_up_to_rounding(dtype):
    ends = torch.tensor([-math.inf, -1e4, 0.0, 1e4, math.inf])
    x = torch.cat([ends, torch.linspace(-20.0, 20.0, 10_001), 10.0 ** torch.linspace(-30.0, 0.0, 100)]).to(dtype)
    forward_, backward_ = IN_PLACE[nn.Tanh]
    found, expected = forward_(x.clone()), x.double().tanh()
    assert (found - expected).abs().max() <= 2.0 * torch.finfo(dtype).eps
    slope = backward_(torch.ones_like(x), found)
    assert (slope - (1.0 - expected.square())).abs().max() <= 4.0 * torch.finfo(dtype).eps


def test_results_in_used_memory_are_those_in_fresh_memory():
    """Minibatches of several sizes in turn, as at the end of an epoch, and fewer members than before."""
    draw = torch.Generator().manual_seed(0)
    layers, memory = plain_layers(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2), nn.ReLU())), Scratch()
    shapes = {"0.weight": (5, 3), "0.bias": (5,), "2.weight": (2, 5), "2.bias": (2,)}
    for members, rows in ((4, 9), (4, 2), (3, 9), (4, 11)):
        weights = {name: torch.randn(members, 2, *shape, generator=draw) for name, shape in shapes.items()}
        x, slope = (torch.randn(*size, generator=draw) for size in ((members, rows, 3), (members, 2, rows, 2)))
        with torch.no_grad():
            used, fresh = (Perceptron(layers, weights, x, scratch=own) for own in (memory, Scratch()))
        assert used.output.equal(fresh.output)
        pairs = zip(used.backward(slope.clone(), squares=True), fresh.backward(slope, squares=True), strict=True)
        for ours, theirs in pairs:
            assert all(map(torch.equal, ours, theirs))
