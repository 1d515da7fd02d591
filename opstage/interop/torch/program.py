"""`Program`: the content of an ExportedProgram in normal form, and its run."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from typing_extensions import override

from ...ops.errors import UnsupportedError, UsageError, a_type, brief
from ...ops.protocol import Ops
from ...ops.spec import Spec
from ...ops.types import DType
from ..model import LOST, ImportedRun
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
from .operators.elementwise import SIZES

# Normal form ----------------------------------------------------------------------------------------------------------

NAMESPACE = "opstage_import"
"""The namespace of an op that replaces dropout during decomposition, which would drop the training behaviour."""

_DROPOUT = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
_CHECKS = ("aten._assert_", "aten.sym_constrain_range", "aten._functional_assert", "aten._functional_sym_constrain")
"""Ops that only check; the shape rules of Opstage's ops make such checks themselves."""


@cache
def _library_of_one_op() -> Any:
    """Register the op opstage_import::dropout for the lifetime of the process."""
    torch = library()
    found = torch.library.Library(NAMESPACE, "FRAGMENT")
    found.define("dropout(Tensor x, float p, bool train, str kind) -> Tensor")
    found.impl("dropout", lambda x, p, train, kind: torch.empty_like(x), "CompositeExplicitAutograd")
    return found


def normal(program: Any) -> Any:
    """Return the program without in-place changes; composite ops are kept if there is a rule for them.

    The given program is unchanged. Raises UsageError if PyTorch cannot decompose the program.
    """
    torch = library()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = torch.export.default_decompositions()
            for op in list(table.keys()):
                if str(op) in RULES:
                    del table[op]
            result = _prepared(program).run_decompositions(table)
    except UnsupportedError:
        raise
    except Exception as error:  # torch's own errors, of any class
        raise UsageError(f"PyTorch cannot bring the program to core ATen ops: {brief(str(error))}") from error
    for graph in _graphs(result.graph_module):
        _without_checks(graph)
    return result


def _without_checks(graph: Any) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and str(node.target).startswith(_CHECKS) and not node.users:
            graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users:
            graph.erase_node(node)


def _prepared(program: Any) -> Any:
    """Return the program with each dropout replaced by a preserved op, and results under torch.no_grad detached."""
    torch = library()
    found = [node for graph in _graphs(program.graph_module) for node in graph.nodes]
    if not any(_dropout_kind(node) or _without_gradient(node) for node in found):
        return program
    _library_of_one_op()
    op = getattr(torch.ops, NAMESPACE).dropout.default
    module = copy.deepcopy(program.graph_module)
    for before, after in zip(_graphs(program.graph_module), _graphs(module)):
        for old, new in zip(before.nodes, after.nodes):
            new.name = old.name  # copies get other names where one is reserved in Python, like `input`
    for graph in _graphs(module):
        for node in list(graph.nodes):
            kind = _dropout_kind(node)
            if kind:
                if str(node.target).endswith("_.default"):
                    _require_not_read_again(node)
                node.target, node.args, node.kwargs = op, (*_arguments(node), kind), {}
            elif _without_gradient(node):
                _detach_results(torch, graph, node)
    return program._update(module, program.graph_signature)


def _graphs(module: Any) -> list[Any]:
    return [each.graph for each in module.modules() if isinstance(each, library().fx.GraphModule)]


def _without_gradient(node: Any) -> bool:
    is_wrap = node.op == "call_function" and str(node.target).endswith("wrap_with_set_grad_enabled")
    return is_wrap and node.args[0] is False


def _detach_results(torch: Any, graph: Any, node: Any) -> None:
    """Detach the float results of a part without gradients, which PyTorch inlines."""
    for result in list(node.users):
        value = result.meta.get("val")
        if getattr(value, "dtype", None) is not None and (value.is_floating_point() or value.is_complex()):
            with graph.inserting_after(result):
                detached = graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta = dict(result.meta)
            result.replace_all_uses_with(detached, lambda user, own=detached: user is not own)


def _arguments(node: Any) -> tuple[Any, ...]:
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    return tuple(given[name] for name in names)


def _dropout_kind(node: Any) -> str | None:
    target = str(node.target)
    if node.op != "call_function" or not target.startswith("aten.") or not target.endswith(".default"):
        return None
    name = target.removeprefix("aten.").removesuffix(".default").removesuffix("_")
    return name if name in _DROPOUT else None


def _require_not_read_again(node: Any) -> None:
    """Raise UnsupportedError for an in-place dropout whose tensor is read later by another name."""
    given = node.args[0]
    while True:
        if given.op == "placeholder" or len(given.users) > 1:
            raise UnsupportedError(
                f"the dropout {node.name!r} changes a tensor in place that is read by another name too; export the "
                "module with inplace=False"
            )
        if not str(given.target).rpartition(".")[0].endswith("_"):
            return
        given = given.args[0]


# The run, node by node ------------------------------------------------------------------------------------------------


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
            raise UnsupportedError(f"its input {spec.arg.name!r} is an object of a custom class; expected a tensor")
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
