"""Calls of the user's functions that need not be made again, and those that must be."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

from aligner.mending.sources import Sources
from aligner.mending.whole import Whole
from aligner.registry import load
from aligner.source import ear
from aligner.source.listening import Deaf
from aligner.values import Values

torch = pytest.importorskip("torch")

ADAPTER = load("torch")

HEAD = """
import torch
from torch import nn

RUNS = {"n": 0}
SEEN = []

def ran():
    RUNS["n"] += 1

"""


class State:
    """A run of the net's own code, as a memory sees it."""

    is_plain, until = True, None

    def __init__(self):
        self.counts, self.errors, self.found, self.at, self.users = {}, {}, {}, {}, {}
        self.listener = Deaf()

    def note(self, key, error):
        self.errors[key] = error


class Net:
    """A file with a net, of which runs are made; `count` tells how often `work` was gone through."""

    def __init__(self, folder, text):
        self.path = folder / "net.py"
        self.path.write_text(HEAD + textwrap.dedent(text), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("net", self.path)
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.net, self.x = self.module.Net(), torch.arange(6.0)
        self.memory = Whole(Values(ADAPTER), ((self.x,), {}))

    def run(self, old="", new=""):
        text = self.path.read_text(encoding="utf-8")
        texts = {str(self.path): text.replace(old, new)} if old else {}
        if not self.memory.recording:
            self.memory.begin()
        self.memory.under_way(State(), Sources(texts))
        one = ear.Ear(ADAPTER, {id(self.net)}, Deaf(), texts, self.memory)
        before = self.module.RUNS["n"]
        with torch.no_grad():
            output = one.form(self.net.forward)(self.x)
        self.count = self.module.RUNS["n"] - before
        if self.memory.recording:
            self.memory.close()
        return output


PLAIN = """
class Net(nn.Module):
    def work(self, x):
        RUNS["n"] += 1
        return [x * 2, {"more": x + 1}]

    def last(self, x):
        return x - 1.5

    def forward(self, x):
        one, other = self.work(x)
        return self.last(one) + other["more"]
"""


def test_a_call_that_counts_in_a_dict_of_the_file_is_made_again(tmp_path):
    net = Net(tmp_path, PLAIN.replace('RUNS["n"] += 1', "ran()"))
    wanted = net.run()
    assert net.count == 1
    assert torch.equal(net.run("- 1.5", "- 2.5"), wanted - 1)
    assert net.count == 1


def test_what_only_computes_is_not_gone_through_again(tmp_path):
    net = Net(tmp_path, PLAIN.replace('        RUNS["n"] += 1\n', ""))
    wanted = net.run()
    net.module.torch = None  # it would not go through
    net.memory.begin()
    assert torch.equal(net.run("- 1.5", "- 2.5"), wanted - 1)


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [("x * 2", "x * 3", lambda x: x), ("x + 1", "x + 2", lambda x: 1.0 + 0 * x)],
    ids=["in itself", "in what it hands on"],
)
def test_a_call_that_an_edit_changes_is_made_again(tmp_path, old, new, moved):
    net = Net(tmp_path, PLAIN.replace('        RUNS["n"] += 1\n', ""))
    wanted = net.run()
    assert torch.equal(net.run(old, new), wanted + moved(net.x))


@pytest.mark.parametrize(
    "work",
    [
        "SEEN.append(x)",
        "self.notes.rows.append(x)",
        "self.kept = x",
        "given.append(x)",
        "global LAST; LAST = x",
    ],
    ids=["a list of the file's", "a list of an object's", "an attribute", "what it is given", "a name of the file's"],
)
def test_a_call_that_does_more_than_return_something_is_made_again(tmp_path, work):
    text = f"""
    class Notes:
        rows = []

    class Net(nn.Module):
        notes = Notes()

        def work(self, x, given):
            {work}
            ran()
            return x * 2

        def forward(self, x):
            given = []
            return self.work(x, given) + len(given) - 1.5
    """
    text = text.replace("ran()", "torch.Tensor.add_(COUNT, 1)")
    net = Net(tmp_path, text.replace("class Net", "COUNT = torch.zeros(())\n    class Net"))
    wanted = net.run()
    assert torch.equal(net.run("- 1.5", "- 2.5"), wanted - 1)
    assert int(net.module.COUNT) == 2


def test_an_object_that_a_call_makes_may_be_written_into(tmp_path):
    text = """
    class Tree:
        def __init__(self, x):
            self.total, self.rows = x, []

        def grow(self, x):
            self.rows.append(x)
            self.total = self.total + x

    class Net(nn.Module):
        def work(self, x):
            tree = Tree(x)
            for _ in range(3):
                tree.grow(x)
            return tree.total + len(tree.rows)

        def forward(self, x):
            return self.work(x) - 1.5
    """
    net = Net(tmp_path, text)
    wanted = net.run()
    net.module.Tree = None  # it would not go through
    assert torch.equal(net.run("- 1.5", "- 2.5"), wanted - 1)
