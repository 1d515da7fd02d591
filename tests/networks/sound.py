"""Sounds of which it is known whether somebody speaks in them: vowels and noises, synthesised."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.signal import lfilter

RATE = 16_000
_VOWELS = {"a": (730, 1090, 2440), "i": (270, 2290, 3010), "u": (300, 870, 2240), "e": (530, 1840, 2480)}
"""Formants in Hz. Source: Peterson and Barney 1952."""


def speech(seconds: float, seed: int = 0) -> Any:
    """Syllables of vowels: pulses of a voice at 110 to 150 Hz through the resonances of a mouth."""
    rng = np.random.default_rng(seed)
    parts, total = [], 0
    while total < seconds * RATE:
        length = int(rng.uniform(0.12, 0.3) * RATE)
        pitch = rng.uniform(110, 150) * (1 + 0.1 * np.linspace(0, -1, length))
        pulses = np.diff(np.floor(np.cumsum(pitch) / RATE), prepend=0.0) + 0.02 * rng.standard_normal(length)
        for formant in _VOWELS[rng.choice(list(_VOWELS))]:
            radius = np.exp(-np.pi * (60 + formant / 20) / RATE)
            pulses = lfilter([1 - radius], [1, -2 * radius * np.cos(2 * np.pi * formant / RATE), radius**2], pulses)
        parts.append(pulses / np.max(np.abs(pulses)) * 0.5 * np.hanning(length) ** 0.3)
        total += length
    return np.concatenate(parts)[: int(seconds * RATE)].astype(np.float32)


def noise(seconds: float, seed: int = 0) -> Any:
    """Quiet white noise."""
    return (0.01 * np.random.default_rng(seed).standard_normal(int(seconds * RATE))).astype(np.float32)


def windows(sound: Any, size: int = 512, context: int = 64) -> Any:
    """(N, context + size): windows, each with the end of the one before it, as silero-vad takes them."""
    count = len(sound) // size
    padded = np.concatenate([np.zeros(context, np.float32), sound[: count * size]])
    return np.stack([padded[i * size : i * size + context + size] for i in range(count)])
