"""What comparing trainings has to say: which steps, whose weights and nets, resumed runs."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "other-nets": (
        "These nets ran beside the one that was captured: {names}. What the loss makes of them was not judged, nor were "
        "their own gradients and updates.\nCapture each with --model NAME.",
        "另有网络与所采集的网络一同运行：{names}。损失中由它们得到的部分以及它们自身的梯度与更新均未作判断。\n"
        "请用 `--model NAME` 分别采集。",
    ),
    "from-step-untrained": (
        "--from-step tells where a training was resumed, and {reference} and {port} are not two trainings that ran freely.\n"
        "Capture both with --gradients, and the second one without --from.",
        "--from-step 用于指定续训的起点，而 {reference} 与 {port} 并非两次独立运行的训练。\n"
        "请用 --gradients 采集两次训练，且第二次不要使用 --from。",
    ),
    "from-step-unknown": (
        "{reference} has no step {step}; its steps are 0 to {last}.\nGive --from-step one of these.",
        "{reference} 中没有第 {step} 步；其步骤为 0 到 {last}。\n请为 --from-step 指定其中之一。",
    ),
    "resumed-at-end": (
        "{port} begins with the parameters that {reference} ends with, behind its {steps} steps: no step is in both.\n"
        "Capture more --steps of the whole run, or resume it from an earlier checkpoint.",
        "{port} 开始时的参数是 {reference} 全部 {steps} 步结束后的参数：两者没有共同的步骤。\n"
        "请为完整训练采集更多 --steps，或从更早的检查点继续。",
    ),
    "resumed-several": (
        "The steps {step}, {others} begin with the same parameters; {step} was taken.\n"
        "If it is another one, give it with --from-step.",
        "第 {step}、{others} 步开始时的参数相同；此处取第 {step} 步。\n如果应为其他步骤，请用 --from-step 指定。",
    ),
    "resumed-longer": (
        "The resumed run has {count} steps more than the whole one: {steps} were compared.\n"
        "Capture more --steps of the whole run to compare the others.",
        "续训比完整训练多 {count} 步：只比对了 {steps} 步。\n如需比对其余各步，请为完整训练采集更多 --steps。",
    ),
    "resumed-nowhere": (
        "{port} is of the same program and begins with the parameters of none of the {steps} steps of {reference}; the "
        "nearest is step {step}.\nIf it was resumed, its parameters were not loaded: give --from-step N.",
        "{port} 来自同一程序，但其开始时的参数不属于 {reference} 的 {steps} 步中的任何一步；最接近的是第 {step} 步。\n"
        "如果这是续训，则参数未加载：请用 --from-step N 指定起点。",
    ),
    "untrained": (
        "{path} was captured without gradients and updates, which the other side has: they are not compared.\n"
        "Capture it again with --gradients, the port with --from as well.",
        "{path} 采集时不含梯度与更新，而另一侧含有：未作比对。\n请加上 `--gradients` 重新采集（待比对网络同时使用 `--from`）。",
    ),
    "training-differs": (
        "The nets ran in other modes: training is {reference} in the reference, {port} in the port.\n"
        "Capture both with --eval or both with --train.",
        "两个网络的运行模式不同：标杆的 training 为 {reference}，待比对为 {port}。\n请都用 --eval 或都用 --train 采集。",
    ),
    "eps-under-root": (
        "MindSpore's RMSProp adds its epsilon under the root (its CPU kernel in the last elements of each tensor alone), torch's outside of it:\n"
        "{eps} acts as {acts} would. Where gradients are small, {count} parameters move less for it, first {first}; no setting makes up for that.",
        "MindSpore 的 RMSProp 在根号内加 epsilon（其 CPU 算子仅对每个张量的末尾元素如此），torch 在根号外：{eps} 的作用相当于 {acts}。\n"
        "梯度较小处有 {count} 个参数因此更新偏小，首先是 {first}；没有可抵消此差异的设置。",
    ),
}
