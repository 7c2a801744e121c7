"""The page: its sections, and the template that is filled with them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from bokeh.core.json_encoder import serialize_json
from bokeh.embed import json_item
from bokeh.resources import Resources
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bayesadam.report import classification, confusion, inputs, network, regression, slices, target, uncertainty
from bayesadam.report.chart import Chart
from bayesadam.report.headline import OURS, figures, headline
from bayesadam.report.palette import PALETTE, custom_properties
from bayesadam.report.scores import scores
from bayesadam.report.values import aligned, number, percent, plain, whole

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
    sections = [section for section in _sections(data) if section.charts or section.block]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "percent": percent, "whole": whole, "plain": plain}
    template = environment.from_string(_file("template.html"))
    charts = [json_item(chart.plot, f"chart-{chart.name}") for section in sections for chart in section.charts]  # type: ignore[arg-type]
    scripts = [Resources(mode="inline", components=["bokeh"], log_level="warn").js_raw, [_file("charts.js")]]
    return template.render(
        data=data,
        title=str(data.get("title") or data.get("target") or "Report"),
        subtitle=_subtitle(data),
        created=_created(data),
        headline=headline(data),
        figures=figures(data),
        sections=sections,
        style=Markup(_style()),
        policy=_policy([script for group in scripts for script in group]),
        scripts=[Markup(script) for group in scripts for script in group],
        charts=Markup(_harmless(serialize_json(charts))),
        palette=Markup(_harmless(json.dumps(dict(PALETTE.values())))),
    )


def _sections(data: Mapping[str, Any]) -> list[Section]:
    held = data.get("held_out") or {}
    task = data["task"]
    goal = str(data.get("target") or "target")
    weights, training = data.get("weights") or {}, data.get("training") or {}
    if task == "regression":
        results = _drawn(lambda: regression.predictions(held, goal))
        calibration = _drawn(
            lambda: regression.pit(held), lambda: regression.coverage(held), lambda: regression.sharpness(held, goal)
        )
        names: list[str] = []
    else:
        answers = classification.answers(held)
        names = data.get("classes") or [str(code) for code in range(answers.classes if answers else 0)]
        results = _drawn(lambda: confusion.confusion(held, names))
        calibration = _drawn(lambda: classification.reliability(held), lambda: classification.sharpness(held))
    knows = _drawn(
        lambda: uncertainty.error_by_uncertainty(held, task, goal),
        lambda: uncertainty.rejection(held, task, goal),
        lambda: uncertainty.epistemic_share(held, task, data.get("epistemic_error")),
    )
    about_weights = _drawn(
        lambda: network.signal_to_noise(weights),
        lambda: network.pruning(weights, "nll"),
        lambda: network.pruning(weights, "rmse" if task == "regression" else "accuracy"),
    )
    trained = _drawn(lambda: network.history(training))
    return [
        _scores(data.get("metrics") or {}),
        Section("predictions", "Predictions", charts=results),
        Section("calibration", "Can its uncertainty be believed?", charts=calibration),
        Section("knows", "Does it know when it is wrong?", charts=knows),
        *_inputs(data.get("drivers") or {}, task, goal, names),
        _surprises(data.get("surprises") or [], goal),
        _data(data.get("data") or {}, goal),
        Section("network", "The network", charts=[*about_weights, *trained]),
        _reproduce(data.get("reproduce") or {}),
    ]


def _drawn(*makers: Callable[[], Chart | None]) -> list[Chart]:
    return [chart for maker in makers if (chart := maker()) is not None]


def _scores(metrics: Mapping[str, Any]) -> Section:
    models = [model for model, values in metrics.items() if values]
    return Section(
        "scores",
        "Scores on held-out data",
        "All models were trained on the same rows and scored on the same held-out rows." if len(models) > 1 else "",
        block="scores" if models else "",
        values={"columns": scores({model: metrics[model] for model in models}), "models": models, "ours": OURS},
    )


def _inputs(drivers: Mapping[str, Any], task: str, goal: str, classes: Sequence[str]) -> list[Section]:
    """Return the sections on the effects of the inputs and on groups of rows with wrong uncertainty."""
    charts = inputs.importance(drivers.get("importance") or [], task)
    charts += inputs.dependence(drivers.get("dependence") or [], task, goal, classes)
    found = slices.slices(drivers.get("slices") or [])
    return [
        Section("inputs", "What it depends on", charts=charts),
        Section(
            "slices",
            "Where it fails",
            "Intervals may hold on average and fail for some of the rows."
            if task == "regression"
            else "Probabilities may be right on average and wrong for some of the rows.",
            block="slices" if found else "",
            values=slices.table(found, task) if found else {},
        ),
    ]


def _surprises(rows: list[Mapping[str, Any]], goal: str) -> Section:
    names = list(dict.fromkeys(str(name) for row in rows for name in row.get("values") or {}))
    return Section(
        "surprises",
        "Most surprising rows",
        "The held-out rows to which the model gave the least probability: look for errors in the data, and for cases "
        "that it has not seen.",
        block="surprises" if rows else "",
        values={"rows": rows, "names": names, "target": goal},
    )


def _data(data: Mapping[str, Any], goal: str) -> Section:
    counts = {"rows": "rows", "trained on": "train_rows", "held out": "held_out_rows"}
    facts = {name: whole(data[key]) for name, key in counts.items() if data.get(key) is not None}
    facts = ({"file": str(data["file"])} if data.get("file") else {}) | facts
    if data.get("held_out_how"):
        facts["held out"] = ", ".join(
            [*([facts["held out"]] if "held out" in facts else []), str(data["held_out_how"])]
        )
    columns = data.get("columns") or []
    parts = (facts, columns, data.get("left_out"), data.get("notes"))
    return Section(
        "data",
        "The data",
        charts=_drawn(lambda: target.distribution(data, goal)),
        block="data" if any(parts) else "",
        values={
            "facts": facts,
            "columns": columns[:_COLUMNS],
            "more": max(0, len(columns) - _COLUMNS),
            "left_out": data.get("left_out") or {},
            "notes": data.get("notes") or [],
        },
    )


def _reproduce(given: Mapping[str, Any]) -> Section:
    config = json.dumps(given["config"], indent=2, ensure_ascii=False, default=str) if given.get("config") else ""
    values = {"command": str(given.get("command") or ""), "config": config}
    seconds = {name: value for name, value in (given.get("seconds") or {}).items() if value is not None}
    tables = {
        "versions": given.get("versions") or {},
        "seconds": dict(zip(seconds, aligned(list(seconds.values()), 2), strict=True)),
    }
    return Section(
        "reproduce",
        "How to make it again",
        block="reproduce" if any(values.values()) or any(tables.values()) else "",
        values=values | tables,
    )


def _subtitle(data: Mapping[str, Any]) -> list[str]:
    kind = "Regression" if data["task"] == "regression" else "Classification"
    about = data.get("data") or {}
    parts = [f"{kind} of {data['target']}" if data.get("target") else kind]
    if about.get("file"):
        parts.append(str(about["file"]))
    if data.get("created"):
        parts.append(_created(data))
    return parts


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
