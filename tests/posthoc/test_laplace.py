"""Curvatures against slow loops in float64, and posteriors and evidence against exactly solvable models."""

import json
import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam.functional.outputs import softmax_factor
from bayesadam.modules.last_layer import is_plain_linear
from bayesadam.posterior.partial import PartialGaussian
from bayesadam.posthoc import LaplaceApproximation, laplace
from bayesadam.posthoc import trained_network as network_module
from bayesadam.predictive.jacobian import Pulled
from modules import module_of
from posterior.kinds import EXACT, flat
from posthoc.models import (
    CASES,
    F64,
    N,
    case,
    classes,
    convnet,
    draw,
    gaussian,
    mlp,
    slow_log_likelihood,
    slow_matrix,
    squeezed,
)
from predictive.networks import assert_unchanged, snapshot

BOTH = pytest.mark.parametrize("curvature", ["ggn", "empirical_fisher"])
STRUCTURES = pytest.mark.parametrize("structure", ["diagonal", "full", "last_layer"])
EVERY = pytest.mark.parametrize("name", list(CASES))


@pytest.fixture(scope="module")
def references():
    """The slow matrices, each computed once."""
    found = {}

    def reference(name, curvature):
        if (name, curvature) not in found:
            found[name, curvature] = slow_matrix(*case(name), curvature)
        return found[name, curvature]

    return reference


def values(fitted):
    """What was found, as one tensor."""
    return flat(fitted.curvature) if isinstance(fitted.curvature, dict) else fitted.curvature


def part(structure, matrix, size):
    return matrix.diagonal() if structure == "diagonal" else matrix[-size:, -size:]


class TestCurvature:
    @EVERY
    @BOTH
    @STRUCTURES
    def test_is_that_of_the_slow_loop(self, name, curvature, structure, references):
        model, x, y, likelihood = case(name)
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure, curvature=curvature)
        whole, found = references(name, curvature), values(fitted)
        torch.testing.assert_close(found, part(structure, whole, len(found)), **EXACT)
        assert len(found) == sum(fitted.mean[key].numel() for key in fitted.random)
        assert (len(found) == len(whole)) == (structure != "last_layer")
        assert fitted.log_likelihood == pytest.approx(slow_log_likelihood(model, x, y, likelihood), rel=1e-12)
        assert fitted.num_data == (y.numel() if isinstance(likelihood, ba.Categorical) else len(x))
        assert list(fitted.mean) == [n for n, _ in model.named_parameters()]

    @BOTH
    @pytest.mark.parametrize(("layer", "start", "stop"), [("0", 0, 20), ("2", 20, 45)])
    def test_any_linear_layer(self, layer, start, stop, curvature, references):
        model, x, y, likelihood = case("categorical")
        options = {"structure": "last_layer", "curvature": curvature, "last_layer": layer}
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, **options)
        block = references("categorical", curvature)[start:stop, start:stop]
        torch.testing.assert_close(fitted.curvature, block, **EXACT)

    @STRUCTURES
    def test_is_a_sum_over_batches_whatever_they_are(self, structure):
        model, x, y, likelihood = case("outputs")
        options = {"likelihood": likelihood, "structure": structure}
        whole = LaplaceApproximation(model, (x, y), **options)
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        for other in (
            LaplaceApproximation(model, (x, y), batch_size=2, **options),
            LaplaceApproximation(model, loader, **options),
        ):
            assert other.num_data == whole.num_data == N
            assert other.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-12)
            torch.testing.assert_close(values(other), values(whole), **EXACT)

    @BOTH
    @STRUCTURES
    @pytest.mark.parametrize("name", ["categorical", "tokens", "summed", "labels", "heteroscedastic"])
    def test_memory_is_bounded_for_any_number_of_outputs(self, name, structure, curvature, references, monkeypatch):
        """The factors of the Hessians of several rows never take more than the limit; the result is the same."""
        model, x, y, likelihood = case(name)
        largest, factor = 0, network_module.Hessians.factor

        def watched(hessians, count=None):
            nonlocal largest
            result = factor(hessians, count)
            largest = max(largest, result.numel() if len(result) > 1 else 0)
            return result

        monkeypatch.setattr(network_module.Hessians, "factor", watched)
        monkeypatch.setattr(network_module, "FACTOR_BYTES", 400)
        options = {"likelihood": likelihood, "structure": structure, "curvature": curvature}
        found = values(LaplaceApproximation(model, (x, y), **options))
        torch.testing.assert_close(found, part(structure, references(name, curvature), len(found)), **EXACT)
        assert largest * 8 <= 400

    @pytest.mark.parametrize(("mapped", "batch_size"), [(True, None), (True, 3), (False, 6)])
    def test_full_with_a_shared_tensor_that_is_as_long_as_a_batch(self, batch_size, mapped):
        anchors = draw(3, 2, seed=1)

        def forward(self, x, anchors=anchors):
            z = self.model((-torch.cdist(x, anchors).square()).exp())
            return z if mapped or z.sum().item() > -1e9 else -z

        kernel = module_of(forward, model=mlp())
        x, (_, _, y, likelihood) = draw(N, 2), case("categorical")
        data = ((x, anchors), y)
        fitted = LaplaceApproximation(kernel, data, likelihood=likelihood, structure="full", batch_size=batch_size)
        torch.testing.assert_close(fitted.curvature, slow_matrix(kernel, x, y, likelihood, "ggn"), **EXACT)

    def test_full_goes_on_row_by_row_when_memory_runs_out(self, monkeypatch, references):
        def no_memory(*args):
            raise torch.OutOfMemoryError

        monkeypatch.setattr(Pulled, "_by_map", no_memory)
        model, x, y, likelihood = case("categorical")
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="full")
        torch.testing.assert_close(fitted.curvature, references("categorical", "ggn"), **EXACT)

    @STRUCTURES
    def test_num_data_scales_curvature_and_likelihood(self, structure):
        model, x, y, likelihood = case("categorical")
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure)
        scaled = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure, num_data=900)
        torch.testing.assert_close(100 * values(fitted), values(scaled), **EXACT)
        assert scaled.num_data == 900
        assert scaled.log_likelihood == pytest.approx(100 * fitted.log_likelihood)

    @STRUCTURES
    def test_frozen_weights_are_left_out_and_unused_ones_are_flat(self, structure, references):
        model, x, y, likelihood = case("categorical")
        model[0].weight.requires_grad_(False)
        model.register_module("5", nn.Identity())
        model[5].register_parameter("unused", nn.Parameter(torch.ones(2, **F64)))
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure)
        assert list(fitted.mean) == ["0.bias", "2.weight", "4.weight", "4.bias", "5.unused"]
        if structure == "last_layer":
            assert fitted.random == ("4.weight", "4.bias")
        else:
            whole = torch.block_diag(references("categorical", "ggn")[15:, 15:], torch.zeros(2, 2))
            torch.testing.assert_close(values(fitted), part(structure, whole, len(whole)), **EXACT)

    @STRUCTURES
    def test_inputs_of_several_tensors_and_outputs_in_a_box(self, structure):
        def forward(self, x, shift=None, scale=1.0):
            x, shift = (x["x"], x["shift"]) if isinstance(x, dict) else (x, shift)
            return {"logits": self.model(x + shift) * scale}

        _, x, y, likelihood = case("categorical")
        shift, box = draw(N, 3, seed=9), module_of(forward, model=mlp())
        options = {"likelihood": likelihood, "structure": structure}
        plain = LaplaceApproximation(mlp(), (x + shift, y), **options)
        loader = DataLoader(TensorDataset(x, shift, y), batch_size=4)
        for data in (
            ((x, shift), y),
            ({"x": x, "shift": shift, "scale": 1.0}, y),
            (({"x": x, "shift": shift},), y),
            [[[a, b], c] for a, b, c in loader],
        ):
            fitted = LaplaceApproximation(box, data, output=lambda out: out["logits"], **options)
            torch.testing.assert_close(values(fitted), values(plain), **EXACT)

    @pytest.mark.parametrize("structure", ["diagonal", "full", "last_layer", "kron", "last_layer_kron"])
    def test_leaves_the_model_as_it_was(self, structure):
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 4)).double()
        model[1].running_mean.copy_(draw(5))
        model[0].eval()
        x, y = draw(N, 3), classes(N, count=4)
        (model(x).square().mean()).backward()
        model[3].bias.grad = None
        before, options = snapshot(model), {"likelihood": ba.Categorical(), "structure": structure}
        fitted = LaplaceApproximation(model, (x, y), **options)
        assert_unchanged(model, before)
        with pytest.raises(ValueError, match="target"):
            LaplaceApproximation(model, (x, y + 9), **options)
        assert_unchanged(model, before)
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        if "kron" not in structure:  # in evaluation mode
            expected = slow_matrix(model, x, y, ba.Categorical(), "ggn")
            torch.testing.assert_close(values(fitted), part(structure, expected, len(values(fitted))), **EXACT)

    @pytest.mark.parametrize("structure", ["diagonal", "kron", "full", "badam"])
    def test_a_layer_with_two_names(self, structure):
        """As with one name, and the model keeps its own parameters."""

        def forward(self, x):
            return self.head(self.layer(self.layer(x).tanh()).tanh())

        likelihood, found, x, y = ba.Gaussian(4.0), [], draw(N, 3, seed=4), draw(N, 2, seed=5)
        for several_names in (True, False):
            torch.manual_seed(0)
            layer, head = nn.Linear(3, 3, **F64), nn.Linear(3, 2, **F64)
            own = [*layer.parameters(), *head.parameters()]
            model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), head)
            if not several_names:
                model = module_of(forward, layer=layer, head=head)
            if structure == "badam":
                adam = torch.optim.Adam(model.parameters())
                likelihood.nll(model(x), y).backward()
                adam.step()
                q = ba.badam(adam, model, num_data=N, prior_precision=1.0, data=(x, y), likelihood=likelihood)
            else:
                q = laplace(model, (x, y), likelihood=likelihood, structure=structure, prior_precision=1.0)
            found.append(ba.predict(model, q, x, likelihood=likelihood, method="linearized").variance)
            assert all(a is b for a, b in zip([*layer.parameters(), *head.parameters()], own, strict=True))
        torch.testing.assert_close(*found, **EXACT)

    def test_shared_weights(self):
        tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False)).double()
        tied[2].weight = tied[0].weight
        x, y = draw(N, 3), classes(N)
        reference = slow_matrix(tied, x, y, ba.Categorical(), "ggn")
        fitted = [
            LaplaceApproximation(tied, (x, y), likelihood=ba.Categorical(), structure=s) for s in ("full", "diagonal")
        ]
        torch.testing.assert_close(fitted[0].curvature, reference, **EXACT)
        torch.testing.assert_close(flat(fitted[1].curvature), reference.diagonal(), **EXACT)
        with pytest.raises(ValueError, match="^last_layer must have trainable parameters of its own, got '2.weight', "):
            LaplaceApproximation(tied, (x, y), likelihood=ba.Categorical(), structure="last_layer")


class TestFactors:
    @pytest.mark.parametrize("scale", [1.0, 300.0])
    def test_softmax(self, scale):
        logits = scale * draw(6, 5)
        p = logits.softmax(-1)
        expected = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        factor = softmax_factor(logits)
        torch.testing.assert_close(factor @ factor.mT, expected, rtol=1e-12, atol=1e-15)

    def test_softmax_of_a_sure_class_keeps_all_digits_in_float32(self):
        logits = torch.tensor([20.0, 0.0, -1.0])
        p = logits.double().softmax(-1)
        hessian = (lambda s: s @ s.mT)(softmax_factor(logits).double())
        torch.testing.assert_close(hessian[0, 0], p[0] * (p[1] + p[2]), rtol=1e-5, atol=0.0)


def linear_regression(prior=0.7, precision=4.0, count=30):
    """A linear model at its optimum, data, and the exact posterior and evidence."""
    x, noise = draw(count, 4, seed=3), draw(count, seed=4)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0], **F64) + 0.3 + 0.5 * noise
    design = torch.cat([x, torch.ones(count, 1, **F64)], 1)
    exact_precision = precision * design.T @ design + prior * torch.eye(5, **F64)
    mean = torch.linalg.solve(exact_precision, precision * design.T @ y)
    model = squeezed(nn.Linear(4, 1).double())
    with torch.no_grad():
        model[0].weight.copy_(mean[None, :4])
        model[0].bias.copy_(mean[4:])
    marginal = MultivariateNormal(
        torch.zeros(count, **F64), torch.eye(count, **F64) / precision + design @ design.T / prior
    )
    return model, x, y, gaussian(precision), mean, exact_precision.inverse(), marginal.log_prob(y).item()


class TestLinearRegression:
    @pytest.mark.parametrize("structure", ["full", "last_layer"])
    @pytest.mark.parametrize("prior", [1e-3, 100.0])
    def test_posterior_and_evidence_are_exact(self, structure, prior):
        model, x, y, likelihood, mean, covariance, evidence = linear_regression(prior)
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure)
        q = fitted.posterior(prior)
        assert isinstance(q, ba.DenseGaussian)
        torch.testing.assert_close(flat(q.mean), mean, **EXACT)
        torch.testing.assert_close(q.covariance, covariance, **EXACT)
        assert fitted.log_marginal_likelihood(prior) == pytest.approx(evidence, rel=1e-10)

    def test_diagonal_has_the_inverse_of_the_diagonal_of_the_precision(self):
        model, x, y, likelihood, _, covariance, _ = linear_regression()
        q = laplace(model, (x, y), likelihood=likelihood, prior_precision=0.7)
        torch.testing.assert_close(flat(q.variance), 1 / covariance.inverse().diagonal(), **EXACT)


class TestPosterior:
    @pytest.mark.parametrize("structure", ["diagonal", "full"])
    def test_precision_has_all_parts(self, structure, references):
        model, x, y, likelihood = case("categorical")
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure)
        q = fitted.posterior(2.0, num_data=45, temperature=0.25)
        precision = 5 * references("categorical", "ggn") / 0.25 + 2.0 * torch.eye(69, **F64)
        if structure == "diagonal":
            torch.testing.assert_close(flat(q.variance), 1 / precision.diagonal(), **EXACT)
        else:
            torch.testing.assert_close(q.covariance, precision.inverse(), **EXACT)
        torch.testing.assert_close(flat(q.mean), flat(dict(model.named_parameters())).detach(), rtol=0, atol=0)
        told = {"method": "laplace", "structure": structure, "curvature": "ggn"}
        told.update(num_data=45, prior_precision=2.0, temperature=0.25)
        assert json.loads(json.dumps(q.hyperparameters)) == told

    def test_last_layer_leaves_the_rest_fixed(self, references, tmp_path):
        model, x, y, likelihood = case("categorical")
        q = laplace(model, (x, y), likelihood=likelihood, structure="last_layer", prior_precision=2.0)
        assert isinstance(q, PartialGaussian)
        assert list(q.mean) == [n for n, _ in model.named_parameters()]
        assert list(q.fixed) == ["0.weight", "0.bias", "2.weight"]
        precision = references("categorical", "ggn")[-24:, -24:] + 2.0 * torch.eye(24, **F64)
        torch.testing.assert_close(q.random.covariance, precision.inverse(), **EXACT)
        assert q.hyperparameters["last_layer"] == "4"
        assert q.hyperparameters["gives_outputs"] is True
        q.save(tmp_path / "q")
        assert ba.load_posterior(tmp_path / "q").hyperparameters == q.hyperparameters
        assert ba.predict(model, q, x, likelihood=likelihood, mc_samples=4).probs.shape == (N, 4)


class _Box(nn.Module):
    def forward(self, x):
        return (x,)


class TestEvidence:
    @STRUCTURES
    def test_by_determinants(self, structure, references):
        model, x, y, likelihood = case("categorical")
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure)
        whole = references("categorical", "ggn")
        matrix = {"diagonal": whole.diagonal().diag(), "full": whole, "last_layer": whole[-24:, -24:]}[structure]
        theta = flat(dict(model.named_parameters())).detach()[-len(matrix) :]
        for precision in (1e-3, 1.0, 50.0):
            logdet = torch.logdet(matrix + precision * torch.eye(len(matrix), **F64))
            expected = slow_log_likelihood(model, x, y, likelihood) - 0.5 * precision * theta @ theta
            expected += 0.5 * len(matrix) * math.log(precision) - 0.5 * logdet
            assert fitted.log_marginal_likelihood(precision) == pytest.approx(expected.item(), rel=1e-10)

    @STRUCTURES
    @pytest.mark.parametrize("num_data", [9, 1e7])
    def test_best_prior_precision_is_the_top_of_a_dense_grid(self, structure, num_data):
        model, x, y, likelihood = case("categorical")
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure, num_data=num_data)
        best = fitted.best_prior_precision()
        grid = torch.logspace(-8, 8, 801, **F64).tolist()
        scores = [fitted.log_marginal_likelihood(value) for value in grid]
        top = max(range(len(grid)), key=scores.__getitem__)
        assert 0 < top < len(grid) - 1
        assert grid[top - 1] < best < grid[top + 1]
        value = fitted.log_marginal_likelihood(best)
        assert value >= scores[top] - 1e-12 * abs(value)
        chosen = laplace(
            model, (x, y), likelihood=likelihood, structure=structure, num_data=num_data,
            prior_precision="marginal_likelihood",
        )  # fmt: skip
        assert chosen.hyperparameters["prior_precision"] == best

    def test_no_maximum(self):
        model, x, y, likelihood = case("categorical")
        for p in model.parameters():
            nn.init.zeros_(p)
        fitted = LaplaceApproximation(model, (x, y), likelihood=likelihood)
        message = "^weights must not be all zero if a best prior precision is to exist, got 0.0"
        with pytest.raises(ValueError, match=message):
            fitted.best_prior_precision()


@pytest.mark.parametrize("loader", [False, True])
def test_the_last_layer_is_the_last_one_that_is_called(loader):
    """Layers are registered in another order than they are used in, and one is called by name."""
    layers = {"head": nn.Linear(5, 4), "body": nn.Linear(3, 5), "unused": nn.Linear(2, 2)}
    model = module_of(lambda self, x: self.head(input=self.body(x).tanh()), **layers).double()
    _, x, y, likelihood = case("categorical")
    data = [(x[:4], y[:4]), (x[4:], y[4:])] if loader else (x, y)
    fitted = LaplaceApproximation(model, data, likelihood=likelihood, structure="last_layer")
    assert fitted.random == ("head.weight", "head.bias")
    assert fitted.posterior().hyperparameters["last_layer"] == "head"
    expected = slow_matrix(model, x, y, likelihood, "ggn")[:24, :24]
    torch.testing.assert_close(fitted.curvature, expected, **EXACT)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("change", [lambda layer, args, output: 2 * output, lambda layer, args, out: out.mul_(2)])
@pytest.mark.parametrize("name", ["outputs", "categorical"])
def test_hooks_that_change_what_layers_return(name, change):
    """Their changes count as if they were layers of their own, also those in place."""
    model, x, y, likelihood = case(name)
    for layer in (model[0], model[2], model[4]):
        layer.register_forward_hook(change)
    expected = slow_matrix(model, x, y, likelihood, "ggn")
    found = {
        structure: LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure)
        for structure in ("diagonal", "full", "kron", "last_layer", "last_layer_kron")
    }
    size = len(found["last_layer"].curvature)
    last = expected[-size:, -size:]
    torch.testing.assert_close(found["full"].curvature, expected, **EXACT)
    torch.testing.assert_close(flat(found["diagonal"].curvature), expected.diagonal(), **EXACT)
    torch.testing.assert_close(found["last_layer"].curvature, last, **EXACT)
    bias = model[4].bias
    for structure in ("kron", "last_layer_kron"):  # the factor of the outputs is exact
        values = found[structure].curvature.spectra["4.bias"].values
        torch.testing.assert_close(values.sum(), last[-len(bias) :, -len(bias) :].trace(), **EXACT)


@pytest.mark.parametrize("structure", ["last_layer", "last_layer_kron"])
def test_whether_the_layer_gives_the_outputs(structure):
    """A view of the layer's outputs is linear in the weights, too, unless it is changed in place."""
    model, x, y, likelihood = case("gaussian")
    for network, gives in (
        (model, True),
        (nn.Sequential(model, nn.Softplus()), False),
        (squeezed(nn.Linear(3, 1).double()), True),
        (nn.Sequential(squeezed(nn.Linear(3, 1).double()), nn.Softplus()), False),
        (nn.Sequential(model, nn.LeakyReLU(0.1, inplace=True)), False),
    ):
        fitted = LaplaceApproximation(network, (x, y), likelihood=likelihood, structure=structure, batch_size=4)
        assert fitted.posterior().hyperparameters["gives_outputs"] is gives


def test_only_what_can_be_known_is_called_a_layer():
    assert not is_plain_linear(nn.MultiheadAttention(4, 2))
    assert is_plain_linear(nn.Linear(2, 2))
    assert not is_plain_linear(convnet()[0])
    for name in ("weight", "bias"):  # the derivatives by what it is computed from are others
        computed = parametrize.register_parametrization(nn.Linear(2, 2), name, nn.Softplus())
        assert not is_plain_linear(computed)


def test_full_curvature_of_low_rank():
    """``rank=`` keeps the widest directions of the same precision; other structures have none to keep."""
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(2, 1)
    found = ba.posthoc.LaplaceApproximation(model, (x, x[:, :1]), likelihood=ba.Gaussian(4.0), structure="full")
    q = found.posterior(0.5, rank=1)
    precision = found.curvature + 0.5 * torch.eye(3, dtype=torch.float64)
    expected = ba.posterior.low_rank.LowRankGaussian.from_precision(found.mean, precision, 1)
    torch.testing.assert_close(q.tensors(), expected.tensors(), rtol=0, atol=0)
    assert (q.hyperparameters["rank"], q.hyperparameters["method"]) == (1, "laplace")
    with pytest.raises(ValueError, match=r"^rank must be None for structure='kron', got 2"):
        ba.posthoc.LaplaceApproximation(model, (x, x[:, :1]), likelihood=ba.Gaussian(4.0), structure="kron").posterior(
            rank=2
        )


@pytest.mark.parametrize("mapped", [True, False])
def test_outputs_that_have_no_axes_for_a_single_row(mapped):
    def forward(self, x):
        return self.model(x).squeeze() * (1.0 if mapped or x.sum().item() > -1e9 else 0.0)

    model = module_of(forward, model=nn.Linear(2, 1).double())
    x, y = draw(9, 2), draw(9, seed=1)
    fitted = LaplaceApproximation(model, (x, y), likelihood=ba.Gaussian(1.0), structure="full")
    rows = torch.cat([x, torch.ones(9, 1, **F64)], 1)
    torch.testing.assert_close(fitted.curvature, rows.T @ rows, **EXACT)


def unlike(**changes):
    """Data of the first case with other parts."""
    return {"model": mlp(), "data": (draw(N, 3), classes(N, count=4)), "likelihood": ba.Categorical(), **changes}


def frozen_head():
    model = mlp()
    model[4].bias.requires_grad_(False)
    return model


X, LABELS = draw(N, 3), classes(N, count=4)
LAST = {"structure": "last_layer"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"structure": "block"}, r"^structure must be one of \('diagonal', .*\), got 'block'$"),
        ({"curvature": "hessian"}, r"^curvature must be one of \('ggn', 'empirical_fisher'\), got 'hessian'$"),
        ({"last_layer": "4"}, "^last_layer must only be given for a structure in .*, got '4'$"),
        ({"prior_precision": 0.0}, "^prior_precision must be a positive, finite number, 'marginal_likelihood' or"),
        ({"prior_precision": "evidence"}, "^prior_precision must be a positive, finite number, .*, got 'evidence'$"),
        ({"temperature": 0.0}, r"^temperature must be in \(0, 1\], got 0.0$"),
        ({"num_data": 0.0}, "^num_data must be a positive, finite number, got 0.0$"),
        ({"likelihood": nn.MSELoss()}, r"^likelihood must be a bayesadam.likelihoods.Likelihood, got MSELoss\(\)$"),
        ({"model": mlp().requires_grad_(False)}, "^model must have a trainable parameter, got none$"),
        (
            {"model": nn.Sequential(nn.Linear(3, 2000), nn.Linear(2000, 4)).double(), "structure": "full"},
            "^structure must be 'kron', 'last_layer' or 'diagonal' where a matrix would have more than 10,000 rows, "
            "got 'full' for 16,004 weights, which is 2.0 GB$",
        ),
        ({"data": []}, "^data must have at least one example, got none$"),
        ({"data": (X[:0], LABELS[:0])}, "^data must have at least one example, got none$"),
        ({"data": TensorDataset(X, LABELS)}, "^data must be a pair of inputs and targets, .*, got TensorDataset "),
        ({"data": (X, [1])}, r"^data must give pairs .*, got tuple of \['Tensor', 'list'\]$"),
        ({"data": (X, LABELS[:4])}, r"^targets must have as many rows as the inputs, 9, got shape \(4,\)$"),
        ({"data": (X, LABELS[0])}, r"^targets must have as many rows as the inputs, 9, got shape \(\)$"),
        ({"data": (X, LABELS + 4)}, r"^target must be in \[0, 4\), got 4 to 7$"),
        ({"data": (X * math.nan, LABELS)}, "^the log-likelihood must be finite, got nan$"),
        ({**LAST, "last_layer": "1"}, r"^last_layer must be the name of an nn.Linear, one of .*, got '1'$"),
        ({**LAST, "model": nn.PReLU().double()}, "^model must have an nn.Linear for structure='last_layer', got none$"),
        (
            {"model": nn.Sequential(nn.Embedding(4, 4, max_norm=1.0)).double(), "data": (LABELS, LABELS)},
            "^max_norm of an embedding must be None to take derivatives, got 1.0 in '0'$",
        ),
        (
            {"model": nn.Embedding(4, 4, scale_grad_by_freq=True).double(), "data": (LABELS, LABELS)},
            "^scale_grad_by_freq of an embedding must be False to take derivatives, got True in ''$",
        ),
        ({**LAST, "model": frozen_head()}, "^last_layer must have trainable parameters of its own, got '4.bias',"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        laplace(**unlike(**changes))


def test_refusals_of_what_is_known_later():
    fitted = LaplaceApproximation(**unlike())
    for call in (fitted.posterior, fitted.log_marginal_likelihood):
        with pytest.raises(ValueError, match="^prior_precision must be a positive, finite number, got -1$"):
            call(-1)
    with pytest.raises(TypeError, match="^output must be given for a model that returns no tensor"):
        laplace(**unlike(model=nn.Sequential(mlp(), _Box())))
    model = squeezed(nn.Linear(2, 1))
    for p in model.parameters():
        nn.init.zeros_(p)
    with pytest.raises(ValueError, match="^the curvature must be finite, got inf or nan$"):
        laplace(model, (torch.full((3, 2), 1e30), torch.zeros(3)), likelihood=ba.Gaussian())


@pytest.mark.parametrize("structure", ["last_layer", "last_layer_kron"])
def test_a_default_that_does_not_give_the_outputs(structure):
    """Heads that are passed over, a norm layer after the last linear one, and weights beside it."""
    heads = {"first": nn.Linear(3, 2), "second": nn.Linear(3, 2)}
    beside = module_of(lambda self, x: torch.cat([self.first(x), self.second(x)], 1), **heads)
    body, weight_norm = [nn.Linear(3, 5), nn.Tanh()], torch.nn.utils.parametrizations.weight_norm
    for model, name, other in (
        (nn.Sequential(*body, weight_norm(nn.Linear(5, 4))), "0", "2.bias"),
        (nn.Sequential(*body, nn.Linear(5, 4), nn.LayerNorm(4)), "2", "3.weight"),
        (beside, "second", "first.weight"),
    ):
        message = (
            "^last_layer must be given for a model whose last nn.Linear does not give its outputs, got None: "
            f"'{other}' acts after or beside '{name}'$"
        )
        with pytest.raises(ValueError, match=message):
            laplace(**unlike(model=model.double(), structure=structure))
        assert not any(module._forward_hooks for module in model.modules())
        fitted = LaplaceApproximation(**unlike(model=model, structure=structure, last_layer=name))
        assert fitted.posterior().hyperparameters["gives_outputs"] is False


def test_calls_of_the_last_layer():
    class Calls(nn.Module):
        def __init__(self, count):
            super().__init__()
            self.body, self.head, self.count = nn.Linear(3, 4).double(), nn.Linear(4, 4).double(), count

        def forward(self, x):
            x = self.body(x)
            for _ in range(abs(self.count)):
                y = self.head(x)
            return x if self.count < 1 else y

    for count, named in ((0, {"last_layer": "head"}), (2, {}), (2, {"last_layer": "head"})):
        message = f"^last_layer must be called once in the model's forward, got {count} calls of 'head'$"
        with pytest.raises(ValueError, match=message):
            laplace(**unlike(model=Calls(count), **LAST, **named))
    with pytest.raises(ValueError, match="^last_layer must be a layer that the model's outputs depend on, got 'head'$"):
        laplace(**unlike(model=Calls(-1), **LAST))


EVERY_STRUCTURE = pytest.mark.parametrize("structure", ["diagonal", "kron", "full", "last_layer", "last_layer_kron"])


def posterior_of(*arguments, **options):
    q = laplace(*arguments, **options)
    return [dict(q.mean), dict(q.variance)]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, for EmbeddingBag
@pytest.mark.parametrize(
    ("kind", "structure"),
    [
        *((nn.Embedding, structure) for structure in ("diagonal", "kron", "full", "last_layer", "last_layer_kron")),
        *((nn.EmbeddingBag, structure) for structure in ("full", "last_layer", "last_layer_kron")),
    ],
)
def test_a_table_with_sparse_gradients(structure, kind):
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = kind(6, 4, sparse=sparse)
        model = nn.Sequential(table, nn.Flatten(), nn.Linear(12 if kind is nn.Embedding else 4, 4)).double()
        data = torch.arange(3 * N).view(N, 3) % 6, classes(N, count=4)
        found.append(posterior_of(model, data, likelihood=ba.Categorical(), structure=structure, prior_precision=1.0))
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("structure", ["diagonal", "kron"])
def test_a_bag_with_sparse_gradients_is_refused(structure):
    model = nn.Sequential(nn.EmbeddingBag(6, 4, sparse=True), nn.Linear(4, 4))
    data = torch.arange(3 * N).view(N, 3) % 6, classes(N, count=4)
    with pytest.raises(RuntimeError, match=r"^module '0' \(EmbeddingBag\) must be a module that torch.func.vmap"):
        laplace(model, data, likelihood=ba.Categorical(), structure=structure)


@EVERY_STRUCTURE
def test_autocast_changes_what_the_network_computes_and_nothing_else(structure):
    """Here it computes nothing else, in float64."""
    model, x, y, likelihood = case("categorical")
    expected, found = None, None
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            expected, found = found, posterior_of(model, (x, y), likelihood=likelihood, structure=structure)
    torch.testing.assert_close(found, expected)
    with torch.autocast("cpu", torch.bfloat16):
        laplace(model.float(), (x.float(), y), likelihood=likelihood, structure=structure, prior_precision=1.0)


class TestIgnoredTargets:
    """Class -100, as for PyTorch's cross entropy."""

    @BOTH
    @EVERY_STRUCTURE
    def test_rows_are_left_out(self, structure, curvature):
        model, x, y, likelihood = case("categorical")
        kept = torch.arange(N) % 3 > 0
        options = {"likelihood": likelihood, "structure": structure, "curvature": curvature, "prior_precision": 1.0}
        expected = posterior_of(model, (x[kept], y[kept]), **options)
        found = posterior_of(model, (x, y.masked_fill(~kept, -100)), batch_size=4, **options)
        torch.testing.assert_close(found, expected)
        laplace(model, (x, y.masked_fill(~kept, -100)), **{**options, "prior_precision": "safe"})

    @BOTH
    @STRUCTURES
    @pytest.mark.parametrize("bytes_", [2**28, 400])
    def test_positions_have_no_curvature(self, structure, curvature, bytes_, monkeypatch):
        """If some positions are ignored, and then the others, the sum is that of all."""
        monkeypatch.setattr(network_module, "FACTOR_BYTES", bytes_)
        model, x, y, likelihood = case("tokens")
        mask = torch.arange(y.numel()).view(y.shape) % 3 > 0
        options = {"likelihood": likelihood.tempered(2.0), "structure": structure, "curvature": curvature}
        parts = [LaplaceApproximation(model, (x, y.masked_fill(m, -100)), **options) for m in (mask, ~mask)]
        whole = LaplaceApproximation(model, (x, y), **options)
        torch.testing.assert_close(sum(map(values, parts)), values(whole), **EXACT)
        assert sum(part.log_likelihood for part in parts) == pytest.approx(whole.log_likelihood, rel=1e-12)
        assert [part.num_data for part in parts] == [(~mask).sum(), mask.sum()]

    @pytest.mark.parametrize("structure", ["diagonal", "kron", "full", "last_layer", "last_layer_kron"])
    def test_sequences_that_are_padded_batch_by_batch(self, structure):
        """Without the ignored positions at their ends; the width is found by the rows of the first length."""
        model, x, _, likelihood = case("tokens")
        y = model(x).argmax(-1)
        y[3:, 2:] = -100
        loader, options = [(x[:3], y[:3]), (x[3:, :2], y[3:, :2])], {"likelihood": likelihood, "structure": structure}
        q = laplace(model, loader, **options)
        plain = LaplaceApproximation(model, (x, y), **options).posterior()
        rows = ba.calibration.safe.Watched(model, loader[0], likelihood, None, None)
        torch.testing.assert_close(q.variance, rows.harmless(plain).variance)
        assert 0.0 < q.hyperparameters["scaled"] < 1.0
        with pytest.raises(ValueError, match=r"^targets of all .*, got \(4,\) and \(2,\) \(pad all sequences to one"):
            ba.calibrate(model, loader, likelihood=likelihood)
        for method in ("auto", "mean"):
            with pytest.raises(ValueError, match=r"^(outputs|features) of all batches must have one shape apart from "):
                ba.predict(model, plain, loader, likelihood=likelihood, method=method)
