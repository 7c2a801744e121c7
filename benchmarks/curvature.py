"""What squared per-example gradients cost: one training iteration, with and without them, in one process.

    python benchmarks/curvature.py        # prints the tables, writes runs/benchmarks/curvature.json

All contenders live in one process and take turns, round by round; in its turn each makes one iteration that is not
timed and three that are. The tables have medians, and the ratio to an ordinary iteration with
``torch.optim.Adam(fused=True)``.

"squares" is that iteration with ``PerExampleSquares`` on, all means of squares read, and Adam's step: what curvature
alone costs. "VOGN" is a whole iteration of the optimiser that uses them, with one posterior sample; "VOGN compiled" has
``compile=True``, and "Vadam compiled" shows what is not curvature in it. The peers compute
the same squares during Adam's iteration: BackPACK (``SumGradSquared``), Opacus (``grad_sample``, squared), and
``torch.func``'s ``vmap(grad)`` in chunks of bounded memory. One that raises, or leaves a parameter out, "fails" with
the reason in the JSON; "error" is the largest difference from ``vmap(grad)`` in float64 on one minibatch, relative to
the parameter's largest entry. Other load on the machine shows in all numbers; load averages are in the JSON.

The peers would exchange torch if they could choose; `make benchmark` installs them without their dependencies.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesadam as ba
from bayesadam.curvature import PerExampleSquares
from record import arguments, conditions, save

REFERENCE = "Adam fused"
TIMED = 3
VMAP_BYTES = 256 * 2**20

Loss = Callable[[Tensor, Tensor], Tensor]
Iteration = Callable[[], Any]
Squares = Callable[[], list[Tensor]]


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Causal."""
        qkv = self.attend(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).transpose(-2, -4)
        q, k, v = qkv.unbind(-3)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-2, -3).flatten(-2)
        x = x + self.project(attended)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A transformer that predicts the next token."""

    def __init__(self, vocabulary: int = 1000, width: int = 256, layers: int = 4, context: int = 64) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Logits at every position."""
        # One row of positions for every example: the peers need that.
        places = torch.arange(x.shape[-1], device=x.device).expand(x.shape)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(places))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))


def convnet() -> nn.Module:
    convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))


def of_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class Case:
    """A model, its minibatch and its loss, the same for every contender."""

    def __init__(self, make: Callable[[], nn.Module], x: Tensor, y: Tensor, loss: Loss, rounds: int) -> None:
        self.make, self.x, self.y, self.loss, self.rounds = make, x, y, loss, rounds

    def model(self) -> nn.Module:
        """The same weights every time."""
        torch.manual_seed(0)
        return self.make()


def cases() -> dict[str, Case]:
    torch.manual_seed(1)
    classes, tokens = torch.randint(0, 10, (128,)), torch.randint(0, 1000, (16, 65))
    return {
        "mlp": Case(mlp, torch.randn(128, 784), classes, F.cross_entropy, 21),
        "convnet": Case(convnet, torch.randn(128, 1, 28, 28), classes, F.cross_entropy, 9),
        "transformer": Case(Decoder, tokens[:, :-1], tokens[:, 1:], of_tokens, 7),
    }


def plain(case: Case) -> tuple[Iteration, None]:
    model = case.model()
    opt = torch.optim.Adam(model.parameters(), fused=True)

    def iterate() -> None:
        opt.zero_grad()
        case.loss(model(case.x), case.y).backward()
        opt.step()

    return iterate, None


def with_squares(case: Case) -> tuple[Iteration, Squares]:
    model = case.model()
    opt, squares = torch.optim.Adam(model.parameters(), fused=True), PerExampleSquares(model)

    def compute() -> list[Tensor]:
        opt.zero_grad()
        squares.start()
        case.loss(model(case.x), case.y).backward()
        squares.stop()
        return [squares.mean_squares(p) for p in model.parameters()]

    def iterate() -> None:
        compute()
        opt.step()

    return iterate, compute


def perturbed(case: Case, method: str, compile: bool, drop_in: bool = False) -> tuple[Iteration, None]:
    model = case.model()
    own = {"VOGN": {"curvature": PerExampleSquares(model)}, "BayesAdam": {"batch_size": len(case.x)}}
    opt = getattr(ba, method)(model.parameters(), lr=1e-3, num_data=60_000, compile=compile, **own.get(method, {}))
    if drop_in:
        opt.train()

    def iterate() -> None:
        with nullcontext() if drop_in else opt.sampled_params():
            opt.zero_grad()
            case.loss(model(case.x), case.y).backward()
        opt.step()

    return iterate, None


def backpack(case: Case) -> tuple[Iteration, Squares]:
    from backpack import backpack as collecting
    from backpack import extend
    from backpack.extensions import SumGradSquared

    model, loss = extend(case.model()), extend(nn.CrossEntropyLoss())
    opt = torch.optim.Adam(model.parameters(), fused=True)

    def compute() -> list[Tensor]:
        opt.zero_grad()
        with collecting(SumGradSquared()):
            output = model(case.x)
            loss(output.flatten(0, -2), case.y.flatten()).backward()
        # Gradients are those of the mean: n times the sum of their squares is the mean of the examples' squares.
        return [p.sum_grad_squared.mul_(len(case.x)) for p in model.parameters()]

    def iterate() -> None:
        compute()
        opt.step()

    return iterate, compute


def opacus(case: Case) -> tuple[Iteration, Squares]:
    from opacus.grad_sample import GradSampleModule

    model = GradSampleModule(case.model())
    opt = torch.optim.Adam(model.parameters(), fused=True)

    def compute() -> list[Tensor]:
        opt.zero_grad()
        for p in model.parameters():
            p.grad_sample = None
        case.loss(model(case.x), case.y).backward()
        return [p.grad_sample.square().mean(0) for p in model.parameters()]

    def iterate() -> None:
        compute()
        opt.step()

    return iterate, compute


def vmap(case: Case) -> tuple[Iteration, Squares]:
    model = case.model()
    compute = vmapped(case, model)
    opt = torch.optim.Adam(model.parameters(), fused=True)

    def iterate() -> None:
        opt.zero_grad()
        case.loss(model(case.x), case.y).backward()
        compute()
        opt.step()

    return iterate, compute


def vmapped(case: Case, model: nn.Module) -> Squares:
    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return case.loss(torch.func.functional_call(model, values, (x[None],)), y[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    bytes_each = sum(p.nbytes for p in model.parameters())
    chunk = max(1, VMAP_BYTES // bytes_each)

    def compute() -> list[Tensor]:
        values = {name: p.detach() for name, p in model.named_parameters()}
        totals = {name: torch.zeros_like(p) for name, p in values.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for x, y in zip(case.x.split(chunk), case.y.split(chunk), strict=True):
                for name, found in gradients(values, x, y).items():
                    totals[name] += found.square_().sum(0)
        return [total.div_(len(case.x)) for total in totals.values()]

    return compute


CONTENDERS: dict[str, Callable[[Case], tuple[Iteration, Squares | None]]] = {
    REFERENCE: plain,
    "squares": with_squares,
    "VOGN": partial(perturbed, method="VOGN", compile=False),
    "VOGN compiled": partial(perturbed, method="VOGN", compile=True),
    "Vadam compiled": partial(perturbed, method="Vadam", compile=True),
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


def made(case: Case, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any], Iteration | None]]:
    """Contenders that work, with their error, and those that do not, with the reason."""
    expected = reference(case)
    for name in names:
        row: dict[str, Any] = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                iterate, compute = CONTENDERS[name](case)
                if compute is not None:
                    row["error"] = float(f"{largest_error(compute(), expected):.2g}")
                iterate()
        except Exception as error:  # of any kind: a peer's, to be reported
            yield name, {"fails": f"{type(error).__name__}: {error}".splitlines()[0][:300]}, None
        else:
            yield name, row, iterate


def measure(case: Case, names: Sequence[str]) -> dict[str, Any]:
    rows, iterations = {}, {}
    for name, row, iterate in made(case, names):
        rows[name] = row
        if iterate is not None:
            iterations[name] = iterate
    seconds: dict[str, list[float]] = {name: [] for name in iterations}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(case.rounds):
            for name, iterate in iterations.items():
                iterate()
                for _ in range(TIMED):
                    begin = time.perf_counter()
                    iterate()
                    seconds[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        rows[name]["milliseconds"] = round(median * 1e3, 3)
        rows[name]["lower_quartile_milliseconds"] = round(statistics.quantiles(seconds[name])[0] * 1e3, 3)
        rows[name]["ratio"] = round(median / medians[REFERENCE], 3)
    count = sum(p.numel() for p in case.model().parameters())
    return {"parameters": count, "examples": len(case.x), "iterations": TIMED * case.rounds, "results": rows}


def print_case(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}: {found['parameters']:,} parameters, {found['examples']} examples")
    print(f"{'':24}{'ms':>10}{'ratio':>9}{'error':>10}")
    for contender, row in found["results"].items():
        if "fails" in row:
            print(f"{contender:24}{'fails':>10}   {row['fails'][:90]}")
        else:
            error = f"{row['error']:10.1e}" if "error" in row else ""
            print(f"{contender:24}{row['milliseconds']:10.2f}{row['ratio']:9.2f}{error}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(cases()), default=list(cases()))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = list(dict.fromkeys([REFERENCE, *options.contenders]))
    report: dict[str, Any] = {
        **conditions("torch", "bayesadam", "backpack-for-pytorch", "opacus"),
        "cases": {},
    }
    for name in options.cases:
        report["cases"][name] = measure(cases()[name], names)
        print_case(name, report["cases"][name])
    report["load_averages"].append(os.getloadavg())
    save(options.output / "curvature.json", report)
    print(f"\nwrote {options.output / 'curvature.json'}")


if __name__ == "__main__":
    main()
