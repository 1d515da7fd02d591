"""origins.json: where each setting came from when the run was started, kept for resumed runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..documents import Document
from ..tensors import read_bytes

_ADVICE = "without the file the run goes on, and names its config.toml as their origin"


def origins_json(literals: Mapping[str, str], origins: Mapping[str, str]) -> str:
    """Map each dotted path to its value, spelled as TOML, and to where the value came from, as JSON."""
    return json.dumps({path: {"value": literals[path], "origin": origins[path]} for path in literals}, indent=1) + "\n"


def first_origins(file: Path, literals: Mapping[str, str], origins: Mapping[str, str]) -> dict[str, str]:
    """Return the origins kept in `file`; for a value that has changed since, its current one in `origins`.

    An older run has no such file and gets the current origins. Raises `UsageError` for a file that cannot be read.
    """
    if not file.exists():
        return dict(origins)
    document = Document.of(read_bytes(file), f"{file}: cannot be read as the origins of a run's settings", _ADVICE)
    kept = {path: (entry["value"].text(), entry["origin"].text()) for path, entry in document.items()}
    return {
        path: kept[path][1] if path in kept and kept[path][0] == literals[path] else origin
        for path, origin in origins.items()
    }
