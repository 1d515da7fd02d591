"""Results written over inputs: of a training step parameters and moments, whole until nothing can fail any more."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, optim
from opstage.compiler.codegen.cpu.arguments import ErrorFlag
from opstage.compiler.codegen.cpu.kernels import NativeStep
from opstage.interpreters.graph.cpu.plan import CpuPlan, optimise
from opstage.interpreters.graph.executor import CpuExecutor
from opstage.interpreters.graph.profile import explain
from opstage.ops.errors import UsageError
from opstage.ops.trees import flatten
from tests.graph.counting_allocator import Counted
from tests.graph.executor_common import close_arrays, floats_of, meant, options_of, same_arrays, step_of, values_for
from tests.graph.regression import regression, sample, start
from tests.graph.test_interrupts import InterruptAt

COMPILED = Options(backend="compiled", dtype="float64")
ADAMW = optim.adamw(lr=0.01, weight_decay=0.1)


STEPS = [
    ("mlp", 8, {}),
    pytest.param("gpt", 2, {"T": 8}, marks=pytest.mark.slow),
    pytest.param("cnn", 4, {}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "rows", "sizes"), STEPS)
def test_what_comes_after_the_first_of_them_reads_none_and_cannot_fail(
    name: str, rows: int, sizes: dict[str, int]
) -> None:
    graph = step_of(name, rows, **sizes)
    floats = floats_of(graph)
    plan = CpuPlan(optimise(graph)[0].body, donated=floats)
    every, over = (sum(int(plan.lowered.types[s].nbytes) for s in slots) for slots in (plan.results, plan.aliased))
    assert over > 0.98 * every > 0
    assert len(set(plan.aliased.values())) == len(plan.aliased)
    assert plan.steps[plan.split].group == min(
        number
        for number, group in enumerate(plan.groups)
        for e in group.equations
        for s in e.outputs
        if s in plan.aliased
    )
    for step in plan.steps[plan.split :]:
        assert isinstance(step, NativeStep)
        assert not any(isinstance(word, ErrorFlag) for word in step.loop.words)
    writer = {slot: i for i, group in enumerate(plan.groups) for e in group.equations for slot in e.outputs}
    for result, given in plan.aliased.items():
        assert plan.lowered.types[result] == plan.lowered.types[given]
        readers = [
            i
            for i, group in enumerate(plan.groups)
            for e in group.equations
            for slot in e.inputs
            if slot not in plan.lowered.literals and plan.lowered.views[slot].root == given
        ]
        assert max(readers) <= writer[result]


@pytest.mark.parametrize(("name", "rows", "sizes"), STEPS)
def test_results_are_the_same_and_inputs_whole_until_it_is_finished(
    name: str, rows: int, sizes: dict[str, int]
) -> None:
    graph, values = step_of(name, rows, **sizes), values_for(step_of(name, rows, **sizes))
    floats = floats_of(graph)
    expected = CpuExecutor(graph, options_of(graph)).run(values, 3)
    close_arrays(expected, meant(graph, values, 3), rtol=1e-4, atol=1e-5)
    executor = CpuExecutor(graph, options_of(graph), floats)

    before = [np.array(x) for x in values]
    for found, wanted in zip(executor.run(values, 3), expected, strict=True):  # with copies
        np.testing.assert_array_equal(found, wanted)
    executor.start(values, 3, floats)  # and never finished
    same_arrays(values, before)

    given = [np.array(x) for x in values]
    outputs, finish = executor.start(given, 3, floats)
    same_arrays(given, before)
    finish(())
    same_arrays(outputs, expected)
    assert executor.plan is not None
    shared = sum(any(np.shares_memory(out, x) for x in given) for out in outputs)
    assert shared == len(executor.plan.aliased) > 0


def test_it_takes_no_memory_for_what_is_written_over() -> None:
    graph = step_of("mlp", 64)
    floats = floats_of(graph)
    values = values_for(graph)
    CpuExecutor(graph, options_of(graph)).run(values)  # makes what is made once in a process
    with Counted() as count:
        executor = CpuExecutor(graph, options_of(graph), floats)
        for step in range(4):
            outputs, finish = executor.start(values, step, floats)
            finish(())
        planned = explain(graph, donated=floats).memory
        assert planned.results < 0.02 * explain(graph).memory.results
        assert planned.peak <= count.peak <= planned.peak + 40_000
    del outputs


def test_a_run_that_another_one_has_overtaken_is_not_finished() -> None:
    graph, values = step_of("mlp"), values_for(step_of("mlp"))
    floats = floats_of(graph)
    executor = CpuExecutor(graph, options_of(graph), floats)
    before = [np.array(x) for x in values]
    _, finish = executor.start(values, 0, floats)
    executor.run(values)
    with pytest.raises(UsageError, match="another run"):
        finish(())
    same_arrays(values, before)


# Steps of a trainer --------------------------------------------------------------------------------------------------


def pair() -> tuple[opstage.ScalarTrainer, opstage.ScalarTrainer]:
    return tuple(  # type: ignore[return-value]
        opstage.scalar_trainer(regression, start(), options=COMPILED.replace(backend=backend))
        for backend in ("eager", "compiled")
    )


def close(x: Any, y: Any) -> None:
    close_arrays(flatten(x)[0], flatten(y)[0], rtol=1e-12, atol=1e-14)


def test_advance_and_train_step_in_any_order_are_those_of_the_eager_interpreter() -> None:
    eager, compiled = pair()
    states = [trainer.init_optim(ADAMW) for trainer in (eager, compiled)]
    for i in range(8):
        results = []
        for k, trainer in enumerate((eager, compiled)):
            if i % 3 == 2:
                result = trainer.train_step(ADAMW, states[k], *sample(5))
                assert result.state is not states[k] and states[k].t == i
                states[k] = result.state
            else:
                result = trainer.advance(ADAMW, states[k], *sample(5))
                assert result.state is states[k]
            assert states[k].t == i + 1
            results.append(result)
        np.testing.assert_allclose(results[1].loss, results[0].loss, rtol=1e-12)
        close(states[1].slots, states[0].slots)
        close(compiled.get_params(), eager.get_params())


def test_train_step_leaves_its_state_as_it_was() -> None:
    _, trainer = pair()
    first = trainer.advance(ADAMW, trainer.init_optim(ADAMW), *sample(5)).state
    kept = [np.array(x) for slot in first.slots for x in slot]
    second = trainer.step_with(ADAMW, first, *sample(5))
    trainer.advance(ADAMW, second, *sample(5))
    same_arrays(kept, [x for slot in first.slots for x in slot])


def test_whoever_has_seen_a_parameter_keeps_what_was_seen() -> None:
    given = start()
    trainer = opstage.scalar_trainer(regression, given, options=COMPILED)
    params = flatten(trainer.params)[0]
    state = trainer.init_optim(ADAMW)
    seen: list[tuple[Any, Any]] = [(x, np.array(x)) for x in flatten(given)[0]]
    for step in range(5):
        if step % 2:
            seen += [(x, np.array(x)) for param in params for x in [param.value]]
        seen += [(x, np.array(x)) for x in flatten(trainer.get_params())[0]]
        trainer.advance(ADAMW, state, *sample(5))
    for x, y in seen:
        np.testing.assert_array_equal(x, y)


def test_saved_moments_are_the_savers_own() -> None:
    _, trainer = pair()
    state = trainer.init_optim(ADAMW)
    trainer.advance(ADAMW, state, *sample(5))
    saved = trainer.export_optim(ADAMW, state)
    kept = {name: [np.array(x) for x in slot] for name, slot in saved.slots.items()}
    again = trainer.import_optim(ADAMW, saved)
    trainer.advance(ADAMW, again, *sample(5))
    for name, slot in saved.slots.items():
        same_arrays(slot, kept[name])


def tied(ops: Any, params: Any, state: Any, x: Any) -> Any:
    """Two parameters that stay equal; a state that is the old parameter, and one that is a view of the other."""
    errors = [ops.sub(ops.mul(params[name], x), x) for name in ("a", "b")]
    loss = ops.add(*[ops.sum(ops.mul(e, e)) for e in errors])
    return loss, opstage.Aux(state={"before": params["a"], "zero": ops.mul(state["zero"], state["before"])})


def test_arrays_that_are_the_same_are_not_written_over_while_another_needs_them() -> None:
    x = np.linspace(0.5, 2, 200)
    trainers = [
        opstage.scalar_trainer(
            tied,
            {"a": np.zeros(200), "b": np.zeros(200)},
            options=COMPILED.replace(backend=backend),
            state={"before": np.ones(200), "zero": np.ones(200)},
        )
        for backend in ("eager", "compiled")
    ]
    states = [trainer.init_optim(ADAMW) for trainer in trainers]
    for _ in range(5):
        for trainer, state in zip(trainers, states):
            trainer.advance(ADAMW, state, x)
        close(trainers[1].get_params(), trainers[0].get_params())
        close(trainers[1].state, trainers[0].state)


def labelled(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(ops.linear(params["w"], params["b"], ops.gather_rows(params["table"], x)), y)


@pytest.mark.parametrize(("rows", "labels"), [([0, 9], [0, 1]), ([0, 1], [0, 7])], ids=["row", "label"])
def test_an_index_out_of_range_leaves_everything_as_it_was(rows: list[int], labels: list[int]) -> None:
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(3, 100)), "b": np.zeros(3), "table": rng.normal(size=(4, 100))}
    trainer = opstage.scalar_trainer(labelled, params, options=COMPILED)
    state = trainer.init_optim(ADAMW)
    trainer.advance(ADAMW, state, np.array([0, 1]), np.array([0, 1]))
    before = [np.array(x) for x in (*flatten(trainer.get_params())[0], *flatten(state.slots)[0])]
    with pytest.raises(IndexError):
        trainer.advance(ADAMW, state, np.array(rows), np.array(labels))
    assert (state.t, trainer.steps_taken) == (1, 1)
    same_arrays((*flatten(trainer.get_params())[0], *flatten(state.slots)[0]), before)
    trainer.advance(ADAMW, state, np.array([0, 1]), np.array([0, 1]))
    assert (state.t, trainer.steps_taken) == (2, 2)


@pytest.mark.parametrize("own", [False, True], ids=["advance", "adamw_step"])
def test_an_interrupt_leaves_parameters_and_moments_both_before_or_both_after_a_step(own: bool) -> None:
    def made() -> Any:
        trainer = opstage.scalar_trainer(regression, start(), options=COMPILED)
        state = trainer.init_optim(ADAMW)

        def step() -> Any:
            if own:
                return trainer.adamw_step(0.01, 0.9, 0.999, 1e-8, 0.1, *sample(5))
            return trainer.advance(ADAMW, state, *sample(5))

        def everything() -> list[Any]:
            moments = trainer.export().moments["adamw"].slots if own else state.slots
            return [np.array(x) for x in (*flatten(trainer.get_params())[0], *flatten(moments)[0])]

        step()
        step()
        return trainer, step, everything

    trainer, step, everything = made()
    before = everything()
    with InterruptAt(0) as count:
        step()
    after = everything()
    ends = set()
    for n in sorted({1 + i * (count.calls - 1) // 60 for i in range(61)}):
        trainer, step, everything = made()
        try:
            with InterruptAt(n):
                step()
        except KeyboardInterrupt:
            pass
        stepped = trainer.steps_taken == 3
        same_arrays(everything(), after if stepped else before)
        ends.add(stepped)
        step()
    assert ends == {False, True}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
