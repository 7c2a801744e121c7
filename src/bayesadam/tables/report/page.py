"""The page: its sections, and the template that is filled with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bayesadam.tables.report import charts as drawn
from bayesadam.tables.report import verdict
from bayesadam.tables.report.chart import Chart
from bayesadam.tables.report.headline import headline
from bayesadam.tables.report.numbers import percent
from bayesadam.tables.report.palette import custom_properties
from bayesadam.tables.report.predicted import FEW, OURS, PredictedClasses, PredictedNumbers, counted, predicted
from bayesadam.tables.report.scores import confusion, importance, meanings, scores


def render(data: Mapping[str, Any]) -> str:
    """Return the whole page as text."""
    held_out = predicted(data["held_out"], data["task"])
    unseen = predicted(data["unseen"], data["task"]) if data["unseen"] else held_out
    created = data["created"][:16].replace("T", " ")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = percent
    label = f"{data['target']}, {data['unit']}" if data["unit"] else data["target"]
    return environment.from_string(_file("template.html")).render(
        regression=data["task"] == "regression",
        target=data["target"],
        label=label,
        subtitle=[f"{data['task'].capitalize()} of {data['target']}", data["data"]["file"], created],
        headline=_headline(data, held_out, unseen),
        judged=counted(unseen, "row", " that the networks had not seen") if unseen and data["unseen"] else "",
        epistemic="" if unseen is None else verdict.epistemic(unseen, data["epistemic_error"]),
        explained=data["explained"],
        charts=_charts(data, label, held_out, unseen),
        tables=_tables(data, held_out),
        style=Markup(_style()),
    )


def _headline(data: Mapping[str, Any], held_out: Any, unseen: Any) -> list[Markup]:
    config = data["reproduce"]["config"]
    return headline(
        held_out,
        unseen,
        data["margins"],
        gains=data.get("gains", {}),
        recipes=data.get("recipes", {}),
        cautions=data.get("cautions", ()),
        time=config.get("time"),
        kept=config.get("time") in config.get("keep", ()),
        classes=data["classes"],
        unit=data["unit"],
    )


def _charts(data: Mapping[str, Any], target: str, held_out: Any, unseen: Any) -> dict[str, list[Chart]]:
    """Return the charts of the sections."""
    task, classes = data["task"], data["classes"]
    entries = data["explained"].get("dependence", [])
    sections = {
        "inputs": [drawn.effect(entry, f"dependence-{i}", task, target, classes) for i, entry in enumerate(entries)]
    }
    if isinstance(held_out, PredictedNumbers):
        sections["predictions"] = [drawn.predictions(held_out, target, data["data"].get("place", "row"))]
    if unseen is not None and len(unseen) >= FEW:
        sections["calibration"] = [(drawn.coverage if task == "regression" else drawn.reliability)(unseen)]
        if np.isfinite(unseen.errors[1]).all():
            sections["knows"] = [drawn.error_by_uncertainty(unseen, target)]
    return sections


def _tables(data: Mapping[str, Any], held_out: Any) -> dict[str, Any]:
    """Return the contents of the tables of the sections; a section without them has none, or an empty one."""
    metrics, explained, given = data["metrics"], data["explained"], data["reproduce"]
    settings = {name: value for name, value in given["config"].items() if value not in (None, [], False)}
    tables = {
        "scores": {"columns": scores(metrics), "models": list(metrics), "ours": OURS, "meanings": meanings(metrics)},
        "surprises": data["surprises"]
        and {"rows": data["surprises"], "target": data["target"], "place": data["data"].get("place", "row")},
        "data": data["data"],
        "reproduce": {**given, "config": json.dumps(settings, indent=2, ensure_ascii=False)},
    }
    if explained:
        tables["inputs"] = importance(explained["importance"])
        tables["failures"] = explained["groups"] and verdict.failures(explained["groups"], data["task"])
    if isinstance(held_out, PredictedClasses):
        tables["predictions"] = {**confusion(held_out, data["classes"]), "counted": counted(held_out, "held-out row")}
    return tables


def _style() -> str:
    dark = (
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {custom_properties(1)} }} }}"
    )
    return f":root {{ color-scheme: light; {custom_properties(0)} }}\n{dark}\n{_file('style.css')}"


def _file(name: str) -> str:
    return resources.files("bayesadam.tables.report").joinpath(name).read_text(encoding="utf-8")
