"""Laplace approximations beside laplace-torch: the same curvatures and predictions, and what they cost.

    python benchmarks/laplace.py             # writes runs/benchmarks/laplace.json
    python benchmarks/laplace.py --only kron # those whose names have this; the file keeps the results of the others

The peer and what it needs, without their own requirements (some are pinned, and torch is not to be changed)::

    pip install --no-deps laplace-torch==0.3 curvlinops-for-pytorch==3.0.1 asdfghjkl==0.1a5 asdl==0.1.5 \
        torchmetrics==1.9.0 lightning-utilities==0.15.3 linear_operator==0.6.1 einconv==0.1.0 jaxtyping==0.3.11 \
        backpack-for-pytorch==1.7.1 einops==0.8.2 opt-einsum==3.4.0 unfoldNd==0.2.3

Small: 5-30-30-3, 300 points, for classification and regression (noise 0.3). Large: 784-400-400-10, 512 points, of which
16 are predicted with Kronecker factors. Convolutional: two convolutions of 8 and 16 channels with pooling and a linear
layer on images of 16 x 16, 256 points, likewise. Fits and linearised predictions (for classification with the probit
approximation) take turns; medians, except of what runs once. "difference" is the largest one, relative to the largest
value; of a Kronecker product the rows of the first output are compared. The peer's backend is its default unless named;
for the diagonal of the large network that gets batches of 32: the Jacobians of all 512 points take 10 GB, and copies
are made.

Many classes: 64-512-3100, 2,000 points, the last layer's factors with their eigenvalues, and the peak memory of the
process, without the peer: it forms a matrix of 3,100 x 3,100 numbers for every point of a batch.
"""

from __future__ import annotations

import copy
import functools
import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam.posthoc import LaplaceApproximation
from memory import in_new_process, resident
from networks import perceptron
from peers import laplace_torch
from record import arguments, conditions, earlier, save

ROUNDS, PRIOR, NOISE = 3, 2.0, 0.3
PACKAGES = ("torch", "bayesadam", "laplace-torch", "curvlinops-for-pytorch", "backpack-for-pytorch")


def convolutional() -> nn.Sequential:
    """Two convolutions and a linear layer, on one channel of 16 x 16."""
    torch.manual_seed(0)
    first = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10))


def problem(kind: str, net: nn.Sequential, count: int) -> tuple[Tensor, Tensor, ba.likelihoods.Likelihood]:
    """Inputs, targets that the network fits roughly, and the likelihood."""
    generator = torch.Generator().manual_seed(1)
    shape = (net[0].in_features,) if isinstance(net[0], nn.Linear) else (1, 16, 16)
    x = torch.randn(count, *shape, generator=generator)
    with torch.no_grad():
        output = net(x)
    output = output + NOISE * torch.randn(output.shape, generator=generator)
    return (x, output, ba.Gaussian(NOISE**-2)) if kind == "regression" else (x, output.argmax(-1), ba.Categorical())


class Case:
    """One structure, fitted by both."""

    def __init__(
        self,
        kind: str,
        structure: str,
        net: nn.Sequential,
        count: int,
        backend: str | None = None,
        batch_size: int | None = None,
        predicted: int | None = None,
    ) -> None:
        self.predicted = predicted
        self.kind, self.structure, self.net, self.backend = kind, structure, net, backend
        self.x, self.y, self.likelihood = problem(kind, net, count)
        self.loader = DataLoader(TensorDataset(self.x, self.y), batch_size=batch_size or count)

    def ours(self) -> LaplaceApproximation:
        """Fit."""
        fitted = LaplaceApproximation(self.net, (self.x, self.y), likelihood=self.likelihood, structure=self.structure)
        if "kron" in self.structure:
            fitted.log_marginal_likelihood()  # by eigenvalues, which the peer computes when it fits
        return fitted

    def theirs(self) -> Any:
        """Fit, by the peer."""
        options: dict[str, Any] = {"sigma_noise": NOISE} if self.kind == "regression" else {}
        if self.backend:
            options["backend"] = getattr(importlib.import_module("laplace.curvature"), self.backend)
        fitted = laplace_torch().Laplace(
            copy.deepcopy(self.net),  # it leaves hooks
            self.kind,
            subset_of_weights="last_layer" if self.structure.startswith("last_layer") else "all",
            hessian_structure={"diagonal": "diag", "kron": "kron", "last_layer_kron": "kron"}.get(
                self.structure, "full"
            ),
            prior_precision=PRIOR,
            **options,
        )
        fitted.fit(self.loader)
        return fitted

    def our_prediction(self, fitted: LaplaceApproximation) -> Tensor:
        """Probabilities, or the variances of the outputs."""
        link = {} if self.kind == "regression" else {"link": "probit"}
        posterior, x = fitted.posterior(PRIOR), self.x[: self.predicted]
        found = ba.predict(self.net, posterior, x, likelihood=self.likelihood, method="linearized", **link)
        return found.epistemic if self.kind == "regression" else found.probs

    def their_prediction(self, fitted: Any) -> Tensor:
        """The same, by the peer."""
        x = self.x[: self.predicted]
        if self.kind == "regression":
            return fitted(x, pred_type="glm")[1].diagonal(dim1=-2, dim2=-1)
        return fitted(x, pred_type="glm", link_approx="probit")

    def compare(self, rounds: int, *, predict: bool = True) -> dict[str, Any]:
        """Times of both in seconds, and differences."""
        seconds: dict[str, list[float]] = {}

        def timed(name: str, function: Callable[[], Any]) -> Any:
            begin = time.perf_counter()
            result = function()
            seconds.setdefault(name, []).append(time.perf_counter() - begin)
            return result

        for number in range(rounds + (rounds > 1)):
            if number == 1:
                seconds.clear()
            ours, theirs = timed("our fit", self.ours), timed("their fit", self.theirs)
            if predict:
                prediction = timed("our prediction", lambda fitted=ours: self.our_prediction(fitted))
                their_prediction = timed("their prediction", lambda fitted=theirs: self.their_prediction(fitted))
        factor = theirs._H_factor if self.kind == "regression" else 1.0
        curvature = [_difference(own, factor * other) for own, other in _curvatures(ours, theirs)]
        evidence, their_evidence = ours.log_marginal_likelihood(PRIOR), float(theirs.log_marginal_likelihood())
        return {
            "seconds": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
            "difference of curvature": max(curvature),
            "difference of evidence": float(f"{abs(evidence / their_evidence - 1):.1e}"),
            **({"difference of prediction": _difference(prediction, their_prediction.detach())} if predict else {}),
        }


def _curvatures(ours: LaplaceApproximation, theirs: Any) -> list[tuple[Tensor, Tensor]]:
    """The curvatures, and of Kronecker products the rows of the first output; where a bias is, a row of that."""
    curvature = ours.curvature
    if isinstance(curvature, Tensor):
        return [(curvature, theirs.H.detach())]
    if isinstance(curvature, dict):
        return [(torch.cat([v.flatten() for v in curvature.values()]), theirs.H.detach())]
    own = [f for layer in curvature.layers for f in ((layer.outputs, layer.inputs), (layer.outputs,))]
    return [
        (functools.reduce(torch.kron, (a[0], *rest)), functools.reduce(torch.kron, (b[0], *others)))
        for (a, *rest), (b, *others) in zip(own, theirs.H_facs.kfacs, strict=True)
    ]


def many_classes() -> dict[str, Any]:
    """The factors of a layer of 3,100 outputs, in a new process: seconds and peak memory in GiB."""
    case = Case("classification", "last_layer_kron", perceptron(64, 512, 3100, seed=0), 2000)
    begin = time.perf_counter()
    fitted = case.ours()
    seconds = {"our fit": round(time.perf_counter() - begin, 2)}
    fitted.posterior(PRIOR)
    return {"seconds": seconds, "peak GiB": round(resident("VmHWM") / 2**30, 2)}


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float(f"{(ours - theirs).abs().max() / theirs.abs().max():.1e}")


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    """What is compared, by name."""
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for kind in ("classification", "regression"):
        net = perceptron(5, 30, 30, 3, seed=0)
        for structure in ("diagonal", "kron", "full", "last_layer", "last_layer_kron"):
            case = Case(kind, structure, net, 300)
            found[f"small {kind}, {structure}"] = lambda case=case: case.compare(ROUNDS)
    net = perceptron(784, 400, 400, 10, seed=0)
    backpack = Case("classification", "diagonal", net, 512, "BackPackGGN")
    found["large classification, diagonal, BackPACK"] = lambda: backpack.compare(1, predict=False)
    last = Case("classification", "last_layer", net, 512)
    found["large classification, last_layer"] = lambda: last.compare(1)
    default = Case("classification", "diagonal", net, 512, batch_size=32)
    found["large classification, diagonal"] = lambda: default.compare(1, predict=False)
    factored = Case("classification", "kron", net, 512, predicted=16)
    found["large classification, kron"] = lambda: factored.compare(ROUNDS)
    images = Case("classification", "kron", convolutional(), 256, predicted=16)
    found["convolutional classification, kron"] = lambda: images.compare(ROUNDS)
    found["many classes, last_layer_kron"] = lambda: in_new_process(many_classes)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names have this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    now = conditions(*PACKAGES)
    report: dict[str, Any] = {**now, "cases": {}}
    if options.only:
        report |= earlier(options.output / "laplace.json")
    for name, compare in cases().items():
        if options.only in name:
            result = {**compare(), **{key: now[key] for key in ("date", "threads", "load_averages")}}
            print(f"{name}: {result}", flush=True)
            report["cases"][name] = result
            save(options.output / "laplace.json", report)


if __name__ == "__main__":
    main()
