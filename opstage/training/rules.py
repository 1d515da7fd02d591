"""Rules by path: values for the parameters that match a pattern, and the check that overlapping rules agree.

A pattern is one or more alternatives separated by `|`. In each, `*` matches any characters, dots too, `?` one
character, and `[ab]` one of those: `*.bias|*norm*`. It matches a parameter if it matches any of its paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from typing import Any, NamedTuple

from ..ops.errors import UsageError, nearest
from ..ops.trees import show_path

_SPECIAL = re.compile(r"[*?|\[]")


class Ruled(NamedTuple):
    """The values by key that the rules set for one parameter, and the patterns that match it, in order."""

    values: dict[str, Any]
    patterns: tuple[str, ...]


def is_pattern(text: Any) -> bool:
    """Whether `text` is a string with a special character of patterns."""
    return isinstance(text, str) and _SPECIAL.search(text) is not None


def apply_rules(
    what: str,
    rules: Sequence[tuple[str, Mapping[str, Any]]],
    places: Sequence[tuple[str, ...]],
    *,
    prefixes: bool = False,
) -> list[Ruled]:
    """Return the values that `rules`, patterns with values by key, set for each of the parameters with these paths.

    With `prefixes` a rule without special characters also matches every path below it: `encoder` is `encoder.*`.

    Raises UsageError for a rule that matches no parameter, and for two that set different values for one parameter.
    """
    found = [Ruled({}, ()) for _ in places]
    whose: list[dict[str, str]] = [{} for _ in places]
    for pattern, values in rules:
        matches = _compiled(what, pattern, prefixes)
        hits = [i for i, paths in enumerate(places) if any(map(matches, paths))]
        if not hits:
            raise UsageError(f"{what} {pattern!r} matches no parameter{_nearest(pattern, places)}")
        for i in hits:
            mine = found[i].values
            for key, value in values.items():
                if key in mine and not _same(mine[key], value):
                    raise UsageError(
                        f"{what}s {whose[i][key]!r} and {pattern!r} both match {show_path(places[i][0])} and disagree "
                        f"on {key}: {mine[key]!r} and {value!r}; make one of the patterns narrower"
                    )
                mine[key] = value
                whose[i].setdefault(key, pattern)
            found[i] = Ruled(mine, (*found[i].patterns, pattern))
    return found


def flags_by_rules(
    rules: Mapping[str, Any],
    places: Sequence[tuple[str, ...]],
    default: Sequence[bool],
    what: str = "requires_grad",
    *,
    prefixes: bool = False,
) -> list[bool]:
    """Return one flag per parameter: what the rules set, else its `default`. Raises UsageError as `apply_rules`
    does."""
    for pattern, flag in rules.items():
        if not isinstance(flag, bool):
            raise UsageError(f"requires_grad of {pattern!r} must be a bool but is {flag!r}")
    said = apply_rules(what, [(pattern, {"flag": flag}) for pattern, flag in rules.items()], places, prefixes=prefixes)
    return [each.values.get("flag", flag) for each, flag in zip(said, default, strict=True)]


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b) if isinstance(a, bool) or isinstance(b, bool) else bool(a == b)


def _compiled(what: str, pattern: str, prefixes: bool = False) -> Any:
    parts = [part.strip() for part in pattern.split("|")] if isinstance(pattern, str) else []
    if not all(parts):
        raise UsageError(f"{what} {pattern!r} must be a pattern such as 'encoder.*' or '*.bias|*norm*'")
    below = [f"{part}.*" for part in parts if prefixes and not is_pattern(part)]
    return re.compile("|".join(map(translate, [*parts, *below]))).match


def _nearest(pattern: str, places: Sequence[tuple[str, ...]]) -> str:
    """Return ` (did you mean …?)` with a similar path, or with the pattern changed to match one."""
    paths = [path for each in places for path in each]
    for text in pattern.split("|"):
        close = nearest(text.strip(), paths)
        bare = text.strip().strip("*.?")
        if not close and bare:
            parts = dict.fromkeys(part for path in paths for part in path.split("."))
            alike = [text.strip().replace(bare, part) for part in parts if nearest(bare, [part])]
            close = nearest(text.strip(), alike)
        if close:
            return close
    shown = ", ".join(map(show_path, paths[:4]))
    return f"; there are {shown}{f' and {len(paths) - 4} more' if len(paths) > 4 else ''}"
