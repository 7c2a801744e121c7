"""The page's colours, by what they are for, in a light and a dark version: the only place where a colour is written.

Lines and marks are Okabe and Ito's colours, darker or lighter where theirs have less than 3:1 against the paper; no two
of them are told apart by colour alone. Charts are drawn in the light version, and a script swaps it for the dark one.
"""

from __future__ import annotations

PALETTE = {
    "paper": ("#ffffff", "#14171a"),
    "raised": ("#f6f8f9", "#1d2125"),
    "line": ("#d5dbe0", "#3a4148"),
    "grid": ("#e6eaed", "#2b3036"),
    "ink": ("#1c2126", "#e9ebee"),
    "muted": ("#56606a", "#a7b0b9"),
    "accent": ("#0068a5", "#63bdf0"),
    "blue": ("#0072b2", "#56b4e9"),
    "vermilion": ("#d55e00", "#f08a3c"),
    "green": ("#00875f", "#2bc497"),
    "purple": ("#b5578d", "#d98fb7"),
    "cell": ("#0173b3", "#0171b1"),
}
"""``{name: (light, dark)}``. ``cell`` shades a table's cells under ink: nearly the same blue on both papers."""

LIGHT = {name: light for name, (light, _) in PALETTE.items()}
SERIES = ("blue", "vermilion", "green", "purple")
DASHES = ("solid", "dashed", "dotted")


def custom_properties(version: int) -> str:
    """The palette as CSS custom properties; ``version`` 0 is light, 1 is dark."""
    return " ".join(f"--{name}: {pair[version]};" for name, pair in PALETTE.items())
