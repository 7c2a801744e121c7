"""Notebooks of the pages: valid, with the code and the outputs of the page."""

import ast
import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.nightly

DOCS = Path(__file__).parents[1] / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def made():
    return runpy.run_path(str(DOCS / "notebooks.py"))


def text(cell):
    return "".join(cell["source"])


@pytest.mark.parametrize("name", ["index.md", "guides/trained-network.md", "methods/von.md"])
def test_code_and_outputs_are_those_of_the_page(made, name):
    page = (DOCS / name).read_text()
    fences = FENCE.findall(page)
    notebook = made["notebook"](page)
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [text(cell) + "\n" for cell in codes] == [code for language, code in fences if language == "python"]
    shown = ["".join(cell["outputs"][0]["text"]) for cell in codes if cell["outputs"]]
    assert shown == [output for language, output in fences if language == "output"]
    for cell in codes:
        ast.parse(text(cell))


def test_prose_has_no_links_to_other_pages(made):
    prose = "# A page\n\nSee [this](other.md#part), [`f`][package.f] and [that](https://example.org).\n\n![p](x.png)\n"
    cells = made["notebook"](prose + "\n## Part { #part }\n\n```python\nx = [1][0]\n```\n")["cells"]
    assert text(cells[1]) == "# A page\n\nSee this, `f` and [that](https://example.org).\n\n\n## Part"
    assert text(cells[2]) == "x = [1][0]"


def test_pages_with_code_link_to_their_notebook(made, tmp_path):
    source = "# A page\n\n```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```output\n1\n```\n"
    file = SimpleNamespace(src_uri="guides/page.md", abs_dest_path=str(tmp_path / "guides" / "page" / "index.html"))
    page = SimpleNamespace(file=file)
    changed = made["on_page_markdown"](source, page=page, config=None, files=None)
    assert changed.startswith('# A page\n\n<a href="page.ipynb" download>')
    assert made["on_post_page"]("the page", page=page, config=None) == "the page"
    written = json.loads((tmp_path / "guides" / "page" / "page.ipynb").read_text())
    assert written == made["notebook"](source)
    short = "# A page\n\n```python\nx = 1\n```\n"
    commands = source + "\n```console\n$ bayesadam demo\n```\n"
    for other in (short, commands):
        assert made["on_page_markdown"](other, page=SimpleNamespace(file=file), config=None, files=None) == other
