"""A layer that is built with other settings than the reference's: the line that builds it, and what it shall say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from aligner.cli import main  # noqa: E402 - only after it is known to be there
from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch, ported  # noqa: E402 - as above

REFERENCE = """
import torch
from torch import nn


def conv(ins, outs, step=1):
    return nn.Conv2d(ins, outs, 3, padding=step, dilation=step)


def spread(ins, outs, kernel):
    return nn.Conv2d(ins, outs, kernel, padding=kernel // 2)


class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.near, self.wide, self.far = conv(3, width), conv(width, width, 1), conv(width, width, 2)
        self.norm = nn.BatchNorm2d(width, 1e-2)
        self.act = nn.GELU(approximate="tanh")
        self.blocks = nn.ModuleList([nn.LayerNorm(7, eps=1e-2) for _ in range(2)])
        self.slope, self.pool = nn.LeakyReLU(0.2), nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.point, self.last = spread(width, width, 1), spread(width, 2, 3)

    def forward(self, x):
        x = self.act(self.norm(self.far(self.wide(self.near(x)))))
        for norm in self.blocks:
            x = norm(x)
        return self.last(self.point(self.pool(self.slope(x))))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 3, 7, 7),)
"""

MISTAKES = {
    "in its place": ("nn.BatchNorm2d(width, 1e-2)", "nn.BatchNorm2d(width, 1e-5)"),
    "forgotten": ("nn.BatchNorm2d(width, 1e-2)", "nn.BatchNorm2d(width)"),
    "no brackets to fill": ('nn.GELU(approximate="tanh")', "nn.GELU()"),
    "two layers of one line": ("nn.LayerNorm(7, eps=1e-2)", "nn.LayerNorm(7)"),
    "two calls in one line": ("nn.LeakyReLU(0.2), nn.AvgPool2d(3, 2, 1, count_include_pad=False)",
                              "nn.LeakyReLU(), nn.AvgPool2d(3, 2, 1)"),
    "by a name": ("padding=step, dilation=step", "padding=1"),
    "another kind": ('nn.GELU(approximate="tanh")', "nn.ReLU()"),
    "by half of a name": ("padding=kernel // 2", "padding=0"),
    "by keyword": ("count_include_pad=False", "count_include_pad=True"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALIGNER_LANG", "en")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_patch_makes_the_port_right(tmp_path, capsys, mistake):
    ported(tmp_path, REFERENCE, [MISTAKES[mistake]])
    found = answer(tmp_path, capsys)
    told = [*found["origins"], *found["suspects"]]
    assert told
    assert all(one["edit"] is not None and one["causes"][0]["confirmed"] for one in told)
    assert all(not one["edit"]["only_here"] for one in told)
    assert is_right_with_the_patch(tmp_path, capsys)


BLOCKS = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, short=False, scale=1.0):
        super().__init__()
        self.one, self.adds, self.scale = nn.Linear(width, width), short and width > 2, scale

    def forward(self, x):
        y = self.one(x).relu() * self.scale
        return x + y if self.adds else y


class Stage(nn.Module):
    def __init__(self, width, count, short=True):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(width, short) for _ in range(count)])

    def forward(self, x):
        return self.blocks(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Stage(6, 2)
        self.second = Stage(6, 1, short=False)
        self.last = Block(6, scale=0.5)

    def forward(self, x):
        return self.last(self.second(self.first(x)))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 3, 6),)
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Stage(6, 1, short=False)", "Stage(6, 1)"),
        ("Stage(6, 2)", "Stage(6, 2, False)"),
        ("Block(6, scale=0.5)", "Block(6)"),
        ("Block(6, scale=0.5)", "Block(6, True, 0.5)"),
    ],
)
def test_an_argument_of_the_users_layers_is_changed_where_it_is_given(tmp_path, capsys, right, wrong):
    ported(tmp_path, BLOCKS, [(right, wrong)])
    told = answer(tmp_path, capsys)["origins"]
    assert told
    for origin in told:
        assert origin["edit"]["only_here"] == []
        assert [wrong.partition("(")[0] in line["after"] for line in origin["edit"]["lines"]] == [True]
        assert origin["causes"][0]["id"] == "setting-differs"
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_line_that_builds_right_layers_as_well_is_changed_for_none(tmp_path, capsys):
    """One of them is to have what no name stands for."""
    plain = "nn.Conv2d(width, width, 3, padding=2, dilation=2)"
    ported(tmp_path, REFERENCE.replace("conv(width, width, 2)", plain), [(plain, "spread(width, width, 3)")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"]["only_here"] == ["point", "last"]


def test_a_function_that_builds_layers_is_given_another_setting_where_it_is_called(tmp_path, capsys):
    ported(tmp_path, REFERENCE, [("conv(width, width, 2)", "conv(width, width)")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert line["after"].rstrip().endswith("conv(width, width, 1), conv(width, width, step=2)")
    assert is_right_with_the_patch(tmp_path, capsys)


UNITS = """
import torch
from torch import nn


def conv(width, kernel, far=1):
    return nn.Conv2d(width, width, kernel, padding=far * (kernel // 2), dilation=far)


class Unit(nn.Module):
    def __init__(self, width, dilation=1):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation)

    def forward(self, x):
        return self.conv(x).relu()


class Block(nn.Module):
    def __init__(self, width, far):
        super().__init__()
        self.unit = Unit(width, far)

    def forward(self, x):
        return x + self.unit(x)


class Net(nn.Module):
    def __init__(self, count=3):
        super().__init__()
        self.first, self.point = Unit(4), conv(4, 1)
        self.blocks = nn.Sequential(*(Block(4, far) for far in (1, 2, 3)))
        self.last = Unit(4, 2)
        self.tail = nn.Sequential(*[conv(4, 3, 2**i) for i in range(count)])

    def forward(self, x):
        return self.tail(self.last(self.blocks(self.point(self.first(x)))))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 4, 9, 9),)
"""


@pytest.mark.parametrize(
    ("mistakes", "lines"),
    [
        ([("Unit(width, far)", "Unit(width)")], {"self.unit = Unit(width, dilation=far)"}),
        ([("Unit(4, 2)", "Unit(4)")], {"self.last = Unit(4, dilation=2)"}),
        (
            [("conv(4, 3, 2**i)", "conv(4, 3)")],
            {"self.tail = nn.Sequential(*[conv(4, 3, far=2**i) for i in range(count)])"},
        ),
        (
            [("Unit(width, far)", "Unit(width)"), ("Unit(4, 2)", "Unit(4)")],
            {"self.unit = Unit(width, dilation=far)", "self.last = Unit(4, dilation=2)"},
        ),
    ],
)
def test_what_a_class_or_a_function_hands_on_to_its_layer_is_changed_where_it_is_given(
    tmp_path, capsys, mistakes, lines
):
    ported(tmp_path, UNITS, mistakes)
    told = answer(tmp_path, capsys)["origins"]
    assert {line["after"].strip() for origin in told for line in origin["edit"]["lines"]} == lines
    assert not any(origin["edit"]["only_here"] for origin in told)
    assert is_right_with_the_patch(tmp_path, capsys)


def test_one_argument_that_comes_to_several_of_a_function_is_changed_where_it_is_given(tmp_path, capsys):
    inner = "nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation)"
    by_function = "def conv3(width, padding=1, dilation=1):\n    return " + inner.replace("g=dilation", "g=padding")
    net = UNITS.replace(inner, "conv3(width, padding=dilation, dilation=dilation)")
    ported(tmp_path, net.replace("class Unit", by_function + "\n\n\nclass Unit"), [("Unit(4, 2)", "Unit(4)")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert [line["after"].strip() for line in origin["edit"]["lines"]] == ["self.last = Unit(4, dilation=2)"]
    assert not origin["edit"]["only_here"]
    assert is_right_with_the_patch(tmp_path, capsys)


IN_TURNS = """
import torch
from torch import nn


def conv3(ins, outs, stride=1, dilation=1):
    return nn.Conv2d(ins, outs, 3, stride=stride, padding=dilation, dilation=dilation)


def unit(ins, outs, stride=1, dilation=1):
    return nn.Sequential(conv3(ins, outs, stride, dilation), nn.PReLU(outs))


class Matching(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.wide, self.out = unit(6, 8), unit(8, 8, dilation=2), conv3(8, 2)

    def forward(self, one, other):
        x = self.embed(torch.cat([one * other, one], 1))
        return self.out(x + self.wide(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.matching = unit(3, 3), Matching()

    def forward(self, x):
        one, other = self.features(x).chunk(2)
        return self.matching(one, other) + self.matching(other, one)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(4, 3, 9, 9),)
"""


def test_a_function_that_a_function_calls_of_a_layer_that_one_side_calls_once(tmp_path, capsys):
    """Two calls are one with all their rows: these are no rows that one side takes out of more."""
    at_once = IN_TURNS.replace(
        "def forward(self, one, other):", "def forward(self, one):\n        other = one.roll(2, 0)"
    )
    at_once = at_once.replace(
        "one, other = self.features(x).chunk(2)", "one, other = self.matching(self.features(x)).chunk(2)"
    )
    at_once = at_once.replace("self.matching(one, other) + self.matching(other, one)", "one + other")
    (tmp_path / "ref.py").write_text(IN_TURNS, encoding="utf-8")
    (tmp_path / "port.py").write_text(at_once.replace("unit(8, 8, dilation=2)", "unit(8, 8)"), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == "matching.wide.0"
    (line,) = origin["edit"]["lines"]
    assert "unit(8, 8, dilation=2)" in line["after"]
    assert not origin["edit"]["only_here"]
    assert is_right_with_the_patch(tmp_path, capsys)


HANDED_ON = """
import torch
from torch import nn


def conv(width, padding, **others):
    return nn.Conv2d(width, width, 3, padding=padding, bias=False, **others)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.far, self.last = conv(4, 1), conv(4, padding=2, dilation=2, groups=2), conv(4, 1, groups=4)

    def forward(self, x):
        return self.last(self.far(self.first(x).relu()).relu())


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 4, 9, 9),)
"""


@pytest.mark.parametrize(
    ("wrong", "after"),
    [
        ("conv(4, padding=1, groups=2)", "conv(4, padding=2, groups=2, dilation=2)"),
        ("conv(4, 3, dilation=3, groups=2)", "conv(4, 2, dilation=2, groups=2)"),
    ],
)
def test_a_function_that_hands_on_all_it_is_given_is_given_what_is_lacking(tmp_path, capsys, wrong, after):
    ported(tmp_path, HANDED_ON, [("conv(4, padding=2, dilation=2, groups=2)", wrong)])
    (origin,) = answer(tmp_path, capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert after in line["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


STRIDED = """
import torch
from torch import nn


class Unit(nn.Module):
    def __init__(self, width, kernel, step=1, dilation=1):
        super().__init__()
        self.conv = nn.Conv2d(width, width, kernel, step, (kernel - 1) // 2 * dilation, dilation)

    def forward(self, x):
        return self.conv(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.wide, self.far, self.point = Unit(3, 3, 2), Unit(3, 5), Unit(3, 3, 1, 2), Unit(3, 1)

    def forward(self, x):
        return self.point(self.far(self.wide(self.stem(x))))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 3, 13, 13),)
"""


def test_an_argument_that_sets_something_else_as_well_is_none(tmp_path, capsys):
    """With a step of one the padding would be right; by what has a name it is where that is right for all."""
    pads, wrong = "(kernel - 1) // 2 * dilation", "(kernel - 1) // 2 * dilation if step == 1 else 0"
    ported(tmp_path, STRIDED, [(pads, wrong)])
    (origin,) = answer(tmp_path, capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert line["after"].rstrip().endswith(f"step, {pads}, dilation)")
    assert origin["edit"]["only_here"] == []
    assert is_right_with_the_patch(tmp_path, capsys)
    odd = STRIDED.replace(pads, "{1: 0, 3: 1, 5: 3}[kernel] * dilation")
    ported(tmp_path, odd, [("[kernel] * dilation", "[kernel] * dilation if step == 1 else 0")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert [line["after"].rstrip()[-20:] for line in origin["edit"]["lines"]] == ["kernel, step, 1, dilation)"[-20:]]
    assert origin["edit"]["only_here"] == ["wide.conv", "far.conv", "point.conv"]


def test_the_report_shows_the_line_between_the_reason_and_its_proof(tmp_path, capsys):
    ported(tmp_path, REFERENCE, [MISTAKES["forgotten"]])
    answer(tmp_path, capsys)
    main(["compare", "ref.h5", "port.h5"])
    text = capsys.readouterr().out
    order = ["eps is 1e-05", "port.py:18", "nn.BatchNorm2d(width, eps=0.01)", "confirmed"]
    assert [word for word in order if word not in text.replace("\u00a0", " ")] == []
    assert sorted(order, key=text.replace("\u00a0", " ").index) == order


KINDS = """
import torch
from torch import nn


class Act(nn.Module):
    def __init__(self, kind, keep=1.0):
        super().__init__()
        self.shift, self.offset = {"left": (4.0, 0.035), "right": (1.0, 0.3)}[kind]
        self.keep = keep

    def forward(self, x):
        return self.keep * nn.functional.softplus(x - self.shift) - 0.08 * x - self.offset


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.act = nn.Linear(6, 6), Act("left")

    def forward(self, x):
        return self.act(self.line(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = Unit(), Act("right"), Unit()
        self.kept = Act("right", keep=0.5)

    def forward(self, x):
        return self.kept(self.last(self.act(self.first(x))))


def build():
    torch.manual_seed(3)
    return Net().eval(), torch.randn(5, 6)
"""


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ('Act("left")', 'Act("right")', "nn.Linear(6, 6), Act('left')"),
        ('Act("right", keep=0.5)', 'Act("right", keep=0.25)', 'Act("right", keep=0.5)'),
        ('Act("right", keep=0.5)', 'Act("right")', 'Act("right", keep=0.5)'),
    ],
)
def test_a_layer_of_the_users_is_built_otherwise_where_its_class_is_right_for_others(
    tmp_path, capsys, right, wrong, line
):
    """The reference's class knows nothing of these attributes."""
    reference = KINDS.replace("self.shift", "self.a").replace("self.offset", "self.b").replace("self.keep", "self.c")
    ported(tmp_path, KINDS, [(right, wrong)])
    (tmp_path / "ref.py").write_text(reference)
    found = answer(tmp_path, capsys)
    edit = found["origins"][0]["edit"]
    assert edit["confirmed"]
    assert not edit["only_here"]
    assert line in edit["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


CONFIGURED = """
from dataclasses import dataclass
import torch
from torch import nn


@dataclass
class Config:
    width: int = 6


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wide = nn.Conv1d(config.width, config.width, 3, padding=2, dilation=2, stride=2)

    def forward(self, x):
        return self.wide(x).amax(-1)


def build():
    torch.manual_seed(3)
    return Net(Config()).eval(), (torch.randn(2, 6, 11),)
"""


def test_a_part_of_the_settings_is_no_proof_where_the_rest_of_the_line_is_an_objects(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(CONFIGURED, encoding="utf-8")
    (tmp_path / "port.py").write_text(CONFIGURED.replace(", padding=2, dilation=2", ""), encoding="utf-8")
    assert "padding=2, dilation=2" in answer(tmp_path, capsys)["origins"][0]["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


LOOPED = """
import torch
from torch import nn


def conv(ins, outs, kernel, dilation=1):
    padding = dilation * (kernel - 1) // 2
    return nn.Conv1d(ins, outs, kernel, padding=padding, dilation=dilation)


class Net(nn.Module):
    def __init__(self, steps=(1, 3, 5)):
        super().__init__()
        self.one = nn.ModuleList([conv(4, 4, 3, dilation=step) for step in steps])
        self.two = nn.ModuleList([conv(4, 4, 3, dilation=1) for step in steps])

    def forward(self, x):
        for one, two in zip(self.one, self.two):
            x = x + two(one(x).relu())
        return x


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 4, 15),)
"""


def test_what_a_loop_is_at_gives_way_to_what_is_right_in_all_its_turns(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(LOOPED, encoding="utf-8")
    (tmp_path / "port.py").write_text(LOOPED.replace("dilation=1) for", "dilation=step) for"), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"][:1]
    assert (
        "self.two = nn.ModuleList([conv(4, 4, 3, dilation=1) for step in steps])" in origin["edit"]["lines"][0]["after"]
    )
    assert is_right_with_the_patch(tmp_path, capsys)
