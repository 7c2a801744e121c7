"""The page: its sections, and the template that is filled with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bayesadam.report import charts as drawn
from bayesadam.report import verdict
from bayesadam.report.chart import Chart
from bayesadam.report.headline import OURS, headline
from bayesadam.report.numbers import percent
from bayesadam.report.palette import custom_properties
from bayesadam.report.predicted import FEW, PredictedClasses, PredictedNumbers, predicted
from bayesadam.report.scores import confusion, importance, scores


def render(data: Mapping[str, Any]) -> str:
    """Return the whole page as text."""
    held_out = predicted(data.get("held_out"), data["task"])
    unseen = predicted(data.get("unseen"), data["task"]) or held_out
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = percent
    return environment.from_string(_file("template.html")).render(
        regression=data["task"] == "regression",
        target=data.get("target"),
        title=str(data.get("title") or data.get("target") or "Report"),
        subtitle=_subtitle(data),
        headline=headline(held_out, unseen, data.get("margins") or {}),
        judged=f"{len(unseen):,}" if unseen is not None and data.get("unseen") else "",
        epistemic="" if unseen is None else verdict.epistemic(unseen, data.get("epistemic_error")),
        explained=data.get("explained") or {},
        charts=_charts(data, held_out, unseen),
        tables=_tables(data, held_out),
        style=Markup(_style()),
    )


def _charts(data: Mapping[str, Any], held_out: Any, unseen: Any) -> dict[str, list[Chart]]:
    """Return the charts of the sections."""
    task, target, explained = data["task"], str(data.get("target") or "target"), data.get("explained") or {}
    classes, entries = [str(label) for label in data.get("classes") or ()], explained.get("dependence") or []
    found = {
        "inputs": [drawn.effect(entry, f"dependence-{i}", task, target, classes) for i, entry in enumerate(entries)]
    }
    if isinstance(held_out, PredictedNumbers):
        found["predictions"] = [drawn.predictions(held_out, target)]
    if unseen is not None and len(unseen) >= FEW:
        found["calibration"] = [(drawn.coverage if task == "regression" else drawn.reliability)(unseen)]
        if np.isfinite(unseen.errors[1]).all():
            found["knows"] = [drawn.error_by_uncertainty(unseen, target)]
    return found


def _tables(data: Mapping[str, Any], held_out: Any) -> dict[str, Any]:
    """Return the contents of the tables of the sections; a section without them has none, or an empty one."""
    metrics = {model: values for model, values in (data.get("metrics") or {}).items() if values}
    explained = data.get("explained") or {}
    groups = explained.get("groups")
    given = data.get("reproduce") or {}
    settings = {name: value for name, value in (given.get("config") or {}).items() if value not in (None, [], False)}
    found = {
        "scores": metrics and {"columns": scores(metrics), "models": list(metrics), "ours": OURS},
        "inputs": explained.get("importance") and importance(explained["importance"]),
        "failures": groups and verdict.failures(groups, data["task"]),
        "surprises": data.get("surprises") and {"rows": data["surprises"], "target": data["target"]},
        "data": data.get("data"),
        "reproduce": given and {**given, "config": json.dumps(settings, indent=2, ensure_ascii=False, default=str)},
    }
    if isinstance(held_out, PredictedClasses) and data.get("classes"):
        found["predictions"] = confusion(held_out, data["classes"])
    return found


def _subtitle(data: Mapping[str, Any]) -> list[str]:
    kind = data["task"].capitalize()
    created = str(data.get("created") or "")[:16].replace("T", " ")
    parts = [
        f"{kind} of {data['target']}" if data.get("target") else kind,
        (data.get("data") or {}).get("file"),
        created,
    ]
    return [str(part) for part in parts if part]


def _style() -> str:
    dark = (
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {custom_properties(1)} }} }}"
    )
    return f":root {{ color-scheme: light; {custom_properties(0)} }}\n{dark}\n{_file('style.css')}"


def _file(name: str) -> str:
    return resources.files("bayesadam.report").joinpath(name).read_text(encoding="utf-8")
