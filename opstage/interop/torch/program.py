"""`Program`: the content of an ExportedProgram in normal form, and its run."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import override

from ...ops.errors import UnsupportedError, UsageError
from ...ops.protocol import Ops
from ...ops.spec import Spec
from ...ops.types import DType
from ...ops.untrusted import a_type, brief
from ..run import LOST, ImportedRun
from ..values import TensorValue, held
from .archive import array_of, constant_of, dtype_of, library, part_dtype, read
from .call import COMPLEX_RULES, RULES, AtenCall, ComplexValue, as_declared, is_complex
from .graph import (
    AtenGraph,
    AtenNode,
    NodeResult,
    Sizes,
    arguments_of,
    arrays_of,
    graph_of,
    leaf_names,
    op_of,
    spec_of,
    template_of,
)
from .normal_form import NAMESPACE, normal
from .operators.elementwise import SIZES

# The run, node by node -----------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class TorchRun(ImportedRun):
    """One run of a program.

    flags      by name, the nodes with a training mode, and whether they were exported in it
    places     names of the buffers by node of the graph
    """

    whole: ClassVar[str] = "PyTorch program"
    flags: Mapping[str, bool]
    places: Mapping[str, str] = field(default_factory=dict)

    def trains(self, node: AtenNode) -> bool:
        """Whether a node is in training: those exported in training mode, or all if none was."""
        return self.train and (self.flags.get(node.name, True) or not any(self.flags.values()))

    def place(self, node: AtenNode, i: int) -> str | None:
        """Return the name of the buffer that is argument i of a node, or None."""
        given = node.args[i]
        return self.places.get(given.name) if isinstance(given, NodeResult) else None

    def graph(self, ops: Ops[Any], graph: AtenGraph, around: MutableMapping[str, Any]) -> Any:
        """Return the outputs of a graph whose inputs are in `around`."""
        outside, self.around = self.around, around
        try:
            self.nodes(ops, graph.nodes)
            return self._given(graph.outputs)
        finally:
            self.around = outside

    def subgraph(self, ops: Ops[Any], graph: AtenGraph, inputs: Sequence[Any]) -> Any:
        """Return the outputs of a subgraph of the program."""
        return self.graph(ops, graph, dict(zip(graph.inputs, inputs)))

    @override
    def named(self, node: AtenNode, results: Any) -> Mapping[str, Any]:
        return {node.name: results}

    @override
    def results(self, ops: Ops[Any], node: AtenNode) -> Any:
        args = self._given(list(node.args))
        if node.op in SIZES:
            return SIZES[node.op](*args)
        rule = RULES.get(node.op)
        if not node.op.startswith("operator.") and any(map(is_complex, args)):
            if node.op not in COMPLEX_RULES:
                raise UnsupportedError("the op is not known of complex tensors")
            rule = COMPLEX_RULES[node.op]
        if rule is None:
            complex_alone = node.op in COMPLEX_RULES
            raise UnsupportedError(
                "the op is known of complex tensors alone" if complex_alone else "the op is not known"
            )
        call = AtenCall(ops, node, self)
        zero = lambda x: TensorValue(call.tensor(0.0, x.dtype, x.shape), x.dtype)  # noqa: E731
        return as_declared(rule(call, *args), node.complex_results, zero)

    def _given(self, argument: Any) -> Any:
        """Return the argument with values instead of placeholders."""
        if isinstance(argument, NodeResult):
            return self.around[argument.name]
        return [self._given(each) for each in argument] if isinstance(argument, list) else argument


_COUNT = "num_batches_tracked"
_STATISTICS = {
    "aten._native_batch_norm_legit_no_training.default": False,
    "aten._native_batch_norm_legit_functional.default": True,
    "aten.instance_norm.default": True,
}


@dataclass(frozen=True, eq=False)
class Program:
    """A program in normal form.

    params, state, constants   arrays by name; `places` maps each node of the graph to its array
    arguments, output          templates of its trees, whose leaves are counted from 0
    specs                      the Specs of the input tensors, by leaf
    mutations                  for the first outputs, the buffer that each updates
    flags                      the nodes with a training mode, and whether they were exported in it
    """

    name: str
    graph: AtenGraph
    params: dict[str, Any]
    state: dict[str, Any]
    constants: dict[str, Any]
    ties: Mapping[str, str]
    frozen: tuple[str, ...]
    places: Mapping[str, tuple[str, str, DType]]
    buffers: Mapping[str, str]
    arguments: Mapping[str, Any]
    specs: Mapping[int, Spec]
    where: tuple[str, ...]
    input_nodes: Mapping[str, tuple[int, Any]]
    output: Any
    constants_out: frozenset[int]
    mutations: tuple[str, ...]
    flags: Mapping[str, bool]

    def run(
        self, ops: Ops[Any], run: TorchRun, params: Mapping[str, Any], state: Mapping[str, Any], given: dict[int, Any]
    ) -> list[Any]:
        """Return the outputs as a list; afterwards `run` has the buffers."""
        around = {name: self._placed(ops, name, params, state, given) for name in self.graph.inputs}
        outputs: list[Any] = run.graph(ops, self.graph, around)
        for name, value in zip(self.mutations, outputs):
            counts = name.rpartition(".")[2] == _COUNT
            if value is not LOST and (run.train or not counts):
                run.keep(name, ops.detach(value.ref) if value.dtype.kind == "f" else value.ref)
        return outputs[len(self.mutations) :]

    def _placed(self, ops: Ops[Any], node: str, params: Any, state: Any, given: dict[int, Any]) -> Any:
        if node in self.input_nodes:
            at, declared = self.input_nodes[node]
            return TensorValue(given[at], declared) if at in self.specs else declared
        kind, name, dtype = self.places[node]
        if kind == "param":
            return TensorValue(params[name], dtype)
        if kind == "state":
            return TensorValue(state[name], dtype)
        target, array = held(dtype, ops), self.constants[name]
        halves = [array.real, array.imag] if array.dtype.kind == "c" else [array]
        found = [TensorValue(ops.const(half.astype(target), dtype=target), dtype) for half in halves]
        return ComplexValue(*found) if len(found) == 2 else found[0]


def programmed(source: Any, sizes: Mapping[str, str]) -> Program:
    """Return the Program of an ExportedProgram or of a file."""
    torch = library()
    given = _exported(torch, source)
    program = normal(given)
    signature = program.graph_signature
    kinds = torch.export.graph_signature.InputKind
    nodes = {node.name: node for node in program.graph.nodes}
    _require_pure(torch, signature)
    parameters = {s.target: s.arg.name for s in signature.input_specs if s.kind == kinds.PARAMETER}
    buffers = {s.arg.name: s.target for s in signature.input_specs if s.kind == kinds.BUFFER}
    params, ties = arrays_of({name: _tensor(program, name) for name in parameters})
    moving = _moving(program, signature, buffers)
    types = {name: part_dtype(_tensor(program, target).dtype) for name, target in
             [*((node, name) for name, node in parameters.items()), *buffers.items()]}  # fmt: skip
    places = {node: ("param", ties.get(name, name), types[node]) for name, node in parameters.items()}
    state, constants = dict[str, Any](), dict[str, Any]()
    for node, name in buffers.items():
        array = (array_of if name in moving else constant_of)(_tensor(program, name))
        places[node] = ("state" if name in moving else "constant", name, types[node])
        (state if name in moving else constants)[name] = array
    for spec in signature.input_specs:
        if spec.kind == kinds.CONSTANT_TENSOR:
            tensor = program.constants[spec.target]
            places[spec.arg.name] = ("constant", spec.target, part_dtype(tensor.dtype))
            constants[spec.target] = constant_of(tensor)
        elif spec.kind in (kinds.CUSTOM_OBJ, kinds.TOKEN):
            raise UnsupportedError(f"its input {spec.arg.name!r} is an object of a class of its own, not a tensor")
    arguments, specs, where, input_nodes = _inputs(program, signature, kinds, nodes, sizes)
    output, constants_out, mutations = _outputs(torch, program, signature)
    return Program(
        _class_name(given), graph_of(program.graph_module), params, state, constants, ties, _frozen(given, params),
        places, {n: b for n, b in buffers.items() if b in moving}, arguments, specs, where, input_nodes, output,
        constants_out, mutations, _flags(program),
    )  # fmt: skip


def _exported(torch: Any, source: Any) -> Any:
    if isinstance(source, torch.export.ExportedProgram):
        return source
    if isinstance(source, (str, os.PathLike)):
        return read(source)
    hints = {
        "Module": "export it with torch.export.export(module, args)",
        "ScriptModule": "TorchScript is not read; export the module with torch.export.export(module, args)",
        "GraphModule": "pass the ExportedProgram that torch.export.export gives",
    }
    names = [each.__name__ for each in type(source).__mro__]
    hint = next((hints[name] for name in ("ScriptModule", "GraphModule", "Module") if name in names), "")
    what = a_type(source) if hint else brief(source)
    raise UsageError(
        f"opstage.torch.load takes a torch.export.ExportedProgram or the path of a .pt2 file, not {what}"
        + (f"; {hint}" if hint else "")
    )


def _require_pure(torch: Any, signature: Any) -> None:
    kinds = torch.export.graph_signature.OutputKind
    for spec in signature.output_specs:
        name = spec.kind.name
        if name == "USER_INPUT_MUTATION":
            raise UnsupportedError(f"the module changes its input {spec.target!r} in place; a program changes nothing")
        if name == "PARAMETER_MUTATION":
            raise UnsupportedError(f"the module changes its parameter {spec.target!r} itself; a program cannot")
        if spec.kind not in (kinds.USER_OUTPUT, kinds.BUFFER_MUTATION):
            raise UnsupportedError(f"an output of the program is a {name.lower()}; only outputs and buffers are known")


def _tensor(program: Any, name: str) -> Any:
    return program.state_dict[name] if name in program.state_dict else program.constants[name]


def _moving(program: Any, signature: Any, buffers: Mapping[str, str]) -> set[str]:
    """Return the buffers that a run may update: those that the program changes, and statistics with their counts."""
    moving = set(signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        if node.op == "call_function" and op_of(node) in _STATISTICS:
            moving.update(buffers[each.name] for each in node.args[3:5] if getattr(each, "name", "") in buffers)
    prefixes = {name.rpartition(".")[0] for name in moving}
    moving.update(name for name in buffers.values() if name.rpartition(".")[::2] in {(p, _COUNT) for p in prefixes})
    return moving


def _inputs(
    program: Any, signature: Any, kinds: Any, nodes: Mapping[str, Any], renamed: Mapping[str, str]
) -> tuple[dict[str, Any], dict[int, Spec], tuple[str, ...], dict[str, tuple[int, Any]]]:
    """Return templates of the arguments that hold tensors, Specs by leaf, constraints, and for each node its leaf and
    dtype, or its number."""
    sizes = Sizes(program, renamed)
    users = [spec.arg for spec in signature.input_specs if spec.kind == kinds.USER_INPUT]
    call = program.module_call_graph[0].signature
    names = getattr(call, "forward_arg_names", None) or [getattr(arg, "name", f"x{i}") for i, arg in enumerate(users)]
    templates = arguments_of(program.call_spec.in_spec, names)
    specs: dict[int, Spec] = {}
    input_nodes: dict[str, tuple[int, Any]] = {}
    for at, arg in enumerate(users):
        node = nodes.get(arg.name)
        if node is None:
            continue
        fake = node.meta.get("val")
        if fake is None or isinstance(fake, (int, float, bool, str)):
            input_nodes[arg.name] = (at, fake)
        else:
            specs[at] = spec_of(fake, arg.name, sizes)
            input_nodes[arg.name] = (at, dtype_of(fake.dtype))
    sizes.require_all_known()
    with_tensors = {name: each for name, each in templates.items() if _has_any(each, specs)}
    return with_tensors, specs, tuple(sizes.where()), input_nodes


def _has_any(template: Any, specs: Mapping[int, Spec]) -> bool:

    return any(at in specs for at, _ in leaf_names(template, ""))


def _outputs(torch: Any, program: Any, signature: Any) -> tuple[Any, frozenset[int], tuple[str, ...]]:
    """Return the template of the outputs, the leaves that are not tensors, and the buffers of the outputs before
    those."""
    kinds = torch.export.graph_signature.OutputKind
    mutations = tuple(s.target for s in signature.output_specs if s.kind == kinds.BUFFER_MUTATION)
    if any(s.kind == kinds.BUFFER_MUTATION for s in signature.output_specs[len(mutations) :]):
        raise UnsupportedError("the program gives buffers behind its outputs")
    users = [spec.arg for spec in signature.output_specs if spec.kind == kinds.USER_OUTPUT]
    for each in program.graph.nodes:
        value = each.meta.get("val")
        if each.name in {getattr(arg, "name", None) for arg in users} and getattr(value, "is_complex", bool)():
            raise UnsupportedError("an output is complex; programs give real tensors: return torch.view_as_real(it)")
    without = frozenset(i for i, arg in enumerate(users) if getattr(arg, "value", 0) is None)
    spec = program.call_spec.out_spec
    return template_of(spec, iter(range(spec.num_leaves))), without, mutations


def _frozen(program: Any, params: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in params if not program.state_dict[name].requires_grad)


def _flags(program: Any) -> dict[str, bool]:
    """Return the nodes with a training mode, and whether each was exported in it."""
    flags = {}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        target = op_of(node)
        if target == "aten._native_batch_norm_legit_no_training.default":
            flags[node.name] = False
        elif target in ("aten._native_batch_norm_legit_functional.default", "aten.instance_norm.default"):
            flags[node.name] = bool(node.args[5])
        elif target in (f"{NAMESPACE}.dropout.default", "aten.native_dropout.default"):
            flags[node.name] = bool(node.args[2])
        elif target in ("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"):
            flags[node.name] = bool(node.args[6])
    return flags


def _class_name(program: Any) -> str:
    """Return the name of the module's class, from the metadata of nodes."""
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        for path, kind in stack.values():
            if path == "":
                return str(getattr(kind, "__name__", kind)).rpartition(".")[2]
    return ""
