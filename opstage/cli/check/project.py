"""The settings of checks in a project: `opstage.toml`, or `[tool.opstage]` in `pyproject.toml`.

The nearest file above the working directory applies; in one folder `opstage.toml` has precedence. A pyproject.toml
without that table is skipped. Flags override all settings. Paths are relative to the file's folder.

    [tool.opstage.check]            # in opstage.toml: [check]
    include = ["models", "train/*.py"]
    exclude = ["models/old"]
    select = ["shape", "dtype"]     # or ignore
    strict = true
    per-file-ignores = { "models/legacy_*.py" = ["unused-input"] }

    [tool.opstage.options]          # in opstage.toml: [options]
    dtype = "float64"
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.toml import toml_document
from ...interpreters.shape_check import RULES
from ...ops.errors import UsageError, nearest
from ...options import Options
from .request import seconds


@dataclass(frozen=True)
class Project:
    """root               the folder of the file, the working directory where there is none
    include              what is checked when nothing is named
    exclude              what is passed over in folders
    select, ignore       rules by name; None: all of them, none of them
    per_file_ignores     rules by a pattern of files
    options              of `Options`, by name
    """

    root: Path
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    strict: bool = False
    warnings_as_errors: bool = False
    time_limit: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def find_project(start: Path) -> Project:
    """Return the settings for a folder. Raises UsageError, with file and key, for settings that cannot be read."""
    for folder in (start, *start.parents):
        for name, table in (("opstage.toml", ()), ("pyproject.toml", ("tool", "opstage"))):
            path = folder / name
            if path.is_file():
                found: Any = toml_document(path, largest=1 << 20)[0]
                for key in table:
                    found = found.get(key) if isinstance(found, dict) else None
                if found is not None:
                    return _project(found, path, ".".join(table))
    return Project(start)


def rules_named(names: tuple[str, ...] | list[str], where: str) -> tuple[str, ...]:
    """Check that all names are rules."""
    for name in names:
        if name not in RULES:
            raise UsageError(f"{where}: unknown rule {name!r}{nearest(name, RULES)}; opstage check --rules lists them")
    return tuple(names)


def _project(table: Any, path: Path, prefix: str) -> Project:
    shown = os.path.relpath(path)
    tables = _table(table, f"{shown}: {prefix}" if prefix else shown)
    _require_known(tables, ("check", "options"), f"{shown}: [{prefix}]" if prefix else shown)
    prefix = f"{prefix}." if prefix else ""
    at = f"{shown}: [{prefix}check]"
    given = {key.replace("_", "-"): value for key, value in _table(tables.get("check", {}), at).items()}
    _require_known(given, _KEYS, at)
    values: dict[str, Any] = {}
    for key, value in given.items():
        name, read = _KEYS[key]
        values[name] = read(value, f"{at} {key}")
    options = _table(tables.get("options", {}), f"{shown}: [{prefix}options]")
    Options.from_dict(options, source=f"{shown}: [{prefix}options]")
    return Project(path.parent, **values, options=options)


def _require_known(given: Mapping[str, Any], known: Mapping[str, Any] | tuple[str, ...], at: str) -> None:
    for key in given:
        if key not in known:
            raise UsageError(f"{at}: unknown key {key!r}{nearest(key, known)}; it has {', '.join(known)}")


def _table(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{at}: expected a table, not {value!r}")
    return value


def _words(value: Any, at: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise UsageError(f"{at}: expected a list of strings, not {value!r}")
    return tuple(value)


def _rules(value: Any, at: str) -> tuple[str, ...]:
    return rules_named(_words(value, at), at)


def _patterns(value: Any, at: str) -> dict[str, tuple[str, ...]]:
    return {pattern: _rules(rules, f"{at} {pattern!r}") for pattern, rules in _table(value, at).items()}


def _flag(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{at}: expected true or false, not {value!r}")
    return value


def _time(value: Any, at: str) -> float:
    found = seconds(str(value)) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
    if found is None:
        raise UsageError(f"{at}: {value!r} is not a duration; expected one such as 60s, 2m or 500ms")
    return found


_KEYS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "include": ("include", _words),
    "exclude": ("exclude", _words),
    "select": ("select", _rules),
    "ignore": ("ignore", _rules),
    "per-file-ignores": ("per_file_ignores", _patterns),
    "strict": ("strict", _flag),
    "warnings-as-errors": ("warnings_as_errors", _flag),
    "time-limit": ("time_limit", _time),
}
