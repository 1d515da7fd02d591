"""Programs compiled for a simulated device: kernels that are generated, memory that stays, steps that fail."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import ScalarTrainer, Session, optim
from opstage.compiler.gpu.simulator import Simulator
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.graph.cuda.executor import CompiledCudaOps
from opstage.interpreters.graph.cuda.lowering import CudaPlan, optimise
from opstage.interpreters.graph.recorder import replay
from opstage.ops.errors import RangeError
from opstage.ops.trees import flatten
from opstage.options import Options
from opstage.training.commit import Commit
from opstage.training.trainer import scalar_trainer
from tests.cuda.small_models import batch, trainer
from tests.cuda.traffic import Traffic, advance_stopped_anywhere, advance_without_room, close, same, watch
from tests.graph.random_programs import random_graph
from tests.searches import share

EAGER = Options(device="cuda", seed=1)
COMPILED = EAGER.replace(backend="compiled")
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
Y = np.array([0, 1, 1])
ADAMW = optim.adamw(lr=0.05)


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    hidden = ops.tanh(ops.linear(params["w"], params["b"], x))
    return ops.cross_entropy(ops.linear(params["v"], None, hidden), y)


def values() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"w": rng.standard_normal((5, 4)), "b": np.zeros(5), "v": rng.standard_normal((2, 5))}


def made(options: Options = COMPILED, of: Callable[..., Any] = loss) -> ScalarTrainer:
    return scalar_trainer(of, values(), options=options)


# The same results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [optim.momentum(lr=0.1), ADAMW, optim.adagrad(lr=0.1)])
def test_steps_are_those_of_the_eager_interpreter(device: Simulator, optimizer: Any) -> None:
    """Moved on in place and with states kept, with parameters written and read in between."""
    trainers = made(EAGER), made()
    states = [t.init_optim(optimizer) for t in trainers]
    kept = []
    for step in range(8):
        if step == 3:
            for t in trainers:
                t.set_params(values())
        if step == 5:
            close(*[t.get_params() for t in trainers])
        if step % 3:
            states = [t.step_with(optimizer, s, X, Y) for t, s in zip(trainers, states)]
            kept.append(states)
        else:
            results = [t.advance(optimizer, s, X, Y) for t, s in zip(trainers, states)]
            close(results[0].loss, results[1].loss)
        close(*[t.forward(X, Y) for t in trainers])
    close(*[t.get_params() for t in trainers])
    for pair in kept[:-1]:  # states that were given out are what they were
        close(*[t.export_optim(optimizer, s).slots["w"] for t, s in zip(trainers, pair)])


def test_results_that_somebody_holds_are_never_written_over(device: Simulator) -> None:
    interpreter = CompiledCudaOps(COMPILED)

    executor = interpreter.compile(opstage.record(lambda ops, x: ops.scale(x, c=2.0), X))
    held = [executor.run((interpreter.put(X + i),))[0] for i in range(4)]
    for i, result in enumerate(held):
        np.testing.assert_array_equal(interpreter.get(result), 2 * (X + i))
    again = executor.run((held[0],))[0]
    np.testing.assert_array_equal(interpreter.get(again), 4 * X)
    np.testing.assert_array_equal(interpreter.get(held[0]), 2 * X)


def test_one_buffer_may_be_several_inputs(device: Simulator) -> None:
    """Of which one would be written over."""
    trainers = made(EAGER), made()
    optimizer = optim.momentum(lr=0.1)
    states = [t.init_optim(optimizer) for t in trainers]
    for t, s in zip(trainers, states):
        (slot,), *rest = s.values(t._interpreter)
        commit = Commit()
        s.prepare(commit, t._interpreter, s.t, ((t.params["b"].mirror(t._interpreter),), *rest))
        commit.run()
        assert slot.shape == (5,)
    for _ in range(3):
        for t, s in zip(trainers, states):
            t.advance(optimizer, s, X, Y)
    close(*[t.get_params() for t in trainers])


def test_a_session_records_and_steps(device: Simulator) -> None:
    ends = []
    for options in (EAGER, COMPILED):
        session = Session(options)
        params = {name: session.param(value, name=name) for name, value in values().items()}
        for _ in range(3):
            out = loss(session, {n: session.use(p) for n, p in params.items()}, session.input(X), session.nat_vec(Y))
            session.backward(out)
            session.adam_step_all(0.01)
            session.reset_tape()
        ends.append({name: param.value for name, param in params.items()})
    close(*ends)


# Kernels -------------------------------------------------------------------------------------------------------------


def calls(program: Callable[..., Any], *args: Any) -> list[str]:
    """The kernels, by name, of a program's calls; products by theirs."""
    graph = optimise(opstage.record(program, *args))
    plan = CudaPlan(graph.body, Simulator(), "fp32")
    return [call.arguments[0].__name__ if call.method == "launch" else call.method for call in plan.calls]


def test_a_chain_of_elementwise_ops_is_one_kernel() -> None:
    def chain(ops: Any, x: Any) -> Any:
        return ops.mul(ops.tanh(ops.add(x, ops.exp(x))), ops.permute(ops.permute(x, axes=(1, 0)), axes=(1, 0)))

    assert calls(chain, X) == ["exp_add_tanh_mul"]


def test_a_sum_takes_what_is_summed_and_what_follows_into_its_kernel() -> None:
    def normalised(ops: Any, x: Any) -> Any:
        e = ops.exp(ops.sub(x, ops.broadcast_to(ops.reduce_max(x, axis=1, keepdims=True), shape=x.shape)))
        return ops.div(e, ops.broadcast_to(ops.reduce_sum(e, axis=1, keepdims=True), shape=x.shape))

    assert calls(normalised, X) == ["row_max_sub_exp_row_sum_div"]
    rows = np.ones((100, 4), np.float32)
    assert calls(lambda ops, x: ops.reduce_sum(ops.mul(x, x), axis=0), rows) == ["mul_column_sum", "reduce_sum"]


def test_a_product_reads_transposed_and_sliced_operands_where_they_lie() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        heads = ops.permute(ops.reshape(x, shape=(6, 2, 4)), axes=(1, 0, 2))  # (heads, n, d)
        return ops.bmm(heads, ops.permute(ops.reshape(y, shape=(6, 2, 4)), axes=(1, 2, 0)))

    x, y = (np.random.default_rng(i).standard_normal((6, 8)).astype(np.float32) for i in range(2))
    assert calls(program, x, y) == ["product"]
    close(opstage.run(program, x, y, options=COMPILED), opstage.run(program, x, y))


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 40), (3, 200), (70, 3), (300, 1), (2, 3, 5, 7)])
def test_sums_of_every_form(shape: tuple[int, ...]) -> None:
    """Rows of one lane, a warp and a block, and columns cut into parts, each with what is used on both sides."""
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)

    def program(ops: Any, x: Any) -> Any:
        results = []
        for axis in range(len(shape)):
            total = ops.reduce_sum(ops.mul(x, x), axis=axis, keepdims=True)
            peak = ops.reduce_max(ops.neg(x), axis=axis, keepdims=True)
            results += [total, ops.sub(x, ops.broadcast_to(ops.add(total, peak), shape=x.shape)), peak]
        return results

    close(opstage.run(program, x, options=COMPILED), opstage.run(program, x))


def test_a_few_long_rows_are_cut_into_parts() -> None:
    """One block of threads would work on each, and the rest of a GPU on nothing."""
    x = np.random.default_rng(4).standard_normal((3, 1 << 15)).astype(np.float32)
    assert calls(lambda ops, x: ops.reduce_sum(ops.mul(x, x), axis=1), x) == ["mul_row_sum", "row_sum"]


def test_nan_is_the_greatest_of_a_row() -> None:
    x = np.array([[1.0, np.nan, 3.0], [-np.inf, -np.inf, -np.inf], [0.0, np.inf, 1.0]], np.float32)

    def program(ops: Any, x: Any) -> Any:
        return ops.reduce_max(ops.neg(x), axis=1), ops.reduce_max(x, axis=0)

    same(opstage.run(program, x, options=COMPILED), opstage.run(program, x))


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cnn", "gpt", "lstm", "mlp"])
def test_memory_is_constant_over_50_steps(name: str, device: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels compute nothing here."""
    monkeypatch.setattr(Simulator, "launch", lambda *arguments: None)
    made, arrays = trainer(name, COMPILED), batch(name)
    state = made.init_optim(ADAMW)
    used, peaks = [], []
    for _ in range(50):
        device.peak = 0
        made.advance(ADAMW, state, *arrays)
        used.append(device.used)
        peaks.append(device.peak)
    assert len(set(used[4:])) == len(set(peaks[4:])) == 1, (used, peaks)
    busy = device.used
    made.empty_cache()
    gc.collect()
    params = sum(p.nbytes for p in flatten(made.get_params())[0])
    assert 3 * params <= device.used < busy


def test_a_steady_step_uploads_its_batch_and_scalars_and_takes_no_memory(
    device: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = made()
    state = trainer.init_optim(ADAMW)
    for _ in range(4):
        trainer.advance(ADAMW, state, X, Y)
    traffic: Traffic = watch(monkeypatch)
    where = [param.mirror(trainer._interpreter).handle for param in flatten(trainer.params)[0]]
    before = device.used
    for _ in range(3):
        trainer.advance(ADAMW, state, X, Y)
    assert device.used == before
    assert {(X.shape, "float32"), (Y.shape, "int64"), ((), "float32")} == set(traffic.uploads)
    assert [shape for shape, _ in traffic.downloads].count(()) == 3, "the loss; beside it the flag of bad labels"
    for param, handle in zip(flatten(trainer.params)[0], where):
        assert param.mirror(trainer._interpreter).handle is handle, "parameters stand where they stood"


def test_programs_of_one_interpreter_share_what_they_work_in(device: Simulator) -> None:
    """The largest has come last here, so the others find their memory elsewhere when they run again."""
    trainers = made(EAGER), made()
    rng = np.random.default_rng(5)
    batches = [(rng.standard_normal((n, 4)).astype(np.float32), rng.integers(0, 2, n)) for n in (3, 40, 400)]
    used = []
    for _ in range(3):
        for x, y in batches:
            close(*[t.step(0.1, x, y) for t in trainers])
            close(*[t.forward(x, y) for t in trainers])
        gc.collect()
        used.append(device.used)
    assert used[1] == used[2]
    interpreter: Any = trainers[1]._interpreter
    needs = [executor.plan.arena_bytes for executor in interpreter.programs.executors]
    assert len(needs) == 6 and all(needs)
    before = device.used
    interpreter._scratch.empty_cache()
    gc.collect()
    assert before - device.used == max(needs)


def test_a_step_that_another_run_came_between_is_not_finished(device: Simulator) -> None:
    interpreter = CompiledCudaOps(COMPILED)
    x = interpreter.put(X)
    executors = [interpreter.compile(opstage.record(lambda ops, x, c=c: ops.scale(x, c=c), X)) for c in (2.0, 3.0)]
    _, finish = executors[0].start((x,))
    executors[1].run((x,))
    with pytest.raises(opstage.UsageError, match="another run started on this interpreter"):
        finish(())


def test_a_program_can_be_trimmed_and_goes_on(device: Simulator) -> None:
    trainers = made(EAGER), made()
    for step in range(6):
        close(*[t.step(0.1, X, Y) for t in trainers])
        if step % 2:
            trainers[1].empty_cache()
    close(*[t.get_params() for t in trainers])


# Errors --------------------------------------------------------------------------------------------------------------


def looked_up(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.sum(ops.gather_rows(params["w"], y)) + ops.sum(params["v"]) + ops.sum(params["b"]) + ops.sum(x)


def test_an_index_out_of_range_names_op_and_line_and_changes_nothing(device: Simulator) -> None:
    trainer = made(of=looked_up)
    for _ in range(3):
        trainer.step(0.1, X, Y)
    params = trainer.get_params()
    with pytest.raises(RangeError, match="index 5") as caught:
        trainer.step(0.1, X, np.array([0, 5, 1]))
    assert caught.value.op == "gather_rows"
    assert caught.value.source is not None and "gather_rows" in str(caught.value.source.text)
    same(trainer.get_params(), params)
    peer = made(EAGER, looked_up)
    for _ in range(4):
        peer.step(0.1, X, Y)
    trainer.step(0.1, X, Y)
    close(trainer.get_params(), peer.get_params())


def test_no_step_waits_for_the_flag_of_bad_indices(device: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at when the loss is read, and until then the update that it forbids has left all as it was."""
    trainer = made(of=looked_up)
    state = trainer.init_optim(ADAMW)
    for _ in range(3):
        trainer.advance(ADAMW, state, X, Y)
    before, moments = trainer.get_params(), trainer.export_optim(ADAMW, state)
    order: list[str] = []
    for name in ("launch", "download"):
        method = getattr(Simulator, name)

        def noted(self: Simulator, *arguments: Any, name: str = name, method: Any = method) -> Any:
            order.append(name)
            return method(self, *arguments)

        monkeypatch.setattr(Simulator, name, noted)
    with pytest.raises(RangeError):
        trainer.advance(ADAMW, state, X, np.array([0, 5, 1]))
    first = order.index("download")
    assert "launch" in order[:first] and order[first - 1] == "launch"
    monkeypatch.undo()
    same(trainer.get_params(), before)
    same(trainer.export_optim(ADAMW, state).slots["w"], moments.slots["w"])
    assert state.t == trainer.steps_taken == 3


def test_a_flag_that_a_broken_off_run_has_set_is_forgotten(device: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(of=looked_up)
    for _ in range(3):
        trainer.step(0.1, X, Y)
    interpreter: Any = trainer._interpreter
    (executor,) = interpreter.programs.executors
    launch = Simulator.launch

    def stopping(self: Simulator, *arguments: Any) -> None:
        launch(self, *arguments)
        if int(device.download(executor.plan.flag)[0]):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "launch", stopping)
        with pytest.raises(KeyboardInterrupt):
            trainer.step(0.1, X, np.array([0, 5, 1]))
    before = trainer.get_params()
    trainer.step(0.1, X, Y)
    assert not np.array_equal(trainer.get_params()["w"], before["w"])


def test_a_bad_index_that_nobody_asked_about_is_told_by_the_next_run(device: Simulator) -> None:
    interpreter = CompiledCudaOps(COMPILED)
    table, index = interpreter.put(X), interpreter.put(np.array([0, 7]))
    executor = interpreter.compile(opstage.record(lambda ops, x, i: ops.gather_rows(x, i), X, np.array([0, 1])))
    executor.run((table, index))
    with pytest.raises(RangeError, match="index 7"):
        executor.run((table, interpreter.put(np.array([0, 1]))))
    (rows,) = executor.run((table, interpreter.put(np.array([2, 0]))))
    np.testing.assert_array_equal(interpreter.get(rows), X[[2, 0]])


def test_a_step_that_is_cut_short_anywhere_leaves_all_as_it_was(
    device: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance_stopped_anywhere(None, [made(), made()], ADAMW, (X, Y), 4, monkeypatch)


def test_a_device_without_room_says_so_and_parameters_stay(device: Simulator) -> None:
    advance_without_room(device, made(), ADAMW, (X, Y), range(40, 20000, 400))


STEP = 3


def agrees(seed: int, size: int) -> None:
    """Twice on new buffers: where inputs stand, and where they are copied to."""
    graph, arrays = random_graph(seed, size, single=True)
    ops = CompiledCudaOps(Options(device="cuda", backend="compiled"), Simulator())
    executor = ops.compile(graph)
    with np.errstate(all="ignore"):
        expected = replay(NumpyOps(Options(seed=graph.seed)), graph, arrays, STEP)
    for _ in range(2):
        results = executor.run([ops.put(array) for array in arrays], STEP)
        for result, wanted in zip(map(ops.get, results), map(np.asarray, expected), strict=True):
            assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
            scale = 1 + np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted))
            np.testing.assert_allclose(result, wanted, rtol=2e-3, atol=2e-4 * scale, err_msg=f"seed {seed}")


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_programs(start: int) -> None:
    for seed in range(start, start + 10):
        agrees(seed, 12)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("start", range(1000, 1000 + share(1000), 50))
def test_many_more_random_programs(start: int) -> None:
    for seed in range(start, start + 50):
        agrees(seed, 4 + seed % 20)
