"""Claims of docs/reference.md are made of these: a session after a backward pass, a model, a simulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import opstage
from opstage import Options, ScalarModule, ScalarModuleDef, Session, ShapeError, Spec, UsageError, optim
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.graph.compiled import Deferred
from opstage.ops.trees import flatten
from opstage.ops.types import TensorType
from opstage.training.parameters import get_values, make_params, sgd_step, sgd_step_fast
from opstage.transforms.tape import Tape

Claim: TypeAlias = Callable[[], Any]
"""A call of this returns True, or raises, if a row is right."""

F64 = Options(dtype="float64")
F32 = np.dtype("float32")
BACKENDS = [F64, F64.replace(backend="compiled")]
W, B = np.arange(6.0).reshape(2, 3) / 7, np.array([0.1, -0.2])
X, Y = np.linspace(-1, 1, 15).reshape(5, 3), np.linspace(1, 2, 10).reshape(5, 2)
ERROR = X @ W.T + B - Y
LOSS = float((ERROR**2).mean())
GRADS = {"w": 2 * ERROR.T @ X / 10, "b": 2 * ERROR.sum(0) / 10}


def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(ops.linear(p["w"], p["b"], x), y)


def values() -> dict[str, Any]:
    return {"w": W.copy(), "b": B.copy()}


def square(ops: Any, x: Any, k: Any) -> Any:
    return ops.sum(ops.mul(x, x) * ops.cast(k, dtype=ops.dtype))


def close(found: Any, expected: Any) -> bool:
    """Whether trees agree; lists are arrays."""
    expected = np.asarray(expected) if isinstance(expected, list) else expected
    found = np.asarray(found) if isinstance(found, list) else found
    for a, b in zip(flatten(found)[0], flatten(expected)[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    return True


def refused(kind: type[Exception], call: Callable[[], Any], match: str | None = None) -> bool:
    with pytest.raises(kind, match=match):
        call()
    return True


def infer(primitive: Any, *shapes: tuple[int, ...], **static: Any) -> Any:
    return primitive.infer(tuple(TensorType(shape, F32) for shape in shapes), static)[0].shape


class Used:
    """A session after a backward pass: y = Σ (w·x)², of a parameter, a leaf and numbers."""

    def __init__(self, options: Options = F64, *, dense: bool = True):
        self.session = s = Session(options)
        self.w, self.frozen = s.param([1.0, 2.0], name="w"), s.param([1.0, 1.0], requires_grad=False)
        self.used, self.held = s.use(self.w), s.use(self.frozen)
        self.x, self.numbers, self.number = s.leaf([3.0, 4.0]), s.nat_vec([1, 0]), s.nat(1)
        self.product = s.mul(s.mul(self.used, self.x), self.held)
        self.y = s.sum(s.mul(self.product, self.product))
        self.gradients = s.backward(self.y, dense=dense)


def each(claim: Callable[[Used], Any]) -> Claim:
    return lambda: all(bool(claim(Used(options))) for options in BACKENDS)


def stepped(name: str, expected: Any, **more: Any) -> Claim:
    """One method on every interpreter; frozen parameters are not touched."""

    def claim(used: Used) -> bool:
        getattr(used.session, name)(0.1, **more)
        return close(used.w.value, expected) and used.frozen.value.tolist() == [1, 1]

    return each(claim)


def all_or_nothing(used: Used) -> bool:
    return refused(UsageError, lambda: used.session.sgd_step_all(-1.0)) and used.w.value.tolist() == [1, 2]


def numbers_are_read_later(used: Used) -> bool:
    """Eager ops keep the old number; a recorded session reads the new one from its next evaluation on."""
    s = Session(used.session.options)
    x, i = s.leaf([5.0, 6.0]), s.nat(0)
    y = s.gather_vec(x, i)
    before = float(s.get_value(y))
    s.set_nat(i, 1)
    later = float(s.get_value(y))
    return s.get_nat(i) == 1 and before == 5 and later == (6 if s.options.backend == "compiled" else 5)


def leaves_come_first(used: Used) -> bool:
    make = lambda: used.session.leaf([1.0])  # noqa: E731
    return (
        refused(opstage.ProgramError, make, "before its ops|leaves")
        if isinstance(used.session._base, Deferred)
        else bool(make().shape == (1,))
    )


def ended(used: Used) -> bool:
    used.session.reset_tape()
    reads = [lambda: used.session.get_value(used.y), lambda: used.gradients[used.w], lambda: used.y + used.y]
    gone = [refused(opstage.ProgramError, read, "reset_tape") for read in reads]
    return all(gone) and type(used.y.value) is TensorType and used.w.value.tolist() == [1, 2]


def compiled() -> Any:
    return opstage.compile(square, Spec("N"), np.array(3), options=F64)


def pair(ops: Any, x: Any) -> Any:
    return {"s": ops.sum(x), "x": ops.mul(x, x)}


def compiled_out() -> Any:
    return opstage.compile(pair, np.ones(2), options=F64)


AT = np.array([1.0, 2.0])


def trainer(options: Options = F64, **more: Any) -> Any:
    return opstage.scalar_trainer(loss, values(), options=options, **more)


def trained(name: str, *hyper: float) -> Claim:
    """A step on every interpreter that returns the loss, and moves each element by about lr."""

    def claim() -> bool:
        for options in BACKENDS:
            made = trainer(options)
            close(getattr(made, name)(*hyper, X, Y), LOSS)
            moved = W - made.get_params()["w"]
            close(np.sign(moved), np.sign(GRADS["w"]))
        return True

    return claim


def module(options: Options = F64) -> ScalarModule:
    return ScalarModuleDef(values(), loss).instantiate(options)


def params(**more: Any) -> Any:
    return make_params(values(), options=F64, **more)


def frozen_and_fast() -> bool:
    for step in (sgd_step, sgd_step_fast):
        tree = params(requires_grad={"w": True, "b": False})
        step(tree, 0.5, {"w": W, "b": None}, options=F64)
        assert close(get_values(tree), {"w": W / 2, "b": B})
        assert refused(ShapeError, lambda tree=tree, step=step: step(tree, 0.5, {"w": B, "b": None}, options=F64))
    return True


def same_bits() -> bool:
    slow, fast = params(), params()
    sgd_step(slow, 0.3, values())
    sgd_step_fast(fast, 0.3, values())
    return all(np.array_equal(a.value, b.value) for a, b in zip(flatten(slow)[0], flatten(fast)[0]))


def old_state_stays() -> bool:
    made, adam = module(), optim.adam()
    first = made.init_optim(adam)
    second = made.step_with(adam, first, X, Y)
    return (first.t, second.t) == (0, 1) and all(not slot.any() for slots in first.slots for slot in slots)


def on_tape() -> bool:
    """The gradients of all parameters and inputs that are recorded as leaves."""
    ops = NumpyOps(F64)
    _, pulled, _ = _run(ops)
    return close(pulled, [2 * AT, 3 * np.ones(2)])


def _run(ops: Any) -> Any:
    tape = Tape(ops)
    x, y = tape.leaf(ops.put(AT)), tape.leaf(ops.put(AT))
    total = tape.sum(tape.add(tape.mul(x, x), tape.scale(y, c=3.0)))
    return total, tape.pull([total], [ops.put(1.0)], [x, y]), tape


CHILD = """
import gc, json
import numpy as np
import opstage
from opstage import Options, init
from opstage.interpreters.eager_cuda import CudaOps, DeviceBuffer
from opstage.interpreters.eager_cuda.kernels.layout import uniform
from opstage.compiler.gpu.simulator import Simulator
from opstage.transforms.tape import Tape
from opstage.ops.errors import OpstageError
from opstage.ops.types import FLOAT32, TensorType

def refused(call):
    try:
        call()
    except OpstageError as error:
        return type(error).__name__
    return ""

device = Simulator()
ops = CudaOps(Options(device="cuda"), device)
scheme = init.uniform(-1.0, 1.0, seed=3)
host = scheme.materialise((6,))
param = opstage.Param.planned(init.Plan([scheme]).placements([np.empty(6)])[0])
mirror = param.mirror(ops)
tape = Tape(ops)
x = tape.leaf(ops.put(np.array([1.0, 2.0])))
y = tape.sum(tape.mul(x, x))
(pulled,) = tape.pull([y], [ops.put(1.0)], [x])
base = device.used
buffer = ops.put(np.ones(4, np.float32))
taken, shared = device.used - base, buffer.reshaped((2, 2))
same = shared.memory is buffer.memory
buffer.free(), buffer.free()
freed = device.used == base
held = ops.put(np.ones(4, np.float32))
del held
gc.collect()
print(json.dumps({
    "fill": bool((ops.get(ops.fill(scheme, (6,), FLOAT32)) == host).all()),
    "uniform": uniform.__name__ == "uniform",
    "stale": param.host is None and param.host_stale and bool((param.value == host).all()),
    "tape": ops.get(pulled).tolist() == [2.0, 4.0],
    "buffer": (taken, same, freed, device.used == base) == (16, True, True, True),
    "type": (shared.shape, str(shared.dtype)) == ((2, 2), "float32"),
    "wire": refused(lambda: CudaOps(Options(device="cuda", dtype="float64"), device).put(1.0)) == "UsageError",
    "exact": refused(lambda: DeviceBuffer(TensorType((3,), FLOAT32), device.memory(16))) == "ShapeError",
    "count": refused(lambda: DeviceBuffer(TensorType((2**31,), FLOAT32), device.memory(16))) == "ShapeError",
    "forms": [str(ops.put(np.ones(1, t)).dtype) for t in ("float32", "int32", "int64", "bool")]
    == ["float32", "int32", "int64", "bool"],
    "round": ops.get(ops.put(np.array([[1.5]]))).tolist() == [[1.5]],
}))
"""


@cache
def _on_a_simulated_device() -> dict[str, bool]:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(Path(opstage.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, bool] = json.loads(done.stdout)
    return found


def on_device(*names: str) -> Claim:
    return lambda: all(_on_a_simulated_device()[name] for name in names)


def option(name: str, *others: Any) -> Claim:
    """A field that takes these values and refuses another kind."""

    def claim() -> bool:
        for value in others:
            assert getattr(Options().replace(**{name: value}), name) == value
        return refused(UsageError, lambda: Options().replace(**{name: object()}), name)

    return claim
