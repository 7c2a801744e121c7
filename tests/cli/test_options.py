"""The choices that the options offer, and settings in the config."""

import re
from typing import get_args

import pytest

from bayesadam.sklearn import METHODS, RunError, Settings
from bayesadam.tables.cli import options
from bayesadam.tables.encoder.table_target import TASKS
from bayesadam.tables.estimators import named_likelihoods, target_transform
from bayesadam.tables.runs.settings import with_options


@pytest.mark.parametrize(
    ("choices", "names"),
    [
        (options.Methods, METHODS),
        (options.Tasks, TASKS),
        (options.Transforms, ("auto", *target_transform.NAMES)),
        (options.Likelihoods, named_likelihoods.NAMES),
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
def test_settings_survive_the_config(tmp_path, given):
    settings = Settings("my table.csv", "the target", **given)
    settings.save(tmp_path / "config.json")
    assert Settings.load(tmp_path / "config.json") == settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": None}, "target must be text, got None"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"epochs": 2.5}, "epochs must be a whole number or null, got 2.5"),
        ({"held_out": "0.1"}, "held_out must be a number, got '0.1'"),
        ({"day_first": "yes"}, "day_first must be true or false, got 'yes'"),
        ({"delimiter": 5}, "delimiter must be text or null, got 5"),
        ({"keep": ["when"]}, "keep must be a tuple (in a file, a list) of texts, got ['when']"),
        ({"missing": "NA"}, "missing must be a tuple (in a file, a list) of texts, got 'NA'"),
        ({"hidden": ("a",)}, "hidden must be a tuple (in a file, a list) of whole numbers or null, got ('a',)"),
    ],
)
def test_types_of_settings(given, message):
    with pytest.raises(RunError, match=f"^the setting {re.escape(message)}$"):
        Settings(**{"data": "t.csv", "target": "y", **given})


@pytest.mark.parametrize(
    ("python", "option"),
    [
        ("(if it is an input: keep=['Patient No'])", '(if it is an input: --keep "Patient No")'),
        ("keep=['a']; drop=['b\"c']", "--keep a; --drop 'b\"c'"),
        ('keep=["it\'s"]', '--keep "it\'s"'),
        ("missing=['-999'].", "--missing -999."),
        ("category=['a\\\\b']", "--category 'a\\b'"),
        ("day_first=True", "--day-first"),
        ("noise must be 'auto' with likelihood='gamma'", "noise must be 'auto' with --likelihood gamma"),
        ("target_transform='log', keep=(), drop=['a', 'b'], column 'keep'", None),
    ],
)
def test_advice_on_the_command_line(python, option):
    assert with_options(python) == (option or python)
