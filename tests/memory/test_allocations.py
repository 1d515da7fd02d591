"""What the kernels' rules say of memory, against what NumPy does: strides, views, and bytes in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage import Options
from opstage.interpreters.derivatives import run_on_tape
from opstage.interpreters.eager_cpu.allocations import Call, Operand, allocation_table
from opstage.interpreters.eager_cpu.allocations.strides import canonical
from opstage.interpreters.registry import make_interpreter
from opstage.interpreters.transparent import Transparent
from opstage.ops.primitive import Primitive, Static
from opstage.ops.trees import flatten, unflatten
from opstage.ops.types import TensorType
from tests.conformance.harness import inputs, program_of
from tests.samples import SAMPLES
from tests.samples.sample import Sample


def strides_of(array: Any) -> tuple[int, ...] | None:
    """In elements; None where they are row-major."""
    return canonical(array.shape, [s // array.itemsize for s in array.strides])


def as_operand(array: Any) -> Operand:
    return Operand(TensorType(array.shape, array.dtype), array.shape, strides_of(array))


def buffer(array: Any) -> Any:
    """The array that owns the elements."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Compared(Transparent[Any]):
    """Holds every op's results to what the rules say of them."""

    def __init__(self, options: Options):
        super().__init__(make_interpreter(options))
        self.rules = allocation_table(options.fast_kernels)
        self.compared = 0

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        rule = self.rules.get(primitive)
        if rule is None:
            return (
                self.inner.bind(primitive, refs, static) if primitive.core else self.decompose(primitive, refs, static)
            )
        outs = self.inner.bind(primitive, refs, static)
        call = Call(tuple(map(as_operand, refs)), tuple(map(as_operand, outs)), static, {})
        said = rule(call)
        assert len(said.results) == len(outs), primitive
        for out, result in zip(outs, said.results):
            if out.size > 1:
                assert result.strides == strides_of(out), (primitive, static, refs, out.strides)
                owner = [i for i, ref in enumerate(refs) if buffer(ref) is buffer(out)]
                assert (result.of in owner) if owner else result.of is None, (primitive, static)
        self.compared += 1
        return outs


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_results_lie_where_the_rules_say(sample: Sample, fast: bool) -> None:
    """In the op itself, and in its vjp, whose operands are often views."""
    ops = Compared(Options(fast_kernels=fast))
    values, structure = flatten(inputs(sample, "float32"))
    turned = [np.asarray(v).T.copy().T for v in values]  # the same tensors, their axes in memory the other way round
    for arrays in (values, turned):

        def program(base: Any, *refs: Any) -> tuple[Any, ...]:
            arguments = unflatten(structure, refs)
            tape, nodes, outputs, _ = run_on_tape(base, program_of(sample), arguments, (True,) * len(arguments))
            flat = [node for group in nodes for node in group]
            floats = [o for o in outputs if o.dtype.kind == "f" and o.record is not None]
            tape.pull(floats, [np.ones(o.shape, o.dtype) for o in floats], flat)
            return tuple([o.value for o in outputs])

        ops.execute_each(program, tuple([ops.put(v) for v in arrays]))
    assert ops.compared
