"""Readable names of parameters and buffers."""

from __future__ import annotations

import re
from itertools import count

from .steps import ProgramSteps, reads

_MADE_UP = re.compile(r"::|^\W*(val_|t_)?\d+$")


def given_names(found: ProgramSteps) -> dict[str, str]:
    """Return readable names of parameters and buffers: replace a generated one, `onnx::MatMul_12`, by the module that
    reads it, `encoder.layer.0.query.weight`."""
    names = _without_roots(found)
    kinds = {slot: (kind, names.get(name, name)) for slot, (kind, name) in found.inputs.items()}
    taken = {name for kind, name in kinds.values() if kind in ("params", "state")}
    for step in found.steps:
        for slot in reads(step):
            kind, name = found.inputs.get(slot, ("", ""))
            if kind != "params" or name in names or not _MADE_UP.search(name) or not step.path:
                continue
            module = ".".join(word for word, _ in step.path)
            choices = (f"{module}.weight{'' if i == 1 else f'_{i}'}" for i in count(1))
            names[name] = next(choice for choice in choices if choice not in taken)
            taken.add(names[name])
    found.inputs = {slot: (kind, names.get(name, name)) for slot, (kind, name) in found.inputs.items()}
    return names


def _without_roots(found: ProgramSteps) -> dict[str, str]:
    """Return names without the prefixes `params.` and `state.` of Opstage's own exports."""
    by_kind = {kind: [name for each, name in found.inputs.values() if each == kind] for kind in ("params", "state")}
    if not all(name.startswith(f"{kind}.") for kind, names in by_kind.items() for name in names):
        return {}
    short = {name: name.partition(".")[2] for names in by_kind.values() for name in names}
    return short if len(set(short.values())) == len(short) and all(short.values()) else {}
