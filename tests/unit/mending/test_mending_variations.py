"""Other ways to write a function, told from its text."""

from __future__ import annotations

import pytest

from aligner.mending.constants import reordered
from aligner.mending.regrouped import unturned
from aligner.mending.results import kept
from aligner.mending.sources import Sources
from aligner.mending.variations import (
    drawn_in,
    drawn_out,
    exchanged,
    moved,
    renamed,
    renamed_own,
    repeated,
    swapped,
    turned_out,
)

STEPS = """
def forward(self, x):
    b = len(x)
    x = self.one(x)
    if self.wide:
        x = self.two(x)
    y = x + b
    return y
"""


def test_statements_that_share_a_variable_are_exchanged(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(STEPS, encoding="utf-8")
    sources = Sources({})
    found = [sources.edited(pair).text(str(file)) for pair in exchanged(sources, str(file), {4})]
    without = STEPS.replace("    x = self.one(x)\n", "")
    earlier = without.replace("    b =", "    x = self.one(x)\n    b =")
    assert found == [earlier, without.replace("two(x)\n", "two(x)\n    x = self.one(x)\n")]


def test_a_variable_of_the_turn_before_is_kept_before_it_is_made_anew(tmp_path):
    file = tmp_path / "net.py"
    loop = "    for step in self.steps:\n        now = step(x, old)\n        x = now\n        old = x\n"
    text = f"def forward(self, x):\n    x, old = x[0], x[1]\n{loop}"
    file.write_text(text, encoding="utf-8")
    sources = Sources({})
    found = [sources.edited(pair).text(str(file)) for pair in exchanged(sources, str(file), {6})]
    assert text.replace("x = now\n        old = x", "old = x\n        x = now") in found


def test_what_is_made_inside_a_statement_is_made_before_it(tmp_path):
    file = tmp_path / "net.py"
    text = "def forward(self, x, n):\n    x = x + self.g(self.f(x, n), n)\n    return self.h(x)\n"
    file.write_text(text, encoding="utf-8")
    found = [Sources({}).edited(pair).text(str(file)) for pair in drawn_out(Sources({}), str(file), 2)]
    assert found == [text.replace("x = x + self.g(self.f(x, n), n)", "x = self.f(x, n)\n    x = x + self.g(x, n)")]
    assert [*drawn_out(Sources({}), str(file), 3)] == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("x = self.f(x)\n    x = x + self.g(x)", "x = x + self.g(self.f(x))"),
        ("y = self.f(x)\n    x = y.sum(-1)", "y = x\n    x = self.f(x).sum(-1)"),
        ("x = self.f(x.t()).t()\n    y = self.g(x)", "y = self.g(self.f(x.t()).t())"),
        ("x = x * self.f(x)\n    y = x.sum(-1)", "y = (x * self.f(x)).sum(-1)"),
        ("x = self.f(x)\n    y = x[0], self.g(x[1:])", "y = self.f(x[0]), self.g(x[1:])"),
    ],
)
def test_what_is_made_before_a_statement_is_made_inside_it(tmp_path, wrong, right):
    file = tmp_path / "net.py"
    text = f"def forward(self, x):\n    {wrong}\n    return self.h(x)\n"
    file.write_text(text, encoding="utf-8")
    found = [Sources({}).edited(pair).text(str(file)) for pair in drawn_in(Sources({}), str(file), 3)]
    assert text.replace(wrong, right) in found


def test_what_has_no_value_before_is_not_used_before(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(STEPS.replace("    if self", "    z = x\n    w = z\n    if self"), encoding="utf-8")
    assert [*exchanged(Sources({}), str(file), {6})] == []


def test_variables_that_are_made_beside_each_other_change_names(tmp_path):
    file = tmp_path / "net.py"
    text = "def forward(self, x):\n    a, b = x.chunk(2)\n    c = x + 1\n    return a * b.sum() + c\n"
    file.write_text(text, encoding="utf-8")
    found = [Sources({}).edited(pair).text(str(file)) for pair in renamed(Sources({}), str(file), 4)]
    assert found == [
        text.replace("a, b =", "a, c =").replace("    c =", "    b ="),
        text.replace("a, b =", "b, a ="),
    ]


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("y = pad(x, (0, 1))", ["pad(x, (1, 0))"]),
        ("y = cat([h, w, h, w], 1)", ["cat([w, h, w, h], 1)", "cat([w, h, h, w], 1)"]),
        ("y = a * x - b * self.v", ["b * x - a * self.v", "a * self.v - b * x", "a * b - x * self.v"]),
        ("y = f(g(x, 1), axis=2)", ["g(f(x, axis=2), 1)"]),
        ("y = F.relu(self.a(x))", ["self.a(F.relu(x))"]),
        ("y = where(a, b, b + 1)", ["where(a, b + 1, b)"]),
        ("y = (a + 1) @ f(x)", ["(f(x)) @ (a + 1)"]),
    ],
)
def test_what_a_statement_works_on_is_swapped(tmp_path, line, others):
    file = tmp_path / "net.py"
    file.write_text(f"def f(x):\n    {line}\n", encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in swapped(Sources({}), str(file), 2)]
    assert all(any(f"y = {other}\n" in one for one in found) for other in others)


def test_names_that_a_value_is_taken_apart_into_are_swapped(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def f(x):\n    b, c, _, w = x.shape\n", encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in swapped(Sources({}), str(file), 2)]
    assert any("b, c, w, _ = x.shape" in one for one in found)


def test_a_residual_is_taken_again(tmp_path):
    file = tmp_path / "net.py"
    text = "def f(x):\n    r = x\n    x = a(x)\n    x = r + x\n    x = b(x)\n    return r + x\n"
    file.write_text(text, encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in repeated(Sources({}), str(file), 6)]
    assert text.replace("    x = b", "    r = x\n    x = b") in found


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("y = f(x * a, 1)", ["(f(x, 1) * a)", "(f(a, 1) * x)"]),
        ("y = f(x + 1, 1) * (a - b)", ["f((x + 1) * (a - b), 1)"]),
    ],
)
def test_a_sign_is_moved_into_a_call_and_out_of_it(tmp_path, line, others):
    file = tmp_path / "net.py"
    file.write_text(f"def f(x):\n    {line}\n", encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in moved(Sources({}), str(file), 2)]
    assert all(any(f"y = {other}\n" in one for one in found) for other in others)


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("y = norm(x + attn(x, m))", ["x + attn(norm(x), m)"]),
        ("y = x + fc2(act(norm(x)))", ["norm(x + fc2(act(x)))"]),
        ("y = fc(norm(x)) + x", ["norm(x + fc(x))"]),
        ("y = norm(x + z)", []),
    ],
)
def test_a_norm_stands_before_what_it_stands_behind(tmp_path, line, others):
    file = tmp_path / "net.py"
    file.write_text(f"def f(x):\n    {line}\n", encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in turned_out(Sources({}), str(file), 2)]
    assert all(any(f"y = {other}\n" in one for one in found) for other in others)
    assert bool(found) == bool(others)


def test_what_a_layer_keeps_is_taken_for_another_of_its_kind(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def f(self, x):\n    return self.a(x) + self.rows\n", encoding="utf-8")
    others = {"a": ["b"], "rows": ["columns"]}
    found = [Sources({}).edited(edits).text(str(file)) for edits in renamed_own(Sources({}), str(file), 2, others)]
    assert {one.split("return ")[1] for one in found} == {"self.b(x) + self.rows\n", "self.a(x) + self.columns\n"}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            "for f in self.all:\n        out, _ = f(out, points)\n    return out, points",
            ["out, points = f(out, points)"],
        ),
        ("self.norm(x)\n    return self.head(x)", ["x = self.norm(x)"]),
        ("a, b = self.f(x)\n    return a + b", []),
    ],
)
def test_what_is_thrown_away_is_kept_under_a_name_that_is_read(tmp_path, body, found):
    file = tmp_path / "net.py"
    text = f"def forward(self, x):\n    out = points = x\n    {body}\n"
    file.write_text(text, encoding="utf-8")
    texts = [Sources({}).edited(edits).text(str(file)) for edits in kept(Sources({}), str(file), 4)]
    assert [line.strip() for one in texts for line in one.splitlines() if line not in text.splitlines()] == found


def test_names_of_a_file_that_a_constructor_uses_are_put_in_other_orders_the_first_of_each_in_turn(tmp_path):
    file = tmp_path / "net.py"
    text = "TWO = ['a', 'b', 'c', 'd', 'e']\nMANY = ('p', 'q', 'r', 's', 't', 'u')\n\n\nclass Net:\n"
    text += "    def __init__(self):\n        self.n = [(MANY + TWO).index(one) for one in MANY]\n\n"
    text += "    def construct(self, x):\n        return x[self.n]\n"
    file.write_text(text, encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in reordered(Sources({}), str(file), 10, [])]
    wanted = text.replace("'a', 'b', 'c', 'd'", "'c', 'd', 'a', 'b'"), text.replace("'s', 't', 'u'", "'u', 't', 's'")
    assert all(one in found[:40] for one in wanted)


def test_numbers_in_a_row_of_a_constructor_are_put_in_other_orders(tmp_path):
    file = tmp_path / "net.py"
    text = "class Net:\n    def __init__(self):\n        self.std = array([0.1, 0.2])\n        self.n = (2, 3)\n\n"
    text += "    def construct(self, x):\n        return x / self.std\n"
    file.write_text(text, encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in reordered(Sources({}), str(file), 7, [])]
    assert found == [text.replace("0.1, 0.2", "0.2, 0.1")]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("x.reshape(b, n, 6).swapaxes(1, 2)", "x.reshape(b, 6, n)"),
        ("x.reshape(b, n, 6).swapaxes(-1, -2).sum(1)", "x.reshape(b, 6, n).sum(1)"),
        ("x.view(b, h, n, 6).permute(0, 2, 1, 3)", "x.view(b, n, h, 6)"),
        ("x.reshape((n, b) + x.shape[1:]).swapaxes(0, 1)", "x.reshape((b, n) + x.shape[1:])"),
    ],
)
def test_what_is_split_and_turned_is_split_otherwise(tmp_path, wrong, right):
    file = tmp_path / "net.py"
    file.write_text(f"def f(x, b, h, n):\n    return {wrong}\n", encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in unturned(Sources({}), str(file), 2)]
    assert found == [f"def f(x, b, h, n):\n    return {right}\n"]


@pytest.mark.parametrize("line", ["x.reshape((n, b) + y).swapaxes(0, 2)", "x.reshape(n, b).swapaxes(0, k)", "x.T"])
def test_what_cannot_be_read_is_left(tmp_path, line):
    file = tmp_path / "net.py"
    file.write_text(f"def f(x, y, b, k, n):\n    return {line}\n", encoding="utf-8")
    assert [*unturned(Sources({}), str(file), 2)] == []
