"""`write_source`: write an imported model as a Python module that is proved to compute it, and a weights file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy.typing as npt

from ...api import check
from ...compilation import record
from ...files import write_file
from ...interpreters.graph.graph import Graph
from ...interpreters.graph.notation import digest
from ...ops.body import Body
from ...ops.errors import OpstageError, UnsupportedError, UsageError
from ...ops.spec import Spec
from ...safetensors_files import encode
from ..model import ImportedModel
from ..network import Network, of_several, supervised
from .expressions import (
    WIDTH,
    Bracketed,
    Expression,
    LargeConstants,
    Prefixed,
    SourceNames,
    call,
    identifier,
    lines,
    quoted,
    tuple_of,
)
from .steps import WIDE, CallStep, text_of_static
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
        f"from opstage.interop.network import {', '.join(helpers)}, supervised, tensors_beside",
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
            f"{network.name} does not hold for every size, so its source cannot be written: {error}{more}"
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
            "network = ", call("Network", [quoted(network.name), "program", "PARAMS", "INPUTS", "OUTPUTS", *state]), 4
        ),
        "    return supervised(network, config, loss=config.loss, output=config.output)",
    ]


# The proof that both graphs have the same terms -----------------------------------------------------------------------


def require_same(made: ModuleText, model: Network) -> None:
    """Raise UnsupportedError unless the program of the source equals the model's, in evaluation and in training."""
    program = _program(made, model.state is not None)
    trees: tuple[Any, ...] = (model.params,) if model.state is None else (model.params, model.state)
    for train in (False, True):
        specs = of_several(model) if train else model.batch
        expected = record(model.program, *trees, *specs, options=WIDE, train=train)
        try:
            found = record(program, *trees, *specs, options=WIDE, train=train)
        except OpstageError as error:
            raise UnsupportedError(f"{model.name} cannot be written as source: {error}") from error
        numbers: dict[Any, int] = {}
        if _outputs(expected, numbers) != _outputs(found, numbers):
            raise UnsupportedError(f"{model.name} cannot be written as source: its text would compute something else")


def _program(made: ModuleText, stateful: bool) -> Any:
    """Return the program of a module with given tensors, on parameters under the names of the model."""
    namespace: dict[str, Any] = {"__name__": __name__, "TENSORS": made.tensors}
    exec(compile(made.text.replace(made.reading, ""), "<imported>", "exec"), namespace)

    back = {new: name for name, new in made.names.items()}

    def program(ops: Any, *given: Any, train: bool = False) -> Any:
        trees, inputs = given[: 1 + stateful], given[1 + stateful :]
        named = [{made.names.get(name, name): ref for name, ref in tree.items()} for tree in trees]
        result = namespace["program"](ops, *named, *inputs, train=train)
        return (result[0], {back.get(name, name): ref for name, ref in result[1].items()}) if stateful else result

    return program


def _outputs(graph: Graph, numbers: dict[Any, int]) -> list[tuple[str, int]]:
    """Return a number for each output; equal terms have equal numbers, independent of order and regions of their
    ops."""
    inputs = [numbers.setdefault(("input", i), len(numbers)) for i in range(len(graph.body.inputs))]
    return list(zip(graph.output_names, _terms(graph.body, inputs, numbers, 0)))


def _terms(body: Body, inputs: Sequence[int], numbers: dict[Any, int], depth: int) -> list[int]:
    """Return the numbers of a body's outputs, given those of its inputs."""
    terms: dict[int, int] = {}

    def learn(slot: int, key: Any) -> None:
        terms[slot] = numbers.setdefault(key, len(numbers))

    terms.update(zip(body.inputs, inputs))
    for constant in body.constants:
        learn(constant.slot, ("constant", digest(constant.value)))
    for e in body.equations:
        step = CallStep(e.primitive, e.static, e.inputs, e.outputs, ())
        read = tuple(terms[slot] for slot in e.inputs)
        static = []
        for name, each in sorted(e.static.items()):
            if name != "site":
                if e.primitive.name == "full" and name == "value":
                    each = float(each) if type(each) in (int, bool) else each  # 0 and 0.0 are equal
                static.append((name, text_of_static(each) if not _bodies(each) else None))
        key: tuple[Any, ...] = (e.primitive.name, tuple(static), read)
        if any(_bodies(each) for each in e.static.values()):
            key = (e.primitive.name, tuple(static), *_closed(step, read, numbers, depth))
        for i, slot in enumerate(e.outputs):
            learn(slot, (*key, i))
    return [terms[slot] for slot in body.outputs]


def _closed(step: CallStep, read: tuple[int, ...], numbers: dict[Any, int], depth: int) -> tuple[Any, ...]:
    """Return the operands of a loop or choice that it does not capture, and its bodies, with captures numbered as
    outside, in any order."""
    static, name = step.static, step.primitive.name
    if name == "switch":
        own, captured = 0, read[1:]
    else:
        own = static["carries"] + static["entries"] if name == "scan" else len(static["body"].outputs)
        captured = read[own:]
    inside = [numbers.setdefault(("own", depth, i, read[i]), len(numbers)) for i in range(own)]
    bodies = [each for value in static.values() for each in _bodies(value)]
    return read[: own or 1], tuple(tuple(_terms(each, [*inside, *captured], numbers, depth + 1)) for each in bodies)


def _bodies(value: Any) -> list[Body]:
    if isinstance(value, Body):
        return [value]
    return [each for entry in value for each in _bodies(entry)] if isinstance(value, tuple) else []


# The files ------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class WrittenModel:
    """The files of a model, its source and weights, with the numbers of parameters and lines."""

    source: Path
    weights: Path
    parameters: int
    lines: int


def write_source(
    model: ImportedModel,
    out: str | PathLike[str],
    *,
    origin: str = "",
    loss: str = "",
    output: str = "",
    force: bool = False,
) -> WrittenModel:
    """Write a model as Opstage source to `out`, a `.py` file, and its weights to a safetensors file next to it.

    origin         the file of the model, or what else it is imported from
    loss, output   the defaults for training: see `opstage.interop.network.supervised`
    force          overwrite existing files

    The source is a model file: `opstage check`, `graph`, `train` and `predict` take it. It is proved to compute what
    the model computes, op by op, before anything is written. Raises UsageError for an invalid module name and for
    existing files, UnsupportedError for a program that cannot be written as text.
    """
    source = Path(out)
    if source.suffix != ".py" or not source.stem.isidentifier() or iskeyword(source.stem):
        raise UsageError(f"{source}: expected the name of a Python module, as in my_model.py")
    weights = source.with_suffix(".safetensors")
    for path in (source, weights):
        if not force and os.path.lexists(path):
            raise UsageError(f"{path} is there already; choose another name, or write over it with --force")
    supervised(model.network, None, loss=loss, output=output)  # raises if either is wrong
    made = module_text(model.network, origin=origin or model.kind, weights=weights.name, loss=loss, output=output)
    require_same(made, model.network)
    _write_both(weights, encode(made.tensors, {"format": "pt"}), source, made.text.encode())
    count = sum(array.size for array in model.params.values())
    return WrittenModel(source, weights, int(count), made.text.count("\n"))


def _write_both(weights: Path, tensors: bytes, source: Path, text: bytes) -> None:
    """Write two files, or leave both unchanged."""
    before = weights.read_bytes() if weights.is_file() else None
    write_file(weights, [tensors])
    try:
        write_file(source, [text])
    except BaseException:
        if before is None:
            weights.unlink()
        else:
            write_file(weights, [before])
        raise
