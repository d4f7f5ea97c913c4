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
            "The {kind} computes in {port_dtype}, the reference's in {reference_dtype}",
            "{kind} 以 {port_dtype} 计算，标杆以 {reference_dtype} 计算",
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
        "short-float-operations",
        (
            "The code of {port_layer} does this in {dtype}, the reference does not: {operations}",
            "{port_layer} 的代码以 {dtype} 执行以下算子，标杆则不是：{operations}",
        ),
        (
            "Each operator was heard as it ran, with its type; so sums and softmaxes lose digits, and squares overflow",
            "采集时得到了每个算子实际运行的类型；求和与 softmax 会因此丢失精度，平方会溢出",
        ),
        (
            "Compute them in float32: x.astype(ms.float32) before, or exempt this cell (to_float, the AMP lists)",
            "改用 float32 计算：在其之前 x.astype(ms.float32)，或把该 Cell 排除在混合精度之外（to_float、AMP 名单）",
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

DEVICES: tuple[Entry, ...] = (
    Entry(
        "ascend-hf32-conv-default",
        (
            "The device convolves in {dtype}: input and weight are rounded to it",
            "设备以 {dtype} 做卷积：输入和权重先被舍入",
        ),
        ("Computed so from the reference's input, {left} is left", "用标杆输入这样计算，剩余误差 {left}"),
        (
            "Set ms.device_context.ascend.op_precision.conv_allow_hf32(False) "
            "(torch: torch.backends.cudnn.allow_tf32 = False), or judge the net by that rounding",
            "设置 ms.device_context.ascend.op_precision.conv_allow_hf32(False)"
            "（torch：torch.backends.cudnn.allow_tf32 = False），或按该舍入误差评判网络",
        ),
    ),
    Entry(
        "fp16-matmul-accumulate",
        (
            "The {kind} sums in {dtype}: the error grows with the {terms} products in a sum",
            "{kind} 以 {dtype} 累加：误差随求和的 {terms} 个乘积增大",
        ),
        (
            "Off by {distance}, {times} times what rounding the result to {dtype} explains, and evenly so",
            "误差为 {distance}，是结果舍入到 {dtype} 所能解释的 {times} 倍，且分布均匀",
        ),
        (
            "Compute the product in float32 (to_float(ms.float32)), or allow this error",
            "矩阵乘用 float32 计算（to_float(ms.float32)），或放宽此处容差",
        ),
    ),
    Entry(
        "nondeterministic-reduction",
        (
            "The {port_kind} gives other numbers each time it runs on the same input",
            "{port_kind} 用相同输入每次运行结果不同",
        ),
        (
            "Run twice on the reference's input it is off from itself by {distance}",
            "用标杆输入运行两次，两次结果相差 {distance}",
        ),
        (
            "Call ms.set_deterministic(True) (torch: torch.use_deterministic_algorithms(True)), "
            "and look for random numbers in it",
            "调用 ms.set_deterministic(True)（torch：torch.use_deterministic_algorithms(True)），并检查其中的随机数",
        ),
    ),
)

CODE: tuple[Entry, ...] = ()

EDGES: tuple[Entry, ...] = (
    Entry(
        "ascend-matmul-precision-mode",
        (
            "The device multiplies in {dtype}: rounded to it are {setting}",
            "设备以 {dtype} 做矩阵乘：被舍入的是 {setting}",
        ),
        (
            "Computed again, {reference_code} is the reference's and {port_code} the port's: {left} is left",
            "重新计算：标杆为 {reference_code}，待比对为 {port_code}，剩余误差 {left}",
        ),
        (
            "Set the device to high precision (op_precision.matmul_allow_hf32(False), precision_mode "
            "must_keep_origin_dtype), or judge the net by that type's rounding",
            "将设备设为高精度（op_precision.matmul_allow_hf32(False)，precision_mode 设为 "
            "must_keep_origin_dtype），或按该类型的舍入误差评判网络",
        ),
    ),
)

ENTRIES = PARAMETERS + LAYERS + DEVICES + CODE + EDGES
