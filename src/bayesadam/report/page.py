"""The page: its sections, and the template that is filled with them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from bokeh.core.json_encoder import serialize_json
from bokeh.embed import json_item
from bokeh.resources import Resources
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bayesadam.report import classification, inputs, regression, uncertainty
from bayesadam.report.chart import Chart
from bayesadam.report.headline import OURS, headline
from bayesadam.report.numbers import count, data_value, percent
from bayesadam.report.palette import PALETTE, custom_properties
from bayesadam.report.predicted import FEW, Predicted, PredictedClasses, PredictedNumbers, predicted
from bayesadam.report.scores import scores
from bayesadam.report.verdict import failures

TITLES = {
    "scores": "Scores on held-out data",
    "predictions": "Predictions",
    "calibration": "Can its uncertainty be believed?",
    "knows": "Does it know when it is wrong?",
    "inputs": "What it depends on",
    "failures": "Where it fails",
    "surprises": "Most surprising rows",
    "data": "The data",
    "reproduce": "How to make it again",
}
"""Headings of the sections, in order. The template has a table for some of them."""


def render(data: Mapping[str, Any]) -> str:
    """Return the whole page as text."""
    held_out = predicted(data.get("held_out"), data["task"])
    unseen = predicted(data.get("unseen"), data["task"]) or held_out
    charts = _charts(data, held_out, unseen)
    for group in charts.values():
        narrow = [chart for chart in group if not chart.wide]
        if len(narrow) % 2:  # two charts are side by side, and none is beside a hole
            narrow[-1].wide = True
    tables = _tables(data, held_out)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent, "count": count, "data_value": data_value}
    items = [json_item(chart.plot, f"chart-{chart.name}") for group in charts.values() for chart in group]  # type: ignore[arg-type]
    scripts = [*Resources(mode="inline", components=["bokeh"], log_level="warn").js_raw, _file("charts.js")]
    return environment.from_string(_file("template.html")).render(
        regression=data["task"] == "regression",
        title=str(data.get("title") or data.get("target") or "Report"),
        subtitle=_subtitle(data),
        created=_created(data),
        headline=headline(held_out, unseen, data.get("margins") or {}),
        titles={name: title for name, title in TITLES.items() if charts.get(name) or tables.get(name)},
        about=_about(data, unseen),
        charts=charts,
        tables=tables,
        style=Markup(_style()),
        policy=_policy(scripts),
        scripts=[Markup(script) for script in scripts],
        items=Markup(_harmless(serialize_json(items))),
        palette=Markup(_harmless(json.dumps(dict(PALETTE.values())))),
    )


def _charts(data: Mapping[str, Any], held_out: Any, unseen: Any) -> dict[str, list[Chart]]:
    """Return the charts of the sections."""
    target, explained = str(data.get("target") or "target"), data.get("explained") or {}
    classes = [str(label) for label in data.get("classes") or ()]
    importance, dependence = (explained.get(name) or [] for name in ("importance", "dependence"))
    found = {
        "inputs": [
            *([inputs.importance(importance, data["task"], target)] if importance else []),
            *inputs.dependence(dependence, data["task"], target, classes),
        ]
    }
    if held_out is None or unseen is None:
        return found
    if isinstance(held_out, PredictedNumbers):
        found["predictions"] = [regression.predictions(held_out, target)]
    if len(unseen) >= FEW:
        coverage = regression.coverage if isinstance(held_out, PredictedNumbers) else classification.reliability
        found["calibration"] = [coverage(unseen)]
    known = (
        uncertainty.error_by_uncertainty(unseen, target),
        uncertainty.epistemic_share(unseen, data.get("epistemic_error")),
    )
    return found | {"knows": [chart for chart in known if chart is not None]}


def _tables(data: Mapping[str, Any], held_out: Predicted | None) -> dict[str, Any]:
    """Return the contents of the tables of the sections; a section without them has none, or an empty one."""
    metrics = {model: values for model, values in (data.get("metrics") or {}).items() if values}
    groups = (data.get("explained") or {}).get("groups")
    given = data.get("reproduce") or {}
    settings = {name: value for name, value in (given.get("config") or {}).items() if value not in (None, [], False)}
    found = {
        "scores": metrics and {"columns": scores(metrics), "models": list(metrics), "ours": OURS},
        "failures": groups and failures(groups, data["task"]),
        "surprises": data.get("surprises") and {"rows": data["surprises"], "target": data["target"]},
        "data": data.get("data"),
        "reproduce": given
        and {
            "config": json.dumps(settings, indent=2, ensure_ascii=False, default=str),
            "versions": given["versions"],
            "seconds": {name: f"{value:.1f}" for name, value in given["seconds"].items()},
        },
    }
    if isinstance(held_out, PredictedClasses):
        found["predictions"] = classification.confusion(held_out, data["classes"])
    return found


def _about(data: Mapping[str, Any], unseen: Predicted | None) -> dict[str, str]:
    """Return sentences below the headings of sections."""
    about = {
        "scores": "All models were trained on the same rows and scored on the same held-out rows.",
        "inputs": (data.get("explained") or {}).get("about", ""),
        "surprises": "The held-out rows to which the model gave the least probability: look for errors in the data, "
        "and for cases that it has not seen.",
        "reproduce": "The file config.json of the run repeats the fit; it has these settings, and the defaults of the "
        "others.",
    }
    if unseen is not None and data.get("unseen"):
        about["calibration"] = (
            f"Judged by {count(len(unseen))} rows that the networks had not seen: the held-out rows, and each training "
            "row by the networks that left it out, which also determine the scale of the uncertainty."
        )
    if data["task"] == "classification":
        about["predictions"] = classification.CONFUSION
    return about


def _subtitle(data: Mapping[str, Any]) -> list[str]:
    kind = data["task"].capitalize()
    parts = [f"{kind} of {data['target']}" if data.get("target") else kind]
    return [*parts, *(str(part) for part in ((data.get("data") or {}).get("file"), _created(data)) if part)]


def _created(data: Mapping[str, Any]) -> str:
    return str(data.get("created") or "")[:16].replace("T", " ")


def _style() -> str:
    dark = (
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {custom_properties(1)} }} }}"
    )
    return f":root {{ color-scheme: light; {custom_properties(0)} }}\n{dark}\n{_file('style.css')}"


def _policy(scripts: list[str]) -> str:
    """Return a content security policy with which only these scripts run, and nothing is fetched."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _harmless(text: str) -> str:
    """Escape JSON so that it cannot end the script element that contains it."""
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _file(name: str) -> str:
    return resources.files("bayesadam.report").joinpath(name).read_text(encoding="utf-8")
