"""Kronecker-factored curvatures against slow loops in float64, and what follows from them against dense matrices."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam.curvature import factors as factors_module
from bayesadam.likelihoods import fallbacks
from bayesadam.posthoc import LaplaceApproximation, laplace
from bayesadam.posthoc import kronecker as kronecker_module
from bayesadam.posthoc import trained_network as network_module
from modules import module_of
from posthoc.models import (
    CASES,
    F64,
    N,
    case,
    classes,
    draw,
    expected_hessian,
    gaussian,
    points,
    slow_log_likelihood,
    slow_matrix,
)

EXACT = {"rtol": 1e-10, "atol": 1e-10}
BOTH = pytest.mark.parametrize("curvature", ["ggn", "empirical_fisher"])
STRUCTURES = pytest.mark.parametrize("structure", ["kron", "last_layer_kron"])


def slow_factors(model, x, y, likelihood, curvature):
    """``(B, A)`` of every linear and convolutional layer by its name, position by position."""
    seen, found, counts = {}, {}, {}

    def look(name):
        def hook(module, args, output):
            outputs = output.movedim(1, -1) if isinstance(module, nn.Conv2d) else output
            rows = args[0].detach().reshape(-1, args[0].shape[-1])
            if isinstance(module, nn.Conv2d):
                options = {"padding": module.padding, "stride": module.stride, "dilation": module.dilation}
                rows = F.unfold(args[0].detach(), module.kernel_size, **options).mT.flatten(0, 1)
            size, width = outputs.shape[-1], rows.shape[1]
            _, a = found.setdefault(name, (torch.zeros(size, size, **F64), torch.zeros(width, width, **F64)))
            for row in rows:
                a += torch.outer(row, row)
            counts[name] = counts.get(name, 0) + len(rows)
            seen[name] = output
            return output.clone()  # which may be changed in place

        return hook

    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    handles = [module.register_forward_hook(look(name)) for name, module in layers.items()]

    def at_positions(value, name):
        (g,) = torch.autograd.grad(value, seen[name], retain_graph=True, allow_unused=True, materialize_grads=True)
        g = g.movedim(1, -1) if isinstance(layers[name], nn.Conv2d) else g
        return g.reshape(-1, g.shape[-1])

    for output, target in points(model, x, y, likelihood):
        for name in layers:
            if curvature == "empirical_fisher":
                g = at_positions(likelihood.log_prob(output[None], target[None])[0], name)
                found[name][0].add_(g.T @ g)
            else:
                rows = torch.stack([at_positions(value, name) for value in output.reshape(-1)])
                hessian = expected_hessian(likelihood, output.detach())
                for position in rows.unbind(1):
                    found[name][0].add_(position.T @ hessian @ position)
    for handle in handles:
        handle.remove()
    return {name: (b, a / counts[name]) for name, (b, a) in found.items()}


def slow_blocks(model, x, y, likelihood, curvature="ggn"):
    """The curvature of every tensor as a dense matrix, by name."""
    factors = slow_factors(model, x, y, likelihood, curvature)
    whole, start, found = slow_matrix(model, x, y, likelihood, curvature).diagonal(), 0, {}
    for name, parameter in model.named_parameters():
        layer, _, local = name.rpartition(".")
        own = whole[start : start + parameter.numel()]
        start += parameter.numel()
        b, a = factors.get(layer, (None, None))
        found[name] = own.diag() if b is None else torch.kron(b, a) if local == "weight" else b
    return found


def dense(fitted, blocks, prior, scale=1.0):
    """The posterior with these blocks."""
    precision = torch.block_diag(*blocks.values()) * scale
    return ba.DenseGaussian.from_precision(fitted.mean, precision + prior * torch.eye(len(precision), **F64))


def matrices(curvature):
    """The curvature of every tensor as a dense matrix, by name, from what was found."""
    found = {name: value.flatten().double().diag() for name, value in curvature.diagonal.items()}
    for layer in curvature.layers:
        if layer.weight is not None:
            found[layer.weight] = torch.kron(layer.outputs, layer.inputs)
        if layer.bias is not None:
            found[layer.bias] = layer.outputs
    return found


def same(found, expected, **tolerance):
    torch.testing.assert_close(found, expected, **(tolerance or EXACT))


class TestFactors:
    @pytest.mark.parametrize("name", list(CASES))
    @BOTH
    def test_are_those_of_the_slow_loop(self, name, curvature):
        model, x, y, likelihood = case(name)
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="kron", curvature=curvature)
        expected = slow_blocks(model, x, y, likelihood, curvature)
        same(matrices(fitted.curvature), expected)
        assert fitted.log_likelihood == pytest.approx(slow_log_likelihood(model, x, y, likelihood), rel=1e-12)
        assert fitted.random == tuple(fitted.mean)
        options = {"structure": "last_layer_kron", "curvature": curvature}
        last = LaplaceApproximation(model, (x, y), likelihood=likelihood, **options)
        same(matrices(last.curvature), {key: expected[key] for key in last.random})
        assert len(last.random) == 2

    @BOTH
    def test_of_any_linear_layer(self, curvature):
        model, x, y, likelihood = case("categorical")
        for layer, names in (("0", ("0.weight", "0.bias")), ("2", ("2.weight",))):
            options = {"structure": "last_layer_kron", "curvature": curvature, "last_layer": layer}
            fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, **options)
            assert fitted.random == names
            expected = slow_blocks(model, x, y, likelihood, curvature)
            same(matrices(fitted.curvature), {key: expected[key] for key in names})

    def test_of_a_linear_model_are_exact(self):
        """With one layer and no bias the curvature of a regression is a Kronecker product."""
        model, x, y = nn.Linear(3, 2, bias=False).double(), draw(N, 3), draw(N, 2, seed=5)
        fits = [
            LaplaceApproximation(model, (x, y), likelihood=gaussian([0.5, 3.0]), structure=structure)
            for structure in ("full", "kron", "last_layer_kron")
        ]
        for fitted in fits[1:]:
            same(matrices(fitted.curvature), {"weight": fits[0].curvature})
            theirs, ours = fits[0].posterior(2.0), fitted.posterior(2.0)
            torch.testing.assert_close(ours._scale(ours.mean), theirs.scale_tril, **EXACT)
            evidence = fits[0].log_marginal_likelihood(0.3)
            assert fitted.log_marginal_likelihood(0.3) == pytest.approx(evidence, rel=1e-12)

    @pytest.mark.parametrize("options", [{"stride": 2, "padding": 1, "dilation": 2}, {"padding": "same"}])
    def test_of_convolutions_of_every_kind(self, options):
        layers = nn.Conv2d(2, 3, 3, **options), nn.Tanh(), nn.Flatten()
        x = draw(N, 2, 5, 6)
        width = nn.Sequential(*layers)(x.float()).shape[1]
        model = nn.Sequential(*layers, nn.Linear(width, 3)).double()
        fitted = LaplaceApproximation(model, (x, classes(N)), likelihood=ba.Categorical(), structure="kron")
        if options == {"padding": "same"}:
            model[0].padding = (1, 1)  # which the reference needs as numbers
        same(matrices(fitted.curvature), slow_blocks(model, x, classes(N), ba.Categorical()))

    @pytest.mark.parametrize("axes", [1, 3])
    def test_of_convolutions_of_other_dimensions_are_those_of_two(self, axes):
        """Axes of length 1 are of no importance."""
        flat = nn.Sequential(nn.Conv2d(2, 3, (1, 3) if axes == 1 else (2, 3)), nn.Flatten(), nn.LazyLinear(3)).double()
        x = draw(N, 2, 1, 6) if axes == 1 else draw(N, 2, 4, 5)
        flat(x)
        conv = nn.Conv1d(2, 3, 3) if axes == 1 else nn.Conv3d(2, 3, (1, 2, 3))
        other = nn.Sequential(conv, nn.Flatten(), nn.Linear(flat[2].in_features, 3)).double()
        with torch.no_grad():
            for own, value in zip(other.parameters(), flat.parameters(), strict=True):
                own.copy_(value.view_as(own))
        options = {"likelihood": ba.Categorical(), "structure": "kron"}
        expected = LaplaceApproximation(flat, (x, classes(N)), **options)
        found = LaplaceApproximation(other, (x.squeeze(2) if axes == 1 else x.unsqueeze(2), classes(N)), **options)
        same(matrices(found.curvature), matrices(expected.curvature))

    @BOTH
    @STRUCTURES
    def test_are_sums_over_batches_and_parts_of_them(self, structure, curvature, monkeypatch):
        model, x, y, likelihood = case("categorical")
        options = {"likelihood": likelihood, "structure": structure, "curvature": curvature}
        whole = LaplaceApproximation(model, (x, y), **options)
        for data, size in (((x, y), 2), (DataLoader(TensorDataset(x, y), batch_size=4), None)):
            same(
                matrices(LaplaceApproximation(model, data, batch_size=size, **options).curvature),
                matrices(whole.curvature),
            )
        monkeypatch.setattr(network_module, "FACTOR_BYTES", 100)
        monkeypatch.setattr(fallbacks, "FACTORS", 40)
        same(matrices(LaplaceApproximation(model, (x, y), **options).curvature), matrices(whole.curvature))
        if structure == "last_layer_kron":
            first = {"last_layer": "0", **options}
            cut = LaplaceApproximation(model, (x, y), **first)
            monkeypatch.undo()
            same(matrices(cut.curvature), matrices(LaplaceApproximation(model, (x, y), **first).curvature))

    def test_what_has_no_factors_has_the_diagonal(self):
        """Layers with groups, called twice, with shared or frozen weights, unused or not of a layer at all."""

        def forward(self, x):
            x = self.grouped(x.unsqueeze(-1)).squeeze(-1).tanh()
            x = self.twice(self.twice(x).tanh()).tanh()
            x = self.b(self.a(x).tanh()).tanh()
            return self.last(self.frozen(x).tanh())

        layers = {name: nn.Linear(4, 4) for name in ("twice", "a", "b", "frozen")}
        layers |= {"grouped": nn.Conv1d(4, 4, 1, groups=2), "last": nn.Linear(4, 3), "unused": nn.Linear(2, 2)}
        layers["b"].weight = layers["a"].weight
        layers["frozen"].weight.requires_grad_(False)
        layers["last"].bias.requires_grad_(False)
        model, x, y = module_of(forward, **layers).double(), draw(N, 4), classes(N)
        fitted = LaplaceApproximation(model, (x, y), likelihood=ba.Categorical(), structure="kron")
        layers = [(layer.weight, layer.bias) for layer in fitted.curvature.layers]
        assert layers == [(None, "a.bias"), (None, "b.bias"), (None, "frozen.bias"), ("last.weight", None)]
        whole, start = slow_matrix(model, x, y, ba.Categorical(), "ggn").diagonal(), 0
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                own = whole[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
                if name in fitted.curvature.diagonal:
                    torch.testing.assert_close(fitted.curvature.diagonal[name], own, **EXACT)
                elif name != "last.weight":  # without positions a bias' block is exact
                    found = matrices(fitted.curvature)[name].diagonal()
                    torch.testing.assert_close(found, own, **EXACT)
        assert not fitted.curvature.diagonal["unused.weight"].any()
        q = fitted.posterior(3.0)
        torch.testing.assert_close(q.variance["unused.bias"], torch.full((2,), 1 / 3, **F64), **EXACT)
        assert list(q.mean) == [name for name, p in model.named_parameters() if p.requires_grad]

    @BOTH
    @pytest.mark.parametrize("options", [{"structure": "kron"}, {"structure": "last_layer_kron", "last_layer": "0"}])
    def test_of_sequences_without_their_padding(self, curvature, options):
        """As if the targets that count were rows, also where a ReLU is dead."""
        model = nn.Sequential(nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 3)).double()
        x, y = draw(7, 4, 3), classes(7, 4)
        y[:, 2:] = y[1] = -100
        counted = y != -100
        assert (model[:2](x)[counted] == 0).any()
        options = {"likelihood": ba.Categorical(), "curvature": curvature, **options}
        found, expected = (LaplaceApproximation(model, d, **options) for d in ((x, y), (x[counted], y[counted])))
        same(matrices(found.curvature), matrices(expected.curvature))

    @pytest.mark.parametrize(
        "options", [{"structure": "kron"}, {"structure": "last_layer_kron", "last_layer": "first"}]
    )
    def test_of_ignored_positions_on_which_others_depend(self, options):
        layers = {"first": nn.Linear(3, 2), "last": nn.Linear(2, 3)}
        causal = module_of(lambda self, x: self.last(self.first(x).cumsum(1)), **layers).double()
        x, y = draw(7, 4, 3), classes(7, 4)
        y[:, [0, 3]] = -100
        fitted = LaplaceApproximation(causal, (x, y), likelihood=ba.Categorical(), **options)
        rows = x[:, :3].reshape(-1, 3)
        torch.testing.assert_close(fitted.curvature.layers[0].inputs, rows.T @ rows / len(rows), **EXACT)

    def test_of_a_layer_that_is_called_once_only_at_times(self):
        layers = {"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)}
        sometimes = module_of(lambda self, x: self.b(self.a(self.a(x) if len(x) == 4 else x)), **layers).double()
        message = r"^module 'a' \(Linear\) must be called equally often in all forward passes, got some with one call$"
        with pytest.raises(RuntimeError, match=message):
            LaplaceApproximation(
                sometimes, (draw(N, 3), classes(N)), likelihood=ba.Categorical(), structure="kron", batch_size=4
            )


class TestManyClasses:
    """No matrix for a data point is formed."""

    def test_last_layer(self, monkeypatch):
        whole = ba.Categorical.fisher_factor

        def of_one_row(self, output, target):
            assert len(output) == 1
            return whole(self, output, target)

        monkeypatch.setattr(ba.Categorical, "fisher_factor", of_one_row)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 300))
        x, y = draw(20, 4).float(), classes(20, count=300)
        fitted = LaplaceApproximation(model, (x, y), likelihood=ba.Categorical(), structure="last_layer_kron")
        p = model(x).detach().double().softmax(-1)
        expected = sum(row.diag() - torch.outer(row, row) for row in p)
        torch.testing.assert_close(fitted.curvature.layers[0].outputs, expected, rtol=1e-5, atol=1e-6)

    def test_all_layers(self, monkeypatch):
        """One backward pass per class, whatever the number of rows, and no outer product of the outputs' gradients."""
        model, x, y, likelihood = case("categorical")
        expected = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="kron")
        columns, passes, sizes = network_module.Hessians.columns, [], []

        def counted(hessians):
            vectors, count = columns(hessians)
            passes.append(count)
            return vectors, count

        def added(total, gradients, add=factors_module._added):
            sizes.append(len(gradients))
            return add(total, gradients)

        monkeypatch.setattr(network_module, "FACTOR_BYTES", 100)
        monkeypatch.setattr(network_module.Hessians, "columns", counted)
        monkeypatch.setattr(factors_module, "_added", added)
        found = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="kron")
        same(matrices(found.curvature), matrices(expected.curvature))
        assert passes == [4]
        assert 4 not in sizes

    @pytest.mark.parametrize("shape", [(5, 4), (3, 2, 4)])
    def test_sum_of_hessians(self, shape):
        z, y = 3 * draw(*shape), classes(*shape[:-1], count=4)
        expected = sum(expected_hessian(ba.Categorical(), row) for row in z.flatten(0, -2))
        for likelihood, scale in ((ba.Categorical(), 1.0), (ba.Categorical().tempered(2.0), 2.0)):
            found = likelihood.fisher_sum(scale * z, y)
            torch.testing.assert_close(found, expected / scale**2, **EXACT)
        likelihood = gaussian([0.5, 3.0])
        found = likelihood.fisher_sum(draw(5, 2), draw(5, 2))
        torch.testing.assert_close(found, torch.full((1, 1), 17.5, **F64), **EXACT)


class TestPosterior:
    @pytest.mark.parametrize("name", ["convnet", "outputs"])
    def test_is_the_inverse_of_the_precision(self, name):
        model, x, y, likelihood = case(name)
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="kron")
        blocks = slow_blocks(model, x, y, likelihood)
        q = fitted.posterior(0.7, temperature=0.5)
        assert isinstance(q, ba.KroneckerGaussian)
        reference = dense(fitted, blocks, 0.7, 2.0)
        factor = q._scale(q.mean)
        torch.testing.assert_close(factor @ factor.T, reference.covariance, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(q.log_prob(q.sample(3)), reference.log_prob(q.sample(3)), rtol=1e-9, atol=1e-9)
        other = fitted.posterior(5.0)
        assert all(other.left[key] is q.left[key] for key in q.left)
        told = {"method": "laplace", "structure": "kron", "curvature": "ggn"}
        assert other.hyperparameters == {
            **told,
            "num_data": fitted.num_data,
            "prior_precision": 5.0,
            "temperature": 1.0,
        }

    @pytest.mark.parametrize("name", ["convnet", "outputs"])
    def test_marginal_likelihood(self, name):
        model, x, y, likelihood = case(name)
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="kron")
        curvature = torch.block_diag(*slow_blocks(model, x, y, likelihood).values())
        theta = torch.cat([value.flatten() for value in fitted.mean.values()])

        def evidence(prior):
            precision = curvature + prior * torch.eye(len(curvature), **F64)
            value = -0.5 * (prior * theta.square().sum() + precision.logdet() - len(theta) * math.log(prior))
            return fitted.log_likelihood + value.item()

        for prior in (0.1, 2.0, 30.0):
            assert fitted.log_marginal_likelihood(prior) == pytest.approx(evidence(prior), rel=1e-9)
        best = fitted.best_prior_precision()
        assert evidence(best) > max(evidence(0.99 * best), evidence(1.01 * best))
        q = laplace(model, (x, y), likelihood=likelihood, structure="kron", prior_precision="marginal_likelihood")
        assert q.hyperparameters["prior_precision"] == best

    def test_of_the_last_layer(self, tmp_path):
        model, x, y, likelihood = case("convnet")
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="last_layer_kron")
        q = fitted.posterior(2.0)
        assert isinstance(q, ba.posterior.PartialGaussian)
        assert isinstance(q.random, ba.KroneckerGaussian)
        assert list(q.mean) == [name for name, _ in model.named_parameters()]
        assert q.hyperparameters["last_layer"] == "5"
        assert q.hyperparameters["structure"] == "last_layer_kron"
        curvature = torch.block_diag(*(slow_blocks(model, x, y, likelihood)[name] for name in fitted.random))
        expected = (curvature + 2.0 * torch.eye(len(curvature), **F64)).inverse()
        factor = q.random._scale(q.random.mean)
        torch.testing.assert_close(factor @ factor.T, expected, rtol=1e-8, atol=1e-10)
        q.save(tmp_path / "q")
        loaded = ba.load_posterior(tmp_path / "q")
        assert all(torch.equal(value, loaded.sample(2)[name]) for name, value in q.sample(2).items())


@pytest.mark.parametrize("name", ["categorical", "outputs", "summed"])
def test_predictions_are_linearized_and_exact(name):
    model, x, y, likelihood = case(name)
    fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="kron")
    found = matrices(fitted.curvature)
    reference = dense(fitted, {key: found[key] for key in fitted.mean}, 2.0)
    options = {"likelihood": likelihood, "mc_samples": 3}
    ours = ba.predict(model, fitted.posterior(2.0), x, **options)
    expected = ba.predict(model, reference, x, method="linearized", **options)
    covariance = "epistemic_covariance" if name == "outputs" else "covariance"
    torch.testing.assert_close(getattr(ours, covariance), getattr(expected, covariance), **EXACT)


@STRUCTURES
def test_layers_that_are_too_wide(structure, monkeypatch):
    monkeypatch.setattr(kronecker_module, "MAX_WEIGHTS", 3)
    model, x, y, likelihood = case("categorical")
    name, side = ("0", "5 outputs") if structure == "kron" else ("4", "4 outputs")
    message = (
        "^structure must be 'diagonal' or 'last_layer' where a factor would have more than 3 rows, "
        f"got '{structure}' for {side} of '{name}', which is 0.0 GB$"
    )
    for _ in range(2):  # no hooks are left
        with pytest.raises(ValueError, match=message):
            LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure)
    assert not any(m._forward_hooks for m in model.modules())
