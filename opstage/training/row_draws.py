"""Draws for the rows of a batch that do not say so: all ranks of a mesh would draw the same for rows of their own."""

from __future__ import annotations

from ..interpreters.control import bodies_of
from ..ops.catalogue.random import DRAWS
from ..ops.closed import Body
from ..ops.mesh import Mesh
from ..ops.methods.structure import VARY_LIKE

SAYING = Mesh((("of one rank", 1),))
"""A mesh on which a program is traced as without one, but for draws, which say whether they have `like=`."""


def unshared_draw(body: Body, rows: int) -> str:
    """Return what to call a draw that has a multiple of `rows` along an axis, and no `like=`; empty if there is none.

    `body` was traced on `SAYING`.
    """
    said = {slot for e in body.equations if e.primitive is VARY_LIKE for slot in e.outputs}
    for e in body.equations:
        shape = body.types[e.outputs[0]].shape if e.outputs else ()
        drawn = e.primitive in DRAWS and any(size and size % rows == 0 for size in shape)
        if drawn and said.isdisjoint(e.inputs):
            line = body.lines.get(e.ordinal)
            return "a draw" + (f" at {line.file}:{line.line}" if line is not None else "")
        for _, inner in bodies_of(e.static):
            found = unshared_draw(inner, rows)
            if found:
                return found
    return ""
