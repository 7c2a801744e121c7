"""Fine-tuning: a small transformer is trained on ordinary text, and adapted to text in small letters without spaces, as
a whole and by LoRA.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

import bayesadam as ba
from default_tasks.task import Data, Task
from default_tasks.text import book, next_characters
from networks import Transformer
from record import RUNS

LENGTH, RANK = 64, 4
PRETRAINED = {"windows": 6_000, "epochs": 3, "batch_size": 32, "rate": 3e-3}


class LowRank(nn.Module):
    """A linear layer that is frozen, and a correction of low rank that is zero at first (Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """As the layer, corrected."""
        return self.layer(x) + self.up(self.down(x))


def plain() -> Transformer:
    return Transformer(len(book()[1]), width=64, depth=2, length=LENGTH)


@lru_cache(1)
def pretrained() -> dict[str, Tensor]:
    """Weights of a transformer that was trained on the first half of the book, the same for all seeds.

    They are stored, so that they are not trained again and all methods start from the same ones.
    """
    path = RUNS / "pretrained.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_pretrained(), path)
    return dict(torch.load(path))


def _pretrained() -> dict[str, Tensor]:
    codes = book()[0]
    x, y = next_characters(codes[: len(codes) // 2], 0, LENGTH, PRETRAINED["windows"], 0, 0).train
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, loss = plain(), ba.Categorical()
        optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAINED["rate"])
        steps = PRETRAINED["epochs"] * -(-len(x) // PRETRAINED["batch_size"])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(PRETRAINED["epochs"]):
            for rows in torch.randperm(len(x)).split(PRETRAINED["batch_size"]):
                optimizer.zero_grad()
                loss(model(x[rows]), y[rows]).backward()
                optimizer.step()
                schedule.step()
    return model.state_dict()


def adapter(data: Data) -> nn.Module:
    """The pretrained network, frozen, with a correction to every linear layer."""
    model = whole(data).requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(module, LowRank):
                setattr(module, name, LowRank(child, RANK))
    return model


def whole(data: Data) -> nn.Module:
    """The pretrained network, all of whose weights are trained."""
    model = plain()
    model.load_state_dict(pretrained())
    return model


@lru_cache(1)
def without_spaces() -> Tensor:
    """The second half of the book in small letters, without anything between the words but punctuation."""
    codes, alphabet = book()
    number = {character: code for code, character in enumerate(alphabet)}
    small = torch.tensor([number.get(character.lower(), number[character]) for character in alphabet])
    kept = torch.tensor([not character.isspace() for character in alphabet])
    half = codes[len(codes) // 2 :]
    return small[half[kept[half]]]


def unspaced(seed: int, size: int | None) -> Data:
    """Next characters of the second half without spaces."""
    return next_characters(without_spaces(), seed, LENGTH, size or 1_000, 160, 320)


TASKS = [
    Task("lora", unspaced, adapter, epochs=5, size=1_000, weight_decay=True),
    Task("fine-tuning", unspaced, whole, epochs=4, size=1_000, weight_decay=True),
]
