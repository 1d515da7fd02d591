"""Check a data file against the declared shapes of a batch, from its header if its format has one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data import from_csv, from_file
from ..data.numpy_file import ArrayHeader, open_npz
from ..interpreters.shape_check import Contract, Finding
from ..ops.errors import LocatedError, OpstageError, UsageError, nearest
from ..ops.spec import Spec
from ..readable import suffix_of

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
            findings.append(_finding(name, f"{origin} has no array {name!r}{close}; it has {has}"))
            continue
        taken = _taken(array, spec, batch_size)
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


def _taken(array: ArrayHeader, spec: Spec, batch_size: int | None) -> ArrayHeader:
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
            return _finding(
                name, f"{name} in {origin} holds {array.dtype} values; expected floats, integers or booleans"
            )
    contract = Contract(tuple(_alone(spec, specs) for spec in specs), list(names), "the declared batch", "data")
    refs: Any = tuple(_Ref(array) for array in arrays)
    try:
        contract.check(refs, list(refs), refs)
    except LocatedError as error:
        return _finding(names[0] if len(names) == 1 else "", f"{origin}: in a batch, {error.reason}")
    except OpstageError as error:
        return _finding("", f"{origin}: {error}")
    return None


class _Ref:
    """An array as the contract check sees it: shape and dtype."""

    def __init__(self, header: ArrayHeader):
        self.shape, self.dtype = header


def _alone(spec: Spec, specs: Sequence[Spec]) -> Spec:
    """A Spec without its range, of which a header says nothing; one by itself has no constraints, which may speak of
    names that others have."""
    return spec.changed(range=None, where=spec.where if len(specs) > 1 else ())


def _finding(name: str, reason: str) -> Finding:
    return Finding("batch", reason, region=name, rule="batch")
