"""Causes that lie in the data of a training or in its updates, with those of losses and of treated gradients.

Facts of settings: `setting`, `reference_value`, `port_value`, `count` of `total` parameters, `parameters` by name.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text
from aligner.training.gradient_entries import GRADIENTS
from aligner.training.loss_entries import LOSSES
from aligner.training.program_entries import PROGRAM
from aligner.training.resume_entries import RESUMED
from aligner.training.treatment_entries import TREATMENT

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
        ("decay of the mean square (alpha)", "均方衰减率 alpha "),
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
            "Bias correction of the moments, which begin at zero: {port_value}; in the reference: {reference_value}",
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
        "optimizer-state-begins",
        (
            "The optimizer's {word} begins at {port_value}, the reference's at {reference_value}",
            "优化器的{word}初值为 {port_value}，标杆为 {reference_value}",
        ),
        _WHOSE,
        (
            "Set it before the first update: nn.RMSProp begins its mean square at one, PyTorch's at zero",
            "在首次更新之前设置：`nn.RMSProp` 的均方初值为一，PyTorch 为零",
        ),
    ),
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

_UNSHUFFLED = (
    "Switch shuffling off on both sides (GeneratorDataset shuffles unless it is given shuffle=False), or give both the "
    "same indices",
    "两侧都关闭打乱（`GeneratorDataset` 默认打乱，除非设 `shuffle=False`），或使用相同的索引",
)

DATA: tuple[Entry, ...] = (
    Entry(
        "data-other",
        (
            "The port's batch has other data: {known} of its {rows} rows stand in any batch of the reference's",
            "待比对的批次数据不同：其 {rows} 行中有 {known} 行出现在标杆的批次中",
        ),
        _NOTHING,
        (
            "Compare how both read, normalise and augment, and the order (GeneratorDataset shuffles unless it is given "
            "shuffle=False)",
            "对照两侧的读取、归一化、增强与顺序（`GeneratorDataset` 默认打乱，除非设 `shuffle=False`）",
        ),
    ),
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
        _UNSHUFFLED,
    ),
    Entry(
        "data-order",
        (
            "The port's rows stand in other batches of the reference's (step:row): {rows}",
            "待比对批次的行位于标杆的其他批次中（步:行）：{rows}",
        ),
        _NOTHING,
        _UNSHUFFLED,
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

ENTRIES: tuple[Entry, ...] = DATA + LOSSES + SETTINGS + WHOSE + GRADIENTS + TREATMENT + PROGRAM + RESUMED
