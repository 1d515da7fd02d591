"""Normalise an ExportedProgram: functional, only ops with rules, and training-dependent ops preserved."""

from __future__ import annotations

import copy
import warnings
from functools import cache
from typing import Any

from ...ops.errors import UnsupportedError, UsageError
from ...ops.untrusted import brief
from .archive import library
from .call import RULES

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
