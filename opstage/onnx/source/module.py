"""The text of the module: its imports, inputs and weights, functions, and `make`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy.typing as npt

from ...ops.spec import Spec
from ..model import OnnxModel
from .constants import LargeConstants
from .expressions import SourceExpressions, quoted
from .functions import Functions
from .layout import WIDTH, Bracketed, Expression, Prefixed, call, lines, tuple_of
from .names import SourceNames, identifier
from .renaming import given_names
from .scope import FunctionBody
from .steps import ProgramSteps


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


def module_text(
    model: OnnxModel, found: ProgramSteps, *, origin: str, weights: str, loss: str, output: str
) -> ModuleText:
    """Return the source of a model with these steps, which reads its tensors from the file `weights` next to it."""
    names = SourceNames()
    inputs = {name: names.take(identifier(name)) for name in model.inputs}
    dims = {name: names.take(identifier(name, "size")) for name in _dims(model)}
    expressions = SourceExpressions(dims)
    state = model.state or {}
    renamed = given_names(found)
    params, state = (
        {renamed.get(name, name): array for name, array in tree.items()} for tree in (model.params, model.state or {})
    )
    constants = LargeConstants([*params, *state])
    functions = Functions(found, expressions, constants, inputs)
    body = functions.program()
    program = _program(model, inputs, dims, body)
    texts = [*functions.texts, program]
    reading = f"TENSORS = tensors_beside(__file__, {quoted(weights)})"
    tensors = {**params, **state, **constants.arrays}
    used = sorted({"Config", *expressions.used})
    text = [
        *_docstring(model, origin),
        "",
        "from dataclasses import dataclass",
        *(["import math"] if "math" in used else []),
        "",
        "from opstage import Model, Spec",
        "from opstage.imported.network import Network, supervised, tensors_beside",
        *_dims_import(used),
        "",
        *lines("INPUTS = ", _specs(model, inputs, dims), 0),
        *lines("OUTPUTS = ", tuple_of([quoted(name) for name in model.outputs]), 0),
        "",
        reading,
        *_trees(list(state), constants),
    ]
    for each in texts:
        text += ["", "", *each]
    text += ["", "", *_make(model, loss, output)]
    return ModuleText("\n".join(_sorted_imports(text)) + "\n", reading, renamed, tensors)


def _dims(model: OnnxModel) -> list[str]:
    """Return the names of sizes, in the order of the inputs."""
    return list(dict.fromkeys(d for spec in model.inputs.values() for d in spec.entries if isinstance(d, str)))


def _docstring(model: OnnxModel, origin: str) -> list[str]:
    said = origin.replace("\\", "/").replace('"', "'")
    return [f'"""{identifier(model.name, "model")}, imported from {said}."""']


def _sorted_imports(text: Sequence[str]) -> list[str]:
    """Return imports of standard modules, sorted by name."""
    found = list(text)
    if "import math" in found:
        found.remove("import math")
        found.insert(found.index("from dataclasses import dataclass"), "import math")
    return found


def _dims_import(used: Sequence[str]) -> list[str]:
    names = [name for name in used if name in ("maximum", "minimum", "ratio", "rsqrt")]
    return [f"from opstage.ops.dims import {', '.join(names)}"] if names else []


def _specs(model: OnnxModel, inputs: Mapping[str, str], dims: Mapping[str, str]) -> Expression:
    entries = [Prefixed(f"{quoted(inputs[name])}: ", _spec(spec, dims)) for name, spec in model.inputs.items()]
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


def _program(
    model: OnnxModel,
    inputs: Mapping[str, str],
    dims: Mapping[str, str],
    body: FunctionBody,
) -> list[str]:
    """Return the function of the whole model: its sizes, its steps, its outputs by name."""
    stateful = model.state is not None
    head = ["ops", "params", *(["state"] if stateful else []), *inputs.values(), "*", "train=False"]
    text = lines("def program", call("", head), 0, ":")
    for size in body.sizes:
        name = next(name for name, each in dims.items() if each == size)
        for argument, spec in model.inputs.items():
            if name in spec.entries:
                text.append(f"    {size} = {inputs[argument]}.shape[{spec.entries.index(name)}]")
                break
    if stateful:
        text.append("    moved = dict(state)")
    text += body.lines
    given = Bracketed("{", tuple(Prefixed(f"{quoted(name)}: ", body.results[name]) for name in model.outputs), "}")
    return [*text, *lines("return ", tuple_of([given, "moved"]) if stateful else given, 4)]


def _make(model: OnnxModel, loss: str, output: str) -> list[str]:
    state = ["STATE"] if model.state is not None else []
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
            call("Network", [quoted(model.name), "program", "PARAMS", "INPUTS", "OUTPUTS", *state]),
            4,
        ),
        "    return supervised(network, config, loss=config.loss, output=config.output)",
    ]
