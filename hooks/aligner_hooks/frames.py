"""Which line of the user's an operation stands in: the nearest frame that is no framework's and not ours."""

from __future__ import annotations

import os
import sys
from typing import Any, Optional

DEEP = 40
"""Frames that are looked through."""

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Frames:
    """Knows the folders of one framework's packages."""

    def __init__(self, *packages: Any) -> None:
        folders = [os.path.dirname(os.path.abspath(package.__file__)) + os.sep for package in packages]
        self._inside = (*folders, _OURS, "<frozen")

    def line(self) -> Optional[tuple[str, int]]:
        """File and line of who has called the framework."""
        frame = sys._getframe(1)
        for _ in range(DEEP):
            if not frame.f_code.co_filename.startswith(self._inside):
                return frame.f_code.co_filename, frame.f_lineno
            if frame.f_back is None:
                return None
            frame = frame.f_back
        return None
