"""The position in a program: the region path, the ordinal of the op, and the number of draws.

One cursor is shared by a whole stack of interpreters, so that all number the user's ops alike. Only ops that the user's
program calls are counted: while a derivative rule or a decomposition runs, the cursor is quiet and stays at the op that
the rule belongs to.
"""

from __future__ import annotations

from .splitmix import site_of


class Region:
    """A named part of a program; its path distinguishes occurrences of a name (`block`, `block#1`)."""

    __slots__ = ("path", "name", "draws", "_children")

    def __init__(self, path: tuple[tuple[str, int], ...] = ()):
        self.path = path
        self.name = ".".join(name if not occurrence else f"{name}#{occurrence}" for name, occurrence in path)
        self.draws = 0
        self._children: dict[str, int] = {}

    def child(self, name: str) -> Region:
        """Enter the next occurrence of `name` in this region."""
        occurrence = self._children.get(name, 0)
        self._children[name] = occurrence + 1
        return Region((*self.path, (name, occurrence)))

    def mark(self) -> tuple[int, dict[str, int]]:
        """Return a mark for `rewind`, which discards later draws and regions, such as those of a call that failed."""
        return self.draws, dict(self._children)

    def rewind(self, mark: tuple[int, dict[str, int]]) -> None:
        self.draws, self._children = mark


RULE = 2
"""The mark of what a declared rule computes: it recomputes what it asks for, rather than have it kept."""


class Cursor:
    """The position of a running program, shared by all interpreters of a stack.

    quiet       whether a rule or decomposition of the op at the cursor is running
    backward    1 while a tape runs a backward pass, `RULE` while it runs a rule in it that a user declared
    """

    __slots__ = ("region", "ordinal", "quiet", "backward")

    def __init__(self) -> None:
        self.region = Region()
        self.ordinal = 0
        self.quiet = False
        self.backward = 0

    def mark(self) -> tuple[int, tuple[int, dict[str, int]]]:
        """Return a mark for `rewind`, which restores the ops, draws and regions of a part that runs again."""
        return self.ordinal, self.region.mark()

    def rewind(self, mark: tuple[int, tuple[int, dict[str, int]]]) -> None:
        self.ordinal = mark[0]
        self.region.rewind(mark[1])

    def next_site(self) -> int:
        """Return the random site of the next draw: a hash of the region path and the draw's ordinal in the region."""
        region = self.region
        site = site_of(region.path, region.draws)
        region.draws += 1
        return site


class Quietly:
    """Runs a rule or decomposition of the op at the cursor: `with Quietly(cursor):`."""

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
