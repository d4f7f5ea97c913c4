"""Causes that lie in a loss, read from the gradient at its scores."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_NOTHING = ("", "")

LOSSES: tuple[Entry, ...] = (
    Entry(
        "loss-has-aux",
        (
            "What is differentiated is the sum of the loss and of what is returned beside it",
            "被求导的是损失与其旁返回值之和",
        ),
        (
            "At each score the gradient is {times} times the reference's, plus 1",
            "在每个得分处，梯度为标杆的 {times} 倍再加 1",
        ),
        (
            "Set has_aux=True in value_and_grad, or return the loss alone",
            "在 `value_and_grad` 中设 `has_aux=True`，或只返回损失",
        ),
    ),
    Entry(
        "loss-rows-counted",
        (
            "The port counts rows that the reference ignores (ignore_index): {rows} of {of}, with label {label}",
            "待比对网络计入了标杆忽略的行（`ignore_index`）：{of} 行中的 {rows} 行，标签为 {label}",
        ),
        _NOTHING,
        (
            "Set ignore_index={index}, or take them out of sum and count",
            "设 `ignore_index={index}`，或将其排除在求和与计数之外",
        ),
    ),
    Entry(
        "loss-rows-left-out",
        (
            "The port ignores rows that the reference counts (ignore_index): {rows} of {of}, with label {label}",
            "待比对网络忽略了标杆计入的行（`ignore_index`）：{of} 行中的 {rows} 行，标签为 {label}",
        ),
        _NOTHING,
        ("Look at ignore_index, and at masks of the loss", "检查 `ignore_index` 与损失的掩码"),
    ),
    Entry(
        "loss-other-labels",
        ("The port's labels are others (port - reference: {shift})", "待比对网络的标签不同（待比对 - 标杆：{shift}）"),
        _NOTHING,
        ("Look at where labels are shifted, mapped or read", "检查标签在何处被平移、映射或读取"),
    ),
    Entry(
        "loss-targets",
        (
            "The targets are {on} for the label and {off} for each other class, the reference's {wanted_on} and "
            "{wanted_off} (label smoothing)",
            "目标值：标签为 {on}，其余类别为 {off}；标杆为 {wanted_on} 和 {wanted_off}（标签平滑，`label_smoothing`）",
        ),
        _NOTHING,
        (
            "Use label_smoothing={smoothing}, which PyTorch spreads over all classes, the label among them",
            "使用 `label_smoothing={smoothing}`；PyTorch 将其均摊到包括标签在内的所有类别",
        ),
    ),
    Entry(
        "loss-softmax-twice",
        (
            "The scores go through a softmax before the loss, which makes one itself",
            "得分在损失之前经过了 `softmax`，而损失自身已包含 `softmax`",
        ),
        _NOTHING,
        ("Give the loss the scores as they are", "直接把得分传给损失"),
    ),
    Entry(
        "loss-sigmoid-twice",
        (
            "The scores go through a sigmoid before the loss, which makes one itself",
            "得分在损失之前经过了 `sigmoid`，而损失自身已包含 `sigmoid`",
        ),
        _NOTHING,
        ("Give the loss the scores as they are", "直接把得分传给损失"),
    ),
    Entry(
        "loss-binary-target",
        (
            "The loss wants {on} of these scores, the reference's {wanted_on} (the label that they are compared with)",
            "损失对这些得分的目标值为 {on}，标杆为 {wanted_on}（与之比较的标签）",
        ),
        _NOTHING,
        ("Compare them with {wanted_on}", "将其与 {wanted_on} 比较"),
    ),
    Entry(
        "loss-factor",
        (
            "The loss is {factor} times the reference's (reduction: mean, sum)",
            "损失为标杆的 {factor} 倍（`reduction`：`mean` 或 `sum`）",
        ),
        ("All of {rows} rows count so", "全部 {rows} 行都如此"),
        ("Use the reference's reduction, and divide by what it divides by", "使用标杆的 `reduction`，并除以相同的数"),
    ),
    Entry(
        "loss-part-factor",
        (
            "The part of the loss that is made of {layer} is {factor} times the reference's",
            "损失中由 {layer} 算得的部分为标杆的 {factor} 倍",
        ),
        _NOTHING,
        (
            "Compare how both weigh the parts of the loss, in this step, and what each is divided by",
            "对照两侧在该步中各部分损失的权重以及各自的除数",
        ),
    ),
    Entry(
        "loss-batch-size-fixed",
        (
            "The loss is divided by {by} rows, and this batch has {rows}: it is {factor} times the reference's",
            "损失除以 {by} 行，而该批次有 {rows} 行：为标杆的 {factor} 倍",
        ),
        _NOTHING,
        ("Divide by the number of rows of each batch", "除以每个批次各自的行数"),
    ),
    Entry(
        "loss-mean-over-all",
        (
            "The loss is divided by all {all}, not by the {counted} that count (valid ones, a mask)",
            "损失除以全部 {all} 个，而不是参与计算的 {counted} 个（有效值、掩码）",
        ),
        ("It is {factor} times the reference's", "其为标杆的 {factor} 倍"),
        ("Divide by the number of those that count", "除以参与计算的个数"),
    ),
    Entry(
        "loss-class-weights",
        (
            "Classes have other weights (class: port to reference): {factors}",
            "类别权重不同（类别：待比对与标杆之比）：{factors}",
        ),
        _NOTHING,
        ("Carry the weight of each class over to the loss", "把各类别的 `weight` 带到损失中"),
    ),
    Entry(
        "loss-pos-weight",
        (
            "Ones weigh {port_weight} times as much as zeros (pos_weight), in the reference {reference_weight} times",
            "目标 1 的权重为目标 0 的 {port_weight} 倍（`pos_weight`），标杆为 {reference_weight} 倍",
        ),
        _NOTHING,
        ("Set pos_weight={reference_weight}", "设 `pos_weight={reference_weight}`"),
    ),
)
