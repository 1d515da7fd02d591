"""The ratios in the guide's page on multiple processes are those of the recorded measurement."""

from __future__ import annotations

import json
import re

from tests.docs.blocks import ROOT


def test_the_cpu_time_of_a_rank_is_the_recorded_one() -> None:
    record = json.loads((ROOT / "benchmarks" / "results" / "scaling.json").read_text())
    text = (ROOT / "docs" / "guide" / "multiple-processes.md").read_text()
    said = {name: float(ratio) for name, ratio in re.findall(r"^\| ([a-z-]+) \| (\d\.\d\d) \|$", text, re.MULTILINE)}
    measured = {}
    for each in record["workloads"]:
        runs = each["sides"]["compiled"]
        measured[each["workload"]] = round(runs["strong"]["cpu_ms"] / runs["own rows"]["cpu_ms"], 2)
    assert said == measured
