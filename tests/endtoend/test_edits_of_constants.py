"""Constants of a file, in another order or with another number: mended where they stand."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - as above

REFERENCE = """
import torch
from torch import nn

MEAN = (0.48, 0.45, 0.4)
STD = (0.22, 0.24, 0.25)
SIZES = ((5.0, 7.0), (8.0, 15.0), (16.0, 11.0))
SLOPE: float = 0.3
STEPS = ((1 / 5,), (3 / 40, 9 / 40), (44 / 45, -56 / 15, 32 / 9))
HALF = 0.27 / 2


def travelled(x):
    for row in STEPS:
        x = x + sum(one * torch.tanh(x + number) for number, one in enumerate(row))
    return x + torch.sin(x) * HALF


def spread(x):
    return torch.where(x > 0, x, x * SLOPE)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.tensor(MEAN).reshape(1, 3, 1)
        self.std = torch.tensor(STD).reshape(1, 3, 1)
        self.sizes, self.order = torch.tensor(SIZES), torch.tensor([4, 1, 0, 3, 2, 5])
        self.one, self.two = nn.Linear(6, 2), nn.Linear(2, 2)

    def forward(self, x):
        x = self.one((x[..., self.order] - self.mean) / self.std)
        x = x * self.sizes
        return travelled(self.two(spread(x)))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 3, 6),)
"""

MISTAKES = {
    "one backwards": [("(0.48, 0.45, 0.4)", "(0.4, 0.45, 0.48)")],
    "two backwards": [("(0.48, 0.45, 0.4)", "(0.4, 0.45, 0.48)"), ("(0.22, 0.24, 0.25)", "(0.25, 0.24, 0.22)")],
    "rows backwards": [("((5.0, 7.0), (8.0, 15.0), (16.0, 11.0))", "((16.0, 11.0), (8.0, 15.0), (5.0, 7.0))")],
    "all pairs turned": [("((5.0, 7.0), (8.0, 15.0), (16.0, 11.0))", "((7.0, 5.0), (15.0, 8.0), (11.0, 16.0))")],
    "two exchanged": [("(5.0, 7.0), (8.0, 15.0)", "(8.0, 15.0), (5.0, 7.0)")],
    "other numbers in a table": [("(0.22, 0.24, 0.25)", "(0.23, 0.24, 0.26)")],
    "a number in rows": [("(8.0, 15.0)", "(8.0, 16.0)")],
    "a number of a table without a name": [("torch.tensor([4, 1, 0, 3, 2, 5])", "torch.tensor([4, 1, 2, 3, 0, 5])")],
    "a fraction": [("-56 / 15", "-65 / 15")],
    "a number that is worked out": [("0.27 / 2", "0.24 / 2")],
    "another number": [("SLOPE: float = 0.3", "SLOPE: float = 0.2")],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_patch_makes_the_port_right(tmp_path, capsys, monkeypatch, mistake):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    text = REFERENCE
    for old, new in MISTAKES[mistake]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "port.py").write_text(text, encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"] is not None
    assert {line["line"] for line in origin["edit"]["lines"]} <= {5, 6, 7, 8, 9, 10, 28}
    assert is_right_with_the_patch(tmp_path, capsys)


USERS = {
    "a tensor": ("TENSOR = torch.tensor(STEPS[2])\n", "TENSOR[1]"),
    "an attribute of a class": ("class Kept:\n    number = STEPS[2][1]\n", "Kept.number"),
    "a default": ("def kept(number=STEPS[2][1]):\n    return number\n", "kept()"),
}


@pytest.mark.parametrize("user", USERS)
def test_no_edit_is_told_that_changes_what_is_made_when_the_file_is_read(tmp_path, capsys, monkeypatch, user):
    monkeypatch.chdir(tmp_path)
    made, used = USERS[user]
    right = REFERENCE.replace("def travelled", f"{made}\n\ndef travelled").replace("SLOPE)", f"SLOPE * {used})")
    (tmp_path / "ref.py").write_text(right.replace(used, "(-65 / 15)"), encoding="utf-8")
    (tmp_path / "port.py").write_text(right.replace("-56 / 15", "-65 / 15"), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys, "--search", "12")["origins"]
    assert all(line["line"] != 9 for line in (origin["edit"] or {"lines": []})["lines"])


@pytest.mark.parametrize("way", ["from tables import STEPS", "import tables", "from tables import STEPS as KEPT"])
def test_no_edit_is_told_of_a_table_that_another_file_has_taken(tmp_path, capsys, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tables", raising=False)
    start, end = REFERENCE.index("STEPS ="), REFERENCE.index("class Net")
    tables = f"import torch\n\n{REFERENCE[start:end]}".replace("SLOPE", "0.3").replace("-56 / 15", "-65 / 15")
    (tmp_path / "tables.py").write_text(tables, encoding="utf-8")
    name = {"import tables": "tables.STEPS"}.get(way, way.split()[-1])
    first, net = REFERENCE[:start], REFERENCE[end:].replace("self.one((", f"self.one({name}[2][1] * (")
    port = f"{first}\n{way}\nfrom tables import spread, travelled\n\n\n{net}"
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    right = REFERENCE.replace("self.one((", "self.one(-65 / 15 * (")
    (tmp_path / "ref.py").write_text(right, encoding="utf-8")
    (origin,) = answer(tmp_path, capsys, "--search", "12")["origins"]
    assert all(line["line"] != 3 for line in (origin["edit"] or {"lines": []})["lines"])
