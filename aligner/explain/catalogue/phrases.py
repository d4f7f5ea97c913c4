"""Phrases that facts hold: what no number, name or code says. One Text for each, `{0}`, `{1}` for its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aligner.explain.catalogue.entry import Text
from aligner.explain.phrase import Phrase

_ATTENTION: Mapping[str, Text] = {
    "seen-where-true": ("seen where true", "为真处可见"),
    "hidden-where-true": ("hidden where true", "为真处遮住"),
    "added-to-scores": ("added to the scores", "加到分数上"),
    "before-softmax": ("before the softmax", "softmax 之前"),
    "after-softmax": ("after the softmax", "softmax 之后"),
    "heads-transposed": ("(length, head, channel), then transposed", "先拆成（长度，头，通道）再转置"),
    "heads-viewed": ("(batch, head, length, channel) by a reshape alone", "只用 reshape 得到（批，头，长度，通道）"),
    "heads-channel-first": ("(channel, head)", "（通道，头）"),
    "merge-transposed": ("transposed back, then a reshape", "先转置回来再 reshape"),
    "merge-viewed": ("a reshape without transposing back", "没有转置回来就 reshape"),
    "layout-parts": ("one behind the other", "依次排列"),
    "layout-by-head": ("by head", "按头交错"),
    "layout-by-channel": ("by channel", "按通道交错"),
    "layout-viewed": ("by a reshape alone", "只用 reshape"),
    "rotary": ("The rotary embedding", "旋转位置编码"),
    "rotary-base": ("The base of the rotary embedding", "旋转位置编码的底数"),
    "forwards": ("forwards", "正向"),
    "backwards": ("backwards", "反向"),
    "nothing": ("nothing", "无"),
    "softmax-of-nothing": ("what the softmax gives", "softmax 的结果"),
    "zeros": ("zeros", "零"),
    "mean-of-values": ("the mean", "均值"),
    "zero-rows": ("zeros in {0} of {1} rows", "{1} 行中有 {0} 行为零"),
}

_SHORT: Mapping[str, Text] = {
    "scores": ("the scores", "分数"),
    "query-key-scores": ("query, key and the scores", "query、key 与分数"),
    "scores-and-mask": ("the sum of scores and mask", "分数与掩码之和"),
    "scores-softmax": ("the scores and the softmax", "分数与 softmax"),
    "softmax": ("the softmax", "softmax"),
    "all-of-attention": ("all of it", "全部"),
    "operands": ("query, key, weights and value, before the products", "相乘之前的 query、key、权重与 value"),
    "query-key": ("query and key, before their product", "相乘之前的 query 与 key"),
    "weights-value": ("weights and value, before their product", "相乘之前的权重与 value"),
    "weights": ("the weights", "权重"),
    "input-weight": ("input and weight", "输入与权重"),
    "angles": ("the angles", "角度"),
    "angles-tables": ("angles, sines and cosines", "角度、正弦与余弦"),
    "tables": ("sines and cosines", "正弦与余弦"),
    "frequencies": ("the frequencies", "频率"),
    "places-angles": ("places and angles", "位置与角度"),
    "places-times-frequencies": ("the product of places and frequencies", "位置与频率之积"),
    "places": ("the places", "位置"),
    "either-type": ("{0} or {1}", "{0} 或 {1}"),
    "cut-off": ("{0} (cut off)", "{0}（截断）"),
}
"""What is computed in a short type, and which."""

_LOSSES: Mapping[str, Text] = {
    "cross-entropy": ("cross entropy", "交叉熵"),
    "soft-cross-entropy": ("soft cross entropy", "软标签交叉熵"),
    "binary-cross-entropy": ("binary cross entropy", "二元交叉熵"),
    "l1-loss": ("L1 loss", "L1 损失"),
    "mse-loss": ("MSE loss", "MSE 损失"),
    "huber-loss": ("Huber loss", "Huber 损失"),
    "smooth-l1-loss": ("smooth L1 loss", "SmoothL1 损失"),
    "kl-divergence": ("KL divergence", "KL 散度"),
    "gaussian-nll": ("Gaussian NLL", "高斯 NLL 损失"),
    "poisson-nll": ("Poisson NLL", "泊松 NLL 损失"),
    "cosine-embedding": ("cosine embedding", "余弦嵌入损失"),
    "triplet-margin": ("triplet margin", "三元组损失"),
    "margin-ranking": ("margin ranking", "间隔排序损失"),
    "hinge-embedding": ("hinge embedding", "合页嵌入损失"),
    "soft-margin": ("soft margin", "软间隔损失"),
    "multi-margin": ("multi margin", "多类间隔损失"),
    "with-setting": ("{0} ({1} {2})", "{0}（{1} 为 {2}）"),
    "per-batch": ("sum / batch size", "总和 / 批大小"),
    "mean-of-counted": ("sum / number of labels that count", "总和 / 有效标签数"),
    "mean-of-all": ("mean over all labels, padding included", "对全部标签（含填充）取均值"),
    "last-summed": ("sum over the last axis, then mean", "先对最后一轴求和，再取均值"),
    "row-means": ("mean of each row, then mean", "先逐行取均值，再取均值"),
    "given": ("given", "已给出"),
    "given-as-weight": ("given as weight", "作为 weight 给出"),
    "smoothing-all": ("{0} / classes on every class", "每一类各得 {0} / 类别数"),
    "smoothing-others": ("{0} / (classes - 1) on the wrong ones", "其余各类各得 {0} /（类别数 - 1）"),
    "of-logits": ("of logits", "作用于 logits"),
    "of-logits-sigmoid": ("of logits, with a sigmoid of its own", "作用于 logits，自带 sigmoid"),
    "of-probabilities": ("of probabilities", "作用于概率"),
    "pupil-temperature": ("The pupil's temperature", "学生一侧的温度"),
    "teacher-temperature": ("The teacher's temperature", "教师一侧的温度"),
    "both-temperatures": ("The temperature", "温度"),
    "variance": ("variance", "方差"),
    "variance-square": ("variance squared", "方差的平方"),
    "variance-root": ("root of the variance", "方差的平方根"),
    "variance-log": ("logarithm of the variance", "方差的对数"),
    "variance-exp": ("exp of the variance", "方差的指数"),
    "labels-signed": ("1 and -1", "1 与 -1"),
    "labels-binary": ("1 and 0", "1 与 0"),
}

_PLACES: Mapping[str, Text] = {
    "along-axis": ("{0} along axis {1}", "沿第 {1} 轴 {0}"),
    "reversed": ("reversed", "倒序"),
    "on-axis": ("axis {0}: {1}", "第 {0} 轴：{1}"),
    "part-of-axis": ("axis {0}: {1} of {2}", "第 {0} 轴：{1}（共 {2}）"),
    "cut-of-axis": ("axis {0} [{1}] of {2}", "第 {0} 轴 [{1}]（共 {2}）"),
    "stretches": ("{0} at {1}-{2}", "{1}-{2} 处为 {0}"),
    "channel-by-channel": ("{0} to {1} (channel by channel)", "{0} 到 {1}（逐通道）"),
    "with-diagonal": ("with diagonal {0}", "含对角线 {0}"),
    "without-diagonal": ("without diagonal {0}", "不含对角线 {0}"),
    "port": ("port", "待比对"),
    "reference": ("reference", "标杆"),
}

_LAYERS: Mapping[str, Text] = {
    "mean": ("mean", "均值"),
    "maximum": ("maximum", "最大值"),
    "adaptive": ("adaptive", "自适应"),
    "disjoint": ("disjoint", "互不重叠"),
    "wide": ("of one size, overlapping", "大小相同且重叠"),
    "divisor-padded": ("the window with its padding", "含填充的窗口大小"),
    "divisor-inside": ("the elements inside", "窗口内的有效元素数"),
    "divisor-window": ("the whole window", "完整窗口大小"),
    "half-pixels": ("{0}, half pixels", "{0}，半像素中心"),
    "corners-aligned": ("{0}, corners aligned", "{0}，角点对齐"),
    "index-times-scale": ("{0}, index times scale", "{0}，下标乘以比例"),
    "scale-from-factor": ("{0}, scale from the factor", "{0}，比例取自 scale_factor"),
    "padding-order": ("{0}, {1}", "{0}，{1}"),
    "last-axis-first": ("last axis first", "从最后一轴数起"),
    "first-axis-first": ("first axis first", "从第一轴数起"),
    "ends-exchanged": ("before and after exchanged", "前后颠倒"),
    "both-biases": ("both", "两者"),
    "no-bias": ("none", "无"),
    "merged-biases": ("their sum", "两者之和"),
    "tanh-of-cpu": ("tanh as MindSpore has it on the CPU", "MindSpore CPU 上的 tanh"),
    "largest-number": ("the largest number", "其余数中的最大值"),
    "zero-beside": ("0 beside it", "0"),
    "numbers-beside": ("numbers beside it", "数值"),
}

PHRASES: Mapping[str, Text] = {**_ATTENTION, **_SHORT, **_LOSSES, **_PLACES, **_LAYERS}


def said(fact: Any, side: int) -> Any:
    """A fact as sentences take it: phrases in the language of that `side` of a Text, all else as it stands."""
    if isinstance(fact, tuple):
        return ("; ", "；")[side].join(str(said(each, side)) for each in fact)
    if not isinstance(fact, Phrase):
        return fact
    return PHRASES[fact.id][side].format(*(said(part, side) for part in fact.parts))
