"""One line on stderr that tells how far a capture is: layers, size, speed, and how large it will become."""

from __future__ import annotations

import time
from typing import Optional, TextIO

from aligner import messages
from aligner.columns import cut, width


def size(count: float) -> str:
    """Bytes as people read them: "3.2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Progress:
    """Writes at most every `period` seconds: on a terminal over the same line, elsewhere a line every ten seconds."""

    def __init__(self, stream: Optional[TextIO], language: str = "en") -> None:
        self._stream = stream
        self.language = language
        self._live = stream is not None and stream.isatty()
        self._period = 0.1 if self._live else 10.0
        self._start = self._last = time.monotonic()
        self._before = 0
        self._shown = 0
        self._weights: Optional[int] = None
        self.steps: Optional[int] = None
        """How many are to come, where that is known."""

    def begin(self, written: int) -> None:
        """A step begins; `written` bytes (weights, earlier steps) are in the dump already."""
        self._start = time.monotonic()
        self._before = written
        self._weights = written if self._weights is None else self._weights

    def update(self, step: int, layer: str, done: int, total: int, written: int) -> None:
        """`done` of `total` layers of this step have run; `written` bytes are in the dump."""
        now = time.monotonic()
        if self._stream is None or now - self._last < self._period:
            return
        self._last = now
        own = written - self._before
        done = min(done, total)
        facts = {
            "step": step,
            "number": step + 1,
            "steps": self.steps,
            "done": done,
            "total": total,
            "size": size(written),
            "speed": size(own / max(now - self._start, 1e-9)),
            "expected": size(self._expected(step, done / max(total, 1), written)),
            "layer": layer,
        }
        known = self.steps is not None and self.steps > max(step, 1)
        self._show(messages.text("capture-progress-of" if known else "capture-progress", self.language, facts))

    def _expected(self, step: int, share: float, written: int) -> float:
        """Bytes in all, if what is to come is like what was: of `step` this share has run."""
        if not step or self.steps is None or self.steps <= step:
            whole = self._before + (written - self._before) / max(share, 1e-9)
            return whole + (whole - self._before) * (max(self.steps or 1, step + 1) - step - 1)
        weights = self._weights or 0
        return weights + (written - weights) / (step + share) * self.steps

    def say(self, message: str, **facts: object) -> None:
        """Another line, as seldom as `update` writes one."""
        now = time.monotonic()
        if self._stream is not None and now - self._last >= self._period:
            self._last = now
            self._show(messages.text(message, self.language, facts))

    def _show(self, line: str) -> None:
        if self._stream is None:
            return
        if self._live:
            line = cut(line, 79)
            self._stream.write("\r" + line + " " * (self._shown - width(line)))
            self._shown = width(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take the line away before something else is printed."""
        if self._stream is not None and self._live and self._shown:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._stream.flush()
            self._shown = 0
