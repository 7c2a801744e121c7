"""Variational last layers: the objective against numerical integration, and the optimum against exact posteriors."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bayesadam as ba
from bayesadam import priors
from bayesadam.posterior import PartialGaussian
from modules import module_of
from moments.references import close, draw

COVARIANCES = ("full", "diagonal")


def mlp(outputs=2, bias=True, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs, bias=bias)).double()


def made(covariance="full", outputs=2, bias=True, **options):
    """A net whose covariance is not that of the start."""
    net = ba.variational_last_layer(mlp(outputs, bias), covariance=covariance, **options)
    with torch.no_grad():
        for number, parameter in enumerate(net.log_scale.parameters()):
            parameter.add_(1.5 + 0.5 * draw(*parameter.shape, seed=number))
        if net.lower is not None:
            net.lower.add_(0.5 * draw(*net.lower.shape, seed=7))
    return net


def reference(net):
    """Means ``(K, D)`` and covariances ``(K, D, D)`` of the rows with their biases, by loops over the parameters."""
    layer = net.model[2]
    scales = [p.detach().exp().reshape(len(layer.weight), -1) for p in net.log_scale.parameters()]
    means, covariances = [], []
    for k in range(len(layer.weight)):
        bias = [] if layer.bias is None else [layer.bias[k].item()]
        means.append([*layer.weight[k].tolist(), *bias])
        size = len(means[-1])
        scale = [value for part in scales for value in part[k].tolist()]
        factor = np.zeros((size, size))
        for i in range(size):
            for j in range(i + 1):
                factor[i, j] = scale[i] * (1.0 if i == j else 0.0 if net.lower is None else net.lower[k, i, j].item())
        covariances.append(factor @ factor.T)
    return np.array(means), np.array(covariances)


def features(net, x):
    """Of the layer, with a 1 for the bias."""
    found = net.model[1](net.model[0](x)).detach().numpy()
    return found if net.model[2].bias is None else np.hstack([found, np.ones((len(found), 1))])


def kl(mean, covariance, precision):
    """From ``N(0, I / precision)``."""
    size = len(mean)
    trace = precision * (np.trace(covariance) + mean @ mean)
    return 0.5 * (trace - size - size * math.log(precision) - np.linalg.slogdet(covariance)[1])


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("bias", [True, False])
class TestMoments:
    def test_of_the_outputs(self, covariance, bias):
        net, x = made(covariance, bias=bias), draw(6, 3, seed=1)
        means, covariances = reference(net)
        phi = features(net, x)
        found = net(x)
        close(found.mean.detach(), torch.from_numpy(phi @ means.T))
        close(found.mean, net.model(x))
        close(found.variance.detach(), torch.from_numpy(np.einsum("nd,kde,ne->nk", phi, covariances, phi)))

    def test_the_divergence(self, covariance, bias):
        net = made(covariance, bias=bias, prior=2.5)
        expected = sum(kl(*row, 2.5) for row in zip(*reference(net), strict=True))
        close(net.kl_divergence().item(), expected)
        close(net.posterior().kl_divergence(2.5).item(), expected)

    def test_the_posterior(self, covariance, bias):
        net = made(covariance, bias=bias)
        q = net.posterior()
        assert isinstance(q, PartialGaussian)
        assert list(q.mean) == [name for name, _ in net.model.named_parameters()]
        _, covariances = reference(net)
        names = ["2.weight", *(["2.bias"] if bias else [])]
        assert list(q.random.mean) == names
        scale = q._scale(names)
        matrix = torch.diag(scale.square()) if scale.ndim == 1 else scale @ scale.T
        expected = np.zeros(matrix.shape)
        for k, block in enumerate(covariances):
            places = [4 * k + d for d in range(4)] + ([8 + k] if bias else [])
            expected[np.ix_(places, places)] = block
        close(matrix, torch.from_numpy(expected))
        before = {name: value.clone() for name, value in q.tensors().items()}
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(1.0)
        assert all(torch.equal(value, before[name]) for name, value in q.tensors().items())


class TestTheObjective:
    @pytest.mark.parametrize("covariance", COVARIANCES)
    def test_of_regression_by_integration(self, covariance):
        """Gauss-Hermite quadrature over each output is exact for a quadratic."""
        net, x, y = made(covariance, prior=3.0), draw(5, 3, seed=1), draw(5, 2, seed=2)
        likelihood = ba.Gaussian(torch.tensor([4.0, 0.5])).double()
        means, covariances = reference(net)
        phi, noise = features(net, x), likelihood.noise_precision.tolist()
        nodes, weights = np.polynomial.hermite_e.hermegauss(5)
        expected = 0.0
        for n in range(5):
            for k in range(2):
                center, spread = phi[n] @ means[k], math.sqrt(phi[n] @ covariances[k] @ phi[n])
                z = center + spread * nodes
                density = 0.5 * np.log(noise[k] / (2 * math.pi)) - 0.5 * noise[k] * (y[n, k].item() - z) ** 2
                expected -= (weights @ density) / weights.sum() / 5
        expected += sum(kl(*row, 3.0) for row in zip(means, covariances, strict=True)) / 80
        found = net.loss(x, y, likelihood=likelihood, num_data=40, kl_weight=2.0, temperature=0.25)
        close(found.item(), expected)


def test_the_optimum_of_regression_is_the_exact_posterior_and_the_evidence():
    """Of a fixed backbone, two outputs and a full covariance."""
    count, precision, prior, likelihood = 40, 4.0, 0.5, ba.Gaussian(4.0)
    net = ba.variational_last_layer(mlp(), prior=prior, covariance="full")
    net.model[0].requires_grad_(False)
    x = draw(count, 3, seed=3)
    phi = features(net, x)
    y = torch.from_numpy(phi @ np.array([[1.0, -0.5], [0.3, 0.8], [-1.2, 0.1], [0.4, 0.9], [0.2, -0.7]]))
    y = y + 0.5 * draw(count, 2, seed=4)
    inverse = np.linalg.inv(precision * phi.T @ phi + prior * np.eye(5))
    mean = precision * inverse @ phi.T @ y.numpy()
    marginal = phi @ phi.T / prior + np.eye(count) / precision
    squares = np.trace(y.numpy().T @ np.linalg.solve(marginal, y.numpy()))
    evidence = -0.5 * squares - np.linalg.slogdet(marginal)[1] - count * math.log(2 * math.pi)

    options = {"max_iter": 360, "tolerance_grad": 1e-12, "tolerance_change": 1e-16, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS([p for p in net.parameters() if p.requires_grad], **options)

    def closure():
        optimizer.zero_grad()
        loss = net.loss(x, y, likelihood=likelihood, num_data=count)
        loss.backward()
        return loss

    optimizer.step(closure)
    close(-count * closure().item(), evidence, rtol=1e-9)
    means, covariances = reference(net)
    close(torch.from_numpy(means), torch.from_numpy(mean.T), rtol=1e-4, atol=1e-5)
    for found in covariances:
        close(torch.from_numpy(found), torch.from_numpy(inverse), rtol=1e-3, atol=1e-6)
    laplace = ba.laplace(net.model, (x, y), likelihood=likelihood, structure="last_layer", prior_precision=prior)
    assert net.posterior().kl_divergence(laplace).item() < 1e-5


class TestPrediction:
    @pytest.mark.parametrize("covariance", COVARIANCES)
    def test_of_regression_is_in_closed_form(self, covariance):
        net, x = made(covariance), draw(6, 3, seed=1)
        found = net(x)
        pred = ba.predict(net.model, net.posterior(), x, likelihood=ba.Gaussian())
        close(pred.mean, found.mean.detach())
        close(pred.epistemic, found.variance.detach())
        close(pred.variance, found.variance.detach() + 1.0)

    def test_a_saved_posterior(self, tmp_path):
        net, x = made(), draw(6, 3, seed=1)
        net.posterior().save(tmp_path / "q.safetensors")
        q = ba.load_posterior(tmp_path / "q.safetensors")
        assert q.hyperparameters["prior"] == "GaussianPrior(precision=1.0, mean=0.0)"
        pred = ba.predict(mlp(), q, x, likelihood=ba.Gaussian())
        close(pred.epistemic, net(x).variance.detach())


def of_a_posterior():
    mean = {name: p.detach() for name, p in mlp().named_parameters()}
    return priors.PosteriorPrior(ba.DiagonalGaussian(mean, {name: torch.full_like(m, 0.3) for name, m in mean.items()}))


@pytest.mark.parametrize("prior", [priors.GaussianPrior(2.0, mean=0.3), of_a_posterior()], ids=str)
def test_other_priors(prior):
    """Of correlated weights, against samples of ``log q - log p``."""
    net = made(prior=prior)
    random = net.posterior().random
    theta = random.sample(5_000)
    terms = random.log_prob(theta) - sum(prior.log_density(theta[name], name).flatten(1).sum(1) for name in random.mean)
    error = terms.std().item() / math.sqrt(len(terms))
    assert abs(net.kl_divergence().item() - terms.mean().item()) < 3.5 * error


class TestNetworks:
    def test_a_dict_of_outputs(self):
        """Of a backbone of two inputs with BatchNorm, whose head is not its last module."""

        def forward(self, x, shift):
            return {"logits": self.head(input=self.body(x).flatten(1) + shift), "extra": None}

        body = nn.Sequential(nn.Conv1d(1, 5, 3), nn.BatchNorm1d(5), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
        model = module_of(forward, head=nn.Linear(5, 2), body=body)
        net = ba.variational_last_layer(model)
        assert net.last_layer == "head"
        x, shift = torch.randn(6, 1, 9), torch.randn(6, 5)
        likelihood, y = ba.Categorical(), torch.tensor([0, 1, 0, 1, 1, 0])
        losses = [
            net.eval().loss(inputs, y, likelihood=likelihood, num_data=6)
            for inputs in ((x, shift), {"shift": shift, "x": x})
        ]
        assert torch.equal(*losses)
        net.train().loss((x, shift), y, likelihood=likelihood, num_data=6).backward()
        assert all(p.grad is not None for p in net.parameters())
        pred = ba.predict(model, net.posterior(), (x, shift), likelihood=likelihood, output=lambda out: out["logits"])
        assert pred.class_probs.shape == (6, 2)

    def test_a_linear_network(self):
        net = ba.variational_last_layer(nn.Linear(3, 1, bias=False), covariance="full")
        assert isinstance(net.posterior(), ba.DenseGaussian)
        assert list(net.posterior().mean) == ["weight"]
        diagonal = ba.variational_last_layer(nn.Linear(3, 1), covariance="diagonal").posterior()
        assert isinstance(diagonal, ba.DiagonalGaussian)

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
    def test_compiled_as_a_whole(self):
        torch.compiler.reset()
        net, x, y = made(), draw(5, 3), draw(5, 2, seed=1)
        compiled = torch.compile(net, fullgraph=True, backend="eager")
        for _ in range(3):
            ours = net.loss(x, y, likelihood=ba.Gaussian(), num_data=5, wrapper=compiled)
            assert torch.equal(ours, net.loss(x, y, likelihood=ba.Gaussian(), num_data=5))
            (gradient,) = torch.autograd.grad(ours, net.log_scale.get_parameter("2/weight"))
            assert gradient.any()

    def test_autocast_is_for_the_layers_before(self):
        net = ba.variational_last_layer(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))
        x = torch.randn(5, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = net(x)
            loss = net.loss(x, torch.zeros(5, 2), likelihood=ba.Gaussian(), num_data=5)
        outside = net(x)
        assert inside.mean.dtype == inside.variance.dtype == loss.dtype == torch.float32
        assert not torch.equal(inside.mean, outside.mean)  # the features are rounded
        close(inside.variance, outside.variance, rtol=0.05, atol=1e-5)


@pytest.mark.parametrize("hook", [lambda layer, args, output: 2 * output, lambda layer, args, output: output.mul_(2)])
def test_a_hook_that_changes_the_outputs(hook):
    model = mlp()
    model[0].register_forward_hook(hook)
    x = draw(2, 3)
    torch.testing.assert_close(ba.variational_last_layer(model)(x).mean, model(x))
    model[2].register_forward_hook(hook)
    with pytest.raises(ValueError, match="^last_layer must give the network's outputs, got '2', after which they ch"):
        ba.variational_last_layer(model)(x)


def test_inference_mode():
    net, x = made(), draw(5, 3)
    with torch.inference_mode():
        found = net(x)
    torch.testing.assert_close(found.variance, net(x).variance)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    """The layers before may be checkpointed in both ways, the last layer only where its inputs have gradients."""
    gradients = []
    for part in (slice(0), slice(2), slice(3)):
        model = mlp()
        inner = model[part]
        model.forward = lambda x, model=model, inner=inner, after=slice(part.stop, None): model[after](
            checkpoint(inner, x, use_reentrant=reentrant) if len(inner) else x
        )
        net = ba.variational_last_layer(model)
        if reentrant and part.stop == 3:
            with pytest.raises(RuntimeError, match="the last layer must be called with gradients enabled"):
                net(draw(5, 3).requires_grad_())
            continue
        outputs = net(draw(5, 3).requires_grad_())
        (outputs.mean.square().sum() + outputs.variance.sum()).backward()
        gradients.append([p.grad for p in net.parameters()])
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], rtol=1e-12, atol=1e-14)
