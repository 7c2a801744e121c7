"""The table of the guide: every cell that says yes is tested."""

import re
from pathlib import Path

import pytest

from integrations.comparison import WAYS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "guides" / "trainers.md"
FILES = {"`follow`": "follow", "Lightning": "lightning", "Hugging Face's Trainer": "transformers"}
FILES |= {"trl's `SFTTrainer`": "language_models", "Accelerate": "follow"}
FILES |= {"Accelerate with FSDP2": "accelerate_fsdp2"}
TESTS = {"evaluation at the mean": "evaluation", "resume identical": "resume", "saved = mean": "saved"}
TESTS |= {column: "as_the_plain_loop" for way in WAYS for column in way.split(", ")}
HEAD, _, *ROWS = [
    [cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", PAGE.read_text(), re.M)
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_cell_is_a_test(row):
    assert [each[0] for each in ROWS] == list(FILES)
    trainer, *cells = row
    text = (HERE / f"test_{FILES[trainer]}.py").read_text()
    for column, cell in zip(HEAD[1:], cells, strict=True):
        assert cell == "yes"
        assert f"\ndef test_{TESTS[column]}(" in text, column
