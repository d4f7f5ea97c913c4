"""What a layer over pictures did otherwise, told from its numbers: windows, borders, resampling, moved values."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry, Text

_LEFT: Text = ("Computed so from the reference's input, {left} is left", "用标杆输入这样计算，剩余误差 {left}")
_BOTH: Text = (
    "The port: {found}; the reference: {wanted}; {left} is left",
    "待比对：{found}；标杆：{wanted}；剩余误差 {left}",
)

WINDOWS: tuple[Entry, ...] = (
    Entry(
        "conv2d-padding-mode-reflect",
        (
            "The convolution sees {found} beyond the border, the reference {wanted}",
            "卷积在边界外按 '{found}' 方式填充，标杆为 '{wanted}'",
        ),
        _LEFT,
        (
            "nn.Conv2d pads with zeros only: pad with ops.pad(x, ..., mode='{wanted}'), then pad_mode='valid'",
            "nn.Conv2d 只会补零：先 ops.pad(x, ..., mode='{wanted}')，再用 pad_mode='valid'",
        ),
    ),
    Entry(
        "conv-padding",
        (
            "The convolution begins {found} elements before its input, the reference's {wanted}",
            "卷积从输入之前 {found} 个元素处开始，标杆为 {wanted}",
        ),
        _LEFT,
        (
            "Write {written}: pad_mode='same' pads unevenly with a stride",
            "写成 {written}：步长大于 1 时 pad_mode='same' 的填充不对称",
        ),
    ),
    Entry(
        "causal-conv-padding",
        (
            "A causal convolution is padded on both sides: {found} before instead of {wanted}",
            "因果卷积在两侧都填充了：之前 {found}，应为 {wanted}",
        ),
        _LEFT,
        (
            "Pad {wanted} elements on the left only, then pad_mode='valid'",
            "只在左侧填充 {wanted} 个元素，再用 pad_mode='valid'",
        ),
    ),
    Entry(
        "conv-stride",
        ("The convolution's stride is {found}, the reference's {wanted}", "卷积步长为 {found}，标杆为 {wanted}"),
        _LEFT,
        ("Write stride={wanted}", "写成 stride={wanted}"),
    ),
    Entry(
        "pool-mean-or-max",
        ("The pooling takes the {found}, the reference the {wanted}", "池化取的是 {found}，标杆取 {wanted}"),
        _LEFT,
        ("Use the reference's kind of pooling", "使用与标杆同类的池化"),
    ),
    Entry(
        "pool-padding",
        (
            "The pooling begins {found} elements before its input, the reference's {wanted}",
            "池化从输入之前 {found} 个元素处开始，标杆为 {wanted}",
        ),
        _LEFT,
        ("Write {written}: pad_mode='same' pads unevenly", "写成 {written}：pad_mode='same' 的填充不对称"),
    ),
    Entry(
        "maxpool-zero-padding-before",
        (
            "The maximum sees zeros beyond the border, the reference's sees nothing there",
            "最大池化在边界外看到零，而标杆不计边界外",
        ),
        _LEFT,
        (
            "Write pad_mode='pad', padding=...; a pad before the pooling must be of -inf",
            "写成 pad_mode='pad', padding=...；若先单独填充，须填 -inf",
        ),
    ),
    Entry(
        "avgpool-ceil-mode-divisor",
        (
            "Means of the last, partial windows divide by {found}, the reference's by {wanted}",
            "末端不完整窗口的均值除以 {found}，标杆除以 {wanted}",
        ),
        _LEFT,
        (
            "Write pad_mode='pad', ceil_mode=True; do not pad with zeros by hand",
            "写成 pad_mode='pad', ceil_mode=True；不要手工补零",
        ),
    ),
    Entry(
        "adaptive-avgpool-nondivisible",
        (
            "Adaptive pooling with windows that are {found}: the sizes do not divide, torch's windows overlap",
            "自适应池化的窗口{found}：尺寸不能整除，torch 的窗口会重叠",
        ),
        _LEFT,
        ("Use nn.AdaptiveAvgPool2d", "使用 nn.AdaptiveAvgPool2d"),
    ),
)

RESAMPLING: tuple[Entry, ...] = (
    Entry(
        "interpolate-scale-factor-rounding",
        (
            "The scale is taken from the sizes on one side and from scale_factor on the other",
            "一侧按输入输出尺寸之比取坐标，另一侧按 scale_factor",
        ),
        _BOTH,
        (
            "Pass scale_factor where the reference does, size where it passes size",
            "与标杆一致：标杆传 scale_factor 就传 scale_factor，传 size 就传 size",
        ),
    ),
    Entry(
        "upsample-grid",
        ("The resampling reads other places: {found}", "重采样读取的位置不同：{found}"),
        _BOTH,
        ("Choose the mode and align_corners that give {wanted}", "选择能得到“{wanted}”的 mode 与 align_corners"),
    ),
)

MOVED: tuple[Entry, ...] = ()

ENTRIES = WINDOWS + RESAMPLING + MOVED
