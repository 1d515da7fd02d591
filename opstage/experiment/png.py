"""Small grey images as PNG data URIs, to embed in a page."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt


def data_uri(image: npt.NDArray[np.floating]) -> str:
    """Encode an image (height, width), from 0 black to 1 white, clipped, as `data:image/png;base64,…`."""
    pixels = np.clip(np.rint(np.nan_to_num(image) * 255), 0, 255).astype(np.uint8)
    height, width = pixels.shape
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter type, 0 for none
    rows[:, 1:] = pixels
    chunks = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
        _chunk(b"IEND", b""),
    ]
    encoded = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()
    return f"data:image/png;base64,{encoded}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
