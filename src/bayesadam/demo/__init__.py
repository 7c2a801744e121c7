"""The demo shows in a minute what a posterior adds, on data from scikit-learn and on generated data.

The examples are prices whose noise grows (``prices.py``), images of digits (``digits.py``) and a curve with a gap in
its data (``curve.py``), each in comparison with the usual methods. The library's methods have their default settings.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from bayesadam.demo.curve import compare_bands
from bayesadam.demo.digits import compare_digits
from bayesadam.demo.effort import FULL, QUICK, Advance, Effort
from bayesadam.demo.figures import draw
from bayesadam.demo.prices import compare_prices, write_table
from bayesadam.demo.sentences import summary
from bayesadam.files import write_text

__all__ = ["FULL", "QUICK", "Advance", "Effort", "run"]


def run(folder: Path, *, seed: int, advance: Advance, effort: Effort = FULL) -> dict[str, Any]:
    """Train everything; write ``metrics.json``, ``report.txt``, the figures and the trained networks into ``folder``.

    Args:
        folder: Folder of the results, which is created if it does not exist.
        seed: Seed of data, networks and noise. The same seed gives the same numbers.
        advance: Function that is called during the training.
        effort: Amount of training.

    Returns:
        The contents of ``metrics.json``: the sentences of the first screen, and the numbers from which they are
        computed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "prices": compare_prices(effort, seed=seed, advance=advance),
        "digits": compare_digits(effort, seed=seed, advance=advance),
        "curve": compare_bands(effort, seed=seed, advance=advance),
    }
    numbers = {name: part.numbers for name, part in found.items()}
    record: dict[str, Any] = {"seed": seed, "effort": dataclasses.asdict(effort), **numbers}
    record["sentences"] = summary(record)
    write_text(folder / "metrics.json", json.dumps(record, indent=2) + "\n")
    first = found["digits"].shown
    write_text(folder / "report.txt", f"{first['report']}\n")
    first["posterior"].save(folder / "digits_ivon.safetensors")
    write_table(folder / "prices.csv", found["prices"].shown["training"])
    draw(folder, found)
    return record
