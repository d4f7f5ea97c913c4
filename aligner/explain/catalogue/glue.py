"""Causes in the code between layers, told from what it made of values that were right.

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
    _entry(
        "addend-scaled",
        (
            "{other} counts {ratio} times as much in the sum as in the reference",
            "求和中 {other} 的系数与标杆之比为 {ratio}",
        ),
    ),
    _entry(
        "addend-off-by-part",
        ("The port lacks {ratio} times {other}", "待比对少了 {ratio} 倍的 {other}"),
        (
            "Look for a number that {other} is multiplied by in the reference",
            "检查标杆中 {other} 乘了什么系数",
        ),
    ),
    _entry(
        "activation-before-sum",
        (
            "{other} is taken of one addend only, the reference takes it of the sum",
            "{other} 只作用于其中一项，标杆作用于求和结果",
        ),
    ),
)

PRODUCTS: tuple[Entry, ...] = (
    _entry(
        "scale-missing",
        ("The factor {factor} is missing", "缺少系数 {factor}"),
        ("Multiply by {factor} in {port_layer}", "在 {port_layer} 中乘以 {factor}"),
    ),
    _entry(
        "scale-extra",
        ("The factor {factor} is applied, which the reference does not do", "多乘了系数 {factor}，标杆没有"),
        ("Remove the factor {factor} in {port_layer}", "去掉 {port_layer} 中的系数 {factor}"),
    ),
    _entry(
        "gate-missing",
        ("The value is not multiplied by {other}", "没有乘以 {other}"),
        ("Multiply by {other} in {port_layer}", "在 {port_layer} 中乘以 {other}"),
    ),
    _entry(
        "gate-extra",
        (
            "The value is multiplied by {other}, which the reference does not do",
            "多乘了 {other}，标杆没有这一步",
        ),
        ("Remove the factor {other} in {port_layer}", "去掉 {port_layer} 中的系数 {other}"),
    ),
    _entry(
        "gate-inverted",
        (
            "The gate is the wrong way round: {instead} stands where the reference has {other}",
            "门控写反了：{instead} 处标杆为 {other}",
        ),
    ),
    _entry(
        "matmul-transposed",
        ("The product is {instead}, the reference has {other}", "矩阵乘积为 {instead}，标杆为 {other}"),
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
        "layer-skipped",
        ("{other} is passed over: what went into it is used", "跳过了 {other}：直接用了它的输入"),
        ("Call {other} here", "在此处调用 {other}"),
    ),
    _entry(
        "activation-extra",
        ("{function} is applied, which the reference does not do", "多用了 {function}，标杆没有"),
        ("Remove {function}", "去掉 {function}"),
    ),
    _entry(
        "activation-other",
        (
            "{port_function} is applied where the reference has {reference_function}",
            "用了 {port_function}，标杆为 {reference_function}",
        ),
        ("Apply {reference_function}", "改用 {reference_function}"),
    ),
    _entry("function-missing", ("{function} is not applied", "没有使用 {function}")),
    _entry("function-extra", ("{function} is applied, which the reference does not do", "多用了 {function}，标杆没有")),
    _entry(
        "function-other",
        (
            "{port_function} is applied where the reference has {reference_function}",
            "用了 {port_function}，标杆为 {reference_function}",
        ),
    ),
    _entry(
        "operation-other",
        (
            "The port has {port_operation} where the reference has {reference_operation}",
            "待比对用了 {port_operation}，标杆用 {reference_operation}",
        ),
    ),
    _entry("expression-differs", ("The code computes something else", "此处代码的计算式不同")),
    _entry(
        "view-vs-transpose",
        (
            "The numbers are read off in another order: a reshape where a transpose was needed, or the reverse",
            "数值的读取次序不同：该转置处用了 reshape，或相反",
        ),
    ),
    _entry(
        "chunk-order",
        ("Other parts are taken of the same value", "从同一个值中取了不同的部分"),
    ),
    _entry(
        "slice-off",
        ("{instead} is taken, the reference takes {other}", "取了 {instead}，标杆取 {other}"),
    ),
    _entry(
        "rgb-bgr",
        (
            "The channels stand in reversed order (RGB for BGR, or the reverse)",
            "通道次序颠倒（RGB 与 BGR）",
        ),
        ("Flip axis {axis}, or read the image in the reference's order", "翻转轴 {axis}，或按标杆的次序读图"),
    ),
    _entry(
        "pad-differs",
        ("The padding is {instead}, the reference has {other}", "填充为 {instead}，标杆为 {other}"),
    ),
    Entry(
        "meshgrid-indexing-default",
        (
            "Rows and columns of a grid are exchanged: meshgrid with the other indexing",
            "网格的行列颠倒：meshgrid 的 indexing 不同",
        ),
        (
            "What is added differs by {slope} * (index of axis {one} - index of axis {other_axis}): {left} is left",
            "所加网格相差 {slope} *（轴 {one} 的下标 - 轴 {other_axis} 的下标）：剩余误差 {left}",
        ),
        (
            "torch.meshgrid is 'ij' by default, ops.meshgrid 'xy': pass indexing='ij'",
            "torch.meshgrid 默认 'ij'，ops.meshgrid 默认 'xy'：传入 indexing='ij'",
        ),
    ),
    Entry(
        "channel-shuffle-order",
        (
            "The channels are shuffled in another order (axis {axis}): {order}",
            "通道混洗的次序不同（第 {axis} 轴）：{order}",
        ),
        ("Put back in order, {left} is left", "恢复次序后剩余误差 {left}"),
        (
            "Write x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2), with groups before c // groups",
            "写成 x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2)，groups 在前",
        ),
    ),
    _entry(
        "roll-sign",
        ("The value is rolled the other way", "循环移位（roll）的方向相反"),
    ),
)

REDUCTIONS: tuple[Entry, ...] = (
    _entry(
        "reduction-axis",
        ("{instead} goes over another axis: the reference has {other}", "{instead} 的轴不同：标杆为 {other}"),
    ),
    _entry(
        "mean-over-other-count",
        (
            "The mean goes over other counts: the reference divides by {counts}, the port by {total}",
            "求均值的个数不同：标杆除以 {counts}，待比对除以 {total}",
        ),
        (
            "Divide by the number of what counts: the sum of the mask, not the length",
            "除以有效个数（掩码之和），而不是长度",
        ),
    ),
    _entry(
        "reduction-other",
        ("{instead} is taken, the reference takes {other}", "取了 {instead}，标杆取 {other}"),
    ),
    _entry(
        "mask-missing",
        ("A mask is not applied: the reference has {other}", "未使用掩码：标杆为 {other}"),
    ),
    _entry(
        "mask-inverted",
        ("The mask is taken the other way round: {instead}", "掩码取反了：{instead}"),
    ),
    Entry(
        "mask-off-by-one",
        (
            "The mask ends one element off: {port_length} along axis {axis} where the reference has {length}",
            "掩码差一个元素：沿第 {axis} 轴为 {port_length}，标杆为 {length}",
        ),
        ("So in {rows} of {all} rows, and all others are full or empty", "{all} 行中有 {rows} 行如此，其余全满或全空"),
        (
            "Look for < where the reference has <=, or the reverse, and for a length that counts a token more",
            "检查 < 与 <= 是否写反，以及长度是否多算一个词元",
        ),
    ),
    _entry(
        "mask-boundary",
        (
            "The mask has one element more or less: {instead}, the reference has {other}",
            "掩码多或少一个元素：{instead}，标杆为 {other}",
        ),
        ("Compare as the reference does: {other}", "与标杆使用相同的比较：{other}"),
    ),
    Entry(
        "mask-length",
        (
            "The mask ends elsewhere: {port_length} along axis {axis} where the reference has {length}",
            "掩码的终点不同：沿第 {axis} 轴为 {port_length}，标杆为 {length}",
        ),
        ("{rows} of {all} rows differ", "{all} 行中有 {rows} 行不同"),
        (
            "Look at the lengths that the mask is made of: rounded up or down, divided otherwise",
            "检查构造掩码的长度：向上或向下取整、除数不同",
        ),
    ),
    _entry(
        "softmax-axis",
        (
            "The softmax goes over another axis: {instead}, the reference has {other}",
            "softmax 的轴不同：{instead}，标杆为 {other}",
        ),
        ("Take it as the reference does: {other}", "与标杆保持一致：{other}"),
    ),
    _entry("softmax-missing", ("{other} is not taken", "缺少 {other}")),
    _entry("softmax-extra", ("{instead} is taken, the reference takes none", "多做了 {instead}，标杆没有")),
    _entry(
        "normalize-extra",
        ("{instead} is taken: the reference's value is not normalised", "多做了 {instead}：标杆没有归一化"),
    ),
    _entry("normalize-missing", ("{other} is not taken: the value is not normalised", "缺少 {other}：没有归一化")),
    _entry(
        "normalize-axis",
        ("{instead} normalises over another axis: the reference has {other}", "{instead} 的轴不同：标杆为 {other}"),
    ),
)

_IN_ORDER = (
    "In order, the reference computes: {ours}; the port: {theirs}",
    "按顺序，标杆计算：{ours}；待比对计算：{theirs}",
)

OPERATIONS: tuple[Entry, ...] = (
    Entry(
        "operations-differ",
        (
            "Other operations run here: in the reference {missing}, in the port {extra}",
            "此处执行的算子不同：标杆为 {missing}，待比对为 {extra}",
        ),
        _IN_ORDER,
        (
            "Compare the two pieces of code line by line for these",
            "针对这些算子逐行对照两边代码",
        ),
    ),
    Entry(
        "operations-alike",
        (
            "Both sides run the same operations here: with other values, axes or constants, or in another order",
            "此处两边执行的算子相同：取值、轴、常数或次序不同",
        ),
        _IN_ORDER,
        (
            "Compare constants, axes and the order of operands, and which value each line takes",
            "对照常数、轴、操作数次序，以及每行取的是哪个值",
        ),
    ),
)

ENTRIES: tuple[Entry, ...] = (*CALLS, *SUMS, *PRODUCTS, *VALUES, *REDUCTIONS, *OPERATIONS)
