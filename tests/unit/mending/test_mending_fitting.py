"""A number that only the errors of runs tell."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from aligner.mending.fitting import fitted, told
from aligner.mending.sources import Sources


@pytest.mark.parametrize(
    ("written", "wanted"),
    [(0.5, 0.75), (0.75, 0.5), (2.0, 0.07), (0.1, 0.062)],
)
@pytest.mark.parametrize("bent", [0.0, 0.2], ids=["straight", "bent"])
def test_it_is_told_by_how_far_off_two_others_are(written, wanted, bent):
    tried = []

    def error(number):
        tried.append(number)
        return abs((number - wanted) + bent * (number - wanted) ** 2 / (abs(wanted) + abs(written)))

    assert f"{wanted:.9g}" in told(written, error(written), error)
    assert len(tried) <= 12


@pytest.mark.parametrize("error", [lambda n: 0.3, lambda n: None, lambda n: math.inf, lambda n: 0.3 + abs(n - 0.7)])
def test_what_it_does_not_put_right_is_not_told(error):
    assert [*told(0.5, 0.3, error)] == []


def test_more_digits_than_people_write_are_not_told():
    assert "0.83333" not in [*told(0.5, 0.33333, lambda n: abs(n - 0.83333))]


def test_few_numbers_tell_nothing(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def f(x):\n    y = x * 1.5\n    return y\n", encoding="utf-8")
    found = [len([*fitted(Sources({}), [(str(file), 2)], size, 1.0, halved)]) for size in (1, 15, 16)]
    assert found[:2] == [0, 0]
    assert found[2] > 0


def halved(edit):
    return abs(float(edit.new) - 3.0) / 1.5


def test_numbers_of_the_function_and_of_the_file(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "A = -0.5\nB = 0.25\n\n\ndef f(x, a=A):\n    y = x * 1.5 + 1e-6\n    return y * 2\n", encoding="utf-8"
    )
    asked = []

    def error(edit):
        asked.append((edit.start, edit.new))

    assert [*islice(fitted(Sources({}), [(str(file), 6)], 40, 1.0, error), 9)] == []
    text = file.read_text(encoding="utf-8")
    assert [text[start : start + 3] for start, _ in asked] == ["1.5", "0.5"]
