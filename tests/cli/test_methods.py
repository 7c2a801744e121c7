"""``bayesadam methods``."""

from bayesadam.commands.methods import ADVICE
from bayesadam.sklearn import METHODS


def test_every_method_is_listed(fitted):
    out = fitted("methods")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("│") and line[2] != " "] == list(METHODS)
    assert set(ADVICE) == set(METHODS)
    assert ADVICE["laplace"][0] in out
