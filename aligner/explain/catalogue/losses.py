"""Causes of a wrong loss: a layer of the net, or written as code; told from settings and from numbers."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_NOTHING = ("", "")
_WRITE = ("Write {written}", "写成 {written}")
_SAYS = (
    "{setting} is {port_value}, the reference has {reference_value}",
    "{setting} 为 {port_value}，标杆为 {reference_value}",
)
_GIVES = ("The {loss} computed so is the port's value", "按此计算的 {loss} 与待比对一侧的值相同")


def _of_setting(name: str, title: tuple[str, str], evidence: tuple[str, str] = _GIVES) -> Entry:
    """A setting of a loss whose two values say all."""
    return Entry(name, title, evidence, _WRITE)


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
    Entry(
        "ce-sparse-softmax-mean-over-padding",
        (
            "The loss is averaged over all labels, padding included; the reference divides by those that count",
            "损失对全部标签（含填充）取均值，标杆只除以有效标签",
        ),
        (
            "The port's value is the {port_value}, the reference's the {reference_value}",
            "待比对为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "Divide the sum by what counts: (loss * mask).sum() / mask.sum(), with class weights in the mask",
            "用有效项相除：(loss * mask).sum() / mask.sum()，有类别权重时权重计入 mask",
        ),
    ),
    Entry(
        "ce-class-weight-mean",
        (
            "The weighted losses are divided by their number, the reference divides by the sum of the weights",
            "加权损失除以样本数，标杆除以权重之和",
        ),
        ("The port's value is the {port_value}", "待比对的值为 {port_value}"),
        (
            "Use ops.cross_entropy(..., weight=...), or divide by the sum of the labels' weights",
            "使用 ops.cross_entropy(..., weight=...)，或除以各标签权重之和",
        ),
    ),
    Entry(
        "ce-class-weight-missing",
        ("The classes' weights are not used", "没有使用类别权重"),
        ("The same loss without weights is the port's value", "去掉权重的同一损失与待比对一侧的值相同"),
        ("Pass weight=... to the loss", "将 weight=... 传入损失"),
    ),
    _of_setting(
        "ce-label-smoothing",
        (
            "The label smoothing is {port_value}, the reference has {reference_value}",
            "标签平滑不同：待比对为 {port_value}，标杆为 {reference_value}",
        ),
    ),
    Entry(
        "ce-settings-lost",
        ("The port's cross entropy has none of {setting}", "待比对的交叉熵缺少 {setting}"),
        ("The same loss without them is the port's value", "去掉它们的同一损失与待比对一侧的值相同"),
        (
            "Use nn.CrossEntropyLoss or ops.cross_entropy with {setting}, as the reference has them",
            "使用带 {setting} 的 nn.CrossEntropyLoss 或 ops.cross_entropy，与标杆一致",
        ),
    ),
    Entry(
        "ce-on-softmax-output",
        (
            "The loss takes logits and has a softmax of its own, the port gives it {port_value}",
            "损失自带 softmax，应传入 logits，待比对传入的是 {port_value}",
        ),
        ("The reference gives it {reference_value}", "标杆传入的是 {reference_value}"),
        ("Take the softmax out of the head, or leave it to inference", "训练时去掉头部的 softmax，仅在推理时使用"),
    ),
    Entry(
        "nll-on-probabilities",
        (
            "The negative log likelihood is taken of {port_value}, the reference takes it of {reference_value}",
            "负对数似然作用于 {port_value}，标杆作用于 {reference_value}",
        ),
        _NOTHING,
        (
            "Use log_softmax before nll_loss, or ops.cross_entropy on the logits",
            "在 nll_loss 前使用 log_softmax，或对 logits 使用 ops.cross_entropy",
        ),
    ),
    Entry(
        "lm-label-shift",
        (
            "The loss is given {port_value}, the reference gives it {reference_value}",
            "传入损失的是 {port_value}，标杆传入的是 {reference_value}",
        ),
        (
            "Position t foretells the word at t + 1: logits [:, :-1] belong to labels [:, 1:]",
            "位置 t 预测 t + 1 的词：logits [:, :-1] 对应 labels [:, 1:]",
        ),
        ("Shift logits and labels once, as the reference does", "与标杆一致，logits 与标签只错开一位"),
    ),
    Entry(
        "loss-reduction",
        (
            "The losses are put together otherwise: {port_value}, the reference takes {reference_value}",
            "损失的归约方式不同：待比对为 {port_value}，标杆为 {reference_value}",
        ),
        _GIVES,
        ("Reduce as the reference does: {reference_value}", "与标杆采用相同归约：{reference_value}"),
    ),
    Entry(
        "loss-other",
        (
            "The port computes the {port_value}, the reference the {reference_value}",
            "待比对计算的是 {port_value}，标杆是 {reference_value}",
        ),
        ("The {port_value} of the same tensors is the port's value", "相同张量的 {port_value} 与待比对的值相同"),
        ("Use the {reference_value}", "改用 {reference_value}"),
    ),
    Entry(
        "loss-input",
        (
            "The loss is computed of {port_value} in place of {reference_value}",
            "损失作用于 {port_value}，而不是 {reference_value}",
        ),
        _NOTHING,
        ("Give the loss {reference_value}", "将 {reference_value} 传入损失"),
    ),
    Entry(
        "loss-labels",
        (
            "The labels are {port_value}, the reference has {reference_value}",
            "标签为 {port_value}，标杆为 {reference_value}",
        ),
        _GIVES,
        ("Give the loss labels of {reference_value}", "传入取值为 {reference_value} 的标签"),
    ),
    Entry(
        "loss-weight",
        (
            "{other} has the weight {port_value} in the sum, the reference gives it {reference_value}",
            "求和中 {other} 的权重为 {port_value}，标杆为 {reference_value}",
        ),
        ("No other term explains the difference", "其他项都不能解释该差异"),
        ("Multiply {other} by {reference_value}", "将 {other} 乘以 {reference_value}"),
    ),
    _of_setting(
        "loss-margin",
        (
            "The margin is {port_value}, the reference has {reference_value}",
            "margin 为 {port_value}，标杆为 {reference_value}",
        ),
    ),
    _of_setting("loss-eps", _SAYS),
    _of_setting("triplet-power", _SAYS),
    _of_setting("triplet-swap", _SAYS),
    Entry(
        "huber-vs-smoothl1",
        (
            "The port computes the {port_value}, the reference the {reference_value}",
            "待比对计算的是 {port_value}，标杆是 {reference_value}",
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
    Entry(
        "bce-log-clamp",
        (
            "The logarithm of a probability of zero is cut at -{port_value}, in the reference at -{reference_value}",
            "概率为零时对数截断在 -{port_value}，标杆为 -{reference_value}",
        ),
        ("Probabilities of 0 or 1 make the difference", "差异来自等于 0 或 1 的概率"),
        (
            "Use ops.binary_cross_entropy_with_logits on the logits, which cuts nothing",
            "对 logits 使用 ops.binary_cross_entropy_with_logits，不做截断",
        ),
    ),
    Entry(
        "bce-double-sigmoid",
        (
            "A sigmoid is applied twice: once before the loss and once in it",
            "sigmoid 应用了两次：损失之前一次，损失内部一次",
        ),
        (
            "The port has {port_value}, the reference {reference_value}",
            "待比对为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "Give nn.BCEWithLogitsLoss the logits, or use nn.BCELoss after the sigmoid",
            "向 nn.BCEWithLogitsLoss 传入 logits，或在 sigmoid 之后使用 nn.BCELoss",
        ),
    ),
    Entry(
        "bce-logits-as-probabilities",
        ("The loss takes probabilities, the port gives it logits", "损失应接收概率，待比对传入了 logits"),
        _NOTHING,
        ("Use nn.BCEWithLogitsLoss", "使用 nn.BCEWithLogitsLoss"),
    ),
    Entry(
        "bce-pos-weight-missing",
        ("pos_weight is not used", "没有使用 pos_weight"),
        ("The same loss without it is the port's value", "去掉它的同一损失与待比对一侧的值相同"),
        ("Pass it by name: pos_weight=...", "按名称传入：pos_weight=..."),
    ),
    _of_setting(
        "focal-gamma",
        (
            "The focal loss has gamma {port_value}, the reference has {reference_value}",
            "Focal 损失的 gamma 为 {port_value}，标杆为 {reference_value}",
        ),
    ),
    Entry(
        "focal-alpha",
        (
            "The focal loss gives positives the share {port_value}, the reference {reference_value}",
            "Focal 损失中正样本的 alpha 为 {port_value}，标杆为 {reference_value}",
        ),
        _GIVES,
        (
            "Positives are given alpha, negatives 1 - alpha",
            "alpha 对应正样本，1 - alpha 对应负样本",
        ),
    ),
    Entry(
        "kldiv-argument-order",
        ("The two distributions of the KL divergence are exchanged", "KL 散度的两个分布传反了"),
        ("The port's value is that of {port_value}", "待比对的值与 {port_value} 一致"),
        (
            "Pass the logarithms of the pupil first, then the teacher's probabilities",
            "先传学生的对数概率，再传教师的概率",
        ),
    ),
    Entry(
        "kldiv-input-not-log",
        (
            "The KL divergence is given {port_value}, it wants {reference_value}",
            "传入 KL 散度的是 {port_value}，应为 {reference_value}",
        ),
        _NOTHING,
        ("Use log_softmax for the first argument", "第一个参数使用 log_softmax"),
    ),
    Entry(
        "distillation-temperature",
        (
            "{setting} is {port_value}, in the reference {reference_value}",
            "{setting}为 {port_value}，标杆为 {reference_value}",
        ),
        _GIVES,
        ("Divide the logits by {reference_value}", "将 logits 除以 {reference_value}"),
    ),
    Entry(
        "distillation-scale",
        (
            "The divergence is multiplied by {port_value}, in the reference by {reference_value}",
            "散度乘以 {port_value}，标杆乘以 {reference_value}",
        ),
        ("The reference's factor is the temperature squared", "标杆的系数为温度的平方"),
        ("Multiply by {reference_value}", "乘以 {reference_value}"),
    ),
    _of_setting("gaussian-nll-full", _SAYS),
    Entry(
        "gaussian-nll-variance",
        (
            "The loss is given the {port_value}, the reference gives it the {reference_value}",
            "传入损失的是 {port_value}，标杆传入 {reference_value}",
        ),
        _NOTHING,
        ("The third argument is the variance", "第三个参数应为方差"),
    ),
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
