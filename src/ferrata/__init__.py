"""Ferrata: agents trained by reinforcement learning, as a pipeline anyone can rebuild."""

import os

__version__ = "0.1.0"

# torch then asks Linux for pages of 2 MB behind large arrays: fresh ones are filled in a third of
# the time. It reads this at its first tensor, which importing transformers may already make.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
