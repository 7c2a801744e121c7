"""What a whole training iteration costs: forward and backward pass, and a sample and a step of the optimiser.

    python benchmarks/iteration.py --threads 1     # prints the tables, writes runs/benchmarks/iteration.json

The ratios are to an iteration with ``torch.optim.Adam(fused=True)``. "drop-in" is ``opt.train()`` and an ordinary loop,
"blocks" is ``with opt.sampled_params(): ...``, "compiled" is ``compile=True``; ``ivon-opt`` is
``sampled_params(train=True)`` and ``step()``.

"squares" is Adam's iteration with ``PerExampleSquares`` on, all means of squares read: what curvature alone costs. The
peers compute the same squares during Adam's iteration: BackPACK (``SumGradSquared``), Opacus (``grad_sample``,
squared), and ``torch.func``'s ``vmap(grad)`` in chunks of bounded memory. One that raises, or leaves a parameter out,
"fails" with the reason in the JSON; "error" is the largest difference from ``vmap(grad)`` in float64 on one minibatch,
relative to the parameter's largest entry.

The peers would exchange torch if they could choose; `make benchmark` installs them without their dependencies.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesadam.curvature import PerExampleSquares
from contenders import NUM_DATA, Step, iteration_of_adam, optimizer
from networks import Transformer, perceptron
from record import arguments, conditions, save
from turns import take_turns

REFERENCE = "Adam fused"
VMAP_BYTES = 256 * 2**20

Loss = Callable[[Tensor, Tensor], Tensor]
Squares = Callable[[], list[Tensor]]
Contender = tuple[Step, Squares | None]
"""A training iteration, and the mean squares of the examples' gradients where it computes them."""


def transformer(width: int = 256) -> nn.Module:
    return Transformer(1000, width=width, depth=4, length=64)


def convnet() -> nn.Module:
    convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))


def of_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


@dataclass
class Case:
    """A model, its minibatch and its loss, the same for every contender."""

    make: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    loss: Loss
    rounds: int

    def model(self) -> nn.Module:
        """The same weights every time."""
        torch.manual_seed(0)
        return self.make()

    def backward(self, model: nn.Module) -> None:
        """Of the minibatch."""
        self.loss(model(self.x), self.y).backward()


def cases() -> dict[str, Case]:
    torch.manual_seed(1)
    classes, tokens = torch.randint(0, 10, (128,)), torch.randint(0, 1000, (16, 65))
    text = tokens[:, :-1], tokens[:, 1:], of_tokens
    return {
        "mlp": Case(partial(perceptron, 784, 400, 400, 10), torch.randn(128, 784), classes, F.cross_entropy, 41),
        "convnet": Case(convnet, torch.randn(128, 1, 28, 28), classes, F.cross_entropy, 15),
        "transformer": Case(transformer, *text, 9),
        "transformer 128 wide": Case(partial(transformer, 128), *text, 15),
    }


def plain(case: Case) -> Contender:
    model = case.model()
    return iteration_of_adam(model.parameters(), lambda: case.backward(model)), None


def with_squares(case: Case) -> Contender:
    model = case.model()
    collector = PerExampleSquares(model)

    def squares() -> list[Tensor]:
        collector.start()
        case.backward(model)
        collector.stop()
        return [collector.mean_squares(p) for p in model.parameters()]

    return iteration_of_adam(model.parameters(), squares), squares


def perturbed(case: Case, method: str, compile: bool, drop_in: bool = False) -> Contender:
    model = case.model()
    opt = optimizer(method, model, lr=1e-3, compile=compile)
    if drop_in:
        opt.train()

    def iterate() -> None:
        with nullcontext() if drop_in else opt.sampled_params():
            opt.zero_grad()
            case.backward(model)
        opt.step()

    return iterate, None


def ivon_opt(case: Case) -> Contender:
    import ivon

    model = case.model()
    opt = ivon.IVON(model.parameters(), lr=1e-3, ess=NUM_DATA, weight_decay=1 / NUM_DATA)

    def iterate() -> None:
        with opt.sampled_params(train=True):
            opt.zero_grad()
            case.backward(model)
        opt.step()

    return iterate, None


def backpack(case: Case) -> Contender:
    from backpack import backpack as collecting
    from backpack import extend
    from backpack.extensions import SumGradSquared

    model, loss = extend(case.model()), extend(nn.CrossEntropyLoss())

    def squares() -> list[Tensor]:
        with collecting(SumGradSquared()):
            loss(model(case.x).flatten(0, -2), case.y.flatten()).backward()
        # Gradients are those of the mean: n times the sum of their squares is the mean of the examples' squares.
        return [p.sum_grad_squared.mul_(len(case.x)) for p in model.parameters()]

    return iteration_of_adam(model.parameters(), squares), squares


def opacus(case: Case) -> Contender:
    from opacus.grad_sample import GradSampleModule

    model = GradSampleModule(case.model())

    def squares() -> list[Tensor]:
        for p in model.parameters():
            p.grad_sample = None
        case.backward(model)
        return [p.grad_sample.square().mean(0) for p in model.parameters()]

    return iteration_of_adam(model.parameters(), squares), squares


def vmap(case: Case) -> Contender:
    model = case.model()
    squares = vmapped(case, model)

    def both() -> None:
        case.backward(model)
        squares()

    return iteration_of_adam(model.parameters(), both), squares


def vmapped(case: Case, model: nn.Module) -> Squares:
    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return case.loss(torch.func.functional_call(model, values, (x[None],)), y[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    bytes_each = sum(p.nbytes for p in model.parameters())
    chunk = max(1, VMAP_BYTES // bytes_each)

    def compute() -> list[Tensor]:
        values = {name: p.detach() for name, p in model.named_parameters()}
        totals = {name: torch.zeros_like(p) for name, p in values.items()}
        for x, y in zip(case.x.split(chunk), case.y.split(chunk), strict=True):
            for name, found in gradients(values, x, y).items():
                totals[name] += found.square_().sum(0)
        return [total.div_(len(case.x)) for total in totals.values()]

    return compute


CONTENDERS: dict[str, Callable[[Case], Contender]] = {
    REFERENCE: plain,
    "ivon-opt": ivon_opt,
    **{
        f"{method} drop-in{' compiled' if on else ''}": partial(perturbed, method=method, compile=on, drop_in=True)
        for method in ("BayesAdam", "Vadam", "IVON")
        for on in (False, True)
    },
    "VOGN blocks": partial(perturbed, method="VOGN", compile=False),
    "VOGN blocks compiled": partial(perturbed, method="VOGN", compile=True),
    "squares": with_squares,
    "BackPACK": backpack,
    "Opacus": opacus,
    "vmap(grad)": vmap,
}


def largest_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(float((f - e).abs().max() / e.abs().max()) for f, e in zip(found, expected, strict=True))


def reference(case: Case) -> list[Tensor]:
    exact = copy.copy(case)
    exact.x = case.x.double() if case.x.is_floating_point() else case.x
    return vmapped(exact, case.model().double())()


def measure(case: Case, names: Sequence[str]) -> dict[str, Any]:
    """Times and errors of the contenders that work, and the reasons of those that do not."""
    expected = reference(case)
    rows: dict[str, dict[str, Any]] = {}
    working: dict[str, Step] = {}
    for name in names:
        try:
            iterate, squares = CONTENDERS[name](case)
            if squares is not None:
                rows[name] = {"error": float(f"{largest_error(squares(), expected):.2g}")}
            iterate()
        except Exception as error:  # of any kind: a peer's, to be reported
            rows[name] = {"fails": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
            print(f"  {name:34} fails: {rows[name]['fails'][:80]}")
        else:
            working[name] = iterate
    times = take_turns(working, case.rounds)
    count = sum(p.numel() for p in case.model().parameters())
    results = {name: {**rows.get(name, {}), **times.get(name, {})} for name in names}
    return {"parameters": count, "examples": len(case.x), "rounds": case.rounds, "results": results}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(cases()), default=list(cases()))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # of the peers
    names = list(dict.fromkeys([REFERENCE, *options.contenders]))
    report: dict[str, Any] = conditions("torch", "bayesadam", "ivon-opt", "backpack-for-pytorch", "opacus")
    report["cases"] = {}
    for name in options.cases:
        print(name)
        report["cases"][name] = measure(cases()[name], names)
    report["load_averages"].append(os.getloadavg())
    save(options.output / "iteration.json", report)


if __name__ == "__main__":
    main()
