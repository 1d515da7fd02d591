"""Bind batches to the arguments of a program, and prepare the next ones in another thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from typing import Protocol, final

from typing_extensions import override

from ..forks import tell_in_child
from ..ops.errors import UsageError, a_type
from ..ops.tracebacks import made_by_users
from .dataset import Array
from .loader import Batches, Iterated, Loader, Own

Batch = tuple[Array, ...]

_PATIENCE = 1.0  # seconds; a thread that reads from a stuck disk must not prevent an interrupt from saving the run


@final
@made_by_users
class Prefetch(Iterated):
    """The batches of `batches` in order, with up to `depth` of them prepared ahead by one thread per epoch.

    An error in the thread is raised here, at its batch. The thread ends with the epoch, after its last batch, or when
    the generator is closed or garbage-collected; `epoch(…).close()` waits for the thread, but at most one second for a
    batch that hangs.

    Raises:
        UsageError: a depth that is no integer > 0.
    """

    def __init__(self, batches: Batches, depth: int = 2):
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise UsageError(f"depth={depth!r} is not a number of batches; expected an integer > 0")
        self.batches = batches
        self.depth = depth

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self.batches)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the arrays in a batch, if `batches` has any."""
        return getattr(self.batches, "names", None)

    def only(self, *names: str) -> Prefetch:
        """Return the same batches with only the arrays in `names`, in that order, if `batches` is a loader."""
        if not isinstance(self.batches, (Loader, Prefetch)):
            raise UsageError(f"the batches of {a_type(self.batches)} have no names")
        batches = self.batches.only(*names)
        return self if batches is self.batches else Prefetch(batches, self.depth)

    def own(self, rows: Own) -> Prefetch:
        """Return the same batches, with only some rows read, if `batches` is a loader; see `Loader.own`."""
        return Prefetch(self.batches.own(rows), self.depth) if isinstance(self.batches, (Loader, Prefetch)) else self

    @override
    def epoch(self, epoch: int, start: int = 0) -> Generator[Batch]:
        """Return the batches of epoch `epoch` from number `start` on; the thread starts at the first request."""
        return self._taken(self.batches.epoch(epoch, start))

    def _taken(self, source: Generator[Batch]) -> Generator[Batch]:
        ahead = _Ahead(source, self.depth)
        thread = threading.Thread(target=ahead.fill, name="opstage-prefetch", daemon=True)
        thread.start()
        try:
            while (batch := ahead.take()) is not None:
                yield batch
        finally:
            ahead.stop()
            if threading.current_thread() is not thread:  # the thread itself may collect an unreferenced generator
                thread.join(_PATIENCE)


@final
class _Ahead:
    """A queue of at most `depth` batches between the producing and the consuming thread."""

    def __init__(self, source: Generator[Batch], depth: int):
        self._source = source
        self._depth = depth
        self._changed = threading.Condition()
        self._made: deque[Batch] = deque()
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None
        tell_in_child(self, _Ahead._orphan)

    def _orphan(self) -> None:
        """Handle a fork: the child does not have the producing thread."""
        self._changed = threading.Condition()
        self._made.clear()
        self._ended = True
        self._error = UsageError(
            "the batches of this epoch are made ahead by a thread of another process, which this one was forked from; "
            "begin the epoch in this process"
        )

    def fill(self) -> None:
        """Produce batches until there are no more, or it is stopped."""
        try:
            for batch in self._source:
                with self._changed:
                    self._made.append(batch)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._stopped or len(self._made) < self._depth)
                    if self._stopped:
                        return
        except BaseException as error:
            self._error = error
        finally:
            self._source.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def take(self) -> Batch | None:
        """Return the next batch, None after the last; re-raises an error of the producer."""
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._ended)
            if self._made:
                batch = self._made.popleft()
                self._changed.notify_all()
                return batch
        if self._error is not None:
            raise self._error
        return None

    def stop(self) -> None:
        """Make `fill` return."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


# Binding by name ------------------------------------------------------------------------------------------------------


class Arguments(Protocol):
    """The names of a program's batch arguments; optional ones come last."""

    @property
    def required(self) -> tuple[str, ...]: ...
    @property
    def optional(self) -> tuple[str, ...]: ...


def bind(batches: Batches, arguments: Arguments | None, program: str) -> Batches:
    """Return the batches with their arrays in the order of a program's batch arguments, matched by name.

    If the names differ from the arguments, the arrays keep the order requested when the dataset was created. Raises
    UsageError if that cannot be right: for a different number of arrays, for a name that is an argument at another
    position, and if no order was requested. `arguments` is None if the program does not name them. Batches that do not
    come from a Dataset are returned unchanged.

    Raises:
        UsageError: names of arrays that are no arguments, or stand elsewhere.
    """
    if not isinstance(batches, (Loader, Prefetch)) or not (names := batches.names):
        return batches
    found = order(names, _ordered(batches), arguments, program)
    return batches if found == names and _ordered(batches) else batches.only(*found)


def order(names: tuple[str, ...], ordered: bool, arguments: Arguments | None, program: str) -> tuple[str, ...]:
    """Return the names of a dataset's arrays in the order of `program`'s arguments; see `bind`."""
    known: tuple[str, ...] = ()
    if arguments is not None:
        more = max(0, len(names) - len(arguments.required))
        known = arguments.required + arguments.optional[:more]
        if set(names) == set(known):
            return known
    has = f"the dataset has the arrays {', '.join(names)}, and {program} "
    each = ", ".join(f"{name}=dataset[…]" for name in known)
    cure = (
        f"; say which goes where: from_arrays({each})"
        if known
        else f"; put them in order: dataset.only({names[0]!r}, …)"
    )
    if arguments is None:
        if not ordered:
            raise UsageError(f"{has}does not name its batch arguments{cure}")
        return names
    takes = f"takes the batch arguments {', '.join(known)}" if known else "takes no batch"
    if len(names) != len(known):
        raise UsageError(f"{has}{takes}{cure}")
    pairs = [(name, argument) for name, argument in zip(names, known) if name != argument]
    strays = [name if name in known else argument for name, argument in pairs if name in known or argument in names]
    if strays:
        raise UsageError(f"{has}{takes}: {strays[0]} would not be the argument of its name{cure}")
    if not ordered:
        raise UsageError(f"{has}{takes}{cure}")
    return names


def _ordered(batches: Batches) -> bool:
    while isinstance(batches, Prefetch):
        batches = batches.batches
    return not isinstance(batches, Loader) or batches.dataset.ordered
