"""Causes told from the settings of a layer: another value than the reference's, or another class.

Facts of all of them: `setting` and its values, `written` is the call that has the reference's, in MindSpore's words.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_SEEN = (
    "{setting} is {port_value} in the port and {reference_value} in the reference",
    "{setting} 在待比对网络中为 {port_value}，在标杆中为 {reference_value}",
)
_NOTHING = ("", "")
_WRITE = ("Write {written}", "写成 {written}")
_EXPLICIT = (
    "Write {written}; leave no default of the framework to chance",
    "显式写出 {written}，不要依赖框架的默认值",
)

GENERAL: tuple[Entry, ...] = (
    Entry(
        "setting-differs",
        (
            "{setting} is {port_value}, the reference has {reference_value}",
            "{setting} 为 {port_value}，标杆为 {reference_value}",
        ),
        _NOTHING,
        ("Write {written} in the port", "在待比对网络中写成 {written}"),
    ),
    Entry(
        "settings-differ",
        ("Several settings are not the reference's: {differences}", "多个设置与标杆不同：{differences}"),
        ("Each is shown as reference -> port", "各项按“标杆 -> 待比对”列出"),
        ("Write {written} in the port", "在待比对网络中写成 {written}"),
    ),
    Entry(
        "kind-differs",
        (
            "The port has a {port_kind} where the reference has a {kind}",
            "标杆此处是 {kind}，待比对网络却是 {port_kind}",
        ),
        _NOTHING,
        ("Use the same layer: {written}", "改用相同的层：{written}"),
    ),
)

NORMS: tuple[Entry, ...] = (
    Entry(
        "layernorm-eps-default",
        (
            "LayerNorm's eps is {port_value} (MindSpore's default is 1e-07), the reference has {reference_value}",
            "LayerNorm 的 eps 为 {port_value}（MindSpore 默认 1e-07），标杆为 {reference_value}",
        ),
        (
            "Rows of small variance come out too large or too small, each row by one factor",
            "方差小的行整体偏大或偏小，每行为同一比例",
        ),
        _EXPLICIT,
    ),
    Entry(
        "layernorm-multi-axis",
        (
            "LayerNorm normalises over {port_value}, the reference over {reference_value}",
            "LayerNorm 在 {port_value} 上归一化，标杆在 {reference_value} 上归一化",
        ),
        (
            "nn.LayerNorm takes the last axis only unless begin_norm_axis says otherwise, whatever its shape",
            "无论形状如何，nn.LayerNorm 默认只在最后一个轴上归一化，除非给出 begin_norm_axis",
        ),
        ("Write {written}: both axes must be given", "写成 {written}：两个轴参数都要给出"),
    ),
    Entry(
        "bn-eps-dropped",
        (
            "BatchNorm's eps is {port_value}, the reference has {reference_value}",
            "BatchNorm 的 eps 为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "Channels of small variance are off by a factor each, the others hardly",
            "方差小的通道各差一个比例，其余通道几乎不受影响",
        ),
        ("Carry the eps over: {written}", "沿用标杆的 eps：{written}"),
    ),
    Entry(
        "bn-momentum-convention",
        (
            "momentum was copied as it is: in PyTorch's words it is {port_value}, the reference has {reference_value}",
            "momentum 被原样照抄：按 PyTorch 含义为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "MindSpore's nn.BatchNorm takes the share that is kept, 1 - momentum; only training shows it",
            "MindSpore 的 nn.BatchNorm 以保留比例 1 - momentum 为参数；只影响训练时的滑动统计量",
        ),
        (
            "Write {written} (mint.nn.BatchNorm takes PyTorch's own {reference_value})",
            "写成 {written}（mint.nn.BatchNorm 则直接使用 PyTorch 的 {reference_value}）",
        ),
    ),
    Entry(
        "bn-momentum-none",
        (
            "The reference averages over all batches (momentum=None), the port has momentum {port_value}",
            "标杆对所有批次求累积平均（momentum=None），待比对网络的 momentum 为 {port_value}",
        ),
        _NOTHING,
        (
            "MindSpore has no such BatchNorm: keep the running average in a cell of your own",
            "MindSpore 没有这种 BatchNorm：请自行编写 Cell 维护累积平均",
        ),
    ),
    Entry(
        "bn-use-batch-statistics",
        (
            "Other statistics are taken: track_running_stats is {port_value}, the reference has {reference_value}",
            "使用的统计量不同：track_running_stats 为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "use_batch_statistics=True means the batch's own mean and variance, in eval mode too",
            "use_batch_statistics=True 表示推理模式下也使用当前批次的均值和方差",
        ),
        ("Write {written}; None follows train and eval mode", "写成 {written}；None 表示随训练/推理模式切换"),
    ),
    Entry(
        "groupnorm-args-swapped",
        (
            "GroupNorm has {port_value} groups, the reference has {reference_value}",
            "GroupNorm 分为 {port_value} 组，标杆为 {reference_value} 组",
        ),
        _NOTHING,
        _WRITE,
    ),
    Entry(
        "instancenorm-affine-default",
        (
            "InstanceNorm has affine={port_value} (MindSpore's default is True), the reference has {reference_value}",
            "InstanceNorm 的 affine 为 {port_value}（MindSpore 默认 True），标杆为 {reference_value}",
        ),
        (
            "A gamma and beta that are not the reference's act on the output",
            "输出受到标杆中不存在的 gamma 和 beta 的影响",
        ),
        _EXPLICIT,
    ),
    Entry(
        "rmsnorm-eps-default",
        (
            "The RMS norm's eps is {port_value}, the reference has {reference_value}",
            "RMSNorm 的 eps 为 {port_value}，标杆为 {reference_value}",
        ),
        ("Rows of small norm are off by a factor each", "范数小的行各差一个比例"),
        ("Pass the model's own eps: {written}", "传入模型自己的 eps：{written}"),
    ),
    Entry(
        "lrn-size-alpha",
        (
            "Local response norm: {setting} is {port_value} in PyTorch's meaning, the reference has {reference_value}",
            "局部响应归一化：按 PyTorch 含义，{setting} 为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "nn.LRN takes half the window (depth_radius) and does not divide alpha by the window's size",
            "nn.LRN 的窗口以半径 depth_radius 给出，且 alpha 不除以窗口大小",
        ),
        _WRITE,
    ),
)

ACTIVATIONS: tuple[Entry, ...] = (
    Entry(
        "gelu-approximate-default",
        (
            "GELU is the tanh approximation, the reference's is exact: nn.GELU() approximates unless told otherwise",
            "GELU 用了 tanh 近似，而标杆是精确形式：nn.GELU() 默认使用近似",
        ),
        _SEEN,
        ("Write nn.GELU(approximate=False)", "写成 nn.GELU(approximate=False)"),
    ),
    Entry(
        "gelu-new-vs-erf",
        ("GELU is exact, the reference's is the tanh approximation", "GELU 为精确形式，而标杆是 tanh 近似"),
        _SEEN,
        (
            "Write nn.GELU(approximate=True), or ops.gelu(x, approximate='tanh')",
            "写成 nn.GELU(approximate=True)，或 ops.gelu(x, approximate='tanh')",
        ),
    ),
    Entry(
        "quick-gelu-vs-gelu",
        (
            "One side is GELU, the other the quick one, x * sigmoid(1.702 x): reference {kind}, port {port_kind}",
            "一侧是 GELU，另一侧是快速近似 x * sigmoid(1.702 x)：标杆 {kind}，待比对 {port_kind}",
        ),
        ("They are up to 0.02 apart", "两者最多相差 0.02"),
        (
            "Write what the reference has: x * ops.sigmoid(1.702 * x), or nn.GELU with its approximate",
            "按标杆实现：x * ops.sigmoid(1.702 * x)，或 approximate 与标杆相同的 nn.GELU",
        ),
    ),
    Entry(
        "hardswish-vs-swish",
        (
            "Hard swish and swish (SiLU) were taken for each other: reference {kind}, port {port_kind}",
            "混淆了 Hardswish 与 swish（SiLU）：标杆 {kind}，待比对 {port_kind}",
        ),
        _NOTHING,
        ("Write {written}", "写成 {written}"),
    ),
    Entry(
        "leakyrelu-slope-default",
        (
            "LeakyReLU's slope is {port_value} (MindSpore's default is 0.2), the reference has {reference_value}",
            "LeakyReLU 的斜率为 {port_value}（MindSpore 默认 0.2），标杆为 {reference_value}",
        ),
        ("Only negative inputs show it, all by one factor", "只有负输入受影响，且为同一比例"),
        _EXPLICIT,
    ),
    Entry(
        "leakyrelu-yolo-0.1",
        (
            "LeakyReLU's slope is {port_value}, the reference has {reference_value}, not a default",
            "LeakyReLU 的斜率为 {port_value}，标杆使用非默认的 {reference_value}",
        ),
        ("Only negative inputs show it, all by one factor", "只有负输入受影响，且为同一比例"),
        _WRITE,
    ),
    Entry(
        "softplus-beta",
        (
            "Softplus has {setting} {port_value}, the reference has {reference_value}",
            "Softplus 的 {setting} 为 {port_value}，标杆为 {reference_value}",
        ),
        ("The primitive ops.Softplus has neither beta nor threshold", "原语 ops.Softplus 没有 beta 和 threshold"),
        (
            "Write ops.softplus(x, beta, threshold) with {setting}={reference_value}",
            "写成 ops.softplus(x, beta, threshold)，其中 {setting}={reference_value}",
        ),
    ),
    Entry(
        "prelu-channel-default",
        (
            "PReLU has {port_value} slopes (MindSpore's default is 1), the reference has {reference_value}",
            "PReLU 只有 {port_value} 个斜率（MindSpore 默认 1），标杆有 {reference_value} 个",
        ),
        (
            "The reference's weight does not fit and was not loaded",
            "标杆的权重形状不符，未被加载",
        ),
        _WRITE,
    ),
    Entry(
        "softmax-axis-default",
        (
            "Softmax runs over axis {port_value} (MindSpore's default is -1), the reference's over {reference_value}",
            "Softmax 作用于轴 {port_value}（MindSpore 默认 -1），标杆为 {reference_value}",
        ),
        (
            "The values add up to one along axis {port_value}",
            "数值沿轴 {port_value} 求和为一",
        ),
        ("Write {written}", "写成 {written}"),
    ),
    Entry(
        "logsoftmax-axis",
        (
            "LogSoftmax is taken over axis {port_value}, the reference's over {reference_value}",
            "LogSoftmax 作用于轴 {port_value}，标杆为 {reference_value}",
        ),
        ("nn.LogSoftmax takes the last axis unless told otherwise", "nn.LogSoftmax 默认取最后一个轴"),
        ("Write {written}", "写成 {written}"),
    ),
    Entry(
        "dropout-keep-prob-positional",
        (
            "Dropout drops {port_value} where the reference drops {reference_value}: the rate went into keep_prob",
            "Dropout 丢弃比例为 {port_value}，标杆为 {reference_value}：比例被当作 keep_prob 传入",
        ),
        (
            "nn.Dropout(0.1) keeps 10 %; only train mode shows it",
            "nn.Dropout(0.1) 表示保留 10 %；仅训练模式下可见",
        ),
        _WRITE,
    ),
)

SEQUENCES: tuple[Entry, ...] = (
    Entry(
        "rnn-batch-first",
        (
            "batch_first is {port_value}, the reference has {reference_value}: batch and time are taken for each other",
            "batch_first 为 {port_value}，标杆为 {reference_value}：批次轴与时间轴被混淆",
        ),
        _NOTHING,
        _WRITE,
    ),
    Entry(
        "encoder-layer-norm-first",
        (
            "norm_first is {port_value}, the reference has {reference_value}: its norms stand elsewhere",
            "norm_first 为 {port_value}，标杆为 {reference_value}：归一化的位置相反",
        ),
        _NOTHING,
        _WRITE,
    ),
)

ENTRIES = GENERAL + NORMS + ACTIVATIONS + SEQUENCES
