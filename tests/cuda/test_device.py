"""Memory of a device, what is uploaded, and indices out of range."""

from __future__ import annotations

import gc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.compiler.gpu.probe import find_device
from opstage.interpreters.eager_cuda import DeviceBuffer
from opstage.ops.errors import ProgramError, RangeError, ShapeError, UsageError
from opstage.ops.types import FLOAT32, TensorType, as_dtype
from opstage.options import Options

CUDA = Options(device="cuda")


def buffer(*shape: int) -> DeviceBuffer:
    return find_device().empty(TensorType(shape, FLOAT32))


# Memory -----------------------------------------------------------------------------------------------------------


def test_memory_is_given_back_when_the_last_who_shares_it_is_gone() -> None:
    gc.collect()
    before = find_device().used
    x = buffer(2, 3)
    y = x.reshaped((6,))
    assert find_device().used == before + 24
    del x
    assert find_device().used == before + 24
    del y
    assert find_device().used == before


def test_freeing_twice_is_harmless_and_reading_afterwards_is_an_error() -> None:
    x = buffer(4)
    used = find_device().used
    x.free()
    x.free()
    assert find_device().used == used - 16
    with pytest.raises(ProgramError, match="was freed"):
        find_device().download(x)


def test_a_shape_must_fit_its_memory_and_be_countable() -> None:
    with pytest.raises(ShapeError, match="takes 32 bytes, but the memory has 24"):
        buffer(2, 3).reshaped((8,))
    memory = buffer(1).memory
    with pytest.raises(ShapeError, match="kernels count them in 32 bits"):
        DeviceBuffer(TensorType((2**16, 2**15), FLOAT32), memory)


def test_memory_that_was_not_written_is_seen() -> None:
    assert not np.isfinite(find_device().download(buffer(4))).any() or (find_device().download(buffer(4)) != 0).all()


def test_training_holds_constant_memory() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 4)).astype(np.float32), np.array([0, 1, 1])

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)

    params = {"w": rng.standard_normal((2, 4)).astype(np.float32), "b": np.zeros(2, np.float32)}
    trainer = opstage.scalar_trainer(loss, params, options=CUDA)
    optimizer = opstage.optim.adamw(lr=0.1)
    state, used = trainer.init_optim(optimizer), []
    for _ in range(50):
        state = trainer.step_with(optimizer, state, x, y)
        gc.collect()
        used.append(find_device().used)
    assert len(set(used[2:])) == 1, used
    assert trainer.forward(x, y) < 0.5


def test_a_step_that_finds_no_room_leaves_the_parameters_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.exp(ops.matmul(x, params)))

    trainer = opstage.scalar_trainer(loss, np.ones((4, 3), np.float32), options=CUDA)
    x = np.ones((2, 4), np.float32)
    trainer.step(0.001, x)
    before, device = trainer.get_params().copy(), find_device()
    allocate = type(device).allocate
    for most in range(1, 6):
        asked: list[int] = []

        def limited(self: Any, nbytes: int, asked: list[int] = asked, most: int = most) -> Any:
            asked.append(nbytes)
            if len(asked) > most:
                raise opstage.OutOfMemoryError(f"{nbytes} bytes were requested")
            return allocate(self, nbytes)

        with monkeypatch.context() as limits, pytest.raises(opstage.OutOfMemoryError, match="bytes were requested"):
            limits.setattr(type(device), "allocate", limited)
            trainer.step(0.001, x)
        np.testing.assert_array_equal(trainer.get_params(), before)
        assert trainer.steps_taken == 1
    trainer.step(0.001, x)
    assert (trainer.get_params() != before).any()


# What is uploaded -------------------------------------------------------------------------------------------------


def test_a_dtype_without_a_form_on_the_device_is_an_error_until_one_is_registered() -> None:
    options = Options(device="cuda", dtype="float64")
    with pytest.raises(
        UsageError,
        match=r"argument x: a tensor of float64 is not supported "
        r"on the device.*register_wire",
    ):
        opstage.run(lambda ops, x: x, np.ones(2), options=options)
    with pytest.raises(UsageError, match="has a device form already"):
        opstage.register_wire_format("float32", lambda array: array)


def test_a_registered_wire_format_is_how_a_dtype_is_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opstage.ops.host_arrays._FORMATS", {})
    exact, halves = Options(device="cuda", dtype="exact"), np.array([Fraction(1, 2), Fraction(-3, 4)])
    with pytest.raises(UsageError, match="a tensor of exact is not supported on the device"):
        opstage.run(lambda ops, x: x, halves, options=exact)
    opstage.register_wire_format("exact", lambda array: array.astype(np.float32))
    doubled = opstage.run(lambda ops, x: ops.add(x, x), halves, options=exact)
    assert doubled.dtype == np.float32
    np.testing.assert_array_equal(doubled, [1.0, -1.5])
    opstage.register_wire_format("exact", lambda array: array.astype(np.float64))
    with pytest.raises(UsageError, match="the wire format of exact made float64"):
        opstage.run(lambda ops, x: x, halves, options=exact)


def double(dtype: str) -> Options:
    return Options(device="cuda", dtype=dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("dtype", ["float64", "exact"])
def test_a_wire_format_serves_whole_training_steps(backend: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opstage.ops.host_arrays._FORMATS", {})
    encoded: list[Any] = []

    def encode(array: Any) -> Any:
        encoded.append(array.dtype)
        return array.astype(np.float32)

    opstage.register_wire_format(dtype, encode)
    rng = np.random.default_rng(0)
    values = {"w": rng.standard_normal((2, 3)), "b": rng.standard_normal(2)}
    x, y = rng.standard_normal((5, 3)), rng.standard_normal((5, 2))

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.mse_loss(ops.linear(params["w"], params["b"], x), y) + ops.const(0.5)

    def close(found: Any, expected: Any) -> None:
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=1e-5, atol=1e-6)

    options = double(dtype).replace(backend=backend)
    made = opstage.ScalarModuleDef(values, loss).instantiate(options)
    exact = opstage.ScalarModuleDef(values, loss).instantiate(Options(dtype="float64"))
    close(opstage.run(loss, values, x, y, options=options), exact.forward(x, y))
    close(opstage.value_and_grad(loss, values, x, y, options=options)[1]["w"], exact.backward(x, y)["w"])
    close(opstage.compile(loss, values, x, y, options=options).forward(values, x, y), exact.forward(x, y))
    for optimizer in (opstage.optim.sgd(lr=0.1), opstage.optim.momentum(lr=0.1), opstage.optim.adamw(lr=0.1)):
        states = [each.init_optim(optimizer) for each in (made, exact)]
        states = [each.train_with(optimizer, s, 3, [(x, y)], 0) for each, s in zip((made, exact), states)]
        close(made.params()["w"], exact.params()["w"])
        saved = made.trainer.export_optim(optimizer, states[0])
        restored = made.trainer.import_optim(optimizer, saved)  # what a checkpoint does
        made.trainer.restore(made.trainer.export())
        for each, state in zip((made, exact), (restored, states[1])):
            each.step_with(optimizer, state, x, y)
        close(made.params()["b"], exact.params()["b"])
    host = as_dtype(dtype)
    assert made.params()["w"].dtype == host and made.trainer.params["w"].dtype == host
    assert set(encoded) == {host}

    session, reference = opstage.Session(options), opstage.Session(Options(dtype="float64"))
    found = []
    for each in (session, reference):
        w, b = each.param(values["w"]), each.param(values["b"])
        refs = each.use(w), each.use(b), each.input(x), each.input(y)
        gradients = each.backward(each.mse_loss(each.linear(*refs[:3]), refs[3]))
        each.adam_step_all(0.1)
        each.sgd_step_all(0.1)
        found.append((w.value, gradients[refs[2]], gradients[b]))
    for mine, theirs in zip(*found):
        close(mine, theirs)


def test_a_buffer_has_exactly_the_elements_of_its_shape() -> None:
    device = find_device()
    memory = device.memory(16)
    assert DeviceBuffer(TensorType((2, 2), FLOAT32), memory).reshaped((4,)).shape == (4,)
    for shape in ((2,), (5,), (), (0,), (4, 2)):
        with pytest.raises(ShapeError, match="but the memory has 16"):
            DeviceBuffer(TensorType(shape, FLOAT32), memory)
        with pytest.raises(ShapeError, match="but the memory has 16"):
            DeviceBuffer(TensorType((4,), FLOAT32), memory).reshaped(shape)


# Indices ------------------------------------------------------------------------------------------------------------


def test_the_first_op_with_a_bad_index_is_named_when_a_value_is_read_back() -> None:
    def program(ops: Any, x: Any, good: Any, bad: Any) -> Any:
        a = ops.gather_rows(x, good)
        b = ops.gather_rows(x, bad)  # here
        return ops.add(a, b)

    args = np.ones((3, 2), np.float32), np.array([0, 1]), np.array([2, 7])
    messages = []
    for options in (Options(), CUDA):
        with pytest.raises(RangeError, match=r"index 7 at position \(1,\)") as caught:
            opstage.run(program, *args, options=options)
        assert caught.value.source is not None and caught.value.source.text.endswith("# here")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    opstage.run(program, args[0], args[1], args[1], options=CUDA)  # the error is over


@pytest.mark.parametrize("index", [6, 11, -1, -7])
def test_positions_of_a_pool_outside_of_their_planes_are_said_as_on_the_cpu(index: int) -> None:
    places, x = np.array([[[0, 2, index], [0, 2, 4]]]), np.arange(12, dtype=np.float32).reshape(1, 2, 6)
    window = {"kernel": (2,), "stride": 2, "padding": 0}
    programs: list[tuple[Any, Any]] = [
        (lambda ops, x, i: ops.max_pool_gather(x, i, **window), x),
        (lambda ops, g, i: ops.max_pool_scatter(g, i, shape=(6,), **window), x[:, :, :3]),
    ]
    for program, operand in programs:
        messages = []
        for options in (Options(), CUDA):
            with pytest.raises(RangeError, match=rf"index {index} at position") as caught:
                opstage.run(program, operand, places, options=options)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_a_bad_index_leaves_the_parameters_as_they_were() -> None:
    def loss(ops: Any, params: Any, idx: Any) -> Any:
        return ops.sum(ops.gather_rows(params, idx))

    trainer = opstage.scalar_trainer(loss, np.ones((3, 2), np.float32), options=CUDA)
    with pytest.raises(RangeError):
        trainer.step(0.1, np.array([5]))
    np.testing.assert_array_equal(trainer.get_params(), np.ones((3, 2)))
    assert trainer.steps_taken == 0
