"""A port that calls its layers once for all rows where the reference calls them for a few at a time: nothing can be
held in that call, and what is wrong in it is the mistake of the calls that can.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

PORT = """
import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.mix = nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, ids):
        end = (ids == 8).int().argmax(-1)
        x = self.mix(self.norm(self.words(ids)).cumsum(1))
        return x[torch.arange(len(ids)), end]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 5)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.head = Tower(), Head()

    def embed(self, ids):
        return self.head(self.tower(ids))

    def classes(self, prompts):
        kinds, many, length = prompts.shape
        used = (prompts[:, :, :1] == 1).float()
        found = self.embed(prompts.reshape(-1, length)).reshape(kinds, many, -1)
        return (found * used).sum(1) / used.sum(1)

    def forward(self, texts, prompts):
        return self.embed(texts) @ self.classes(prompts).T


def build():
    torch.manual_seed(3)
    net = Net()
    texts, prompts = torch.randint(2, 8, (4, 7)), torch.randint(2, 8, (3, 5, 7))
    texts[:, 5], prompts[:, :, 4], prompts[:, :, 0] = 8, 8, 1
    texts[1, 3] = 8
    prompts[0, 3:, 0] = prompts[2, 4:, 0] = 0
    return net.eval(), (texts, prompts)
"""

ONE_BY_ONE = """        found = []
        for rows in prompts:
            found.append(self.embed(rows[rows[:, 0] == 1]).mean(0))
        return torch.stack(found)
"""
AT_ONCE = PORT[PORT.index("        kinds, many") : PORT.index("    def forward(self, texts, prompts)")]
REFERENCE = PORT.replace(AT_ONCE, ONE_BY_ONE + "\n")


def planted(folder, *changes):
    ported(folder, PORT, changes)
    (folder / "ref.py").write_text(REFERENCE, encoding="utf-8")


def test_the_right_port_is_right(tmp_path, capsys):
    planted(tmp_path)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("x[torch.arange(len(ids)), end]", "x[:, -1]"),
        ("self.last(torch.relu(self.first(x)))", "self.last(self.first(x))"),
    ],
)
def test_one_mistake_is_one_origin(tmp_path, capsys, right, wrong):
    planted(tmp_path, (right, wrong))
    origins = answer(tmp_path, capsys)["origins"]
    assert len({str(one["edit"] and one["edit"]["lines"]) for one in origins}) == 1
    assert not origins[0]["edit"]["only_here"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_mistake_beside_it_is_told_as_well(tmp_path, capsys):
    planted(tmp_path, ("x[torch.arange(len(ids)), end]", "x[:, -1]"), ("torch.relu(self.first(x))", "self.first(x)"))
    assert {one["layer"] for one in answer(tmp_path, capsys)["origins"]} == {"tower", "head"}
    assert is_right_with_the_patch(tmp_path, capsys)


def test_what_is_wrong_by_little_stays_told_beside_a_mistake_that_is_mended(tmp_path, capsys):
    """The net is right within the tolerance then; the norm is not."""
    net = PORT.replace("nn.LayerNorm(6)", "nn.LayerNorm(6, eps=1e-5)")
    ported(tmp_path, net, [("x[torch.arange(len(ids)), end]", "x[:, -1]"), ("eps=1e-5", "eps=2e-4")])
    found = answer(tmp_path, capsys)
    assert {one["layer"] for one in (*found["origins"], *found["suspects"])} == {"tower", "tower.norm"}


BESIDE = """    def forward(self, texts, prompts):
        found, classes = self.embed(texts), self.classes(prompts)
        near = torch.softmax(found @ found.T, -1)
        return found @ classes.T, -(torch.eye(len(found)) * near.log()).sum(-1).mean(), near
"""


def test_a_loss_beside_such_a_call_that_is_not_made_of_it_is_told_where_it_is_made(tmp_path, capsys):
    net = PORT[: PORT.index("    def forward(self, texts, prompts)")] + BESIDE + PORT[PORT.index("\n\ndef build()") :]
    ported(tmp_path, net, [("near.log()).sum(-1).mean()", "near.log()).sum(-1).sum()")])
    (tmp_path / "ref.py").write_text(net.replace(AT_ONCE, ONE_BY_ONE + "\n"), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == ""
    assert "mean()" in origin["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_one_that_is_made_of_it_comes_of_it(tmp_path, capsys):
    net = PORT[: PORT.index("    def forward(self, texts, prompts)")] + BESIDE + PORT[PORT.index("\n\ndef build()") :]
    ported(tmp_path, net.replace("near.log())", "classes.mean() * near.log())"), [("/ used.sum(1)", "/ 5")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert "used.sum(1" in origin["edit"]["lines"][0]["after"]


NORMED = """
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.last = nn.Linear(6, 1), nn.Linear(6, 6)

    def forward(self, x):
        return self.last((x * self.score(x).softmax(1)).sum(1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm, self.pool = nn.Linear(6, 6), nn.LayerNorm(6), Pool()
        nn.init.normal_(self.norm.weight), nn.init.normal_(self.norm.bias)

    def forward(self, x):
        x = torch.relu(self.mix(x))
        return self.norm(x[:, 0]), self.pool(x[:, 1:])


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(4, 7, 6),)
"""


def test_a_norm_of_all_where_one_part_is_meant_is_code_of_those_around_it(tmp_path, capsys):
    right = "return self.norm(x[:, 0]), self.pool(x[:, 1:])"
    ported(tmp_path, NORMED, [(right, "x = self.norm(x)\n        return x[:, 0], self.pool(x[:, 1:])")])
    origins = answer(tmp_path, capsys)["origins"]
    assert {(one["layer"], one["where"]) for one in origins} == {("", "glue")}
    assert is_right_with_the_patch(tmp_path, capsys)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("self.norm(x[:, 0])", "self.norm(x)[:, 0]"),
        ("self.norm(x)[:, 0]", "self.norm(x[:, 0])"),
        ("self.norm(self.mix(x))[:, 0]", "self.norm(self.mix(x)[:, 0])"),
        ("self.norm(self.mix(x[:, 0]))", "self.norm(self.mix(x))[:, 0]"),
    ],
)
def test_a_norm_of_all_of_which_a_part_is_taken_is_right(tmp_path, capsys, ours, theirs):
    ported(tmp_path, NORMED.replace("self.norm(x[:, 0])", ours), [(ours, theirs)])
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


POOLED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shrink = nn.Conv2d(3, 6, 3, padding=1), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.second, self.act = nn.Conv2d(6, 8, 1), nn.ReLU()
        self.pool, self.last = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 3)

    def forward(self, x):
        x = self.act(self.second(self.shrink(self.act(self.first(x)))))
        return self.last(self.pool(x).flatten(1))


def build():
    torch.manual_seed(3)
    return Net(), (torch.randn(2, 3, 12, 12),)
"""


def test_a_pool_at_the_end_tells_of_what_is_of_another_size_before(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(POOLED, encoding="utf-8")
    (tmp_path / "port.py").write_text(POOLED.replace(", ceil_mode=True", ""), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert (origin["layer"], origin["where"]) == ("shrink", "layer")
    assert "ceil_mode=True" in origin["edit"]["lines"][0]["after"]
