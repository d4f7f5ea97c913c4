"""Causes of a wrong loss: told from its settings."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_NOTHING = ("", "")
_WRITE = ("Write {written}", "写成 {written}")
_SAYS = (
    "{setting} is {port_value}, the reference has {reference_value}",
    "{setting} 为 {port_value}，标杆为 {reference_value}",
)


def _of_setting(name: str, title: tuple[str, str]) -> Entry:
    """A setting of a loss whose two values say all."""
    return Entry(name, title, _NOTHING, _WRITE)


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "ce-ignore-index-lost",
        (
            "ignore_index is {port_value}, the reference ignores the label {reference_value}",
            "ignore_index 为 {port_value}，标杆忽略标签 {reference_value}",
        ),
        ("Labels that should be left out count in the loss", "本应忽略的标签计入了损失"),
        _WRITE,
    ),
    Entry(
        "softmax-ce-reduction-none",
        (
            "nn.SoftmaxCrossEntropyWithLogits gives one loss per sample (reduction='none'), the reference their mean",
            "nn.SoftmaxCrossEntropyWithLogits 默认 reduction='none'，逐样本返回损失，标杆取均值",
        ),
        _NOTHING,
        (
            "Write nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction='mean')",
            "写成 nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction='mean')",
        ),
    ),
    Entry(
        "smoothl1-reduction-default",
        (
            "Smooth L1 has reduction {port_value} (MindSpore's default is 'none'), the reference has {reference_value}",
            "SmoothL1 损失的 reduction 为 {port_value}（MindSpore 默认 'none'），标杆为 {reference_value}",
        ),
        _NOTHING,
        _WRITE,
    ),
    Entry(
        "smoothl1-beta",
        (
            "The smooth L1 loss has beta {port_value}, the reference has {reference_value}",
            "SmoothL1 损失的 beta 为 {port_value}，标杆为 {reference_value}",
        ),
        _NOTHING,
        _WRITE,
    ),
    Entry(
        "bce-logits-pos-weight",
        (
            "pos_weight stands where nn.BCEWithLogitsLoss takes weight, so both classes are scaled",
            "pos_weight 被传到 nn.BCEWithLogitsLoss 的 weight 位置，两类都被缩放",
        ),
        (
            "Its positional order is (reduction, weight, pos_weight)",
            "其位置参数顺序为 (reduction, weight, pos_weight)",
        ),
        ("Pass it by name: pos_weight=...", "按名称传入：pos_weight=..."),
    ),
    Entry(
        "kldiv-reduction-batchmean",
        (
            "The KL divergence has reduction {port_value}, the reference has {reference_value}",
            "KL 散度的 reduction 为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "'mean' divides by all elements, 'batchmean' by the batch's size",
            "'mean' 除以元素总数，'batchmean' 除以批大小",
        ),
        _WRITE,
    ),
    Entry(
        "kldiv-log-target",
        (
            "The reference's target is in logs (log_target=True), which nn.KLDivLoss does not know",
            "标杆的目标为对数概率（log_target=True），nn.KLDivLoss 不支持",
        ),
        _NOTHING,
        ("Give the loss ops.exp(target)", "将 ops.exp(target) 传入损失"),
    ),
    Entry(
        "triplet-positional-args",
        (
            "The triplet loss has {setting} {port_value}, the reference {reference_value}: MindSpore takes p first",
            "三元组损失的 {setting} 为 {port_value}，标杆为 {reference_value}：MindSpore 的第一个参数是 p",
        ),
        _NOTHING,
        ("Pass all by name: {written}", "全部按名称传入：{written}"),
    ),
    _of_setting(
        "ce-label-smoothing",
        (
            "The label smoothing is {port_value}, the reference has {reference_value}",
            "标签平滑不同：待比对为 {port_value}，标杆为 {reference_value}",
        ),
    ),
    Entry(
        "loss-reduction",
        (
            "The losses are put together otherwise: {port_value}, the reference takes {reference_value}",
            "损失的归约方式不同：待比对为 {port_value}，标杆为 {reference_value}",
        ),
        _NOTHING,
        ("Reduce as the reference does: {reference_value}", "与标杆采用相同归约：{reference_value}"),
    ),
    _of_setting(
        "loss-margin",
        (
            "The margin is {port_value}, the reference has {reference_value}",
            "margin 为 {port_value}，标杆为 {reference_value}",
        ),
    ),
    Entry(
        "huber-vs-smoothl1",
        (
            "The port computes the {port_kind}, the reference the {kind}",
            "待比对计算的是 {port_kind}，标杆是 {kind}",
        ),
        (
            "A Huber loss is delta times the smooth L1 loss with beta = delta",
            "Huber 损失等于 beta = delta 的 SmoothL1 损失乘以 delta",
        ),
        ("Use the same loss, or divide the Huber loss by delta", "使用同一种损失，或将 Huber 损失除以 delta"),
    ),
    _of_setting(
        "huber-delta",
        (
            "The Huber loss has delta {port_value}, the reference has {reference_value}",
            "Huber 损失的 delta 为 {port_value}，标杆为 {reference_value}",
        ),
    ),
    _of_setting("gaussian-nll-full", _SAYS),
    _of_setting("poisson-log-input", _SAYS),
    _of_setting("poisson-full", _SAYS),
    Entry(
        "ctc-blank-index",
        (
            "The blank is class {port_value}, in the reference class {reference_value}",
            "blank 类别为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "The operator ops.CTCLoss has its blank last, nn.CTCLoss and ops.ctc_loss first",
            "算子 ops.CTCLoss 的 blank 在最后，nn.CTCLoss 与 ops.ctc_loss 默认在最前",
        ),
        _WRITE,
    ),
)
