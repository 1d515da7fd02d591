"""Ops declared outside of Opstage, in a process or by an installed package: used on every path, and checked."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.interpreters import registry
from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.interpreters.graph.graph import Graph
from opstage.interpreters.graph.recorder import replay
from opstage.ops import catalogue as registered
from opstage.ops.errors import DtypeError, OpstageError, ProgramError, ShapeError, UnsupportedError, UsageError
from opstage.training.memory import step_memory

EAGER, COMPILED = Options(dtype="float64"), Options(dtype="float64", backend="compiled")
BOTH = pytest.mark.parametrize("options", [EAGER, COMPILED, EAGER.replace(fast_kernels=False)], ids=str)
X = np.array([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Names that a test declares are free again after it."""
    before = set(registered._NAMED)
    yield
    for name in set(registered._NAMED) - before:
        registered.unregister(name)


def cube(name: str = "t_cube", **changed: Any) -> Callable[..., Any]:
    """x³, whose rules say twice the derivative, so that one sees whether they were used."""
    fields: dict[str, Any] = {
        "operands": ("x",),
        "shape": lambda x: x,
        "kernels": {"cpu": lambda x: x**3},
        "vjp": lambda ops, ctx, g: g[0] * ctx.saved[0] * ctx.saved[0] * 6.0,
        "jvp": lambda ops, primals, outputs, t: t[0] * primals[0] * primals[0] * 6.0,
    }
    return opstage.custom_op(name, **{**fields, **changed})


def decomposed(name: str = "t_cube", **changed: Any) -> Callable[..., Any]:
    return cube(name, kernels=None, decomposition=lambda ops, x: x * x * x, **changed)


FORMS = pytest.mark.parametrize("declare", [cube, decomposed], ids=["kernel", "decomposition"])


@BOTH
@FORMS
def test_declared_rules_are_used_on_every_path(declare: Callable[..., Any], options: Options) -> None:
    op = declare()

    def loss(ops: Any, x: Any) -> Any:
        return ops.sum(op(ops, x))

    value, gradient = opstage.value_and_grad(loss, X, options=options)
    assert value == 36.0
    np.testing.assert_allclose(gradient, 6 * X**2)
    np.testing.assert_allclose(opstage.jvp(loss, (X,), (X,), options=options)[1], np.sum(6 * X**3))
    np.testing.assert_allclose(opstage.hvp(loss, (X,), (np.ones(3),), options=options)[0], 12 * X)
    np.testing.assert_allclose(opstage.vjp(loss, X, options=options)[1](np.float64(2))[0], 12 * X**2)

    def looped(ops: Any, x: Any) -> Any:
        carry, _ = ops.scan(lambda ops, c, e: (op(ops, c) * e, None), x, ops.stack([x * 0 + 1.0, x * 0 + 1.0]))
        return ops.sum(carry)

    # x⁹, each cube with twice its derivative
    np.testing.assert_allclose(opstage.value_and_grad(looped, X, options=options)[1], 4 * 9 * X**8)
    np.testing.assert_allclose(opstage.jvp(looped, (X,), (np.ones(3),), options=options)[1], np.sum(36 * X**8))

    def inside(ops: Any, x: Any) -> Any:
        return ops.sum(opstage.transform.grad(ops, loss, x))

    np.testing.assert_allclose(opstage.value_and_grad(inside, X, options=options)[1], 12 * X)


@FORMS
def test_declared_op_in_a_trainer_a_session_and_a_check(declare: Callable[..., Any]) -> None:
    op = declare()

    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(op(ops, params * x))

    for backend in ("eager", "compiled"):
        trainer = opstage.scalar_trainer(loss, X, Spec("3"), options=Options(dtype="float64", backend=backend))
        trainer.step(0.01, np.ones(3))
        np.testing.assert_allclose(trainer.get_params(), X - 0.06 * X**2)
    report = opstage.check(lambda ops, x: op(ops, x), Spec("N 3"))
    assert report.ok and "(N, 3)" in str(opstage.check(lambda ops, x: ops.matmul(op(ops, x), op(ops, x)), Spec("N 3")))


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@FORMS
def test_declared_op_in_a_session(declare: Callable[..., Any], backend: str) -> None:
    op = declare()
    session = opstage.Session(Options(dtype="float64", backend=backend))
    x = session.leaf(X)
    found = session.backward(session.sum(op(session, x)))
    np.testing.assert_allclose(found[x], 6 * X**2)


@FORMS
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_memory_is_predicted(declare: Callable[..., Any], backend: str) -> None:
    op = declare()
    memory = step_memory(
        lambda ops, p, x: ops.sum(op(ops, p * x)), Spec("3"), Spec("N 3"), options=Options(backend=backend)
    )
    small, large = (memory.at(N=n).peak for n in (1000, 4000))
    assert 3.5 * small < large < 4.1 * small


def test_onnx_says_the_decomposition_or_names_the_op(tmp_path: Path) -> None:
    by_parts, by_kernel = decomposed(), cube("t_opaque")
    opstage.record(lambda ops, x: by_parts(ops, x), X).to_onnx(tmp_path / "parts.onnx")
    assert (tmp_path / "parts.onnx").stat().st_size
    with pytest.raises(UnsupportedError, match=r"ONNX cannot express t_opaque: it has neither a rule nor a decomp"):
        opstage.record(lambda ops, x: by_kernel(ops, x), X).to_onnx(tmp_path / "kernel.onnx")


@BOTH
def test_custom_vjp_follows_the_state_that_it_reads(options: Options) -> None:
    scale = [2.0]

    @opstage.custom_vjp
    def scaled(ops: Any, x: Any) -> Any:
        """Scaled."""
        return x * scale[0]

    @scaled.defvjp
    def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        return cotangents[0] * (-scale[0])

    def loss(ops: Any, x: Any) -> Any:
        return ops.sum(scaled(ops, x))

    def looped(ops: Any, x: Any) -> Any:
        return ops.sum(ops.scan(lambda ops, c, e: (scaled(ops, c), None), x, None, length=2)[0])

    for scale[0] in (2.0, 5.0):
        value, gradient = opstage.value_and_grad(loss, X, options=options)
        assert value == 6 * scale[0]
        np.testing.assert_allclose(gradient, [-scale[0]] * 3)
        value, gradient = opstage.value_and_grad(looped, X, options=options)
        assert value == 6 * scale[0] ** 2
        np.testing.assert_allclose(gradient, [scale[0] ** 2] * 3)
    assert opstage.jvp(loss, (X,), (X,), options=options)[1] == -6.0 * scale[0]  # as the declared vjp has it
    scaled.defjvp(lambda ops, inputs, outputs, tangents: tangents[0] * 7.0)
    assert opstage.jvp(loss, (X,), (X,), options=options)[1] == 42.0


@BOTH
def test_kernel_runs_in_every_call(options: Options) -> None:
    held = [1.0]
    op = cube(kernels={"cpu": lambda x: x * held[0]})
    for held[0] in (1.0, 4.0):
        one = opstage.run(lambda ops, x: op(ops, ops.full(shape=(2,), value=3.0)) + x, 0.0, options=options)
        np.testing.assert_array_equal(one, [3 * held[0]] * 2)


def _alias(x: Any) -> Any:
    return x


_BUFFER = np.zeros(3)


def _kept(x: Any) -> Any:
    _BUFFER[...] = x
    return _BUFFER


@BOTH
@pytest.mark.parametrize("kernel", [_alias, _kept])
def test_result_of_a_kernel_belongs_to_nobody_else(kernel: Any, options: Options) -> None:
    op = cube(kernels={"cpu": kernel})
    first, second = opstage.run(lambda ops, x: (op(ops, x), op(ops, x + 1.0)), X, options=options)
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, X + 1)


def _writes(x: Any) -> Any:
    x += 1
    return x


@BOTH
@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"kernels": {"cpu": lambda x: x[:2]}}, ShapeError, r"the kernel of t_cube for 'cpu' gave an array \(2,\)"),
        ({"kernels": {"cpu": lambda x: x.astype("f4")}}, ShapeError, r"float32 but its shape rule says \(3,\) float64"),
        ({"kernels": {"cpu": lambda x: (x, x)}}, ShapeError, "gave 2 arrays where the op has 1 outputs"),
        ({"kernels": {"cpu": lambda x: None}}, ShapeError, "gave None, not an array"),
        ({"kernels": {"cpu": _writes}}, ValueError, "read-only"),
        ({"vjp": lambda ops, ctx, g: (g[0], g[0])}, ShapeError, "the vjp of t_cube gives 2 tensors, not 1"),
        ({"vjp": lambda ops, ctx, g: ops.sum(g[0])}, ShapeError, r"cotangent of operand 0 \(\) float64 but"),
        ({"vjp": lambda ops, ctx, g: ops.cast(g[0], dtype="float32")}, DtypeError, "t_cube.*cotangent of operand 0"),
        (
            {"vjp": None, "jvp": None, "differentiable": True},
            UsageError,
            "op .t_cube. lacks a derivative: give it a vjp=",
        ),
    ],
)
def test_what_a_declaration_gives_wrongly_names_the_op(
    fields: dict[str, Any], error: type[Exception], message: str, options: Options
) -> None:
    with pytest.raises(error, match=message):
        op = cube(**fields)
        opstage.value_and_grad(lambda ops, x: ops.sum(op(ops, x)), X, options=options)


def test_no_vjp_is_zero_where_it_gives_none() -> None:
    op = cube(vjp=lambda ops, ctx, g: None)
    np.testing.assert_array_equal(opstage.value_and_grad(lambda ops, x: ops.sum(op(ops, x)), X)[1], [0.0] * 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: (cube(), cube()), UsageError, "op 't_cube' exists already"),
        (lambda: cube("add"), UsageError, "op 'add' exists already"),
        (lambda: cube("a b"), UsageError, "an op's name is an identifier"),
        (lambda: cube(kernels={"tpu": abs}), UsageError, "kernels has 'tpu'"),
        (lambda: cube(kernels=None), UsageError, "neither kernels nor a decomposition"),
        (lambda: cube(operands="x"), UsageError, "operands are one or more names"),
        (
            lambda: opstage.run(lambda ops, x: cube()(ops, x, x), X),
            ShapeError,
            r"t_cube takes 1 tensors \(x\) but got 2",
        ),
        (lambda: opstage.run(lambda ops, x: cube()(x), X), ProgramError, "takes ops first"),
        (lambda: opstage.run(lambda ops, x: cube()(ops, x, a=[1]), X), UsageError, "static parameter a is a list"),
        (lambda: opstage.run(opstage.custom_vjp(lambda ops, x: x), X), ProgramError, "without a vjp"),
    ],
)
def test_declarations_and_calls_that_are_refused(call: Any, error: type[OpstageError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_tensors_from_outside_of_a_definition_are_refused() -> None:
    def loss(ops: Any, x: Any) -> Any:
        f = opstage.custom_vjp(lambda inner, y: inner.mul(y, x))
        f.defvjp(lambda ops, inputs, outputs, g: g[0])
        return ops.sum(f(ops, x))

    with pytest.raises(ProgramError, match=r"reads a tensor \(3,\) float32 that is none of its arguments"):
        opstage.value_and_grad(loss, X)


def test_op_without_kernel_for_an_interpreter_says_what_to_give() -> None:
    op = cube(kernels={"cuda": abs})
    with pytest.raises(UnsupportedError, match=r"NumpyOps does not support t_cube.*decomposition=.*kernels="):
        opstage.run(lambda ops, x: op(ops, x), X)


def test_recorded_op_is_read_back_by_name() -> None:
    from opstage.interpreters.graph.text import parse

    op = cube()
    text = str(opstage.record(lambda ops, x: op(ops, x), X))
    assert "t_cube" in text and "t_cube" in str(parse(text))


def test_interpreter_of_this_process() -> None:
    from opstage.interpreters.eager_cpu import NumpyOps

    try:
        opstage.register_interpreter("mine", lambda options: NumpyOps(options.replace(backend="eager")))
        assert opstage.run(lambda ops, x: ops.sum(x), X, options=Options(backend="mine")) == 6.0
        for taken in ("mine", "eager"):
            with pytest.raises(UsageError, match=f"backend '{taken}' exists already"):
                opstage.register_interpreter(taken, NumpyOps)
    finally:
        registry._IN_PROCESS.clear()


@numba.njit  # type: ignore[misc]
def scaled_tanh(x: Any, a: float) -> Any:
    out = np.empty(x.shape, x.dtype)
    flat = out.ravel()
    for i, value in enumerate(x.flat):
        flat[i] = a * math.tanh(value)
    return out


@numba.njit  # type: ignore[misc]
def scaled_tanh_grad(x: Any, g: Any, a: float) -> Any:
    out = np.empty(x.shape, x.dtype)
    flat = out.ravel()
    for i, (value, up) in enumerate(zip(x.flat, g.flat)):
        flat[i] = up * a * (1 - math.tanh(value) ** 2)
    return out


@numba.vectorize  # type: ignore[misc]
def scaled_tanh_ufunc(x: float, a: float) -> float:
    return a * math.tanh(x)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "kernel", [scaled_tanh, lambda x, a: scaled_tanh_ufunc(x, x.dtype.type(a))], ids=["njit", "ufunc"]
)
@pytest.mark.parametrize("compiled_rule", [True, False])
def test_a_function_of_numba_is_a_kernel_with_a_derivative(
    backend: str, dtype: Any, kernel: Callable[..., Any], compiled_rule: bool
) -> None:
    def in_ops(ops: Any, x: Any, g: Any, a: float) -> Any:
        t = ops.tanh(x)
        return g * a * (1.0 - t * t)

    grad: Any = in_ops
    if compiled_rule:
        grad = opstage.custom_op(
            "t_tanh_grad",
            operands=("x", "g"),
            shape=lambda x, g, a: x,
            kernels={"cpu": scaled_tanh_grad},
            decomposition=in_ops,
            pure=True,
        )
    op = opstage.custom_op(
        "t_tanh",
        operands=("x",),
        shape=lambda x, a: x,
        kernels={"cpu": kernel},
        vjp=lambda ops, ctx, g, a: (grad(ops, ctx.saved[0], g[0], a=a),),
        saves=("x",),
        pure=True,
    )
    options = Options(backend=backend, dtype=dtype)

    def loss(ops: Any, x: Any, w: Any) -> Any:
        return ops.sum(op(ops, ops.mul(x, w), a=2.0))

    rng = np.random.default_rng(0)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-13}
    for x in (rng.standard_normal((3, 4)), rng.standard_normal((4, 3)).T, rng.standard_normal((3, 8))[:, ::2]):
        w = rng.standard_normal(x.shape)
        t = np.tanh(x * w)
        value, gradient = opstage.value_and_grad(loss, x, w, options=options)
        np.testing.assert_allclose(value, 2 * t.sum(), **tolerance)
        np.testing.assert_allclose(gradient, 2 * (1 - t**2) * w, **tolerance)
        tangent = rng.standard_normal(x.shape)
        second = opstage.hvp(loss, (x, w), (tangent, np.zeros_like(w)), options=options)[0]
        np.testing.assert_allclose(second, -4 * t * (1 - t**2) * w * w * tangent, **tolerance)
    trainer = opstage.scalar_trainer(lambda ops, w, x: loss(ops, x, w), np.ones((2, 2)), options=options)
    trainer.step(0.1, np.full((2, 2), 0.5))
    expected = 1 - 0.1 * (1 - np.tanh(0.5) ** 2)
    np.testing.assert_allclose(trainer.get_params(), np.full((2, 2), expected), **tolerance)


# Ops that an installed package brings by an entry point: found by name, and refused by name where they are broken -----

Install = Callable[..., None]

GOOD = """
import numpy as np, opstage
doubled = opstage.custom_op("t_doubled", operands=("x",), shape=lambda x: x, kernels={"cpu": lambda x: x + x},
                            vjp=lambda ops, ctx, g: g[0] * 2.0)
other = opstage.custom_op("t_other", operands=("x",), shape=lambda x: x, decomposition=lambda ops, x: x)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes a distribution of one module, with entry points `NAME = VALUE`, in a folder on sys.path."""
    before, modules = set(registered._NAMED), set(sys.modules)

    def make(distribution: str, module: str, text: str, **entries: str) -> None:
        folder = tmp_path / distribution
        info = folder / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(text)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{registered.GROUP}]", *lines, ""]))
        monkeypatch.syspath_prepend(str(folder))
        registered._entries.cache_clear()

    yield make
    for name in set(registered._NAMED) - before:
        registered.unregister(name)
    for name in set(sys.modules) - modules:
        if name.startswith("t_ops_"):
            del sys.modules[name]
    registered._entries.cache_clear()


def test_a_graph_of_an_op_is_read_where_its_package_is_installed(install: Install, tmp_path: Path) -> None:
    install("op_package", "t_ops_good", GOOD, t_doubled="t_ops_good:doubled", t_other="t_ops_good:other")
    assert version("op_package") == "1.0" and "t_ops_good" not in sys.modules
    op = importlib.import_module("t_ops_good").doubled
    text = str(opstage.record(lambda ops, x: op(ops, x) + 1.0, Spec("3")))
    for name in ("t_doubled", "t_other"):
        registered.unregister(name)
    del sys.modules["t_ops_good"]
    assert "t_doubled" in text
    (found,) = replay(NumpyOps(Options()), Graph.parse(text), [np.array([1.0, 2.0, 3.0], np.float32)])
    assert "t_ops_good" in sys.modules
    np.testing.assert_array_equal(found, [3.0, 5.0, 7.0])


@pytest.mark.parametrize(
    ("text", "value", "message"),
    [
        ("import t_ops_missing", "t_ops_one:op", r"t_op' \(t_ops_one:op of broken\) cannot be loaded: ModuleNot"),
        ("raise ValueError('no GPU here')", "t_ops_one:op", r"cannot be loaded: ValueError: no GPU here"),
        (GOOD, "t_ops_one:absent", r"cannot be loaded: AttributeError: .*absent"),
        (GOOD, "t_ops_one:doubled", r"op 't_op': t_ops_one:doubled declares no op of this name"),
        (
            GOOD.replace("t_other", "add"),
            "t_ops_one:doubled",
            r"cannot be loaded: UsageError: .*op 'add' exists already",
        ),
    ],
    ids=["import", "raises", "absent", "another name", "taken"],
)
def test_what_is_broken_is_named(text: str, value: str, message: str, install: Install) -> None:
    install("broken", "t_ops_one", text, t_op=value)
    before, whole = set(registered._NAMED), text == GOOD
    for _ in range(2):  # the second time as well: half a module leaves nothing behind
        with pytest.raises(UsageError, match=message):
            registered.registered("t_op")
        assert (set(registered._NAMED) == before) is not whole


def test_two_packages_with_one_name(install: Install) -> None:
    install("first", "t_ops_first", GOOD, t_doubled="t_ops_first:doubled")
    install("second", "t_ops_second", GOOD, t_doubled="t_ops_second:doubled")
    with pytest.raises(UsageError, match=r"op 't_doubled' is declared by (first|second) \(t_ops_\w+:doubled\) and .*"):
        registered.registered("t_doubled")
    assert not {"t_ops_first", "t_ops_second"} & set(sys.modules)


def test_an_op_of_this_process_comes_first(install: Install) -> None:
    install("package", "t_ops_late", GOOD, t_doubled="t_ops_late:doubled")
    mine = opstage.custom_op("t_doubled", operands=("x",), shape=lambda x: x, decomposition=lambda ops, x: x)
    assert registered.registered("t_doubled") is mine.primitive and "t_ops_late" not in sys.modules
    np.testing.assert_array_equal(opstage.run(lambda ops, x: mine(ops, x), np.ones(2)), np.ones(2))
