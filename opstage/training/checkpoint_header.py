"""Check a checkpoint's header against a model's parameters: names, shapes and dtypes, without reading any tensor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..interpreters.shape_check import Finding
from ..ops.errors import UsageError, nearest
from ..ops.places import Places
from ..ops.spec import Spec, as_specs, shapes_as_specs
from ..ops.trees import flatten
from ..ops.types import as_dtype
from ..options import Options, options_of
from ..tensors import TensorHeader, read_header
from .checkpoint import MANIFEST, tensors_file

_NAMES = {"F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64", "BOOL": "bool", "BF16": "bfloat16"}


def check_checkpoint(
    path: str | os.PathLike[str], params: Any, state: Any = None, options: Options | None = None
) -> tuple[Finding, ...]:
    """Findings where the tensors stored at `path` do not fit `params` (and `state`), pytrees of Specs or arrays.

    path   a run directory, a checkpoint in one, or a safetensors file; only the header is read

    Raises UsageError where there is nothing that can be read.
    """
    options = options_of(options)
    ours, header = _stored(Path(path))
    expected, tied = _expected("params", params)
    expected |= _expected("state", state)[0]
    if ours:
        found = {
            name.replace("/", ".", 1): tensor
            for name, tensor in header.items()
            if name.startswith(("params/", "state/"))
        }
    else:
        given = {*expected, *tied}
        found = {name if name in given else f"params.{name}": tensor for name, tensor in header.items()}
    once: dict[str, TensorHeader] = {}
    for name, tensor in found.items():
        once.setdefault(tied.get(name, name), tensor)
    return tuple(_differences(expected, once, options, Path(path), exact=ours))


def _stored(path: Path) -> tuple[bool, dict[str, TensorHeader]]:
    """Whether `path` is Opstage's own checkpoint, and its header."""
    for folder in (path, path / "checkpoint"):
        if (folder / MANIFEST).is_file():
            return True, read_header(tensors_file(folder))
    if path.is_dir():
        raise UsageError(f"{path}: holds no checkpoint; expected a run directory or a .safetensors file")
    header = read_header(path)
    return any(name.startswith("params/") for name in header), header


def _expected(kind: str, tree: Any) -> tuple[dict[str, Spec], dict[str, str]]:
    """Return the Specs of a tree by name, one per parameter, and a map from its other places to that name."""
    tree = shapes_as_specs(tree)
    places = Places.of(tree)
    names = [f"{kind}.{name}" for name in places.names]
    others = {f"{kind}.{path}": name for path, name in zip(places.paths, places.spread(names))}
    return dict(zip(names, places.first(flatten(as_specs(tree))[0]))), others


def _differences(
    expected: Mapping[str, Spec], found: Mapping[str, TensorHeader], options: Options, path: Path, *, exact: bool
) -> list[Finding]:
    """Return the findings. `exact`: floats of another width do not fit, since a resumed run keeps its dtype."""
    findings = []
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    sizes: dict[str, tuple[int, str]] = {}
    for name, spec in expected.items():
        if name in missing:
            findings.append(
                _finding(
                    name, f"{path} has no {name}{nearest(name, unexpected)}; the model has {_declared(spec, options)}"
                )
            )
            continue
        tensor = found[name]
        why = _shape_difference(name, spec, tensor, sizes) or _dtype_difference(spec, tensor, options, exact)
        if why:
            findings.append(_finding(name, f"{name} in {path} is {_show(tensor)}: {why}"))
    for name in unexpected:
        findings.append(
            _finding(name, f"{path} has {name} {_show(found[name])}, which the model has not{nearest(name, missing)}")
        )
    return findings


def _finding(name: str, reason: str) -> Finding:
    return Finding("checkpoint", reason, region=name, rule="checkpoint")


def _shape_difference(name: str, spec: Spec, tensor: TensorHeader, sizes: dict[str, tuple[int, str]]) -> str:
    """Say why a stored shape differs from the expected one. A named dim has one size in the whole checkpoint."""
    entries = [str(entry) for entry in spec.entries]
    if len(entries) != len(tensor.shape):
        return f"the model has rank {len(entries)}, {_wanted(entries)}"
    for axis, (entry, size) in enumerate(zip(entries, tensor.shape)):
        if entry.isdecimal() and int(entry) != size:
            return f"it has {size} on axis {axis} where the model has {entry}, {_wanted(entries)}"
        if entry.isidentifier():
            known, where = sizes.setdefault(entry, (size, name))
            if known != size:
                return f"it has {size} on axis {axis}, but {entry} is {known} in {where}"
    return ""


def _dtype_difference(spec: Spec, tensor: TensorHeader, options: Options, exact: bool) -> str:
    name = spec.dtype or options.dtype
    kind = {"f": "f", "O": "f", "b": "b"}.get(as_dtype(name).kind, "i")
    if kind != tensor.kind or (exact and kind == "f" and _NAMES.get(tensor.dtype) != options.dtype):
        return f"the model has {options.dtype if kind == 'f' else name}"
    return ""


def _declared(spec: Spec, options: Options) -> str:
    return f"{_wanted([str(entry) for entry in spec.entries])} {spec.dtype or options.dtype}"


def _wanted(entries: list[str]) -> str:
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"


def _show(tensor: TensorHeader) -> str:
    return f"{_wanted([str(size) for size in tensor.shape])} {_NAMES.get(tensor.dtype, tensor.dtype)}"
