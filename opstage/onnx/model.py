"""`OnnxModel`: a model file as a program over Ops, with its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, ClassVar, final

from typing_extensions import override

from ..imported.model import ImportedModel, require_importable
from ..imported.names import argument_name
from ..imported.network import Network
from ..imported.problems import Problem
from ..operators.values import KnownValue, TensorValue, ref_of
from ..ops.arrays import as_numpy
from ..ops.errors import UnsupportedError, UsageError, nearest
from ..ops.spec import Spec
from ..ops.types import BOOL, INT32, dtype_name
from .file import File, read
from .graph import Declared, OnnxGraph
from .run import GraphRun
from .weights import weights_of


@final
@dataclass(frozen=True, eq=False)
class OnnxModel(ImportedModel):
    """A model of a file, as a program: `model(ops, params, [state,] *inputs, train=False)` -> outputs by name.

    name            that of the file's graph
    params          its weights, arrays by the names that the file gives them
    state           its buffers, such as running statistics; None for a model without. The program takes them after the
                    parameters, and returns (outputs, state after this step)
    inputs          a Spec for each input, by the name of the program's argument
    outputs         the names of the outputs
    opset           the version of ONNX's operators that the file is written in
    metadata        what the file says beside its graph
    max_iterations  the bound of loops whose number of iterations is not known, as `load` was given it
    """

    one_size: ClassVar[bool] = False  # exporters use one name for height and width, and onnxruntime lets them differ
    opset: int
    metadata: Mapping[str, str]
    graph: OnnxGraph = field(repr=False)
    _constants: dict[str, Any] = field(repr=False)
    _inner: Mapping[tuple[OnnxGraph, str], str] = field(repr=False)
    max_iterations: int | None = None

    @property
    @override
    def network(self) -> Network:
        return Network(self.name, self, self.params, self.inputs, self.outputs, self.state)

    @override
    def __call__(self, ops: Any, params: Any, /, *rest: Any, train: bool = False) -> Any:
        state, inputs = self.taken(ops, rest)
        outputs, moved = self.run(
            ops, params, state, inputs, GraphRun(train=train, buffers=state, max_iterations=self.max_iterations)
        )
        return outputs if self.state is None else (outputs, {**state, **moved})

    def run(
        self, ops: Any, params: Any, state: Any, inputs: Any, run: GraphRun
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the outputs by name, and the buffers that this step updates, from a run created by the caller."""
        around: dict[str, Any] = dict(self._constants)
        own = self.graph.initializers
        around |= {name: TensorValue(ref, own[name].dtype) for name, ref in {**params, **state}.items() if name in own}
        for declared, ref in zip(self.graph.inputs, inputs):
            around[declared.name] = TensorValue(ref, declared.dtype or ref.dtype)
        run.around = around
        run.inner = {at: params[name] for at, name in self._inner.items()}
        run.nodes(ops, self.graph.nodes)
        found = {}
        for declared, name in zip(self.graph.outputs, self.outputs):
            value = around[declared.name]
            if isinstance(value, (KnownValue, TensorValue)):
                found[name] = ref_of(ops, value)
            elif run.problems is None:
                raise UnsupportedError(f"the output {name!r} is a sequence; only tensors are outputs of programs")
        return found, run.moved


def load(
    source: str | PathLike[str] | bytes | File,
    *,
    fixed: Mapping[str, Any] | None = None,
    where: Sequence[str] = (),
    constants: Sequence[str] = (),
    weights: Sequence[str] = (),
    outputs: Sequence[str] = (),
    max_iterations: int | None = None,
) -> OnnxModel:
    """The model of an ONNX file, of the bytes of one, or of a file that was read already, as a program over Ops.

    fixed       values of inputs, which are then none any more: those that say shapes, axes and numbers of entries
    where       constraints on the sizes that the file leaves open, `"sequence >= 65"`, which hold for a check
    constants   patterns of initializers that are to be no parameters, as `*.scale`
    weights     patterns of initializers that are to be parameters, where Opstage takes them for constants
    outputs     the only outputs that are kept, with the nodes that they need; all of the file's if none is named
    max_iterations   the most iterations of each Loop that ends by a value and has no trip count that is known: with it
                     such a loop has gradients, and one that goes on past it is a RangeError

    A float initializer, or the tensor of a Constant, is a parameter, one of a branch or a loop's body too, unless it
    says how an operator works, is a single number that the writer has not named after a module, or is a running
    statistic, which is a buffer. Sizes that the file names are dims of those names; those that it leaves open get names
    of their own. Shapes, and what is computed from them, stay symbolic.

    Raises UsageError for what is no model or a damaged one, and UnsupportedError for nodes that have no meaning here:
    one error that lists all of them. It needs the extra `onnx`. Source: the ONNX specification, github.com/onnx/onnx.

    Raises:
        UsageError: a file that is missing, damaged or no model.
    """
    file = source if isinstance(source, File) else read(source)
    graph = _with_fixed(file.graph, dict(fixed or {}))
    if outputs:
        graph = graph.leading_to(outputs)
    for declared in (*graph.inputs, *graph.outputs):
        if declared.problem:
            raise UnsupportedError(f"{file.name}: {declared.name!r}: {declared.problem}")
    numbers = weights_of(graph, tuple(constants), tuple(weights))
    arrays = {name: as_numpy(value) for name, value in (fixed or {}).items()}
    known = numbers.known | {name: KnownValue(array, array.dtype) for name, array in arrays.items()}
    model = OnnxModel(
        file.name,
        numbers.params,
        numbers.buffers or None,
        _inputs(graph, tuple(where)),
        tuple(each.name for each in graph.outputs),
        file.opset,
        file.metadata,
        graph,
        known,
        numbers.inner,
        max_iterations,
    )

    def run(ops: Any, problems: list[Problem], params: Any, *rest: Any) -> Any:
        state, inputs = model.taken(ops, rest)
        return model.run(
            ops,
            params,
            state,
            inputs,
            GraphRun(train=False, buffers=state, max_iterations=max_iterations, problems=problems),
        )[0]

    require_importable(model, run)
    return model


def _with_fixed(graph: OnnxGraph, fixed: Mapping[str, Any]) -> OnnxGraph:
    """Return the graph without the inputs that have fixed values."""
    names = [each.name for each in graph.inputs]
    for name in fixed:
        if name not in names:
            raise UsageError(f"fixed=: no input is called {name!r}{nearest(name, names)}; there are {', '.join(names)}")
    return replace(graph, inputs=tuple(each for each in graph.inputs if each.name not in fixed))


def _inputs(graph: OnnxGraph, where: tuple[str, ...]) -> dict[str, Spec]:
    """Return a Spec for each input, by argument name; the file's names of sizes become names of dims."""
    specs: dict[str, Spec] = {}
    names: dict[str | tuple[str, int], str] = {}
    for declared in graph.inputs:
        if declared.shape is None:
            raise UnsupportedError(f"the input {declared.name!r} has no shape; a program's inputs have one")
        argument = argument_name(declared.name, specs)
        sizes: list[int | str] = []
        for axis, size in enumerate(declared.shape):
            if isinstance(size, int):
                sizes.append(size)
                continue
            key = size if size is not None else (argument, axis)
            if key not in names:
                names[key] = argument_name(size if size is not None else f"{argument}_{axis}", names.values())
            sizes.append(names[key])
        specs[argument] = Spec(tuple(sizes), _dtype(declared), () if specs else where)
    return specs


def _dtype(declared: Declared) -> str | None:
    if declared.dtype is None or declared.dtype.kind == "f":
        return None
    return dtype_name(declared.dtype) if declared.dtype in (BOOL, INT32) else "int64"
