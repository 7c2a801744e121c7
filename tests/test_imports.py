"""The layers, and what importing the library may cost."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bayesadam as ba
from test_public_names import EXPORTS

PACKAGE = Path(ba.__file__).parent
ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| .* \| (.*) \|$", re.M)
TABLE = {name.rstrip("/").removesuffix(".py"): imported for name, imported in ROW.findall(ARCHITECTURE)}
"""What each layer imports, in the order of the layers."""
LAYERS = list(TABLE)
SECTIONS = re.findall(r"^\*\*`(\w+)/`\*\*: (.*?)(?=^\*\*`|^## )", CONTRIBUTING, re.M | re.S)


def is_module(path):
    return path.is_dir() or path.with_suffix(".py").is_file()


@functools.cache
def imports(path, *, typing=False):
    """Modules of the library that a file imports, those under TYPE_CHECKING only if ``typing``."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if not typing and isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    modules = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bayesadam"):
            folder = PACKAGE.joinpath(*node.module.split(".")[1:])
            below = {f"{node.module}.{n.name}" for n in node.names if is_module(folder / n.name)}
            modules += below
            if node.module != "bayesadam" and len(below) < len(node.names):
                modules.append(node.module)
        elif isinstance(node, ast.Import):
            modules += (n.name for n in node.names if n.name.startswith("bayesadam"))
    return modules


def layer_of(name):
    """The layer of a module, by its name with slashes: ``tables/cli`` of ``tables/cli/app``."""
    (layer,) = {layer for layer in LAYERS if f"{name}/".startswith(f"{layer}/")}
    return layer


def test_every_module_has_one_layer():
    layers = {layer_of(path.relative_to(PACKAGE).with_suffix("").as_posix()) for path in PACKAGE.rglob("[a-z]*.py")}
    assert layers == set(LAYERS)


def test_nothing_but_its_public_names_imports_the_application():
    for path in PACKAGE.rglob("[a-z]*.py"):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        assert name == "sklearn" or name.startswith("tables/") or not any(".tables" in m for m in imports(path)), path


@pytest.mark.parametrize(("package", "text"), SECTIONS)
def test_files_that_contributing_names_exist(package, text):
    for name in re.findall(r"`([\w/]+\.(?:py|h|cpp))`", text):
        places = (PACKAGE / package, PACKAGE, ROOT / package)
        assert any((root / name).exists() for root in places), f"{package}: {name}"


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_downwards_only(layer):
    """From the layers that the table names, all of which stand above."""
    root, found = PACKAGE / layer, set()
    for path in root.rglob("*.py") if root.is_dir() else [root.with_suffix(".py")]:
        for module in imports(path):
            imported = layer_of(module.removeprefix("bayesadam.").replace(".", "/"))
            assert LAYERS.index(imported) <= LAYERS.index(layer), f"{path.relative_to(PACKAGE)} imports {module}"
            found.add(imported)
    found = [name for name in LAYERS if name in found - {layer, "checks"}]
    assert TABLE[layer] == ("many" if len(found) > 6 else ", ".join(found) or "nothing")


def test_the_application_uses_the_library_by_its_public_names():
    """Those that a package exports, and modules that are in no package or in ``functional``, which exports nothing."""
    for path in (PACKAGE / "tables").rglob("*.py"):
        for module in imports(path, typing=True):
            _, room, *names = module.split(".")
            public = not names or {*names} & {*EXPORTS.get(f"bayesadam.{room}", ())}
            assert room in ("tables", "functional") or public, f"{path.relative_to(PACKAGE)} imports {module}"


TABLES = [f"tables/{name}" for name in ("cli", "encoder", "estimators", "report", "runs")]

ACYCLIC = [
    "bayes_by_backprop",
    "calibration",
    "core",
    "curvature",
    "functional",
    "likelihoods",
    "modules",
    "moments",
    "optim",
    "population",
    "posterior",
    "posthoc",
    "predictive",
    *TABLES,
]


@pytest.mark.parametrize("package", ACYCLIC)
def test_no_cycles_inside_a_package(package):
    """Imports for types alone are counted, too: what knows of each other is one thing."""
    root = PACKAGE / package
    prefix = f"bayesadam.{package}".replace("/", ".")
    graph = {
        f"{prefix}.{path.stem}": {m for m in imports(path, typing=True) if m.startswith(f"{prefix}.")}
        for path in root.glob("*.py")
        if path.stem != "__init__"
    }
    assert graph
    order = graphlib.TopologicalSorter(graph)
    order.prepare()  # raises CycleError with the modules in it


def test_only_the_command_line_speaks_of_options():
    """The library names parameters; see ``cli/options.py``."""
    command_line = {*(PACKAGE / "tables" / "cli").glob("*.py"), *(PACKAGE / "integrations").glob("*.py")}
    for path in sorted({*PACKAGE.rglob("*.py")} - command_line):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = re.search(r"(?<![-\w])--[a-z][\w-]*", node.value)
                assert not found, f"{path.relative_to(PACKAGE)}:{node.lineno} speaks of {found and found[0]}"


def test_importing_has_no_side_effects_and_needs_the_core_only():
    code = """
import sys, torch
before, state = set(sys.modules), torch.get_rng_state()
import bayesadam
lazy = ("integrations", "plots", "sklearn")
assert not {f"bayesadam.{name}" for name in lazy} & set(sys.modules)
assert len([name for name in sys.modules if name.startswith("bayesadam")]) <= 220
from bayesadam import *
assert torch.equal(torch.get_rng_state(), state)
extras = {"sklearn", "pandas", "pyarrow", "bokeh", "optuna", "matplotlib", "typer", "rich", "pooch", "scipy", "joblib"}
extras |= {"openpyxl", "stable_baselines3", "gymnasium", "charset_normalizer"}
extras |= {"lightning", "pytorch_lightning", "transformers", "accelerate", "peft", "skorch"}
assert not extras & (set(sys.modules) - before), extras & set(sys.modules)
for name in lazy:  # there without an import of their own
    assert getattr(bayesadam, name).__name__ == f"bayesadam.{name}"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fits_of_tables_do_not_import_the_compiler():
    """PyTorch's compiler and SymPy take longer than a fit of some hundred rows."""
    code = """
import sys
import numpy as np
from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor

x = np.random.default_rng(0).standard_normal((120, 3))
for kind, y in ((BayesianMLPRegressor, x[:, 0]), (BayesianMLPClassifier, x[:, 0] > 0)):
    kind(members=2, epochs=2, random_state=0).fit(x, y).predict(x)
assert not {"torch._dynamo", "sympy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
