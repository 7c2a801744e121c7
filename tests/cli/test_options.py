"""Options in place of the parameters that messages of the library name, and the list of methods."""

import shlex
from pathlib import Path

import pytest

from bayesadam import commands
from bayesadam.commands.methods import ADVICE
from bayesadam.commands.options import fit_command, with_options
from bayesadam.runs import Settings
from bayesadam.sklearn import METHODS


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`keep` must not be a column of `drop`, got 'a'", "--keep must not be a column of --drop, got 'a'"),
        ("'1/1/21' is a guess (if the day comes first: `day_first`)", None),
        (
            "column '`keep`' and column \"`it's`\" are the user's",
            "column '`keep`' and column \"`it's`\" are the user's",
        ),
        ("no parameter in ``code`` or `Name`", "no parameter in ``code`` or `Name`"),
    ],
)
def test_in_messages(message, shown):
    assert with_options(message) == (shown or message.replace("`day_first`", "--day-first"))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "vadam", "hidden": (100, 50), "members": 3, "epochs": 7, "seed": 5, "noise": "0.25"},
        {"time_budget": 2.5, "group": "a b", "drop": ("x", "it's"), "missing": ("-", "?"), "day_first": True},
        {"time": "day", "delimiter": "\t", "decimal": ",", "held_out": 0.25, "task": "classification", "hidden": ()},
    ],
)
def test_settings_survive_the_config_and_the_command(tmp_path, monkeypatch, options):
    settings = Settings("/data/my table.csv", "the target", **options)
    settings.save(tmp_path / "config.json")
    assert Settings.load(tmp_path / "config.json") == settings

    given = {}
    monkeypatch.setattr(commands.fit, "fit_table", lambda options, out, config, **rest: given.update(options, out=out))
    words = shlex.split(fit_command(settings, Path("my run")))
    assert words[:3] == ["bayesadam", "fit", "/data/my table.csv"]
    with pytest.raises(SystemExit) as stopped:
        commands.app(words[1:])
    assert stopped.value.code == 0
    assert str(given.pop("out")) == "my run"
    if "hidden" in given:
        given["hidden"] = tuple(int(units) for units in given["hidden"].split(",") if units)
    assert Settings(**given) == settings


def test_every_method_is_listed(fitted):
    out = fitted("methods")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("│") and line[2] != " "] == list(METHODS)
    assert set(ADVICE) == set(METHODS)
    assert ADVICE["laplace"][0] in out
