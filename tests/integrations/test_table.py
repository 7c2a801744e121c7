"""The table of the guide: every cell that says yes has a test of its name."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "guides" / "trainers.md"
FILES = {"`follow`": "follow", "Lightning": "lightning", "Hugging Face's Trainer": "transformers"}
FILES |= {"trl's `SFTTrainer`": "trl", "Accelerate": "accelerate", "Accelerate with FSDP2": "accelerate_fsdp2"}
FILES |= {"skorch": "skorch"}
TESTS = {"evaluation at the mean": "evaluation", "resume identical": "resume", "saved = mean": "saved", "AMP": "amp"}


def cells():
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", PAGE.read_text(), re.M)]
    head, _, *body = rows
    assert [row[0] for row in body] == list(FILES)
    for trainer, *row in body:
        for name, cell in zip(head[1:], row, strict=True):
            yield pytest.param(trainer, name, cell, id=f"{FILES[trainer]}-{TESTS.get(name, name)}")


@pytest.mark.parametrize(("trainer", "name", "cell"), list(cells()))
def test_every_cell_is_a_test(trainer, name, cell):
    assert cell == "yes"
    text = (HERE / f"test_{FILES[trainer]}.py").read_text()
    assert re.search(rf"^def test_{TESTS.get(name, name)}\(", text, re.MULTILINE)
