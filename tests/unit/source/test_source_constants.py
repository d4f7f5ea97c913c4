"""What a file works out of plain values outside of functions, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.source.constants import constants

HEAD = "import math\nfrom math import sqrt as root\nimport numpy as np\nimport others\nSIZE = 6\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("(0.5, 0.25)", (0.5, 0.25)),
        ("{'a': [1, -2.5]}", {"a": [1, -2.5]}),
        ("9017 / 3168", 9017 / 3168),
        ("SIZE // 2 + 1", 4),
        ("[SIZE] * 2 + [1]", [6, 6, 1]),
        ("[one - other for one, other in zip((3, 2), range(2))]", [3, 1]),
        ("{size: size**2 for size in (1, SIZE) if size}", {1: 1, 6: 36}),
        ("math.log(2) / math.pi", 0.6931471805599453 / 3.141592653589793),
        ("root(16.0) if SIZE > 3 else None", 4.0),
        ("max((1, 2), key=len)", None),
        ("str(SIZE)", None),
        ("others.SIZE", None),
        ("others.read()", None),
        ("SIZE.bit_length()", None),
        ("(lambda: 1)()", None),
        ("f'{SIZE}'", None),
        ("np.random.rand(2)", None),
        ("np.load('x.npy')", None),
        ("unknown", None),
        ("1 / 0", None),
    ],
)
def test_what_is_worked_out_of_plain_values_is_one(text, wanted):
    known = constants(f"{HEAD}LIMITS = {text}\n")
    assert (wanted is not None) == ("LIMITS" in known)
    if wanted is not None:
        assert known["LIMITS"].value == wanted


@pytest.mark.parametrize(
    "text",
    [
        "np.array([0.5, 0.25], np.float32)",
        "np.asarray((0.5, 0.25), dtype='float32')",
        "np.array([SIZE, SIZE / 2]).astype",
    ],
)
def test_arrays_are_too_and_what_they_do_themselves_is_not(text):
    found = constants(f"{HEAD}LIMITS = {text}\n").get("LIMITS")
    assert (found is None) == text.endswith("astype")
    if found is not None:
        assert (found.value == np.float32([0.5, 0.25])).all()


@pytest.mark.parametrize(
    "more",
    [
        "LIMITS = 2",
        "LIMITS += (2,)",
        "LIMITS[0] = 2",
        "LIMITS.append(2)",
        "del LIMITS",
        "for LIMITS in range(2): pass",
        "if SIZE: LIMITS = 2",
        "def change():\n    global LIMITS\n    LIMITS = 2",
        "def LIMITS(): pass",
        "import LIMITS",
    ],
)
def test_what_is_given_another_value_is_none(more):
    assert "LIMITS" in constants(f"{HEAD}LIMITS = [1]\nOTHER = LIMITS[0]\n")
    assert "LIMITS" not in constants(f"{HEAD}LIMITS = [1]\n{more}\n")


def test_a_name_of_the_files_own_is_not_what_the_language_means_by_it():
    assert "LIMITS" in constants("LIMITS = max(1, 2)\n")
    assert "LIMITS" not in constants("def max(*some): return others()\nLIMITS = max(1, 2)\n")


@pytest.mark.parametrize(
    ("more", "stays"),
    [
        ("TABLE = others.tensor(LIMITS)", False),
        ("class Net:\n    size = LIMITS[0]", False),
        ("class Net(LIMITS.kind):\n    pass", False),
        ("def cut(x, by=LIMITS[0]):\n    return x", False),
        ("others.register(LIMITS)", False),
        ("HALF = LIMITS[0] / 2\nclass Net:\n    size = HALF", False),
        ("def cut(x, by=LIMITS):\n    return x", True),
        ("HALF = LIMITS[0] / 2", True),
        ("HALF, WHOLE = LIMITS[0] / 2, LIMITS[0]", True),
        ("HALF, WHOLE = LIMITS[0] / 2, others.whole(LIMITS)", False),
        ("class Net:\n    def run(self):\n        return LIMITS", True),
        ("assert len(LIMITS) == 1", True),
        ("if __name__ == '__main__':\n    print(LIMITS)", True),
    ],
)
def test_what_something_else_is_made_of_when_the_file_is_read_is_none(more, stays):
    assert ("LIMITS" in constants(f"{HEAD}LIMITS = [1]\n{more}\n")) == stays


def test_a_large_one_is_not_kept():
    assert "LIMITS" in constants(f"{HEAD}LIMITS = [0] * 4096\n")
    assert "LIMITS" not in constants(f"{HEAD}LIMITS = [0] * 4097\n")


def test_several_are_given_their_names_at_once():
    known = constants(f"{HEAD}MINUTE, HOUR = 60, 3600\nEDGES = np.array([MINUTE, 6 * HOUR])\n")
    assert [known["HOUR"].value, *known["EDGES"].value] == [3600, 60, 21600]
