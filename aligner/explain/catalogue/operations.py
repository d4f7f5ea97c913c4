"""Functions that code between layers calls, and that do something else by that name: picking, sampling, counting.

Facts as in the causes of code between layers: `reference_code` and `port_code`, what each side computes.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_CODE: Text = (
    "The reference computes {reference_code}, the port {port_code}: {left} is left",
    "标杆计算 {reference_code}，待比对计算 {port_code}：剩余误差 {left}",
)
_AS: Text = ("Write in {port_layer}: {reference_code}", "在 {port_layer} 中写成：{reference_code}")


def _entry(cause: str, title: Text, fix: Text = _AS, evidence: Text = _CODE) -> Entry:
    return Entry(cause, title, evidence, fix)


PLACES: tuple[Entry, ...] = (
    _entry(
        "grid-sample-xy-order",
        ("The grid has y before x: rows are read as columns", "网格的 x 与 y 颠倒：行被当作列"),
        (
            "The last axis of a grid is (x, y), x along the width: stack x before y (meshgrid gives y first with 'ij')",
            "网格最后一轴为 (x, y)，x 沿宽度：先放 x 再放 y（meshgrid 用 'ij' 时先得到 y）",
        ),
    ),
    _entry(
        "view-aliasing-inplace",
        (
            "What is written into {part} of {value} is lost: the port hands the value on as it was",
            "写入 {value} 的 {part} 的内容丢失：待比对原样传递了该值",
        ),
        (
            "A view of torch's writes through: x.view(...)[:, 1] = y changes x; in {port_layer} assign to x itself, or "
            "go on with the tensor that was written to",
            "torch 会通过视图写入：x.view(...)[:, 1] = y 会改变 x。"
            "在 {port_layer} 中应直接对 x 赋值，或继续使用被写入的张量",
        ),
        (
            "The reference goes on with {written}; the port still has the numbers of {value} there, and both have them "
            "everywhere else",
            "标杆在该处为 {written}；待比对仍是 {value} 原来的数值，其余位置两侧都与之相同",
        ),
    ),
    _entry(
        "grid-sample-differs",
        (
            "The map is read off otherwise ({setting}): {port_value}, in the reference {reference_value}",
            "采样方式不同（{setting}）：待比对为 {port_value}，标杆为 {reference_value}",
        ),
    ),
    _entry(
        "conv1d-on-wrong-axis",
        (
            "The convolution runs along another axis: {port_code} is handed to it",
            "一维卷积沿另一轴进行：传入的是 {port_code}",
        ),
        (
            "Conv1d takes (batch, channels, length): hand it {reference_code}",
            "Conv1d 的输入为 (批, 通道, 长度)：应传入 {reference_code}",
        ),
    ),
    _entry(
        "unfold-nn-class-order",
        (
            "The patches hold the window before the channels on one side: {port_code}",
            "一侧的补丁中窗口排在通道之前：{port_code}",
        ),
        (
            "torch's unfold has the channel outermost, nn.Unfold of MindSpore the window: use ops.unfold",
            "torch 的 unfold 以通道为最外层，MindSpore 的 nn.Unfold 以窗口为最外层：改用 ops.unfold",
        ),
    ),
)

PICKED: tuple[Entry, ...] = (
    _entry(
        "gather-semantics",
        (
            "Whole slices are picked where the reference picks single elements, or the reverse",
            "一侧按索引取整片，另一侧逐元素取值",
        ),
        (
            "torch.gather is ops.gather_elements(x, dim, index); ops.gather(x, index, axis) is index_select",
            "torch.gather 对应 ops.gather_elements(x, dim, index)；ops.gather(x, index, axis) 是 index_select",
        ),
    ),
    _entry(
        "gather-axis",
        ("Elements are picked along another axis: {instead}", "按索引取值的轴不同：{instead}"),
    ),
    _entry(
        "scatter-add-duplicates",
        (
            "Values that meet at one place are added up on one side, written over each other on the other",
            "落在同一位置的值一侧累加，另一侧相互覆盖",
        ),
        (
            "Give reduction='add' to ops.tensor_scatter_elements, or use ops.tensor_scatter_add",
            "给 ops.tensor_scatter_elements 传 reduction='add'，或用 ops.tensor_scatter_add",
        ),
    ),
    _entry(
        "scatter-reduce-other",
        (
            "Values that meet at one place become one in another way: {instead}, the reference has {other}",
            "落在同一位置的值合并方式不同：{instead}，标杆为 {other}",
        ),
    ),
    _entry(
        "unique-sorted",
        (
            "Different values are listed as they come on one side, sorted on the other",
            "去重结果一侧按出现次序，另一侧已排序",
        ),
        (
            "torch.unique sorts, ops.unique keeps the order of first appearance: sort, and map the indices anew",
            "torch.unique 会排序，ops.unique 按首次出现的次序：排序后重映射索引",
        ),
    ),
)

NUMBERS: tuple[Entry, ...] = (
    _entry(
        "median-numpy-vs-torch",
        (
            "Of an even count one side takes the lower of the two in the middle, the other their mean",
            "元素个数为偶数时，一侧取中间两数的较小者，另一侧取其均值",
        ),
        (
            "torch.median is ops.median (the lower one); numpy's median is the mean of both",
            "torch.median 对应 ops.median（较小者）；numpy 的 median 取两者均值",
        ),
    ),
    _entry(
        "norm-default-ord-matrix",
        (
            "A norm of matrices stands against one of all elements: {instead} for {other}",
            "矩阵范数与逐元素范数混用：待比对为 {instead}，标杆为 {other}",
        ),
        (
            "ops.norm with ord follows linalg.norm; take the norm of x.reshape(-1) for one of all elements",
            "带 ord 的 ops.norm 与 linalg.norm 一致；需要逐元素范数时先 x.reshape(-1)",
        ),
    ),
    _entry(
        "minibatch-stddev-gan",
        (
            "The deviation over the batch is taken otherwise: {instead} for {other}",
            "批内标准差的算法不同：待比对为 {instead}，标杆为 {other}",
        ),
        ("Take it as the reference does (axis, ddof): {other}", "与标杆保持一致（轴、ddof）：{other}"),
    ),
    _entry(
        "int-floor-div-negative",
        (
            "A negative quotient is rounded down on one side and cut off on the other",
            "负的商一侧向下取整，另一侧截断",
        ),
        (
            "// and ops.floor_div round down; torch.div(rounding_mode='trunc') and old floor_divide cut off:"
            " write ops.div(a, b, rounding_mode='trunc')",
            "// 与 ops.floor_div 向下取整；torch.div(rounding_mode='trunc') 与旧版 floor_divide 截断："
            "写成 ops.div(a, b, rounding_mode='trunc')",
        ),
        (
            "The reference computes {reference_code}, the port {port_code}; {count} elements are one apart",
            "标杆计算 {reference_code}，待比对计算 {port_code}；{count} 个元素相差 1",
        ),
    ),
    _entry(
        "remainder-vs-fmod",
        (
            "A remainder has the dividend's sign on one side and the divisor's on the other",
            "余数的符号一侧随被除数，另一侧随除数",
        ),
        (
            "torch.remainder and % are ops.floor_mod or ops.remainder; ops.fmod is torch.fmod",
            "torch.remainder 与 % 对应 ops.floor_mod 或 ops.remainder；ops.fmod 对应 torch.fmod",
        ),
        (
            "The reference computes {reference_code}, the port {port_code}; {count} elements are {number} apart:"
            " {left} is left",
            "标杆计算 {reference_code}，待比对计算 {port_code}；{count} 个元素相差 {number}：剩余误差 {left}",
        ),
    ),
    _entry(
        "mean-wrong-axes-nhwc",
        (
            "The mean goes over other axes: {instead} takes the channels for places",
            "均值的轴不同：{instead} 把通道当成了空间",
        ),
        (
            "Channels come second here: write {other}, axes (2, 3)",
            "此处通道在第二轴：写成 {other}，轴为 (2, 3)",
        ),
    ),
    _entry(
        "droppath-scale-missing",
        (
            "Samples that a stochastic depth keeps are multiplied by {other_factor}, in the reference by {factor}",
            "随机深度保留的样本乘以 {other_factor}，标杆乘以 {factor}",
        ),
        (
            "Divide what is kept by the share that is kept: multiply by {factor}",
            "保留的部分应除以保留率：乘以 {factor}",
        ),
    ),
    _entry(
        "droppath-samples-differ",
        (
            "A stochastic depth drops other samples: {port_dropped}, in the reference {dropped}",
            "随机深度丢弃的样本不同：待比对为 {port_dropped}，标杆为 {dropped}",
        ),
        (
            "Random numbers differ by framework: capture with drop rate 0, or in evaluation",
            "两个框架的随机数不同：采集时将丢弃率设为 0，或使用评估模式",
        ),
    ),
)

ENTRIES: tuple[Entry, ...] = (*PLACES, *PICKED, *NUMBERS)
