"""Causes in the user's own code: what its numbers hint at, what it is not handed, which operations ran.

Facts of most: `reference_code` and `port_code`, what each side computes of the recorded values (in brackets, by layer
and slot), `other`, the value that it is about, `instead`, what the port has in its place, and `left`.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_CODE: Text = (
    "The reference computes {reference_code}, the port {port_code}: {left} is left",
    "标杆计算 {reference_code}，待比对计算 {port_code}：剩余误差 {left}",
)
_AS: Text = (
    "Write in {port_layer}: {reference_code}",
    "在 {port_layer} 中写成：{reference_code}",
)


def _entry(cause: str, title: Text, fix: Text = _AS, evidence: Text = _CODE) -> Entry:
    return Entry(cause, title, evidence, fix)


CALLS: tuple[Entry, ...] = (
    _entry(
        "layers-in-another-order",
        ("{port_layer} calls its layers in another order", "{port_layer} 以不同的顺序调用其中的层"),
        ("Call them in the reference's order: {reference_order}", "按标杆的顺序调用：{reference_order}"),
        (
            "Reference: {reference_order}; port: {port_order}",
            "标杆：{reference_order}；待比对：{port_order}",
        ),
    ),
)

ALONE: tuple[Entry, ...] = (
    _entry(
        "layer-left-out",
        ("A layer is missing: {called}", "缺少一层：{called}"),
        ("Build it and call it here: {written}", "构造该层并在此处调用：{written}"),
        (
            "The reference calls {called} here; its weights have no counterpart in the port",
            "标杆在此处调用 {called}；其权重在待比对中没有对应",
        ),
    ),
    _entry(
        "layer-added",
        ("A layer too many: {called}, which the reference does not have", "多了一层：{called}，标杆中没有"),
        ("Leave {called} out here", "此处去掉 {called}"),
        (
            "The port calls {called} here; its weights have no counterpart in the reference",
            "待比对在此处调用 {called}；其权重在标杆中没有对应",
        ),
    ),
)

SUMS: tuple[Entry, ...] = (
    _entry(
        "residual-missing",
        ("{other} is not added: a forgotten residual", "没有加上 {other}：漏了残差连接"),
        ("Add {other} where {port_layer} makes this value", "在 {port_layer} 计算该值处加上 {other}"),
    ),
    _entry(
        "addend-missing",
        ("{other} is not added", "没有加上 {other}"),
        ("Add {other} where {port_layer} makes this value", "在 {port_layer} 计算该值处加上 {other}"),
    ),
    _entry(
        "addend-extra",
        ("{other} is added, which the reference does not do", "多加了 {other}，标杆没有这一项"),
        ("Remove {other} from the sum in {port_layer}", "从 {port_layer} 的求和中去掉 {other}"),
    ),
    _entry(
        "addend-sign",
        ("{other} has the opposite sign", "{other} 的符号相反"),
        ("Add where you subtract {other}, or the reverse", "{other} 处加减号写反了，改过来"),
    ),
)

PRODUCTS: tuple[Entry, ...] = (
    _entry(
        "scale-missing",
        ("The factor {factor} is missing", "缺少系数 {factor}"),
        ("Multiply by {factor} in {port_layer}", "在 {port_layer} 中乘以 {factor}"),
    ),
    _entry(
        "swiglu-chunk-order",
        (
            "The halves are swapped: the activation is taken of {instead}, the reference takes it of the other half",
            "两半的次序颠倒：激活函数作用于 {instead}，标杆作用于另一半",
        ),
    ),
)

VALUES: tuple[Entry, ...] = (
    _entry(
        "wrong-tensor",
        ("{instead} is used where the reference has {other}", "应使用 {other}，却使用了 {instead}"),
        ("Use {other} in {port_layer}", "在 {port_layer} 中改用 {other}"),
    ),
    _entry(
        "activation-other",
        (
            "{port_function} is applied where the reference has {reference_function}",
            "用了 {port_function}，标杆为 {reference_function}",
        ),
        ("Apply {reference_function}", "改用 {reference_function}"),
    ),
    _entry(
        "rgb-bgr",
        (
            "The channels stand in reversed order (RGB for BGR, or the reverse)",
            "通道次序颠倒（RGB 与 BGR）",
        ),
        ("Flip axis {axis}, or read the image in the reference's order", "翻转轴 {axis}，或按标杆的次序读图"),
    ),
)

REDUCTIONS: tuple[Entry, ...] = (
    _entry(
        "reduction-axis",
        ("{instead} goes over another axis: the reference has {other}", "{instead} 的轴不同：标杆为 {other}"),
    ),
    _entry(
        "reduction-other",
        ("{instead} is taken, the reference takes {other}", "取了 {instead}，标杆取 {other}"),
    ),
    _entry(
        "softmax-axis",
        (
            "The softmax goes over another axis: {instead}, the reference has {other}",
            "softmax 的轴不同：{instead}，标杆为 {other}",
        ),
        ("Take it as the reference does: {other}", "与标杆保持一致：{other}"),
    ),
    _entry(
        "normalize-extra",
        ("{instead} is taken: the reference's value is not normalised", "多做了 {instead}：标杆没有归一化"),
    ),
    _entry("normalize-missing", ("{other} is not taken: the value is not normalised", "缺少 {other}：没有归一化")),
)

_IN_ORDER = (
    "In order, the reference computes: {ours}; the port: {theirs}",
    "按顺序，标杆计算：{ours}；待比对计算：{theirs}",
)

OPERATIONS: tuple[Entry, ...] = (
    Entry(
        "mask-not-passed",
        ("{given} is called without its mask", "调用 {given} 时没有传入掩码"),
        (
            "The reference hands it {slot} {shape}; the port hands over nothing",
            "标杆传入了参数 {slot}，形状为 {shape}；待比对网络没有传入",
        ),
        ("Hand the mask over where {layer} calls {given}", "在 {layer} 调用 {given} 处传入掩码"),
    ),
    Entry(
        "argument-missing",
        ("{given} is called without its argument {slot}", "调用 {given} 时没有传入参数 {slot}"),
        (
            "The reference hands it a tensor {shape}; the port hands over nothing",
            "标杆传入了形状为 {shape} 的张量；待比对网络没有传入",
        ),
        ("Hand the argument over where {layer} calls {given}", "在 {layer} 调用 {given} 处传入该参数"),
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

ENTRIES: tuple[Entry, ...] = (*CALLS, *ALONE, *SUMS, *PRODUCTS, *VALUES, *REDUCTIONS, *OPERATIONS)
