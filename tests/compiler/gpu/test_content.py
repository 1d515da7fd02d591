"""The digest of what a kernel computes: the same for the same code, another for another constant, however deep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from opstage.compiler.gpu.compiler import digest_of

SCALE = np.float32(2)


def scaled(x: Any) -> Any:
    return x * SCALE


def kernel_of(factor: Any) -> Any:
    def formula(x: Any) -> Any:
        return x * factor

    def kernel(out: Any, x: Any) -> None:
        out[0] = formula(x[0])

    return kernel


def test_two_functions_of_the_same_code_are_the_same() -> None:
    assert digest_of(kernel_of(np.float32(2))) == digest_of(kernel_of(np.float32(2)))


def test_a_constant_of_a_function_that_is_called_counts() -> None:
    kernels = [kernel_of(np.float32(2)), kernel_of(np.float32(3)), kernel_of(np.float64(2)), kernel_of(2)]
    assert len({digest_of(kernel) for kernel in kernels}) == 4


def test_a_global_counts(monkeypatch: Any) -> None:
    before = digest_of(scaled)
    monkeypatch.setattr(f"{__name__}.SCALE", np.float32(3))
    assert digest_of(scaled) != before


def test_a_function_that_calls_itself_ends() -> None:
    def again(x: Any) -> Any:
        return again(x - 1) if x else x

    assert digest_of(again) == digest_of(again)


def test_what_else_decides_counts() -> None:
    assert len({digest_of(scaled), digest_of(scaled, "sm_80"), digest_of(scaled, "sm_90")}) == 3


class Intrinsic:
    """As numba has them: a function that writes the instructions of its callers."""

    def __init__(self, definition: Any):
        self._defn = definition


def test_a_function_that_writes_instructions_counts_by_its_file(tmp_path: Path) -> None:
    def kernel_by(text: str) -> Any:
        path = tmp_path / f"{len(text)}.py"
        path.write_text(text)
        names: dict[str, Any] = {}
        exec(compile(text, str(path), "exec"), names)
        steps = Intrinsic(names["begin"])

        def kernel(out: Any) -> None:
            out[0] = steps(out)

        return kernel

    one, other = "def begin(): return 1\n", "def begin(): return 1\nSTEP = 2\n"
    assert digest_of(kernel_by(one)) == digest_of(kernel_by(one)) != digest_of(kernel_by(other))
