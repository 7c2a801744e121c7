"""What a release needs: tag, version, changelog and citation agree, and links work outside of the repository."""

import re
import runpy
from pathlib import Path

import pytest

from against import factors

ROOT = Path(__file__).parents[1]
FILES = ("src/bayesadam/__init__.py", "CHANGELOG.md", "CITATION.cff")
disagreements = runpy.run_path(str(ROOT / ".ci" / "check_release.py"))["disagreements"]


def checkout(folder, *, version="0.2.0", heading="0.2.0 - 2027-01-31", cited="0.2.0", date="2027-01-31"):
    """A folder with the three files that are compared."""
    texts = (
        f'"""A library."""\n\n__version__ = "{version}"\n',
        f"# Changelog\n\n## {heading}\n\n## 0.1.0 - 2026-12-31\n",
        f'title: "A library"\nversion: {cited}\ndate-released: {date}\n',
    )
    for name, text in zip(FILES, texts, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_this_checkout_agrees():
    assert disagreements(ROOT) == []


def test_a_release_and_a_version_in_development_agree(tmp_path):
    assert disagreements(checkout(tmp_path), "v0.2.0") == []
    assert disagreements(checkout(tmp_path)) == []
    assert disagreements(checkout(tmp_path, version="0.3.0.dev0", heading="Unreleased", cited="0.3.0.dev0")) == []


@pytest.mark.parametrize(
    ("tag", "texts", "sentence"),
    [
        ("v0.2.1", {}, "the tag must be 'v0.2.0', got 'v0.2.1'"),
        ("0.2.0", {}, "the tag must be 'v0.2.0', got '0.2.0'"),
        (None, {"cited": "0.1.0"}, "the version in CITATION.cff must be '0.2.0', got '0.1.0'"),
        (
            None,
            {"date": "2027-02-01"},
            "the first section of CHANGELOG.md must be '0.2.0 - 2027-02-01', got '0.2.0 - 2027-01-31'",
        ),
        (
            "v0.2.0",
            {"heading": "Unreleased"},
            "the first section of CHANGELOG.md must be '0.2.0 - 2027-01-31', got 'Unreleased'",
        ),
        (
            "v0.3.0.dev0",
            {"version": "0.3.0.dev0", "cited": "0.3.0.dev0", "heading": "Unreleased"},
            "the version of a release must not be in development, got '0.3.0.dev0'",
        ),
    ],
)
def test_what_does_not_agree_is_named(tmp_path, tag, texts, sentence):
    assert disagreements(checkout(tmp_path, **texts), tag) == [sentence]


def test_a_file_without_the_line_is_named(tmp_path):
    folder = checkout(tmp_path)
    (folder / "CITATION.cff").write_text("version: 0.2.0\n")
    (sentence,) = disagreements(folder)
    assert sentence.startswith("CITATION.cff must have a line")


def test_links_of_the_readme_work_on_the_index_page():
    """They are absolute, and those into the repository lead to files."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 20
    for link in links:
        assert link.startswith(("https://", "#")), link
        inside = re.match(
            r"https://(?:github|raw\.githubusercontent)\.com/bayesadam/bayesadam/(?:blob/)?main/([^#]+)", link
        )
        assert inside is None or (ROOT / inside[1]).exists(), link


def test_steps_are_compared_with_those_that_the_last_release_had_too():
    last = {"cases": {"small": {"results": {"Vadam": {"ratio": 2.0}}}}}
    results = {"results": {"Vadam": {"ratio": 3.0}, "BayesAdam": {"ratio": 4.0}}}
    assert factors(last, {"cases": {"small": results, "large": results}}) == {("small", "Vadam"): 1.5}
