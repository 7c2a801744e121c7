"""The layers, and what importing the library may cost."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import bayesadam as ba

PACKAGE = Path(ba.__file__).parent
LAYERS = [
    "checks",
    "files",
    "scaling",
    "sharding",
    "native",
    "functional",
    "curvature",
    "noise",
    "posterior",
    "dropout",
    "swag",
    "engine",
    "optim",
    "black_box",
    "priors",
    "likelihoods",
    "bayes_by_backprop",
    "moments",
    "progress",
    "predictive",
    "active",
    "calibration",
    "conformal",
    "metrics",
    "pruning",
    "objectives",
    "posthoc",
    "population",
    "anchored",
    "bandits",
    "journal",
    "tuning",
    "tabular",
    "sklearn",
    "report",
    "runs",
    "plots",
    "integrations",
    "demo",
    "commands",
]


def imports(path, *, typing=False):
    """Modules of the library that a file imports, those under TYPE_CHECKING only if ``typing``."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if not typing and isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bayesadam"):
            yield from ([f"bayesadam.{n.name}" for n in node.names] if node.module == "bayesadam" else [node.module])
        elif isinstance(node, ast.Import):
            yield from (n.name for n in node.names if n.name.startswith("bayesadam"))


def test_layers_import_downwards_only():
    seen = 0
    for level, layer in enumerate(LAYERS):
        root = PACKAGE / layer
        for path in root.rglob("*.py") if root.is_dir() else [root.with_suffix(".py")]:
            for module in imports(path):
                imported = module.split(".")[1]
                assert LAYERS.index(imported) <= level, f"{path.relative_to(PACKAGE)} imports {module}"
                seen += 1
    assert seen > 10


@pytest.mark.parametrize("package", ["engine", "optim"])
def test_no_cycles_inside_a_package(package):
    """Imports for types alone are counted, too: what knows of each other is one thing."""
    root = PACKAGE / package
    prefix = f"bayesadam.{package}"
    graph = {
        f"{prefix}.{path.stem}": {m for m in imports(path, typing=True) if m.startswith(f"{prefix}.")}
        for path in root.glob("*.py")
        if path.stem != "__init__"
    }
    assert len(graph) > 10
    order = graphlib.TopologicalSorter(graph)
    order.prepare()  # raises CycleError with the modules in it


def test_importing_has_no_side_effects_and_needs_the_core_only():
    code = """
import sys, torch
before, state = set(sys.modules), torch.get_rng_state()
import bayesadam
assert torch.equal(torch.get_rng_state(), state)
extras = {"sklearn", "pandas", "pyarrow", "bokeh", "optuna", "matplotlib", "typer", "rich", "pooch", "scipy", "joblib"}
extras |= {"obp", "mabwiser", "stable_baselines3", "gymnasium"}
extras |= {"lightning", "pytorch_lightning", "transformers", "accelerate", "peft", "skorch"}
assert not extras & (set(sys.modules) - before), extras & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_are_few_and_documented():
    public = {name: value for name, value in vars(ba).items() if not name.startswith("_") and callable(value)}
    assert 5 < len(public) < 60
    for name, value in public.items():
        assert value.__doc__, name
