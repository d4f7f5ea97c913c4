"""A mask of true and false that the port's layers read the other way round than the reference's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, mask):
        scores = self.key(x) @ x.transpose(-1, -2)
        scores = scores.masked_fill(mask, -1000.0)
        return x + scores.softmax(-1) @ self.value(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x):
        part = torch.arange(8) // 2
        back = part[:, None] - part
        mask = (back < 0) | (back > 2)
        for layer in self.layers:
            x = layer(x, mask)
        return x


def build():
    torch.manual_seed(7)
    return Net().eval(), torch.randn(2, 8, 6)
"""
FORM = ("scores.masked_fill(mask, -1000.0)", "torch.where(mask, scores, torch.tensor(-1000.0))")
SAID = "(back < 0) | (back > 2)"
RIGHT = "(back >= 0) & (back <= 2)"
MISTAKES = ("(back >= 0) & (back < 2)", "(back > 0) & (back <= 2)", "(back >= 0) & (back <= 1)")


def test_the_port_is_right(tmp_path, capsys):
    ported(tmp_path, NET, [FORM, (SAID, RIGHT)])
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_patch_has_the_mask_as_the_port_reads_it(tmp_path, capsys, mistake):
    ported(tmp_path, NET, [FORM, (SAID, mistake)])
    found = answer(tmp_path, capsys)
    assert found["origins"][0]["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_mask_that_is_turned_round_by_mistake_is_turned_back(tmp_path, capsys):
    ported(tmp_path, NET, [(SAID, RIGHT)])
    found = answer(tmp_path, capsys)
    assert found["origins"][0]["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)


OTHERWISE = ("scores.softmax(-1)", "scores.softmax(1)")


def test_a_layer_that_is_wrong_with_a_mask_in_its_own_words_is_told_itself(tmp_path, capsys):
    ported(tmp_path, NET, [FORM, (SAID, RIGHT), OTHERWISE])
    found = answer(tmp_path, capsys)
    assert {one["layer"] for one in found["origins"]} <= {"layers.0", "layers.1", "layers.2"}
    assert is_right_with_the_patch(tmp_path, capsys)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_where_the_layer_is_wrong_as_well_no_mask_is_proved_that_it_reads_the_other_way_round(
    tmp_path, capsys, mistake
):
    ported(tmp_path, NET, [FORM, (SAID, mistake), OTHERWISE])
    origins = answer(tmp_path, capsys, "--search", "12")["origins"]
    edits = [one["edit"] for one in origins if one.get("edit") and one["edit"]["confirmed"]]
    proved = [line["after"].partition("mask = ") for edit in edits for line in edit["lines"]]
    back = torch.arange(8)[:, None] // 2 - torch.arange(8) // 2
    masks = [eval(text, {"back": back}) for _, said, text in proved if said]
    assert all(mask.equal((back >= 0) & (back <= 2)) for mask in masks)


ADDED = [
    ("scores.masked_fill(mask, -1000.0)", "scores + mask"),
    ("mask = (back < 0) | (back > 2)", "mask = (1.0 - ((back >= 0) & (back <= 2)).float()) * -10000.0"),
]
"""The same as what is added to scores."""


def added(said):
    """The reference adds its mask, and the port has it of true and false."""
    text = NET
    for old, new in ADDED:
        text = text.replace(old, new)
    right = [("scores + mask", f"scores.masked_fill({said}, -10000.0)"), ADDED[1][::-1]]
    wrong = [(SAID, RIGHT)] if said == "~mask" else []
    return text, [*right, *wrong]


@pytest.mark.parametrize("said", ["mask", "~mask"])
def test_a_port_that_has_true_and_false_for_what_is_added_is_right(tmp_path, capsys, said):
    ported(tmp_path, *added(said))
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize("said", ["mask", "~mask"])
def test_no_edit_hands_a_layer_numbers_where_it_reads_true_and_false(tmp_path, capsys, said):
    text, changes = added(said)
    mistakes = {"mask": (SAID, "(back < 0) | (back > 1)"), "~mask": (RIGHT, "(back >= 0) & (back <= 1)")}
    ported(tmp_path, text, [*changes, mistakes[said]])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"]["confirmed"]
    assert "10000" not in "".join(line["after"] for line in origin["edit"]["lines"])
    assert is_right_with_the_patch(tmp_path, capsys)


ASKED = """
import torch
from torch import nn


def taken(x, asked):
    counts = asked.sum(1)
    places = torch.arange(x.shape[1]).expand(asked.shape)
    order = torch.where(asked, places, places + x.shape[1]).argsort(1)[:, : int(counts.max())]
    rows = x.gather(1, order[..., None].expand(-1, -1, x.shape[2]))
    return rows * (torch.arange(rows.shape[1]) < counts[:, None])[..., None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.answer = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x, lengths, asked):
        valid = torch.arange(x.shape[1]) < lengths[:, None]
        x = self.first(x)
        return self.answer(torch.cat((taken(x, asked & valid), taken(x, valid)), 1))


def build():
    torch.manual_seed(7)
    lengths, asked = torch.tensor([5, 8, 6]), torch.rand(3, 8) < 0.5
    asked[:, 7] = True
    return Net().eval(), (torch.randn(3, 8, 6), lengths, asked)
"""
IN_PLACE = (
    "    rows = x.gather(1, order[..., None].expand(-1, -1, x.shape[2]))\n"
    "    return rows * (torch.arange(rows.shape[1]) < counts[:, None])[..., None]\n"
)


def test_a_mask_that_another_one_narrows(tmp_path, capsys):
    ported(tmp_path, ASKED, [("asked & valid", "asked")])
    (tmp_path / "ref.py").write_text(
        ASKED.replace(
            IN_PLACE,
            "    rows = x.new_zeros(len(x), int(counts.max()), x.shape[2])\n"
            "    for row, one, its in zip(rows, x, asked):\n"
            "        row[: its.sum()] = one[its.nonzero()[:, 0]]\n"
            "    return rows\n",
        ),
        encoding="utf-8",
    )
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert [line["after"].strip() for line in origin["edit"]["lines"]] == [
        "return self.answer(torch.cat((taken(x, asked & valid), taken(x, valid)), 1))"
    ]
    assert is_right_with_the_patch(tmp_path, capsys)


ROWS = """
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x, keep):
        x = self.mix(x).sigmoid()
        x[keep == 0] = -1.0
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.out = Head(), nn.Linear(8, 4)

    def forward(self, x, keep):
        return self.out(self.head(x, keep))


def build():
    torch.manual_seed(3)
    keep = torch.ones(2, 6)
    keep[1, 4:] = 0
    return Net().eval(), (torch.randn(2, 6, 8), keep)
"""
WRITTEN = "        x[keep == 0] = -1.0\n"


def test_whole_rows_that_a_mask_fills_are_filled(tmp_path, capsys):
    ported(tmp_path, ROWS, [(WRITTEN, "")])
    (line,) = answer(tmp_path, capsys)["origins"][0]["edit"]["lines"]
    assert line["after"].strip() == "return x.masked_fill((keep == 0)[..., None], -1)"
    assert is_right_with_the_patch(tmp_path, capsys)


def test_another_mask_for_whole_rows_is_wrong_where_it_stands(tmp_path, capsys):
    ported(tmp_path, ROWS, [(WRITTEN, WRITTEN.replace("==", "!="))])
    (line,) = answer(tmp_path, capsys)["origins"][0]["edit"]["lines"]
    assert line["before"].strip() == "x[keep != 0] = -1.0"
    assert is_right_with_the_patch(tmp_path, capsys)


KEEPING = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, there):
        known, seen = torch.zeros_like(x[:, 0]), []
        for i in range(x.shape[1]):
            found = self.step(x[:, i] + known)
            known = torch.where(there[:, i, None], found, known)
            seen.append(found)
        return self.out(torch.stack(seen, 1))


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randn(2, 5, 6), torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 0, 1]], dtype=torch.bool))
"""
CHOSEN = "            known = torch.where(there[:, i, None], found, known)\n"
COUNTED = "            present = there[:, i].to(torch.int32).reshape(-1, 1)\n"


def test_a_choice_by_a_mask_that_the_port_has_as_numbers(tmp_path, capsys):
    ported(tmp_path, KEEPING, [(CHOSEN, COUNTED + "            known = found + 0 * present\n")])
    found = answer(tmp_path, capsys)["origins"][0]["edit"]["lines"]
    assert "torch.where(present > 0, found" in found[0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


MEAN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(6, 6)

    def forward(self, x, keep):
        x = self.mix(x)
        return (x - x[keep].mean()) / x[keep].std()


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randn(4, 6), torch.arange(24).reshape(4, 6) % 5 > 0)
"""
MOMENTS = (
    "        count = keep.sum()\n        mean = (x * keep).sum() / count\n"
    "        spread = ((x - mean) ** 2 * keep).sum() / {}\n        return (x - mean) / spread.sqrt()\n"
)


def test_a_deviation_of_what_is_free(tmp_path, capsys):
    right = MEAN[MEAN.index("        return (x - x") : MEAN.index("\n\ndef build") - 1]
    ported(tmp_path, MEAN, [(right.rstrip("\n") + "\n", MOMENTS.format("count"))])
    (line,) = answer(tmp_path, capsys)["origins"][0]["edit"]["lines"]
    assert "/ (count - 1)" in line["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


ONE_BY_ONE = """
import torch
from torch import nn
from torch.nn import functional as F


class Flows(nn.Module):
    def forward(self, labels):
        return torch.stack([self.of(one) for one in labels])

    def of(self, one):
        h, w = one.shape
        same = F.unfold(one[None, None], 3, padding=1)[0] == one.reshape(1, -1)
        same = (same & (one.reshape(1, -1) > 0)).float()
        heat = torch.zeros(h, w)
        for _ in range(3):
            heat = (F.unfold((heat + 0.1 * one)[None, None], 3, padding=1)[0] * same).mean(0).reshape(h, w)
        near = F.unfold(heat.log1p()[None, None], 3, padding=1)[0] * same
        return torch.stack([near[7] - near[1], near[5] - near[3]]).reshape(2, h, w)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.flows, self.last = Flows(), nn.Conv2d(2, 3, 1)

    def forward(self, labels):
        return self.last(self.flows(labels))


def build():
    torch.manual_seed(7)
    return Net().eval(), torch.randint(0, 4, (2, 6, 7)).float()
"""
AT_ONCE = """
def around(maps):
    b, h, w = maps.shape
    padded = F.pad(maps, (1, 1, 1, 1))
    return torch.stack([padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)], 1)


class Flows(nn.Module):
    def forward(self, labels):
        same = around(labels) == labels[:, None]
        same = torch.logical_and(same, (labels > 0)[:, None]).float()
        heat = torch.zeros_like(labels)
        for _ in range(3):
            heat = (around(heat + 0.1 * labels) * same).sum(1) / 9.0
        near = around(torch.log1p(heat))
        return torch.stack((near[:, 7] - near[:, 1], near[:, 5] - near[:, 3]), 1)


"""


def test_a_mask_that_is_forgotten_where_all_is_done_at_once(tmp_path, capsys):
    start, end = ONE_BY_ONE.index("class Flows"), ONE_BY_ONE.index("class Net")
    (tmp_path / "ref.py").write_text(ONE_BY_ONE, encoding="utf-8")
    (tmp_path / "port.py").write_text(ONE_BY_ONE[:start] + AT_ONCE + ONE_BY_ONE[end:], encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert [line["after"].strip() for line in origin["edit"]["lines"]] == ["near = around(torch.log1p(heat)) * same"]
    assert is_right_with_the_patch(tmp_path, capsys)
