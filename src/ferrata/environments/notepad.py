"""The notepad of memory: a few short notes, each under a name."""

from __future__ import annotations

from collections.abc import Sequence

from ferrata.environments.base import Tool, ToolError

NOTES = 3
LONGEST = 24  # characters of a name, and of a text


class Notepad:
    """Tools that write, delete and read notes."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    def tools(self) -> Sequence[Tool]:
        """The three of them, bound to this notepad."""
        return (Tool(self.write_note), Tool(self.delete_note), Tool(self.read_notes))

    def write_note(self, name: str, text: str) -> str:
        """new or instead of the note of this name; there is room for 3"""
        if max(len(name), len(text)) > LONGEST:
            raise ToolError(f"longer than {LONGEST} characters")
        if name not in self.notes and len(self.notes) >= NOTES:
            raise ToolError(f"full: {', '.join(self.notes)}")
        self.notes[name] = text
        return "ok"

    def delete_note(self, name: str) -> str:
        """makes room"""
        if name not in self.notes:
            raise ToolError(f"no such note; there are {', '.join(self.notes) or 'none'}")
        del self.notes[name]
        return "ok"

    def read_notes(self) -> str:
        """all notes"""
        return "; ".join(f"{name}: {text}" for name, text in self.notes.items()) or "no notes"


class LostNotepad(Notepad):
    """The same tools and answers, but what was written is gone when it is read."""

    def read_notes(self) -> str:
        """all notes"""
        return "no notes"
