"""Whether the steps of optimisers have become slower since the last release.

    python benchmarks/against.py last/optimizer_step.json now/optimizer_step.json

Both files are reports of ``optimizer_step.py``, whose times are ratios to Adam in the same run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SLOWER = 1.25
"""The factor from which a step counts as slower: ratios of two runs on one machine differ by up to a fifth."""


def factors(last: dict[str, Any], now: dict[str, Any]) -> dict[tuple[str, str], float]:
    """How many times as long a step takes as before, by case and contender, for those that both have."""
    return {
        (case, name): result["ratio"] / last["cases"][case]["results"][name]["ratio"]
        for case, measured in now["cases"].items()
        if case in last["cases"]
        for name, result in measured["results"].items()
        if name in last["cases"][case]["results"]
    }


def main() -> None:
    last, now = (json.loads(Path(path).read_text()) for path in sys.argv[1:])
    compared = factors(last, now)
    for (case, name), factor in compared.items():
        print(f"{case:12} {name:30} {factor:6.2f}")
    slower = [f"{name}, {case}" for (case, name), factor in compared.items() if factor > SLOWER]
    if slower:
        sys.exit(f"slower than before by more than a factor of {SLOWER}: {'; '.join(slower)}")


if __name__ == "__main__":
    main()
