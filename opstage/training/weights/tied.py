"""Parameters at several places, and tensors under several names.

In a state_dict one array under two names is one tensor that two layers share. The safetensors format cannot express
this: `safetensors.torch.save_model` stores the tensor once and maps its other names to the stored one in the file's
metadata. This module reads and writes the same convention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...ops.errors import UsageError
from ...ops.places import show_tied
from ..parameters import same_bits
from .mapping import Array, MappedParameter, WeightMap
from .names import likeness, read_name
from .propose import propose

Tied = Mapping[str, tuple[str, ...]]
"""Maps the name of each parameter with several places to all their paths."""

_FORMAT = "format"  # the format of the tensors in a file, stored in the same metadata


def with_dropped_names(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> dict[str, Array]:
    """Return a file's tensors under all the names in its metadata, as one array for all names of a tensor."""
    dropped = {
        name: tensors[stored]
        for name, stored in metadata.items()
        if name != _FORMAT and name not in tensors and stored in tensors
    }
    return dict(sorted({**tensors, **dropped}.items()))


def stored_once(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors, each under its first name, and a map from each other name to that.

    A tensor called `format` is always stored, since the metadata use that key otherwise.
    """
    firsts: dict[int, str] = {}
    for name, array in tensors.items():
        firsts.setdefault(id(array), name)
    kept = {name: array for name, array in tensors.items() if name in (firsts[id(array)], _FORMAT)}
    return kept, {name: firsts[id(array)] for name, array in tensors.items() if name not in kept}


def everywhere(values: Mapping[str, Array], tied: Tied) -> dict[str, Array]:
    """Return values by place from values by name: one array at all places of a parameter."""
    found: dict[str, Array] = {}
    for name, array in values.items():
        found |= dict.fromkeys(tied.get(name, (name,)), array)
    return found


def propose_tied(
    shapes: Mapping[str, tuple[int, ...]], tied: Tied, tensors: Mapping[str, Array], overrides: Mapping[str, str]
) -> WeightMap:
    """`propose`, where each of `tied` goes by the one of its places that is most like a tensor's name.

    A choice may be made for any of the places. Where one tensor of the file becomes two parameters, their rows say so.
    Raises UsageError for different tensors at two places of one.
    """
    called = {name: _likeliest(paths, shapes[name], tensors) for name, paths in tied.items()}
    owners = {path: name for name, paths in tied.items() for path in paths}
    choices: dict[str, str] = {}
    for path, text in overrides.items():
        own = called.get(owners.get(path, path), path)
        if choices.setdefault(own, text) != text and own != "-":
            raise UsageError(
                f"{show_tied(tied[owners[path]])} is one parameter, but {choices[own]} and {text} are chosen for it"
            )
    found = propose({called.get(name, name): shape for name, shape in shapes.items()}, tensors, choices)
    return replace(found, rows=_with_parted([_row(row, owners, tied) for row in found.rows], tensors))


def shared_as_in(written: Mapping[str, Array], like: Mapping[str, Array]) -> dict[str, Array]:
    """Return `written` with arrays shared as in `like`. Raises UsageError if their values differ."""
    result = dict(written)
    for name, stored in stored_once(like)[1].items():
        if not same_bits(result[name], result[stored]):
            raise UsageError(
                f"{name} and {stored} are one tensor in the file to be like, but here they have values that differ; "
                "give a file of a model that has two, or train one parameter for both"
            )
        result[name] = result[stored]
    return result


def _likeliest(paths: tuple[str, ...], shape: tuple[int, ...], tensors: Mapping[str, Array]) -> str:
    """Return the place with a name most similar to that of a tensor of the shape, in any layout; the first of
    several."""
    fitting = [read_name(name) for name, array in tensors.items() if sorted(array.shape) == sorted(shape)]

    def likest(path: str) -> float:
        own = read_name(path)
        return max((likeness(own, name) + (own.module == name.module) for name in fitting), default=0.0)

    return max(paths, key=likest)


def _row(row: MappedParameter, owners: Mapping[str, str], tied: Tied) -> MappedParameter:
    if row.path not in owners:
        return row
    name = owners[row.path]
    others = [path for path in tied[name] if path != name]
    return replace(row, path=name, why=f"{row.why}; tied to {', '.join(others)}")


def _with_parted(rows: Sequence[MappedParameter], tensors: Mapping[str, Array]) -> list[MappedParameter]:
    """Note in rows that use one tensor under two of its names that the parameters are separate here."""
    stored = stored_once(tensors)[1]
    takers: dict[str, dict[str, str]] = {}  # for each shared tensor, name -> the parameter that uses it under that name
    for row in rows:
        for name in row.source.names if row.source is not None else ():
            if name in stored or name in stored.values():
                takers.setdefault(stored.get(name, name), {}).setdefault(name, row.path)
    apart = {path: group.values() for group in takers.values() if len(group) > 1 for path in group.values()}
    return [
        replace(row, why=f"{row.why}; shared there with {', '.join(p for p in apart[row.path] if p != row.path)}")
        if row.path in apart
        else row
        for row in rows
    ]
