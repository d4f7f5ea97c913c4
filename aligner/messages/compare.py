"""Messages about compare."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {}
