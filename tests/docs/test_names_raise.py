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
from opstage.arguments import batch_arguments
from opstage.interpreters import graph
from opstage.ops import dims
from opstage.training import checkpoint, memory
from tests.conformance.raises import stated
from tests.docs.test_api_pages import public

MISSING = "missing.file"


class Wrong(NamedTuple):
    """A wrong call of a public name: the words of its docstring, the call, how the message begins, the error."""

    name: str
    words: str
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


def shown(write: Any) -> None:
    with opstage.debug.showing_to(write):
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
    Wrong("debug.showing_to", "what is no function", lambda: shown(ANY), "showing_to takes a function"),
    Wrong(
        "facts.Window",
        "a size that is no integer >= 0",
        lambda: facts.Window("T", -1),
        "the size of a window is an int",
    ),
    Wrong("facts.ranges_of", "what is no report", lambda: facts.ranges_of(ANY), "ranges_of takes the"),
    Wrong(
        "facts.ranges_of",
        "bounds that are none",
        lambda: facts.ranges_of(opstage.check(square, Spec("3")), {"x": (1, 0)}),
        "the range of 'x' is (1, 0)",
    ),
    Wrong(
        "facts.ranges_of",
        "a pattern that no input has",
        lambda: facts.ranges_of(opstage.check(square, Spec("3")), {"y": (0, 1)}),
        "no input has a path 'y'",
    ),
    Wrong(
        "facts.ranges_of",
        "an error of the check",
        lambda: facts.ranges_of(opstage.check(mismatched, Spec("3 4"))),
        "a program with errors has no ranges",
    ),
    Wrong("facts.report_of", "what is no recorded graph", lambda: facts.report_of(ANY), "report_of takes the"),
    Wrong(
        "testing.assert_shapes",
        "shapes that cannot be read, or that do not go with the arguments",
        lambda: testing.assert_shapes(square, "y: B"),
        "square has no argument 'y'",
    ),
    Wrong(
        "testing.assert_like_one_rank",
        "a mesh of no such form, or a loss that cannot be shared out over it",
        lambda: testing.assert_like_one_rank(square, {}, mesh="data"),
        "Options.replace: mesh: mesh 'data'",
    ),
    Wrong("ops.dims.minimum", "no dims", lambda: dims.minimum(), "a minimum or maximum is that of"),
    Wrong("ops.dims.minimum", "what is no dim", lambda: dims.minimum("a", 3), "a dim is an int or"),  # type: ignore[arg-type]
    Wrong(
        "interpreters.graph.Graph",
        "a file to load that is missing or damaged",
        lambda: graph.Graph.load(MISSING),
        "missing.file: cannot be read",
    ),
    Wrong(
        "onnx.load",
        "a file that is missing, damaged or no model",
        lambda: opstage.onnx.load(MISSING),
        "missing.file cannot be read",
    ),
    Wrong(
        "torch.load",
        "a file that is missing, damaged or no program; no package torch",
        lambda: opstage.torch.load(MISSING),
        "",
    ),
    Wrong(
        "training.checkpoint.take_snapshot",
        "an optimizer without its state, or a state alone",
        lambda: checkpoint.take_snapshot(trainer(), optim.sgd(0.1)),
        "a snapshot takes an optimizer together with its state",
    ),
    Wrong(
        "training.checkpoint.save",
        "what is no snapshot",
        lambda: checkpoint.save("saved", ANY),
        "save takes the snapshot",
    ),
    Wrong("training.checkpoint.save", "a folder that cannot be written", lambda: onto_a_file(), "taken"),
    Wrong(
        "training.checkpoint.save",
        "numbers that are not finite",
        lambda: checkpoint.save("saved", checkpoint.take_snapshot(opstage.scalar_trainer(square, [np.nan, 1.0]))),
        "",
        "NotFiniteError",
    ),
    Wrong(
        "training.checkpoint.load",
        "no checkpoint; a damaged one",
        lambda: checkpoint.load(MISSING),
        "missing.file: no such folder",
    ),
    Wrong(
        "training.checkpoint.restore",
        "what is no snapshot",
        lambda: checkpoint.restore(trainer(), ANY),
        "restore takes the snapshot",
    ),
    Wrong(
        "training.checkpoint.restore",
        "one of another model",
        lambda: checkpoint.restore(opstage.scalar_trainer(square, [1.0]), checkpoint.take_snapshot(trainer())),
        "the saved parameters do not fit",
    ),
    Wrong(
        "training.memory.step_memory",
        "an optimizer that is none",
        lambda: memory.step_memory(square, Spec("3"), optimizer=ANY),
        "optimizer=3 is none of",
    ),
    Wrong(
        "training.memory.model_memory",
        "a model or an optimizer that is none",
        lambda: memory.model_memory(ANY, optim.sgd(0.1)),
        "model_memory takes an opstage.Model",
    ),
    Wrong("run", NO_TENSOR, lambda: opstage.run(elements, "abc"), "argument x: a tensor must hold numbers"),
    Wrong("run", NO_TENSOR, lambda: opstage.run(elements, 1.0, options=ANY), "options must be"),
    Wrong(
        "run",
        "a program that returns what is no tensor, or mixes interpreters",
        lambda: opstage.run(lambda ops, x: 3, 1.0),
        "an op got an int where it needs a ref",
        "ProgramError",
    ),
    Wrong(
        "value_and_grad", NO_SCALAR, lambda: opstage.value_and_grad(elements, [1.0]), "a program to take", "ShapeError"
    ),
    Wrong(
        "value_and_grad",
        "a result of integers",
        lambda: opstage.value_and_grad(square, [1]),
        "a program to",
        "ProgramError",
    ),
    Wrong(
        "value_and_grad",
        "wrt that names no argument",
        lambda: opstage.value_and_grad(square, [1.0], wrt=3),
        "wrt=3 is out of range",
    ),
    Wrong(
        "vjp",
        "a cotangent of another shape",
        lambda: opstage.vjp(elements, [1.0])[1]([1.0, 2.0]),
        "a cotangent is",
        "ShapeError",
    ),
    Wrong(
        "jvp",
        "tangents of other shapes or another number",
        lambda: opstage.jvp(elements, ([1.0],), ()),
        "there are 0",
        "ShapeError",
    ),
    Wrong(
        "hvp",
        NO_SCALAR + "; tangents of other shapes",
        lambda: opstage.hvp(elements, ([1.0],), ([1.0],)),
        "a program to",
        "ShapeError",
    ),
    Wrong("hessian", NO_SCALAR, lambda: opstage.hessian(elements, [1.0]), "a program to take", "ShapeError"),
    Wrong(
        "hessian",
        "wrt that names no argument, or one of integers",
        lambda: opstage.hessian(square, [1.0], wrt=9),
        "wrt is the",
    ),
    Wrong(
        "jacobian",
        "wrt that names no argument, or one of integers",
        lambda: opstage.jacobian(elements, [1]),
        "argument 0 has",
    ),
    Wrong(
        "per_sample_gradients",
        NO_SCALAR + " for one row; batches that share no leading size",
        lambda: opstage.per_sample_gradients(lambda ops, w, x: w * x, [1.0], [[1.0]]),
        "a program to take",
        "ShapeError",
    ),
    Wrong("check", "options that are none", lambda: opstage.check(elements, Spec("B"), options=ANY), "options must be"),
    Wrong(
        "check",
        "a text that is no claim",
        lambda: opstage.check(elements, Spec("B"), claims=["casual:B"]),
        "'casual:B' is no claim",
    ),
    Wrong(
        "check",
        "bounds that are none, or of no input; what is wrong with the program is in the report",
        lambda: opstage.check(elements, Spec("B"), claims=["causal:B"], bounds={"nowhere": (0, 1)}),
        "no input has a path",
    ),
    Wrong(
        "check_step",
        "options that are none; what is wrong with the step is in the report",
        lambda: opstage.check_step(loss, {"w": Spec("3 1")}, Spec("B 3"), options=ANY),
        "options must be",
    ),
    Wrong("compile", "Specs that do not fit the arguments", lambda: opstage.compile(elements), "the program takes x"),
    Wrong(
        "compile",
        "a program whose shapes are wrong",
        lambda: opstage.compile(mismatched, Spec("n")),
        "x must be a matrix",
        "ShapeError",
    ),
    Wrong("record", "Specs that do not fit the arguments", lambda: opstage.record(elements), "the program takes x"),
    Wrong(
        "record",
        "a program whose shapes are wrong",
        lambda: opstage.record(mismatched, Spec("n")),
        "x must be a matrix",
        "ShapeError",
    ),
    Wrong(
        "CompiledOut",
        "an argument of another shape than its Spec",
        lambda: opstage.compile(elements, Spec("n")).forward([[1.0]]),
        "x is (1, 1): it has rank 2",
        "ShapeError",
    ),
    Wrong(
        "CompiledScalar",
        "an argument of another shape than its Spec",
        lambda: opstage.compile(square, Spec("n")).forward([[1.0]]),
        "x is (1, 1): it has rank 2",
        "ShapeError",
    ),
    Wrong(
        "CompiledScalar",
        "another number of arguments, or one that is no array of numbers",
        lambda: opstage.compile(square, Spec("n")).forward(),
        "the call does not have",
    ),
    Wrong(
        "bounds",
        "an unknown method; a box that is none",
        lambda: opstage.bounds(elements, 1.0, method=ANY),
        "method is one of",
    ),
    Wrong(
        "Box",
        "ends of other shapes, or lower above upper, where it is used",
        lambda: opstage.bounds(elements, opstage.Box([2.0], [1.0])),
        "argument 0: a box has lower <= upper",
    ),
    Wrong(
        "Spec",
        "a shape or dtype that there is not; dims that cannot be read, where it is used",
        lambda: Spec("B", "foo"),
        "unknown dtype",
    ),
    Wrong(
        "shapes", "declarations that cannot be read", lambda: opstage.shapes("x B 4")(loss), "'x B 4': expected a name"
    ),
    Wrong(
        "Declaration",
        "a shape of other than integers >= 0",
        lambda: init.Declaration((-1,), init.ones),
        "a parameter's shape",
    ),
    Wrong("Options", "an option of no such value", lambda: Options(dtype="foo"), "option dtype: 'foo'"),
    Wrong("Param", "values that are no numbers; no such dtype", lambda: opstage.Param("abc"), "a parameter: a tensor"),
    Wrong(
        "scalar_trainer",
        "parameters that are no arrays of numbers; options that are none",
        lambda: opstage.scalar_trainer(square, "a"),
        "a parameter: a tensor",
    ),
    Wrong("ScalarTrainer", "step: a rate that is no finite number", lambda: trainer().step("a"), "sgd: lr must be"),
    Wrong(
        "ScalarTrainer",
        "step: a loss that is no scalar, or whose shapes are wrong",
        lambda: opstage.scalar_trainer(elements, [1.0]).step(0.1),
        "error: loss",
        "ValidationError",
    ),
    Wrong("Accumulate", "parts that are no integer >= 1", lambda: opstage.Accumulate(0), "accumulate: parts must be"),
    Wrong(
        "plan",
        "a model, size or device that there is not",
        lambda: opstage.plan("nosuch", at={"B": 3}),
        "the argument MODEL",
    ),
    Wrong(
        "load",
        "no run directory, or one that is damaged or of another version",
        lambda: opstage.load(MISSING),
        f"{MISSING}: no such run",
    ),
    Wrong(
        "fit",
        "a model, data or settings that there are not, or that do not fit",
        lambda: opstage.fit("nosuch", rows()),
        "unknown model",
    ),
    Wrong("Session", "input: values that are no numbers", lambda: opstage.Session().input("abc"), "input: a tensor"),
    Wrong(
        "Session",
        "a tensor of another session, or of before reset_tape",
        lambda: opstage.Session().backward(ANY),
        "backward got an int",
        "ProgramError",
    ),
    Wrong(
        "Model",
        "init, loss, metrics or specs that are none",
        lambda: opstage.Model("a", None, ANY, ANY, ANY, ANY),
        "model a: ",
    ),
    Wrong(
        "models.model",
        "an unknown model or field of its Config",
        lambda: opstage.models.model("nosuch"),
        "unknown model",
    ),
    Wrong(
        "custom_vjp",
        "a call without defvjp",
        lambda: inside(lambda ops, x: opstage.custom_vjp(elements)(ops, x)),
        "elements is a custom_vjp",
        "ProgramError",
    ),
    Wrong(
        "register_interpreter",
        "a name that is taken; no factory",
        lambda: opstage.register_interpreter("eager", lambda o: o),
        "there is a backend",
    ),
    Wrong(
        "register_wire_format",
        "no such dtype, or one that a device has",
        lambda: opstage.register_wire_format("foo", ANY),
        "unknown dtype",
    ),
    Wrong(
        "lr_range_test",
        "what is no trainer; rates that are none",
        lambda: opstage.lr_range_test(ANY, [1], optim.sgd()),
        "lr_range_test takes",
    ),
    Wrong(
        "transform.grad",
        "f that returns no scalar",
        lambda: inside(lambda o, x: transform.grad(o, lambda i, x: x, x)),
        "grad takes a function",
        "ProgramError",
    ),
    *[
        Wrong(
            f"transform.{name}",
            "f that returns no scalar",
            lambda f=f: inside(f),
            "grad takes a function",
            "ProgramError",
        )
        for name, f in (
            ("value_and_grad", lambda o, x: transform.value_and_grad(o, elements, x)),
            ("hvp", lambda o, x: transform.hvp(o, elements, (x,), (x,))),
            ("hessian", lambda o, x: transform.hessian(o, elements, x)),
        )
    ],
    Wrong(
        "transform.hvp",
        "tangents of other shapes or another number",
        lambda: inside(lambda o, x: transform.hvp(o, lambda o, x: o.sum(x), (x,), (o.const(1.0),))),
        "a tangent is",
        "ShapeError",
    ),
    Wrong(
        "transform.jacobian",
        "wrt that names no ref",
        lambda: inside(lambda o, x: transform.jacobian(o, _total, x, wrt=1)),
        "wrt is",
    ),
    Wrong(
        "transform.jacobian",
        "a value, or a ref of `wrt`, that is not a float",
        lambda: inside(lambda o, x: transform.jacobian(o, _total, x, o.iota(shape=(2,)), wrt=1)),
        "a Jacobian is of floats",
        "DtypeError",
    ),
    Wrong(
        "transform.jacobian",
        "a value with a named size",
        lambda: opstage.record(lambda o, x: transform.jacobian(o, elements, x), Spec("B")),
        "the value has a named size",
        "ShapeError",
    ),
    Wrong(
        "transform.hessian",
        "wrt that names no ref",
        lambda: inside(lambda o, x: transform.hessian(o, _total, x, wrt=1)),
        "wrt is",
    ),
    Wrong(
        "transform.hessian",
        "a ref of `wrt` that is not a float",
        lambda: inside(lambda o, x: transform.hessian(o, _total, x, o.iota(shape=(2,)), wrt=1)),
        "a Jacobian is of floats",
        "DtypeError",
    ),
    Wrong(
        "transform.hessian",
        "a ref of `wrt` with a named size",
        lambda: opstage.record(lambda o, x: transform.hessian(o, _total, x), Spec("B")),
        "the value has a named size",
        "ShapeError",
    ),
    Wrong(
        "transform.vjp",
        "a cotangent of another shape",
        lambda: inside(lambda o, x: transform.vjp(o, elements, x)[1](o.const(1.0))),
        "a cotangent is",
        "ShapeError",
    ),
    Wrong(
        "transform.jvp",
        "tangents of other shapes or another number",
        lambda: inside(lambda o, x: transform.jvp(o, elements, (x,), ())),
        "there are 0",
        "ShapeError",
    ),
    Wrong(
        "debug.show",
        "what is no tensor",
        lambda: inside(lambda o, x: opstage.debug.show(o, ANY)),
        "an op got an int",
        "ProgramError",
    ),
    Wrong(
        "callbacks.BestCheckpoint",
        "an unknown mode, or none for a metric of no known sense",
        lambda: callbacks.BestCheckpoint("a", mode=ANY),
        "best_checkpoint: mode",
    ),
    Wrong(
        "callbacks.EarlyStopping",
        "an unknown mode, or none for a metric of no known sense; numbers out of bounds",
        lambda: callbacks.EarlyStopping(metric="a", patience=3),
        "early_stopping: it is not",
    ),
    Wrong(
        "callbacks.ReduceOnPlateau",
        "an unknown mode, or none for a metric of no known sense; numbers out of bounds",
        lambda: callbacks.ReduceOnPlateau("a"),
        "reduce_on_plateau: it",
    ),
    Wrong("callbacks.Ema", "a decay outside [0, 1)", lambda: callbacks.Ema(ANY), "ema: decay must be"),
    Wrong("callbacks.EachEpoch", "what is no function", lambda: callbacks.EachEpoch(ANY), "EachEpoch takes a function"),
    Wrong("callbacks.EachStep", "what is no function", lambda: callbacks.EachStep(ANY), "EachStep takes a function"),
    Wrong(
        "data.Dataset",
        "no arrays; rows that differ in number; what is no number or not finite",
        lambda: data.Dataset((), (), ()),
        "a dataset needs",
    ),
    Wrong("data.Loader", "a batch size that is no integer > 0", lambda: data.Loader(rows(), 0), "batch_size=0"),
    Wrong("data.Prefetch", "a depth that is no integer > 0", lambda: data.Prefetch([], depth=0), "depth=0"),
    Wrong(
        "data.bind",
        "names of arrays that are no arguments, or stand elsewhere",
        lambda: data.bind(data.Loader(rows(), 2), batch_arguments(lambda ops, params, y, z: y, skip=2), "the loss"),
        "",
    ),
    Wrong(
        "data.from_parquet",
        "a file that is missing, damaged or no Parquet; no such column; no pyarrow",
        lambda: data.from_parquet(MISSING),
        "",
    ),
    Wrong(
        "data.noisy",
        "a deviation that is no finite number > 0; no copies; another seed than an integer >= 0",
        lambda: data.noisy(rows(), deviation=-1.0),
        "deviation=-1.0",
    ),
    Wrong(
        "init.build",
        "a leaf that is no Declaration; no such dtype; another seed than an integer >= 0",
        lambda: init.build({"w": ANY}),
        "parameter w is not declared",
    ),
    Wrong("init.flat", "what is no list of numbers", lambda: init.flat("a"), "flat takes"),
    Wrong("init.keys", "another seed than an integer >= 0", lambda: init.keys(-1, {"w": 1.0}), "seed=-1"),
    Wrong("init.parameter_seed", "another seed than an integer >= 0", lambda: init.parameter_seed(-1, "w"), "seed=-1"),
    Wrong(
        "custom_op",
        "a name that is none or taken; an op that nothing computes; rules that do not fit",
        lambda: opstage.custom_op("a b", operands=("x",), shape=ANY),
        "an op's name",
    ),
    Wrong(
        "transform.bounds",
        "an op that has no bounds",
        lambda: opstage.run(lambda o, x: transform.bounds(o, lambda i, b: i.eigh(b)[0], opstage.Box(x, x)), np.eye(2)),
        "there are no bounds of eigh",
        "UnsupportedError",
    ),
    Wrong(
        "transform.bounds",
        "a box whose ends differ in type",
        lambda: inside(lambda o, x: transform.bounds(o, elements, opstage.Box(x, o.const(1.0)))),
        "the ends of a box",
        "ShapeError",
    ),
    Wrong(
        "ScalarModuleDef",
        "instantiate: parameters that are no arrays of numbers; options that are none",
        lambda: opstage.ScalarModuleDef("a", square).instantiate(),
        "a parameter: a tensor",
    ),
    Wrong(
        "ScalarModule",
        "a loss that is no scalar, or whose shapes are wrong",
        lambda: opstage.ScalarModuleDef([1.0], elements).instantiate().forward(),
        "error: loss",
        "ValidationError",
    ),
    Wrong(
        "data.from_arrays",
        "rows that differ in number; what is no array of numbers",
        lambda: data.from_arrays(x=np.ones(4), y=np.ones(3)),
        "y: has 3 rows",
    ),
    Wrong(
        "data.from_file",
        "a file that is missing, damaged or of no known format",
        lambda: data.from_file("a.foo"),
        "a.foo: of no known format",
    ),
    Wrong(
        "data.from_frame",
        "no such column; a column other than the label that does not hold finite numbers alone",
        lambda: data.from_frame(np.array([(1.0, 2)], [("a", "f8"), ("y", "i8")]), label="z"),
        "the frame: no column is called 'z'",
    ),
    Wrong(
        "data.from_csv",
        "a file that is missing or no CSV; no such column; a cell that is no number",
        lambda: data.from_csv(MISSING),
        f"{MISSING}: no such file",
    ),
    Wrong(
        "data.from_idx",
        "a file that is missing, damaged or no IDX",
        lambda: data.from_idx(x=MISSING),
        f"{MISSING}: no such file",
    ),
    Wrong(
        "data.from_images",
        "no folder of images for each class; images of several sizes; no Pillow",
        lambda: data.from_images(MISSING),
        f"{MISSING}: no such folder",
    ),
    Wrong(
        "data.from_npy",
        "a file that is missing, damaged or no .npy",
        lambda: data.from_npy(x=MISSING),
        f"{MISSING}: no such file",
    ),
    Wrong(
        "data.from_npz",
        "a file that is missing, damaged or no .npz; no such array",
        lambda: data.from_npz(MISSING),
        f"{MISSING}: no such file",
    ),
    Wrong(
        "data.idx_images",
        "a file that is missing, damaged or of no images or labels",
        lambda: data.idx_images(MISSING, MISSING),
        f"{MISSING}: no such file",
    ),
    Wrong(
        "data.map_files",
        "a file that is missing, damaged or no .npy",
        lambda: data.map_files({"x": MISSING}),
        f"{MISSING}: ",
    ),
    Wrong(
        "data.train_test_split",
        "a part without rows; labels that cannot be stratified by",
        lambda: data.train_test_split(rows(), test=2.0),
        "test=2.0",
    ),
    *(
        Wrong(
            f"optim.{name}",
            "a number out of bounds",
            lambda name=name: getattr(optim, name)(lr=-1.0),
            f"{name}: lr must be",
        )
        for name in ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "adadelta", "rmsprop", "muon")
    ),
    Wrong(
        "optim.grouped",
        "what is no optimizer; a rule that matches nothing, or sets what there is not",
        lambda: optim.grouped(ANY, {}),
        "grouped takes an optimizer",
    ),
    Wrong("init.Normal", "a std that is no finite number >= 0", lambda: init.Normal(0.0, -1.0), "normal needs"),
    Wrong("init.normal", "a std that is no finite number >= 0", lambda: init.Normal(0.0, -1.0), "normal needs"),
    Wrong(
        "init.Uniform", "bounds that are not finite, or low above high", lambda: init.Uniform(3.0, 2.0), "uniform needs"
    ),
    Wrong(
        "init.uniform", "bounds that are not finite, or low above high", lambda: init.uniform(3.0, 2.0), "uniform needs"
    ),
    *(
        Wrong(
            f"init.{name}",
            "a number of units that is none",
            lambda name=name: getattr(init, name)(fan_in=ANY / 2),
            "fan_in=1.5 is not",
        )
        for name in ("xavier_uniform", "kaiming_uniform", "XavierUniform", "KaimingUniform")
    ),
    Wrong("init.fans", "a shape of rank below 2", lambda: init.fans((3,)), "fans are inferred"),
    Wrong("init.Plan", "what is no initialiser", lambda: init.Plan("a"), "the plan at the root"),
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
    wanted: dict[str, list[str]] = {}
    for wrong in WRONG:
        if value_of(wrong.name) is value:
            words = wanted.setdefault(wrong.error, [])
            words += [each for each in wrong.words.split("; ") if each not in words]
    assert stated(inspect.getdoc(value) or "") == wanted
    assert wanted or raises_nothing(value), f"{name} states no error: give it one in WRONG and in its docstring"
