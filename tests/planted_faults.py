"""Fifty-five faults that the tests must catch: what the power of the suite is measured by. Not collected by pytest.

    python tests/planted_faults.py               # every fault; a table in Markdown, and status 1 if one survives
    python tests/planted_faults.py 3 17          # these only

Each fault of ``planted_faults.toml`` is one changed line in a temporary copy of the tree, against which the tests named
with it are run until the first fails. Several change a number by one percent only. A text that is not found exactly
once is an error: whoever rewrites the line plants the fault anew. Results are in ``tests/planted_faults.md``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Fault(NamedTuple):
    """``old`` becomes ``new`` in a file of ``src/bayesadam``; ``tests`` are files or folders in ``tests``."""

    what: str
    file: str
    old: str
    new: str
    tests: str


with (ROOT / "tests" / "planted_faults.toml").open("rb") as file:
    FAULTS = [Fault(**fault) for fault in tomllib.load(file)["fault"]]


def pytest(tree: Path, tests: list[str]) -> tuple[bool, str, float]:
    """Whether tests fail in a tree, the first that does, and seconds."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, *(f"tests/{name}" for name in tests)], cwd=tree, env=environment, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):  # 1: a test failed; others: pytest did not run as it should
        raise SystemExit(f"the tests {tests} could not be run:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return done.returncode == 1, failed[1] if failed else "", time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, help="of the faults, from 1; default: all")
    chosen = parser.parse_args().numbers or range(1, len(FAULTS) + 1)
    survived = 0
    print("| | fault | file | first test that fails | seconds |\n|---:|---|---|---|---:|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for number in chosen:
            fault = FAULTS[number - 1]
            path = tree / "src" / "bayesadam" / fault.file
            original = path.read_text()
            if original.count(fault.old) != 1:
                raise SystemExit(f"{fault.file} must have the text of {fault.what!r} once")
            path.write_text(original.replace(fault.old, fault.new))
            caught, first, seconds = pytest(tree, fault.tests.split())
            path.write_text(original)
            survived += not caught
            found = f"`{first}`" if caught else "**survives**"
            print(f"| {number} | {fault.what} | `{fault.file}` | {found} | {seconds:.0f} |", flush=True)
    print(f"\n{len(chosen) - survived} of {len(chosen)} caught")
    raise SystemExit(survived > 0)


if __name__ == "__main__":
    main()
