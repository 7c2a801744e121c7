"""What is installed: the wheel in an environment that has what it says it needs, and nothing else."""

import contextlib
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bayesadam as ba

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "bayesadam"
FIRST_STEPS = ROOT / ".ci" / "first_steps.py"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="the wheel is built by hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.iterdir()
    return path


@pytest.mark.nightly
def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        entry_points = archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()
    expected = {
        f"bayesadam/{path.relative_to(SOURCES).as_posix()}"
        for path in SOURCES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected
    assert any(name.endswith(".cpp") for name in packed)
    assert "bayesadam = bayesadam.tables.cli:main" in entry_points


def needed(requirements):
    """Distributions that are needed, and all that these need, as far as markers ask for them here."""
    found, waiting = {}, [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        asked = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if asked and requirement.name not in found:
            with contextlib.suppress(metadata.PackageNotFoundError):  # CUDA, which PyTorch for CPUs is built without
                found[requirement.name] = metadata.distribution(requirement.name)
                waiting += [Requirement(text) for text in found[requirement.name].requires or ()]
    return list(found.values())


@pytest.mark.nightly
def test_the_wheel_works_in_a_clean_environment(wheel, tmp_path):
    """Dependencies are linked, not downloaded: those that the wheel names, and theirs."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=os.name != "nt")
    python = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    command = [sys.executable, "-m", "pip", "--python", str(python), *install]
    subprocess.run(command, check=True, timeout=120)
    (installed,) = (tmp_path / "env").rglob("bayesadam/__init__.py")
    site = installed.parents[1]
    (info,) = site.glob("bayesadam-*.dist-info")
    told = metadata.PathDistribution(info)
    assert told.version == ba.__version__
    dependencies = needed(told.requires)
    assert {"torch", "numpy", "safetensors"} <= {d.metadata["Name"] for d in dependencies}
    assert not {"scikit-learn", "optuna", "rich", "pandas"} & {d.metadata["Name"] for d in dependencies}
    for distribution in dependencies:
        for name in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / name).exists():
                (site / name).symlink_to(distribution.locate_file(name))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-W", "error", FIRST_STEPS],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(installed), ba.__version__, "(10,", "1)"]
    script = python.parent / "bayesadam"
    done = subprocess.run([script, "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'bayesadam: the command line needs an extra: pip install "bayesadam[cli]"\n'


def test_the_page_about_versions_has_the_formats_and_the_least_versions():
    from bayesadam import files
    from bayesadam.tables.estimators import storage as estimators
    from bayesadam.tables.report import write as reports
    from bayesadam.tables.runs import settings

    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    written = {
        "posterior,": files.VERSION,
        "`model.json`": estimators.VERSION,
        "`config.json`": settings.FORMAT_VERSION,
        "`report.json`": reports.VERSION,
    }
    rows = [line.split("|") for line in page.splitlines() if line.count("|") == 5]
    shown = {row[1].split()[0]: row[3].strip() for row in rows}
    assert {name: str(version) for name, version in written.items()}.items() <= shown.items()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, package in (("Python", 'requires-python = "'), ("PyTorch", '"torch'), ("NumPy", '"numpy')):
        (least,) = re.findall(rf"{package}>=([\d.]+)\"", project)
        assert f"| {name} | {least} or newer |" in page
    (tested,) = re.findall(r'"torch==([\d.]+)"', project)
    assert f"| PyTorch | 2.6 or newer | {tested}, for CPUs |" in page
