"""`OnnxModel`: a model file as a program over Ops, with its parameters, and with a loss as a `Model`."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any, ClassVar, final

import numpy as np
from typing_extensions import override

from ...models.model import Model
from ...ops.array_conversion import as_numpy
from ...ops.errors import UnsupportedError, UsageError, nearest
from ...ops.protocol import Ops
from ...ops.spec import Spec
from ..exact import KERNELS, LARGEST, ExactOps, NotExact, known_again
from ..model import LOST, ImportedModel, ImportedRun, Problem, argument_name, require_importable
from ..network import Network, supervised
from ..operators import OPERATORS
from ..values import KnownValue, TensorValue, Value, ref_of, spec_dtype
from .file import File, read
from .graph import Foreign, GraphNode, NodeCall, OnnxGraph, all_nodes
from .operators import HOST_INPUTS, RULES

# The run, node by node ------------------------------------------------------------------------------------------------

_MOST_INSIDE = 4_000
"""The limit of nodes run in nested graphs. Networks have a few hundred; nested loops are rejected within a second."""


@dataclass(kw_only=True)
class GraphRun(ImportedRun):
    """One run of a model.

    max_iterations  the bound of loops without one of their own
    """

    whole: ClassVar[str] = "ONNX model"
    max_iterations: int | None = None
    inner: Mapping[tuple[OnnxGraph, str], Any] = field(default_factory=dict)
    """The parameters in subgraphs of nodes, by graph and name there."""
    inside: int = 0
    """The number of nodes run in subgraphs so far, counting unrolled iterations."""

    def graph(self, ops: Ops[Any], graph: OnnxGraph, inputs: Sequence[Value]) -> list[Value]:
        """Return the outputs of a subgraph, which also reads enclosing values."""
        own: dict[str, Any] = {each.name: value for each, value in zip(graph.inputs, inputs)}
        for name, array in graph.initializers.items():
            if isinstance(array, Foreign):
                own[name] = array
            elif (graph, name) in self.inner:
                own[name] = TensorValue(self.inner[graph, name], array.dtype)
            else:
                own[name] = KnownValue(array, array.dtype)
        self.inside += len(graph.nodes)
        if self.inside > _MOST_INSIDE:  # nested loops: a small file could be an enormous program
            raise UnsupportedError(f"with loops written out its graphs have more than {_MOST_INSIDE:,} nodes")
        outside, self.around = self.around, ChainMap(own, self.around)
        try:
            self.nodes(ops, graph.nodes)
            return [self.around[each.name] for each in graph.outputs]
        finally:
            self.around = outside

    def body(self, ops: Ops[Any], graph: OnnxGraph, inputs: Sequence[Value]) -> list[Value]:
        """Return the outputs of `graph`, traced as the body of a loop or a branch."""
        before = dict(self.moved)
        outputs = self.graph(ops, graph, inputs)
        if self.moved.keys() != before.keys() or any(self.moved[name] is not before[name] for name in before):
            self.moved = before
            raise UnsupportedError(
                "a running statistic moves in its body, and cannot leave it; run it with train=False"
            )
        return outputs

    def outer(self, name: str) -> Any:
        return self.around.get(name)

    @override
    def named(self, node: GraphNode, results: Any) -> Mapping[str, Any]:
        if results is LOST:
            results = [LOST] * len(node.outputs)
        return {name: value for name, value in zip(node.outputs, results) if name}

    @override
    def results(self, ops: Ops[Any], node: GraphNode) -> Any:
        inputs = [self.around[name] if name else None for name in node.inputs]
        for value in inputs:
            if isinstance(value, Foreign):
                raise UnsupportedError(value.why)
        if node.op not in RULES:
            raise UnsupportedError("the operator is not known")
        found = self._exact(node, inputs) or _meant(NodeCall(ops, node, inputs, self))
        wanted = len([name for name in node.outputs if name])
        if len([each for each in found if each is not None]) < wanted:
            raise UnsupportedError(f"{wanted} of its outputs are used, of which only the first are made here")
        return found

    def _exact(self, node: GraphNode, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return the results of a node with known inputs on exact numbers, or None if it has none."""
        known = [value for value in inputs if value is not None]
        if node.graphs or not all(isinstance(value, KnownValue) for value in known):
            return None
        if sum(value.array.size for value in known) > LARGEST:
            return None
        try:
            return tuple(map(known_again, _meant(NodeCall(ExactOps(), node, inputs, self))))
        except NotExact:
            return None


def _meant(call: NodeCall[Any]) -> tuple[Any, ...]:
    """Return a node's results by its operator's rule."""
    found = RULES[call.node.op](call)
    call.require_all_heard()
    return found if isinstance(found, tuple) and not isinstance(found, (KnownValue, TensorValue)) else (found,)


# Parameters, buffers and constants ------------------------------------------------------------------------------------

_MOVES = "Cast Concat Dropout Expand Gather Identity Range Reshape Slice Squeeze Transpose Unsqueeze Where"
_EXACT = {*_MOVES.split(), *[each.onnx for each in OPERATORS if each.op in KERNELS]}
"""Operators through which a value stays known before a run."""


@dataclass(frozen=True)
class Weights:
    """The tensors of a file.

    params   arrays by name, from initializers of all nested graphs
    buffers  arrays by name, such as running statistics
    known    the other values of the main graph
    inner    the names of parameters from nested graphs, by graph and name there
    """

    params: dict[str, Any]
    buffers: dict[str, Any]
    known: dict[str, Any]
    inner: Mapping[tuple[OnnxGraph, str], str]


def weights_of(main: OnnxGraph, constants: tuple[str, ...], weights: tuple[str, ...]) -> Weights:
    """Classify the tensors of a graph. Names that match `constants` or `weights`, patterns, are forced to be such.

    Raises UsageError for a pattern that matches no name.
    """
    graphs = list(main.within())
    names = [name for graph in graphs for name in graph.initializers]
    for pattern in (*constants, *weights):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"no initializer is called {pattern!r}{nearest(pattern, names)}")
    settings = _settings(main)
    statistics = {name for node in all_nodes(main) if node.op == "BatchNormalization" for name in node.inputs[3:5]}
    found = Weights({}, {}, {}, inner := {})
    for graph in graphs:
        for name, array in graph.initializers.items():
            if isinstance(array, Foreign):
                kind = "known"
            elif graph is main and array.dtype.kind == "f" and name in statistics:
                kind = "buffer"
            elif any(fnmatchcase(name, pattern) for pattern in weights):
                kind = "param"
            elif array.dtype.kind != "f" or name in settings | statistics or (array.size == 1 and not _is_named(name)):
                kind = "known"
            else:
                kind = "known" if any(fnmatchcase(name, pattern) for pattern in constants) else "param"
            if kind == "buffer":
                found.buffers[name] = _wide(array)
            elif kind == "param":
                own = name if graph is main else _free(name, {*main.initializers, *found.params})
                found.params[own] = _wide(array)
                if graph is not main:
                    inner[graph, name] = own
            elif graph is main:
                found.known[name] = array if isinstance(array, Foreign) else KnownValue(array, array.dtype)
    return found


def _settings(main: OnnxGraph) -> set[str]:
    """Return the values from which shapes, axes and the like are computed, which must be known before a run."""
    givers: dict[str, list[Any]] = {}
    waiting: list[str] = []
    for node in all_nodes(main):
        for name in node.outputs:
            givers.setdefault(name, []).append(node)
        waiting += [node.inputs[i] for i in HOST_INPUTS.get(node.op, ()) if i < len(node.inputs)]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if not name or name in found:
            continue
        found.add(name)
        for node in givers.get(name, ()):
            if node.op in _EXACT:
                waiting += node.inputs
            waiting += [output.name for graph in node.graphs for output in graph.outputs]
    return found


def _free(name: str, taken: set[str]) -> str:
    unique, i = name, 1
    while unique in taken:
        i += 1
        unique = f"{name}_{i}"
    return unique


def _wide(array: Any) -> Any:
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _is_named(name: str) -> bool:
    """Whether a name, like `head.bias`, was chosen by a person and not generated."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", name) is not None


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

    kind: ClassVar[str] = "an ONNX model"
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
            raise UnsupportedError(f"the input {declared.name!r} lacks a shape, which the inputs of a program need")
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
        specs[argument] = Spec(tuple(sizes), declared.dtype and spec_dtype(declared.dtype), () if specs else where)
    return specs


# The model with a loss ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Settings for loading and training an ONNX model.

    loss     cross_entropy, binary_cross_entropy (both of logits) or mse; left out, the model predicts only
    output   the output that is compared with the labels, by default the only one
    fixed    inputs with a value, `sr=16000` or `shape=2 3`, and `where`: constraints on open sizes, see `load`
    """

    loss: str = ""
    output: str = ""
    fixed: tuple[str, ...] = ()
    where: tuple[str, ...] = ()


def trainable(model: OnnxModel, config: Config) -> Model:
    """Return the Model of a file: see `opstage.interop.network.supervised`. Raises UsageError for an unknown loss."""
    named = {f"input.{name}": declared.name for name, declared in zip(model.inputs, model.graph.inputs)}
    made = supervised(model.network, config, loss=config.loss, output=config.output)
    return replace(made, metadata={**model.metadata, **named})


def configured(file: File, config: Config) -> Model:
    """Return the Model of a file, loaded as `config` says."""
    return trainable(load(file, fixed=fixed_values(config.fixed), where=config.where), config)


def fixed_values(words: Sequence[str]) -> dict[str, Any]:
    """Parse values of inputs, `sr=16000` or `shape=2 3`. Raises UsageError."""
    fixed = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            numbers = [float(each) if "." in each else int(each) for each in value.split()]
        except ValueError:
            numbers = []
        if not equals or not numbers:
            raise UsageError(f"model.fixed: {word!r} is not a name and its value, as in sr=16000 or shape=2 3")
        fixed[name.strip()] = np.array(numbers if len(numbers) > 1 else numbers[0])
    return fixed
