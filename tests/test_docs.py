"""The documentation: snippets run, outputs are what pages say, every public name has its place, and the site builds."""

import contextlib
import importlib
import inspect
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib import image

from bayesadam.tables.cli.app import app
from test_public_names import PUBLIC

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FIGURES = sorted((DOCS / "gallery").glob("*.py"))
FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
EQUATION = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
RULE = re.compile(r"<!-- rule: ([\w.]+) -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(path):
    return str(path.relative_to(DOCS)) if path.is_relative_to(DOCS) else path.name


def blocks(page):
    """Line, language and text of every fenced block."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1], match[2]


def run_python(code, page, line, namespace):
    """What a snippet prints; a traceback has the page's own line numbers."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)
    return printed.getvalue()


def run_commands(text):
    """The ``bayesadam`` commands of a console block; all must succeed."""
    for line in text.splitlines():
        assert line.startswith("$ bayesadam "), line
        with pytest.raises(SystemExit) as stopped:
            app(shlex.split(line)[2:])
        assert stopped.value.code == 0, line


def assert_printed(shown, printed):
    """The same words, and numbers equal to a tenth or to one in the last place: machines differ in rounding."""
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split(), printed
    for wanted, found in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        last_place = 10.0 ** -len(wanted.partition(".")[2])
        assert float(found) == pytest.approx(float(wanted), rel=0.1, abs=1.01 * last_place), printed


NEEDS = {
    "guides/trainers.md": ["lightning", "transformers", "accelerate", "peft", "skorch"],
    "guides/parameter-exploration.md": ["stable_baselines3"],
    "guides/serving.md": ["fastapi", "httpx"],
}
"""Packages of an extra that a page's snippets import; other people's, whose warnings are not ours."""
FIRST = ("README.md", "index.md")
"""Pages that are run for every change; the others take minutes."""


def marks_of(page):
    name = name_of(page)
    ignored = [pytest.mark.filterwarnings("ignore")] if name in NEEDS else []
    return ignored if name in FIRST else [pytest.mark.nightly, *ignored]


SNIPPETS = [
    pytest.param(page, marks=marks_of(page), id=name_of(page))
    for page in [ROOT / "README.md", *PAGES]
    if "```" in page.read_text()
]


@pytest.mark.parametrize("page", SNIPPETS)
def test_snippets_run_and_print_what_the_page_says(page, tmp_path, monkeypatch):
    for package in NEEDS.get(name_of(page), []):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace, printed = {"__name__": "snippet"}, ""
    for line, language, text in blocks(page):
        if language == "python":
            printed = run_python(text, page, line, namespace)
        elif language == "console":
            run_commands(text)
        elif language == "output":
            assert_printed(text, printed)
        else:
            assert language == "text", f"{name_of(page)}:{line}: a block of the language {language!r} is not checked"


def is_in(number, source):
    """Whether a results file has this number: a README as it stands, a JSON file with any digits that round to it."""
    text = (ROOT / source).read_text()
    if source.endswith(".md"):
        return re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", text) is not None
    half = 0.5001 * 10.0 ** -len(number.partition(".")[2])
    return any(abs(float(found) - float(number)) <= half for found in re.findall(r"\d+\.\d+", text))


def sourced_tables():
    """The title of every section of measured numbers, the files that it names, and the cells of its tables."""
    pages = "\n".join(page.read_text() for page in (ROOT / "README.md", DOCS / "measured.md", DOCS / "truth.md"))
    for part in re.split(r"^#+ ", pages, flags=re.MULTILINE):
        sources = re.findall(r"`((?:experiments|benchmarks)/[\w/]+\.\w+)`", part)
        rows = re.findall(r"^\|.*\|$", part, re.MULTILINE)
        cells = [cell.strip().strip("*").lstrip("-") for row in rows for cell in row.split("|")[2:-1]]
        numbers = [cell for cell in cells if re.fullmatch(r"\d+(\.\d+)?", cell)]
        numbers += re.findall(r"(?<![\d.])\d+\.\d{2,}(?![\d%])", re.sub(r"^\|.*\|$", "", part, flags=re.MULTILINE))
        if sources:
            yield part.splitlines()[0], sources, numbers


@pytest.mark.parametrize(("title", "sources", "numbers"), [pytest.param(*t, id=t[0]) for t in sourced_tables()])
def test_measured_numbers_are_those_of_the_results(title, sources, numbers):
    assert len(numbers) > 2
    for number in numbers:
        assert any(is_in(number, source) for source in sources), number


def test_every_result_on_the_page_is_compared():
    assert len(list(sourced_tables())) == 10


RULES = [(page, *found) for page in PAGES for found in RULE.findall(page.read_text())]


@pytest.mark.parametrize(("page", "path", "text"), RULES, ids=[path.rpartition(".")[2] for _, path, _ in RULES])
def test_update_rules_are_those_of_the_code(page, path, text):
    module, _, name = path.rpartition(".")
    lines = inspect.getdoc(getattr(importlib.import_module(module), name)).splitlines()
    known = {" ".join(line.split()) for line in lines}
    for line in text.splitlines():
        assert " ".join(line.split()) in known, line


def test_every_rule_of_an_optimiser_has_a_page():
    from bayesadam.optim import OPTIMIZERS

    rules = {type(cls.rule).__name__ for cls in OPTIMIZERS.values()}
    assert rules == {path.rpartition(".")[2] for _, path, _ in RULES}


def test_the_site_can_show_every_equation(tmp_path):
    """The script that turns TeX into mathematics, run by Node where there is one, understands all of them."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node")
    prose = [re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text())) for page in PAGES]
    equations = [first or second for text in prose for first, second in EQUATION.findall(text)]
    assert len(equations) > 40
    script = tmp_path / "equations.js"
    script.write_text(
        (DOCS / "assets" / "temml.min.js").read_text()
        + "for (const equation of JSON.parse(require('fs').readFileSync(0, 'utf8')))"
        + "  temml.renderToString(equation, { throwOnError: true });"
    )
    command = [node, str(script)]
    done = subprocess.run(command, input=json.dumps(equations), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("script", FIGURES, ids=name_of)
def test_figures_are_those_of_their_scripts(script, tmp_path, monkeypatch):
    """Small, on the gallery's page, and about what the script draws: elsewhere lines may be a pixel off."""
    monkeypatch.setattr(sys, "argv", [script.name, str(tmp_path)])
    torch.manual_seed(0)
    with plt.rc_context({"backend": "agg"}):
        runpy.run_path(str(script), run_name="__main__")
        plt.close("all")
    committed, drawn = script.with_suffix(".png"), tmp_path / f"{script.stem}.png"
    assert committed.stat().st_size < 60_000
    assert f"({committed.name})" in (DOCS / "gallery" / "index.md").read_text()
    first, second = image.imread(committed), image.imread(drawn)
    assert first.shape == second.shape
    assert abs(first - second).mean() < 0.01


def public():
    """Path and value of every public class and function."""
    for module_name in PUBLIC:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{value.__module__}.{value.__qualname__}", value


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.nightly
def test_the_site_has_every_page(site):
    for page in PAGES:
        path = site / page.relative_to(DOCS).with_suffix("")
        assert (path.parent if path.name == "index" else path).joinpath("index.html").exists(), name_of(page)


@pytest.mark.nightly
def test_every_public_name_is_in_the_reference(site):
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    documented = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    names = {path for path, _ in public()}
    assert len(names) > 150
    assert names <= documented, sorted(names - documented)


@pytest.mark.nightly
def test_pages_ask_no_other_server_for_anything(site):
    loaded = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//""")
    for path in site.rglob("*.html"):
        assert not loaded.search(path.read_text()), path.relative_to(site)


@pytest.mark.nightly
def test_the_reference_has_no_marks_of_another_language(site):
    """Sphinx's roles and literal blocks, which Markdown shows as they stand."""
    for path in (site / "api").rglob("*.html"):
        assert not re.search(r":(?:class|func|meth|mod|attr):|::</p>", path.read_text()), path.relative_to(site)


def test_indented_blocks_only_include_files():
    """They are not run where they stand."""
    for page in PAGES:
        for text in re.findall(r"^ +```\w+\n(.*?)^ +```$", page.read_text(), re.MULTILINE | re.DOTALL):
            assert re.fullmatch(r' +--8<-- "gallery/\w+\.py"\n', text), name_of(page)
