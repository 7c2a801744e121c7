"""Five things that ordinary training loops do, with ``ba.IVON`` and with ``ivon-opt``: which of them work.

    python benchmarks/training_loops.py        # prints the table, writes runs/benchmarks/training_loops.json

Each check is short and says what it measured; none depends on how well a network trains.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import ivon
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import bayesadam as ba
from record import arguments, conditions, save

Check = tuple[bool, str]


class Case:
    """A network, its data, and one of the two optimisers, with settings that are the same for both."""

    def __init__(self, kind: str, num_data: int = 1000, mc_samples: int = 1) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.x, self.y = torch.randn(32, 8), torch.randint(0, 2, (32,))
        self.ours = kind == "ba.IVON"
        if self.ours:
            parameters = self.model.named_parameters()
            self.optimizer: Any = ba.IVON(parameters, lr=0.1, num_data=num_data, mc_samples=mc_samples)
        else:
            self.optimizer = ivon.IVON(self.model.parameters(), lr=0.1, ess=num_data)

    def block(self) -> AbstractContextManager[Any]:
        """Where the weights are a sample."""
        return self.optimizer.sampled_params() if self.ours else self.optimizer.sampled_params(train=True)

    def loss(self) -> Tensor:
        """The mean over the data."""
        return nn.functional.cross_entropy(self.model(self.x).float(), self.y)

    def weights(self) -> Tensor:
        """All of them, ``(P,)``."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def exception(kind: str) -> Check:
    """An exception, or Ctrl-C, inside a sampling block: are the weights the mean again?"""
    case = Case(kind)
    before = case.weights().clone()
    try:
        with case.block():
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    gap = float((case.weights() - before).abs().max())
    return gap == 0.0, f"largest distance from the mean {gap:.2g}"


def one_cycle(kind: str) -> Check:
    """PyTorch's ``OneCycleLR``."""
    try:
        torch.optim.lr_scheduler.OneCycleLR(Case(kind).optimizer, 0.1, total_steps=10)
    except ValueError as error:
        return False, f"{type(error).__name__}: {error}"
    return True, "accepted"


def scaler(kind: str) -> Check:
    """``GradScaler``: five steps with a scale of 1,024 and without one end at the same weights."""
    ends = []
    for scale in (1.0, 1024.0):
        case = Case(kind)
        torch.manual_seed(1)
        amp = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1.0)
        for _ in range(5):
            with case.block():
                case.optimizer.zero_grad()
                amp.scale(case.loss()).backward()
            amp.step(case.optimizer)
            amp.update()
        ends.append(case.weights())
    gap = float((ends[0] - ends[1]).abs().max())
    return gap < 1e-4, f"largest difference of a weight {gap:.2g}"


def autocast(kind: str) -> Check:
    """Four samples inside one autocast region: do the outputs differ?"""
    case = Case(kind, num_data=10, mc_samples=4)
    outputs = []
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(4):
            with case.block():
                output = case.model(case.x)
                nn.functional.cross_entropy(output.float(), case.y).backward()
            outputs.append(output.detach().float())
    spread = float(torch.stack(outputs).std(0).max())
    return spread > 0.0, f"largest standard deviation over the samples {spread:.2g}"


def checkpoint(kind: str) -> Check:
    """``torch.distributed.checkpoint``: the state by names of parameters."""
    case = Case(kind)
    with case.block():
        case.loss().backward()
    case.optimizer.step()
    try:
        get_optimizer_state_dict(case.model, case.optimizer)
    except Exception as error:  # of whatever kind: the table says which
        return False, f"{type(error).__name__}: {error}"
    return True, "gathered"


CHECKS: tuple[Callable[[str], Check], ...] = (exception, one_cycle, scaler, autocast, checkpoint)
KINDS = ("ba.IVON", "ivon-opt")


def main() -> None:
    options = arguments(__doc__).parse_args()
    found: dict[str, Any] = {}
    for check in CHECKS:
        question = (check.__doc__ or "").strip()
        print(question)
        for kind in KINDS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                works, measured = check(kind)
            print(f"  {kind:10} {'works' if works else 'FAILS'}: {measured}", flush=True)
            found.setdefault(check.__name__, {"question": question})[kind] = {"works": works, "measured": measured}
    save(options.output / "training_loops.json", conditions("torch", "ivon-opt", "bayesadam") | {"checks": found})


if __name__ == "__main__":
    main()
