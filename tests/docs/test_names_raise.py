"""Every public name that is no op states its errors, and each stated one is what a wrong call raises.

The errors of ops and derived functions are found: tests/conformance/test_raises.py.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
import opstage.onnx
import opstage.torch
from opstage import Options, Spec, callbacks, data, facts, init, optim, testing, transform
from opstage.interpreters import graph
from opstage.ops import dims
from opstage.program_arguments import batch_arguments
from opstage.training import checkpoint, memory
from tests.conformance.raises import stated
from tests.docs.test_api_pages import public

MISSING = "missing.file"


class Wrong(NamedTuple):
    """A wrong call of a public name: the call, how the message begins, the error."""

    name: str
    call: Callable[[], Any]
    message: str
    error: str = "UsageError"


def square(ops: Any, x: Any) -> Any:
    return ops.sum(x * x)


def elements(ops: Any, x: Any) -> Any:
    return x * x


def mismatched(ops: Any, x: Any) -> Any:
    return ops.matmul(x, x)


def loss(ops: Any, w: Any, x: Any) -> Any:
    return ops.sum(ops.matmul(x, w))


def trainer() -> Any:
    return opstage.scalar_trainer(square, [1.0, 2.0])


def inside(program: Any) -> Any:
    return opstage.run(program, [1.0, 2.0])


def _total(ops: Any, x: Any, *_: Any) -> Any:
    return ops.sum(x)


def redirected(write: Any) -> None:
    with opstage.debug.redirect(write):
        pass


def onto_a_file() -> None:
    Path("taken").write_text("")
    checkpoint.save("taken", checkpoint.take_snapshot(trainer()))


def rows(count: int = 4) -> data.Dataset:
    return data.from_arrays(x=np.ones((count, 2), np.float32))


ANY: Any = 3
"""What no argument takes, whatever its annotation says."""
NO_TENSOR = "an argument that is no array of numbers, or options that are none"
NO_SCALAR = "a program that returns no scalar"

WRONG = (
    Wrong("debug.redirect", lambda: redirected(ANY), "debug.redirect: argument write: expected a function"),
    Wrong("facts.Window", lambda: facts.Window("T", -1), "the size of a window is an int"),
    Wrong("facts.ranges_of", lambda: facts.ranges_of(ANY), "ranges_of: argument report: expected"),
    Wrong(
        "facts.ranges_of",
        lambda: facts.ranges_of(opstage.check(square, Spec("3")), {"x": (1, 0)}),
        "bounds: 'x': expected (low, high) with low <= high, got (1, 0)",
    ),
    Wrong(
        "facts.ranges_of",
        lambda: facts.ranges_of(opstage.check(square, Spec("3")), {"y": (0, 1)}),
        "bounds: 'y' matches no input",
    ),
    Wrong(
        "facts.ranges_of",
        lambda: facts.ranges_of(opstage.check(mismatched, Spec("3 4"))),
        "ranges_of: argument report: expected one without errors",
    ),
    Wrong("facts.report_of", lambda: facts.report_of(ANY), "report_of: argument graph: expected"),
    Wrong("testing.assert_shapes", lambda: testing.assert_shapes(square, "y: B"), "square has no argument 'y'"),
    Wrong(
        "testing.assert_like_one_rank",
        lambda: testing.assert_like_one_rank(square, {}, mesh="data"),
        "Options.replace: mesh: mesh 'data'",
    ),
    Wrong("ops.dims.minimum", lambda: dims.minimum(), "a minimum or maximum needs"),
    Wrong("ops.dims.minimum", lambda: dims.minimum("a", 3), "a dim is an int or"),
    Wrong("interpreters.graph.Graph", lambda: graph.Graph.load(MISSING), "missing.file: cannot be read"),
    Wrong("onnx.load", lambda: opstage.onnx.load(MISSING), "missing.file cannot be read"),
    Wrong("torch.load", lambda: opstage.torch.load(MISSING), ""),
    Wrong(
        "training.checkpoint.take_snapshot",
        lambda: checkpoint.take_snapshot(trainer(), optim.sgd(0.1)),
        "a snapshot takes an optimizer together with its state",
    ),
    Wrong("training.checkpoint.save", lambda: checkpoint.save("saved", ANY), "save takes the snapshot"),
    Wrong("training.checkpoint.save", lambda: onto_a_file(), "taken"),
    Wrong(
        "training.checkpoint.save",
        lambda: checkpoint.save("saved", checkpoint.take_snapshot(opstage.scalar_trainer(square, [np.nan, 1.0]))),
        "",
        "NotFiniteError",
    ),
    Wrong("training.checkpoint.load", lambda: checkpoint.load(MISSING), "missing.file: no such folder"),
    Wrong("training.checkpoint.restore", lambda: checkpoint.restore(trainer(), ANY), "restore takes the snapshot"),
    Wrong(
        "training.checkpoint.restore",
        lambda: checkpoint.restore(opstage.scalar_trainer(square, [1.0]), checkpoint.take_snapshot(trainer())),
        "the saved parameters do not fit",
    ),
    Wrong(
        "training.memory.step_memory",
        lambda: memory.step_memory(square, Spec("3"), optimizer=ANY),
        "optimizer=3 is none of",
    ),
    Wrong(
        "training.memory.model_memory",
        lambda: memory.model_memory(ANY, optim.sgd(0.1)),
        "model_memory takes an opstage.Model",
    ),
    Wrong("run", lambda: opstage.run(elements, "abc"), "argument x: a tensor must hold numbers"),
    Wrong("run", lambda: opstage.run(elements, 1.0, options=ANY), "options must be"),
    Wrong("run", lambda: opstage.run(lambda ops, x: 3, 1.0), "an op got an int where it needs a ref", "ProgramError"),
    Wrong("value_and_grad", lambda: opstage.value_and_grad(elements, [1.0]), "a program to take", "ShapeError"),
    Wrong("value_and_grad", lambda: opstage.value_and_grad(square, [1]), "a program to", "ProgramError"),
    Wrong("value_and_grad", lambda: opstage.value_and_grad(square, [1.0], wrt=3), "wrt=3 is out of range"),
    Wrong("vjp", lambda: opstage.vjp(elements, [1.0])[1]([1.0, 2.0]), "a cotangent is", "ShapeError"),
    Wrong("jvp", lambda: opstage.jvp(elements, ([1.0],), ()), "expected 1 tangents", "ShapeError"),
    Wrong("hvp", lambda: opstage.hvp(elements, ([1.0],), ([1.0],)), "a program to", "ShapeError"),
    Wrong("hessian", lambda: opstage.hessian(elements, [1.0]), "grad takes a function", "ProgramError"),
    Wrong("hessian", lambda: opstage.hessian(square, [1.0], wrt=9), "wrt is the"),
    Wrong("jacobian", lambda: opstage.jacobian(elements, [1]), "argument 0: expected leaves of floats"),
    Wrong("jacobian", lambda: opstage.jacobian(lambda o, x: o.less(x, x), [1.0]), "a derivative is of", "DtypeError"),
    Wrong(
        "per_sample_gradients",
        lambda: opstage.per_sample_gradients(lambda ops, w, x: w * x, [1.0], [[1.0]]),
        "grad takes a function",
        "ProgramError",
    ),
    Wrong(
        "per_sample_gradients",
        lambda: opstage.per_sample_gradients(lambda ops, w, x, y: ops.sum(w), [1.0], [[1.0]], [[1.0], [2.0]]),
        "vmap: argument 1 is (1, 1) with 1 examples on axis 0, but argument 2 is (2, 1)",
        "ShapeError",
    ),
    Wrong("remat", lambda: opstage.remat(ANY), "remat: expected a function"),
    Wrong(
        "transform.remat", lambda: inside(lambda o, x: transform.remat(o, x)), "f of a remat must be", "ProgramError"
    ),
    Wrong("vmap", lambda: opstage.vmap(ANY), "vmap: f is an int"),
    Wrong("transform.vmap", lambda: inside(lambda o, x: transform.vmap(o, elements, x, draws=ANY)), "vmap: draws is 3"),
    Wrong("transform.vmap", lambda: inside(lambda o, x: transform.vmap(o, elements, x, chunk=0)), "vmap: chunk is 0"),
    Wrong(
        "transform.vmap", lambda: inside(lambda o, x: transform.vmap(o, elements, x, in_axes="a")), "vmap: in_axes has"
    ),
    Wrong(
        "transform.vmap", lambda: inside(lambda o, x: transform.vmap(o, elements, x, in_axes=(0, 0))), "vmap: in_axes"
    ),
    Wrong(
        "transform.vmap",
        lambda: inside(lambda o, x: transform.vmap(o, elements, x, in_axes=1)),
        "argument 0 is (2,)",
        "ShapeError",
    ),
    Wrong(
        "transform.vmap",
        lambda: inside(lambda o, x: transform.vmap(o, elements, x, out_axes=None)),
        "the result differs from example to example",
        "ShapeError",
    ),
    Wrong(
        "transform.vmap",
        lambda: opstage.record(lambda o, x: transform.vmap(o, elements, x, chunk=2), Spec("B")),
        "chunk=2 is not supported for B examples",
        "UnsupportedError",
    ),
    Wrong("check", lambda: opstage.check(elements, Spec("B"), options=ANY), "options must be"),
    Wrong("check", lambda: opstage.check(elements, Spec("B"), claims=["casual:B"]), "'casual:B' is not a claim"),
    Wrong(
        "check",
        lambda: opstage.check(elements, Spec("B"), claims=["causal:B"], bounds={"nowhere": (0, 1)}),
        "bounds: 'nowhere' matches no input",
    ),
    Wrong(
        "check_step", lambda: opstage.check_step(loss, {"w": Spec("3 1")}, Spec("B 3"), options=ANY), "options must be"
    ),
    Wrong("compile", lambda: opstage.compile(elements), "the program takes x"),
    Wrong("compile", lambda: opstage.compile(mismatched, Spec("n")), "x must be a matrix", "ShapeError"),
    Wrong("record", lambda: opstage.record(elements), "the program takes x"),
    Wrong("record", lambda: opstage.record(mismatched, Spec("n")), "x must be a matrix", "ShapeError"),
    Wrong(
        "CompiledOut",
        lambda: opstage.compile(elements, Spec("n")).forward([[1.0]]),
        "x is (1, 1): it has rank 2",
        "ShapeError",
    ),
    Wrong(
        "CompiledScalar",
        lambda: opstage.compile(square, Spec("n")).forward([[1.0]]),
        "x is (1, 1): it has rank 2",
        "ShapeError",
    ),
    Wrong("CompiledScalar", lambda: opstage.compile(square, Spec("n")).forward(), "the call does not have"),
    Wrong("bounds", lambda: opstage.bounds(elements, 1.0, method=ANY), "bounds: argument method: expected one of"),
    Wrong(
        "bounds",
        lambda: opstage.bounds(lambda o, x: o.cholesky(x), opstage.Box.around(np.eye(2), 0.1)),
        "bounds of cholesky are not supported",
        "UnsupportedError",
    ),
    Wrong("Box", lambda: opstage.bounds(elements, opstage.Box([2.0], [1.0])), "argument 0: expected lower <= upper"),
    Wrong("Spec", lambda: Spec("B", "foo"), "unknown dtype"),
    Wrong("shapes", lambda: opstage.shapes("x B 4")(loss), "'x B 4': expected a name"),
    Wrong("Declaration", lambda: init.Declaration((-1,), init.ones), "a parameter's shape"),
    Wrong("Options", lambda: Options(dtype="foo"), "option dtype: 'foo'"),
    Wrong("Param", lambda: opstage.Param("abc"), "a parameter: a tensor"),
    Wrong("scalar_trainer", lambda: opstage.scalar_trainer(square, "a"), "a parameter: a tensor"),
    Wrong("ScalarTrainer", lambda: trainer().step("a"), "sgd: lr must be"),
    Wrong("ScalarTrainer", lambda: opstage.scalar_trainer(elements, [1.0]).step(0.1), "error: loss", "ValidationError"),
    Wrong("Accumulate", lambda: opstage.Accumulate(0), "accumulate: parts must be"),
    Wrong("plan", lambda: opstage.plan("nosuch", at={"B": 3}), "the argument MODEL"),
    Wrong("load", lambda: opstage.load(MISSING), f"{MISSING}: the run directory does not exist"),
    Wrong("fit", lambda: opstage.fit("nosuch", rows()), "unknown model"),
    Wrong("Session", lambda: opstage.Session().input("abc"), "input: a tensor"),
    Wrong("Session", lambda: opstage.Session().backward(ANY), "backward got an int", "ProgramError"),
    Wrong("Model", lambda: opstage.Model("a", None, ANY, ANY, ANY, ANY), "model a: "),
    Wrong("models.model", lambda: opstage.models.model("nosuch"), "unknown model"),
    Wrong(
        "custom_vjp",
        lambda: inside(lambda ops, x: opstage.custom_vjp(elements)(ops, x)),
        "elements is a custom_vjp",
        "ProgramError",
    ),
    Wrong("register_interpreter", lambda: opstage.register_interpreter("eager", lambda o: o), "backend 'eager' exists"),
    Wrong("register_wire_format", lambda: opstage.register_wire_format("foo", ANY), "unknown dtype"),
    Wrong("lr_range_test", lambda: opstage.lr_range_test(ANY, [1], optim.sgd()), "lr_range_test takes"),
    Wrong(
        "transform.grad",
        lambda: inside(lambda o, x: transform.grad(o, lambda i, x: x, x)),
        "grad takes a function",
        "ProgramError",
    ),
    *[
        Wrong(f"transform.{name}", lambda f=f: inside(f), "grad takes a function", "ProgramError")
        for name, f in (
            ("value_and_grad", lambda o, x: transform.value_and_grad(o, elements, x)),
            ("hvp", lambda o, x: transform.hvp(o, elements, (x,), (x,))),
            ("hessian", lambda o, x: transform.hessian(o, elements, x)),
        )
    ],
    Wrong(
        "transform.hvp",
        lambda: inside(lambda o, x: transform.hvp(o, lambda o, x: o.sum(x), (x,), (o.const(1.0),))),
        "a tangent is",
        "ShapeError",
    ),
    Wrong("transform.jacobian", lambda: inside(lambda o, x: transform.jacobian(o, _total, x, wrt=1)), "wrt is"),
    Wrong(
        "transform.jacobian",
        lambda: inside(lambda o, x: transform.jacobian(o, _total, x, o.iota(shape=(2,)), wrt=1)),
        "a derivative is of floats",
        "DtypeError",
    ),
    Wrong(
        "transform.jacobian",
        lambda: opstage.record(lambda o, x: transform.jacobian(o, elements, x, chunk=2), Spec("B")),
        "chunk=2 is not supported for B examples",
        "UnsupportedError",
    ),
    Wrong("transform.hessian", lambda: inside(lambda o, x: transform.hessian(o, _total, x, wrt=1)), "wrt is"),
    Wrong(
        "transform.hessian",
        lambda: inside(lambda o, x: transform.hessian(o, _total, x, o.iota(shape=(2,)), wrt=1)),
        "a derivative is of floats",
        "DtypeError",
    ),
    Wrong(
        "transform.hessian",
        lambda: opstage.record(lambda o, x: transform.hessian(o, _total, x, chunk=2), Spec("B")),
        "chunk=2 is not supported for B examples",
        "UnsupportedError",
    ),
    Wrong(
        "transform.vjp",
        lambda: inside(lambda o, x: transform.vjp(o, elements, x)[1](o.const(1.0))),
        "a cotangent is",
        "ShapeError",
    ),
    Wrong(
        "transform.jvp",
        lambda: inside(lambda o, x: transform.jvp(o, elements, (x,), ())),
        "expected 1 tangents",
        "ShapeError",
    ),
    Wrong("debug.print", lambda: inside(lambda o, x: opstage.debug.print(o, ANY)), "an op got an int", "ProgramError"),
    Wrong("debug.print", lambda: inside(lambda o, x: opstage.debug.print(o, x, ANY)), "debug.print: argument name: "),
    Wrong("callbacks.BestCheckpoint", lambda: callbacks.BestCheckpoint("a", mode=ANY), "best_checkpoint: mode"),
    Wrong(
        "callbacks.EarlyStopping", lambda: callbacks.EarlyStopping(metric="a", patience=3), "early_stopping: the name"
    ),
    Wrong("callbacks.ReduceOnPlateau", lambda: callbacks.ReduceOnPlateau("a"), "reduce_on_plateau: the name"),
    Wrong("callbacks.Ema", lambda: callbacks.Ema(ANY), "ema: decay must be"),
    Wrong("callbacks.EachEpoch", lambda: callbacks.EachEpoch(ANY), "EachEpoch takes a function"),
    Wrong("callbacks.EachStep", lambda: callbacks.EachStep(ANY), "EachStep takes a function"),
    Wrong("data.Dataset", lambda: data.Dataset((), (), ()), "a dataset needs"),
    Wrong("data.Loader", lambda: data.Loader(rows(), 0), "batch_size=0"),
    Wrong("data.Prefetch", lambda: data.Prefetch([], depth=0), "depth=0"),
    Wrong(
        "data.bind",
        lambda: data.bind(data.Loader(rows(), 2), batch_arguments(lambda ops, params, y, z: y, skip=2), "the loss"),
        "",
    ),
    Wrong("data.from_parquet", lambda: data.from_parquet(MISSING), ""),
    Wrong("data.noisy", lambda: data.noisy(rows(), deviation=-1.0), "deviation=-1.0"),
    Wrong("init.build", lambda: init.build({"w": ANY}), "parameter w is not declared"),
    Wrong("init.flat", lambda: init.flat("a"), "flat takes"),
    Wrong("init.keys", lambda: init.keys(-1, {"w": 1.0}), "seed=-1"),
    Wrong("init.parameter_seed", lambda: init.parameter_seed(-1, "w"), "seed=-1"),
    Wrong("custom_op", lambda: opstage.custom_op("a b", operands=("x",), shape=ANY), "an op's name"),
    Wrong(
        "transform.bounds",
        lambda: opstage.run(lambda o, x: transform.bounds(o, lambda i, b: i.eigh(b)[0], opstage.Box(x, x)), np.eye(2)),
        "bounds of eigh are not supported",
        "UnsupportedError",
    ),
    Wrong(
        "transform.bounds",
        lambda: inside(lambda o, x: transform.bounds(o, elements, opstage.Box(x, o.const(1.0)))),
        "expected ends of a box",
        "ShapeError",
    ),
    Wrong("ScalarModuleDef", lambda: opstage.ScalarModuleDef("a", square).instantiate(), "a parameter: a tensor"),
    Wrong(
        "ScalarModule",
        lambda: opstage.ScalarModuleDef([1.0], elements).instantiate().forward(),
        "error: loss",
        "ValidationError",
    ),
    Wrong("data.from_arrays", lambda: data.from_arrays(x=np.ones(4), y=np.ones(3)), "y: has 3 rows"),
    Wrong("data.from_file", lambda: data.from_file("a.foo"), "a.foo: unknown format"),
    Wrong(
        "data.from_frame",
        lambda: data.from_frame(np.array([(1.0, 2)], [("a", "f8"), ("y", "i8")]), label="z"),
        "the frame: no column is called 'z'",
    ),
    Wrong("data.from_csv", lambda: data.from_csv(MISSING), f"{MISSING}: no such file"),
    Wrong("data.from_idx", lambda: data.from_idx(x=MISSING), f"{MISSING}: no such file"),
    Wrong("data.from_images", lambda: data.from_images(MISSING), f"{MISSING}: no such folder"),
    Wrong("data.from_npy", lambda: data.from_npy(x=MISSING), f"{MISSING}: no such file"),
    Wrong("data.from_npz", lambda: data.from_npz(MISSING), f"{MISSING}: no such file"),
    Wrong("data.idx_images", lambda: data.idx_images(MISSING, MISSING), f"{MISSING}: no such file"),
    Wrong("data.map_files", lambda: data.map_files({"x": MISSING}), f"{MISSING}: "),
    Wrong("data.train_test_split", lambda: data.train_test_split(rows(), test=2.0), "test=2.0"),
    *(
        Wrong(f"optim.{name}", lambda name=name: getattr(optim, name)(lr=-1.0), f"{name}: lr must be")
        for name in ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "adadelta", "rmsprop", "muon")
    ),
    Wrong("optim.grouped", lambda: optim.grouped(ANY, {}), "grouped takes an optimizer"),
    Wrong("init.Normal", lambda: init.Normal(0.0, -1.0), "normal needs"),
    Wrong("init.normal", lambda: init.Normal(0.0, -1.0), "normal needs"),
    Wrong("init.Uniform", lambda: init.Uniform(3.0, 2.0), "uniform needs"),
    Wrong("init.uniform", lambda: init.uniform(3.0, 2.0), "uniform needs"),
    *(
        Wrong(f"init.{name}", lambda name=name: getattr(init, name)(fan_in=ANY / 2), "fan_in=1.5 is not")
        for name in ("xavier_uniform", "kaiming_uniform", "XavierUniform", "KaimingUniform")
    ),
    Wrong("init.fans", lambda: init.fans((3,)), "fans are inferred"),
    Wrong("init.Plan", lambda: init.Plan("a"), "the plan at the root"),
)


def value_of(name: str) -> Any:
    value: Any = opstage
    for part in name.split("."):
        value = getattr(value, part)
    return value


def raises_nothing(value: Any) -> bool:
    """Errors, constants, protocols, abstract classes, classes that check nothing, functions that take nothing."""
    if not callable(value) or not (inspect.isclass(value) or inspect.isroutine(value)):
        return True
    if inspect.isroutine(value):
        return not inspect.signature(value).parameters
    if issubclass(value, BaseException) or inspect.isabstract(value) or getattr(value, "_is_protocol", False):
        return True
    if value is callbacks.Loop:  # which fit makes, and hands to callbacks
        return True
    made_by_dataclass = dataclasses.is_dataclass(value) or hasattr(value, "_fields")
    return not hasattr(value, "__post_init__") and (made_by_dataclass or value.__init__ is object.__init__)


NAMES = sorted(
    name.removeprefix("opstage.") for name in public() if not name.startswith(("opstage.Ops", "opstage.derived"))
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.name}-{wrong.error}")
def test_wrong_call(wrong: Wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(opstage.OpstageError) as caught:
        wrong.call()
    assert type(caught.value).__name__ == wrong.error or wrong.error in [t.__name__ for t in type(caught.value).__mro__]
    assert re.match(re.escape(wrong.message), getattr(caught.value, "reason", str(caught.value)))


@pytest.mark.parametrize("name", NAMES)
def test_docstring_states_what_is_refused(name: str) -> None:
    value = value_of(name)
    wanted = {wrong.error for wrong in WRONG if value_of(wrong.name) is value}
    assert {*stated(inspect.getdoc(value) or "")} == wanted
    assert wanted or raises_nothing(value), f"{name} states no error: give it one in WRONG and in its docstring"
