"""Type checkers must know the arguments that the constructors show at run time."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayesadam.optim import OPTIMIZERS, arguments

ROOT = Path(__file__).parents[2]

SNIPPET = """
import bayesadam as ba
from torch import nn

model = nn.Linear(1, 1)
ba.IVON(model.parameters(), 0.1, num_data=10, clip_radius=1.0, total_steps=5, prior=2.0)
ba.VOGN(model.parameters(), num_data=10, curvature=ba.PerExampleSquares(model), batch_size=5)
ba.VAN(model.parameters(), num_data=10, hessian="exact", seed=1)
ba.IVON(model.parameters(), num_data=10, clip_radus=1.0)
ba.VON(model.parameters(), num_data=10, mc_sample=2)
ba.VadaGrad(model.parameters(), initial_precision=1.0, temperature=1.0)
ba.Vadam(model.parameters(), num_data=10, seed="one")
ba.IVON(model.parameters())
"""


def static_names(cls):
    """Names of a constructor's arguments in the source, with those of the type of its ``**options``."""
    tree = ast.parse(inspect.getsource(cls))
    init = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    own = [argument.arg for argument in (*init.args.args[1:], *init.args.kwonlyargs)]
    passed_on = getattr(arguments, init.args.kwarg.annotation.slice.id).__annotations__
    return [*own, *passed_on]


@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=lambda cls: cls.__name__)
def test_names_are_those_at_run_time(cls):
    assert sorted(static_names(cls)) == sorted(inspect.signature(cls).parameters)


def test_mypy_reports_misspelt_options_and_wrong_types(tmp_path):
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml"]
    command += ["--cache-dir", ROOT / ".mypy_cache", path]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    output = subprocess.run(command, capture_output=True, text=True, env=environment).stdout
    found = [line.split(": error: ", 1) for line in output.splitlines() if ": error: " in line]
    assert [(int(place.rsplit(":", 1)[1]), message) for place, message in found] == [
        (9, 'Unexpected keyword argument "clip_radus" for "IVON"; did you mean "clip_radius"?  [call-arg]'),
        (10, 'Unexpected keyword argument "mc_sample" for "VON"; did you mean "mc_samples"?  [call-arg]'),
        (11, 'Unexpected keyword argument "temperature" for "VadaGrad"  [call-arg]'),
        (12, 'Argument "seed" to "Vadam" has incompatible type "str"; expected "int"  [arg-type]'),
        (13, 'Missing named argument "num_data" for "IVON"  [call-arg]'),
    ], output
