"""Phrases that facts hold: what no number, name or code says. One Text for each, `{0}`, `{1}` for its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aligner.explain.catalogue.entry import Text
from aligner.explain.catalogue.resumed import RESUMED
from aligner.explain.phrase import Phrase

_SHORT: Mapping[str, Text] = {
    "weights": ("the weights", "权重"),
    "input-weight": ("input and weight", "输入与权重"),
    "either-type": ("{0} or {1}", "{0} 或 {1}"),
    "cut-off": ("{0} (cut off)", "{0}（截断）"),
}
"""What is computed in a short type, and which."""

_PLACES: Mapping[str, Text] = {
    "along-axis": ("{0} along axis {1}", "沿第 {1} 轴 {0}"),
    "reversed": ("reversed", "倒序"),
    "cut-of-axis": ("axis {0} [{1}] of {2}", "第 {0} 轴 [{1}]（共 {2}）"),
}

_LAYERS: Mapping[str, Text] = {
    "nothing": ("nothing", "无"),
    "zeros": ("zeros", "零"),
    "given": ("given", "已给出"),
    "mean": ("mean", "均值"),
    "maximum": ("maximum", "最大值"),
    "adaptive": ("adaptive", "自适应"),
    "disjoint": ("disjoint", "互不重叠"),
    "wide": ("of one size, overlapping", "大小相同且重叠"),
    "divisor-padded": ("the window with its padding", "含填充的窗口大小"),
    "divisor-inside": ("the elements inside", "窗口内的有效元素数"),
    "divisor-window": ("the whole window", "完整窗口大小"),
    "half-pixels": ("{0}, half pixels", "{0}，半像素中心"),
    "corners-aligned": ("{0}, corners aligned", "{0}，角点对齐"),
    "index-times-scale": ("{0}, index times scale", "{0}，下标乘以比例"),
    "scale-from-factor": ("{0}, scale from the factor", "{0}，比例取自 scale_factor"),
}

_STATE: Mapping[str, Text] = {
    "state-momentum": ("momentum", "动量"),
    "state-first": ("first moment", "一阶矩"),
    "state-second": ("mean of squares", "平方均值"),
    "state-mean": ("mean", "均值"),
}
"""What optimizers keep of a parameter."""

_WAYS: Mapping[str, Text] = {
    "way-none": ("leaves the gradients as they are", "不改动梯度"),
    "way-factor": ("multiplies all gradients by {0}", "将全部梯度乘以 {0}"),
    "way-norm": ("clips all gradients together to a norm of {0}", "将全部梯度整体裁剪到范数 {0}"),
    "way-each": ("clips each gradient by its own norm to {0}", "将每个梯度按自身范数裁剪到 {0}"),
    "way-value": ("cuts off single elements of the gradients at {0}", "将梯度的单个元素截断在 {0}"),
    "way-times": ("{0}, once they are multiplied by {1}", "先乘以 {1}，再{0}"),
    "way-seen": ("hands on gradients with a norm of {0}", "交出的梯度范数为 {0}"),
}
"""What is done to gradients between the backward run and the optimizer."""

PHRASES: Mapping[str, Text] = {**_STATE, **_WAYS, **_SHORT, **_PLACES, **_LAYERS, **RESUMED}


def said(fact: Any, side: int) -> Any:
    """A fact as sentences take it: phrases in the language of that `side` of a Text, all else as it stands."""
    if isinstance(fact, tuple):
        return ("; ", "；")[side].join(str(said(each, side)) for each in fact)
    if not isinstance(fact, Phrase):
        return fact
    return PHRASES[fact.id][side].format(*(said(part, side) for part in fact.parts))
