"""A search as it goes: interrupted, run again, on other numbers of threads, and compiled."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from opstage import Options
from opstage.cli.commands import cli
from opstage.verification import branch_and_bound as module
from opstage.verification.branch_and_bound import SearchInterrupted, Verification, verify
from opstage.verification.regions import RegionBounds, Regions
from opstage.verification.vnnlib import UnsafeCase, VnnProperty
from tests.verification.test_phases import above, beyond_samples, layers, network
from tests.verification.test_verify import BOXED, relu_net

HARD = ([20, 20, 20, 20, 5], 0, 0.1, 0.4)
"""A network and a property that twelve regions do not decide."""


def traced(monkeypatch: pytest.MonkeyPatch) -> tuple[Verification, str]:
    """What a search finds, and a digest of all regions that it bounded."""
    digest, right = hashlib.sha256(), module._Search.undecided

    def undecided(self: Any, case: Any, batch: Regions, options: Any) -> Any:
        for column in batch.columns():
            digest.update(np.ascontiguousarray(column).tobytes())
        return right(self, case, batch, options)

    with monkeypatch.context() as patch:
        patch.setattr(module._Search, "undecided", undecided)
        params, unsafe = beyond_samples(*HARD)
        found = verify(network, params, unsafe, splits="phases", max_boxes=12, timeout=1e9)
    return found, digest.hexdigest()


def test_regions_are_the_same_in_every_run_and_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice in this process, and in one with three threads; what is left of so few boxes is said."""
    (found, digest), (_, again) = traced(monkeypatch), traced(monkeypatch)
    assert digest == again
    assert (found.outcome, found.boxes, found.proved, found.cases) == ("unknown", 12, 0, 1) and found.left > 0
    code = (
        "import pytest\nfrom tests.verification.test_search import traced\n"
        "with pytest.MonkeyPatch.context() as patch: print(traced(patch)[1])"
    )
    limits = dict.fromkeys(["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"], "3")
    command, root = [sys.executable, "-c", code], Path(__file__).parents[2]
    run = subprocess.run(command, env={**os.environ, **limits}, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{digest}\n"


@pytest.mark.slow
def test_compiled_and_eager_searches_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """On verdicts, and on what is excluded on the way, though bounds differ in their last bits."""
    outcomes = []
    for backend in ("eager", "compiled"):
        options = Options(dtype="float32", backend=backend)
        monkeypatch.setattr(module._Search, "options", lambda self, count, options=options: options)
        outcomes.append([])
        params, unsafe = beyond_samples([6, 8, 8, 2], 0, 0.3, 0.5)
        outcomes[-1].append(verify(network, params, unsafe, splits="phases", max_boxes=100, timeout=1e9).outcome)
        params = layers([6, 8, 8, 2], 0)
        low = above(-100.0, np.full(6, -1.0), np.full(6, 1.0), 2)
        outcomes[-1].append(verify(network, params, low, splits="phases", max_boxes=100).outcome)
    assert outcomes[0] == outcomes[1] == ["holds", "violated"]


def test_bounds_of_regions_compiled_are_those_of_eager_runs() -> None:
    params = layers([6, 8, 8, 2], 0)
    found = RegionBounds(network, params, 6)
    rows = np.eye(2, dtype="f4")
    whole = Regions.whole(np.full(6, -1.0), np.full(6, 1.0), found.relus)
    halves = whole.by_phase(np.array([3])).by_phase(np.array([9, 9]))
    (eager, a), (compiled, b) = [found.bound(rows, halves, Options(backend=each)) for each in ("eager", "compiled")]
    np.testing.assert_allclose(eager, compiled, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(a.least, b.least, rtol=1e-4, atol=1e-4)


# Interrupted ----------------------------------------------------------------------------------------------------------


def interrupting(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C comes while boxes are bounded for the time `after`."""
    right, calls = module._Search.undecided, []

    def undecided(self: Any, *more: Any) -> Any:
        calls.append(None)
        if len(calls) == after:
            raise KeyboardInterrupt
        return right(self, *more)

    monkeypatch.setattr(module._Search, "undecided", undecided)


def test_a_search_that_is_interrupted_says_what_it_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    params, hard = beyond_samples(*HARD)
    (case,) = hard.cases
    easy = UnsafeCase(case.lower, case.upper, case.rows, case.limits - 1e3)
    unsafe = VnnProperty(hard.inputs, hard.outputs, (easy, case))
    interrupting(monkeypatch, 4)
    with pytest.raises(SearchInterrupted) as error:
        verify(network, params, unsafe, splits="phases", timeout=1e9)
    found = error.value.found
    assert isinstance(error.value, KeyboardInterrupt)
    assert (found.outcome, found.x, found.proved, found.cases) == ("unknown", None, 1, 2)
    assert found.boxes >= 3 and found.left > 0


def test_on_the_command_line_it_is_unknown_and_ends_with_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    relu_net(tmp_path / "net.onnx", [2, 8, 8, 1], 0)
    (tmp_path / "p.vnnlib").write_text(BOXED + "(assert (>= Y_0 1000))")
    arguments = ["verify", str(tmp_path / "net.onnx"), str(tmp_path / "p.vnnlib")]
    interrupting(monkeypatch, 1)
    run = CliRunner().invoke(cli, arguments)
    assert run.exit_code == 130 and run.stdout == "unknown\n"
    assert "0 boxes in" in run.stderr and "0 of 1 cases proved, 1 boxes left" in run.stderr
    monkeypatch.undo()
    assert CliRunner().invoke(cli, arguments).exit_code == 0
