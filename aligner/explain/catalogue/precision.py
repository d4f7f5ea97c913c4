"""Causes that lie in the type a layer computes in or keeps its parameters in."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_NOTHING = ("", "")

PARAMETERS: tuple[Entry, ...] = (
    Entry(
        "parameter-other-dtype",
        (
            "{port_parameter} is {port_dtype}, the reference's is {dtype}",
            "{port_parameter} 的类型为 {port_dtype}，标杆为 {dtype}",
        ),
        ("That alone makes {distance} (relative L2) of its values", "仅此一项使其取值产生 {distance} 的相对 L2 误差"),
        ("Keep the parameter in {dtype}", "将参数保持为 {dtype}"),
    ),
    Entry(
        "fp16-weights-no-master",
        (
            "{port_parameter} is kept in {port_dtype}, the reference's in {dtype}: the net was cast as a whole",
            "{port_parameter} 以 {port_dtype} 保存，标杆为 {dtype}：整个网络被转换了类型",
        ),
        ("That alone makes {distance} (relative L2) of its values", "仅此一项使其取值产生 {distance} 的相对 L2 误差"),
        (
            "Keep weights in float32 and let amp.auto_mixed_precision cast for the computation",
            "权重保持 float32，由 amp.auto_mixed_precision 在计算时转换",
        ),
    ),
    Entry(
        "checkpoint-fp16",
        (
            "{port_parameter} holds the reference's values rounded to {format}: the checkpoint was saved in it",
            "{port_parameter} 是标杆取值舍入到 {format} 的结果：检查点以该类型保存",
        ),
        (
            "Rounding the reference's values gives exactly these; they are {distance} apart (relative L2)",
            "将标杆的取值舍入后与其完全一致；两者相对 L2 误差为 {distance}",
        ),
        ("Convert the checkpoint in float32", "以 float32 转换检查点"),
    ),
    Entry(
        "dtype-float64-numpy-weights",
        (
            "{port_parameter} is float64: it was made from a numpy array of that type",
            "{port_parameter} 的类型为 float64：由该类型的 numpy 数组创建",
        ),
        _NOTHING,
        ("Convert first: array.astype(np.float32)", "先转换：array.astype(np.float32)"),
    ),
)

LAYERS: tuple[Entry, ...] = (
    Entry(
        "amp-levels-norm-dtype",
        (
            "The {kind} computes in a shorter type than the reference's",
            "{kind} 使用了比标杆更短的类型计算",
        ),
        (
            "auto_mixed_precision keeps norms in float32 at O2 and not at O3",
            "auto_mixed_precision 在 O2 级别保持归一化为 float32，O3 级别则不会",
        ),
        (
            "Use amp_level O2 or auto, or exempt it: layer.to_float(ms.float32)",
            "使用 amp_level O2 或 auto，或单独排除：layer.to_float(ms.float32)",
        ),
    ),
    Entry(
        "layernorm-fp16-eps-underflow",
        (
            "eps is {port_value}, which is 0 in float16",
            "eps 为 {port_value}，在 float16 中等于 0",
        ),
        ("The smallest number of float16 is 6e-08", "float16 能表示的最小正数是 6e-08"),
        (
            "Compute the norm in float32: layer.to_float(ms.float32)",
            "归一化用 float32 计算：layer.to_float(ms.float32)",
        ),
    ),
    Entry(
        "layernorm-fp16-variance-overflow",
        (
            "The norm's squares overflow float16: inputs beyond 255 make an infinite variance",
            "归一化中的平方超出 float16 范围：大于 255 的输入使方差为无穷",
        ),
        _NOTHING,
        (
            "Compute the norm in float32: layer.to_float(ms.float32)",
            "归一化用 float32 计算：layer.to_float(ms.float32)",
        ),
    ),
    Entry(
        "mixed-precision-rounding-signature",
        (
            "The layer computes with inputs and weights rounded to a shorter type",
            "该层先将输入和权重舍入到更短的类型再计算",
        ),
        _NOTHING,
        (
            "Turn the device's high precision mode on, or judge this net by that type's rounding",
            "开启设备的高精度模式，或按该类型的舍入误差评判此网络",
        ),
    ),
    Entry(
        "loss-in-fp16",
        ("The loss is computed in float16", "损失以 float16 计算"),
        _NOTHING,
        ("Cast first: logits.astype(ms.float32)", "先转换：logits.astype(ms.float32)"),
    ),
    Entry(
        "tensor-default-float64",
        (
            "A float64 tensor takes part: ms.Tensor keeps the type of a numpy array",
            "有 float64 张量参与计算：ms.Tensor 会保留 numpy 数组的类型",
        ),
        _NOTHING,
        ("Convert it where it is made: array.astype(np.float32)", "在创建处转换：array.astype(np.float32)"),
    ),
)

ENTRIES = PARAMETERS + LAYERS
