"""Causes in attention that a parent's own code computes, told by computing it again with one choice made otherwise.

Facts: `setting` with its `reference_value` and `port_value`, the two formulas, and what is `left`.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_COMPUTED: Text = (
    "Computed again, {reference_code} is the reference's and {port_code} the port's: {left} is left",
    "重新计算：标杆为 {reference_code}，待比对为 {port_code}，剩余误差 {left}",
)


def _entry(cause: str, title: Text, fix: Text) -> Entry:
    return Entry(cause, title, _COMPUTED, fix)


SCORES: tuple[Entry, ...] = (
    _entry(
        "scale-other",
        (
            "The factor is {port_value}, the reference has {reference_value}",
            "系数为 {port_value}，标杆为 {reference_value}",
        ),
        ("Multiply by {reference_value}", "乘以 {reference_value}"),
    ),
    _entry(
        "head-count",
        (
            "The channels are split into {port_value} heads, the reference has {reference_value}",
            "通道被分成 {port_value} 个头，标杆为 {reference_value}",
        ),
        ("Split into {reference_value} heads", "分成 {reference_value} 个头"),
    ),
)

MASKS: tuple[Entry, ...] = (
    _entry(
        "causal-mask-missing",
        (
            "Queries see later keys: the reference has a causal mask",
            "查询能看到后面的键：标杆有因果掩码",
        ),
        (
            "Hide the scores above the diagonal: scores.masked_fill(ops.triu(ones, 1).bool(), -inf)",
            "遮住对角线以上的分数：scores.masked_fill(ops.triu(ones, 1).bool(), -inf)",
        ),
    ),
    _entry(
        "causal-mask-diagonal",
        (
            "The causal mask is off by one: the port's is '{port_value}', the reference's '{reference_value}'",
            "因果掩码差一条对角线：待比对为“{port_value}”，标杆为“{reference_value}”",
        ),
        (
            "Check diagonal= of ops.triu or ops.tril: a query sees itself where the reference's does",
            "检查 ops.triu / ops.tril 的 diagonal：与标杆一致地决定查询能否看到自身",
        ),
    ),
    _entry(
        "attention-mask-missing",
        ("The mask {reference_value} is not applied", "未使用掩码 {reference_value}"),
        ("Mask the scores with {reference_value} before the softmax", "在 softmax 之前用 {reference_value} 遮住分数"),
    ),
    _entry(
        "mha-mask-inverted",
        (
            "The mask is taken the other way round ({setting}: {port_value}, the reference: {reference_value})",
            "掩码取反了（{setting}：{port_value}，标杆：{reference_value}）",
        ),
        (
            "Pass ops.logical_not(mask), or fill where the mask is false",
            "传入 ops.logical_not(mask)，或在掩码为假处填充",
        ),
    ),
    _entry(
        "mask-extra",
        ("A mask is applied, the reference has none", "使用了掩码，标杆没有"),
        ("Remove the mask", "去掉掩码"),
    ),
    _entry(
        "mask-differs",
        (
            "Other places are masked: {port_value}, in the reference {reference_value}",
            "被遮住的位置不同：{port_value}，标杆为 {reference_value}",
        ),
        ("Build the mask as the reference does", "与标杆一样构造掩码"),
    ),
    _entry(
        "mask-after-softmax",
        (
            "The mask is applied to the weights, the reference applies it to the scores before the softmax",
            "掩码作用于 softmax 之后的权重，标杆作用于 softmax 之前的分数",
        ),
        ("Fill the masked scores with -inf before the softmax", "在 softmax 之前把被遮住的分数填为 -inf"),
    ),
    _entry(
        "mask-added-as-numbers",
        (
            "{setting} is added to the scores as it is, as 0 and 1",
            "{setting} 被原样（0 和 1）加到分数上",
        ),
        (
            "Fill the scores with -inf where it hides, or add (1 - mask) * -1e9",
            "在遮住处填 -inf，或加上 (1 - mask) * -1e9",
        ),
    ),
    _entry(
        "attention-mask-fill-1e4",
        (
            "Masked scores are {port_value}, the reference has {reference_value}: a row with no key left differs",
            "被遮住的分数为 {port_value}，标杆为 {reference_value}：整行被遮住时结果不同",
        ),
        ("Fill with the reference's value", "使用与标杆相同的填充值"),
    ),
    _entry(
        "mask-fill-other",
        (
            "Masked scores are {port_value}: what they hide still counts",
            "被遮住的分数为 {port_value}：被遮住的位置仍有权重",
        ),
        ("Fill with {reference_value}", "填充值改为 {reference_value}"),
    ),
)

PRECISION: tuple[Entry, ...] = (
    _entry(
        "attention-fill-fp16-overflow",
        (
            "The mask's fill is -inf in {dtype}: a query that sees no key gets NaN",
            "掩码填充值在 {dtype} 中变为 -inf：看不到任何键的查询得到 NaN",
        ),
        (
            "Add the mask in float32, or fill once with the least number of the type: finfo(dtype).min",
            "以 float32 加上掩码，或只用该类型的最小值 finfo(dtype).min 填充一次",
        ),
    ),
    _entry(
        "attention-softmax-fp16-overflow",
        (
            "The scores overflow {dtype} (65504): infinite scores make NaN of the softmax",
            "注意力分数超出 {dtype} 的范围（65504）：无穷的分数使 softmax 得到 NaN",
        ),
        (
            "Scale the query before the product, and compute scores and softmax in float32",
            "先缩放 query 再相乘，分数与 softmax 用 float32 计算",
        ),
    ),
    _entry(
        "attention-in-short-float",
        (
            "Attention computes {setting} in {dtype}, the reference in {reference_value}",
            "注意力中以 {dtype} 计算：{setting}；标杆使用 {reference_value}",
        ),
        ("Cast first: scores.astype(ms.float32)", "先转换：scores.astype(ms.float32)"),
    ),
    _entry(
        "ascend-matmul-precision-mode",
        (
            "The device multiplies in {dtype}: rounded to it are {setting}",
            "设备以 {dtype} 做矩阵乘：被舍入的是 {setting}",
        ),
        (
            "Set the device to high precision (op_precision.matmul_allow_hf32(False), precision_mode "
            "must_keep_origin_dtype), or judge the net by that type's rounding",
            "将设备设为高精度（op_precision.matmul_allow_hf32(False)，precision_mode 设为 "
            "must_keep_origin_dtype），或按该类型的舍入误差评判网络",
        ),
    ),
    _entry(
        "flash-attention-fully-masked-row",
        (
            "A query that sees no key gets {port_value}, in the reference {reference_value}",
            "看不到任何键的查询得到 {port_value}，标杆为 {reference_value}",
        ),
        (
            "Leave padding rows out of the comparison, or give them what the reference does",
            "比对时忽略填充行，或使其结果与标杆一致",
        ),
    ),
    _entry(
        "flash-attention-mask-one-discards",
        (
            "The fused attention hides where its mask is true; the reference's mask says what is seen",
            "融合注意力算子在掩码为真处遮住；标杆的掩码为真处可见",
        ),
        ("Pass ops.logical_not(mask)", "传入 ops.logical_not(mask)"),
    ),
)

HEADS: tuple[Entry, ...] = (
    _entry(
        "head-split-order",
        (
            "The heads are split in another order: {port_value}; the reference: {reference_value}",
            "拆分多头的次序不同：{port_value}；标杆：{reference_value}",
        ),
        (
            "Write x.reshape(batch, length, heads, size).swapaxes(1, 2), not reshape(batch, heads, length, size)",
            "写成 x.reshape(batch, length, heads, size).swapaxes(1, 2)，不能一次 reshape 成 (batch, heads, ...)",
        ),
    ),
    _entry(
        "head-merge-order",
        (
            "The heads are merged in another order: {port_value}; the reference: {reference_value}",
            "合并多头的次序不同：{port_value}；标杆：{reference_value}",
        ),
        (
            "Write x.swapaxes(1, 2).reshape(batch, length, width)",
            "写成 x.swapaxes(1, 2).reshape(batch, length, width)",
        ),
    ),
    _entry(
        "gqa-repeat-vs-tile",
        (
            "Key and value heads are shared in another order: {port_value}, in the reference {reference_value}",
            "键、值头的共享次序不同：待比对为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "torch's repeat_interleave is ops.repeat_interleave (or numpy's repeat), not tile",
            "torch 的 repeat_interleave 对应 ops.repeat_interleave，不是 tile",
        ),
    ),
)

ROTARY: tuple[Entry, ...] = (
    _entry(
        "rope-interleaved-vs-half",
        (
            "The rotary embedding pairs channels '{port_value}', the reference '{reference_value}'",
            "旋转位置编码的通道配对方式为“{port_value}”，标杆为“{reference_value}”",
        ),
        (
            "Half pairs channel i with i + size / 2, interleaved 2 i with 2 i + 1: use the reference's",
            "half 把通道 i 与 i + size / 2 配对，interleaved 把 2 i 与 2 i + 1 配对：与标杆一致",
        ),
    ),
    _entry(
        "rope-missing",
        (
            "The rotary embedding is applied to: {port_value}; in the reference: {reference_value}",
            "旋转位置编码作用于：{port_value}；标杆：{reference_value}",
        ),
        ("Rotate query and key as the reference does", "与标杆一样旋转 query 和 key"),
    ),
    _entry(
        "rope-sign",
        (
            "{setting} turns {port_value}, the reference's {reference_value}",
            "{setting} 的方向为 {port_value}，标杆为 {reference_value}",
        ),
        ("Check the sign of sin and whether sin and cos are exchanged", "检查 sin 的符号，以及 sin 与 cos 是否写反"),
    ),
    _entry(
        "rope-theta",
        (
            "{setting} is {port_value}, the reference has {reference_value}",
            "{setting} 为 {port_value}，标杆为 {reference_value}",
        ),
        ("Use the base {reference_value}", "底数改为 {reference_value}"),
    ),
    _entry(
        "rotary-precision",
        (
            "The rotary embedding rounds {setting} to {dtype}: far places turn by a wrong angle",
            "旋转位置编码将 {setting} 舍入到 {dtype}：位置越远角度误差越大",
        ),
        (
            "Compute places, frequencies, sines and cosines in float32 (rotary_dtype)",
            "位置、频率、正弦与余弦均用 float32 计算（rotary_dtype）",
        ),
    ),
)

ENTRIES: tuple[Entry, ...] = (*SCORES, *MASKS, *PRECISION, *HEADS, *ROTARY)
