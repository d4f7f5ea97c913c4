"""What edits make of the text of a function."""

from __future__ import annotations

from aligner.mending.sources import Sources

NET = """import numpy as np
from mindspore import mint, ops


class Net:
    def construct(self, x, n):
        {}
        return y
"""

LINE = 7
"""Of what stands in it."""


def edited(folder, way, lines):
    """The whole text with each of the edits that this way tells of these lines."""
    file = folder / "net.py"
    file.write_text(NET.format(lines), encoding="utf-8")
    sources = Sources({})
    return [sources.edited(edits).text(str(file)) for edits in way(sources, str(file), LINE)]
