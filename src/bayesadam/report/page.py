"""The page: its sections, and the template that is filled with them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from bayesadam.report.predicted import FEW, Predicted, PredictedNumbers, predicted
from bayesadam.report.scores import scores
from bayesadam.report.verdict import failures

COMMAND = "bayesadam fit --config config.json --out again"
"""Command that repeats a fit from the folder of its run."""

_COLUMNS = 200
"""Maximum number of columns of the data that are listed."""


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        name: Name, unique on the page.
        title: Heading.
        about: One sentence, or an empty text.
        charts: The charts in order.
        block: Name of the template's block with tables, if there is one.
        values: Values for that block.
    """

    name: str
    title: str
    about: str = ""
    charts: list[Chart] = field(default_factory=list)
    block: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def render(data: Mapping[str, Any]) -> str:
    """Return the whole page as text."""
    held_out = predicted(data.get("held_out"), data["task"])
    unseen = predicted(data.get("unseen"), data["task"]) or held_out
    sections = [section for section in _sections(data, held_out, unseen) if section.charts or section.block]
    for section in sections:
        narrow = [chart for chart in section.charts if not chart.wide]
        if len(narrow) % 2:  # two charts are side by side, and none is beside a hole
            narrow[-1].wide = True
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": percent, "count": count, "data_value": data_value}
    charts = [json_item(chart.plot, f"chart-{chart.name}") for section in sections for chart in section.charts]  # type: ignore[arg-type]
    scripts = [*Resources(mode="inline", components=["bokeh"], log_level="warn").js_raw, _file("charts.js")]
    return environment.from_string(_file("template.html")).render(
        data=data,
        title=str(data.get("title") or data.get("target") or "Report"),
        subtitle=_subtitle(data),
        created=_created(data),
        headline=headline(held_out, unseen, data.get("margins") or {}),
        sections=sections,
        style=Markup(_style()),
        policy=_policy(scripts),
        scripts=[Markup(script) for script in scripts],
        charts=Markup(_harmless(serialize_json(charts))),
        palette=Markup(_harmless(json.dumps(dict(PALETTE.values())))),
    )


def _sections(data: Mapping[str, Any], held_out: Predicted | None, unseen: Predicted | None) -> list[Section]:
    target = str(data.get("target") or "target")
    classes = [str(label) for label in data.get("classes") or ()]
    explained = data.get("explained") or {}
    return [
        *_predictions(held_out, unseen, target, classes, data),
        *_inputs(explained, data["task"], target, classes),
        _surprises(data.get("surprises") or [], target),
        _data(data.get("data") or {}),
        _reproduce(data.get("reproduce") or {}),
    ]


def _predictions(
    held_out: Any, unseen: Any, target: str, classes: Sequence[str], data: Mapping[str, Any]
) -> list[Section]:
    """Return the sections on scores, predictions, calibration, and the relation of error and uncertainty."""
    metrics = {model: values for model, values in (data.get("metrics") or {}).items() if values}
    found = [
        Section(
            "scores",
            "Scores on held-out data",
            "All models were trained on the same rows and scored on the same held-out rows.",
            block="scores" if metrics else "",
            values={"columns": scores(metrics), "models": list(metrics), "ours": OURS},
        )
    ]
    if held_out is None or unseen is None:
        return found
    if isinstance(held_out, PredictedNumbers):
        results = Section("predictions", "Predictions", charts=[regression.predictions(held_out, target)])
        calibration = regression.coverage(unseen)
    else:
        counts = classification.confusion(held_out, classes)
        results = Section("predictions", "Predictions", classification.CONFUSION, block="confusion", values=counts)
        calibration = classification.reliability(unseen)
    known = [
        uncertainty.error_by_uncertainty(unseen, target),
        uncertainty.epistemic_share(unseen, data.get("epistemic_error")),
    ]
    about = (
        f"Judged by {count(len(unseen))} rows that the networks had not seen: the held-out rows, and each training row "
        "by the networks that left it out, which also determine the scale of the uncertainty."
        if data.get("unseen")
        else ""
    )
    return [
        *found,
        results,
        Section("calibration", "Can its uncertainty be believed?", about, [calibration] * (len(unseen) >= FEW)),
        Section("knows", "Does it know when it is wrong?", charts=[chart for chart in known if chart is not None]),
    ]


def _inputs(explained: Mapping[str, Any], task: str, target: str, classes: Sequence[str]) -> list[Section]:
    """Return the sections on the effects of the inputs and on groups of rows with wrong uncertainty."""
    importance, dependence = (explained.get(name) or [] for name in ("importance", "dependence"))
    charts = [inputs.importance(importance, task, target)] if importance else []
    charts += inputs.dependence(dependence, task, target, classes)
    groups = explained.get("groups") or []
    return [
        Section("inputs", "What it depends on", explained.get("about", ""), charts),
        Section(
            "failures",
            "Where it fails",
            block="failures" if groups else "",
            values=failures(groups, task) | {"what": "inside" if task == "regression" else "right"},
        ),
    ]


def _surprises(rows: list[Mapping[str, Any]], target: str) -> Section:
    return Section(
        "surprises",
        "Most surprising rows",
        "The held-out rows to which the model gave the least probability: look for errors in the data, and for cases "
        "that it has not seen.",
        block="surprises" if rows else "",
        values={"rows": rows, "names": list(rows[0]["values"]) if rows else [], "target": target},
    )


def _data(data: Mapping[str, Any]) -> Section:
    counts = {"rows": "rows", "trained on": "train_rows", "held out": "held_out_rows"}
    facts = {"file": str(data["file"])} if data.get("file") else {}
    facts |= {name: count(data[key]) for name, key in counts.items() if data.get(key) is not None}
    if data.get("held_out_how"):
        facts["held out"] = f"{facts.get('held out', 'rows')}, {data['held_out_how']}"
    columns = data.get("columns") or []
    return Section(
        "data",
        "The data",
        block="data" if data else "",
        values={
            "facts": facts,
            "columns": columns[:_COLUMNS],
            "more": max(0, len(columns) - _COLUMNS),
            "left_out": data.get("left_out") or {},
            "notes": data.get("notes") or [],
        },
    )


def _reproduce(given: Mapping[str, Any]) -> Section:
    settings = {name: value for name, value in (given.get("config") or {}).items() if value not in (None, [], False)}
    config = json.dumps(settings, indent=2, ensure_ascii=False, default=str) if settings else ""
    seconds = {name: f"{value:.1f}" for name, value in (given.get("seconds") or {}).items()}
    values = {"command": COMMAND, "config": config, "seconds": seconds, "versions": given.get("versions") or {}}
    block = "reproduce" if given else ""
    return Section("reproduce", "How to make it again", block=block, values=values)


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
