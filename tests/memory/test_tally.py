"""What kernels take when nothing is computed, against what they take when they compute: strides, views, and bytes."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest

from opstage import Options, optim
from opstage.compiler.codegen.cpu.kernels import fused
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.interpreters.eager_cpu.tally import Taken, taken
from opstage.interpreters.registry import make_interpreter
from opstage.models import model
from opstage.ops.activation import SILU
from opstage.ops.elementwise import SIGMOID
from opstage.ops.primitive import Primitive, Static
from opstage.ops.trees import flatten, unflatten
from opstage.ops.types import TensorType
from opstage.training.memory import model_memory
from opstage.transforms.derivatives import run_on_tape
from opstage.transforms.transparent import Transparent
from tests.conformance.harness import inputs, program_of
from tests.samples import SAMPLES
from tests.samples.parts import all_samples
from tests.samples.sample import Sample


def strides_of(array: Any) -> tuple[int, ...] | None:
    """In bytes; None where they are row-major."""
    return None if array.flags.c_contiguous else array.strides


def counted(options: Options, primitive: Primitive, refs: tuple[Any, ...], static: Static) -> Taken | None:
    """What the kernel of an op takes; None for a composite without one."""
    kernel = kernel_table(options.dtype, options.fast_kernels).get(primitive)
    if kernel is None:
        return None
    return taken(kernel, [TensorType(r.shape, r.dtype) for r in refs], [strides_of(r) for r in refs], static)


def buffer(array: Any) -> Any:
    """The array that owns the elements."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Compared(Transparent[Any]):
    """Holds every op's results to what was counted without them."""

    def __init__(self, options: Options):
        super().__init__(make_interpreter(options))
        self.options = options
        self.compared = 0

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        said = counted(self.options, primitive, refs, static)
        if said is None:
            return (
                self.inner.bind(primitive, refs, static) if primitive.core else self.decompose(primitive, refs, static)
            )
        outs = self.inner.bind(primitive, refs, static)
        assert len(said.results) == len(outs), primitive
        for out, result in zip(outs, said.results):
            assert result.type == TensorType(out.shape, out.dtype), (primitive, static)
            if out.size > 1:
                assert _telling(out.shape, result.strides) == _telling(out.shape, strides_of(out)), (primitive, static)
                owner = [i for i, ref in enumerate(refs) if buffer(ref) is buffer(out)]
                assert (result.of in owner) if owner else result.of is None, (primitive, static)
        self.compared += 1
        return outs


def _telling(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> Any:
    """Strides along axes of one element say nothing."""
    return None if strides is None else [s for n, s in zip(shape, strides) if n > 1]


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@pytest.mark.parametrize("sample", all_samples(SAMPLES))
def test_results_lie_where_they_are_counted(sample: Sample, fast: bool) -> None:
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


def test_nothing_is_computed_and_no_memory_is_there() -> None:
    """A step that would take seven terabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert model_memory(model("mlp"), optim.sgd(lr=0.1)).at(B=10**9).peak > 7e12
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_a_kernel_that_runs_meanwhile_computes() -> None:
    """The same function, while what it takes is counted and afterwards."""
    kernel = kernel_table("float32", False)[SIGMOID]
    x = np.log(np.array([[1, 3]], np.float32))
    found = []

    def inside(y: Any) -> Any:
        found.append(kernel(x))
        return y

    type_ = TensorType((4, 5), np.dtype(np.float32))
    assert taken(inside, [type_], [None], {}).workspace == 0
    assert taken(kernel, [type_], [None], {}).results[0].nbytes == 80
    assert [y.tolist() for y in (*found, kernel(x))] == 2 * [[[0.5, 0.75]]]


def test_a_function_of_which_nobody_has_said_what_it_takes() -> None:
    type_ = TensorType((4, 5), np.dtype(np.float32))
    with pytest.raises(NotImplementedError, match=r"np.partition takes.*tally/functions.py"):
        taken(lambda x: np.partition(x, 1), [type_], [None], {})


def test_an_operand_is_left_where_it_stands() -> None:
    """A formula's layouts are those of NumPy: views of views, and copies where there can be no view."""
    type_ = TensorType((2, 3, 4), np.dtype(np.float32))
    call = taken(lambda x: (x, x.T, x.T.reshape(-1), x[:, 1], x + x.T.reshape(x.shape)), [type_], [None], {})
    assert [result.of for result in call.results] == [0, 0, None, 0, None]
    assert [result.nbytes for result in call.results] == [0, 0, 96, 0, 96]
    assert [result.strides for result in call.results] == [None, (4, 16, 48), None, (48, 4), None]
    assert call.beside == (96,)


def by_its_loops(x: Any) -> Any:
    """A kernel that has its loops generated when it is called."""
    kernel: Any = fused(SILU, (TensorType(x.shape, x.dtype),), {})
    return kernel(x)[0] if x.size else np.zeros(0)


by_its_loops.__module__ = "opstage.interpreters.eager_cpu"  # as kernels are


def test_generated_loops_within_a_kernel_do_nothing() -> None:
    x = np.ones((4, 5), np.float32)
    call = taken(by_its_loops, [TensorType(x.shape, x.dtype)], [(4, 16)], {})
    assert (call.results[0].nbytes, call.beside) == (80, (80,))  # a row-major copy beside the result
    assert by_its_loops(x) == pytest.approx(x / (1 + np.exp(-x)))


def test_nobody_reads_the_elements() -> None:
    with pytest.raises(TypeError, match="arrays without elements"):
        taken(lambda x: np.asarray(x), [TensorType((4, 5), np.dtype(np.float32))], [None], {})
