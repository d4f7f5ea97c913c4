"""Causes of gradients that are another where all values agree, read from both sides' gradients."""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_NOTHING = ("", "")

GRADIENTS: tuple[Entry, ...] = (
    Entry(
        "gradient-cut",
        (
            "No gradient comes back to {layer} {slot}: it is cut off in what is made of it",
            "{layer} 的 {slot} 没有梯度传回：在使用它的代码中被截断",
        ),
        ("The reference's has a norm of {norm}", "标杆的梯度范数为 {norm}"),
        (
            "Look behind {layer} for ops.stop_gradient, asnumpy, a Tensor made anew, or requires_grad=False",
            "检查 {layer} 之后是否有 `ops.stop_gradient`、`asnumpy`、重新构造的 `Tensor` 或 `requires_grad=False`",
        ),
    ),
    Entry(
        "gradient-not-cut",
        (
            "A gradient comes back to {layer} {slot}, which the reference cuts off (detach, no_grad)",
            "{layer} 的 {slot} 有梯度传回，而标杆将其截断（`detach`、`no_grad`）",
        ),
        ("It has a norm of {norm}, the reference's is zero", "其范数为 {norm}，标杆为零"),
        ("Put ops.stop_gradient around it where the reference cuts it off", "在标杆截断处使用 `ops.stop_gradient`"),
    ),
    Entry(
        "gradient-rows-not-left-out",
        (
            "Rows {rows} of {layer} {slot} get a gradient, which the reference leaves out (padding_idx)",
            "{layer} 的 {slot} 的第 {rows} 行有梯度，而标杆不计其梯度（`padding_idx`）",
        ),
        ("All other rows agree", "其余各行一致"),
        (
            "Multiply what the table gives by 0 where the index is one of these: nn.Embedding's padding_idx only sets "
            "the row to zero at the beginning",
            "索引为这些行时，将查表结果乘以 0：`nn.Embedding` 的 `padding_idx` 只在初始化时将该行置零",
        ),
    ),
    Entry(
        "gradient-branch-cut",
        (
            "What comes back to {layer} {slot} lacks the gradient of {branch}: that branch is cut off",
            "传回 {layer} 的 {slot} 的梯度缺少来自 {branch} 的部分：该分支被截断",
        ),
        ("The reference's is the port's and that of {branch}", "标杆的梯度等于待比对的梯度加上 {branch} 的梯度"),
        ("Take out the ops.stop_gradient before {branch}", "去掉 {branch} 之前的 `ops.stop_gradient`"),
    ),
    Entry(
        "gradient-branch-not-cut",
        (
            "What comes back to {layer} {slot} has the gradient of {branch} besides, which the reference cuts off "
            "(detach)",
            "传回 {layer} 的 {slot} 的梯度多出来自 {branch} 的部分，而标杆截断了该分支（`detach`）",
        ),
        ("The port's is the reference's and that of {branch}", "待比对的梯度等于标杆的梯度加上 {branch} 的梯度"),
        ("Put ops.stop_gradient before {branch}", "在 {branch} 之前使用 `ops.stop_gradient`"),
    ),
    Entry(
        "gradient-times",
        (
            "The gradient that comes back to {layer} {slot} is {factor} times the reference's, while all values agree",
            "传回 {layer} 的 {slot} 的梯度为标杆的 {factor} 倍，而所有值一致",
        ),
        _NOTHING,
        (
            "Look behind {layer} for a bprop of its own, a factor in the backward run, or a part that is cut off",
            "检查 {layer} 之后是否有自定义的 `bprop`、反向计算中的系数，或被截断的部分",
        ),
    ),
    Entry(
        "gradient-path-differs",
        (
            "The values agree and the gradient that comes back to {layer} {slot} does not: one side cuts off (detach, "
            "stop_gradient) what the other one differentiates",
            "各值一致，而传回 {layer} 的 {slot} 的梯度不同：一侧截断（`detach`、`stop_gradient`）了另一侧求导的部分",
        ),
        _NOTHING,
        (
            "Compare what stands behind {layer}: ops.stop_gradient there, detach or no_grad in the reference, and any "
            "bprop",
            "对照 {layer} 之后的代码：待比对的 `ops.stop_gradient` 与标杆的 `detach`、`no_grad`，以及自定义的 `bprop`",
        ),
    ),
)
