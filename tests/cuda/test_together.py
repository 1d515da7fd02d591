"""Updates of many parameters: one launch for all that are alike, before anybody reads one of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import OpstageError, Options, OutOfMemoryError, Param, Session, optim
from opstage.compiler.gpu import launches as deferred
from opstage.compiler.gpu.simulator import Simulator
from opstage.interpreters.eager_cuda import CudaOps, DeviceBuffer
from opstage.ops.errors import ProgramError, UnsupportedError
from opstage.ops.types import FLOAT32, TensorType
from opstage.training.parameters import sgd_step_fast
from opstage.training.trainer import ScalarTrainer, scalar_trainer
from tests.cuda.test_updates import CUDA, OPTIMIZERS, SHAPES, flat, operands, same_bits, scalars, updates
from tests.cuda.traffic import Traffic
from tests.optim.updates import momentum_update, sgd_update


def ones_and_rate(device: Simulator) -> tuple[CudaOps, DeviceBuffer, DeviceBuffer]:
    """An interpreter, a parameter of ones, and the rate 0.5."""
    ops = CudaOps(CUDA, device)
    return ops, ops.put(np.ones(3, np.float32)), ops.put(np.float32(0.5))


# The same bits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_all_of_them_are_one_launch(optimizer: optim.Optimizer, traffic: Traffic) -> None:
    """And of the CPU, whose operations are the same ones in the same order."""
    each, given = operands(optimizer, SHAPES), scalars(optimizer)
    found = opstage.run(updates(optimizer), given, each, options=CUDA)
    assert len(traffic.launches) == 1
    same_bits(found, opstage.run(updates(optimizer), given, each, options=Options(dtype="float32")))


def test_more_than_may_wait_take_several_launches(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = OPTIMIZERS["adamw"]
    each = operands(optimizer, [(n,) for n in range(1, 13)])
    expected = opstage.run(updates(optimizer), scalars(optimizer), each, options=CUDA)
    monkeypatch.setattr(deferred, "MOST", 5)
    traffic.clear()
    same_bits(opstage.run(updates(optimizer), scalars(optimizer), each, options=CUDA), expected)
    assert traffic.launches == ["adamw_update"] * 3


def test_what_differs_is_not_mixed(traffic: Traffic) -> None:
    """Another kernel, another number, be it by its sign alone, another learning rate: each a launch of its own."""

    def program(ops: Any, ps: Any, gs: Any, rates: Any) -> Any:
        slow, fast = rates
        zero = ops.full(shape=(3,), value=0.0, dtype=FLOAT32)
        done = []
        for p, g in zip(ps, gs):
            done += [
                sgd_update(ops, p, g, slow, weight_decay=0.0),
                sgd_update(ops, p, g, slow, weight_decay=0.5),
                sgd_update(ops, p, g, fast, weight_decay=0.5),
                momentum_update(ops, p, g, zero, slow, momentum=0.5),
                momentum_update(ops, p, g, zero, slow, momentum=0.5, nesterov=True),
            ]
        return done

    rng = np.random.default_rng(0)
    ps, gs = rng.standard_normal((2, 2, 3)).astype(np.float32)
    arguments = list(ps), list(gs), (np.float32(0.1), np.float32(10))
    found = opstage.run(program, *arguments, options=CUDA)
    kernels = ["sgd_update"] * 3 + ["momentum_update", "nesterov_update"]
    assert [name for name in traffic.launches if name in kernels] == kernels
    same_bits(found, opstage.run(program, *arguments, options=Options(dtype="float32")))


def test_a_number_is_told_from_its_negative_zero(traffic: Traffic) -> None:
    def program(ops: Any, p: Any, g: Any, lr: Any) -> Any:
        return [momentum_update(ops, p, g, p, lr, momentum=momentum)[1] for momentum in (0.0, -0.0)]

    one, nothing = np.float32([1]), np.float32([-0.0])
    plus, minus = opstage.run(program, one, nothing, np.float32(0.1), options=CUDA)
    assert (np.signbit(plus), np.signbit(minus)) == (False, True)
    assert traffic.launches == ["momentum_update"] * 2


def test_tensors_may_serve_several_updates(traffic: Traffic) -> None:
    """One gradient for two parameters, a parameter that is its own gradient, one that is updated twice."""

    def program(ops: Any, p: Any, q: Any, g: Any, lr: Any) -> Any:
        return [sgd_update(ops, *each, lr) for each in ((p, g), (q, g), (p, p), (p, q))]

    p, q, g = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    lr = np.float32(0.1)
    found = opstage.run(program, p, q, g, lr, options=CUDA)
    same_bits(found, [p - g * lr, q - g * lr, p - p * lr, p - q * lr])
    assert traffic.launches == ["sgd_update"]


# In the order of the program -----------------------------------------------------------------------------------------


def test_what_reads_an_updated_parameter_waits_for_it(traffic: Traffic) -> None:
    def program(ops: Any, p: Any, g: Any, lr: Any) -> Any:
        first = sgd_update(ops, p, g, lr)
        second = sgd_update(ops, first, g, lr)
        rate = sgd_update(ops, lr, lr, lr)
        third = sgd_update(ops, second, g, rate)
        return ops.reshape(third, shape=(2, 3)) * 2, second

    p, g = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    lr = np.float32(0.25)
    tripled, second = opstage.run(program, p, g, lr, options=CUDA)
    twice = p - g * lr - g * lr
    same_bits([tripled, second], [(twice - g * np.float32(0.1875)).reshape(2, 3) * np.float32(2), twice])
    assert traffic.launches.count("sgd_update") == 3, "the second update and that of the rate are one launch"


def test_what_came_before_in_the_same_memory_is_over(device: Simulator) -> None:
    """An operand that only a waiting update still reads keeps its memory."""
    ops = CudaOps(CUDA, device)
    p = ops.put(np.ones(4, np.float32))
    used = device.used
    new = sgd_update(ops, p, ops.put(np.full(4, 2, np.float32)), ops.put(np.float32(0.5)))
    assert device.used == used + 16 + 16 + 4, "the result, the gradient, the rate"
    same_bits([ops.get(new)], [np.zeros(4, np.float32)])
    device.shrink()
    assert device.used == used + 16 + 4, "the result, and the flag of bad indices, which updates look at"


def test_memory_that_is_given_back_by_hand_was_read_before(device: Simulator) -> None:
    ops = CudaOps(CUDA, device)
    p, g, lr = (ops.put(np.float32(x)) for x in (1, 2, 0.25))
    new = sgd_update(ops, p, g, lr)
    g.free()
    assert ops.get(new) == 0.5
    with pytest.raises(ProgramError, match="was freed"):
        sgd_update(ops, p, g, lr)


def test_what_nobody_can_read_is_not_computed(device: Simulator, traffic: Traffic) -> None:
    ops, p, lr = ones_and_rate(device)
    used = device.used
    sgd_update(ops, p, p, lr)
    gc.collect()
    assert device.used == used
    device.flush()
    assert traffic.launches == []
    kept, _ = momentum_update(ops, p, p, p, lr, momentum=0.5)  # its other result is dropped, and its memory is not
    others = [device.empty(TensorType((3,), FLOAT32)) for _ in range(2)]
    same_bits([ops.get(kept)], [np.full(3, 0.25, np.float32)])
    assert all((other.handle == 0xCB).all() for other in others)


def test_a_thread_that_reads_a_result_waits_for_the_one_that_launches_it(
    device: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops, p, lr = ones_and_rate(device)
    new = sgd_update(ops, p, p, lr)
    launch, asking = Simulator.launch, threading.Event()
    launched: list[str] = []
    seen: list[int] = []

    def read() -> None:
        asking.set()
        new.handle  # noqa: B018
        seen.append(len(launched))

    reader = threading.Thread(target=read)

    def launching(device: Simulator, kernel: Callable[..., None], *arguments: Any) -> None:
        reader.start()
        asking.wait()
        launch(device, kernel, *arguments)
        launched.append(kernel.__name__)

    monkeypatch.setattr(Simulator, "launch", launching)
    device.flush()
    reader.join()
    assert seen == [1]


# Steps of training ---------------------------------------------------------------------------------------------------

X = np.random.default_rng(2).standard_normal((2, 3)).astype(np.float32)


def chain(ops: Any, params: Any, x: Any) -> Any:
    for w, b in params:
        x = ops.linear(w, b, x)
    return ops.sum(ops.mul(x, x))


def near(trainer: ScalarTrainer, peer: ScalarTrainer) -> None:
    for found, expected in zip(flat(trainer.get_params()), flat(peer.get_params())):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def layers(count: int) -> list[Any]:
    rng = np.random.default_rng(1)
    return [(np.eye(3) + 0.01 * rng.standard_normal((3, 3)), np.zeros(3)) for _ in range(count)]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_step_of_forty_parameters_updates_them_in_one_launch(name: str, device: Simulator, traffic: Traffic) -> None:
    optimizer = OPTIMIZERS[name]
    trainer, peer = (scalar_trainer(chain, layers(20), options=o) for o in (CUDA, Options()))
    states = trainer.init_optim(optimizer), peer.init_optim(optimizer)
    used = []
    for _ in range(3):
        traffic.clear()
        trainer.advance(optimizer, states[0], X)
        peer.advance(optimizer, states[1], X)
        assert [kernel for kernel in traffic.launches if kernel.endswith("_update")] == [f"{name}_update"]
        assert traffic.downloads == [((), "float32")], "the loss"
        used.append(device.used)
    assert len(set(used)) == 1
    near(trainer, peer)


def test_a_step_of_groups_is_one_launch_for_each_of_them(device: Simulator, traffic: Traffic) -> None:
    """Weights and biases alternate, so launches are by group and not by where one group ends."""
    optimizer = optim.grouped(optim.adamw(1e-2), {"*.1": {"weight_decay": 0}, "1*": {"lr": 1e-3}})
    trainer, peer = (scalar_trainer(chain, layers(12), options=o) for o in (CUDA, Options()))
    states = trainer.init_optim(optimizer), peer.init_optim(optimizer)
    for _ in range(3):
        traffic.clear()
        trainer.advance(optimizer, states[0], X)
        peer.advance(optimizer, states[1], X)
        assert traffic.launches.count("adamw_update") <= 4
        assert traffic.downloads == [((), "float32")], "the loss"
    near(trainer, peer)


def test_a_session_s_step_is_one_launch_too(traffic: Traffic) -> None:
    session = Session(CUDA)
    params = [session.param(w, name=f"w{i}") for i, (w, _) in enumerate(layers(5))]
    for t in range(3):
        x = session.input(X)
        for param in params:
            x = session.linear(session.use(param), None, x)
        session.backward(session.sum(x))
        traffic.clear()
        session.adamw_step_all(0.01)
        assert traffic.launches.count("adamw_update") == 1
        assert len(traffic.launches) == 1 or t == 0, "moments are made in the first step"
        once = [((11,), "int32"), ((1,), "int32")]  # where each tensor begins, and the flag of bad indices
        assert traffic.uploads == 3 * [((), "float32")] + (once if t == 0 else []), "the rate and two corrections"
        session.reset_tape()


def test_the_fast_step_of_a_list_of_parameters_is_one_launch(traffic: Traffic) -> None:
    arrays = [np.float32(x) for (x, _) in layers(7)]
    params = [Param(x) for x in arrays]
    sgd_step_fast(params, 0.5, arrays, options=CUDA.replace(dtype="float32"))
    assert traffic.launches == ["sgd_update"]
    same_bits([param.value for param in params], [x - x * np.float32(0.5) for x in arrays])


# When a launch fails -------------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException], at: int) -> pytest.MonkeyPatch:
    """Let the launch of an update numbered `at` raise, and all later ones."""
    launch, count = Simulator.launch, 0

    def launching(device: Simulator, kernel: Callable[..., None], *arguments: Any) -> None:
        nonlocal count
        if kernel.__name__.endswith("_update"):
            count += 1
            if count > at:
                raise error()
        launch(device, kernel, *arguments)

    monkeypatch.setattr(Simulator, "launch", launching)
    return monkeypatch


@pytest.mark.parametrize("error", [KeyboardInterrupt, lambda: UnsupportedError("no")], ids=["interrupt", "error"])
def test_a_step_whose_updates_fail_leaves_all_as_it_was(
    error: Callable[[], BaseException], device: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = OPTIMIZERS["adamw"]
    trainer = scalar_trainer(chain, layers(3), options=CUDA)
    state = trainer.init_optim(optimizer)
    trainer.advance(optimizer, state, X)
    gc.collect()
    used, params, t = device.used, trainer.get_params(), state.t
    with monkeypatch.context() as patch:
        failing(patch, error, 0)
        with pytest.raises((KeyboardInterrupt, OpstageError)):
            trainer.advance(optimizer, state, X)
    gc.collect()
    assert (device.used, state.t, trainer.steps_taken) == (used, t, 1)
    same_bits(flat(trainer.get_params()), flat(params))
    trainer.advance(optimizer, state, X)
    assert state.t == t + 1


@pytest.mark.parametrize("first", [0, 1], ids=["the first launch", "the second launch"])
def test_a_session_s_step_that_fails_changes_no_parameter(
    first: int, device: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where some of its updates were launched."""
    session = Session(CUDA)
    old, new = session.param(X), session.param(X)

    def backward(*params: Any) -> None:
        session.reset_tape()
        session.backward(session.sum(session.mul(*map(session.use, params))))

    backward(old, old)
    session.adam_step_all(0.1)  # so that the two are at different steps, and take a launch each
    before = np.array(old.value)
    backward(old, new)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        failing(patch, KeyboardInterrupt, first)
        session.adam_step_all(0.1)
    same_bits([old.value, new.value], [before, X])
    session.adam_step_all(0.1)
    assert (old.version, new.version) == (2, 1)


def test_an_update_that_failed_can_be_read_later(device: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    ops, p, lr = ones_and_rate(device)
    slow, fast = (sgd_update(ops, p, p, lr, weight_decay=decay) for decay in (0.0, 0.5))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        failing(patch, KeyboardInterrupt, 1)
        ops.get(fast)
    same_bits([ops.get(slow), ops.get(fast)], [np.full(3, 0.5, np.float32), np.full(3, 0.25, np.float32)])


def test_an_error_is_told_of_the_update_and_not_of_who_read_it(
    device: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops, p, lr = ones_and_rate(device)
    new = ops.region("inner", lambda ops: sgd_update(ops, p, p, lr))
    failing(monkeypatch, lambda: UnsupportedError("the kernel did not compile"), 0)
    with pytest.raises(UnsupportedError) as found:
        ops.region("outer", lambda ops: ops.exp(new))
    assert (found.value.op, found.value.region) == ("sgd_update", "inner")
    assert device.context.op == "exp"


def test_updates_wait_on_where_there_is_no_room_for_their_launch(device: Simulator) -> None:
    """What asked for room says that there is none; what is put off takes nothing from it."""
    ops, p, lr = ones_and_rate(device)
    new = sgd_update(ops, p, p, lr)
    device.limit = device.used
    with pytest.raises(OutOfMemoryError) as found:
        ops.exp(p)
    assert found.value.op == "exp"
    with pytest.raises(OutOfMemoryError) as found:
        ops.get(new)
    assert found.value.op == "sgd_update"
    device.limit = None
    same_bits([ops.get(new)], [np.full(3, 0.5, np.float32)])


def test_what_waits_makes_room(device: Simulator) -> None:
    """A gradient that only an update still reads is given back where room is needed."""
    ops = CudaOps(CUDA, device)
    p, lr = ops.put(np.ones(64, np.float32)), ops.put(np.float32(0.5))
    new = sgd_update(ops, p, ops.put(np.ones(64, np.float32)), lr)
    device.limit = device.used + 64
    same_bits([ops.get(ops.exp(p)), ops.get(new)], [np.exp(np.ones(64, np.float32)), np.full(64, 0.5, np.float32)])


def test_a_buffer_that_waits_says_what_it_is(device: Simulator) -> None:
    ops = CudaOps(CUDA, device)
    x = ops.put(np.ones(3, np.float32))
    new = sgd_update(ops, x, x, ops.put(np.float32(0.5)))
    assert isinstance(new, DeviceBuffer) and (new.shape, new.dtype) == ((3,), FLOAT32)
    assert repr(new) == repr(x) and new.memory.job is not None


# Updates in plain ops ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Smooth(optim.Optimizer):
    """p -= lr·m/(|m| + eps), of the running mean m."""

    kept = 1

    lr: Any = 0.01
    beta: float = 0.9

    def update(self, ops: Any, p: Any, g: Any, slots: Any, scalars: Any, /) -> Any:
        m = ops.add(ops.scale(slots[0], c=self.beta), ops.scale(g, c=1 - self.beta))
        size = ops.add(ops.abs(m), ops.full(shape=p.shape, value=1e-3, dtype=p.dtype))
        return ops.sub(p, ops.mul(ops.broadcast_to(scalars["lr"], shape=p.shape), ops.div(m, size))), (m,)


def test_updates_in_plain_ops_are_one_launch_from_the_second_step_on(device: Simulator, traffic: Traffic) -> None:
    optimizer = Smooth()
    trainer = scalar_trainer(chain, layers(5), options=CUDA)
    plain = scalar_trainer(chain, layers(5), options=CUDA.replace(fast_kernels=False))
    states = trainer.init_optim(optimizer), plain.init_optim(optimizer)
    for t in range(4):
        plain.advance(optimizer, states[1], X)
        traffic.clear()
        trainer.advance(optimizer, states[0], X)
        assert traffic.launches.count("smooth_update") == (0 if t == 0 else 1)
    near(trainer, plain)


class Averaged(optim.Optimizer):
    """Moves along the mean gradient of each column: more than elements at their own places."""

    def update(self, ops: Any, p: Any, g: Any, slots: Any, scalars: Any, /) -> Any:
        if len(p.shape) == 2:
            g = ops.broadcast_to(ops.reduce_mean(g, axis=0), shape=p.shape)
        return ops.sub(p, ops.scale(ops.mul(g, g), c=self.lr)), ()


def test_an_update_that_reduces_is_not_put_off(device: Simulator, traffic: Traffic) -> None:
    trainer, peer = (scalar_trainer(chain, layers(2), options=o) for o in (CUDA, Options()))
    for each in (trainer, peer):
        state = each.init_optim(Averaged(0.1))
        for _ in range(3):
            each.advance(Averaged(0.1), state, X)
    near(trainer, peer)
