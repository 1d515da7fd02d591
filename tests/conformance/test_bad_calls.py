"""A bad call fails with one clear message, the same on every interpreter, that names the op and the caller's line."""

from __future__ import annotations

import re

import pytest

import opstage
from opstage.ops.errors import LocatedError
from opstage.options import Options
from tests.conformance.harness import cast_tree
from tests.samples import BAD_CALLS
from tests.samples.sample import BadCall


@pytest.mark.parametrize("bad", BAD_CALLS, ids=lambda b: b.id)
def test_bad_call(bad: BadCall) -> None:
    args = cast_tree(bad.arrays(), "float32")
    reasons: dict[str, str] = {}
    for name in ("eager", "shape_check"):
        with pytest.raises(LocatedError) as caught:
            opstage.run(lambda ops, *refs: bad.apply(ops, *refs), *args, options=Options(backend=name))
        error = caught.value
        assert error.op is not None
        assert error.source is not None and error.source.file.endswith(".py")
        assert re.search(bad.message, str(error)), f"{error!s} does not say {bad.message!r}"
        reasons[name] = f"{error.op}: {error.reason}"
    assert len(set(reasons.values())) == 1, reasons

    report = opstage.check(lambda ops, *refs: bad.apply(ops, *refs), *args)
    assert not report.ok
    assert report.errors[0].reason in reasons["eager"]
