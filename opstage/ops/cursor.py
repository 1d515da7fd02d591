"""Where a program is: the region path, the ordinal of the op, and the draws made so far.

One cursor is shared by a whole stack of interpreters, so all of them number the user's ops alike. Only ops that the
user's program calls are counted: while a derivative rule or a decomposition runs, the cursor is quiet and is at
the op which that rule serves.
"""

from __future__ import annotations

from .splitmix import site_of


class Region:
    """A named part of a program; its path tells occurrences of one name apart (`block`, `block#1`)."""

    __slots__ = ("path", "name", "draws", "_children")

    def __init__(self, path: tuple[tuple[str, int], ...] = ()):
        self.path = path
        self.name = ".".join(name if not occurrence else f"{name}#{occurrence}" for name, occurrence in path)
        self.draws = 0
        self._children: dict[str, int] = {}

    def child(self, name: str) -> Region:
        """Enter the next occurrence of `name` inside this region."""
        occurrence = self._children.get(name, 0)
        self._children[name] = occurrence + 1
        return Region((*self.path, (name, occurrence)))

    def mark(self) -> tuple[int, dict[str, int]]:
        """A mark for `rewind`, which forgets the draws and regions from here on: those of a call that failed."""
        return self.draws, dict(self._children)

    def rewind(self, mark: tuple[int, dict[str, int]]) -> None:
        self.draws, self._children = mark


class Cursor:
    """The place of a running program, shared by all interpreters of a stack.

    quiet       whether a rule or decomposition runs, on behalf of the op at the cursor
    backward    whether a tape is carrying cotangents back
    """

    __slots__ = ("region", "ordinal", "quiet", "backward")

    def __init__(self) -> None:
        self.region = Region()
        self.ordinal = 0
        self.quiet = False
        self.backward = False

    def mark(self) -> tuple[int, tuple[int, dict[str, int]]]:
        """A mark for `rewind`, which comes back here: the ops, draws and regions of a part that is run again."""
        return self.ordinal, self.region.mark()

    def rewind(self, mark: tuple[int, tuple[int, dict[str, int]]]) -> None:
        self.ordinal = mark[0]
        self.region.rewind(mark[1])

    def next_site(self) -> int:
        """The random site of the next draw: a hash of the region path and the draw's ordinal within that region."""
        region = self.region
        site = site_of(region.path, region.draws)
        region.draws += 1
        return site


class Quietly:
    """`with Quietly(cursor):` runs a rule or decomposition on behalf of the op at the cursor."""

    __slots__ = ("cursor", "_quiet", "_region", "_ordinal")

    def __init__(self, cursor: Cursor):
        self.cursor = cursor

    def __enter__(self) -> None:
        cursor = self.cursor
        self._quiet, self._region, self._ordinal = cursor.quiet, cursor.region, cursor.ordinal
        cursor.quiet = True

    def __exit__(self, *exception: object) -> None:
        cursor = self.cursor
        cursor.quiet, cursor.region, cursor.ordinal = self._quiet, self._region, self._ordinal
