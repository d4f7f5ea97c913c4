"""Words for the stages of training steps: the table of steps, and what went wrong in which."""

from __future__ import annotations

STAGES: dict[str, tuple[str, str]] = {
    "step-number": ("step", "步"),
    "step-data": ("data", "数据"),
    "step-loss": ("loss", "损失"),
    "step-norm": ("grad norm", "梯度范数"),
    "step-rate": ("lr", "学习率"),
    "step-sides": ("ref | port", "标杆 | 待比对"),
    "step-first": ("first that is wrong", "最先出错处"),
    "step-same": ("same", "相同"),
    "step-other": ("other", "不同"),
    "step-folded": ("{count} steps, nothing is wrong", "共 {count} 步，均一致"),
    "step-skipped": ("skipped", "跳过"),
    "step-none": ("no steps of a training", "没有训练步"),
    "step-curve": (
        "loss and norm of the gradients over the steps, reference and port",
        "各步的损失与梯度范数：标杆与待比对",
    ),
    "step-left-out": ("the same on both sides, not shown: {names}", "两侧相同，未列出：{names}"),
    "step-inherited": ("(inherited: {count:value})", "（受前面影响：{count} 个值）"),
    "step-at-forward": ("forward: {place}", "前向：{place}"),
    "step-at-backward": ("backward: {place}", "反向：{place}"),
    "step-at-gradient": ("gradient: {place}", "梯度：{place}"),
    "step-at-loss": ("loss", "损失"),
    "step-at-clip": ("gradient: {place}", "梯度：{place}"),
    "step-at-update": ("update: {place}", "更新：{place}"),
    "step-at-data": ("data: {place}", "数据：{place}"),
    "step-at-parameter": ("parameter: {place}", "参数：{place}"),
    "answer-data": (
        "step {step}: the port's own data are others (first: {layer} {slot})",
        "第 {step} 步：待比对网络自己的数据不同（首个：{layer} {slot}）",
    ),
    "answer-loss": (
        "step {step}: the loss is wrong, what it is given of the net agrees",
        "第 {step} 步：损失有误，而它从网络得到的输入一致",
    ),
    "answer-loss-gradient": (
        "step {step}: the loss agrees, the gradient that comes back from it is wrong",
        "第 {step} 步：损失一致，而从损失传回的梯度有误",
    ),
    "answer-update": (
        "step {step}: {count} of {total} parameters are wrong after the update (first: {layer} {slot})",
        "第 {step} 步：更新后 {total} 个参数中有 {count} 个有误（首个：{layer} {slot}）",
    ),
    "answer-clip": (
        "step {step}: {count} of {total} gradients are wrong before the update (first: {layer} {slot})",
        "第 {step} 步：更新前 {total} 个梯度中有 {count} 个有误（首个：{layer} {slot}）",
    ),
    "origin-head-data": ("the data", "数据"),
    "origin-data": (
        "the port's own batch is another one: {slot} {off}; the rest of the step was judged on the reference's",
        "待比对网络自己的批次不同：{slot} {off}；该步其余部分均在标杆的批次上判断",
    ),
    "origin-head-loss": ("the loss", "损失"),
    "origin-head-clip": ("the gradients between the backward run and the optimizer", "反向计算与优化器之间的梯度"),
    "origin-head-update": ("the update", "参数更新"),
    "origin-loss": (
        "wrong by itself: {slot} {off}, what the loss is given agrees",
        "损失自身有误：{slot} {off}，而输入损失的值一致",
    ),
    "origin-clip": (
        "{count} gradients are wrong when the optimizer gets them: {slot} {off}, those of the backward runs agree",
        "交给优化器的 {count} 个梯度有误：{slot} {off}，而反向计算得到的梯度一致",
    ),
    "origin-update": (
        "{count} parameters are wrong after it: {slot} {off}, what it begins with agrees",
        "更新后 {count} 个参数有误：{slot} {off}，而更新前的值一致",
    ),
    "in-steps": ("in steps {steps}", "出现于步骤 {steps}"),
}
