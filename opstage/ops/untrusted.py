"""Untrusted texts and files: limits on reading them, and safe display in messages.

Python's own limits do not suffice: an integer of 5,000 digits cannot be printed, one of 4,000 fills the screen; a
syntax tree may be too deep to walk; a string may contain terminal control sequences.
"""

from __future__ import annotations

import ast
import math
import reprlib
from collections.abc import Iterable
from typing import Any

_MOST_SHOWN = 80
_LONGEST_MESSAGE = 5000


class _Brief(reprlib.Repr):
    """A `repr` that is truncated; very long integers are shown by their number of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = _MOST_SHOWN
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 8

    def repr_int(self, value: int, level: int) -> str:
        digits = int(value.bit_length() * math.log10(2)) + 1
        return repr(value) if digits <= _MOST_SHOWN else f"an integer of about {digits:,} digits"

    def repr_str(self, value: str, level: int) -> str:
        return repr(value if len(value) <= self.maxstring else f"{value[: self.maxstring - 3]}...")


_BRIEF = _Brief()


def brief(value: Any) -> str:
    """Return `repr(value)` truncated to about 80 characters, for messages about values of any size."""
    return _BRIEF.repr(value)


def a_type(value: Any) -> str:
    """Return the name of a value's type after its article: `a list`, `an int`; for None that itself."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


def printable(message: str) -> str:
    """Escape control and unprintable characters of a message, and cut the middle of a very long one."""
    if len(message) > _LONGEST_MESSAGE:
        kept = _LONGEST_MESSAGE // 2
        left_out = len(message) - 2 * kept
        message = f"{message[:kept]} … ({left_out:,} characters are left out) … {message[-kept:]}"
    return escaped(message)


def escaped(text: str) -> str:
    """Escape control and unprintable characters of a text, without cutting it."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text])


def depth_of(tree: ast.AST) -> int:
    """Return the depth of a syntax tree, where a sum of any number of terms counts as one level. Not recursive."""
    deepest = 0
    waiting: list[tuple[ast.AST, int]] = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        for child in ast.iter_child_nodes(node):
            is_chain = isinstance(node, ast.BinOp) and child is node.left and isinstance(child, ast.BinOp)
            waiting.append((child, depth if is_chain else depth + 1))
    return deepest


def shown(names: Iterable[str], most: int = 20) -> str:
    """Join names by commas, the first ones if there are many."""
    listed = list(names)
    rest = f" … and {len(listed) - most:,} more" if len(listed) > most else ""
    return (
        ", ".join(name if len(name) <= _MOST_SHOWN else f"{name[: _MOST_SHOWN - 3]}..." for name in listed[:most])
        + rest
    )
