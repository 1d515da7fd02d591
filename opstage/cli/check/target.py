"""Targets of `opstage check`, parsed from the command line."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from ...models import MODELS
from ...ops.errors import UsageError, nearest
from ...readable import require_file

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class CheckTarget:
    """A shipped model, or a file or module of the user's with a function of it, None for all that declare shapes."""

    word: str
    model: str | None = None
    file: Path | None = None
    module: str | None = None
    function: str | None = None


def read_target(word: str) -> CheckTarget:
    """`cnn`, `my_model.py`, `my_model.py:loss` or `package.module:loss`. Raises UsageError."""
    if word in MODELS:
        return CheckTarget(word, model=word)
    place, colon, function = word.rpartition(":")
    if not colon or "/" in function or "\\" in function:
        place, function = word, ""
    elif not function:
        raise UsageError(f"{word}: no function is named after the colon")
    named = function or None
    if place.endswith(".py") or Path(place).is_file():
        require_file(place)
        return CheckTarget(word, file=Path(place), function=named)
    if named is not None and _MODULE.fullmatch(place):
        if Path(f"{place}.py").is_file():
            return CheckTarget(word, file=Path(f"{place}.py"), function=named)
        return CheckTarget(word, module=place, function=named)
    if Path(place).is_dir():
        raise UsageError(f"{word} is a folder; name files in it, such as {place.rstrip('/')}/*.py")
    hint = nearest(word, MODELS)
    if not hint and Path(f"{word}.py").is_file():
        hint = f" (did you mean {f'{word}.py'!r}?)"
    raise UsageError(
        f"unknown model {word!r}{hint}; shipped are {', '.join(sorted(MODELS))}, and a program of your own is named by "
        "its file, as in my_model.py:loss"
    )


def may_declare(file: Path) -> bool:
    """Whether a function in `file` has a decorator called shapes, told without running anything.

    A file that cannot be read or parsed may: importing it says what is wrong.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return True
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == "shapes":
                return True
    return False
