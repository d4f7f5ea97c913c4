"""Settings that stand in a row of numbers, of which each stage of a net is given one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import (  # noqa: E402 - only after it is known to be there
    _here,  # noqa: F401 - a fixture
    answer,
    is_right_with_the_patch,
    ported,
)

STAGES = """
import torch
from torch import nn


class Unit(nn.Module):
    def __init__(self, ins, outs, stride):
        super().__init__()
        self.conv = nn.Conv2d(ins, outs, 3, stride=stride, padding=1)
        self.short = nn.Conv2d(ins, outs, 1, stride=stride)

    def forward(self, x):
        return torch.relu(self.conv(x)) + self.short(x)


class Net(nn.Module):
    def __init__(self, widths=(4, 6, 8), strides=[1, 2, 1]):
        super().__init__()
        units, ins = [], 3
        for width, stride in zip(widths, strides):
            units.append(nn.Sequential(*(Unit(ins if not i else width, width, 1 if i else stride) for i in range(2))))
            ins = width
        self.stages = nn.Sequential(*units)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


def build():
    torch.manual_seed(3)
    return Net(), (torch.randn(2, 3, 12, 12),)
"""


def test_one_of_a_row_that_a_class_takes_by_default_is_given(tmp_path, capsys):
    ported(tmp_path, STAGES, [("strides=[1, 2, 1]", "strides=[1, 2, 2]")])
    first, *_ = answer(tmp_path, capsys)["origins"]
    (line,) = first["edit"]["lines"]
    assert line["after"].strip() == "return Net(strides=[1, 2, 1]), (torch.randn(2, 3, 12, 12),)"
    assert not first["edit"]["only_here"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_one_of_a_row_that_is_given_is_exchanged(tmp_path, capsys):
    net = STAGES.replace("return Net()", "return Net((4, 6, 8), [1, 2, 1])")
    ported(tmp_path, net, [("return Net((4, 6, 8), [1, 2, 1])", "return Net((4, 6, 8), [1, 2, 2])")])
    first, *_ = answer(tmp_path, capsys)["origins"]
    (line,) = first["edit"]["lines"]
    assert line["after"].strip() == "return Net((4, 6, 8), [1, 2, 1]), (torch.randn(2, 3, 12, 12),)"
    assert is_right_with_the_patch(tmp_path, capsys)


CHOSEN = """
import torch
from torch import nn


class Unit(nn.Module):
    def __init__(self, width, shrink, number):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2 if shrink else 1, padding=1)
        self.norm = nn.GroupNorm(2, width, eps=1e-1 if number == 0 else 1e-3)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.units = nn.Sequential(*(Unit(4, shrink, number) for number, shrink in enumerate((True, False, True))))

    def forward(self, x):
        return self.units(x)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 4, 12, 12),)
"""


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("stride=2 if shrink else 1", "stride=1", "stride=2 if shrink else 1"),
        ("eps=1e-1 if number == 0 else 1e-3", "eps=1e-3", "eps=0.1 if number == 0 else 0.001"),
    ],
)
def test_one_of_two_values_is_chosen_by_what_tells_for_which_layers_it_is(tmp_path, capsys, right, wrong, line):
    ported(tmp_path, CHOSEN, [(right, wrong)])
    first, *_ = answer(tmp_path, capsys)["origins"]
    assert line in first["edit"]["lines"][0]["after"]
    assert not first["edit"]["only_here"]
    assert is_right_with_the_patch(tmp_path, capsys)


CONFIGURED = """
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Config:
    width: int = 6
    eps: float = 1e-2
    strides: tuple = (1, 2, 1)


class Unit(nn.Module):
    def __init__(self, config, stage):
        super().__init__()
        self.conv = nn.Conv2d(config.width, config.width, 3, stride=config.strides[stage], padding=1)
        self.norm = nn.GroupNorm(2, config.width, eps=config.eps)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.first = nn.Conv2d(3, config.width, 1)
        self.units = nn.Sequential(*(Unit(config, stage) for stage in range(3)))
        self.last = nn.BatchNorm2d(config.width, eps=config.eps)

    def forward(self, x):
        return self.last(self.units(self.first(x)))


def build():
    torch.manual_seed(3)
    return Net(Config()).eval(), (torch.randn(2, 3, 12, 12),)
"""

BY_DICT = CONFIGURED.replace(
    "@dataclass(frozen=True)\nclass Config:\n    width: int = 6\n    eps: float = 1e-2\n    strides: tuple = (1, 2, 1)",
    "CONFIG = {'width': 6, 'eps': 1e-2, 'strides': (1, 2, 1)}",
).replace("Net(Config())", "Net(CONFIG)")
for _name in ("width", "eps", "strides"):
    BY_DICT = BY_DICT.replace(f"config.{_name}", f"config['{_name}']")


@pytest.mark.parametrize(
    ("net", "right", "wrong"),
    [
        (CONFIGURED, "eps: float = 1e-2", "eps: float = 1e-4"),
        (CONFIGURED, "strides: tuple = (1, 2, 1)", "strides: tuple = (1, 2, 2)"),
        (CONFIGURED.replace("Config())", "Config(eps=1e-1))"), "Config(eps=1e-1)", "Config(eps=1e-3)"),
        (BY_DICT, "'eps': 1e-2", "'eps': 1e-4"),
        (BY_DICT, "'strides': (1, 2, 1)", "'strides': (1, 1, 1)"),
    ],
)
def test_what_an_object_of_settings_says_is_changed_where_it_is_written(tmp_path, capsys, net, right, wrong):
    ported(tmp_path, net, [(right, wrong)])
    told = answer(tmp_path, capsys)["origins"]
    lines = {line["after"].strip() for origin in told for line in (origin["edit"] or {"lines": ()})["lines"]}
    assert len(lines) == 1
    assert right.replace("1e-2", "0.01").replace("1e-1", "0.1") in lines.pop()
    assert is_right_with_the_patch(tmp_path, capsys)


def test_what_the_code_reads_when_it_runs_stays_as_it_is_in_the_object(tmp_path, capsys):
    read = "return self.norm(self.conv(x)).relu() / (1 + self.config.eps)"
    ported(
        tmp_path,
        CONFIGURED.replace("return self.norm(self.conv(x)).relu()", read)
        .replace(
            "super().__init__()\n        self.conv",
            "super().__init__()\n        self.config = config\n        self.conv",
        )
        .replace("eps=config.eps", "eps=1e-3"),
        [("GroupNorm(2, config.width, eps=1e-3)", "GroupNorm(2, config.width, eps=config.eps)")],
    )
    first, *_ = answer(tmp_path, capsys)["origins"]
    (line,) = first["edit"]["lines"]
    assert "GroupNorm(2, config.width, eps=0.001)" in line["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


SHARED = """
import torch
from torch import nn


class Unit(nn.Module):
    def __init__(self, rate, other):
        super().__init__()
        self.one = nn.Conv2d(4, 4, 3, padding=rate, dilation=rate)
        self.two = nn.Conv2d(4, 4, 3, padding=other, dilation=other)

    def forward(self, x):
        return torch.relu(self.two(torch.relu(self.one(x))))


class Net(nn.Module):
    def __init__(self, rates=(1, 2, 1), others=(1, 2, 2)):
        super().__init__()
        self.units = nn.Sequential(*(Unit(rate, other) for rate, other in zip(rates, others)))

    def forward(self, x):
        return self.units(x)


def build():
    torch.manual_seed(3)
    return Net(), (torch.randn(2, 4, 12, 12),)
"""


def test_a_row_that_sets_what_is_right_as_well_is_not_changed(tmp_path, capsys):
    ported(tmp_path, SHARED, [("for rate, other in zip(rates, others)", "for rate, other in zip(others, others)")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == "units.2.one"
    assert origin["edit"] is None or origin["edit"]["only_here"]


DILATED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, dilations=(2, 3, 4), ends=(1, 0)):
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv1d(6, 6, 3, padding=d, dilation=d) for d in dilations)
        self.wide = nn.Conv2d(1, 2, (3, 1), padding=ends)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        for stage in self.stages:
            x = x + torch.relu(stage(x))
        return self.head(self.wide(x[:, None])[:, :, ::2].flatten(1, 2).mT)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 6, 12),)
"""


def test_all_of_a_row_are_exchanged_and_no_layer_is_lost_by_a_shorter_one(tmp_path, capsys):
    net = DILATED.replace("nn.Linear(12, 5)", "nn.Linear(6, 5)")
    ported(tmp_path, net, [("dilations=(2, 3, 4)", "dilations=(1, 2, 3)")])
    first, *_ = answer(tmp_path, capsys)["origins"]
    (line,) = first["edit"]["lines"]
    assert line["after"].strip() == "return Net(dilations=(2, 3, 4)).eval(), (torch.randn(2, 6, 12),)"
    assert is_right_with_the_patch(tmp_path, capsys)


TOGETHER = """
import torch
from torch import nn


class Unit(nn.Module):
    def __init__(self, ins, outs, kernel, padding=(0, 0), dilation=1):
        super().__init__()
        self.conv = nn.Conv2d(ins, outs, kernel, padding=padding, dilation=dilation)

    def forward(self, x):
        return torch.relu(self.conv(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.along = Unit(3, 6, 3, (1, 1)), Unit(6, 6, (5, 1), padding=(4, 0), dilation=(2, 1))
        self.last = Unit(6, 4, 1)

    def forward(self, x):
        return self.last(self.along(self.first(x))).mean((2, 3))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 3, 12, 12),)
"""


def test_two_arguments_of_one_call_that_are_right_only_together(tmp_path, capsys):
    ported(tmp_path, TOGETHER, [("padding=(4, 0), dilation=(2, 1)", "padding=(2, 0)")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert "Unit(6, 6, (5, 1), padding=(4, 0), dilation=(2, 1))" in line["after"]
    assert is_right_with_the_patch(tmp_path, capsys)
