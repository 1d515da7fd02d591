"""A compiled program never answers what the eager one would not: Python state that changes between two runs.

Each case is a program, what it reads, and a change of that. The oracle is the eager interpreter after the change.
"""

from __future__ import annotations

import argparse
import array
import collections
import contextlib
import contextvars
import ctypes
import dataclasses
import functools
import gc
import itertools
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import opstage
from opstage import Options, Spec

COMPILED = Options(backend="compiled")
X = np.arange(1, 4, dtype=np.float32)

SCALES = [1.0, 2.0]
TAU = 0.5
NESTED = {"a": [{"b": 3.0}]}
TABLE = np.ones(3, np.float32)
WIDE = np.zeros((5, 3), np.float32)
FLAG = True
NAMES = {"first"}


def rescaled(ops: Any, x: Any) -> Any:
    return x * TAU


def factor() -> float:
    return NESTED["a"][0]["b"]  # type: ignore[index, return-value]


def defaults(ops: Any, x: Any, scales: list[float] = [2.0], *, power: dict[str, float] = {"k": 1.0}) -> Any:  # noqa: B006
    return x * scales[0] + power["k"]


@functools.cache
def cached_table(n: int) -> Any:
    return np.ones(n, np.float32)


@functools.lru_cache
def cached_factor(power: int) -> float:
    return float(factor() ** power)


def emptied() -> None:
    NESTED["a"][0]["b"] += 1.0  # type: ignore[index, operator]
    cached_factor.cache_clear()


@functools.singledispatch
def implementation(value: object) -> float:
    return 1.0


class Sub:
    def __init__(self, k: float):
        self.k = k

    def __call__(self, ops: Any, x: Any) -> Any:
        return x * self.k


class Slotted:
    __slots__ = ("tau",)

    def __init__(self, tau: float):
        self.tau = tau


@dataclasses.dataclass
class Config:
    tau: float = 2.0
    widths: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    sub: Any = None


def made_anew() -> tuple[Any, Callable[[], None]]:
    """A program with an object of its own, whose generated `__init__` has defaults that change."""

    @dataclasses.dataclass
    class Scaled:
        by: float = 2.0
        of: list[int] = dataclasses.field(default_factory=list)

    def change() -> None:
        Scaled.__init__.__defaults__ = (3.0, *(Scaled.__init__.__defaults__ or ())[1:])

    return lambda ops, x: x * Scaled().by, change


class Model:
    shared = 5.0
    table: ClassVar[dict[str, float]] = {"w": 1.0}

    def __init__(self) -> None:
        self.tau = 1.0
        self.bias = np.ones(3, np.float32)
        self.config = Config(sub=Sub(4.0))
        self.blocks = [Sub(1.0), Sub(2.0)]
        self.training = True
        self.slotted = Slotted(2.0)
        self.history: list[float] = []

    @functools.cache  # noqa: B019
    def remembered(self, power: int) -> float:
        return float(self.tau**power)

    def forgets(self, tau: float) -> None:
        self.tau = tau
        type(self).remembered.cache_clear()

    def by_cached_method(self, ops: Any, x: Any) -> Any:
        return x * self.remembered(1)

    @property
    def doubled(self) -> float:
        return 2 * self.tau

    @classmethod
    def of_class(cls, ops: Any, x: Any) -> Any:
        return x * cls.shared

    @staticmethod
    def free(ops: Any, x: Any) -> Any:
        return x * Model.table["w"]

    def helper(self) -> float:
        return self.tau

    def by_attribute(self, ops: Any, x: Any) -> Any:
        return x * self.tau

    def by_property(self, ops: Any, x: Any) -> Any:
        return x * self.doubled

    def by_method(self, ops: Any, x: Any) -> Any:
        return x * self.helper()

    def by_alias(self, ops: Any, x: Any) -> Any:
        config = self.config
        return x * config.tau * len(config.widths)

    def by_chain(self, ops: Any, x: Any) -> Any:
        return self.config.sub(ops, x)

    def by_blocks(self, ops: Any, x: Any) -> Any:
        for block in self.blocks:
            x = block(ops, x)
        return x

    def by_array(self, ops: Any, x: Any) -> Any:
        return x + ops.const(self.bias)

    def by_branch(self, ops: Any, x: Any) -> Any:
        return x * 2.0 if self.training else x

    def by_name(self, ops: Any, x: Any) -> Any:
        return x * getattr(self, "tau")  # noqa: B009

    def by_dict(self, ops: Any, x: Any) -> Any:
        return x * vars(self)["tau"]

    def by_slot(self, ops: Any, x: Any) -> Any:
        return x * self.slotted.tau

    def by_class_attribute(self, ops: Any, x: Any) -> Any:
        return x * self.shared

    def by_comprehension(self, ops: Any, x: Any) -> Any:
        return x * sum(block.k + self.tau for block in self.blocks)

    def by_inner(self, ops: Any, x: Any) -> Any:
        def inner() -> float:
            return self.tau

        return x * inner()


def rebinding() -> tuple[Callable[..., Any], Callable[[], None]]:
    tau = 1.0

    def change() -> None:
        nonlocal tau
        tau = 3.0

    return lambda ops, x: x * tau, change


def in_module() -> tuple[Callable[..., Any], Callable[[], None]]:
    settings = types.ModuleType("settings_of_a_test")
    settings.tau = 2.0  # type: ignore[attr-defined]
    settings.deep = {"k": [1.0]}  # type: ignore[attr-defined]
    sys.modules["settings_of_a_test"] = settings

    def program(ops: Any, x: Any) -> Any:
        import settings_of_a_test  # type: ignore[import-not-found]
        from settings_of_a_test import deep

        alias = settings_of_a_test
        return x * settings_of_a_test.tau * deep["k"][0] * alias.tau

    def change() -> None:
        settings.tau = 3.0  # type: ignore[attr-defined]

    return program, change


def of_model(name: str, change: Callable[[Model], Any]) -> tuple[Callable[..., Any], Callable[[], Any]]:
    model = Model()
    return getattr(model, name), lambda: change(model)


def set_global(name: str, value: Any) -> Callable[[], None]:
    return lambda: globals().__setitem__(name, value)


def executed(text: str, change: str) -> tuple[Callable[..., Any], Callable[[], None]]:
    """The program of a text, and a change of what the text defines."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["program"], lambda: exec(change, names)


HELPERS = "def helper(x): return x * 2.0\ndef other(x): return x * 7.0\ndef program(ops, x): return helper(x)"

MODULE = """
import importlib, sys, types
module = sys.modules["settings_of_a_test"] = types.ModuleType("settings_of_a_test")
module.tau = 2.0
def program(ops, x):
"""


def decorated() -> tuple[Callable[..., Any], Callable[[], None]]:
    scale = [2.0]

    def wrap(f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def wrapped(ops: Any, x: Any) -> Any:
            return f(ops, x) * scale[0]

        return wrapped

    return wrap(rescaled), lambda: scale.__setitem__(0, 5.0)


def held(value: Any, read: Callable[[Any], float], change: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A value in a closure, from which a number is read."""
    return lambda ops, x: x * read(value), lambda: change(value)


class Dotted(dict[str, Any]):
    """As many configurations are: entries by attribute."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Delegating:
    def __init__(self, config: dict[str, float]):
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return self._config[name]


class Arraylike:
    """Memory that Python sees as an array alone, as tensors of other libraries are."""

    __slots__ = ("_get", "_set")

    def __init__(self, array: Any):
        self._get, self._set = array.copy, array.__setitem__

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._get()


VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("tau", default=1.0)

CASES: dict[str, Callable[[], tuple[Callable[..., Any], Callable[[], Any]]]] = {
    "element of a list": lambda: (lambda ops, x: x * SCALES[0], lambda: SCALES.__setitem__(0, SCALES[0] + 5)),
    "slice of a list": lambda: (lambda ops, x: x * sum(SCALES[1:]), lambda: SCALES.append(3.0)),
    "loop over a list": lambda: (lambda ops, x: sum((x * s for s in SCALES), x), lambda: SCALES.insert(0, 9.0)),
    "order of a list": lambda: held([1.0, 2.0], lambda v: v[0], lambda v: v.reverse()),
    "global": lambda: (rescaled, set_global("TAU", TAU + 1)),
    "global of a helper": lambda: (lambda ops, x: rescaled(ops, x) + x, set_global("TAU", TAU + 1)),
    "global of an inner function": lambda: (lambda ops, x: (lambda: x * TAU)(), set_global("TAU", TAU + 1)),
    "nested containers": lambda: (lambda ops, x: x * factor(), lambda: NESTED["a"][0].update(b=8.0)),
    "flag": lambda: (lambda ops, x: x if FLAG else ops.neg(x), set_global("FLAG", not FLAG)),
    "type of a number": lambda: held(
        [2], lambda v: 1.0 if isinstance(v[0], int) else 3.0, lambda v: v.__setitem__(0, 2.0)
    ),
    "sign of a zero": lambda: held([0.0], lambda v: np.copysign(1.0, v[0]), lambda v: v.__setitem__(0, -0.0)),
    "array in place": lambda: (lambda ops, x: x + ops.const(TABLE), lambda: TABLE.__iadd__(1.0)),
    "view of an array": lambda: (lambda ops, x: x + ops.const(WIDE[1]), lambda: WIDE.__iadd__(1.0)),
    "array as a number": lambda: (lambda ops, x: x * float(TABLE.mean()), lambda: TABLE.__iadd__(1.0)),
    "array of a cached function": lambda: (
        lambda ops, x: x + ops.const(cached_table(3)),
        lambda: cached_table(3).__iadd__(1.0),
    ),
    "cached function": lambda: (lambda ops, x: x * cached_factor(2), emptied),
    "cached function, asked elsewhere": lambda: (
        lambda ops, x: x * cached_factor(1),
        lambda: (emptied(), cached_factor(1)),
    ),
    "new implementation for a type": lambda: (
        lambda ops, x: x * implementation(3),
        lambda: implementation.register(int, lambda value: 2.0),
    ),
    "cached method": lambda: of_model("by_cached_method", lambda m: m.forgets(4.0)),
    "array of objects": lambda: held(np.array([1.0, 2.0], object), lambda v: v[0], lambda v: v.__setitem__(0, 4.0)),
    "variable of an enclosing function": rebinding,
    "default": lambda: (defaults, lambda: defaults.__defaults__[0].__setitem__(0, defaults.__defaults__[0][0] + 1)),  # type: ignore[index]
    "keyword default": lambda: (defaults, lambda: defaults.__kwdefaults__["power"].update(k=9.0)),
    "new defaults": lambda: (defaults, lambda: setattr(defaults, "__defaults__", ([1.5],))),
    "default of a helper": lambda: (
        lambda ops, x: defaults(ops, x),
        lambda: defaults.__defaults__[0].__setitem__(0, 7.5),  # type: ignore[index]
    ),
    "partial": lambda: held([2.0], lambda v: functools.partial(lambda s: s[0], v)(), lambda v: v.__setitem__(0, 4.0)),
    "partial as the program": lambda: (
        (p := functools.partial(lambda ops, x, s: x * s[0], s=[2.0])),
        lambda: p.keywords["s"].__setitem__(0, 6.0),
    ),
    "import in the program": in_module,
    "helper defined anew": lambda: executed(HELPERS, "def helper(x): return x * 7.0"),
    "helper with a new text": lambda: executed(HELPERS, "helper.__code__ = other.__code__"),
    "builtin hidden by a global": lambda: executed("def program(ops, x): return x * max(1.0, 2.0)", "max = min"),
    "decorator": decorated,
    "environment": lambda: (
        lambda ops, x: x * float(os.environ["OPSTAGE_TEST_TAU"]) + float(os.getenv("OPSTAGE_TEST_K", "1")),
        lambda: os.environ.update(OPSTAGE_TEST_TAU="3", OPSTAGE_TEST_K="4"),
    ),
    "environment that is set": lambda: (
        lambda ops, x: x if "OPSTAGE_TEST_NEW" in os.environ else x * 2.0,
        lambda: os.environ.__setitem__("OPSTAGE_TEST_NEW", "1"),
    ),
    "context variable": lambda: (lambda ops, x: x * VARIABLE.get(), lambda: VARIABLE.set(VARIABLE.get() + 1)),
    "set": lambda: (lambda ops, x: x if "second" in NAMES else x * 2.0, lambda: NAMES.add("second")),
    "deque": lambda: held(collections.deque([1.0]), lambda v: v[0], lambda v: v.appendleft(2.0)),
    "counter": lambda: held(collections.Counter(a=1), lambda v: v["a"], lambda v: v.update(a=3)),
    "default dict": lambda: held(collections.defaultdict(float, a=1.0), lambda v: v["a"], lambda v: v.update(a=3.0)),
    "namespace": lambda: held(types.SimpleNamespace(t=1.0), lambda v: v.t, lambda v: setattr(v, "t", 3.0)),
    "arguments": lambda: held(argparse.Namespace(t=1.0), lambda v: v.t, lambda v: setattr(v, "t", 3.0)),
    "entries by attribute": lambda: held(Dotted(t=1.0), lambda v: v.t, lambda v: v.update(t=3.0)),
    "entries by delegation": lambda: held(Delegating({"t": 1.0}), lambda v: v.t, lambda v: v._config.update(t=3.0)),
    "array of another library": lambda: held(
        Arraylike(np.ones(2)), lambda v: float(np.asarray(v)[0]), lambda v: v._set(0, 3.0)
    ),
    "module imported by name": lambda: executed(
        f"{MODULE} return x * importlib.import_module('settings_of_a_test').tau", "module.tau = 3.0"
    ),
    "module imported under one of two names": lambda: executed(
        f"{MODULE} if tau: import settings_of_a_test as m\n else: import math as m\n return x * m.tau\ntau = True",
        "module.tau = 3.0",
    ),
    "module imported later in a loop": lambda: executed(
        f"{MODULE} for i in range(2):\n  if i: x *= m.tau\n  import settings_of_a_test as m\n return x",
        "module.tau = 3.0",
    ),
    "module whose name an inner function shares": lambda: executed(
        f"{MODULE} import settings_of_a_test as m\n (lambda: m.__name__)()\n return x * m.tau", "module.tau = 3.0"
    ),
    "globals()": lambda: executed("tau = 1.0\ndef program(ops, x): return x * globals()['tau']", "tau = 3.0"),
    "object in globals()": lambda: executed(
        "from types import SimpleNamespace\nsettings = SimpleNamespace(tau=1.0)\n"
        "def program(ops, x): return x * globals()['settings'].tau",
        "settings.tau = 3.0",
    ),
    "eval": lambda: (lambda ops, x: x * eval("TAU"), set_global("TAU", TAU + 4)),
    "chain of maps": lambda: held(collections.ChainMap({"t": 1.0}), lambda v: v["t"], lambda v: v.update(t=3.0)),
    "flat iterator": lambda: held(np.ones(3), lambda v: next(iter(v.flat)), lambda v: v.__setitem__(0, 3.0)),
    "shape of an array": lambda: held(np.ones(4), lambda v: v.shape[0], lambda v: setattr(v, "shape", (2, 2))),
    "bytes": lambda: held(bytearray(b"a"), lambda v: float(v[0]), lambda v: v.__setitem__(0, 3)),
    "array of the standard library": lambda: held(
        array.array("d", [1.0]), lambda v: v[0], lambda v: v.__setitem__(0, 3.0)
    ),
    "array of C": lambda: held((ctypes.c_double * 2)(1.0), lambda v: v[0], lambda v: v.__setitem__(0, 3.0)),
    "read-only view of bytes": lambda: (
        (memory := bytearray(b"abc")),
        held(memoryview(memory).toreadonly(), lambda v: float(v[0]), lambda v: memory.__setitem__(0, 3)),
    )[1],
    "read-only array of memory that changes": lambda: (
        (memory := array.array("d", [1.0, 2.0])),
        (view := np.asarray(memoryview(memory).toreadonly())),
        held(view, lambda v: v[0], lambda v: memory.__setitem__(0, 3.0)),
    )[2],
    "generator's cell": lambda: held([1.0], lambda v: next(s for s in v), lambda v: v.__setitem__(0, 4.0)),
    "attribute of a function": lambda: (
        (setattr(rescaled, "scale", 2.0), lambda ops, x: x * rescaled.scale)[1],  # type: ignore[attr-defined]
        lambda: setattr(rescaled, "scale", 3.0),
    ),
    "self": lambda: of_model("by_attribute", lambda m: setattr(m, "tau", 4.0)),
    "self, its class changed": lambda: of_model(
        "by_class_attribute", lambda m: setattr(Model, "shared", Model.shared + 1)
    ),
    "self, hiding its class": lambda: of_model("by_class_attribute", lambda m: setattr(m, "shared", 0.5)),
    "self, a helper replaced": lambda: of_model("by_method", lambda m: setattr(m, "helper", lambda: 8.0)),
    "property": lambda: of_model("by_property", lambda m: setattr(m, "tau", 4.0)),
    "method": lambda: of_model("by_method", lambda m: setattr(m, "tau", 4.0)),
    "alias of a config": lambda: of_model("by_alias", lambda m: setattr(m.config, "tau", 4.0)),
    "list of a config": lambda: of_model("by_alias", lambda m: m.config.widths.append(1)),
    "config replaced": lambda: of_model("by_alias", lambda m: setattr(m, "config", Config(tau=9.0))),
    "object that is called": lambda: of_model("by_chain", lambda m: setattr(m.config.sub, "k", 1.5)),
    "blocks": lambda: of_model("by_blocks", lambda m: setattr(m.blocks[1], "k", 1.5)),
    "blocks, one more": lambda: of_model("by_blocks", lambda m: m.blocks.append(Sub(3.0))),
    "array of self": lambda: of_model("by_array", lambda m: m.bias.__iadd__(1.0)),
    "array of self replaced": lambda: of_model("by_array", lambda m: setattr(m, "bias", m.bias + 1)),
    "branch": lambda: of_model("by_branch", lambda m: setattr(m, "training", False)),
    "getattr": lambda: of_model("by_name", lambda m: setattr(m, "tau", 4.0)),
    "vars": lambda: of_model("by_dict", lambda m: setattr(m, "tau", 4.0)),
    "slot": lambda: of_model("by_slot", lambda m: setattr(m.slotted, "tau", 4.0)),
    "comprehension": lambda: of_model("by_comprehension", lambda m: setattr(m, "tau", 4.0)),
    "comprehension, elements": lambda: of_model("by_comprehension", lambda m: setattr(m.blocks[0], "k", 4.0)),
    "inner function": lambda: of_model("by_inner", lambda m: setattr(m, "tau", 4.0)),
    "class method": lambda: (Model.of_class, lambda: setattr(Model, "shared", Model.shared + 1)),
    "static method": lambda: (Model.free, lambda: Model.table.update(w=Model.table["w"] + 1)),
    "body of a scan": lambda: (
        lambda ops, x: ops.scan(lambda o, c, _: (c * SCALES[0], None), x, None, length=2)[0],
        lambda: SCALES.__setitem__(0, SCALES[0] + 1),
    ),
    "region": lambda: (lambda ops, x: ops.region("block", lambda o, x: x * TAU, x), set_global("TAU", TAU + 2)),
    "default of a dataclass that the program makes": made_anew,
}


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cases change, as it was."""
    monkeypatch.setenv("OPSTAGE_TEST_TAU", "2")
    for name in ("OPSTAGE_TEST_K", "OPSTAGE_TEST_NEW"):
        monkeypatch.setenv(name, "")  # so that it is taken away again
        monkeypatch.delenv(name)


def _same(eager: Any, compiled: Any) -> None:
    np.testing.assert_array_equal(compiled, eager, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_seen(case: str) -> None:
    program, change = CASES[case]()
    before = opstage.run(program, X)
    _same(before, opstage.run(program, X, options=COMPILED))
    change()
    after = opstage.run(program, X)
    assert not np.array_equal(before, after), "the case changes nothing"
    _same(after, opstage.run(program, X, options=COMPILED))


def _loss(program: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ops, p, x: ops.sum(program(ops, p) * x)


ASKED: dict[str, Callable[[Callable[..., Any], Options], Callable[[], Any]]] = {
    "run": lambda p, o: lambda: opstage.run(p, X, X, options=o),
    "value_and_grad": lambda p, o: lambda: opstage.value_and_grad(p, X, X, options=o)[1],
    "vjp": lambda p, o: lambda: opstage.vjp(p, X, X, options=o)[1](np.float32(1))[0],
    "jvp": lambda p, o: lambda: opstage.jvp(p, (X, X), (X, None), options=o)[1],
    "hvp": lambda p, o: lambda: opstage.hvp(p, (X, X), (X, X), options=o)[0],
    "forward": lambda p, o: (t := opstage.scalar_trainer(p, X, options=o)) and (lambda: t.forward(X)),
    "backward": lambda p, o: (t := opstage.scalar_trainer(p, X, options=o)) and (lambda: t.backward(X)),
    "evaluate": lambda p, o: (t := opstage.scalar_trainer(p, X, options=o)) and (lambda: t.evaluate(p, X)),
    "step": lambda p, o: (
        (t := opstage.scalar_trainer(p, X, options=o)) and (lambda: (t.step(0.1, X), t.get_params())[1])
    ),
    "adam": lambda p, o: (
        (t := opstage.scalar_trainer(p, X, options=o))
        and (lambda: (t.adam_step(0.1, 0.9, 0.99, 1e-8, X), t.get_params())[1])
    ),
}


@pytest.mark.parametrize("question", ASKED)
@pytest.mark.parametrize(
    "case", ["self", "element of a list", "array in place", "flag", "body of a scan", "helper defined anew"]
)
def test_every_question_sees_it(question: str, case: str) -> None:
    program, change = CASES[case]()
    loss = _loss(program)
    eager, compiled = ASKED[question](loss, Options()), ASKED[question](loss, COMPILED)
    np.testing.assert_allclose(compiled(), eager(), rtol=1e-6)
    change()
    np.testing.assert_allclose(compiled(), eager(), rtol=1e-6)


@pytest.mark.parametrize("case", ["self", "array in place", "flag"])
def test_compile_sees_it(case: str) -> None:
    program, change = CASES[case]()
    made = opstage.compile(program, Spec("3"))
    _same(opstage.run(program, X), made.forward(X))
    change()
    _same(opstage.run(program, X), made.forward(X))
    loss = opstage.compile(lambda ops, x: ops.sum(program(ops, x)), Spec("3"))
    assert isinstance(loss, opstage.CompiledScalar)
    np.testing.assert_allclose(loss.backward(X)[0], opstage.vjp(program, X)[1](np.ones(3))[0], rtol=1e-6)


def test_callables_that_call_themselves_equal_are_told_apart() -> None:
    class Same:
        def __init__(self, k: float):
            self.k = k

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Same)

        def __hash__(self) -> int:
            return 1

        def __call__(self, ops: Any, x: Any) -> Any:
            return x * self.k

    for k in (1.0, 2.0):
        _same(opstage.run(Same(k), X), opstage.run(Same(k), X, options=COMPILED))


def test_what_other_objects_of_a_method_hold_is_not_mixed() -> None:
    one, two = Model(), Model()
    two.tau = 3.0
    for model in (one, two, one):
        _same(opstage.run(model.by_attribute, X), opstage.run(model.by_attribute, X, options=COMPILED))


def test_a_generated_method_is_not_looked_for_among_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a twentieth of a second for each million of them; its object is gone, but its class was seen."""
    program, change = made_anew()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_referrers", pytest.fail)
        assert opstage.run(program, X, options=COMPILED).tolist() == [2.0, 4.0, 6.0]
    change()
    assert opstage.run(program, X, options=COMPILED).tolist() == [3.0, 6.0, 9.0]


def test_a_method_of_a_base_made_by_the_same_factory_is_found() -> None:
    """Both have the code of one function, and only the base's reads what changes."""
    scales = [1.0]

    def made(base: type, by: list[float]) -> Any:
        class Made(base):  # type: ignore[misc]
            def scaled(self, x: Any) -> Any:
                x = super().scaled(x) if base is not object else x
                return x * by[0]

        return Made

    last = made(made(object, scales), [2.0])
    for k in (1.0, 5.0):
        scales[0] = k
        ran = opstage.run(lambda ops, x: last().scaled(x), X, options=COMPILED)
        _same(X * np.float32(2 * k), ran)


def hidden() -> tuple[Any, list[float]]:
    scales = [1.0]

    def scaled(ops: Any, x: Any) -> Any:
        return x * scales[0]

    return itertools.cycle([scaled]), scales


PROGRAMS, HIDDEN = hidden()


def of_an_iterator(ops: Any, x: Any) -> Any:
    return next(PROGRAMS)(ops, x)


def test_what_a_function_reads_that_the_collector_was_told_to_leave_alone() -> None:
    gc.freeze()
    for k in (1.0, 2.0):
        HIDDEN[0] = k
        _same(X * np.float32(k), opstage.run(of_an_iterator, X, options=COMPILED))


class Settings:
    """An object with state that would cost too much to compare."""

    def __init__(self) -> None:
        self.tau, self.count = 1.0, 0
        self.log = [0.0] * 200_000

    def of(self, other: Settings) -> float:
        return other.tau


def read(settings: Settings) -> float:
    return settings.tau


def aliased(settings: Settings) -> float:
    alias = settings
    return alias.tau


def returned(settings: Settings) -> Settings:
    return settings


def yielded(settings: Settings) -> Any:
    yield settings.tau


def named(*, settings: Settings, more: float = 0.0) -> float:
    return (lambda: settings.tau)() + more


def packed(*settings: Settings) -> float:
    return settings[0].tau


SETTINGS, OTHERS = Settings(), Settings()


def rebound(ops: Any, x: Any, helper: Any = read) -> Any:
    x = x * helper(OTHERS) * read(SETTINGS)
    helper = operator.attrgetter("tau")
    return x * helper(SETTINGS)


READERS: dict[str, tuple[Callable[..., Any], bool]] = {
    "by a helper": (lambda ops, x: x * read(SETTINGS), True),
    "by a helper's helper": (lambda ops, x: x * (lambda s: read(s) + s.tau)(SETTINGS) * OTHERS.of(SETTINGS), False),
    "by a method": (lambda ops, x: x * OTHERS.of(SETTINGS), True),
    "by name, in an inner function": (lambda ops, x: x * named(settings=SETTINGS), True),
    "by a generator": (lambda ops, x: x * next(yielded(SETTINGS)), True),
    "by a helper among others": (lambda ops, x: x * (read(OTHERS) + float(len("a")) * read(SETTINGS)), True),
    "under another name": (lambda ops, x: x * aliased(SETTINGS), False),
    "after it is returned": (lambda ops, x: x * returned(SETTINGS).tau, False),
    "from a tuple": (lambda ops, x: x * packed(SETTINGS), False),
    "by an unpacked argument": (lambda ops, x: x * read(*[SETTINGS]), False),
    "by a function of a library": (lambda ops, x: x * sum(map(read, [SETTINGS])), False),
    "where it is bound": (lambda ops, x: x * read(alias := SETTINGS) * alias.tau, False),
    "by an argument that is replaced": (rebound, False),
    "by a choice": (lambda ops, x: x * read(SETTINGS if FLAG else OTHERS), False),
}


@pytest.mark.parametrize("case", READERS)
def test_what_a_helper_reads_of_an_object_is_seen_and_the_rest_is_not_refused(case: str) -> None:
    """Where the code does not show that helpers alone read it, an object is compared as a whole."""
    program, by_parts = READERS[case]
    for settings in (SETTINGS, OTHERS):
        settings.__init__()  # type: ignore[misc]
    if not by_parts:
        with contextlib.suppress(opstage.ProgramError):
            opstage.run(program, X, options=COMPILED)
        SETTINGS.log = OTHERS.log = []
    for tau in (1.0, 2.0):
        SETTINGS.tau, SETTINGS.count = tau, SETTINGS.count + 1
        _same(opstage.run(program, X), opstage.run(program, X, options=COMPILED))


class Doubling:
    def factor(self) -> float:
        return 2.0

    def __mul__(self, x: Any) -> Any:
        return x * 2.0


DOUBLING = Doubling()


@pytest.mark.parametrize("program", [lambda ops, x: x * [DOUBLING][0].factor(), lambda ops, x: [DOUBLING][0] * x])
def test_methods_of_an_object_that_is_captured_as_a_whole(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    np.testing.assert_array_equal(opstage.run(program, X, options=COMPILED), X * 2)
    monkeypatch.setattr(Doubling, "factor", lambda self: 5.0)
    monkeypatch.setattr(Doubling, "__mul__", lambda self, x: x * 5.0)
    np.testing.assert_array_equal(opstage.run(program, X, options=COMPILED), X * 5)
