"""What a layer's constructor sets up, written in other ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from aligner.mending.constructor import set_up
from aligner.mending.sources import Sources

NET = """
from mindspore import mint, nn


class Net(nn.Cell):
    def __init__(self, window, merge, patch):
        super().__init__()
        side = {}
        self.after = side - 1
        self.unused = window * 2
        self.norm = nn.Dense(window, merge)

    def construct(self, x):
        x = self.norm(x)
        return mint.tile(x, (1, self.after, 1))


class Other(nn.Cell):
    def __init__(self, window):
        super().__init__()
        self.after = window + 5
"""


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("window // patch", "window // merge"),
        ("window // patch", "(window // patch) // merge"),
        ("window // 2", "(window - 1) // 2"),
        ("window * merge", "window"),
    ],
)
def test_a_number_that_the_code_uses_is_written_otherwise(tmp_path, value, wanted):
    texts = _edited(tmp_path, value)

    assert any(f"side = {wanted}\n" in text for text in texts)


def test_the_nearest_statement_is_changed_and_no_other(tmp_path):
    texts = _edited(tmp_path, "window // patch")

    assert any("self.after = side - 2" in text for text in texts)
    for line in ("self.unused = window * 2", "self.norm = nn.Dense(window, merge)", "self.after = window + 5"):
        assert all(line in text for text in texts)


def _edited(folder: Path, value: str) -> list[str]:
    file = folder / "net.py"
    file.write_text(NET.format(value), encoding="utf-8")
    sources, line = Sources({}), NET.splitlines().index("        return mint.tile(x, (1, self.after, 1))") + 1
    return [sources.edited(edits).text(str(file)) for edits in set_up(sources, str(file), line)]
