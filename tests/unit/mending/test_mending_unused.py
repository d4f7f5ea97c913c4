"""Helpers that nobody calls, from the text of the code: which of them may be tried, and where."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.mending.sources import Sources
from aligner.mending.unused import unused

NET = """
import numpy as np


def depths(parent):
    return parent.max(-1)


def {}


class Mask:
    def construct(self, valid, size=2):
        return valid


class Net:
    def __init__(self):
        self.table, self.count = Table(3), 2
        self.mask = Mask()
        self.norm = Norm(3)
        self.used = Norm(3)

    def rows(self, x, size):
        return x[:size]

    def construct(self, x, parent, size):
        y = self.table[:size]
        return self.used(y) + x
"""


def found(folder, helper="kept(x, n=2):\n    return x * n"):
    file = folder / "net.py"
    file.write_text(NET.format(helper), encoding="utf-8")
    sources = Sources({})
    names = {"x": np.zeros(2), "parent": np.zeros(3), "size": 2, "self": None}
    line = NET.format(helper).splitlines().index("        y = self.table[:size]") + 1
    return [sources.edited(edits).text(str(file)) for edits in unused(sources, str(file), line, names)]


def test_it_is_called_with_what_has_the_names_of_its_arguments(tmp_path):
    texts = found(tmp_path)
    assert any("y = self.table[depths(parent)]\n" in text for text in texts)
    assert any("y = self.rows(x, size)\n" in text for text in texts)
    assert any("y = kept(x)\n" in text for text in texts)


def test_a_layer_that_is_never_called_is_called_with_what_there_is(tmp_path):
    texts = found(tmp_path)
    assert any("y = self.norm(parent)\n" in text for text in texts)
    assert any("y = self.mask(x)\n" in text for text in texts)
    assert not any("self.used(parent)" in text or "Mask(" in text.split("def construct(self, x")[1] for text in texts)


@pytest.mark.parametrize(
    "helper",
    [
        "kept(x):\n    open('f', 'w')\n    return x",
        "kept(x):\n    np.save('f', x)\n    return x",
        "kept(x):\n    x.net = 1\n    return x",
        "kept(x):\n    global y\n    return x",
        "kept(x):\n    x.pop()",
        "kept(x):\n    return told(x)\n\n\ndef told(x):\n    print(x)\n    return x",
        "build(x):\n    return x",
        "kept(*x):\n    return x",
        "kept(x):\n    return x\n\n\nkept(1)",
        "kept(x):\n    return x\n\n\nTABLE = {'kept': 1}",
    ],
)
def test_what_does_more_than_compute_or_is_called_is_left_alone(tmp_path, helper):
    name = helper.split("(")[0]
    assert not any(f" {name}(" in text.split("def construct")[1] for text in found(tmp_path, helper))
