"""Public names: those in the ``__all__`` of the modules that have one, and in ``public_names.txt``."""

import ast
from pathlib import Path

import bayesadam as ba

PACKAGE = Path(ba.__file__).parent
LIST = Path(__file__).with_name("public_names.txt")


def exports():
    """Module and public names, without importing modules that need an extra."""
    yield "bayesadam", ba.__all__
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" and path != Path(ba.__file__):
                yield ".".join(parts).removesuffix(".__init__"), ast.literal_eval(node.value)


EXPORTS = dict(exports())
PUBLIC = sorted(module for module in EXPORTS if not module.startswith("bayesadam.integrations"))
"""Modules with public names, without those that need other people's packages."""


def test_public_names_are_those_of_the_list():
    """A name that comes or goes changes the list in the same commit; CONTRIBUTING.md has the rule for one that goes."""
    names = {f"{module}.{name}" for module, exported in EXPORTS.items() for name in exported}
    assert sorted(names) == LIST.read_text(encoding="utf-8").split()
