"""Targets of `opstage check`, parsed from the command line."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from ...models import MODELS
from ...models.model import MAKE
from ...ops.errors import UsageError, nearest
from ...readable import require_file

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class CheckTarget:
    """A shipped model, or a user's file or module with one function, or None for all that declare shapes."""

    word: str
    model: str | None = None
    file: Path | None = None
    module: str | None = None
    function: str | None = None


def read_target(word: str) -> CheckTarget:
    """Parse `cnn`, `my_model.py`, `my_model.py:loss` or `package.module:loss`. Raises UsageError."""
    if word in MODELS:
        return CheckTarget(word, model=word)
    place, colon, function = word.rpartition(":")
    if not colon or "/" in function or "\\" in function:
        place, function = word, ""
    elif not function:
        raise UsageError(f"{word}: no function is named after the colon")
    named = function or None
    if place.endswith((".onnx", ".pt2")):
        require_file(place)
        return CheckTarget(word, model=word)
    if place.endswith(".py") or Path(place).is_file():
        require_file(place)
        return CheckTarget(word, file=Path(place), function=named)
    if named is not None and _MODULE.fullmatch(place):
        if Path(f"{place}.py").is_file():
            return CheckTarget(word, file=Path(f"{place}.py"), function=named)
        return CheckTarget(word, module=place, function=named)
    hint = nearest(word, MODELS)
    if not hint and Path(f"{word}.py").is_file():
        hint = f" (did you mean {f'{word}.py'!r}?)"
    raise UsageError(
        f"unknown model {word!r}{hint}; shipped are {', '.join(sorted(MODELS))}, and a program of your own is named by "
        "its file, as in my_model.py:loss"
    )


def may_declare(file: Path) -> bool:
    """Whether `file` has something to check without given shapes, found without running it: a function with a decorator
    named shapes, a model's `make` or a value `Model(…)`.

    pytest's mark of that name does not count, since pytest checks tests. A file that cannot be read, or that mentions
    Opstage but cannot be parsed, counts, since importing it reports the error.
    """
    try:
        text = file.read_bytes()
    except OSError:
        return True
    named = b"opstage" in text
    try:
        tree = ast.parse(text)
    except (ValueError, SyntaxError, RecursionError):
        return named
    return any(map(_declares, ast.walk(tree))) or (named and any(map(_is_model, tree.body)))


def _declares(node: ast.AST) -> bool:
    for decorator in getattr(node, "decorator_list", ()):
        words = _words(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if words[-1:] == ["shapes"] and "mark" not in words:
            return True
    return False


def _is_model(node: ast.stmt) -> bool:
    """Whether a statement defines something that `models_in` would find."""
    if isinstance(node, ast.FunctionDef):
        return node.name == MAKE and len(node.args.args) <= 1
    value = getattr(node, "value", None) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    return isinstance(value, ast.Call) and _words(value.func)[-1:] == ["Model"]


def _words(node: ast.AST) -> list[str]:
    """Split `pytest.mark.shapes` into its parts; empty for any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    return [*_words(node.value), node.attr] if isinstance(node, ast.Attribute) else []
