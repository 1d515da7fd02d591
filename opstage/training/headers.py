"""Check files by their headers, without reading tensors: data against the shapes of a batch, a checkpoint against the
parameters of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data import from_csv, from_file
from ..data.array_files import ArrayHeader, open_npz
from ..files import suffix_of
from ..interpreters.shape_check.contract import Contract
from ..interpreters.shape_check.finding import Finding
from ..ops.errors import LocatedError, OpstageError, UsageError, nearest
from ..ops.spec import Spec, as_specs, shapes_as_specs
from ..ops.tied_parameters import Places
from ..ops.trees import flatten
from ..ops.types import as_dtype
from ..options import Options, options_of
from ..safetensors_files import TensorHeader, read_header
from .checkpoint import MANIFEST, tensors_file

# Data -----------------------------------------------------------------------------------------------------------------

_ROWS = 1000  # read from a CSV file to find its columns and their dtypes
_BATCH = 64


def check_data(
    path: str | os.PathLike[str], batch: Mapping[str, Spec], batch_size: int | None = None
) -> tuple[Finding, ...]:
    """Return findings where the arrays of a data file do not fit the declared batches, by argument name.

    Of a .npz file only the headers are read, of a .csv file the first rows. Raises UsageError where it cannot be read.
    """
    return check_arrays(array_headers(path), batch, str(path), batch_size)


def check_arrays(
    arrays: Mapping[str, ArrayHeader], batch: Mapping[str, Spec], origin: str, batch_size: int | None = None
) -> tuple[Finding, ...]:
    """Do the same for arrays whose first axis counts rows; a batch has `batch_size` rows (default: at most 64)."""
    findings: list[Finding] = []
    fitting: list[tuple[str, Spec, ArrayHeader]] = []
    for name, spec in batch.items():
        array = arrays.get(name, arrays.get(name.rpartition(".")[2]))
        if array is None:
            has = ", ".join(arrays) or "none"
            close = nearest(name, arrays)
            findings.append(_unfit(name, f"{origin} has no array {name!r}{close}; it has {has}"))
            continue
        taken = _batch_header(array, spec, batch_size)
        found = _mismatch([name], [spec], [taken], origin)
        if found is None:
            fitting.append((name, spec, taken))
        else:
            findings.append(found)
    if not findings and fitting:
        names, specs, taken_together = map(list, zip(*fitting))
        found = _mismatch(names, specs, taken_together, origin)
        findings += [] if found is None else [found]
    return tuple(findings)


def array_headers(path: str | os.PathLike[str]) -> dict[str, ArrayHeader]:
    """Return the shape and dtype of each array of a data file, by name. Raises UsageError."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"{path}: no such file")
    if suffix_of(file) == ".npz":
        with open_npz(file) as archive:
            return {name: archive.header(name) for name in archive.names}
    dataset = from_csv(file, limit=_ROWS) if suffix_of(file) in (".csv", ".tsv") else from_file(file)
    return {name: ArrayHeader(array.shape, array.dtype) for name, array in zip(dataset.names, dataset.arrays)}


def _batch_header(array: ArrayHeader, spec: Spec, batch_size: int | None) -> ArrayHeader:
    """Return the header with the number of rows of a batch."""
    first = next(iter(spec.entries), None)
    if not array.shape or first is None:
        return array
    rows = (
        int(first) if str(first).isdecimal() else batch_size if batch_size is not None else min(array.shape[0], _BATCH)
    )
    return ArrayHeader((min(rows, array.shape[0]), *array.shape[1:]), array.dtype)


def _mismatch(
    names: Sequence[str], specs: Sequence[Spec], arrays: Sequence[ArrayHeader], origin: str
) -> Finding | None:
    """Return the error that a trainer with these Specs would raise for the batch, as a finding."""
    for name, array in zip(names, arrays):
        if array.dtype.kind not in "fiub":
            return _unfit(name, f"{name} in {origin} holds {array.dtype} values; expected floats, integers or booleans")
    contract = Contract(tuple(_alone(spec, specs) for spec in specs), list(names), "the declared batch", "data")
    refs: Any = tuple(_Ref(array) for array in arrays)
    try:
        contract.check(refs, list(refs), refs)
    except LocatedError as error:
        return _unfit(names[0] if len(names) == 1 else "", f"{origin}: in a batch, {error.reason}")
    except OpstageError as error:
        return _unfit("", f"{origin}: {error}")
    return None


class _Ref:
    """An array as the contract check sees it: shape and dtype."""

    def __init__(self, header: ArrayHeader):
        self.shape, self.dtype = header


def _alone(spec: Spec, specs: Sequence[Spec]) -> Spec:
    """Return a Spec without its range, which a header lacks; one alone has no constraints, which may
    speak of names that others have."""
    return spec.changed(range=None, where=spec.where if len(specs) > 1 else ())


def _unfit(name: str, reason: str) -> Finding:
    return Finding("batch", reason, region=name, rule="batch")


_NAMES = {"F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64", "BOOL": "bool", "BF16": "bfloat16"}


# Checkpoints ----------------------------------------------------------------------------------------------------------


def check_checkpoint(
    path: str | os.PathLike[str], params: Any, state: Any = None, options: Options | None = None
) -> tuple[Finding, ...]:
    """Return findings where the tensors stored at `path` do not fit `params` (and `state`), pytrees of Specs or arrays.

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
    """Return whether `path` is Opstage's own checkpoint, and its header."""
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
                _unlike(
                    name, f"{path} has no {name}{nearest(name, unexpected)}; the model has {_declared(spec, options)}"
                )
            )
            continue
        tensor = found[name]
        why = _shape_difference(name, spec, tensor, sizes) or _dtype_difference(spec, tensor, options, exact)
        if why:
            findings.append(_unlike(name, f"{name} in {path} is {_show(tensor)}: {why}"))
    for name in unexpected:
        findings.append(
            _unlike(name, f"{path} has {name} {_show(found[name])}, which the model has not{nearest(name, missing)}")
        )
    return findings


def _unlike(name: str, reason: str) -> Finding:
    return Finding("checkpoint", reason, region=name, rule="checkpoint")


def _shape_difference(name: str, spec: Spec, tensor: TensorHeader, sizes: dict[str, tuple[int, str]]) -> str:
    """Say why a stored shape differs from the expected one. A named dim has one size in the whole checkpoint."""
    entries = [str(entry) for entry in spec.entries]
    if len(entries) != len(tensor.shape):
        return f"the model has rank {len(entries)}, {_show_shape(entries)}"
    for axis, (entry, size) in enumerate(zip(entries, tensor.shape)):
        if entry.isdecimal() and int(entry) != size:
            return f"it has {size} on axis {axis} where the model has {entry}, {_show_shape(entries)}"
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
    return f"{_show_shape([str(entry) for entry in spec.entries])} {spec.dtype or options.dtype}"


def _show_shape(entries: list[str]) -> str:
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"


def _show(tensor: TensorHeader) -> str:
    return f"{_show_shape([str(size) for size in tensor.shape])} {_NAMES.get(tensor.dtype, tensor.dtype)}"
