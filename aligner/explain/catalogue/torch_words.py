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
    **dict.fromkeys(
        ("bn-buffers-not-loaded", "bn-gamma-beta-not-mapped", "ln-gamma-beta-not-mapped"),
        (
            ("{port_parameter} was not loaded", "{port_parameter} 未被加载"),
            (
                "Load it under the reference's name; load_state_dict(..., strict=True) names what is left over",
                "按标杆的名称加载；load_state_dict(..., strict=True) 会列出未加载的参数",
            ),
        ),
    ),
    "tensor-default-float64": (
        (
            "A float64 tensor takes part: torch.tensor keeps the type of a numpy array",
            "有 float64 张量参与计算：torch.tensor 会保留 numpy 数组的类型",
        ),
        ("Cast first: x.float()", "先转换类型：x.float()"),
    ),
    "bn-train-flag-default": (
        (
            "BatchNorm uses running statistics, the reference those of the batch: the port's is in eval mode",
            "BatchNorm 使用滑动统计量，标杆使用批次统计量：待比对网络中它处于推理模式",
        ),
        ("Call net.train() before training", "训练前调用 net.train()"),
    ),
    "bn-train-at-eval": (
        (
            "BatchNorm uses the batch's statistics, the reference its running ones: the port's is in train mode",
            "BatchNorm 使用批次统计量，标杆使用滑动统计量：待比对网络中它处于训练模式",
        ),
        (
            "Call net.eval() before evaluating, and set no module to train mode on its own",
            "推理前调用 net.eval()，不要单独把某个模块设为训练模式",
        ),
    ),
}
"""Other titles and changes, by cause."""

_SEEN: Mapping[str, Text] = {
    "resize-bilinear-half-pixel": (
        "PyTorch takes half pixels where align_corners is False",
        "align_corners 为 False 时，PyTorch 使用半像素中心",
    ),
    "bn-train-flag-default": (
        "Something has called eval(): a module is born in train mode",
        "有代码调用过 eval()：Module 默认处于训练模式",
    ),
    "ctc-blank-index": ("nn.CTCLoss has its blank first, blank=0", "nn.CTCLoss 的 blank 默认在最前（blank=0）"),
    "amp-levels-norm-dtype": (
        "auto_mixed_precision keeps BatchNorm in float32 at every level, and LayerNorm at none but auto",
        "auto_mixed_precision 在各级别都让 BatchNorm 保持 float32，而 LayerNorm 只在 auto 时保持",
    ),
    "bn-frozen-unfrozen-by-set-train": (
        "net.train() turns every BatchNorm inside back on",
        "net.train() 会重新打开其中所有 BatchNorm",
    ),
}
"""Other evidence, by cause."""

_CHANGES: Mapping[str, Text] = {
    "quick-gelu-vs-gelu": (
        "Write what the reference has: x * torch.sigmoid(1.702 * x), or nn.GELU with its approximate",
        "按标杆实现：x * torch.sigmoid(1.702 * x)，或 approximate 与标杆相同的 nn.GELU",
    ),
    "resize-bilinear-half-pixel": (
        "Write F.interpolate(x, size=..., mode='bilinear', align_corners=...) as the reference does",
        "按标杆写 F.interpolate(x, size=..., mode='bilinear', align_corners=...)",
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
    "kldiv-log-target": ("Give the loss torch.exp(target)", "将 torch.exp(target) 传入损失"),
    "ctc-blank-index": _WRITE,
    "lstm-gate-order": (
        "Put the {count} blocks of rows in the order {wanted}; nn.LSTM and nn.GRU have PyTorch's order",
        "将 {count} 个行块按 {wanted} 的顺序排列；nn.LSTM 与 nn.GRU 的顺序与 PyTorch 一致",
    ),
    "short-float-operations": (
        "Compute them in float32: x.float() before, or exempt this layer (the AMP lists)",
        "以 float32 计算：先 x.float()，或将该层排除在混合精度之外（AMP 名单）",
    ),
    "bn-frozen-unfrozen-by-set-train": (
        "Call bn.eval() after net.train(), for each BatchNorm that is frozen",
        "在 net.train() 之后，对每个冻结的 BatchNorm 调用 bn.eval()",
    ),
    "gradient-cut": (
        "Look behind {layer} for detach, no_grad, numpy, a tensor made anew, or requires_grad=False",
        "检查 {layer} 之后是否有 `detach`、`no_grad`、`numpy`、重新构造的张量或 `requires_grad=False`",
    ),
    "gradient-not-cut": ("Put detach there, as the reference does", "按标杆的做法使用 `detach`"),
    "gradient-branch-cut": ("Take out the detach before {branch}", "去掉 {branch} 之前的 `detach`"),
    "gradient-branch-not-cut": ("Put detach before {branch}", "在 {branch} 之前使用 `detach`"),
    "gradient-times": (
        "Look behind {layer} for a backward of its own, a factor in the backward run, or a part that is cut off",
        "检查 {layer} 之后是否有自定义的 `backward`、反向计算中的系数，或被截断的部分",
    ),
    "gradient-path-differs": (
        "Compare what stands behind {layer}: detach and no_grad on both sides, and any backward of its own",
        "对照 {layer} 之后的代码：两侧的 `detach`、`no_grad`，以及自定义的 `backward`",
    ),
    "dataset-shuffle-default": (
        "Give the loader shuffle=False, or the order of the reference's",
        "给数据加载器传 shuffle=False，或使用与标杆相同的顺序",
    ),
    "loss-in-fp16": ("Cast first: logits.float()", "先转换类型：logits.float()"),
}
"""Other changes, by cause."""


def entries(known: Mapping[str, Entry]) -> Iterator[Entry]:
    """The entries that are worded otherwise, made of the `known` ones."""
    for cause, seen in _SETTINGS.items():
        yield Entry(cause, _SETTING, seen, _WRITE)
    for cause, (title, fix) in _OWN.items():
        yield Entry(cause, title, _SEEN.get(cause, known[cause].evidence), fix)
    for cause, fix in _CHANGES.items():
        yield Entry(cause, known[cause].title, _SEEN.get(cause, known[cause].evidence), fix)
