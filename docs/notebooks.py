"""Notebooks of the pages that have Python code, made when the site is built.

MkDocs calls the two functions whose names begin with ``on_``. Pages with at least two Python blocks get a link to
``NAME.ipynb`` beside them. Blocks of Python become code cells, and the block of output after one becomes the output
of its cell, so that a reader sees the numbers before running anything. Everything else is Markdown; links to other
pages are left as text, because the notebook is read elsewhere.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|output)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(# .*)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\](?:\((?!https?:)[^)]*\)|\[[^\]]*\])")
PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n?")
ATTRIBUTES = re.compile(r"\s*\{ #[\w-]+ \}$", re.MULTILINE)
SECTION = re.compile(r'^--8<-- "([^":]+):(\w+)"$', re.MULTILINE)
START = "This notebook was generated from a page of bayesadam's documentation, and needs bayesadam to be installed."


def notebook(page: str) -> dict[str, Any]:
    """A notebook (nbformat 4.5) of the Markdown of a page."""
    cells: list[dict[str, Any]] = [_cell("markdown", START)]
    page = SECTION.sub(_section, page)
    position = 0
    for block in BLOCK.finditer(page):
        _add_markdown(cells, page[position : block.start()])
        position = block.end()
        if block[1] == "python":
            cells.append(_cell("code", block[2], execution_count=None, outputs=[]))
        else:
            code = next(cell for cell in reversed(cells) if cell["cell_type"] == "code")
            code["outputs"] = [{"output_type": "stream", "name": "stdout", "text": _lines(block[2])}]
    _add_markdown(cells, page[position:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}


def _section(line: re.Match[str]) -> str:
    """A section of another file, which the site includes at this line."""
    _, start, rest = (ROOT / line[1]).read_text(encoding="utf-8").partition(f"[start:{line[2]}] -->\n")
    assert start, line[0]
    return rest.partition("<!-- --8<-- [end")[0]


def _add_markdown(cells: list[dict[str, Any]], text: str) -> None:
    text = LINK.sub(r"\1", PICTURE.sub("", ATTRIBUTES.sub("", text))).strip()
    if text:
        cells.append(_cell("markdown", text))


def _cell(kind: str, source: str, **fields: Any) -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "source": _lines(source.rstrip("\n")), **fields}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def has_notebook(page: str) -> bool:
    """Whether a page has at least two Python blocks, and none of the command line, which a notebook would not run."""
    return sum(block[1] == "python" for block in BLOCK.finditer(page)) >= 2 and "\n```console" not in page


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Keep the notebook of the page, and put a link to it under the heading."""
    if not has_notebook(markdown):
        return markdown
    page.notebook = notebook(markdown)
    link = f'<a href="{_name(page)}" download>Open this page as a notebook</a>'
    return HEADING.sub(lambda heading: f"{heading[1]}\n\n{link}", markdown, count=1)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Write the notebook into the folder of the page."""
    if hasattr(page, "notebook"):
        folder = Path(page.file.abs_dest_path).parent
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _name(page)).write_text(json.dumps(page.notebook, indent=1) + "\n", encoding="utf-8")
    return output


def _name(page: Any) -> str:
    name = Path(page.file.src_uri).with_suffix(".ipynb").name
    return "quickstart.ipynb" if page.file.src_uri == "index.md" else name
