"""Batch norm statistics: those of a posterior and its file, of its mean, and of every sample."""

import warnings

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.testing import assert_close

import bayesadam as ba
from bayesadam.predictive import batch_norm
from modules import module_of
from posterior.kinds import around, draw

GAUSSIAN = ba.Gaussian(noise_precision=1.0)


def network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 5),
        nn.BatchNorm1d(5),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(5, 4),
        nn.BatchNorm1d(4),
        nn.Linear(4, 2),
    ).double()
    net(draw(50, 3, seed=9))  # running statistics of something else
    return net


def state(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}, [m.training for m in net.modules()]


def assert_unchanged(net, before):
    assert [m.training for m in net.modules()] == before[1]
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[0][name]), name
    assert {m.momentum for m in net.modules() if isinstance(m, nn.BatchNorm1d)} == {0.1}


def by_hand(net, weights, batches, x, shares=None):
    """Outputs of a network with batch norm, the statistics averages over the batches; no dropout."""
    counts = draw(len(batches)).new_tensor(shares or [1] * len(batches))

    def average(values):
        return torch.stack(values).T @ counts / counts.sum()

    def run(value, statistics, own):
        for index, layer in enumerate(net):
            if isinstance(layer, nn.Linear):
                value = value @ weights[f"{index}.weight"].T + weights[f"{index}.bias"]
            elif isinstance(layer, nn.BatchNorm1d):
                found = (value.mean(0), value.var(0, correction=0), value.var(0, correction=1))
                if own:
                    statistics.setdefault(index, []).append((found[0], found[2]))
                    center, spread = found[0], found[1]
                else:
                    center, spread = (average(s) for s in zip(*statistics[index], strict=True))
                value = (value - center) / (spread + layer.eps).sqrt()
                value = value * weights[f"{index}.weight"] + weights[f"{index}.bias"]
            elif isinstance(layer, nn.Tanh):
                value = value.tanh()
        return value

    statistics = {}
    for batch in batches:
        run(batch, statistics, own=True)
    return run(x, statistics, own=False)


def test_every_sample_has_statistics_of_its_own():
    net, x, like = network(), draw(7, 3), draw(600, 3, seed=1)
    q, before = around(net, 0.25), state(net)
    prediction = ba.predict(net, q, x, likelihood=GAUSSIAN, mc_samples=4, seed=3, batch_norm=like, batch_size=2)
    assert_unchanged(net, before)
    theta = q.sample(4, seed=3)
    parts = like.tensor_split(3)  # of 200
    for i in range(4):
        weights = {name: value[i] for name, value in theta.items()}
        assert_close(prediction.means[i], by_hand(net, weights, parts, x), rtol=1e-9, atol=1e-9)
    running = ba.predict(net, q, x, likelihood=GAUSSIAN, mc_samples=4, seed=3)
    assert not torch.allclose(prediction.means, running.means, atol=0.05)


def test_a_short_last_batch_is_left_out():
    net, x, like = network(), draw(7, 3), draw(58, 3, seed=1)
    options = {"likelihood": GAUSSIAN, "method": "mean"}
    q, loader = around(net, 0.25), torch.utils.data.DataLoader
    for size in (50, 56, 57):
        found = ba.predict(net, q, x, batch_norm=loader(like, size), **options).means
        assert_close(found, ba.predict(net, q, x, batch_norm=like[:size], **options).means)
    uneven = ba.predict(net, q, x, batch_norm=[like[:20], like[20:]], **options).means
    expected = by_hand(
        net, {n: p.detach() for n, p in net.named_parameters()}, [like[:20], like[20:]], x, shares=(20, 38)
    )
    assert_close(uneven[0], expected)


def test_a_layer_that_is_called_twice_has_the_statistics_of_both_calls():
    layer = nn.BatchNorm1d(2)
    model = module_of(lambda self, x: self.layer(x) + self.layer(10.0 - 3.0 * x), layer=layer)
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    batch_norm.estimate(model, [layer], map(batch_norm.Rows, (x[:8], x[8:])))
    parts = [part for rows in (x[:8], x[8:]) for part in (rows, 10.0 - 3.0 * rows)]
    weights = [len(part) / 24 for part in parts]
    for found, of in ((layer.running_mean, lambda part: part.mean(0)), (layer.running_var, lambda part: part.var(0))):
        assert torch.allclose(found, sum(weight * of(part) for weight, part in zip(weights, parts, strict=True)))
    assert layer.momentum == 0.1
    assert not layer._forward_pre_hooks


@pytest.mark.parametrize("method", ["mean", "linearized", "moments"])
def test_without_samples_they_are_those_of_the_mean(method):
    net, x, like = network(), draw(7, 3), draw(200, 3, seed=1)
    net = net[:3].append(nn.Linear(5, 2).double()) if method == "moments" else net
    q, before = around(net), state(net)
    prediction = ba.predict(net, q, x, likelihood=GAUSSIAN, method=method, batch_norm=like)
    assert_unchanged(net, before)
    running = ba.predict(net, q, x, likelihood=GAUSSIAN, method=method)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    update_bn([like], net)
    expected = ba.predict(net, q, x, likelihood=GAUSSIAN, method=method)
    assert_close(prediction.mean, expected.mean, rtol=1e-9, atol=1e-9)
    assert_close(prediction.epistemic, expected.epistemic, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(prediction.mean, running.mean, atol=0.01)


def rows(inputs):
    return [part.count for part in batch_norm._batches(inputs, torch.device("cpu"))]


def test_about_a_thousand_rows_are_used_spread_evenly():
    assert rows(draw(30, 3)) == [30]
    assert rows(draw(501, 3)) == [167] * 3
    assert rows(torch.utils.data.DataLoader(draw(2500, 3), 300)) == [300] * 4
    parts = list(batch_norm._batches(torch.arange(2500.0), torch.device("cpu")))
    assert torch.cat([part.batch for part in parts]).tolist() == [number * 5 // 2 for number in range(1000)]


def test_inputs_may_have_any_form():
    """With a keyword, and with something that has no rows."""
    net = module_of(lambda self, x, scale: self.inner(x * scale), inner=network())
    scale = torch.tensor(2.0, dtype=torch.float64)
    x, like, q = draw(7, 3), draw(600, 3, seed=1), around(net, 0.25)
    options = {"likelihood": GAUSSIAN, "mc_samples": 3}
    named = ba.predict(net, q, {"x": x, "scale": scale}, batch_norm={"x": like, "scale": scale}, **options)
    ordered = ba.predict(net, q, (x, scale), batch_norm=(like, scale), **options)
    plain = ba.predict(net.inner, around(net.inner, 0.25), 2 * x, batch_norm=2 * like, **options)
    assert_close(named.means, ordered.means, rtol=0, atol=0)
    assert_close(named.means, plain.means)


def test_errors_change_nothing():
    net, x = network(), draw(7, 3)
    q, before = around(net, 0.25), state(net)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        ba.predict(net, q, x, likelihood=GAUSSIAN, batch_norm=draw(20, 4))
    assert_unchanged(net, before)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        ba.predict(net, q, draw(7, 4), likelihood=GAUSSIAN, batch_norm=draw(20, 3))
    assert_unchanged(net, before)


X, Y = draw(40, 3, dtype=torch.float32), draw(40, dtype=torch.float32, seed=1).gt(0).long()
LOSS, CLASSES = nn.functional.cross_entropy, ba.Categorical()


def fresh(seed=7):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def trained(net, opt, steps=4):
    """Drop-in training by any optimiser."""
    net.train()
    for _ in range(steps):
        opt.zero_grad()
        LOSS(net(X), Y).backward()
        opt.step()
    return opt


def drop_in(net, **options):
    opt = ba.IVON(net.named_parameters(), lr=0.1, num_data=40, **options)
    opt.train()
    trained(net, opt).eval()
    return opt


def in_blocks(net):
    opt = ba.BayesAdam(net.named_parameters(), num_data=40, batch_size=40, total_steps=4)
    opt.attach(net)
    for _ in range(4):
        with opt.sampled_params():
            opt.zero_grad()
            LOSS(net(X), Y).backward()
        opt.step()
    return opt.posterior()


def dense_von(net):
    opt = ba.DenseVON(net.parameters(), num_data=40)
    opt.step(lambda: LOSS(net(X), Y))
    return opt.posterior(net)


def by_badam(net):
    return ba.badam(trained(net, torch.optim.Adam(net.parameters())), net, num_data=40, prior_precision=1.0)


def by_laplace(structure):
    def make(net):
        trained(net, torch.optim.Adam(net.parameters()))
        return ba.laplace(net, (X, Y), likelihood=CLASSES, structure=structure, prior_precision=1.0)

    return make


def swag(net):
    swag, sgd = ba.SWAG(net), torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        trained(net, sgd)
        swag.collect()
    return swag.posterior()


def variational(net):
    bayesian = ba.variational(net)
    for _ in range(3):
        bayesian(X)
    return bayesian.posterior()


def fawn(**options):
    def make(net):
        net(X)
        return ba.fawn(net.eval(), **options).posterior()

    return make


def last_layer(net):
    module = ba.variational_last_layer(net)
    net(X)
    return module.posterior()


def ensemble(net):
    other = fresh(1)
    for model in (net, other):
        trained(model, torch.optim.Adam(model.parameters()))
    return ba.ensemble([net, other])


def population(net):
    """Members whose batch norm has statistics of their own."""
    nets = [fresh(1).eval(), net.eval()]
    net[1].running_mean += 1
    members = ba.population.train(nets, (X, Y), likelihood=CLASSES, method="adam", epochs=1, batch_size=20)
    return members.posteriors[1]


def anchored(net):
    def make(model=None):
        model = fresh().eval() if model is None else model
        model[1].running_mean += 1
        return model

    make(net)
    return ba.anchored_ensemble(make, (X, Y), likelihood=CLASSES, members=2, steps=2, batch_size=20)


MAKERS = {
    "drop-in": lambda net: drop_in(net).posterior(net),
    "blocks": in_blocks,
    "DenseVON": dense_von,
    "badam": by_badam,
    "laplace": by_laplace("diagonal"),
    "laplace, last layer": by_laplace("last_layer"),
    "SWAG": swag,
    "Bayes by Backprop": variational,
    "FAWN": fawn(),
    "FAWN, Bernoulli": fawn(weights="bernoulli"),
    "variational last layer": last_layer,
    "ensemble": ensemble,
    "ensemble of one": lambda net: ba.ensemble([trained(net, torch.optim.Adam(net.parameters())) and net]),
    "merged": lambda net: ba.merge([in_blocks(net), in_blocks(fresh(1))]),
    "mixture": lambda net: ba.Mixture([in_blocks(net), in_blocks(fresh(1))]),
    "population": population,
    "anchored": anchored,
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_posterior_from_a_file_predicts_alone(name, tmp_path):
    """A new network with it gives the predictions of the trained one, whose statistics it has."""
    net, new = fresh(), fresh(2)
    q = MAKERS[name](net)
    buffers = {key: buffer.clone() for key, buffer in net.named_buffers()}
    q.save(tmp_path / "q.safetensors")
    loaded = ba.load_posterior(tmp_path / "q.safetensors")
    methods = ["monte_carlo", *["mean"] * (not isinstance(q, ba.Mixture))]
    for method in [*methods, *["linearized", "moments"] * isinstance(q, ba.DiagonalGaussian)]:
        options = {"likelihood": CLASSES, "mc_samples": 4, "batch_norm": None, "method": method}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*linearised network")
            pred = ba.predict(new, loaded, X, **options)
            assert_close(pred.probs, ba.predict(net, q, X, **options).probs)
    if name != "merged":  # whose statistics are averages
        with loaded.applied(new, 0):
            assert_close({key: buffer.clone() for key, buffer in new.named_buffers()}, buffers)


class TestAtTheMean:
    """``with_batch_norm``."""

    def test_are_those_of_the_network_at_the_mean_and_saved(self, tmp_path):
        net, new = fresh(), fresh(2)
        q, before = drop_in(net).posterior(net), state(net)
        ba.predictive.with_batch_norm(net, q, X).save(tmp_path / "q.safetensors")
        assert [tensor.tolist() for tensor in net.state_dict().values()] == [t.tolist() for t in before[0].values()]
        loaded = ba.load_posterior(tmp_path / "q.safetensors")
        update_bn([X], net)
        assert_close(dict(loaded.buffers), {key: b.clone() for key, b in net.named_buffers()})
        pred = ba.predict(new, loaded, X, likelihood=CLASSES, method="mean")
        assert_close(pred.probs[:, 1], net.eval()(X).softmax(-1)[:, 1].detach())
        assert q.buffers["1.running_mean"].ne(loaded.buffers["1.running_mean"]).all()

    def test_every_component_of_a_mixture_has_its_own(self):
        net = fresh()
        parts = [drop_in(fresh(seed), seed=seed).posterior() for seed in range(2)]
        mixture = ba.predictive.with_batch_norm(net, ba.Mixture(parts, hyperparameters={"a": 1}), X)
        for part, component in zip(parts, mixture.components, strict=True):
            assert_close(dict(component.buffers), dict(ba.predictive.with_batch_norm(net, part, X).buffers))
        assert mixture.hyperparameters["a"] == 1

    def test_members_of_an_ensemble_have_them(self):
        options = {"likelihood": CLASSES, "epochs": 2, "batch_size": 20, "members": 2, "progress": False}
        q = ba.train_ensemble(fresh, (X, Y), **options).components[0]
        assert_close(dict(q.buffers), dict(ba.predictive.with_batch_norm(fresh(), q, X).buffers))


MESSAGE = "^the network has batch norm layers whose statistics are averages over the weights in training"


@pytest.mark.parametrize("name", ["drop-in", "blocks", "DenseVON", "SWAG", "Bayes by Backprop", "merged", "mixture"])
@pytest.mark.parametrize("method", ["monte_carlo", "mean"])
def test_statistics_of_training_are_warned_of(name, method):
    """Unless they were computed again, here or for the posterior, or are wanted."""
    net = fresh()
    q, options = MAKERS[name](net), {"likelihood": CLASSES, "mc_samples": 2, "method": method}
    if name == "mixture" and method == "mean":
        return
    with pytest.warns(UserWarning, match=MESSAGE):
        ba.predict(net, q, X, **options)
    for statistics in (None, X):
        ba.predict(net, q, X, **options, batch_norm=statistics)
    ba.predict(net, ba.predictive.with_batch_norm(net, q, X).scaled(0.5), X, **options)


def test_statistics_that_random_weights_do_not_change_are_not_warned_of():
    net = fresh()
    net[:2].requires_grad_(False)
    ba.predict(net, drop_in(net).posterior(net), X, likelihood=CLASSES, mc_samples=2)
    net = fresh()
    ba.predict(net, by_badam(net), X, likelihood=CLASSES, mc_samples=2)


def test_of_a_posterior_without_a_network_are_those_of_the_network():
    net = fresh()
    q = drop_in(net).posterior()
    assert not q.buffers
    with pytest.warns(UserWarning, match=MESSAGE):
        ba.predict(net, q, X, likelihood=CLASSES, mc_samples=2)


def test_attach_adds_nothing_to_a_pass():
    net = fresh()
    ba.IVON(net.named_parameters(), num_data=40).attach(net)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
