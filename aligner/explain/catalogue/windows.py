"""Causes told from the settings of layers that slide a window, pad or resize.

Facts of all of them: `setting` and its values, `written` is the call that has the reference's, in MindSpore's words.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_NOTHING = ("", "")
_WRITE = ("Write {written}", "写成 {written}")

CONVOLUTIONS: tuple[Entry, ...] = (
    Entry(
        "conv2d-pad-mode-same-default",
        (
            "The port pads {port_value} (pad_mode='same' is MindSpore's default), the reference {reference_value}",
            "卷积的填充为 {port_value}（MindSpore 默认 pad_mode='same'），标杆为 {reference_value}",
        ),
        ("A padding that is given has no effect with pad_mode='same'", "pad_mode='same' 时给出的 padding 不起作用"),
        _WRITE,
    ),
    Entry(
        "conv2d-same-vs-pad-stride2",
        (
            "pad_mode='same' with a stride pads less before than behind, the reference pads {reference_value}",
            "步长大于 1 时 pad_mode='same' 前少后多，标杆的填充为 {reference_value}",
        ),
        (
            "The output has the right shape and lies a pixel beside the reference's",
            "输出形状相同，但相对标杆错开一个像素",
        ),
        _WRITE,
    ),
    Entry(
        "conv2d-padding-4tuple-order",
        (
            "The paddings stand in another order: {port_value} for {reference_value}",
            "填充的顺序不同：{port_value}，应为 {reference_value}",
        ),
        (
            "nn.Conv2d takes (top, bottom, left, right), F.pad (left, right, top, bottom)",
            "nn.Conv2d 的顺序是（上，下，左，右），F.pad 是（左，右，上，下）",
        ),
        _WRITE,
    ),
    Entry(
        "conv2d-dilation-dropped",
        (
            "dilation is {port_value}, the reference has {reference_value}",
            "dilation 为 {port_value}，标杆为 {reference_value}",
        ),
        ("pad_mode='same' hides it: the shape is right all the same", "pad_mode='same' 会掩盖此问题：形状仍然相同"),
        _WRITE,
    ),
    Entry(
        "conv2d-has-bias-default",
        (
            "The convolution has no bias (has_bias=False is MindSpore's default), the reference has one",
            "卷积没有偏置（MindSpore 默认 has_bias=False），标杆有偏置",
        ),
        ("Each output channel is off by a constant, the bias", "每个输出通道差一个常数，即偏置"),
        ("Write {written}, and load the bias", "写成 {written}，并加载偏置"),
    ),
    Entry(
        "convtranspose-bias-default",
        (
            "The transposed convolution has no bias (has_bias=False is MindSpore's default), the reference has one",
            "转置卷积没有偏置（MindSpore 默认 has_bias=False），标杆有偏置",
        ),
        ("Each output channel is off by a constant, the bias", "每个输出通道差一个常数，即偏置"),
        ("Write {written}, and load the bias", "写成 {written}，并加载偏置"),
    ),
    Entry(
        "convtranspose-pad-mode-same-k3s2",
        (
            "The transposed convolution has {setting} {port_value}, the reference has {reference_value}",
            "转置卷积的 {setting} 为 {port_value}，标杆为 {reference_value}",
        ),
        (
            "pad_mode='same' gives the right size from other places of the result",
            "pad_mode='same' 得到的尺寸相同，但截取的位置不同",
        ),
        (
            "Write {written}; MindSpore's own output_padding appends zeros on CPU",
            "写成 {written}；MindSpore 自身的 output_padding 在 CPU 上只会补零",
        ),
    ),
)

POOLS: tuple[Entry, ...] = (
    Entry(
        "maxpool-pad-mode-same-stem",
        (
            "Max pooling with pad_mode='same' pads behind first, the reference pads {reference_value}",
            "最大池化使用 pad_mode='same'，优先在后方填充，标杆的填充为 {reference_value}",
        ),
        ("The windows begin a pixel later than the reference's", "窗口起点比标杆晚一个像素"),
        _WRITE,
    ),
    Entry(
        "pool-stride-default",
        (
            "The pool's stride is {port_value} (MindSpore's default is 1), the reference's is {reference_value}",
            "池化步长为 {port_value}（MindSpore 默认 1），标杆为 {reference_value}",
        ),
        ("PyTorch takes the kernel's size when no stride is given", "PyTorch 未给出步长时取核大小"),
        ("Give the stride: {written}", "显式给出步长：{written}"),
    ),
    Entry(
        "pool-ceil-mode-dropped",
        (
            "ceil_mode is {port_value}, the reference has {reference_value}: the last windows differ",
            "ceil_mode 为 {port_value}，标杆为 {reference_value}：末尾窗口不同",
        ),
        _NOTHING,
        _WRITE,
    ),
    Entry(
        "avgpool-count-include-pad",
        (
            "count_include_pad is {port_value}, the reference has {reference_value}: means at the border differ",
            "count_include_pad 为 {port_value}，标杆为 {reference_value}：边缘处的均值不同",
        ),
        _NOTHING,
        _WRITE,
    ),
    Entry(
        "avgpool-pad-mode-same",
        (
            "pad_mode='same' leaves padding out of the means, the reference pads {reference_value}",
            "pad_mode='same' 时均值不计填充，标杆的填充为 {reference_value}",
        ),
        _NOTHING,
        _WRITE,
    ),
)

PADS_AND_SIZES: tuple[Entry, ...] = (
    Entry(
        "pad-symmetric-vs-reflect",
        (
            "The padding's mode is {port_value}, the reference's is {reference_value}",
            "填充模式为 {port_value}，标杆为 {reference_value}",
        ),
        ("SYMMETRIC repeats the border itself, REFLECT does not", "SYMMETRIC 会重复边缘元素，REFLECT 不会"),
        _WRITE,
    ),
    Entry(
        "pad-axis-order",
        (
            "The paddings are listed for the wrong axes: {port_value} for {reference_value}",
            "各轴的填充顺序有误：{port_value}，应为 {reference_value}",
        ),
        (
            "nn.Pad lists pairs from the first axis on, F.pad from the last",
            "nn.Pad 从第一个轴开始列出，F.pad 从最后一个轴开始",
        ),
        _WRITE,
    ),
    Entry(
        "interpolate-align-corners",
        (
            "align_corners is {port_value}, the reference has {reference_value}",
            "align_corners 为 {port_value}，标杆为 {reference_value}",
        ),
        ("Corners agree or not, the error grows towards the borders", "误差向边缘方向变化"),
        _WRITE,
    ),
    Entry(
        "upsample-mode-default-nearest",
        (
            "Upsample has mode {port_value} (nearest is the default), the reference has {reference_value}",
            "Upsample 的 mode 为 {port_value}（默认 nearest），标杆为 {reference_value}",
        ),
        _NOTHING,
        _WRITE,
    ),
    Entry(
        "resize-bilinear-half-pixel",
        (
            "Resizing does not take pixels by their centres as the reference does ({port_kind})",
            "缩放未像标杆那样以像素中心对齐（{port_kind}）",
        ),
        (
            "ops.ResizeBilinearV2 has half_pixel_centers=False by default, PyTorch takes half pixels",
            "ops.ResizeBilinearV2 默认 half_pixel_centers=False，而 PyTorch 使用半像素中心",
        ),
        (
            "Write ops.interpolate(x, size=..., mode='bilinear', align_corners=False)",
            "写成 ops.interpolate(x, size=..., mode='bilinear', align_corners=False)",
        ),
    ),
)

ENTRIES = CONVOLUTIONS + POOLS + PADS_AND_SIZES
