"""What tests of meshes share: rows of a model's batch, digests, numbers within a tolerance, notes of calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest


def rows_of(specs: Iterable[Any], rng: np.random.Generator, count: int) -> list[Any]:
    """Arrays of so many rows for the Specs of a batch."""
    shapes = [([int(e) if str(e).isdecimal() else count for e in spec.entries], spec.dtype) for spec in specs]
    return [rng.integers(0, 8, s) if dtype == "int64" else 0.3 * rng.standard_normal(s) for s, dtype in shapes]


def digest(leaves: Iterable[Any]) -> str:
    """Of the bits of arrays."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def assert_close(found: Iterable[Any], expected: Iterable[Any], rtol: float, atol: float = 0.0) -> None:
    """Each of as many arrays."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def noting(patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., Any]) -> None:
    """Call `note(result, *arguments)` behind each call of a function."""
    within = getattr(owner, name)

    def call(*arguments: Any, **more: Any) -> Any:
        result = within(*arguments, **more)
        note(result, *arguments)
        return result

    patch.setattr(owner, name, call)
