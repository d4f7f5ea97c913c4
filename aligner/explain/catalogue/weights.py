"""Causes told from the values of parameters and buffers.

Facts of all of them: `role`, and `port_parameter`, its full name in the port as MindSpore spells it.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_NOTHING = ("", "")
_LEFT = ("With that undone, {left} is left", "还原后剩余误差 {left}")
_CONSTANT = (
    "All its values are {initial}, the reference's go from {lowest} to {highest}",
    "其值全部为 {initial}，标杆的取值范围为 {lowest} 到 {highest}",
)
_LOAD = (
    "Load the reference's {role} into {port_parameter}, and check what load_param_into_net returns as not loaded",
    "将标杆的 {role} 加载到 {port_parameter}，并检查 load_param_into_net 返回的未加载列表",
)

LAYOUT: tuple[Entry, ...] = (
    Entry(
        "parameter-transposed",
        (
            "{port_parameter} is the reference's {role} with its axes in the order {axes}",
            "{port_parameter} 是标杆的 {role} 按 {axes} 交换轴之后的结果",
        ),
        _LEFT,
        (
            "Load it as it is: MindSpore keeps PyTorch's order of axes in Dense and Conv weights",
            "按原样加载：MindSpore 的 Dense 和卷积权重与 PyTorch 的轴顺序相同",
        ),
    ),
    Entry(
        "dense-weight-transposed-square",
        (
            "{port_parameter} is transposed; it is square, so nothing complained",
            "{port_parameter} 被转置；由于是方阵，没有报错",
        ),
        _LEFT,
        (
            "Load nn.Dense's weight as (out, in), without a transpose; with ops.matmul(x, w) use w.T",
            "nn.Dense 的权重按 (out, in) 加载，不要转置；若使用 ops.matmul(x, w) 则取 w.T",
        ),
    ),
    Entry(
        "conv-weight-hw-transposed",
        (
            "The kernel {port_parameter} is turned: {turned} of the reference's",
            "卷积核 {port_parameter} 的朝向不同：等于标杆的 {turned}",
        ),
        _LEFT,
        (
            "Load the kernel as it is: both frameworks have (out, in, height, width) and neither turns it",
            "按原样加载卷积核：两个框架均为 (out, in, 高, 宽)，且都不翻转",
        ),
    ),
    Entry(
        "parameter-reshaped",
        (
            "{port_parameter} was reshaped where it should be transposed: {port_shape} for {shape}",
            "{port_parameter} 被 reshape 而不是转置：{port_shape}，应为 {shape}",
        ),
        _LEFT,
        ("Give it the axes in their order with a transpose, then load it", "用 transpose 调整轴顺序后再加载"),
    ),
    Entry(
        "parameter-flipped",
        (
            "{port_parameter} is the reference's {role} backwards along axis {axes}",
            "{port_parameter} 是标杆的 {role} 沿轴 {axes} 翻转的结果",
        ),
        _LEFT,
        ("Load it as it is, without a flip", "按原样加载，不要翻转"),
    ),
    Entry(
        "lstm-gate-order",
        (
            "{port_parameter} has its gates in another order: {order} for {wanted}",
            "{port_parameter} 中门的顺序不同：{order}，应为 {wanted}",
        ),
        _LEFT,
        (
            "Put the {count} blocks of rows in the order {wanted}; MindSpore's nn.LSTM and nn.GRU have PyTorch's order",
            "将 {count} 个行块按 {wanted} 的顺序排列；MindSpore 的 nn.LSTM 和 nn.GRU 与 PyTorch 顺序相同",
        ),
    ),
    Entry(
        "qkv-interleaved-layout",
        (
            "The rows of {port_parameter} are interleaved in another way: {order} for {wanted}",
            "{port_parameter} 各行的交错方式不同：“{order}”，应为“{wanted}”",
        ),
        _LEFT,
        (
            "Reorder its rows from {order} to {wanted}, or reshape its output in that order",
            "将其各行由“{order}”重排为“{wanted}”，或按该顺序 reshape 其输出",
        ),
    ),
    Entry(
        "parameter-swapped",
        (
            "{port_parameter} holds the reference's {other}, not its own {role}",
            "{port_parameter} 存放的是标杆的 {other}，而不是自己的 {role}",
        ),
        _LEFT,
        (
            "Load the reference's {role} of this layer into {port_parameter}",
            "将标杆中本层的 {role} 加载到 {port_parameter}",
        ),
    ),
    Entry(
        "parameter-blocks-swapped",
        (
            "{port_parameter} has its {count} blocks along axis {axis} in the order {order}",
            "{port_parameter} 沿轴 {axis} 的 {count} 个分块顺序为 {order}",
        ),
        _LEFT,
        ("Put the blocks in the order {wanted} and load it again", "将各分块按 {wanted} 的顺序排列后重新加载"),
    ),
    Entry(
        "parameter-permuted",
        (
            "{port_parameter} has the reference's slices of axis {axis} in another order: {order}",
            "{port_parameter} 沿轴 {axis} 的各片顺序与标杆不同：{order}",
        ),
        _LEFT,
        (
            "Look for a sorted or renumbered list (classes, tokens, channels) and load it in the reference's order",
            "检查是否有重新排序或编号的列表（类别、词表、通道），并按标杆的顺序加载",
        ),
    ),
)

VALUES: tuple[Entry, ...] = (
    Entry(
        "parameter-scaled",
        (
            "{port_parameter} is {ratio} times the reference's {role}",
            "{port_parameter} 与标杆 {role} 之比为 {ratio}",
        ),
        _LEFT,
        ("Load it without the factor, or apply the factor once only", "去掉该系数后加载，或确保系数只作用一次"),
    ),
    Entry(
        "parameter-shifted",
        (
            "{port_parameter} is the reference's {role} plus {shift}",
            "{port_parameter} 等于标杆的 {role} 加 {shift}",
        ),
        _LEFT,
        (
            "Load it without the addend; a norm that multiplies by 1 + weight keeps its weight less 1",
            "去掉该加数后加载；按 1 + weight 缩放的归一化所存权重要减 1",
        ),
    ),
    Entry(
        "parameter-transformed",
        (
            "{port_parameter} is {function} of the reference's {role}",
            "{port_parameter} 是标杆 {role} 的 {function}",
        ),
        _LEFT,
        (
            "Load {role} itself: both frameworks keep a variance, no deviation and no inverse",
            "直接加载 {role}：两个框架保存的都是方差，不是标准差或其倒数",
        ),
    ),
    Entry(
        "parameter-differs",
        (
            "{port_parameter} has other values than the reference's {role}",
            "{port_parameter} 的取值与标杆的 {role} 不同",
        ),
        (
            "{differing} of {total} values differ, the first at {first}; relative L2 {distance}",
            "{total} 个值中有 {differing} 个不同，首个位于 {first}；相对 L2 误差 {distance}",
        ),
        (
            "Look for what writes {port_parameter} after the weights are loaded, or computes it anew",
            "检查加载权重之后是否有代码改写或重新计算 {port_parameter}",
        ),
    ),
    Entry(
        "parameters-differ",
        (
            "Several parameters are not the reference's: {roles}",
            "多个参数与标杆不同：{roles}",
        ),
        _NOTHING,
        ("Load all of them from the reference", "全部从标杆加载"),
    ),
    Entry(
        "parameter-other-shape",
        (
            "{port_parameter} has the shape {port_shape}, the reference's {role} has {shape}",
            "{port_parameter} 的形状为 {port_shape}，标杆的 {role} 为 {shape}",
        ),
        _NOTHING,
        (
            "Build the layer with the reference's sizes: {written}",
            "按标杆的尺寸构建该层：{written}",
        ),
    ),
)

LOADING: tuple[Entry, ...] = (
    Entry(
        "parameter-missing",
        (
            "The port has no {role} here, the reference has one of shape {shape}",
            "待比对网络此处没有 {role}，标杆有形状为 {shape} 的 {role}",
        ),
        _NOTHING,
        ("Give the layer one and load it: {written}", "为该层添加并加载它：{written}"),
    ),
    Entry(
        "parameter-untied",
        (
            "Only the port has {port_parameter} of its own; the reference has no such parameter",
            "只有待比对网络拥有独立的 {port_parameter}，标杆没有该参数",
        ),
        ("Its shape is {port_shape}", "其形状为 {port_shape}"),
        (
            "Share the parameter that the reference uses here, or leave this one out (has_bias=False for a bias)",
            "改为共享标杆在此处使用的参数，或去掉该参数（偏置用 has_bias=False）",
        ),
    ),
    Entry(
        "parameter-extra",
        (
            "Only the port has {port_parameter}; the reference has no such parameter",
            "只有待比对网络拥有 {port_parameter}，标杆没有该参数",
        ),
        ("Its shape is {port_shape}", "其形状为 {port_shape}"),
        ("Leave it out (has_bias=False for a bias)", "去掉该参数（偏置用 has_bias=False）"),
    ),
    Entry(
        "tied-weights-lost",
        (
            "{port_parameter} is a weight of its own; the reference uses {other} here as well",
            "{port_parameter} 是独立的权重，而标杆在此处共用 {other}",
        ),
        ("Both have the shape {port_shape}", "两者形状均为 {port_shape}"),
        (
            "Let {port_parameter} be the very Parameter of {other} (nn.Embedding's is embedding_table), not a copy",
            "令 {port_parameter} 与 {other} 为同一个 Parameter（nn.Embedding 的为 embedding_table），而不是复制一份",
        ),
    ),
    Entry(
        "parameter-not-loaded",
        (
            "{port_parameter} still has its initial values, the reference's {role} was not loaded",
            "{port_parameter} 仍为初始值，标杆的 {role} 没有被加载",
        ),
        _CONSTANT,
        _LOAD,
    ),
    Entry(
        "bn-buffers-not-loaded",
        (
            "{port_parameter} was not loaded: the running statistics of BatchNorm have other names in MindSpore",
            "{port_parameter} 没有被加载：BatchNorm 的滑动统计量在 MindSpore 中名称不同",
        ),
        _CONSTANT,
        (
            "Rename running_mean to moving_mean and running_var to moving_variance, weight to gamma, bias to beta",
            "改名：running_mean 为 moving_mean，running_var 为 moving_variance，weight 为 gamma，bias 为 beta",
        ),
    ),
    Entry(
        "bn-gamma-beta-not-mapped",
        (
            "{port_parameter} was not loaded: BatchNorm's weight and bias are gamma and beta in MindSpore",
            "{port_parameter} 没有被加载：BatchNorm 的 weight 和 bias 在 MindSpore 中是 gamma 和 beta",
        ),
        _CONSTANT,
        ("Rename weight to gamma and bias to beta before loading", "加载前将 weight 改名为 gamma，bias 改名为 beta"),
    ),
    Entry(
        "ln-gamma-beta-not-mapped",
        (
            "{port_parameter} was not loaded: a norm's weight and bias are gamma and beta in MindSpore",
            "{port_parameter} 没有被加载：归一化层的 weight 和 bias 在 MindSpore 中是 gamma 和 beta",
        ),
        _CONSTANT,
        (
            "Rename weight to gamma and bias to beta before loading (mint.nn keeps PyTorch's names)",
            "加载前将 weight 改名为 gamma，bias 改名为 beta（mint.nn 沿用 PyTorch 的名称）",
        ),
    ),
    Entry(
        "load-param-silent-miss",
        (
            "{port_parameter} has nothing to do with the reference's {role}: it was never loaded",
            "{port_parameter} 与标杆的 {role} 毫无关联：没有被加载",
        ),
        (
            "Their cosine is {cosine} over {total} values; the deviation is {port_spread}, the reference's {spread}",
            "{total} 个值的余弦相似度为 {cosine}；标准差为 {port_spread}，标杆为 {spread}",
        ),
        (
            "load_param_into_net does not raise: check the lists it returns, and prefixes such as 'module.'",
            "load_param_into_net 不会报错：请检查其返回的列表，以及 'module.' 之类的前缀",
        ),
    ),
    Entry(
        "lstm-reverse-not-loaded",
        (
            "{port_parameter}, of the backward direction, was not loaded",
            "反向的 {port_parameter} 没有被加载",
        ),
        ("Only the second half of the features is wrong", "只有特征的后半部分有误"),
        ("Carry the _reverse parameters over too", "同时加载带 _reverse 后缀的参数"),
    ),
    Entry(
        "lstm-second-bias-lost",
        (
            "{port_parameter} was not loaded; PyTorch adds two biases, bias_ih and bias_hh",
            "{port_parameter} 没有被加载；PyTorch 会相加 bias_ih 与 bias_hh 两个偏置",
        ),
        ("Its values go from {lowest} to {highest}", "其取值范围为 {lowest} 到 {highest}"),
        ("Load both biases", "两个偏置都要加载"),
    ),
    Entry(
        "gru-merged-bias",
        (
            "{port_parameter} holds the sum of both biases, which is wrong for a GRU's new gate",
            "{port_parameter} 存放了两个偏置之和，这对 GRU 的候选门是错误的",
        ),
        _LEFT,
        ("Load bias_ih and bias_hh each into its own parameter", "将 bias_ih 和 bias_hh 分别加载到各自的参数"),
    ),
)

ENTRIES = LAYOUT + VALUES + LOADING
