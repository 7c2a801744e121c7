"""Checks that version, changelog and citation agree, and with them the tag of a release.

    python .ci/check_release.py            # between two releases
    python .ci/check_release.py v0.1.0     # the commit with this tag

It prints what does not agree, and fails.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = {
    "version": ("src/bayesadam/__init__.py", r'^__version__ = "(.+)"$'),
    "heading": ("CHANGELOG.md", r"^## (.+)$"),
    "cited version": ("CITATION.cff", r"^version: (.+)$"),
    "cited date": ("CITATION.cff", r"^date-released: (.+)$"),
}
"""What is compared: the first match in a file."""


def disagreements(root: Path, tag: str | None = None) -> list[str]:
    """What does not agree in the checkout ``root``, one sentence each.

    A version that ends with ``.dev`` and a number is not released: its changelog starts with "Unreleased".
    """
    values = {}
    for name, (file, pattern) in PATTERNS.items():
        match = re.search(pattern, (root / file).read_text(encoding="utf-8"), re.MULTILINE)
        if match is None:
            return [f"{file} must have a line that matches {pattern!r}"]
        values[name] = match[1].strip("'\"")
    version = values["version"]
    in_development = re.search(r"\.dev\d+$", version) is not None
    heading = "Unreleased" if in_development else f"{version} - {values['cited date']}"
    sentences = []
    if values["heading"] != heading:
        sentences.append(f"the first section of CHANGELOG.md must be {heading!r}, got {values['heading']!r}")
    if values["cited version"] != version:
        sentences.append(f"the version in CITATION.cff must be {version!r}, got {values['cited version']!r}")
    if tag is not None and in_development:
        sentences.append(f"the version of a release must not be in development, got {version!r}")
    elif tag is not None and tag != f"v{version}":
        sentences.append(f"the tag must be 'v{version}', got {tag!r}")
    return sentences


def main() -> None:
    sentences = disagreements(ROOT, *sys.argv[1:])
    if sentences:
        sys.exit("\n".join(sentences))


if __name__ == "__main__":
    main()
