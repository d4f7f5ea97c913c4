"""What calls of a file's own functions are told, told otherwise, from the text."""

from __future__ import annotations

import pytest

from aligner.mending.callers import told
from aligner.mending.sources import Sources

NET = """
from mindspore import ops


def shifted(x, by, fill=None, wrap=True):
    return ops.roll(x, by) if fill is None else ops.pad(x, (by, fill))


class Net:
    def side(self, x, mask=None, *, turns=1):
        return x

    def other(self, x):
        return shifted(self.side(x, turns=3), 2, 7)

    def construct(self, x, mask):
        {}
        return y
"""

LINE = 17
"""Of what stands in it."""


def edited(folder, line):
    file = folder / "net.py"
    file.write_text(NET.format(line), encoding="utf-8")
    sources = Sources({})
    texts = [sources.edited(edits).text(str(file)) for edits in told(sources, str(file), LINE)]
    return [text.splitlines()[LINE - 1].strip() for text in texts]


@pytest.mark.parametrize(
    ("line", "others"),
    [
        (
            "y = ops.cat((shifted(x, 1), shifted(x, -1)))",
            [
                "y = ops.cat((shifted(x, 1, fill=7), shifted(x, -1, fill=7)))",
                "y = ops.cat((shifted(x, 1, fill=7), shifted(x, -1)))",
                "y = ops.cat((shifted(x, 1), shifted(x, -1, fill=7)))",
                "y = ops.cat((shifted(x, 1, fill=0), shifted(x, -1, fill=0)))",
                "y = ops.cat((shifted(x, 1, wrap=False), shifted(x, -1, wrap=False)))",
            ],
        ),
        ("y = self.side(x, mask)", ["y = self.side(x, None)", "y = self.side(x, mask, turns=3)"]),
        ("y = ops.roll(x, 1)", []),
        ("y = shifted(*x)", []),
    ],
)
def test_what_own_functions_take_if_they_are_given_it(tmp_path, line, others):
    found = edited(tmp_path, line)
    assert [text for text in found if text in others] == others
    assert bool(found) == bool(others)
