"""Public tables as people export them: fitted at the first attempt, with a line about every guess."""

import datetime
from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_linnerud, load_wine

from bayesadam.tables.encoder.read_table import read_table
from cli.conftest import FAST


@dataclass(frozen=True)
class Messy:
    """A file, and what has to be said about it.

    Attributes:
        name: Of the file.
        delimiter: Between its cells.
        encoding: Of its text.
        columns: Texts by name of the column.
        target: As the user spells it.
        said: Pieces of what the command prints, one at least for each guess.
        inputs: Columns that have to be inputs.
    """

    name: str
    delimiter: str
    encoding: str
    columns: dict[str, list[str]]
    target: str
    said: tuple[str, ...]
    inputs: tuple[str, ...]

    def write(self, folder, rows=slice(None)):
        cells = zip(*(values[rows] for values in self.columns.values()), strict=True)
        lines = [self.delimiter.join(_cell(cell, self.delimiter) for cell in row) for row in (self.columns, *cells)]
        path = folder / self.name
        path.write_bytes(("\n".join(lines) + "\n").encode(self.encoding))
        return path


def _cell(text, delimiter):
    return f'"{text}"' if delimiter in text else text


def _with(values, **texts):
    """Texts, some of which are replaced: ``row_3="?"``."""
    found = list(values)
    for row, text in texts.items():
        found[int(row.removeprefix("row_"))] = text
    return found


def _german(value, digits=2):
    return f"{value:,.{digits}f}".translate(str.maketrans(",.", ".,"))


def american_hospital():
    x, y = load_diabetes(return_X_y=True, scaled=False)
    days = [datetime.date(2021, 1 + i % 12, 1 + i % 11) for i in range(len(x))]
    columns = {
        "Patient No": [str(100_000 + i) for i in range(len(x))],
        "Visit": [f"{day.month}/{day.day}/{day.year}" for day in days],
        "Age": _with((f"{age:.0f}" for age in x[:, 0]), row_3="?", row_40="?"),
        "Sex": ["MF"[int(sex) - 1] for sex in x[:, 1]],
        "BMI": _with((f"{bmi:.1f}" for bmi in x[:, 2]), row_7="NA", row_8="-", row_9="n/a"),
        "Blood pressure": [f"{pressure:.0f} mmHg" for pressure in x[:, 3]],
        "Cost": [f"${100 * cost:,.2f}" for cost in x[:, 4]],
        "Progression": _with((f"{value:.0f}" for value in y), row_5="", row_6="?", row_50=""),
    }
    said = (
        'Patient No: it numbers the rows, from 100000 on (if it is an input: --keep "Patient No")',
        "column 'Visit': '1/1/2021' in line 2 is read as 2021-01-01: month, day, year (if the day comes first: --day-",
        "column 'Age': '?' in line 5 means a missing value (2 rows)",
        "column 'BMI': 'NA' in line 9 means a missing value (1 row); '-' in line 10 means a missing",
        " mmHg' in line 2 is read as ",
        "column 'Cost': '$15,700.00' in line 2 is read as 15700",
        "3 rows without a target left out",
        "column 'Progression': '?' in line 8 means a missing value (1 row)",
    )
    inputs = ("Visit", "Age", "Sex", "BMI", "Blood pressure", "Cost")
    return Messy("patients.csv", ",", "utf-8", columns, "Progression", said, inputs)


def german_hospital():
    x, y = load_diabetes(return_X_y=True, scaled=False)
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(2 * i) for i in range(len(x))]
    columns = {
        "Größe": [_german(150 + 10 * value) for value in x[:, 7]],
        "Termin": [day.strftime("%d.%m.%Y") for day in days],
        "Anteil": [f"{_german(value, 1)} %" for value in x[:, 2]],
        "Kosten": [f"€ {_german(100 * value)}" for value in x[:, 4]],
        "Umsatz": [_german(1000 * value, 0) for value in x[:, 3]],
        "Geschlecht": ["mw"[int(sex) - 1] for sex in x[:, 1]],
        "Verlauf": [_german(value) for value in y],
    }
    said = (
        "'verlauf' is the column 'Verlauf'",
        "columns are separated by ';'",
        "the text is read as cp1252, as it is not UTF-8",
        "column 'Termin': '01.01.2020' in line 2 is read as 2020-01-01: day, month, year",
        "column 'Anteil': '32,1 %' in line 2 is read as 32.1",
        "column 'Kosten': '€ 15.700,00' in line 2 is read as 15700",
        "column 'Umsatz': '101.000' in line 2 is read as 101000",
    )
    inputs = ("Größe", "Termin", "Anteil", "Kosten", "Umsatz", "Geschlecht")
    return Messy("patienten.csv", ";", "cp1252", columns, "verlauf", said, inputs)


def wine_merchant():
    x, y = load_wine(return_X_y=True)
    rows = [*range(len(x)), 3, 90, 91]
    x, y = x[rows], y[rows]
    columns = {
        "Cultivar": _with((["Barolo", "Grignolino", "Barbera"][code] for code in y), row_30="Barolo (?)"),
        "Alcohol": [f"{value:.2f}%" for value in x[:, 0]],
        "Magnesium": _with((f"{value:.0f}" for value in x[:, 4]), row_12="?", row_77="?"),
        "Colour": _with((f"{value:.2f}" for value in x[:, 9]), row_20="(1.25)"),
        "Proline": [f"{value:,.0f}" for value in x[:, 12]],
        "Shop": [["N", "S"][i % 2] for i in rows],
    }
    said = (
        "classes of a single row are left out ('Barolo (?)' in line 32)",
        "columns are separated by '\\t'",
        "3 rows are copies of another one (line 180 of line 5, line 181 of line 92, line 182 of line 93): copies",
        "column 'Alcohol': '14.23%' in line 2 is read as 14.23",
        "column 'Magnesium': '?' in line 14 means a missing value (2 rows)",
        "column 'Colour': '(1.25)' in line 22 is read as -1.25, as 1 of",
        "column 'Proline': '1,065' in line 2 is read as 1065, as",
    )
    inputs = ("Alcohol", "Magnesium", "Colour", "Proline", "Shop")
    return Messy("wines.csv", "\t", "utf-8", columns, "Cultivar", said, inputs)


def iris_of_two_countries():
    x, y = load_iris(return_X_y=True)
    columns = {
        "Id": [str(i + 1) for i in range(len(x))],
        "sepal length": [f"{value:.1f} cm" for value in x[:, 0]],
        "sepal width": [
            f"{value:.1f} cm" if i % 41 % 2 else f"{value / 2.54:.3f} in" for i, value in enumerate(x[:, 1])
        ],
        "petal length": _with((f"{value:.1f}" for value in x[:, 2]), row_0="missing"),
        "petal width": [f"{value:.1f}" for value in x[:, 3]],
        "species": [["setosa", "versicolor", "virginica"][code] for code in y],
    }
    said = (
        "Id: it numbers the rows (if it is an input: --keep Id)",
        "column 'sepal length': '5.1 cm' in line 2 is read as 5.1",
        "sepal width: it is numbers in several units ('cm', 'in')",
        "column 'petal length': 'missing' in line 2 means a missing value (1 row)",
        "1 row is a copy of another one (line 144 of line 103)",
    )
    inputs = ("sepal length", "petal length", "petal width")
    return Messy("iris.csv", ",", "utf-8", columns, "species", said, inputs)


def hospital_system():
    x, y = load_breast_cancer(return_X_y=True)
    numbers = np.random.default_rng(0).permutation(10**6)[: len(x)]
    columns = {
        "case_id": [str(number) for number in numbers],
        "radius": _with((f"{value:.2f}" for value in x[:, 0]), row_4="not measured", row_90="not measured"),
        "area": _with((f"{value:.1f}" for value in x[:, 3]), row_17="see file"),
        "texture": [f"{value:.2f}" for value in x[:, 1]],
        "comment": [f"seen by nurse {i}" for i in range(len(x))],
        "clinic": ["north"] * len(x),
        "diagnosis": ["MB"[code] for code in y],
    }
    said = (
        "column 'radius': 2 rows have cells that are not finite numbers ('not measured' in line 6): they count as mi",
        "column 'area': 1 row has cells that are not finite numbers ('see file' in line 19): they count as missing",
        "the text is read as utf-16, as it is not UTF-8",
        "case_id: it is an identifier by its name",
        "comment: it is text that is different in every row",
        "clinic: it is the same in all training rows ('north')",
    )
    return Messy("cases.csv", ";", "utf-16", columns, "diagnosis", said, ("radius", "area", "texture"))


def gym():
    data = load_linnerud()
    body = np.tile(data.target, (3, 1)) + np.repeat([[0, 0, 0], [1, 0, 1], [2, 1, 0]], 20, axis=0)
    times = [datetime.datetime(2023, 3, 1, 7 + i % 12, 30) + datetime.timedelta(3 * i) for i in range(len(body))]
    columns = {
        "when": [time.strftime("%d %b %Y %I:%M %p") for time in times],
        "weight": _with((f"{value:.0f} lb" for value in body[:, 0]), row_2="N/A"),
        "waist": [f"{value:.0f}" for value in body[:, 1]],
        "chin-ups": [f"{value:.0f}" for value in np.tile(data.data[:, 0], 3)],
        "fee": [f"USD {20 + 5 * (i % 4)}.00" for i in range(len(body))],
        "pulse": [f"{value:.0f} bpm" for value in body[:, 2]],
    }
    said = (
        "columns are separated by '|'",
        "pulse: regression",
        "column 'pulse': '50 bpm' in line 2 is read as 50",
        "column 'when': '01 Mar 2023 07:30 AM' in line 2 is read as 2023-03-01: day, name of the month, year",
        "column 'weight': '191 lb' in line 2 is read as 191",
        "column 'fee': 'USD 20.00' in line 2 is read as 20",
    )
    return Messy("gym.txt", "|", "utf-8", columns, "pulse", said, ("when", "weight", "waist", "chin-ups", "fee"))


def office():
    """A sheet with a title and a last row of sums, and numbers in forms that spreadsheets and banks write."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    rows = range(200)
    columns = {
        "Code": [f"{1 + row % 12:03d}" for row in rows],
        "Street": [f"{'Oak Elm Main High Lake'.split()[row % 5]} St {row % 24}" for row in rows],
        "Balance": [f"{100 * x[row, 4]:,.2f}" + "-" * (row % 9 == 0) for row in rows],
        "Lakh": [f"{row % 40 + 1},{row % 90 + 10:02d},000" for row in rows],
        "Result": [f"{y[row]:.0f}" for row in rows],
    }
    said = (
        "the names of the columns are in line 3, below 'Report of 2024'",
        "the last row is left out, as it is a total ('Total')",
        "1 category (Code), 1 text (Street), 2 numbers (Balance, Lakh)",
        "is read as -15700",
    )
    return Messy("office.csv", ";", "utf-8", columns, "Result", said, ("Code", "Street", "Balance", "Lakh"))


@pytest.mark.parametrize(
    "make", [american_hospital, german_hospital, wine_merchant, iris_of_two_countries, hospital_system, gym, office]
)
def test_fitted_at_the_first_attempt(make, fitted, tmp_path):
    messy = make()
    path, out = messy.write(tmp_path), tmp_path / "run"
    if make is office:
        path.write_text(f"Report of 2024\n\n{path.read_text()}Total;;1;2;3\n")
    told = fitted("fit", path, "--target", messy.target, "--out", out, *FAST)
    for piece in messy.said:
        assert piece in told
    listed = told.partition("  from      ")[2].partition("\n")[0]
    assert all(name in listed for name in messy.inputs)

    new, predictions = messy.write(tmp_path, rows=slice(0, 8)), tmp_path / "predictions.csv"
    fitted("predict", out, new, "-o", predictions)
    assert read_table(predictions).table.num_rows == 8
