"""How a part of a value is off: pieces that are joined."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "part-shift",
        (
            "The port's values are the reference's plus a number for each part along axis {axis}: {numbers}",
            "待比对值等于标杆值加上沿第 {axis} 轴各段的常数：{numbers}",
        ),
        (
            "In y{part}, {parts} parts; with the numbers taken off, {left} is left",
            "在 y{part} 中共 {parts} 段；减去后剩余误差 {left}",
        ),
        (
            "Look for a number that is added to each part before they are joined: forgotten, extra, or another",
            "检查各段拼接前所加的常数：遗漏、多加或不同",
        ),
    ),
    Entry(
        "part-ratio",
        (
            "The port's values are the reference's times a number for each part along axis {axis}: {numbers}",
            "待比对值等于标杆值乘以沿第 {axis} 轴各段的系数：{numbers}",
        ),
        (
            "In y{part}, {parts} parts; with the factors undone, {left} is left",
            "在 y{part} 中共 {parts} 段；除去后剩余误差 {left}",
        ),
        (
            "Look for a factor of each part before they are joined (stride, anchor): forgotten, or of another part",
            "检查各段拼接前所乘的系数（步长、锚框）：遗漏，或取自别的段",
        ),
    ),
)
