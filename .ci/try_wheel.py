"""Installs a wheel into empty environments, without extras and with each of them, and uses what each of them adds.

    python .ci/try_wheel.py dist/bayesadam-0.1.0-py3-none-any.whl torch==2.13.0

Further arguments are requirements that are installed before the wheel. The size is that of the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

FIRST_STEPS = Path(__file__).with_name("first_steps.py").read_text(encoding="utf-8")
REGRESSION = """
from sklearn.datasets import load_diabetes
from bayesadam.sklearn import BayesianMLPRegressor
table = load_diabetes(as_frame=True).frame
regressor = BayesianMLPRegressor(epochs=5).fit(table.drop(columns="target"), table["target"])
print(regressor.predict_interval(table.drop(columns="target"), coverage=0.9).shape)
"""
PLOT = """
import bayesadam as ba
import matplotlib.pyplot as plt
import torch
data = torch.rand(100, 3).softmax(-1), torch.randint(3, (100,))
print(ba.plots.reliability(plt.figure().subplots(), {"random": data}))
"""
COMMAND = """
import subprocess
import sys
print(subprocess.run([sys.executable, "-m", "bayesadam", "--help"], check=True, capture_output=True, text=True).stdout)
"""
REPORT = "from bayesadam.tables.report.page import render; print(render)"
INTEGRATIONS = "from bayesadam.integrations import lightning, optimizers, stable_baselines3, transformers"
TABLE = """
import subprocess
import sys
from pathlib import Path
from sklearn.datasets import load_diabetes
load_diabetes(as_frame=True).frame.to_csv("table.csv", index=False)
options = ["--target", "target", "--out", "run", "--members", "2", "--epochs", "5"]
subprocess.run([sys.executable, "-m", "bayesadam", "fit", "table.csv", *options], check=True)
print(Path("run/report.html").stat().st_size)
"""
PROGRAMS = {
    "": FIRST_STEPS,
    "sklearn": REGRESSION,
    "plot": PLOT,
    "cli": COMMAND,
    "report": REPORT,
    "integrations": INTEGRATIONS,
    "all": TABLE,
}
"""What is run with an extra."""


def run(python: Path, *arguments: str, folder: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, *arguments], cwd=folder, env=variables, check=True)


def try_extra(wheel: Path, extra: str, requirements: list[str]) -> float:
    """Install and use a wheel with an extra, or without if it is ""; returns the megabytes of the environment."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        if requirements:
            run(python, "-m", "pip", "install", "--quiet", *requirements, folder=folder)
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]" if extra else str(wheel), folder=folder)
        run(python, "-m", "pip", "check", folder=folder)
        run(python, "-c", PROGRAMS[extra], folder=folder)
        return sum(path.stat().st_size for path in (folder / "env").rglob("*") if path.is_file()) / 1e6


def main() -> None:
    wheel, *requirements = sys.argv[1:]
    for extra in PROGRAMS:
        size = try_extra(Path(wheel).resolve(), extra, requirements)
        print(f"== {extra or 'no extra'}: works, {size:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
