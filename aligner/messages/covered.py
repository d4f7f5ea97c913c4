"""Why a record without such a layer on the other side, or in another form, is no mistake."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, str]] = {
    "covered-elsewhere": (
        "The same value was compared as {slot} of {layer}.",
        "同一数值已作为 {layer} 的 {slot} 比对。",
    ),
    "covered-inside": (
        "It lies inside {layer}, which is one piece on the other side and was compared as a whole.",
        "它位于 {layer} 内部；该层在另一侧是一个整体，已整体比对。",
    ),
    "covered-children": (
        "It only holds layers that were all compared.",
        "它只是容器，其中的各层均已比对。",
    ),
    "covered-around": (
        "What {layer} goes on with behind it agrees, and it holds no weights or has another structure.",
        "{layer} 在其后使用的数值一致；它没有权重，或仅结构不同。",
    ),
    "covered-loss": (
        "A training script tells of no label; what the loss is given of the net was compared.",
        "训练脚本不提供标签信息；损失从网络得到的输入已比对。",
    ),
    "covered-data": (
        "The port's labels are those of its own data, which are others in this step.",
        "待比对网络使用自己数据的标签，而该步的数据与标杆不同。",
    ),
    "covered-share": (
        "The port's loss is wrong, so it cannot be told by how many batches it is divided; this is off by that alone.",
        "待比对网络的损失有误，无法判断其按几个批次平均；此处的偏差仅由此而来。",
    ),
    "covered-untrained": (
        "Only one side was captured with its gradients and updates.",
        "只有一侧采集了梯度与更新。",
    ),
    "covered-fewer": (
        "One side's optimizer lacks parameters, and the norm that all gradients are clipped to falls to the others.",
        "一侧的优化器缺少部分参数，整体裁剪的范数由其余参数分摊。",
    ),
    "covered-others": (
        "Another net ran beside this one and was not held to the reference's: the loss may be made of what it hands on.",
        "另有网络与之一同运行，且未与标杆对齐：损失可能由其输出算得。",
    ),
    "covered-unused": (
        "No update was made of these gradients: some of them are not finite.",
        "这些梯度中含有 NaN 或 Inf，未用于更新。",
    ),
    "covered-summed": (
        "The port differentiates the sum of the step's losses, and that was compared.",
        "待比对网络对该步各损失之和求导；已按总和比对。",
    ),
    "covered-called": (
        "The other side's net is not called here; the gradients of its parameters were compared.",
        "另一侧的网络未在此处被调用；其参数的梯度已比对。",
    ),
    "covered-unmoved": (
        "No optimizer moves this parameter in this step.",
        "该步没有优化器更新此参数。",
    ),
    "covered-behind": (
        "The other side's net was not called again: what its program made of this meanwhile is not known.",
        "另一侧的网络之后未再被调用：其程序在此期间的修改未知。",
    ),
    "covered-unreached": (
        "This layer hands no gradients on, and those of its parameters agree.",
        "该层不再向前传递梯度，而其参数的梯度一致。",
    ),
    "covered-apart": (
        "The port's steps are made of other batches from here on; with the data as the reference has them this is judged.",
        "从该步起，待比对网络各步由不同的批次构成；数据与标杆一致后再作判断。",
    ),
    "covered-kept": (
        "Only one side's optimizer keeps this; what it makes of that shows in the parameter, which was compared.",
        "只有一侧的优化器保存此量；其作用体现在参数中，而参数已比对。",
    ),
    "covered-output": (
        "Only one side passes this argument, and the outputs of {layer} agree.",
        "只有一侧传入了该参数，而 {layer} 的输出一致。",
    ),
    "covered-counter": (
        "{role} only counts; no result depends on it.",
        "{role} 只用于计数，不影响任何结果。",
    ),
    "covered-idle": (
        "{layer} never ran; no value depends on this parameter.",
        "{layer} 从未运行；没有任何值依赖该参数。",
    ),
    "covered-constant": (
        "A constant that one side stores and the other works out anew; what {layer} does with it was compared.",
        "该常量一侧直接存储，另一侧重新计算；{layer} 使用它得到的结果已比对。",
    ),
    "covered-mask": (
        "Both hide the same places, written as different numbers far below zero; the other values agree.",
        "两侧屏蔽的位置相同，只是所用的极小负数不同；其余数值一致。",
    ),
    "covered-border": (
        "{port_layer} begins or ends elsewhere than {layer}: the same value was compared as {slot} of {user}.",
        "{port_layer} 与 {layer} 的起止位置不同：同一数值已作为 {user} 的 {slot} 比对。",
    ),
    "covered-border-effect": (
        "{port_layer} ends elsewhere than {layer}: what the nets make of it behind that agrees.",
        "{port_layer} 与 {layer} 的结束位置不同：两侧其后由它得到的数值一致。",
    ),
    "covered-imported": (
        "Operators do not tell which value of {layer} this is, and its shape is another one; the layers inside were compared.",
        "算子无法说明这是 {layer} 的哪个数据，且其形状不同；其内部各层已比对。",
    ),
    "covered-folded": (
        "The port has {layer} folded into the layer before it; what both of them make was compared.",
        "待比对网络已将 {layer} 折叠进前一层；两层合起来的结果已比对。",
    ),
    "covered-unread": (
        "{count} of {total} elements differ, and nothing that the net hands on is made of them.",
        "{total} 个元素中有 {count} 个不同，但整网的输出不由它们得到。",
    ),
    "covered-argument": (
        "The sides pass this argument in different forms; everything inside {layer} and its outputs agree.",
        "两侧传入该参数的形式不同；{layer} 内部的数值及其输出均一致。",
    ),
    "covered-border-held": (
        "{layer} ends at another value than its counterpart. Made of the reference's values it is right, and so is what the "
        "port makes of it.",
        "{layer} 与其对应层的输出边界不同。以标杆数据作输入时，该数据及其后续结果均正确。",
    ),
}
