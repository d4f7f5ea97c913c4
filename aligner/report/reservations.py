"""What an answer adds to its sentence where less was compared than it seems, in English and Chinese."""

from __future__ import annotations

RESERVATIONS: dict[str, tuple[str, str]] = {
    "answer-suspects": (
        "; but {count:place} wrong by far more than rounding, see the warnings",
        "；但有 {count} 处的误差远大于舍入误差，见警告",
    ),
    "answer-casts": (
        "; but {count:place} in a short type where the reference is not, see the warnings",
        "；但有 {count} 处使用了短类型而标杆没有，见警告",
    ),
    "answer-moved": (
        "{pairs:pair} within {tolerance}; from step {step} on {count:record} differ, but {whose} weights were changed "
        "after they were recorded: no layer is judged by them",
        "{pairs} 对在容差 {tolerance} 内；从第 {step} 步起有 {count} 条记录不同，"
        "但{whose}权重在记录之后被修改，因此不据此判断任何层",
    ),
    "answer-moved-too": (
        "; from step {step} on no layer is judged: {whose} weights were changed after they were recorded",
        "；从第 {step} 步起不判断任何层：{whose}权重在记录之后被修改",
    ),
    "whose-both": ("both nets'", "两侧的"),
    "whose-reference": ("the reference's", "标杆的"),
    "whose-port": ("the port's", "待比对网络的"),
    "answer-left": (
        "; {count:step} not compared, whose weights were changed after they were recorded",
        "；另有 {count} 步未比对，其权重在记录之后被修改",
    ),
    "answer-no-finite": (
        "; but {count:pair} hold no finite number, only NaN or Inf: nothing was compared there",
        "；但有 {count} 对数据不含任何有限数值，只有 NaN 或 Inf：该处没有进行比对",
    ),
    "answer-no-element": ("; but all of them are empty: nothing was compared", "；但全部为空：没有进行比对"),
    "answer-output-zero": (
        "; but the net's outputs are zero everywhere on both sides",
        "；但两侧网络的输出处处为零",
    ),
    "answer-whole": (", all of whole numbers or truth values", "，全部为整数或布尔值"),
}
