"""The choices that the options offer, and settings in the config."""

from typing import get_args

import pytest

from bayesadam.cli import options
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
def test_settings_survive_the_config(tmp_path, given):
    settings = Settings("my table.csv", "the target", **given)
    settings.save(tmp_path / "config.json")
    assert Settings.load(tmp_path / "config.json") == settings
