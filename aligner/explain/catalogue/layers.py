"""What a layer computed otherwise, told from its numbers: activations, softmaxes, norms, matrix products."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_LEFT: Text = ("Computed so from the reference's input, {left} is left", "用标杆输入这样计算，剩余误差 {left}")
_FORMS: Text = (
    "The port: {form}; the reference: {wanted}; {left} is left",
    "待比对：{form}；标杆：{wanted}；剩余误差 {left}",
)

ACTIVATIONS: tuple[Entry, ...] = (
    Entry(
        "hardsigmoid-keras-formula",
        (
            "Hard sigmoid with the slope 0.2 (clip(0.2 x + 0.5)), the reference's is relu6(x + 3) / 6",
            "Hardsigmoid 使用了斜率 0.2（clip(0.2 x + 0.5)），标杆是 relu6(x + 3) / 6",
        ),
        _LEFT,
        ("Use nn.HSigmoid()", "使用 nn.HSigmoid()"),
    ),
    Entry(
        "softmax-scale",
        ("The softmax's input is scaled by {scale}", "softmax 的输入被乘以 {scale}"),
        _LEFT,
        ("Remove the scale (or temperature) before softmax, or add it", "去掉或补上 softmax 之前的缩放（温度）"),
    ),
)

NORMS: tuple[Entry, ...] = (
    Entry(
        "norm-eps",
        (
            "The norm's eps is {port_value} by its numbers, the reference has {reference_value}",
            "由数值推得归一化的 eps 为 {port_value}，标杆为 {reference_value}",
        ),
        _FORMS,
        ("Pass the reference's eps: {reference_value}", "传入标杆的 eps：{reference_value}"),
    ),
    Entry(
        "norm-divisor",
        ("The norm divides by something else: {form}", "归一化的除数不同：{form}"),
        _FORMS,
        (
            "Compute {wanted}: ddof=0 for the variance, eps inside the root",
            "按标杆的形式计算：{wanted}；方差用 ddof=0，eps 放在根号内",
        ),
    ),
    Entry(
        "norm-mean-kept",
        ("The port does not subtract the mean", "待比对没有减去均值"),
        _FORMS,
        ("Use nn.LayerNorm, not an RMS norm", "使用 nn.LayerNorm，而不是 RMSNorm"),
    ),
    Entry(
        "rmsnorm-written-as-layernorm",
        ("The port subtracts the mean, the reference does not (RMSNorm)", "待比对减去了均值，标杆没有（RMSNorm）"),
        _FORMS,
        (
            "Use ops.rms_norm, or mint.nn.RMSNorm, in place of LayerNorm",
            "用 ops.rms_norm 或 mint.nn.RMSNorm 代替 LayerNorm",
        ),
    ),
    Entry(
        "norm-affine-differs",
        ("The norm's weight and bias are applied otherwise: {port_value}", "归一化的权重与偏置用法不同：{port_value}"),
        _FORMS,
        (
            "Apply gamma and beta as the reference does, and look whether they were loaded",
            "按标杆的方式使用 gamma 与 beta，并检查它们是否被加载",
        ),
    ),
    Entry(
        "layernorm-channels-first",
        ("The norm runs along another axis: {form}", "归一化沿着另一个轴：{form}"),
        _FORMS,
        (
            "Bring the channels to the last axis, normalise, and bring them back",
            "先把通道转到最后一个轴，归一化后再转回",
        ),
    ),
    Entry(
        "norm-axes",
        ("The norm takes its statistics over other axes: {form}", "归一化的统计轴不同：{form}"),
        _FORMS,
        ("Use the norm, the axes and the layout of the reference", "使用与标杆相同的归一化、轴与布局"),
    ),
)

PRODUCTS: tuple[Entry, ...] = (
    Entry(
        "bias-missing",
        ("The bias is not added", "没有加上偏置"),
        (
            "Along axis {axis} the difference is the bias of {channels} channels; added, {left} is left",
            "第 {axis} 轴上的差值就是 {channels} 个通道的偏置；加上后误差为 {left}",
        ),
        ("Write has_bias=True and load the bias", "写上 has_bias=True 并加载偏置"),
    ),
    Entry(
        "bias-twice",
        ("The bias is added twice", "偏置被加了两次"),
        (
            "Along axis {axis} the difference is the bias of {channels} channels; taken off, {left} is left",
            "第 {axis} 轴上的差值就是 {channels} 个通道的偏置；减去后误差为 {left}",
        ),
        ("Remove the second addition", "去掉多余的一次相加"),
    ),
    Entry(
        "weight-across",
        (
            "The weight {shape} is read in another order (reshaped, not transposed)",
            "权重 {shape} 以另一种次序读取（用了 reshape 而非转置）",
        ),
        _LEFT,
        ("Transpose the weight in place of reshaping it", "对权重做转置，而不是 reshape"),
    ),
)

ENTRIES = ACTIVATIONS + NORMS + PRODUCTS
