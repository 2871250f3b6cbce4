"""Looks after the project's folder: what is wrong, what fills the disk, what may go."""
