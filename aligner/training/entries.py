"""Causes that lie in an update, or in what is made of gradients before it.

Facts of settings: `setting`, `reference_value`, `port_value`, `count` of `total` parameters, `parameters` by name.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text
from aligner.training.loss_entries import LOSSES

_NOTHING = ("", "")
_WHOSE = ("Of {count} of {total} parameters: {parameters}", "涉及 {total} 个参数中的 {count} 个：{parameters}")


def _setting(cause: str, name: Text, fix: Text) -> Entry:
    title = (
        f"The {name[0]} is {{port_value}}, the reference has {{reference_value}}",
        f"{name[1]}为 {{port_value}}，标杆为 {{reference_value}}",
    )
    return Entry(cause, title, _WHOSE, fix)


SETTINGS: tuple[Entry, ...] = (
    _setting(
        "optimizer-learning-rate",
        ("learning rate", "学习率"),
        (
            "Give the optimizer learning_rate={reference_value}, or the schedule that makes it so in this step",
            "将优化器的 learning_rate 设为 {reference_value}，或使用在该步得到此值的学习率策略",
        ),
    ),
    _setting(
        "optimizer-weight-decay",
        ("weight decay", "权重衰减"),
        (
            "Give these parameters a group of their own: {{'params': [...], 'weight_decay': {reference_value}}}",
            "为这些参数单独设一组：{{'params': [...], 'weight_decay': {reference_value}}}",
        ),
    ),
    Entry(
        "weight-decay-gamma-beta-filter",
        (
            "The weight decay is {port_value}, the reference has {reference_value}: nn.Optimizer leaves out parameters "
            "called gamma or beta",
            "权重衰减为 {port_value}，标杆为 {reference_value}：nn.Optimizer 会跳过名为 gamma 或 beta 的参数",
        ),
        _WHOSE,
        (
            "Give all parameters as one group, which is not filtered: "
            "[{{'params': net.trainable_params(), 'weight_decay': {reference_value}}}]",
            "把全部参数作为一个分组传入，分组不会被过滤："
            "[{{'params': net.trainable_params(), 'weight_decay': {reference_value}}}]",
        ),
    ),
    _setting(
        "optimizer-momentum", ("momentum", "动量"), ("Set momentum={reference_value}", "设 momentum={reference_value}")
    ),
    _setting(
        "optimizer-dampening",
        ("dampening", "动量阻尼"),
        ("Set dampening={reference_value}", "设 dampening={reference_value}"),
    ),
    _setting(
        "optimizer-nesterov",
        ("switch nesterov", "nesterov 开关"),
        (
            "Set nesterov={reference_value}; nn.Momentum has use_nesterov",
            "设 nesterov={reference_value}；nn.Momentum 中为 use_nesterov",
        ),
    ),
    _setting(
        "optimizer-betas",
        ("setting {setting}", "设置 {setting} "),
        ("Set {setting}={reference_value}", "设 {setting}={reference_value}"),
    ),
    _setting(
        "optimizer-eps", ("optimizer's eps", "优化器的 eps "), ("Set eps={reference_value}", "设 eps={reference_value}")
    ),
    _setting(
        "optimizer-amsgrad",
        ("switch amsgrad", "amsgrad 开关"),
        ("Set amsgrad={reference_value}", "设 amsgrad={reference_value}"),
    ),
    _setting(
        "optimizer-alpha",
        ("decay of the mean square", "均方衰减率"),
        ("Set decay={reference_value}", "设 decay={reference_value}"),
    ),
    _setting(
        "rmsprop-centered",
        ("switch centered", "centered 开关"),
        ("Set centered={reference_value}", "设 centered={reference_value}"),
    ),
    _setting(
        "optimizer-setting",
        ("setting {setting}", "设置 {setting} "),
        ("Set {setting}={reference_value}", "设 {setting}={reference_value}"),
    ),
    Entry(
        "adam-weight-decay-l2-vs-decoupled",
        (
            "Weight decay is decoupled from the gradient: {port_value}; in the reference: {reference_value}",
            "权重衰减与梯度解耦：{port_value}；标杆：{reference_value}",
        ),
        _WHOSE,
        (
            "AdamW decays the weight itself and Adam adds the decay to the gradient: use the same of the two",
            "AdamW 直接衰减权重，而 Adam 把衰减加到梯度上：请使用与标杆相同的一种",
        ),
    ),
    Entry(
        "adamweightdecay-no-bias-correction",
        (
            "The moments are corrected for their start: {port_value}; in the reference: {reference_value}",
            "对矩估计做偏差修正：{port_value}；标杆：{reference_value}",
        ),
        _WHOSE,
        (
            "nn.AdamWeightDecay makes no such correction: use mindspore.experimental.optim.AdamW",
            "nn.AdamWeightDecay 不做偏差修正：请改用 mindspore.experimental.optim.AdamW",
        ),
    ),
)

WHOSE: tuple[Entry, ...] = (
    Entry(
        "optimizer-kind",
        (
            "The optimizer is {port_kind} ({port_type}), the reference's {reference_kind}",
            "优化器为 {port_kind}（{port_type}），标杆为 {reference_kind}",
        ),
        _NOTHING,
        ("Use the optimizer of the same rule", "使用更新规则相同的优化器"),
    ),
    Entry(
        "parameter-not-optimized",
        (
            "{count} parameters are in no optimizer of the port's: {parameters}",
            "{count} 个参数不在待比对网络的任何优化器中：{parameters}",
        ),
        ("The reference's optimizer updates them", "标杆的优化器会更新它们"),
        (
            "Give them to the optimizer; net.trainable_params() leaves out what has requires_grad=False",
            "将它们交给优化器；net.trainable_params() 会略去 requires_grad=False 的参数",
        ),
    ),
    Entry(
        "frozen-params-trained",
        (
            "{count} parameters are updated that the reference's optimizer does not have: {parameters}",
            "{count} 个参数被更新，而标杆的优化器并不包含它们：{parameters}",
        ),
        _NOTHING,
        (
            "Set requires_grad=False before the optimizer is made, or leave them out of its parameters",
            "在创建优化器之前设 requires_grad=False，或不要把它们交给优化器",
        ),
    ),
    Entry(
        "update-term",
        (
            "What is too much is {factor} times the {term} of each parameter",
            "多出的部分为各参数{term}的 {factor} 倍",
        ),
        (
            "To {left} of the difference, for {count} of {total} parameters",
            "剩余差异 {left}，涉及 {total} 个参数中的 {count} 个",
        ),
        (
            "Look at what the optimizer makes of the {term} beside the rule's own",
            "检查优化器除自身规则外还如何使用了{term}",
        ),
    ),
)

_OURS = ("The reference {ours}", "标杆{ours}")
_FACTOR = (
    "All gradients are {factor} times the reference's; that {ours}",
    "全部梯度为标杆的 {factor} 倍；标杆{ours}",
)

TREATMENT: tuple[Entry, ...] = (
    Entry(
        "gradient-scaled",
        (
            "All gradients are {factor} times the reference's when the optimizer gets them",
            "交给优化器的梯度全部为标杆的 {factor} 倍",
        ),
        ("The backward runs' own agree; the reference {ours}", "反向计算本身得到的梯度一致；标杆{ours}"),
        (
            "Look for a factor between the backward run and the optimizer",
            "检查反向计算与优化器之间多出的系数",
        ),
    ),
    Entry(
        "grad-accumulation-mean-vs-sum",
        (
            "The gradients of {batches} batches are added up on one side, and their mean is taken on the other",
            "一侧将 {batches} 个批次的梯度相加，另一侧取其平均",
        ),
        _FACTOR,
        (
            "Divide what is accumulated by {batches}, or do not, as the reference does",
            "按标杆的做法决定是否将累积的梯度除以 {batches}",
        ),
    ),
    Entry(
        "loss-scale-not-removed",
        (
            "The gradients still carry the loss scale {scale} when the optimizer gets them",
            "交给优化器的梯度仍带有损失缩放系数 {scale}",
        ),
        _FACTOR,
        (
            "Divide them by the loss scale before clipping and before the update",
            "在裁剪和更新之前除以损失缩放系数",
        ),
    ),
    Entry(
        "loss-scale-clip-before-unscale",
        (
            "The gradients are clipped to a norm of {norm} before the loss scale {scale} is removed",
            "在去除损失缩放系数 {scale} 之前，就将梯度裁剪到范数 {norm}",
        ),
        _FACTOR,
        ("Remove the loss scale first, then clip", "先去除损失缩放，再裁剪"),
    ),
    Entry(
        "gradients-untreated",
        (
            "The optimizer gets the gradients as the backward runs made them, the reference's gets others",
            "优化器得到的是反向计算的原始梯度，而标杆的优化器得到的是处理过的梯度",
        ),
        ("Their norm is {norm}, the reference's {wanted}: it {ours}", "其范数为 {norm}，标杆为 {wanted}：标杆{ours}"),
        (
            "Look for what the reference does behind the backward run: clipping, a division, a mean",
            "检查标杆在反向计算之后做了什么：裁剪、除法或求平均",
        ),
    ),
    Entry(
        "clip-global-norm",
        (
            "The norm of all gradients is {norm} when the optimizer gets them, the reference's is {wanted}",
            "交给优化器的全部梯度范数为 {norm}，标杆为 {wanted}",
        ),
        ("That of the backward run is {raw}; the reference {ours}", "反向计算得到的范数为 {raw}；标杆{ours}"),
        ("Clip to the reference's norm, or not at all as it does", "按标杆的范数裁剪；若标杆不裁剪则不要裁剪"),
    ),
    Entry(
        "clip-per-tensor-vs-global",
        (
            "Each parameter's gradient is scaled by a factor of its own, the reference's all by one",
            "每个参数的梯度各有自己的缩放系数，标杆全部使用同一个",
        ),
        ("Factors from {least} to {most}; the reference {ours}", "系数从 {least} 到 {most}；标杆{ours}"),
        (
            "Clip all together, by the norm of all gradients, and not each by its own",
            "按全部梯度的范数整体裁剪，而不是逐个裁剪",
        ),
    ),
    Entry(
        "clip-value-vs-norm",
        (
            "Single elements of the gradients are cut off at {bound}",
            "梯度的个别元素被截断在 {bound}",
        ),
        _OURS,
        (
            "Clip by the norm of all gradients as clip_grad_norm_ does, and not by value as clip_grad_value_",
            "按全部梯度的范数裁剪（同 clip_grad_norm_），而不是按数值裁剪（同 clip_grad_value_）",
        ),
    ),
    Entry(
        "gradients-of-some-batches",
        (
            "The update gets the gradient of batch {which} of {batches} alone",
            "更新只得到 {batches} 个批次中第 {which} 个的梯度",
        ),
        ("The reference adds all of them up, and {ours}", "标杆将其全部相加，并{ours}"),
        ("Add the gradients up until the update, and set them to zero behind it", "在更新之前累加梯度，更新之后再清零"),
    ),
    Entry(
        "update-not-skipped",
        (
            "The gradients are not finite and the port updates with them all the same, the reference skips this update",
            "梯度含有 NaN 或 Inf，待比对一侧仍用其更新参数，而标杆跳过了这次更新",
        ),
        ("The loss scale has made them overflow", "损失缩放使其溢出"),
        (
            "Update only if all gradients are finite (`amp.all_finite`), and lower the loss scale otherwise",
            "仅当全部梯度有限（`amp.all_finite`）时才更新，否则降低损失缩放系数",
        ),
    ),
    Entry(
        "update-skipped",
        (
            "The port makes no update in this step, the reference does",
            "待比对一侧在本步没有更新参数，而标杆更新了",
        ),
        ("Some gradient of the backward run is not finite in the port", "待比对一侧反向计算得到的梯度含有 NaN 或 Inf"),
        (
            "Look for a loss scale that is larger than the reference's, or for NaN in the loss",
            "检查损失缩放系数是否大于标杆，或损失中是否出现 NaN",
        ),
    ),
    Entry(
        "gradients-not-zeroed",
        (
            "Gradients of {steps} earlier steps are still in those of this one: they are not set to zero",
            "本步的梯度中仍含有之前 {steps} 步的梯度：未清零",
        ),
        _OURS,
        ("Set what is accumulated to zero behind each update", "每次更新之后将累积的梯度清零"),
    ),
    Entry(
        "clip-per-batch",
        (
            "Each batch has a factor of its own before the gradients are summed: {factors} (clipped one by one)",
            "各批次的梯度在求和之前各乘一个因子：{factors}（逐批裁剪）",
        ),
        _OURS,
        ("Clip once, what all batches of an update have made together", "对一次更新的所有批次之和只裁剪一次"),
    ),
    Entry(
        "gradients-crossed",
        (
            "{parameters} get each other's gradients",
            "{parameters} 互换了梯度",
        ),
        _OURS,
        (
            "Give the optimizer the gradients in the order of its parameters",
            "按优化器参数的顺序传入梯度",
        ),
    ),
)

DATA: tuple[Entry, ...] = (
    Entry(
        "data-batch-size",
        ("The port's batch has {size} rows, the reference's {wanted}", "待比对的批次有 {size} 行，标杆有 {wanted} 行"),
        _NOTHING,
        (
            "Look at the batch size, and at whether the last batch that is not full is dropped",
            "检查批次大小，以及是否丢弃最后一个不满的批次",
        ),
    ),
    Entry(
        "data-axes",
        (
            "The port's batch has its axes in another order: {shape} for {wanted}",
            "待比对批次的轴顺序不同：{shape}，应为 {wanted}",
        ),
        _NOTHING,
        ("Give the net its axes as the reference does", "按标杆的轴顺序传入数据"),
    ),
    Entry(
        "data-other-step",
        (
            "The port's batch of step {step} is the reference's of step {other}",
            "待比对第 {step} 步的批次是标杆第 {other} 步的批次",
        ),
        _NOTHING,
        ("Iterate the data from the same beginning and in the same order", "从相同的起点、按相同的顺序迭代数据"),
    ),
    Entry(
        "data-order-inside",
        ("The port's batch has the reference's rows in another order: {rows}", "待比对批次的行顺序与标杆不同：{rows}"),
        _NOTHING,
        ("Switch shuffling off on both sides, or give both the same indices", "两侧都关闭打乱，或使用相同的索引"),
    ),
    Entry(
        "data-order",
        (
            "The port's rows stand in other batches of the reference's (step:row): {rows}",
            "待比对批次的行位于标杆的其他批次中（步:行）：{rows}",
        ),
        _NOTHING,
        ("Switch shuffling off on both sides, or give both the same indices", "两侧都关闭打乱，或使用相同的索引"),
    ),
    Entry(
        "data-scaled",
        ("The port's batch is {factor} times the reference's plus {shift}", "待比对批次为标杆的 {factor} 倍加 {shift}"),
        _NOTHING,
        ("Look at the normalisation: a division by 255, a mean, a deviation", "检查归一化：除以 255、均值、标准差"),
    ),
    Entry(
        "data-normalised",
        (
            "The port normalises each channel otherwise: times {factors}, plus {shifts}",
            "待比对网络对各通道的归一化不同：乘以 {factors}，加上 {shifts}",
        ),
        _NOTHING,
        (
            "Use the reference's mean and deviation, in its order of channels and its scale (0 to 1, or 0 to 255)",
            "使用标杆的均值和标准差，注意通道顺序与取值范围（0 到 1 或 0 到 255）",
        ),
    ),
)

ENTRIES: tuple[Entry, ...] = DATA + LOSSES + SETTINGS + WHOSE + TREATMENT
