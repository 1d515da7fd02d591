"""Before a run its processes compare what they are about to do; a difference is one error of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opstage.runs.processes import DisagreementError, agree, fingerprint
from opstage.runs.run_setup import prepare
from opstage.runs.settings import configure
from tests.distributed.threads import Threads, on_processes

TEMPLATE = Path(__file__).parents[2] / "opstage" / "cli" / "new_model.txt"


def test_another_text_of_the_model_file_is_told(tmp_path: Path) -> None:
    """At one path, as hosts may have it on disks of their own."""
    file, found = tmp_path / "own.py", []
    for end in ("", "\n# edited\n"):
        file.write_text(TEMPLATE.read_text() + end)
        configuration = configure(str(file))
        found.append(fingerprint(prepare(configuration.settings), configuration))
    same = {name for name in found[0] if found[0][name] == found[1][name]}
    assert set(found[0]) - same == {"the digest of own.py"}


@pytest.mark.parametrize(
    "documents, errors, said",
    [
        (({"a": 1}, {"a": 1}), ("", ""), ""),
        (({"a": 1}, {"a": 2}), ("", ""), "the processes of this run differ: a is 1 on process 0, and 2 on process 1"),
        (({"a": 1}, {}), ("", ""), "a is 1 on process 0, and None on process 1"),
        (({}, {}), ("", "no such file"), "process 1 of 2: no such file"),
        (({}, {}), ("no mesh", "no mesh"), "no mesh"),
    ],
)
def test_all_know_the_one_error(documents: Any, errors: Any, said: str) -> None:
    def run(transport: Threads) -> str:
        try:
            agree(transport, documents[transport.process], errors[transport.process])
        except DisagreementError as error:
            return str(error)
        return ""

    first, second = on_processes(2, run)
    assert first == second and (said in first) and bool(said) == bool(first)
