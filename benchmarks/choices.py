"""Types of command-line arguments that the measurements share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """`a,b` as a list of names that there are, in the order of `known`."""
    every = list(known)

    def names(text: str) -> list[str]:
        given = [name.strip() for name in text.split(",")]
        for name in given:
            if name not in every:
                close = get_close_matches(name, every, 1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise argparse.ArgumentTypeError(f"unknown name {name!r}{hint}; there are {', '.join(every)}")
        return [name for name in every if name in given]

    return names


def positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A number above 0."""

    def number(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
        return value

    return number
