"""Ferrata: agents trained by reinforcement learning, as a pipeline anyone can rebuild."""

__version__ = "0.1.0"
