"""Durations, as spelled in flags and project files."""

from __future__ import annotations

import re


def seconds(text: str) -> float | None:
    """Parse `60`, `60s`, `2m` or `500ms` to seconds; return None for anything but a positive duration."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?", text.strip())
    found = float(match[1]) * {"ms": 1e-3, "m": 60.0}.get(match[2] or "s", 1.0) if match is not None else 0.0
    return found if found > 0 else None
