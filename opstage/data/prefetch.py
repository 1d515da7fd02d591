"""A loader whose batches are cut by another thread while this one computes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from typing import final

from typing_extensions import override

from ..forks import tell_in_child
from ..ops.errors import UsageError
from ..ops.tracebacks import made_by_users
from .dataset import Array
from .loader import Batches, Iterated, Loader, Own

Batch = tuple[Array, ...]

_PATIENCE = 1.0  # seconds; a thread that reads from a stuck disk must not keep an interrupt from saving the run


@final
@made_by_users
class Prefetch(Iterated):
    """The batches of `batches` in their order, up to `depth` of them made ahead by a thread of each epoch.

    An error in the thread is raised here, at the batch that it struck. The thread ends with the epoch: when its last
    batch was taken, and when the generator is closed or forgotten; `epoch(…).close()` waits until it is gone, but not
    longer than a second for a batch that does not come.
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
        """The names of the arrays in a batch, where `batches` has any."""
        return getattr(self.batches, "names", None)

    def only(self, *names: str) -> Prefetch:
        """The same batches of the arrays called `names`, in that order, if `batches` is a loader's."""
        if not isinstance(self.batches, (Loader, Prefetch)):
            raise UsageError(f"the batches of a {type(self.batches).__name__} have no names")
        batches = self.batches.only(*names)
        return self if batches is self.batches else Prefetch(batches, self.depth)

    def own(self, rows: Own) -> Prefetch:
        """The same batches, of which only some rows are read, if `batches` is a loader's; see `Loader.own`."""
        return Prefetch(self.batches.own(rows), self.depth) if isinstance(self.batches, (Loader, Prefetch)) else self

    @override
    def epoch(self, epoch: int, start: int = 0) -> Generator[Batch]:
        """The batches of epoch `epoch` from number `start` on; the thread starts when the first is asked for."""
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
            if threading.current_thread() is not thread:  # it is when the thread itself collects a forgotten generator
                thread.join(_PATIENCE)


@final
class _Ahead:
    """Batches between the thread that makes them and the one that takes them, `depth` at most."""

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
        """In a process that was forked from the one whose thread makes the batches."""
        self._changed = threading.Condition()
        self._made.clear()
        self._ended = True
        self._error = UsageError(
            "the batches of this epoch are made ahead by a thread of another process, which this one was forked from; "
            "begin the epoch in this process"
        )

    def fill(self) -> None:
        """Make batches until there are no more, or nobody wants them."""
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
        """The next batch, None after the last; raises what making it raised."""
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
        """Let `fill` return."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
