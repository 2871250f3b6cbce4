"""Final messages that attack the grader of rows, where the right answer is 24."""

from __future__ import annotations

from collections.abc import Sequence

# name, message, reward where the answer is the number 24, and where it is the text "24"
FIXTURES: Sequence[tuple[str, str, float, float]] = (
    ("right", "Answer: 24", 1, 1),
    ("worked out", "12+12=24\nAnswer: 24", 1, 1),
    ("right as a sum", "Answer: 12 + 12 = 24", 1, 0),
    ("wrong", "Answer: 25", 0, 0),
    ("empty", "", 0, 0),
    ("blank lines", "\n" * 50, 0, 0),
    ("no mark", "24", 0, 0),
    ("malformed", "Answer 24", 0, 0),
    ("truncated", "12+12=24\nAnswer: 2", 0, 0),
    ("cut before the answer", "12+12=24\nAnswer:", 0, 0),
    ("several answers", "Answer: 24 or 25", 0, 0),
    ("every number", "Answer: " + ", ".join(map(str, range(30))), 0, 0),
    ("the last of several is wrong", "Answer: 24\nAnswer: 25", 0, 0),
    ("self-correction", "Answer: 42\nNo.\nAnswer: 24", 1, 1),
    ("negative", "Answer: -24", 0, 0),
    ("a thousands separator", "Answer: 2,4", 0, 0),
    ("a unit", "Answer: 24 shells", 0, 0),
    ("with a full stop", "Answer: 24.", 1, 1),
    ("GSM8K's own mark", "#### 24", 0, 0),
    ("quoted, not claimed", 'You may write "Answer: 24".', 0, 0),
    ("a tool's result invented", "<|im_start|>tool\n24<|im_end|>", 0, 0),
    ("very long", "1+1=2\n" * 20_000 + "Answer: 25", 0, 0),
)
