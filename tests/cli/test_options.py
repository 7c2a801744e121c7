"""Options in place of the parameters that messages of the library name."""

from pathlib import Path

import pytest

from bayesadam.commands.options import fit_command, parse_hidden, with_options
from bayesadam.runs import RunError, Settings, Watcher


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`held_out` must be in (0, 0.5], got 0.9", "--held-out must be in (0, 0.5], got 0.9"),
        ("`keep` must not be a column of `drop`, got 'a'", "--keep must not be a column of --drop, got 'a'"),
        (
            "'1/1/21' is a guess (if the day comes first: `day_first`)",
            "'1/1/21' is a guess (if the day comes first: --day-first)",
        ),
        (
            "column '`keep`' and column \"`it's`\" are the user's",
            "column '`keep`' and column \"`it's`\" are the user's",
        ),
        ("no parameter in ``code`` or `Name`", "no parameter in ``code`` or `Name`"),
    ],
)
def test_in_messages(message, shown):
    assert with_options(message) == shown


def test_command():
    settings = Settings("my table.csv", "y", hidden=(100, 50), drop=("a", "it's"), day_first=True, held_out=0.2)
    assert fit_command(settings, Path("out")) == (
        "bayesadam fit 'my table.csv' --target y --hidden 100,50 --held-out 0.2 --drop a --drop 'it'\"'\"'s' "
        "--day-first --out out"
    )


def test_hidden():
    assert (parse_hidden("100,50"), parse_hidden(" ")) == ((100, 50), ())
    with pytest.raises(RunError, match=r"^`hidden` must be positive whole numbers, such as 50 or 100,50, got '5;6'$"):
        parse_hidden("5;6")


def test_callers_in_python_see_parameters_and_a_call():
    settings = Settings("t.csv", "y")
    assert Watcher().words("`keep` it") == "`keep` it"
    assert Watcher().command(settings, Path("out")).startswith("bayesadam.runs.fit(Settings(data='t.csv', target='y', ")
