"""Texts of several lines, Triton's reasons among them, where there is room for one line only."""

from __future__ import annotations


def one_line(text: str) -> str:
    """Line ends become spaces; a Python error's places (`\\n\\nAt:\\n  file(3): name`) follow it, the `;` after the last of several reasons goes."""
    lines = [line.strip() for line in text.splitlines()]
    joined = " ".join("at" if line == "At:" else line for line in lines if line)
    return joined.removesuffix(";")


def first_line(text: str) -> str:
    """What went wrong, without where."""
    return text.strip().split("\n", 1)[0].strip().removesuffix(";")
