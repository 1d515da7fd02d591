"""Durations, as flags and project files write them."""

from __future__ import annotations

import re


def seconds(text: str) -> float | None:
    """`60`, `60s`, `2m`, `500ms`; None for what is no positive duration."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?", text.strip())
    found = float(match[1]) * {"ms": 1e-3, "m": 60.0}.get(match[2] or "s", 1.0) if match is not None else 0.0
    return found if found > 0 else None
