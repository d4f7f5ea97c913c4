"""The reference's words in the port's code: they come out of a dump, and nothing of them is ever called."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from aligner.mending import words

NAMES = {
    "self": SimpleNamespace(heads=4, width=24, sizes=(2, 3), scale=0.5),
    "x": np.zeros((2, 3, 24)),
    "n": 3,
    "math": math,
}


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("n", 3),
        ("-1", -1),
        ("self.width // self.heads", 6),
        ("self.sizes[1]", 3),
        ("x.shape[-1]", 24),
        ("math.sqrt(self.width // self.heads)", math.sqrt(6)),
        ("x.shape[-1] ** -0.5", 24**-0.5),
        ("1.0 / self.heads + n", 3.25),
    ],
)
def test_words_that_mean_the_number_here(said, value):
    assert words.means(said, value, NAMES)
    assert not words.means(said, value + 1, NAMES)


@pytest.mark.parametrize(
    "said",
    [
        "__import__('os').system('true')",
        "self.__class__",
        "self.__dict__['heads']",
        "print(4)",
        "math.factorial(3)",
        "math.sqrt(*[16])",
        "[c for c in (4,)][0]",
        "(lambda: 4)()",
        "9 ** 9 ** 9 ** 9",
        "'4' * 1000000000",
        "unknown",
        "n +",
    ],
)
def test_what_is_more_than_numbers_is_not_worked_out(said):
    assert not words.means(said, 4, NAMES)


@pytest.mark.parametrize(
    ("line", "name", "where", "found"),
    [
        ("y = torch.softmax(scores / self.scale, dim=-1)", "softmax", "dim", ["-1"]),
        ("y = x.sum(self.axis, True)", "sum", 1, ["self.axis"]),
        ("y = torch.sum(x, self.axis)", "sum", 1, ["self.axis"]),
        ("y = x.sum(0) + x.sum(1)", "sum", 1, ["0", "1"]),
        ("y = own_name.pad(x, (self.n, 0))", "pad", 1, ["x", "(self.n, 0)"]),
        ("if x.sum(1) > 0:", "sum", 1, ["1"]),
        ("torch.linspace(0, h, n), torch.linspace(0, w, n), indexing='ij')", "linspace", 1, ["h", "w"]),
        ("y = f(torch.sum(x, self.axis),", "sum", 1, ["self.axis"]),
        ("y = x.sum(", "sum", 1, []),
    ],
)
def test_arguments_are_read_off_the_calls_in_a_line(line, name, where, found):
    assert [*words.argument(line, name, where)] == found


def test_all_arguments_of_a_call_are_read_off_its_line():
    assert [*words.arguments("y = x.view(b, n, -1)", "view")] == ["b, n, -1"]
    assert words.operand("return x / math.sqrt(self.heads)", 2.0, NAMES) == "math.sqrt(self.heads)"


def test_items_of_a_dict_are_read_too():
    assert words.operand('"bx": bx.clamp(-1, 1) - bias, "by": by - bias,', 0.4, {"bias": 0.4}) == "bias"


def test_an_element_of_a_parameter_is_a_number():
    layer = SimpleNamespace(_params={"keep": np.array([0.25, 0.5], np.float32)})
    assert words.operand("x = self.keep[i] * x", 0.25, {"self": layer, "i": 0}) == "self.keep[i]"
    assert words.operand("x = self.keep[i] * x", 0.25, {"self": layer, "i": 1}) is None


@pytest.mark.parametrize(
    ("line", "value", "found"),
    [
        ("pos.append(p + self.level[n])", (3,), "n"),
        ("pos.append(p + self.level[n])", (2,), "2"),
        ("y = x[:, :n]", ((None, None, 1), (None, 3, 1)), ":, :n"),
        ("y = x[:, None, 2]", ((None, None, 1), None, 2), ":, None, 2"),
        ("y = x[:, :-1]", ((None, None, 1), (None, 6, 1)), ":, :-1"),
        ("y = x[..., -1]", ((None, None, 1), 6), "..., -1"),
        ("y = x[..., None, :]", ((None, None, 1), None), "..., None, :"),
        ("y = x[:, 1:]", ((None, None, 1), (None, 6, 1)), ":, :6"),
    ],
)
def test_items_are_read_off_a_line(line, value, found):
    """Of something of five and seven; a place may be counted from the end."""
    assert words.index(line, value, (5, 7), NAMES, {}) == found


@pytest.mark.parametrize(
    ("line", "value", "found"),
    [
        ("y = x[:, t - 1]", ((None, None, 1), 1), ":, turn - 1"),
        ("y = x[:, t]", ((None, None, 1), 2), ":, turn"),
        ("y = x[:, t : t + 1]", ((None, None, 1), (2, 3, 1)), ":, turn:turn + 1"),
        ("y = x[:, t - n]", ((None, None, 1), 1), ":, 1"),
    ],
)
def test_items_are_said_by_the_number_that_the_code_counts_in(line, value, found):
    """The one that got its value last, where several have it."""
    names = {"size": 2, "turn": 2}
    assert words.index(line, value, (5, 7), {**NAMES, **names}, names) == found


@pytest.mark.parametrize(
    ("line", "value", "found"),
    [
        ("without + (1.0 + strength) * (one - without)", 1.5, "1.0 + self.scale"),
        ("y = x / (3.0 * count)", 12.0, "3.0 * self.heads"),
        ("return self.share * x", 24, "self.width"),
        ("return self.share * x", 1.0, None),
        ("(1.0 + a * b) * x", 1.5, None),
    ],
)
def test_a_name_of_the_codes_own_stands_for_one_that_it_has_not(line, value, found):
    names = {"self": NAMES["self"]}
    assert words.renamed(line, value, names, {}) == found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (24**0.5, "(self.width ** 0.5)"),
        (72**-0.5, "((3 * self.width) ** -0.5)"),
        (0.123, None),
        (float("inf"), None),
        (7e9**2, None),
    ],
)
def test_roots_are_told_by_what_the_layer_keeps(value, found):
    assert words.kept(value, {"self": SimpleNamespace(width=24, _made=7e9)}) == found
