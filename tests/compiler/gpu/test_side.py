"""Work aside on the device of a real GPU, with stand-ins for cuda.core: which stream waits for which event."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opstage.compiler.gpu.launches import Call, Captured
from opstage.ops.errors import ProgramError, RankError
from opstage.ops.types import FLOAT32, TensorType
from tests.compiler.gpu.test_driver import Api
from tests.cuda_compile.recorder import Recorder


class Streams(Api):
    """Every stream notes what it is asked for, in one list; events are done when `over` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[str, ...]] = []
        self.over = iter([True] * 100)
        self.count = 0
        self.device.create_stream = self.create
        self.device.uuid = "GPU-1"

    def create(self) -> Any:
        self.count += 1
        name = "main" if self.count == 1 else "side"
        made = SimpleNamespace(**vars(self.stream)) if name == "side" else self.stream
        made.name = name
        made.record = lambda: self.record(name)
        made.wait = lambda event: self.noted.append((name, "waits for", event.name))
        return made

    def record(self, name: str) -> Any:
        self.noted.append((name, "records"))
        event = Event(self)
        event.name = f"{name} {sum(each == (name, 'records') for each in self.noted)}"
        return event


class Event:
    """An event of a stream."""

    name = ""

    def __init__(self, api: Streams):
        self._api = api

    @property
    def is_done(self) -> bool:
        return next(self._api.over)

    def sync(self) -> None:
        self._api.said.append("event sync")


class Work:
    """Notes on which stream it was asked for, and on what."""

    sent = 0

    def __init__(self, api: Streams):
        self.api, self.places = api, list[Any]()

    def __call__(self, stream: Any, places: Any) -> None:
        self.api.noted.append((stream.name, "works"))
        self.places.append(list(places))


ASIDE = [("main", "records"), ("side", "waits for", "main 1"), ("side", "works"), ("side", "records")]
JOINED = [("main", "waits for", "side 1")]


def test_it_begins_after_all_before_and_is_waited_for_by_all_after() -> None:
    api = Streams()
    gpu, work = api.gpu(), Work(api)
    buffer = gpu.empty(TensorType((3,), FLOAT32))
    gpu.aside(1, work, buffer)
    assert api.noted == ASIDE
    assert work.places == [[(buffer.handle.handle, 12)]], "the bytes of a tensor, not those of its block"
    gpu.join(1, buffer)
    assert api.noted == ASIDE + JOINED
    assert gpu.identity == "NVIDIA H200 GPU-1"


def test_it_is_part_of_what_is_captured() -> None:
    api = Streams()
    gpu, work = api.gpu(), Work(api)
    buffer = gpu.empty(TensorType((3,), FLOAT32))
    calls = [
        Call("aside", (1, work, buffer), {}, "exchange", "", "fp32"),
        Call("join", (1, buffer), {}, "exchange", "", "fp32"),
    ]
    script = Captured(gpu, gpu, calls)
    script.run()
    assert "begin" not in api.said and len(work.places) == 1, "the first run makes the stream"
    script.run()
    assert [each for each in api.said if each in ("begin", "end", "graph")] == ["begin", "end", "graph"]
    assert len(work.places) == 2
    script.run()
    assert api.said.count("graph") == 2 and len(work.places) == 2, "then nobody is asked any more"


def test_a_wait_that_may_have_no_end_is_watched() -> None:
    api = Streams()
    gpu = api.gpu()
    array = np.arange(4, dtype=np.float32)
    buffer = gpu.upload(array)
    asked: list[bool] = []

    def patience(done: Any) -> None:
        while not done():
            asked.append(True)
            if len(asked) == 5:
                raise RankError("process 1 of 2 has died")

    gpu.patience = patience
    api.over = iter([False, False, True, True, True])
    np.testing.assert_array_equal(gpu.download(buffer), array)
    assert len(asked) == 2 and "event sync" not in api.said[-1:], "nobody sleeps in the driver"
    for wait in (gpu.synchronize, gpu.empty_cache, lambda: gpu.download(buffer)):
        asked.clear()
        api.over = iter([False] * 10)
        with pytest.raises(RankError, match="has died"):
            wait()


def test_a_device_without_such_a_stream_says_so() -> None:
    device = Recorder()
    with pytest.raises(ProgramError, match="exchanges between processes are not supported on "):
        device.aside(1, Work(Streams()))
    with pytest.raises(ProgramError, match="exchanges between processes are not supported on "):
        device.join(1)
