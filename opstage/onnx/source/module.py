"""The text of the module: its imports, inputs and weights, functions, and `make`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy.typing as npt

from ...api import check
from ...compilation import record
from ...imported.network import Network, of_several
from ...interpreters.graph.graph import Graph
from ...ops.errors import OpstageError, UnsupportedError
from ...ops.spec import Spec
from .constants import LargeConstants
from .expressions import quoted
from .layout import WIDTH, Bracketed, Expression, Prefixed, call, lines, tuple_of
from .names import SourceNames, identifier
from .steps import WIDE
from .writer import PythonWriter

_MOST_CHECKS = 16
"""Checks of a program with ever more constraints on its sizes."""


@final
@dataclass(frozen=True)
class ModuleText:
    """A module, and the tensors that it reads from the file in the line `reading`.

    names   the new names of parameters that are renamed
    """

    text: str
    reading: str
    names: dict[str, str]
    tensors: dict[str, npt.NDArray[Any]]


def module_text(network: Network, *, origin: str, weights: str, loss: str, output: str) -> ModuleText:
    """Return the source of a network, which reads its tensors from the file `weights` next to it."""
    names = SourceNames()
    inputs = {name: names.take(identifier(name)) for name in network.inputs}
    dims = {name: names.take(identifier(name, "size")) for name in _dims(network)}
    writer = PythonWriter(recorded(network), recorded(network, train=True), dims, inputs)
    renamed, constants, expressions = writer.renamed, writer.constants, writer.expressions
    state = {renamed.get(name, name): array for name, array in (network.state or {}).items()}
    program = writer.program(("params", *(["state"] if network.state is not None else [])))
    texts = [*writer.functions, program]
    reading = f"TENSORS = tensors_beside(__file__, {quoted(weights)})"
    params = {renamed.get(name, name): array for name, array in network.params.items()}
    tensors = {**params, **state, **constants.arrays}
    helpers = ["Network", *(["below"] if any("below(" in line for each in texts for line in each) else [])]
    text = [
        *_docstring(network, origin),
        "",
        *(["import math"] if "math" in expressions.used else []),
        "from dataclasses import dataclass",
        "",
        "from opstage import Model, Spec",
        f"from opstage.imported.network import {', '.join(helpers)}, supervised, tensors_beside",
        *_dims_import(sorted(expressions.used)),
        "",
        *lines("INPUTS = ", _specs(network, inputs, dims), 0),
        *lines("OUTPUTS = ", tuple_of([quoted(name) for name in network.outputs]), 0),
        "",
        reading,
        *_trees(list(state), constants),
    ]
    for each in texts:
        text += ["", "", *each]
    text += ["", "", *_make(network, loss, output)]
    return ModuleText("\n".join(text) + "\n", reading, renamed, tensors)


def recorded(network: Network, *, train: bool = False) -> Graph:
    """Record a network; its inputs and outputs are called after the trees that they are of."""
    state = network.state or {}

    def program(ops: Any, params: Any, buffers: Any, *inputs: Any) -> Any:
        trees = (params,) if network.state is None else (params, buffers)
        found = network.program(ops, *trees, *inputs, train=train)
        outputs, moved = (found, {}) if network.state is None else found
        return [outputs[name] for name in network.outputs], [moved[name] for name in state]

    specs = of_several(network) if train else network.batch
    try:
        graph = record(program, network.params, state, *specs, options=WIDE)
    except OpstageError as error:
        missing = _constraints(program, (network.params, state), specs)
        more = f"; it needs {' '.join([f'--where {each!r}' for each in missing])}" if len(missing) > 1 else ""
        raise UnsupportedError(
            f"{network.name} does not hold for every size, so it has no source: {error}{more}"
        ) from error
    names = [f"{kind}.{name}" for kind, tree in (("params", network.params), ("state", state)) for name in sorted(tree)]
    names += network.inputs
    names += ["step"] * (len(graph.body.inputs) - len(names))
    outputs = [f"outputs.{name}" for name in network.outputs] + [f"state.{name}" for name in state]
    return Graph(graph.body, names, outputs, graph.dtype, graph.seed)


def _constraints(program: Callable[..., Any], trees: Sequence[Any], batch: Sequence[Spec]) -> list[str]:
    """Return the constraints on sizes that a program lacks. An op that fails hides what follows from its result, so the
    program is checked again with those that are found."""
    found: list[str] = []
    first, *rest = batch
    for _ in range(_MOST_CHECKS):
        report = check(program, *trees, first.changed(where=(*first.where, *found)), *rest, options=WIDE)
        more = [each for each in report.suggestions if each not in found]
        if not more:
            break
        found += more
    return found


def _dims(network: Network) -> list[str]:
    """Return the names of sizes, in the order of the inputs."""
    return list(dict.fromkeys(d for spec in network.inputs.values() for d in spec.entries if isinstance(d, str)))


def _docstring(network: Network, origin: str) -> list[str]:
    said = origin.replace("\\", "/").replace('"', "'")
    return [f'"""{identifier(network.name, "model")}, imported from {said}."""']


def _dims_import(used: Sequence[str]) -> list[str]:
    names = [name for name in used if name in ("maximum", "minimum", "ratio", "rsqrt")]
    return [f"from opstage.ops.dims import {', '.join(names)}"] if names else []


def _specs(network: Network, inputs: Mapping[str, str], dims: Mapping[str, str]) -> Expression:
    entries = [Prefixed(f"{quoted(inputs[name])}: ", _spec(spec, dims)) for name, spec in network.inputs.items()]
    return Bracketed("{", tuple(entries), "}")


def _spec(spec: Spec, dims: Mapping[str, str]) -> Expression:
    sizes = [quoted(dims[d]) if isinstance(d, str) else repr(d) for d in spec.entries]
    keywords: list[tuple[str, Expression]] = []
    if spec.dtype is not None:
        keywords.append(("dtype", quoted(str(spec.dtype))))
    if spec.where:
        keywords.append(("where", Bracketed("[", tuple(quoted(_renamed(w, dims)) for w in spec.where), "]")))
    if spec.range is not None:
        keywords.append(("range", tuple_of([repr(end) for end in spec.range])))
    return call("Spec", [tuple_of(sizes)], keywords)


def _renamed(relation: str, dims: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: dims.get(found[0], found[0]), relation)


def _trees(state: Sequence[str], constants: LargeConstants) -> list[str]:
    """Return PARAMS, and if present STATE and the constants, read from the tensors of the file."""
    text: list[str] = []
    conditions = []
    if state:
        text += lines("STATE_NAMES = ", tuple_of([quoted(name) for name in state]), 0)
        text.append("STATE = {name: TENSORS[name] for name in STATE_NAMES}")
        conditions.append("name not in STATE")
    for name in constants.arrays:
        text.append(f"{name.upper()} = TENSORS[{quoted(name)}]")
    if constants.arrays:
        conditions.append(f"not name.startswith({quoted(constants.root)})")
    if not conditions:
        return ["PARAMS = TENSORS"]
    chosen = ["name: x", "for name, x in TENSORS.items()", f"if {' and '.join(conditions)}"]
    whole = f"PARAMS = {{{' '.join(chosen)}}}"
    broken = [f"    {' '.join(chosen)}"] if len(" ".join(chosen)) + 4 <= WIDTH else [f"    {each}" for each in chosen]
    return [*text, *([whole] if len(whole) <= WIDTH else ["PARAMS = {", *broken, "}"])]


def _make(network: Network, loss: str, output: str) -> list[str]:
    state = ["STATE"] if network.state is not None else []
    return [
        "@dataclass(frozen=True)",
        "class Config:",
        '    """Its loss, cross_entropy, binary_cross_entropy or mse, and the output it is of."""',
        "",
        f"    loss: str = {quoted(loss)}",
        f"    output: str = {quoted(output)}",
        "",
        "",
        "def make(config: Config) -> Model:",
        *lines(
            "network = ",
            call("Network", [quoted(network.name), "program", "PARAMS", "INPUTS", "OUTPUTS", *state]),
            4,
        ),
        "    return supervised(network, config, loss=config.loss, output=config.output)",
    ]
