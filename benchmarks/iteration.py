"""What a whole training iteration costs: forward and backward pass, and a sample and a step of the optimiser.

    python benchmarks/iteration.py        # prints the tables, writes runs/benchmarks/iteration.json

All contenders live in one process and take turns, round by round, as in ``curvature.py``, whose models and minibatches
these are, and a transformer that is half as wide (52 tensors). The tables have medians, and the ratio to an iteration
with ``torch.optim.Adam(fused=True)``. "drop-in" is ``opt.train()`` and an ordinary loop, "compiled" ``compile=True``;
``ivon-opt`` is ``sampled_params(train=True)`` and ``step()``.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

import curvature
from curvature import Case, Decoder, Iteration, measure, of_tokens, perturbed, plain, print_case
from record import arguments, conditions, save


def ivon_opt(case: Case) -> tuple[Iteration, None]:
    import ivon

    model = case.model()
    opt = ivon.IVON(model.parameters(), lr=1e-3, ess=60_000, weight_decay=1 / 60_000)

    def iterate() -> None:
        with opt.sampled_params(train=True):
            opt.zero_grad()
            case.loss(model(case.x), case.y).backward()
        opt.step()

    return iterate, None


CONTENDERS = {
    curvature.REFERENCE: plain,
    "ivon-opt": ivon_opt,
    **{
        f"{method} drop-in{' compiled' if on else ''}": partial(perturbed, method=method, compile=on, drop_in=True)
        for method in ("BayesAdam", "Vadam", "IVON")
        for on in (False, True)
    },
    "Vadam blocks compiled": partial(perturbed, method="Vadam", compile=True),
    "VOGN blocks": partial(perturbed, method="VOGN", compile=False),
    "VOGN blocks compiled": partial(perturbed, method="VOGN", compile=True),
}


def cases() -> dict[str, Case]:
    torch.manual_seed(2)
    tokens = torch.randint(0, 1000, (16, 65))
    small = Case(lambda: Decoder(width=128), tokens[:, :-1], tokens[:, 1:], of_tokens, 15)
    return {**curvature.cases(), "transformer 128 wide": small}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(cases()), default=list(cases()))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    curvature.CONTENDERS.update(CONTENDERS)
    names = list(dict.fromkeys([curvature.REFERENCE, *options.contenders]))
    report: dict[str, Any] = {**conditions("torch", "bayesadam", "ivon-opt"), "cases": {}}
    for name in options.cases:
        report["cases"][name] = measure(cases()[name], names)
        print_case(name, report["cases"][name])
    report["load_averages"].append(os.getloadavg())
    save(options.output / "iteration.json", report)
    print(f"wrote {options.output / 'iteration.json'}")


if __name__ == "__main__":
    main()
