"""Loops and lists from their other end."""

from __future__ import annotations

import pytest

from aligner.mending.directions import backwards, turned_round
from aligner.mending.sources import Sources


@pytest.mark.parametrize(
    ("item", "others"),
    [("x[:, i + 1]", ["x[:, n - 1 - 1 - i]", "x[:, n - 1 - i]"]), ("x[k]", []), ("x[i]", ["x[n - 1 - i]"])],
)
def test_items_from_the_last_one_on(tmp_path, item, others):
    file = tmp_path / "net.py"
    file.write_text(
        f"def f(x, n, k):\n    for i in range(n - 1):\n        y = {item}\n    return y\n", encoding="utf-8"
    )
    found = [Sources({}).edited(edits).text(str(file)) for edits in backwards(Sources({}), str(file), 3)]
    assert all(any(f"y = {other}\n" in one for one in found) for other in others)
    assert len(found) == 2 * bool(others)


@pytest.mark.parametrize(
    ("loop", "others"),
    [
        ("x", ["x[::-1]"]),
        ("self.x", ["self.x[::-1]"]),
        ("x[::-1]", ["x"]),
        ("reversed(x)", ["x"]),
        ("range(n, 2)", ["reversed(range(n, 2))"]),
        ("enumerate(x)", ["enumerate(x[::-1])"]),
        (
            "zip(self.a, x, y, z[:2])",
            [
                "zip(self.a[::-1], x, y, z[:2])",
                "zip(self.a, x[::-1], y, z[:2])",
                "zip(self.a, x, y[::-1], z[:2])",
                "zip(self.a, x[::-1], y[::-1], z[:2])",
            ],
        ),
        ("x.items()", []),
    ],
)
@pytest.mark.parametrize(
    "text", ["def f(self, x):\n    for i in {}:\n        g(i)\n", "def f(self, x):\n    return [\n i for i in {}]\n"]
)
def test_what_a_loop_goes_through_from_its_other_end(tmp_path, text, loop, others):
    file = tmp_path / "net.py"
    file.write_text(text.format(loop), encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in turned_round(Sources({}), str(file), 3)]
    assert found == [text.format(other) for other in others]


@pytest.mark.parametrize(("said", "other"), [("pop()", "pop(0)"), ("pop(0)", "pop()")])
def test_items_are_taken_from_the_other_end(tmp_path, said, other):
    file = tmp_path / "net.py"
    file.write_text(f"def f(x, y):\n    y = x.{said} + y.pop(1)\n    return y\n", encoding="utf-8")
    (edits,) = turned_round(Sources({}), str(file), 2)
    assert Sources({}).edited(edits).text(str(file)) == f"def f(x, y):\n    y = x.{other} + y.pop(1)\n    return y\n"
