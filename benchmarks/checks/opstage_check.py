"""Opstage: `check` of the loss and `check_step` with AdamW, for every batch size and every length up to the longest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import opstage
from benchmarks.workloads import LEARNING_RATE, WEIGHT_DECAY, Gpt
from opstage import Spec
from opstage.models import gpt


def parts(w: Gpt) -> dict[str, Callable[[], Any]]:
    config = gpt.Config(length=w.length, width=w.width, depth=w.layers, heads=w.heads, hidden=4 * w.width)
    made = gpt.make(config)
    params = {**made.init, "bytes": Spec((w.vocabulary, w.width)), "head": {"weight": Spec((w.vocabulary, w.width))}}
    optimizer = opstage.optim.adamw(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def sound(report: Any) -> Any:
        assert report.ok, report
        return report

    return {
        "forward": lambda: sound(opstage.check(made.loss, params, *made.batch)),
        "whole step": lambda: sound(opstage.check_step(made.loss, params, *made.batch, optimizer=optimizer)),
    }
