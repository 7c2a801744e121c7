"""The same curvatures, evidence and predictions as laplace-torch, where that is installed.

In a process of its own: its module has the name of this folder.
"""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.posthoc import LaplaceApproximation
from posthoc.models import classes, draw

CODE = """
import sys, torch, warnings
warnings.simplefilter("ignore")
import laplace
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)
found = {}
for (kind, name), (net, x, y) in torch.load(sys.argv[1], weights_only=False).items():
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    noise = {} if kind == "classification" else {"sigma_noise": 0.5}
    for subset, structure in (("all", "diag"), ("all", "full"), ("last_layer", "full"), ("all", "kron"),
                              ("last_layer", "kron")):
        own = torch.load(sys.argv[1], weights_only=False)[kind, name][0]
        fitted = laplace.Laplace(own, kind, subset_of_weights=subset, hessian_structure=structure, prior_precision=2.0,
                                 **noise)
        fitted.fit(loader)
        factor = 4.0 if noise else 1.0
        if noise:
            predicted = fitted(x, pred_type="glm")[1].diagonal(dim1=-2, dim2=-1)
        else:
            predicted = fitted(x, pred_type="glm", link_approx="probit")
        curvature = fitted.H_facs.to_matrix() if structure == "kron" else fitted.H
        evidence = float(fitted.log_marginal_likelihood())
        found[kind, name, subset, structure] = (factor * curvature, evidence, predicted)
torch.save(found, sys.argv[2])
"""


STRUCTURES = {
    ("all", "diag"): "diagonal",
    ("all", "full"): "full",
    ("last_layer", "full"): "last_layer",
    ("all", "kron"): "kron",
    ("last_layer", "kron"): "last_layer_kron",
}


def matrix(curvature):
    """As the peer has it: the diagonal, or the whole."""
    if isinstance(curvature, dict):
        return torch.cat([value.flatten() for value in curvature.values()])
    if isinstance(curvature, torch.Tensor):
        return curvature
    return torch.block_diag(
        *(block for f in curvature.layers for block in (torch.kron(f.outputs, f.inputs), f.outputs))
    )


def _installed():
    try:
        return version("laplace-torch")
    except PackageNotFoundError:
        return None


@pytest.mark.skipif(_installed() is None, reason="needs laplace-torch")
def test_same_as_laplace_torch(tmp_path):
    torch.manual_seed(0)
    problems, likelihoods = {}, {"classification": ba.Categorical(), "regression": ba.Gaussian(4.0).double()}
    likelihoods["regression"].log_noise_precision.copy_(torch.tensor(4.0, dtype=torch.float64).log())
    for kind in likelihoods:
        y = classes(25) if kind == "classification" else draw(25, 3, seed=2)
        net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        problems[kind, "mlp"] = net, draw(25, 3, seed=1), y
        body = nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 3, 2, stride=2), nn.Tanh(), nn.Flatten()
        problems[kind, "cnn"] = nn.Sequential(*body, nn.Linear(12, 3)).double(), draw(25, 1, 4, 4, seed=1), y
    torch.save(problems, tmp_path / "problems")
    command = [sys.executable, "-c", CODE, tmp_path / "problems", tmp_path / "found"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found", weights_only=False)
    for (kind, name, *key), (curvature, evidence, predicted) in found.items():
        net, x, y = problems[kind, name]
        fitted = LaplaceApproximation(net, (x, y), likelihood=likelihoods[kind], structure=STRUCTURES[tuple(key)])
        torch.testing.assert_close(matrix(fitted.curvature), curvature, rtol=1e-9, atol=1e-9)
        assert fitted.log_marginal_likelihood(2.0) == pytest.approx(evidence, rel=1e-9)
        link = {"link": "probit"} if kind == "classification" else {}
        options = {"likelihood": likelihoods[kind], "method": "linearized"}
        result = ba.predict(net, fitted.posterior(2.0), x, **options, **link)
        ours = result.probs if kind == "classification" else result.epistemic
        torch.testing.assert_close(ours, predicted.detach(), rtol=1e-7, atol=1e-8)
