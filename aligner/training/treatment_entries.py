"""Causes that lie between the backward run and the optimizer: gradients that are scaled, clipped, summed, exchanged or
left out.

`ours` is the reference's way, as a phrase.
"""

from __future__ import annotations

from aligner.explain.catalogue.entry import Entry

_OURS = ("The reference {ours}", "标杆{ours}")
_FACTOR = (
    "All gradients are {factor} times the reference's; that {ours}",
    "全部梯度为标杆的 {factor} 倍；标杆{ours}",
)

TREATMENT: tuple[Entry, ...] = (
    Entry(
        "gradient-scaled",
        (
            "All gradients are {factor} times the reference's when the optimizer gets them",
            "交给优化器的梯度全部为标杆的 {factor} 倍",
        ),
        ("The backward runs' own agree; the reference {ours}", "反向计算本身得到的梯度一致；标杆{ours}"),
        (
            "Look for a factor between the backward run and the optimizer",
            "检查反向计算与优化器之间多出的系数",
        ),
    ),
    Entry(
        "grad-accumulation-mean-vs-sum",
        (
            "The gradients of {batches} batches are added up on one side, and their mean is taken on the other",
            "一侧将 {batches} 个批次的梯度相加，另一侧取其平均",
        ),
        _FACTOR,
        (
            "Divide what is accumulated by {batches}, or do not, as the reference does",
            "按标杆的做法决定是否将累积的梯度除以 {batches}",
        ),
    ),
    Entry(
        "loss-scale-not-removed",
        (
            "The gradients still carry the loss scale {scale} when the optimizer gets them",
            "交给优化器的梯度仍带有损失缩放系数 {scale}",
        ),
        _FACTOR,
        (
            "Divide them by the loss scale before clipping and before the update",
            "在裁剪和更新之前除以损失缩放系数",
        ),
    ),
    Entry(
        "loss-scale-clip-before-unscale",
        (
            "The gradients are clipped to a norm of {norm} before the loss scale {scale} is removed",
            "在去除损失缩放系数 {scale} 之前，就将梯度裁剪到范数 {norm}",
        ),
        _FACTOR,
        ("Remove the loss scale first, then clip", "先去除损失缩放，再裁剪"),
    ),
    Entry(
        "gradients-untreated",
        (
            "The optimizer gets the gradients as the backward runs made them, the reference's gets others",
            "优化器得到的是反向计算的原始梯度，而标杆的优化器得到的是处理过的梯度",
        ),
        ("Their norm is {norm}, the reference's {wanted}: it {ours}", "其范数为 {norm}，标杆为 {wanted}：标杆{ours}"),
        (
            "Look for what the reference does behind the backward run: clipping, a division, a mean",
            "检查标杆在反向计算之后做了什么：裁剪、除法或求平均",
        ),
    ),
    Entry(
        "clip-global-norm",
        (
            "The norm of all gradients is {norm} when the optimizer gets them, the reference's is {wanted}",
            "交给优化器的全部梯度范数为 {norm}，标杆为 {wanted}",
        ),
        ("That of the backward run is {raw}; the reference {ours}", "反向计算得到的范数为 {raw}；标杆{ours}"),
        ("Clip to the reference's norm, or not at all as it does", "按标杆的范数裁剪；若标杆不裁剪则不要裁剪"),
    ),
    Entry(
        "clip-per-tensor-vs-global",
        (
            "Each parameter's gradient is scaled by a factor of its own, the reference's all by one",
            "每个参数的梯度各有自己的缩放系数，标杆全部使用同一个",
        ),
        ("Factors from {least} to {most}; the reference {ours}", "系数从 {least} 到 {most}；标杆{ours}"),
        (
            "Clip all together, by the norm of all gradients, and not each by its own",
            "按全部梯度的范数整体裁剪，而不是逐个裁剪",
        ),
    ),
    Entry(
        "clip-value-vs-norm",
        (
            "Single elements of the gradients are cut off at {bound}",
            "梯度的个别元素被截断在 {bound}",
        ),
        _OURS,
        (
            "Clip by the norm of all gradients as clip_grad_norm_ does, and not by value as clip_grad_value_",
            "按全部梯度的范数裁剪（同 clip_grad_norm_），而不是按数值裁剪（同 clip_grad_value_）",
        ),
    ),
    Entry(
        "gradients-of-some-batches",
        (
            "The update gets the gradient of batch {which} of {batches} alone",
            "更新只得到 {batches} 个批次中第 {which} 个的梯度",
        ),
        ("The reference adds all of them up, and {ours}", "标杆将其全部相加，并{ours}"),
        ("Add the gradients up until the update, and set them to zero behind it", "在更新之前累加梯度，更新之后再清零"),
    ),
    Entry(
        "update-not-skipped",
        (
            "The gradients are not finite and the port updates with them all the same, the reference skips this update",
            "梯度含有 NaN 或 Inf，待比对一侧仍用其更新参数，而标杆跳过了这次更新",
        ),
        ("The loss scale has made them overflow", "损失缩放使其溢出"),
        (
            "Update only if all gradients are finite (`amp.all_finite`), and lower the loss scale otherwise",
            "仅当全部梯度有限（`amp.all_finite`）时才更新，否则降低损失缩放系数",
        ),
    ),
    Entry(
        "update-skipped",
        (
            "The port makes no update in this step, the reference does",
            "待比对一侧在本步没有更新参数，而标杆更新了",
        ),
        ("Some gradient of the backward run is not finite in the port", "待比对一侧反向计算得到的梯度含有 NaN 或 Inf"),
        (
            "Look for a loss scale that is larger than the reference's, or for NaN in the loss",
            "检查损失缩放系数是否大于标杆，或损失中是否出现 NaN",
        ),
    ),
    Entry(
        "gradients-not-zeroed",
        (
            "Gradients of {steps} earlier steps are still in those of this one: they are not set to zero",
            "本步的梯度中仍含有之前 {steps} 步的梯度：未清零",
        ),
        _OURS,
        ("Set what is accumulated to zero behind each update", "每次更新之后将累积的梯度清零"),
    ),
    Entry(
        "clip-per-batch",
        (
            "Each batch has a factor of its own before the gradients are summed: {factors} (clipped one by one)",
            "各批次的梯度在求和之前各乘一个因子：{factors}（逐批裁剪）",
        ),
        _OURS,
        ("Clip once, what all batches of an update have made together", "对一次更新的所有批次之和只裁剪一次"),
    ),
    Entry(
        "gradients-crossed",
        (
            "{parameters} get each other's gradients",
            "{parameters} 互换了梯度",
        ),
        _OURS,
        (
            "Give the optimizer the gradients in the order of its parameters",
            "按优化器参数的顺序传入梯度",
        ),
    ),
)
