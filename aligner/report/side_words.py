"""The phrases of what only one side gives, and of how layers and values were paired."""

from __future__ import annotations

SIDES: dict[str, tuple[str, str]] = {
    "answer-outputs-lacking": ("; the port does not give {slots}", "；待比对网络未给出 {slots}"),
    "answer-outputs-unseen": (
        "; of what the reference returns this could not be looked into: {kinds}",
        "；标杆的返回值中有无法查看的内容：{kinds}",
    ),
    "answer-outputs-order": ("; the outputs stand in another order ({slots})", "；输出的顺序不同（{slots}）"),
    "answer-outputs-arranged": (
        "; the outputs stand in another arrangement: compared without their places",
        "；输出的排列方式不同：未比对其位置",
    ),
    "answer-other-nets": (
        "; the loss is off and was not judged, for other nets ran too: {names}",
        "；损失有偏差但未作判断，因为还有其他网络一同运行：{names}",
    ),
    "answer-outputs-none": (
        "the port gives none of the reference's outputs; inside, {pairs:pair} within {tolerance}",
        "待比对网络未给出标杆的任何输出；内部 {pairs} 对均在容差 {tolerance} 内",
    ),
    "by-replay": ("{count} by weights", "按权重 {count}"),
    "by-values": ("{count} by values", "按数值 {count}"),
    "covered-count": (
        "{count:record} without such a layer on the other side: {ways}",
        "{count} 条记录在另一侧没有对应的层：{ways}",
    ),
    "covered-by-value": (
        "{count} compared by value elsewhere ({layers})",
        "{count} 条的数值已在别处比对（{layers}）",
    ),
    "origins-left": (
        "; {count:layer} could not take the reference's values: {layers}",
        "；{count} 层无法接受标杆的数值：{layers}",
    ),
    "covered-by-effect": ("{count} by effect", "{count} 条的影响已比对"),
}
