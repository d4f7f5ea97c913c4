"""What a report says of the search for causes, in English and Chinese: nothing found, and where its limit is."""

from __future__ import annotations

SEARCH: dict[str, tuple[str, str]] = {
    "cause-none": ("not known: no known mistake fits", "未知：不符合任何已知错误"),
    "cause-none-same": (
        "not known: no setting differs and no known mistake fits",
        "未知：设置没有差异，也不符合任何已知错误",
    ),
    "cause-refuted": (
        "not known: with these settings put right the error stays",
        "未知：改正这些设置后误差依旧",
    ),
    "label-left": ("left", "未查"),
    "untried": ("the search came to its limit; not looked through: {topics}", "查找已达上限，尚未查完：{topics}"),
    "untried-numbers": ("its numbers", "其数值"),
    "untried-whole": ("all of the value, which is very large: a part of it was", "整个张量：因其很大，只查看了一部分"),
    "untried-inputs": ("what relates the inputs", "输入之间的关系"),
    "untried-guesses": ("what relates the two values", "两个值之间的关系"),
    "untried-layers": ("what a layer may compute otherwise", "层的其他算法"),
    "comma": (", ", "、"),
    "family-like": (
        "{count} of them by the same line alone: nothing was looked for in their numbers",
        "其中 {count} 处仅凭同一行代码认定：未在其数值中查找",
    ),
}
