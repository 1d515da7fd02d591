"""Attention by several tiles of queries and keys, at the widths of models: values and gradients beside float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.options import Options
from tests.conformance.harness import assert_close
from tests.conformance.test_values import upcast

from .here import REHEARSAL

# Queries, keys and the width of a head. Tiles have 16 to 64 queries or keys: these are one, several, and cut off.
SHAPES = {
    "one tile": (16, 16, 64),
    "cut off": (1, 65, 64),
    "several": (200, 200, 64),
    "more keys": (65, 333, 64),
    "more queries": (333, 65, 64),
    "wide": (200, 200, 128),
    "wide, cut off": (129, 70, 128),
    "wider than a tile": (70, 70, 160),
}
SMALL = {"small": (70, 70, 64), "small and wide": (40, 70, 128)}
"""For compute-sanitizer, under which a kernel takes long."""

if REHEARSAL:  # tiles have four queries there
    SHAPES = {"several": (9, 11, 3), "wide": (9, 6, 70)}
    SMALL = {"small": (5, 5, 3)}

CUDA = Options(device="cuda")
MASKS = ("all", "causal", "mask", "causal and mask")


def attend(shape: tuple[int, int, int], mask: str, backend: str, heads: tuple[int, ...] = (2,)) -> None:
    queries, keys, width = shape
    rng = np.random.default_rng(queries * keys + width)
    sizes = (queries, width), (keys, width), (keys, width), (queries, width)
    q, k, v, g = (rng.standard_normal((*heads, *size)).astype(np.float32) for size in sizes)
    allowed = rng.random((queries, keys)) < 0.5
    allowed[queries // 2] = False  # a query that may attend to nothing
    masks = (allowed,) if "mask" in mask else ()

    def program(ops: Any, q: Any, k: Any, v: Any, g: Any, *masks: Any) -> Any:
        out = ops.scaled_dot_product_attention(q, k, v, *masks, causal="causal" in mask)
        return ops.sum(ops.mul(out, g)), out

    def of(array_of: Any, options: Options) -> tuple[Any, Any]:
        arrays = array_of((q, k, v, g))
        out = opstage.run(lambda ops, *refs: program(ops, *refs)[1], *arrays, *masks, options=options)
        return out, opstage.value_and_grad(
            lambda ops, *refs: program(ops, *refs)[0], *arrays, *masks, wrt=(0, 1, 2), options=options
        )[1]

    found, gradient = of(lambda arrays: arrays, CUDA.replace(backend=backend))
    exact, slope = of(upcast, Options(dtype="float64"))
    assert_close(found, exact, (1e-4, 1e-5), "attention")
    for name, a, e in zip("qkv", gradient, slope, strict=True):
        scale = 1 + float(np.max(np.abs(e)))
        assert_close(a / scale, e / scale, (1e-4, 1e-5), f"gradient of {name}")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_several_tiles(shape: str, mask: str) -> None:
    attend(SHAPES[shape], mask, "eager")


@pytest.mark.parametrize("mask", ["all", "causal"])
@pytest.mark.parametrize("shape", list(SHAPES)[-3:])
def test_several_tiles_compiled(shape: str, mask: str) -> None:
    attend(SHAPES[shape], mask, "compiled")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SMALL)
def test_small_enough_for_a_sanitizer(shape: str, mask: str) -> None:
    attend(SMALL[shape], mask, "eager", heads=())


def test_the_same_bits_every_time() -> None:
    """A moving result is a race."""
    queries, keys, width = next(iter(SHAPES.values())) if REHEARSAL else (333, 333, 128)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((4, n, width)).astype(np.float32) for n in (queries, keys, keys))

    def loss(ops: Any, q: Any, k: Any, v: Any) -> Any:
        out = ops.scaled_dot_product_attention(q, k, v, causal=True)
        return ops.sum(ops.mul(out, out))

    first, *others = [opstage.value_and_grad(loss, q, k, v, wrt=(0, 1, 2), options=CUDA)[1] for _ in range(5)]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)
