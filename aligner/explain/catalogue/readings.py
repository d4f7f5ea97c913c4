"""How values are read and handed on: ranges of images, types that are too short, tables of angles, parts of a head."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_CODE: Text = (
    "The reference computes {reference_code}, the port {port_code}: {left} is left",
    "标杆计算 {reference_code}，待比对计算 {port_code}：剩余误差 {left}",
)
_AS: Text = ("Write in {port_layer}: {reference_code}", "在 {port_layer} 中写成：{reference_code}")

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "normalize-0-255-vs-0-1",
        (
            "{other} is brought to another range than in the reference: another factor, another addend, or none",
            "{other} 的归一化与标杆不同：系数或偏移不同，或没有归一化",
        ),
        _CODE,
        (
            "Write in {port_layer}: {reference_code}; see whether the image is 0 to 1 or 0 to 255 there",
            "在 {port_layer} 中写成：{reference_code}；检查此处图像取值是 0 到 1 还是 0 到 255",
        ),
    ),
    Entry(
        "normalize-constants-reversed",
        (
            "Mean and scale of the channels stand in reversed order (RGB for BGR, or the reverse)",
            "各通道的均值与缩放次序颠倒（RGB 与 BGR）",
        ),
        _CODE,
        _AS,
    ),
    Entry("normalized-twice", ("{other} is normalised twice", "{other} 被归一化了两次"), _CODE, _AS),
    Entry(
        "input-rounded",
        ("{other} goes through {dtype} on its way", "{other} 途中被转换为 {dtype}"),
        (
            "The reference computes {reference_code}; with {other} through {how} that is the port's: {left} is left",
            "标杆计算 {reference_code}；{other} 经过 {how} 后即为待比对值：剩余误差 {left}",
        ),
        ("Look for a cast to {dtype} in {port_layer}", "检查 {port_layer} 中到 {dtype} 的类型转换"),
    ),
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
    Entry(
        "part-rounded",
        ("{outputs} outputs of each anchor are computed in {dtype}", "每个锚框有 {outputs} 个输出以 {dtype} 计算"),
        (
            "They can be written in {dtype}, the reference's cannot; {share} are {function} taken in {dtype}",
            "它们可用 {dtype} 表示而标杆不能；其中 {share} 等于以 {dtype} 计算的 {function}",
        ),
        ("Look for a cast to {dtype} in {port_layer}", "检查 {port_layer} 中到 {dtype} 的类型转换"),
    ),
    Entry(
        "norm-order",
        (
            "The value is divided by {instead}, in the reference by {other}",
            "待比对除以 {instead}，标杆除以 {other}",
        ),
        _CODE,
        _AS,
    ),
    Entry(
        "root-missing",
        (
            "The value is divided by {instead}, the square of the length: a root is missing",
            "待比对除以 {instead}，即长度的平方：缺少开方",
        ),
        _CODE,
        _AS,
    ),
    Entry(
        "buffer-differs",
        ("{other} has other values in the port", "待比对中 {other} 的数值不同"),
        (
            "The reference computes {reference_code}; the port's {other} is off by up to {largest}, the same wherever"
            " it is added: {left} is left without that",
            "标杆计算 {reference_code}；待比对的 {other} 最多相差 {largest}，且各处相同：去掉后剩余误差 {left}",
        ),
        (
            "Compare how both sides make {other}: its base, its order, its length",
            "对照两边如何生成 {other}：底数、次序、长度",
        ),
    ),
    Entry(
        "eps-differs",
        (
            "What keeps the divisor from zero is {port_value}, in the reference {reference_value}",
            "防止除零的 eps 为 {port_value}，标杆为 {reference_value}",
        ),
        _CODE,
        _AS,
    ),
    Entry(
        "angles-differ",
        (
            "A table of angles is made otherwise ({port_value}) than in the reference ({reference_value})",
            "角度表的生成方式（{port_value}）与标杆（{reference_value}）不同",
        ),
        (
            "Both tables are read back from their numbers; the port's, made anew, leaves {left}",
            "两边的表均由数值反推；重新生成待比对的表后剩余误差 {left}",
        ),
        ("Make the table as the reference does: {reference_value}", "按标杆的方式生成：{reference_value}"),
    ),
    Entry(
        "dropout-active",
        (
            "A dropout runs here in evaluation, in the port only",
            "评估模式下只有待比对在此处执行了 dropout",
        ),
        ("", ""),
        (
            "Pass training=self.training: ops.dropout drops unless it is told otherwise",
            "传入 training=self.training：ops.dropout 默认处于训练模式",
        ),
    ),
)
