"""How a wrong value follows from the right one: scaled, shifted, moved, cut, rounded. No layer in particular."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "dtype-differs",
        (
            "The port's values are {port_dtype}, the reference's {reference_dtype}",
            "待比对的类型是 {port_dtype}，标杆是 {reference_dtype}",
        ),
        ("", ""),
        (
            "Compute in {reference_dtype} here: look at casts, to_float and the AMP lists",
            "此处以 {reference_dtype} 计算：检查类型转换、to_float 与 AMP 名单",
        ),
    ),
    Entry(
        "constant-ratio",
        ("The port's values are the reference's times {ratio}", "待比对值等于标杆值乘以 {ratio}"),
        ("One ratio for all elements; divided by it, {left} is left", "所有元素比值相同；除以该比值后误差为 {left}"),
        (
            "Look for a scale that is missing or applied twice: multiply by {inverse}",
            "查找遗漏或重复的缩放系数：应乘以 {inverse}",
        ),
    ),
    Entry(
        "constant-shift",
        ("The port's values are the reference's plus {shift}", "待比对值等于标杆值加上 {shift}"),
        ("One difference for all elements; without it {left} is left", "所有元素差值相同；去掉后误差为 {left}"),
        ("Look for a constant that is added or forgotten: {shift}", "查找多加或漏加的常数：{shift}"),
    ),
    Entry(
        "ratio-and-shift",
        (
            "The port's values are the reference's times {ratio} plus {shift}",
            "待比对值等于标杆值乘 {ratio} 再加 {shift}",
        ),
        ("Undone, {left} is left", "还原后误差为 {left}"),
        (
            "Look for another range or normalisation: mean and scale of the two sides differ",
            "检查取值范围或归一化：两边的均值与缩放不同",
        ),
    ),
    Entry(
        "sign-flipped",
        ("The port's values have the opposite sign", "待比对值符号相反"),
        ("With the sign changed {left} is left", "取反后误差为 {left}"),
        ("Look for a minus sign, or a subtraction in the other order", "检查负号，或相减的先后顺序"),
    ),
    Entry(
        "std-ddof",
        (
            "The ratio is {ratio}: a standard deviation with another divisor (n against n - 1)",
            "比值为 {ratio}：标准差的除数不同（n 与 n-1）",
        ),
        ("One ratio for all elements; divided by it, {left} is left", "所有元素比值相同；除以该比值后误差为 {left}"),
        (
            "torch.std and var divide by n - 1, ops.std and var by n: pass ddof=1 (or ddof=0 for unbiased=False)",
            "torch.std/var 默认除以 n-1，ops.std/var 默认除以 n：传入 ddof=1（对应 unbiased=False 时用 ddof=0）",
        ),
    ),
    Entry(
        "channel-ratio",
        (
            "Each slice of axis {axis} is scaled by its own number, {lowest} to {highest}",
            "第 {axis} 轴的每一片各乘了一个数，{lowest} 到 {highest}",
        ),
        (
            "{off} of {slices} slices are off ({which}); with the ratios undone {left} is left",
            "{slices} 片中 {off} 片有偏差（{which}）；还原后误差为 {left}",
        ),
        (
            "Look for a weight per slice that is missing, or a statistic taken over other axes or with another eps",
            "检查是否遗漏逐片的权重，或统计量的轴、eps 不同",
        ),
    ),
    Entry(
        "channel-ratio-and-shift",
        (
            "Each slice of axis {axis} has a scale ({lowest} to {highest}) and a shift ({least} to {most}) of its own",
            "第 {axis} 轴的每一片各自缩放（{lowest} 到 {highest}）并平移（{least} 到 {most}）",
        ),
        (
            "{off} of {slices} slices are off ({which}); undone, {left} is left",
            "{slices} 片中 {off} 片有偏差（{which}）；还原后误差为 {left}",
        ),
        (
            "Look for a mean and a scale per slice that are not the reference's: their values, their order (RGB, BGR)",
            "检查逐片的均值与缩放是否与标杆一致：数值以及次序（RGB、BGR）",
        ),
    ),
    Entry(
        "channel-shift",
        (
            "Each slice of axis {axis} is shifted by its own number, {lowest} to {highest}",
            "第 {axis} 轴的每一片各加了一个数，{lowest} 到 {highest}",
        ),
        (
            "{off} of {slices} slices are off ({which}); with the shifts undone {left} is left",
            "{slices} 片中 {off} 片有偏差（{which}）；还原后误差为 {left}",
        ),
        ("Look for a bias that is missing, added twice, or of another layer", "检查偏置是否遗漏、重复相加或取自别的层"),
    ),
    Entry(
        "axis-flipped",
        ("Axis {axis} runs the other way", "第 {axis} 轴方向相反"),
        ("Reversed, {left} is left", "翻转后误差为 {left}"),
        ("Remove the flip of axis {axis}, or add it", "去掉或补上第 {axis} 轴的翻转"),
    ),
    Entry(
        "axis-rolled",
        ("The values are rolled: {order} (axis {axis})", "数值被循环移动：{order}（第 {axis} 轴）"),
        ("Rolled back, {left} is left", "移回后误差为 {left}"),
        (
            "Check the shifts of roll, their signs and their axes",
            "检查 roll 的位移、符号和轴",
        ),
    ),
    Entry(
        "picture-shifted",
        ("The values stand {order} from where they belong", "数值的位置有偏移：{order}"),
        ("Moved back, {left} is left inside", "移回后内部误差为 {left}"),
        (
            "Check on which side padding is added ('same' pads unevenly), and slices that begin one element off",
            "检查填充加在前还是后、切片起点是否差一、以及不对称的 'same' 填充",
        ),
    ),
    Entry(
        "concat-order",
        (
            "Parts along axis {axis} stand in another order: the port has the reference's {order}",
            "第 {axis} 轴上的各段顺序不同：待比对依次为标杆的 {order}",
        ),
        ("Put back in order, {left} is left", "恢复顺序后误差为 {left}"),
        ("Concatenate (or take the chunks) in the reference's order", "按标杆的顺序拼接（或切分）"),
    ),
    Entry(
        "axis-interleaved",
        (
            "Axis {axis} is reshaped in another order: {order}",
            "第 {axis} 轴以另一种次序重排：{order}",
        ),
        ("Put back in order, {left} is left", "恢复顺序后误差为 {left}"),
        (
            "Exchange the two sizes of the reshape or transpose after it: groups and their channels, repeat and tile",
            "拆分时交换两个尺寸，或在 reshape 之后转置：组数与每组通道数、repeat 与 tile",
        ),
    ),
    Entry(
        "axis-order",
        ("The slices of axis {axis} stand in another order: {order}", "第 {axis} 轴的各片顺序不同：{order}"),
        ("Put back in order, {left} is left", "恢复顺序后误差为 {left}"),
        ("Look for an index, a sort or a shuffle of axis {axis}", "查找作用于第 {axis} 轴的索引、排序或打乱"),
    ),
    Entry(
        "axes-permuted",
        ("The axes are permuted: {axes}", "轴的次序不同：{axes}"),
        ("{shape} transposed by {axes} leaves {left}", "{shape} 按 {axes} 转置后误差为 {left}"),
        ("Transpose the axes back, or remove a transpose too many", "把轴转置回来，或去掉多余的转置"),
    ),
    Entry(
        "reshape-order",
        (
            "The same values in another order: a reshape where a transpose was needed, or the reverse",
            "数值相同但次序不同：该转置处用了 reshape，或相反",
        ),
        (
            "The reference's {shape} as {factors}, axes {axes}, then as {port_shape} leaves {left}",
            "标杆 {shape} 视为 {factors}，按 {axes} 转置，再变形为 {port_shape}，误差为 {left}",
        ),
        (
            "Split into {factors} and permute the axes before the last reshape as the reference does",
            "与标杆一样，先拆成 {factors} 并转置，再做最后的 reshape",
        ),
    ),
    Entry(
        "values-permuted",
        ("The same {count} values in other places", "同样的 {count} 个数值，位置不同"),
        ("Sorted, the two sides are {apart} apart", "排序后两边相差 {apart}"),
        ("Look for a reshape, transpose, sort or shuffle", "查找 reshape、转置、排序或打乱"),
    ),
    Entry(
        "activation-missing",
        ("{function} is missing", "缺少 {function}"),
        (
            "{function} of the port's value is the reference's: {left} is left",
            "对待比对值做 {function} 即得标杆值：误差 {left}",
        ),
        ("Apply {function} to this value", "在此处补上 {function}"),
    ),
    Entry(
        "nan-appears",
        ("The port has NaN where the reference has a number", "标杆为数值处，待比对出现 NaN"),
        (
            "{count} of {total} elements, the first at {first}; axis 0: {rows}",
            "{total} 个元素中 {count} 个，首个在 {first}；第 0 轴：{rows}",
        ),
        (
            "Look for a softmax over a row that is all masked, a division by zero, an overflow of a short float",
            "检查整行被掩码的 softmax、除以零、或短浮点溢出",
        ),
    ),
    Entry(
        "nan-hidden",
        ("The reference has NaN where the port has a number", "标杆为 NaN 处，待比对是数值"),
        (
            "{count} of {total} elements, the first at {first}; axis 0: {rows}",
            "{total} 个元素中 {count} 个，首个在 {first}；第 0 轴：{rows}",
        ),
        (
            "relu, clamp and maximum may drop NaN; a row all masked with -1e4 is uniform, with -inf it is NaN",
            "MindSpore 的 relu、clamp、maximum 可能吞掉 NaN：检查输入；整行用 -1e4 掩码得到均匀分布，用 -inf 得到 NaN",
        ),
    ),
    Entry(
        "overflow",
        ("The port overflows: infinity where the reference has a number", "待比对溢出：标杆为数值处出现 Inf"),
        (
            "{count} elements; the smallest of them is {least} in the reference",
            "{count} 个元素；其中标杆最小为 {least}",
        ),
        ("Compute this in float32, or scale before the product", "改用 float32 计算，或先缩放再相乘"),
    ),
    Entry(
        "float16-overflow",
        (
            "Here float16 overflows: it ends at 65504, the reference's values reach {largest}",
            "此处 float16 溢出：其最大值为 65504，而标杆的取值达到 {largest}",
        ),
        (
            "{count} elements are not finite where the reference's are; {beyond} of the reference's are beyond 65504",
            "{count} 个元素非有限值，而标杆均为有限值；标杆中有 {beyond} 个超过 65504",
        ),
        (
            "Compute this in float32 (to_float(ms.float32), or the AMP black list), or scale before it",
            "改用 float32 计算（to_float(ms.float32) 或 AMP 黑名单），或在此之前先缩放",
        ),
    ),
    Entry(
        "ascend-overflow-saturation-mode",
        ("Values are held at 65504, the largest float16", "数值被截在 float16 最大值 65504"),
        ("{count} elements are exactly 65504", "{count} 个元素恰为 65504"),
        (
            "Set MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE to see the overflow, and compute this in float32",
            "设置 MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE 以暴露溢出，并改用 float32 计算",
        ),
    ),
    Entry(
        "dropout-functional-train-flag",
        ("A dropout is active in the port", "待比对中 dropout 处于激活状态"),
        (
            "A share of {rate} is zero and the rest is scaled by {scaled}; undone, {left} is left",
            "比例 {rate} 的元素为零，其余乘以 {scaled}；还原后误差为 {left}",
        ),
        (
            "Pass training=self.training to ops.dropout, or use nn.Dropout and set_train(False)",
            "给 ops.dropout 传 training=self.training，或用 nn.Dropout 并 set_train(False)",
        ),
    ),
    Entry(
        "bf16-output-rounding",
        ("The port's values are the reference's rounded to bfloat16", "待比对值是标杆值舍入到 bfloat16 的结果"),
        ("Rounded too, {left} is left", "同样舍入后误差为 {left}"),
        (
            "Keep this layer in float32: a cast to {dtype} is too much here",
            "此处保持 float32：多了一次到 {dtype} 的转换",
        ),
    ),
    Entry(
        "rounding-grid",
        ("The port's values were rounded to {dtype}", "待比对的数值被舍入到 {dtype}"),
        (
            "Every element of the port can be written in {dtype}, those of the reference cannot",
            "待比对的每个元素都可用 {dtype} 表示，标杆的则不能",
        ),
        (
            "Compute this layer in float32 (to_float, the AMP lists, an explicit cast)",
            "此层改用 float32 计算（to_float、AMP 名单、显式转换）",
        ),
    ),
    Entry(
        "part-missing",
        ("The port's value is a part of the reference's: {part}", "待比对值只是标杆值的一部分：{part}"),
        ("{port_shape} against {shape}; that part leaves {left}", "{port_shape} 对 {shape}；该部分误差为 {left}"),
        (
            "Look for a slice, a crop or a stride too many, or padding that is missing",
            "检查多余的切片、裁剪、步长，或遗漏的填充",
        ),
    ),
    Entry(
        "part-added",
        ("The reference's value is a part of the port's: {part}", "标杆值只是待比对值的一部分：{part}"),
        ("{port_shape} against {shape}; that part leaves {left}", "{port_shape} 对 {shape}；该部分误差为 {left}"),
        (
            "Look for a slice, a crop or a stride that is missing, or padding too many",
            "检查遗漏的切片、裁剪、步长，或多余的填充",
        ),
    ),
)
