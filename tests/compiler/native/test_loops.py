"""What compiled loops are made of: their functions and formulas, when they are compiled, and where code is kept."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage.compiler import scalar
from opstage.compiler.codegen.cpu.kernels import fused
from opstage.compiler.codegen.cpu.math_functions import add, erf, exp, log, log1p, peak
from opstage.compiler.native import compiler, kernel_cache
from opstage.compiler.native.access import inlined
from opstage.compiler.native.frontend import source_of
from opstage.compiler.native.frontend.functions import Module
from opstage.compiler.native.frontend.types import FLOAT32, FLOAT64
from opstage.interpreters.eager_cpu.loops.arrays import Elementwise, JitLoop, loop
from opstage.ops.host_arrays import Array
from opstage.ops.primitive import Primitive
from opstage.ops.reduction import LOG_SOFTMAX, SOFTMAX
from opstage.ops.splitmix import random_words
from opstage.ops.types import TensorType

DTYPES = (np.float32, np.float64)


@loop()
def each_exp(x: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = exp(x[i])


@loop()
def each_erf(x: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = erf(x[i])


@loop()
def each_log(x: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = log(x[i])


@loop()
def each_log1p(x: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = log1p(x[i])


@loop()
def each_running_sum(x: Array, out: Array) -> None:
    total = x.dtype.type(0)
    for j in range(x.shape[1]):
        total = add(total, x[0, j])
        out[0, j] = x[0, j]
    out[0, 0] = total


@loop()
def each_peak(x: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        out[i] = peak(x, i, x.shape[1])


def in_ulps(actual: Any, exact: Any, dtype: Any) -> float:
    return float(np.max(np.abs(actual - exact) / np.spacing(np.abs(exact).astype(dtype))))


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.float32, -86.6, 88.72), (np.float64, -707.6, 709.78)])
def test_exp_is_within_an_ulp(dtype: Any, low: float, high: float) -> None:
    x = np.concatenate([np.linspace(low, high, 100_001), np.linspace(-1, 1, 50_001)]).astype(dtype)
    out = np.empty_like(x)
    each_exp(x, out)
    assert in_ulps(out, np.exp(x.astype(np.longdouble)), dtype) < 1.0


@pytest.mark.parametrize(("dtype", "beyond"), [(np.float32, 88.73), (np.float64, 709.79)])
def test_exp_at_its_edges(dtype: Any, beyond: float) -> None:
    x = np.array([0.0, -0.0, beyond, 1e4, np.inf, -beyond, -1e4, -np.inf, np.nan, -np.nan], dtype)
    out = np.empty_like(x)
    each_exp(x, out)
    np.testing.assert_array_equal(out, [1, 1, np.inf, np.inf, np.inf, 0, 0, 0, np.nan, np.nan])


@pytest.mark.parametrize("dtype", DTYPES)
def test_logarithms_are_within_ulps(dtype: Any) -> None:
    info, rng = np.finfo(dtype), np.random.default_rng(5)
    spread = np.exp2(rng.uniform(np.log2(float(info.smallest_subnormal)), np.log2(float(info.max)), 100_000))
    near = 1 + rng.uniform(-0.5, 1, 100_000) * np.exp2(rng.uniform(-info.nmant - 1, 0, 100_000))
    x = np.concatenate([spread, near, [info.max, info.tiny, info.smallest_subnormal, 1.0]]).astype(dtype)
    out = np.empty_like(x)
    each_log(x, out)
    assert in_ulps(out, np.log(x.astype(np.longdouble)), dtype) < 2.0
    x = np.concatenate([spread, near, [0.0]]).astype(dtype)
    each_log1p(x, out[: x.size])
    assert in_ulps(out[: x.size], np.log1p(x.astype(np.longdouble)), dtype) < 3.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_logarithms_at_their_edges(dtype: Any) -> None:
    x = np.array([1.0, 0.0, -0.0, -1.0, -np.inf, np.inf, np.nan, -np.finfo(dtype).tiny], dtype)
    out = np.empty_like(x)
    each_log(x, out)
    np.testing.assert_array_equal(out, [0, -np.inf, -np.inf, np.nan, np.nan, np.inf, np.nan, np.nan])
    x = np.array([0.0, np.inf, np.nan, np.finfo(dtype).max], dtype)
    each_log1p(x, out[:4])
    np.testing.assert_array_equal(out[:4], [0, np.inf, np.nan, np.log(np.finfo(dtype).max)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_erf_is_that_of_the_c_library(dtype: Any) -> None:
    x = np.concatenate([np.linspace(-6, 6, 20_001), [0.0, -0.0, 1e-20, np.inf, -np.inf, np.nan]]).astype(dtype)
    out = np.empty_like(x)
    each_erf(x, out)
    expected = np.array([math.erf(v) for v in x])
    np.testing.assert_array_max_ulp(out[:-1], expected[:-1].astype(dtype), 3)
    assert np.isnan(out[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_peak_is_the_maximum_of_rows_without_nan(dtype: Any) -> None:
    x = np.random.default_rng(3).standard_normal((200, 67)).astype(dtype)
    x[0], x[1], x[2, 5], x[3] = -np.inf, -3.0, np.inf, np.finfo(dtype).min
    x[4, :] = np.array([-0.0, -1e-40])[np.arange(67) % 2]
    out = np.empty(200, dtype)
    each_peak(x, out)
    np.testing.assert_array_equal(out, x.max(axis=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_formulas_run_as_they_stand(dtype: Any) -> None:
    x, g = dtype(0.7), dtype(-1.3)
    e = lambda v: np.exp(v)  # noqa: E731
    f = lambda v: dtype(math.erf(v))  # noqa: E731
    sigma = 1 / (1 + math.exp(-0.7))
    expected = {
        scalar.sigmoid(dtype, e)(x): sigma,
        scalar.sigmoid_grad(dtype)(x, g): -1.3 * 0.7 * 0.3,
        scalar.tanh_grad(dtype)(x, g): -1.3 * (1 - 0.49),
        scalar.relu_grad(dtype)(x, g): -1.3,
        scalar.silu(dtype, e)(x): 0.7 * sigma,
        scalar.silu_grad(dtype, e)(x, g): -1.3 * sigma * (1 + 0.7 * (1 - sigma)),
        scalar.gelu_tanh(dtype, e)(x): 0.35 * (1 + math.tanh(math.sqrt(2 / math.pi) * (0.7 + 0.044715 * 0.343))),
        scalar.gelu_erf(dtype, f)(x): 0.35 * (1 + math.erf(0.7 / math.sqrt(2))),
        scalar.gelu_erf_grad(dtype, e, f)(x, g): -1.3
        * (0.5 * (1 + math.erf(0.7 / math.sqrt(2))) + 0.7 * math.exp(-0.245) / math.sqrt(2 * math.pi)),
    }
    for actual, value in expected.items():
        assert type(actual) is dtype
        assert float(actual) == pytest.approx(value, rel=8 * float(np.finfo(dtype).eps))
    h = 1e-3
    slope = [scalar.gelu_tanh(np.float64, np.exp)(0.7 + d) for d in (-2 * h, -h, h, 2 * h)]
    difference = (slope[0] - 8 * slope[1] + 8 * slope[2] - slope[3]) / (12 * h)
    tolerance = max(1e-9, 8 * float(np.finfo(dtype).eps))
    assert float(scalar.gelu_tanh_grad(dtype, e)(x, g)) == pytest.approx(-1.3 * difference, rel=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_formulas_stay_in_their_type(dtype: Any) -> None:
    """A literal of another type in a formula would carry a float32 computation over to float64."""
    kind = {np.float32: FLOAT32, np.float64: FLOAT64}[dtype]
    formulas = [
        (1, scalar.sigmoid(dtype, exp)),
        (2, scalar.sigmoid_grad(dtype)),
        (2, scalar.tanh_grad(dtype)),
        (2, scalar.relu_grad(dtype)),
        (1, scalar.silu(dtype, exp)),
        (2, scalar.silu_grad(dtype, exp)),
        (1, scalar.gelu_tanh(dtype, exp)),
        (2, scalar.gelu_tanh_grad(dtype, exp)),
        (1, scalar.gelu_erf(dtype, erf)),
        (2, scalar.gelu_erf_grad(dtype, exp, erf)),
    ]
    for count, formula in formulas:
        _, result = Module().function(source_of(formula), formula, (kind,) * count, ())
        assert result is kind, formula.__qualname__


def generated(primitive: Primitive) -> Callable[[Array, Array], None]:
    """The loops of a composite along the only row of x, written to `out`, which they do not know."""

    def call(x: Array, out: Array) -> None:
        kernel = fused(primitive, (TensorType(x.shape, x.dtype),), {"axis": 1})
        assert kernel is not None
        (out[...],) = kernel(x)

    return call


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of", [SOFTMAX, LOG_SOFTMAX, each_running_sum], ids=lambda f: getattr(f, "name", "sum"))
def test_bits_do_not_depend_on_where_arrays_stand(of: Any, dtype: Any) -> None:
    """One after the other in memory, near, far, in either order: a result is not to show what the allocator did."""
    call = of if isinstance(of, JitLoop) else generated(of)
    for n in (3, 7, 20, 33):
        x = np.random.default_rng(n).standard_normal((1, n)).astype(dtype)
        found = set()
        for gap in range(48):
            memory = np.zeros(2 * n + gap, dtype)
            for given, taken in ((0, n + gap), (n + gap, 0)):
                operand, out = memory[given:][:n].reshape(1, n), memory[taken:][:n].reshape(1, n)
                operand[...] = x
                call(operand, out)
                found.add(out.tobytes())
        assert len(found) == 1, n


def test_the_formula_of_random_bits_runs_as_it_stands() -> None:
    formula = scalar.uniform_integer(np.uint64, scalar.splitmix64(np.uint64))
    with np.errstate(over="ignore"):
        drawn = [int(formula(np.uint64(2**64 - 3), np.uint64(i))) for i in range(9)]
    assert drawn == [int(word) >> 40 for word in random_words(2**64 - 3, 9)]


def test_updates_are_not_contracted() -> None:
    """p·shrink - step·rate with the product rounded before the difference, as the decomposition says."""

    @inlined()
    def difference(real: Any) -> Any:
        return lambda a, b, c: a - b * c

    def body(a: Array, b: Array, c: Array, out: Array) -> None:
        for i in range(a.size):
            out[i] = difference(a[i], b[i], c[i])

    rng = np.random.default_rng(1)
    for dtype in DTYPES:
        a, b, c = rng.standard_normal((3, 4099)).astype(dtype)
        a[::2] = (b * c)[::2]  # where a fused operation would leave the rounding error of the product
        out = np.empty_like(a)
        JitLoop(body, 1)(a, b, c, out)
        assert out.tobytes() == (a - b * c).tobytes()
        assert (out[::2] == 0).all()


# When ----------------------------------------------------------------------------------------------------------------


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_opstage_imports_no_compiler_and_nothing_heavy() -> None:
    code = (
        "import sys, opstage\n"
        "from opstage.interpreters.eager_cpu.kernels import kernel_table\n"
        "kernel_table('float32', True)\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'numba', 'llvmlite', 'scipy', 'rich'}))"
    )
    assert run_python(code).strip() == "[]"


def test_programs_without_compiled_kernels_import_no_compiler() -> None:
    code = (
        "import sys, numpy, opstage\n"
        "opstage.value_and_grad(lambda ops, x: ops.sum(ops.mul(ops.exp(x), x)), numpy.ones(3))\n"
        "plain = opstage.Options(fast_kernels=False)\n"
        "opstage.value_and_grad(lambda ops, x: ops.sum(ops.silu(x)), numpy.ones(3), options=plain)\n"
        "print('numba' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


# Where ---------------------------------------------------------------------------------------------------------------


def doubled(x: Array, out: Array) -> None:
    for i in range(x.size):
        out[i] = x[i] + x[i]


def use(function: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A new loop around `function`, called once, in a process that has no kernels yet; whether it was compiled."""
    seen: list[str] = []
    compiled = compiler.object_code

    def object_code(source: Any, entry: str) -> bytes:
        seen.append(entry)
        return compiled(source, entry)

    x = np.arange(5, dtype=np.float32)
    out = np.empty_like(x)
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_kernels", {})
        patch.setattr(compiler, "object_code", object_code)
        JitLoop(function, 1)(x, out)
    assert out.tolist() == [0, 2, 4, 6, 8]
    return bool(seen)


def test_machine_code_is_kept_and_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert use(doubled, monkeypatch)
    assert not use(doubled, monkeypatch)
    assert {path.parent.parent for path in tmp_path.rglob("*.o")} == {tmp_path}


def test_a_package_that_cannot_be_written_to_keeps_code_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kernel_cache, "_HERE", tmp_path / "file")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = kernel_cache.cache_folder()
    assert chosen is not None and chosen.parent == tmp_path / "cache"


# Ufuncs and loops, and what they are given ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_ufuncs_broadcast_and_take_any_strides(dtype: Any) -> None:
    grad, sigmoid = Elementwise(scalar.tanh_grad, operands=2), Elementwise(scalar.sigmoid, exp)
    rng = np.random.default_rng(3)
    y, g = rng.standard_normal((2, 6, 8)).astype(dtype)

    def expected(y: Array, g: Array) -> Array:
        return np.asarray(g * (1 - y * y), dtype)

    for left, right in (
        (y, g),
        (y[::2, ::-1], g[1::2]),
        (y.T, g.T),
        (y[0], g),
        (y[:, :1], g),
        (y[0, 0], g),
        (y[:0], g[:0]),
    ):
        np.testing.assert_array_equal(grad(left, right), expected(left, right))
    assert grad(y[0, 0], g[0, 0]) == expected(y[0, 0], g[0, 0])
    out = y.copy()
    grad_into = grad._compiled[np.dtype(dtype)]
    assert grad_into(out, g, out=out) is out
    np.testing.assert_array_equal(out, expected(y, g))
    overlapping = np.concatenate([y.reshape(-1), y.reshape(-1)[:1]])
    grad_into(overlapping[:-1], g.reshape(-1), out=overlapping[1:])
    np.testing.assert_array_equal(overlapping[1:], expected(y, g).reshape(-1))
    np.testing.assert_allclose(sigmoid(y), 1 / (1 + np.exp(-y)), rtol=1e-6)


def test_loops_refuse_arrays_that_they_would_read_or_write_wrongly() -> None:
    x, made = np.arange(6, dtype=np.float32), JitLoop(doubled, 1)
    with pytest.raises(ValueError, match=r"doubled is for packed arrays; strides \(8,\)"):
        made(x[::2], np.empty(3, np.float32))
    out = np.empty(6, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="doubled writes to an array that may only be read"):
        made(x, out)
    wide = np.empty(6)
    made(x, wide)  # each array has its own dtype
    assert wide.tolist() == [0, 2, 4, 6, 8, 10]
    made(x.astype(np.int64), out := np.empty(6, np.int64))
    assert out.tolist() == [0, 2, 4, 6, 8, 10]
