"""What to say of causes to those whose port is written in torch's words, as MindTorch's are.

The other files of this package speak of MindSpore's layers, keywords and defaults, which such a port does not have. A
cause that is not here is told as it stands there; so is one of which a fact is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aligner.explain.catalogue.entry import Entry, Text

_NOTHING = ("", "")
_WRITE = ("Write {written}", "写成 {written}")
_SETTING = (
    "{kind} has {setting} {port_value}, the reference has {reference_value}",
    "{kind} 的 {setting} 为 {port_value}，标杆为 {reference_value}",
)

_SETTINGS: Mapping[str, Text] = {
    **dict.fromkeys(
        (
            "layernorm-multi-axis",
            "bn-momentum-convention",
            "bn-momentum-none",
            "bn-use-batch-statistics",
            "instancenorm-affine-default",
            "lrn-size-alpha",
            "softplus-beta",
            "prelu-channel-default",
            "softmax-axis-default",
            "logsoftmax-axis",
            "dropout-keep-prob-positional",
            "conv2d-pad-mode-same-default",
            "conv2d-same-vs-pad-stride2",
            "conv2d-padding-4tuple-order",
            "conv2d-dilation-dropped",
            "convtranspose-pad-mode-same-k3s2",
            "maxpool-pad-mode-same-stem",
            "pool-stride-default",
            "avgpool-pad-mode-same",
            "pad-axis-order",
            "smoothl1-reduction-default",
            "triplet-positional-args",
        ),
        _NOTHING,
    ),
    "layernorm-eps-default": (
        "Rows of small variance come out too large or too small, each row by one factor",
        "方差小的行整体偏大或偏小，每行为同一比例",
    ),
    "leakyrelu-slope-default": (
        "Only negative inputs show it, all by one factor",
        "仅负输入受影响，且为同一比例",
    ),
}
"""Causes that are another value of a setting, with what the numbers show of it."""

_OWN: Mapping[str, tuple[Text, Text]] = {
    "gelu-approximate-default": (
        ("GELU is the tanh approximation, the reference's is exact", "GELU 用了 tanh 近似，而标杆是精确形式"),
        ("Write GELU without approximate='tanh'", "去掉 GELU 的 approximate='tanh'"),
    ),
    "gelu-new-vs-erf": (
        ("GELU is exact, the reference's is the tanh approximation", "GELU 为精确形式，而标杆是 tanh 近似"),
        ("Write GELU with approximate='tanh'", "为 GELU 写上 approximate='tanh'"),
    ),
    "conv2d-has-bias-default": (
        ("The convolution has no bias, the reference has one", "卷积没有偏置，标杆有偏置"),
        ("Write {written}, and load the bias", "写成 {written}，并加载偏置"),
    ),
    "convtranspose-bias-default": (
        ("The transposed convolution has no bias, the reference has one", "转置卷积没有偏置，标杆有偏置"),
        ("Write {written}, and load the bias", "写成 {written}，并加载偏置"),
    ),
}
"""Other titles and changes, by cause."""

_CHANGES: Mapping[str, Text] = {
    "quick-gelu-vs-gelu": (
        "Write what the reference has: x * torch.sigmoid(1.702 * x), or nn.GELU()",
        "按标杆实现：x * torch.sigmoid(1.702 * x)，或 nn.GELU()",
    ),
    "split-size-vs-num": (
        "torch.split takes the size of the parts, torch.chunk their number",
        "torch.split 的参数是每份的大小，torch.chunk 的参数是份数",
    ),
    "resize-bilinear-half-pixel": (
        "Write F.interpolate(x, size=..., mode='bilinear', align_corners=...) as the reference does",
        "按标杆写 F.interpolate(x, size=..., mode='bilinear', align_corners=...)",
    ),
    "interpolate-nearest-noninteger": (
        "Write F.interpolate(x, size=..., mode='nearest')",
        "写成 F.interpolate(x, size=..., mode='nearest')",
    ),
    "parameter-transposed": (
        "Load it as it is: MindTorch keeps PyTorch's order of axes",
        "原样加载：MindTorch 保持 PyTorch 的轴顺序",
    ),
    "dense-weight-transposed-square": (
        "Load nn.Linear's weight as (out, in), without a transpose; with torch.matmul(x, w) use w.T",
        "nn.Linear 的权重按 (out, in) 加载，不要转置；torch.matmul(x, w) 则用 w.T",
    ),
    "parameter-untied": (
        "Share the parameter that the reference uses here, or leave this one out (bias=False for a bias)",
        "改为共享标杆在此处使用的参数，或去掉该参数（偏置用 bias=False）",
    ),
    "parameter-extra": ("Leave it out (bias=False for a bias)", "去掉该参数（偏置用 bias=False）"),
    "tied-weights-lost": (
        "Let {port_parameter} be the very Parameter of {other}, not a copy",
        "让 {port_parameter} 就是 {other} 的同一个 Parameter，而不是副本",
    ),
    "bias-missing": ("Write bias=True and load the bias", "写上 bias=True 并加载偏置"),
    "bn-train-flag-default": ("Call net.train() before training", "训练前调用 net.train()"),
    "bn-train-at-eval": (
        "Call net.eval() before evaluating, and set no module to train mode on its own",
        "推理前调用 net.eval()，不要单独把某个模块设为训练模式",
    ),
    "std-ddof": (
        "torch.std and var divide by n - 1, or by n with unbiased=False: write what the reference has",
        "torch.std 和 var 默认除以 n - 1，unbiased=False 时除以 n：与标杆写成一致",
    ),
    "dropout-functional-train-flag": (
        "Pass training=self.training to F.dropout, or use nn.Dropout and eval()",
        "给 F.dropout 传 training=self.training，或使用 nn.Dropout 并调用 eval()",
    ),
    "dropout-active": (
        "Pass training=self.training: F.dropout drops unless it is told otherwise",
        "传入 training=self.training：F.dropout 默认会丢弃",
    ),
    "negative-side-scaled": (
        "Set the slope of the LeakyReLU or PReLU to the reference's",
        "将 LeakyReLU 或 PReLU 的斜率设为与标杆相同",
    ),
    "hardsigmoid-keras-formula": ("Use nn.Hardsigmoid()", "使用 nn.Hardsigmoid()"),
    "rmsnorm-written-as-layernorm": (
        "Write the norm without the mean, in place of LayerNorm",
        "用不减均值的归一化代替 LayerNorm",
    ),
    "norm-affine-differs": (
        "Apply weight and bias as the reference does, and look whether they were loaded",
        "按标杆的方式应用 weight 和 bias，并检查是否已加载",
    ),
    "conv2d-padding-mode-reflect": (
        "Write the convolution with padding_mode='{wanted}', or pad with F.pad(x, ..., mode='{wanted}') before it",
        "卷积写上 padding_mode='{wanted}'，或先用 F.pad(x, ..., mode='{wanted}') 填充",
    ),
    "conv-padding": _WRITE,
    "pool-padding": _WRITE,
    "causal-conv-padding": (
        "Pad {wanted} elements on the left only, with F.pad, and give the convolution no padding",
        "用 F.pad 只在左侧填充 {wanted} 个元素，卷积本身不填充",
    ),
    "maxpool-zero-padding-before": (
        "Give the pooling its padding; a pad before it must be of -inf",
        "把填充交给池化层；若先单独填充，须填 -inf",
    ),
    "avgpool-ceil-mode-divisor": ("Write ceil_mode=True; do not pad by hand", "写上 ceil_mode=True；不要手工填充"),
    "pixel-shuffle-vs-depth-to-space": ("Use nn.PixelShuffle", "使用 nn.PixelShuffle"),
    "unfold-kernel-major": ("Use nn.Unfold or F.unfold", "使用 nn.Unfold 或 F.unfold"),
    "pad-done-otherwise": (
        "F.pad counts from the last axis; give the mode too",
        "F.pad 从最后一个轴开始计数；同时给出 mode",
    ),
    "rnn-packed-sequence-missing": (
        "Pack the sequences, or set to zero what lies behind their ends",
        "使用 pack_padded_sequence，或将各序列末尾之后置零",
    ),
    "meshgrid-indexing-default": (
        "Give torch.meshgrid the reference's indexing= ('ij' is its default)",
        "给 torch.meshgrid 写上与标杆相同的 indexing=（默认 'ij'）",
    ),
    "causal-mask-missing": (
        "Hide the scores above the diagonal: scores.masked_fill(torch.triu(ones, 1).bool(), -inf)",
        "遮住对角线以上的分数：scores.masked_fill(torch.triu(ones, 1).bool(), -inf)",
    ),
    "causal-mask-diagonal": (
        "Check diagonal= of torch.triu or torch.tril: a query sees itself where the reference's does",
        "检查 torch.triu 或 torch.tril 的 diagonal=：标杆中查询能看到自身时，此处也应能看到",
    ),
    "mha-mask-inverted": (
        "Pass torch.logical_not(mask), or fill where the mask is false",
        "传入 torch.logical_not(mask)，或在掩码为假处填充",
    ),
    "gqa-repeat-vs-tile": (
        "Use torch.repeat_interleave where the reference does; repeat and tile have another order",
        "标杆用 repeat_interleave 时也用它；repeat 和 tile 的顺序不同",
    ),
    "gather-semantics": (
        "torch.gather picks single elements, torch.index_select whole slices",
        "torch.gather 取单个元素，torch.index_select 取整个切片",
    ),
    "scatter-add-duplicates": (
        "Use scatter_add or index_add where the reference adds up",
        "标杆为累加时使用 scatter_add 或 index_add",
    ),
    "int-floor-div-negative": (
        "// rounds down; give torch.div the reference's rounding_mode",
        "// 向下取整；给 torch.div 写上与标杆相同的 rounding_mode",
    ),
    "remainder-vs-fmod": (
        "torch.remainder and % have the divisor's sign, torch.fmod the dividend's",
        "torch.remainder 和 % 取除数的符号，torch.fmod 取被除数的符号",
    ),
    "cumsum-dtype": ("Cast first: mask.int().cumsum(-1)", "先转换类型：mask.int().cumsum(-1)"),
    "residual-add-precision": ("Add in float32: x.float()", "以 float32 相加：x.float()"),
    "loss-in-fp16": ("Cast first: logits.float()", "先转换类型：logits.float()"),
}
"""Other changes, by cause."""


def entries(known: Mapping[str, Entry]) -> Iterator[Entry]:
    """The entries that are worded otherwise, made of the `known` ones."""
    for cause, seen in _SETTINGS.items():
        yield Entry(cause, _SETTING, seen, _WRITE)
    for cause, (title, fix) in _OWN.items():
        yield Entry(cause, title, known[cause].evidence, fix)
    for cause, fix in _CHANGES.items():
        yield Entry(cause, known[cause].title, known[cause].evidence, fix)
