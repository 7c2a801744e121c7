"""What every benchmark's JSON says of the machine, and where and how it is written."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bayesadam.files import write_text

RUNS = Path(__file__).parents[1] / "runs" / "benchmarks"


def arguments(description: str | None = None) -> argparse.ArgumentParser:
    """A parser with ``--output``: the folder of the JSON, which git ignores unless it is named.

    The numbers of the documentation are those of ``benchmarks/results`` and tests compare them, so nobody's own run
    may change them unasked: ``--output benchmarks/results`` is for whoever updates both.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RUNS, metavar="FOLDER", help="of the JSON; default: %(default)s")
    return parser


def earlier(path: Path) -> dict[str, Any]:
    """The report of a run that goes on, or an empty one."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def conditions(*packages: str) -> dict[str, Any]:
    """Date, versions, processor, threads and the load at this moment."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_averages": [os.getloadavg()],
    }


def clock() -> float:
    """Seconds: on one thread those of the processor, which other programs disturb less than those of the clock; in a
    program that uses a GPU those of the clock, once the GPU is idle.
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def save(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(report, indent=1) + "\n")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
