"""Small networks in float64, data for them, and the slow loops that curvatures are compared with."""

import torch
from torch import nn

import bayesadam as ba
from posterior.kinds import F64, draw


def mlp(inputs=3, outputs=4, hidden=5):
    torch.manual_seed(0)
    layers = [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs)).double()


def squeezed(model):
    """With one output, and no axis for it."""
    return nn.Sequential(model, nn.Flatten(0))


def convnet(outputs=3):
    torch.manual_seed(0)
    body = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.GroupNorm(1, 3), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(12, outputs)).double()


class Tokens(nn.Module):
    """Class logits at every position, ``(N, T, C)``, which depend on all positions before."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm, self.head = nn.Embedding(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)
        self.double()

    def forward(self, x):
        return self.head(self.norm(self.embedding(x).cumsum(1)))


class LastToken(Tokens):
    """Logits of the last position only: the head is called with all of them."""

    def forward(self, x):
        return super().forward(x)[:, -1]


class Summed(Tokens):
    """The head's outputs are added up over positions."""

    def forward(self, x):
        return super().forward(x).tanh().sum(1)


def tokens(count=7, length=4):
    return torch.randint(6, (count, length), generator=torch.Generator().manual_seed(1))


def classes(*shape, count=3):
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(2))


def gaussian(precision, learned=False):
    likelihood = ba.Gaussian(torch.as_tensor(precision), learned=learned).double()
    with torch.no_grad():  # all digits of it
        likelihood.log_noise_precision.copy_(torch.as_tensor(precision, **F64).log())
    return likelihood


N = 9
CASES = {
    "categorical": (lambda: mlp(), lambda: draw(N, 3), lambda: classes(N, count=4), ba.Categorical()),
    "convnet": (lambda: convnet(), lambda: draw(N, 2, 4, 4), lambda: classes(N), ba.Categorical()),
    "bernoulli": (lambda: squeezed(mlp(3, 1)), lambda: draw(N, 3), lambda: classes(N, count=2), ba.Bernoulli()),
    "labels": (lambda: mlp(3, 2), lambda: draw(N, 3), lambda: classes(N, 2, count=2), ba.Bernoulli()),
    "gaussian": (lambda: squeezed(mlp(3, 1)), lambda: draw(N, 3), lambda: draw(N, seed=5), gaussian(2.5)),
    "outputs": (lambda: mlp(3, 2), lambda: draw(N, 3), lambda: draw(N, 2, seed=5), gaussian([0.5, 3.0])),
    "learned": (lambda: mlp(3, 2), lambda: draw(N, 3), lambda: draw(N, 2, seed=5), gaussian(1.5, learned=True)),
    "heteroscedastic": (
        lambda: mlp(3, 4),
        lambda: draw(N, 3),
        lambda: draw(N, 2, seed=5),
        ba.HeteroscedasticGaussian(),
    ),
    "tokens": (Tokens, tokens, lambda: classes(7, 4), ba.Categorical()),
    "last token": (LastToken, tokens, lambda: classes(7), ba.Categorical()),
    "summed": (Summed, tokens, lambda: classes(7), ba.Categorical()),
}


def case(name):
    model, x, y, likelihood = CASES[name]
    return model(), x(), y(), likelihood


def expected_hessian(likelihood, point):
    """Of ``-log p(y | output)`` at one data point's outputs, its expectation over ``y``: ``(K, K)``, entry by entry."""
    size = point.numel()
    matrix = torch.zeros(size, size, **F64)
    if isinstance(likelihood, ba.Categorical):
        p = [float(v) for v in torch.exp(point - torch.logsumexp(point, 0))]
        for i in range(size):
            for j in range(size):
                matrix[i, j] = p[i] * (1 - p[i]) if i == j else -p[i] * p[j]
    for i in range(size):
        if isinstance(likelihood, ba.Bernoulli):
            p = 1 / (1 + float(torch.exp(-point.view(-1)[i])))
            matrix[i, i] = p * (1 - p)
        elif isinstance(likelihood, ba.HeteroscedasticGaussian):
            half = size // 2
            matrix[i, i] = float(torch.exp(-point[half + i])) if i < half else 0.5
        elif isinstance(likelihood, ba.Gaussian):
            precision = likelihood.noise_precision.detach()
            matrix[i, i] = float(precision[i] if precision.ndim else precision)
    return matrix


def points(model, x, y, likelihood):
    """Outputs (with a graph) and target of every data point."""
    model.eval()
    for n in range(len(x)):
        output = model(x[n : n + 1])[0]
        if isinstance(likelihood, ba.Categorical) and y.ndim == 2:
            yield from ((output[t], y[n, t]) for t in range(y.shape[1]))
        else:
            yield output, y[n]


def gradient(value, parameters):
    parts = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def slow_matrix(model, x, y, likelihood, curvature):
    """The whole curvature summed over the data, data point by data point and output by output."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    size = sum(p.numel() for p in parameters)
    total = torch.zeros(size, size, **F64)
    for output, target in points(model, x, y, likelihood):
        if curvature == "empirical_fisher":
            density = likelihood.log_prob(output[None], target[None])[0]
            g = gradient(density, parameters)
            total += torch.outer(g, g)
        else:
            rows = torch.stack([gradient(value, parameters) for value in output.reshape(-1)])
            total += rows.T @ expected_hessian(likelihood, output.detach()) @ rows
    return total


def slow_log_likelihood(model, x, y, likelihood):
    with torch.no_grad():
        return sum(float(likelihood.log_prob(o[None], t[None])[0]) for o, t in points(model, x, y, likelihood))
