"""The page's colours by purpose, in a light and a dark version.

Lines and marks have the colours of :mod:`bayesadam.plots` (Okabe and Ito's), darker or lighter where those have a
contrast of less than 3:1 against the paper. Series also differ in another property than colour. Charts are drawn in the
light version, which is replaced by the page's names of the colours.
"""

from __future__ import annotations

from bayesadam.plots import BLUE, SKY_BLUE, VERMILION

PALETTE = {
    "paper": ("#ffffff", "#14171a"),
    "raised": ("#f6f8f9", "#1d2125"),
    "line": ("#d5dbe0", "#3a4148"),
    "grid": ("#e6eaed", "#2b3036"),
    "ink": ("#1c2126", "#e9ebee"),
    "muted": ("#56606a", "#a7b0b9"),
    "accent": ("#0068a5", "#63bdf0"),
    "blue": (BLUE, SKY_BLUE),
    "vermilion": (VERMILION, "#f08a3c"),
    "green": ("#00875f", "#2bc497"),
    "purple": ("#b5578d", "#d98fb7"),
}
"""``{name: (light, dark)}``."""

LIGHT = {name: light for name, (light, _) in PALETTE.items()}
SERIES = ("blue", "vermilion", "green", "purple")


def custom_properties(version: int) -> str:
    """Return the palette as CSS custom properties; ``version`` is 0 for light and 1 for dark."""
    return " ".join(f"--{name}: {pair[version]};" for name, pair in PALETTE.items())
