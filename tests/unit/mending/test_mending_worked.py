"""Numbers that code works out, otherwise."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

from aligner.explain.line import Spot
from aligner.mending.differing_numbers import Figure
from aligner.mending.events import Event, Site
from aligner.mending.sources import Sources
from aligner.mending.worked import worked

NAMES = {
    "self": SimpleNamespace(dim=24, heads=4),
    "levels": 32,
    "x": SimpleNamespace(shape=(2, 7, 24)),
    "half": 1 / 255,
}

MODEL = Event("add", (), ())


@pytest.mark.parametrize(
    ("given", "step", "found", "wanted", "given_to_be", "step_to_be"),
    [
        ("1.0 / 255.0", "x + half", 1 / 255, 1 / 31, "1.0 / (levels - 1)", None),
        ("0", "x * self.dim ** -0.5", 24**-0.5, 4**-0.5, None, "x * self.heads ** -0.5"),
        ("0", "x / (self.dim * self.heads)", 96, 28, None, "x / (self.dim + self.heads)"),
        ("0", "x * (1 / self.dim)", 1 / 24, 1 / 8, None, "x * (1 / (2 * self.heads))"),
        ("0", "x * (self.dim + 1)", 25, 33, None, "x * (levels + 1)"),
        ("0", "x * (2.0 * self.dim)", 48, 48 / 32, None, "x * ((2.0 * self.dim) / levels)"),
    ],
)
def test_what_leads_to_the_number(tmp_path, given, step, found, wanted, given_to_be, step_to_be):
    text = "def f(self, x, levels):\n    half = {}\n    return {}\n"
    file = tmp_path / "net.py"
    file.write_text(text.format(given, step), encoding="utf-8")
    node = ast.parse(file.read_text()).body[0].body[1].value
    event = Event("add", (), (), site=Site(str(file), 3, 11, 3, 11 + len(step)), node=node, names=NAMES)
    figure = Figure(event, MODEL, found, wanted)
    texts = [Sources({}).edited(edits).text(str(file)) for edits in worked(Sources({}), [figure])]
    assert text.format(given_to_be or given, step_to_be or step) in texts


def test_what_is_no_number_or_leads_nowhere(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def f(self, x):\n    return x * g(x) + self.dim * 3\n", encoding="utf-8")
    node = ast.parse(file.read_text()).body[0].body[0].value
    event = Event("mul", (), (), site=Site(str(file), 2, 11, 2, 30), node=node, names=NAMES)
    assert not [*worked(Sources({}), [Figure(event, MODEL, 72.0, 71.7)])]


@pytest.mark.parametrize(("wanted", "line"), [(4.0, "x * y"), (0.25, "x * 0.25")])
def test_a_small_number_and_one_that_is_written_out_are_no_sizes(tmp_path, wanted, line):
    file = tmp_path / "net.py"
    file.write_text("def f(self, x):\n    return x * (1 / self.dim)\n", encoding="utf-8")
    node = ast.parse(file.read_text()).body[0].body[0].value
    event = Event("mul", (), (), site=Site(str(file), 2, 11, 2, 30), node=node, names=NAMES)
    model = Event("mul", (), (), spot=Spot("ref.py", 1, line, "mul"))
    assert not [*worked(Sources({}), [Figure(event, model, 1 / 24, wanted)])]


@pytest.mark.parametrize(
    ("line", "first", "not_told"),
    [
        ("x * (d // self.heads) ** -0.5", "d // self.heads", "n + 1"),
        ("x.mean(-1) * self.scale", "d // 3", "n + 1"),
        ("x * (n + 1) ** -0.5", "n + 1", "2 * n"),
        ("x = torch.mul(x,", "d // 3", "2 * n"),
    ],
)
def test_what_is_written_comes_before_what_is_so_by_chance(tmp_path, line, first, not_told):
    file = tmp_path / "net.py"
    file.write_text("def f(self, x):\n    y = x.reshape(-1, d // 3)\n    return x * d ** -0.5\n", encoding="utf-8")
    node = ast.parse(file.read_text()).body[0].body[1].value
    names = {"self": SimpleNamespace(heads=3), "d": 24, "n": 7, "b": 4}
    event = Event("mul", (), (), site=Site(str(file), 3, 11, 3, 24), node=node, names=names)
    model = Event("mul", (), (), spot=Spot("ref.py", 1, line, "mul"))
    told = [edit.new.strip("()") for (edit,) in worked(Sources({}), [Figure(event, model, 24**-0.5, 8**-0.5)])]
    assert told[0] == first
    assert ("n + 1" in told) is (not_told != "n + 1")  # also of half a statement, which may say it
    assert not_told not in told
