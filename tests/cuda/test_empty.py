"""Every op over tensors without elements on simulated CUDA: what eager_cpu gives, or its error."""

from __future__ import annotations

from typing import Any

import pytest

import opstage
from opstage.ops.errors import OpstageError
from opstage.ops.trees import map_leaves
from tests.conformance.harness import assert_close, leaves, program_of
from tests.conformance.test_empty import BY_OP, emptied, said, tried
from tests.cuda.test_conformance import BACKENDS, CUDA, UNSUPPORTED

OF_EACH = {True: 1, False: 3}
"""How many calls of each op that end in an error, and that have values."""


def in_float32(value: Any) -> Any:
    return value.astype("float32") if value.dtype == "float64" else value


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", BY_OP)
def test_some_calls_of_every_op(op: str, backend: str) -> None:
    left = dict(OF_EACH)
    for sample in BY_OP[op]:
        program = program_of(sample)
        for args in emptied(sample) if sample.id not in UNSUPPORTED else ():
            args = tuple(map_leaves(in_float32, args))
            expected = tried(lambda program=program, args=args: opstage.run(program, *args))
            failed = isinstance(expected, OpstageError)
            if not left[failed]:
                continue
            left[failed] -= 1
            options = CUDA.replace(backend=backend)
            actual = tried(lambda program=program, args=args: opstage.run(program, *args, options=options))
            if failed:
                assert said(actual) == said(expected)
                continue
            assert [(a.shape, a.dtype) for a in leaves(actual)] == [(e.shape, e.dtype) for e in leaves(expected)]
            assert_close(actual, expected, sample.float32, sample.id)
