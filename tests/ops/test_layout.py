"""Shape rules of layout ops at symbolic sizes: what is inferred, proved and refused."""

from __future__ import annotations

from typing import Any

import pytest

from opstage.ops.dims import Dim, DimScope
from opstage.ops.errors import ShapeError
from opstage.ops.layout import BROADCAST_TO, FLATTEN, RESHAPE, SQUEEZE, SWAP_ADJACENT_AT_DEPTH
from opstage.ops.slicing import CONCAT, PAD, SLICE, STACK
from opstage.ops.types import FLOAT32, TensorType

SCOPE = DimScope()
B, M, N, S, T = (SCOPE.dim(name) for name in "BMNST")


def infer(primitive: Any, *shapes: tuple[Dim, ...], **static: Any) -> tuple[Dim, ...]:
    """The result's shape; nothing may be left undecided."""
    (out,) = primitive.infer(tuple(TensorType(shape, FLOAT32) for shape in shapes), static)
    assert not SCOPE.conditions
    return out.shape  # type: ignore[no-any-return]


def refused(match: str, primitive: Any, *shapes: tuple[Dim, ...], **static: Any) -> None:
    with pytest.raises(ShapeError, match=match):
        infer(primitive, *shapes, **static)


def test_reshape_infers_by_exact_division() -> None:
    assert infer(RESHAPE, (B, T, 768), shape=(B, T, 12, 64)) == (B, T, 12, 64)
    assert infer(RESHAPE, (B, T, 768), shape=(-1, 768)) == (B * T, 768)
    assert infer(RESHAPE, (B, T, 768), shape=(B, -1, 64)) == (B, 12 * T, 64)
    assert infer(FLATTEN, (B, T, 8), start=1, end=2) == (B, 8 * T)
    refused('N=3; add where=.*"N % 2 == 0"', RESHAPE, (B, N), shape=(B, 2, -1))
    refused("fails at every allowed size", RESHAPE, (B, 3), shape=(B, 4))


def test_broadcasting_stretches_what_is_literally_one() -> None:
    assert infer(BROADCAST_TO, (N, 1), shape=(B, N, T)) == (B, N, T)
    refused('where=.*"M == N"', BROADCAST_TO, (N,), shape=(M,))
    refused('where=.*"N == 1"', SQUEEZE, (2, N), axes=(1,))


def test_joined_sizes_add_up() -> None:
    assert infer(CONCAT, (B, T), (B, S), (B, 1), axis=1) == (B, S + T + 1)
    assert infer(STACK, (B, T), (B, T), axis=1) == (B, 2, T)
    assert infer(SWAP_ADJACENT_AT_DEPTH, (B, T, N), depth=1) == (B, N, T)
    refused('where=.*"B == N"', CONCAT, (B, T), (N, T), axis=1)


def test_slices_end_inside() -> None:
    assert infer(SLICE, (B, T + S), axis=1, start=T, length=S, step=1) == (B, S)
    assert infer(SLICE, (B, T), axis=1, start=T - 1, length=1, step=1) == (B, 1)
    assert infer(SLICE, (B, 2 * N), axis=1, start=1, length=N, step=2) == (B, N)
    assert infer(SLICE, (B, T), axis=1, start=1, length=T // 2, step=2) == (B, T // 2)
    refused('where=.*"T >= 4"', SLICE, (B, T), axis=1, start=0, length=4, step=1)
    refused(
        "start=2, .* it needs .* entries but there are T; fails at T=2",
        SLICE,
        (B, T),
        axis=1,
        start=2,
        length=T // 2,
        step=2,
    )
    refused("it needs T . 1 entries but there are T", SLICE, (B, T), axis=1, start=T, length=1, step=1)


def test_padding_adds_up() -> None:
    assert infer(PAD, (B, T), padding=((0, 0), (1, S)), value=0.0, interior=(0, 0)) == (B, S + T + 1)
    assert infer(PAD, (B, T), padding=((0, 0), (0, 2)), value=0.0, interior=(0, 2)) == (B, 3 * T)
    refused("take cells away use ops.slice", PAD, (B, T), padding=((0, 0), (T - 5, 0)), value=0.0, interior=(0, 0))
    refused("must have entries to pad between", PAD, (T - 1,), padding=((0, 0),), value=0.0, interior=(1,))
