"""Other ways to write the numbers of a function, told from its text."""

from __future__ import annotations

import pytest

from aligner.mending.figures import counted, operated, raised, resized, rounded, sliced, valued
from aligner.mending.sources import Sources
from tests.unit.mending.edited import edited


def texts(tmp_path, way, line):
    file = tmp_path / "net.py"
    file.write_text(f"def f(x):\n    y = {line}\n", encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in way(Sources({}), str(file), 2)]
    return [one.partition("y = ")[2].strip() for one in found]


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("for i in range(1, n):", ["range(0, n)", "range(2, n)", "range(1, n + 1)", "range(1, n - 1)"]),
        ("y = x[k // 2 :]", ["x[(k - 1) // 2 :]", "x[k // 3 :]"]),
        ("y = roll(roll(x, -s, 1), -s, 2)", ["roll(roll(x, s, 1), s, 2)", "roll(roll(x, s, 1), -s, 2)"]),
        ("y = np.arange(n)", ["arange(1, n + 1)"]),
        ("y = np.arange(1, n + 1)", ["arange(n)"]),
        ("y = arange(n - 1, n + m - 1)", ["arange(n, n + m)", "arange(n - 2, n + m - 1)"]),
        ("y = x > k", ["x >= k", "x < k", "x != k"]),
        ("y = inside(x, n)", ["inside(x + 1, n)", "inside(x, n - 1)"]),
        ("y = pad(-k % p, -k)", ["pad((-k - 1) % p, -k)", "pad(k % p, k)"]),
        ("y = x.max(axis=-1)", ["x.max(axis=0)", "x.max(axis=-2)"]),
    ],
)
def test_numbers_that_are_one_off(tmp_path, line, others):
    file = tmp_path / "net.py"
    text = (
        f"def forward(self, x):\n    {line}\n        return 7\n" if line.endswith(":") else f"def f(x):\n    {line}\n"
    )
    file.write_text(text, encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in counted(Sources({}), str(file), 2)]
    assert all(any(other in one for one in found) for other in others)
    assert not any("-0" in one for one in found)
    assert text not in found


def test_the_nearest_lines_come_first(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def f(x):\n    a = x[1:]\n    b = a[2:]\n    return b[3:]\n", encoding="utf-8")
    found = [edits[0].new for edits in counted(Sources({}), str(file), 4)]
    assert found == ["2", "4", "1", "3", "0", "2"]


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("y = (a // h, b // w)", ["(a / h, b / w)", "(a / h, b // w)"]),
        ("y = index + 131 + seeds", ["index + 131 * seeds", "index - 131 - seeds"]),
        ("y = a ** -b", ["a * -b"]),
    ],
)
def test_other_signs(tmp_path, line, others):
    file = tmp_path / "net.py"
    file.write_text(f"def f(a, b, h, w, index, seeds):\n    {line}\n    return y\n", encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in operated(Sources({}), str(file), 2)]
    assert all(any(other in one for one in found) for other in others)


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("x[:, :, 1:]", ["x[:, :, :-1]"]),
        ("x[:-1] + y", ["x[1:] + y"]),
        ("x[2:4]", ["x[3:5]", "x[1:3]"]),
        ("x[:, i]", ["x[:, i + 1]", "x[:, i - 1]"]),
        ("x[:, a - h:, b - w:]", ["x[:, :h, :w]", "x[:, :h, b - w:]"]),
        ("x[:-1]", ["x[1:]"]),
        ("x[:n]", ["x[-n:]", "x[:n + 1]", "x[:n - 1]"]),
        ("x[:, 1:n]", ["x[:, :n - 1]", "x[:, 2:n + 1]", "x[:, :n]", "x[:, 1:]"]),
        ("x[i - 1:i + s]", ["x[i - 2:i + s - 1]", "x[i:i + s + 1]"]),
        ("x[::2]", ["x[1::2]"]),
        ("x[:, ::s]", ["x[:, s // 2::s]", "x[:, 1::s]"]),
        ("x[h::s, h::s]", ["x[::s, ::s]", "x[::s, h::s]"]),
        ("x[::-1]", []),
    ],
)
def test_slices_and_items(tmp_path, line, others):
    found = texts(tmp_path, sliced, line)
    assert set(others) <= set(found)
    assert bool(found) == bool(others)


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("int(h * f), int(w * f)", ["round(h * f), round(w * f)", "int(h * f + 0.5), int(w * f + 0.5)"]),
        ("int(h + 0.5)", ["int(h)", "round(h + 0.5)"]),
        ("n // stride", ["(n + stride - 1) // stride"]),
        ("(n + stride - 1) // stride", ["n // stride"]),
        ("ops.floor(x)", ["ops.ceil(x)", "ops.round(x)"]),
        ("np.sort(x)", ["np.unique(x)"]),
        ("math.log10(x) + 1", ["math.log(x) + 1", "math.log2(x) + 1"]),
    ],
)
def test_roundings(tmp_path, line, others):
    assert set(others) <= set(texts(tmp_path, rounded, line))


def test_sizes_in_each_others_places(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def f(x, i):\n    b, c, h, w = x.shape\n    return b, i // h, i % h\n", encoding="utf-8")
    found = [Sources({}).edited(edits).text(str(file)) for edits in resized(Sources({}), str(file), 3)]
    found = [one.partition("return ")[2].strip() for one in found]
    assert found[:3] == ["c, i // h, i % h", "h, i // h, i % h", "w, i // h, i % h"]
    assert found[3:5] == ["b, i // c, i % c", "b, i // w, i % w"]
    assert "b, i // w, i % h" in found


def test_numbers_and_attributes_that_are_numbers_as_the_references_the_nearest_first(tmp_path):
    attributes = {"self.reach": 8, "self.sign": -1.0}

    def way(sources, file, line):
        return valued(sources, file, line, [7.5, 0.01], attributes)

    found = texts(tmp_path, way, "(x + 0.02 < self.reach**2) * self.sign * self.other")
    assert found[0] == "(x + 0.02 < 7.5**2) * self.sign * self.other"
    assert found[1] == "(x + 0.01 < self.reach**2) * self.sign * self.other"
    assert len(found) == 4


@pytest.mark.parametrize(
    ("line", "others"),
    [("window", ["window**2", "window**3"]), ("self.w**3", ["self.w", "self.w**2"]), ("x + 1", []), ("x**0.5", [])],
)
def test_other_powers_of_what_has_a_name(tmp_path, line, others):
    assert texts(tmp_path, raised, line) == others


def test_axes_and_sizes_of_a_layout_are_not_one_off(tmp_path):
    found = edited(tmp_path, counted, "y = x.reshape(2, -1).transpose(0, 2, 1)[:, 3]")
    assert any("[:, 4]" in text for text in found)
    assert all("x.reshape(2, -1).transpose(0, 2, 1)" in text for text in found)


def test_one_of_two_axes_that_are_exchanged_may_be_one_off(tmp_path):
    found = edited(tmp_path, counted, "y = x.transpose(1, 2) + x.swapaxes(-1, -2)")
    assert any("x.transpose(1, 3)" in text for text in found)
    assert any("x.swapaxes(-1, -3)" in text for text in found)
