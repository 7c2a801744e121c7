"""The choices that the options offer, settings in the config and as a command, and the list of methods."""

import shlex
from pathlib import Path
from typing import get_args

import pytest

from bayesadam.cli import fit_command, options
from bayesadam.cli.app import app
from bayesadam.cli.methods_command import ADVICE
from bayesadam.cli.options import fit_command_line
from bayesadam.sklearn import METHODS, Settings, likelihoods, target_transform
from bayesadam.sklearn.tables.table_target import TASKS


@pytest.mark.parametrize(
    ("choices", "names"),
    [
        (options.Methods, METHODS),
        (options.Tasks, TASKS),
        (options.Transforms, ("auto", *target_transform.NAMES)),
        (options.Likelihoods, ("auto", *likelihoods.NAMES)),
    ],
)
def test_choices_are_those_of_the_library(choices, names):
    assert get_args(choices) == tuple(names)


@pytest.mark.parametrize(
    "given",
    [
        {"method": "vadam", "hidden": (100, 50), "members": 3, "epochs": 7, "seed": 5, "noise": "0.25"},
        {"time_budget": 2.5, "group": "a b", "drop": ("x", "it's"), "missing": ("-", "?"), "day_first": True},
        {"time": "day", "delimiter": "\t", "decimal": ",", "held_out": 0.25, "task": "classification", "hidden": ()},
        {"weights": "w", "category": ("zip",), "date": ("when",), "keep": ("id",), "transform": "yeo-johnson"},
    ],
)
def test_settings_survive_the_config_and_the_command(tmp_path, monkeypatch, given):
    settings = Settings("my table.csv", "the target", **given)
    settings.save(tmp_path / "config.json")
    assert Settings.load(tmp_path / "config.json") == settings

    seen = []
    monkeypatch.setattr(fit_command, "_fit", lambda *arguments, **rest: seen.append(arguments))
    words = shlex.split(fit_command_line(settings, Path("/data/my run")))
    assert words[:3] == ["bayesadam", "fit", "my table.csv"]
    with pytest.raises(SystemExit) as stopped:
        app(words[1:])
    assert stopped.value.code == 0
    assert seen == [(settings, Path("my run"))]


def test_every_method_is_listed(fitted):
    out = fitted("methods")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("│") and line[2] != " "] == list(METHODS)
    assert set(ADVICE) == set(METHODS)
    assert ADVICE["laplace"][0] in out
