"""Keeping the memory that training frees."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # mallopt(3)
TOP_PAD = 256 * 2**20  # bytes asked for at once


def keep_freed_memory() -> bool:
    """Tell glibc not to give freed memory back between operations.

    A training step on a processor allocates and frees the same large arrays over and over; by
    default each comes fresh from the kernel, page by page: about a tenth of a step of SmolLM2-135M.
    Results do not change. Peak memory may grow by fragmentation.

    Returns:
        Whether the C library took the settings (False where it is not glibc).
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, TOP_PAD))
    return all([mallopt(name, value) == 1 for name, value in settings])  # noqa: C419 - try all
