"""What a report says of the line of the port's code that is not the reference's, in English and Chinese."""

from __future__ import annotations

LINE: dict[str, tuple[str, str]] = {
    "label-line": ("line", "代码行"),
    "label-there": ("there", "标杆行"),
    "line-nowhere": ("nothing", "无"),
    "line-unknown": ("a line", "某行"),
    "line-span": ("{start} to {end}", "{start} 至 {end}"),
    "line-other": (
        "this line makes the first value that the reference has nowhere, from values that both have",
        "该行的结果是第一个标杆中没有的值，而所用的值两边都有",
    ),
    "line-argument": (
        "{operation} is given {theirs}, in the reference {ours}: what it makes is the first value that the reference"
        " has nowhere",
        "{operation} 取 {theirs}，标杆取 {ours}：其结果是第一个标杆中没有的值",
    ),
    "line-operand": (
        "this line takes another value than the reference's does; both sides have either",
        "该行所取的值与标杆不同，这些值两边都有",
    ),
    "line-given": (
        "this line works on a value that the reference has nowhere and that no operation before it made",
        "该行所用的值在标杆中没有，也不是此前任何算子的结果",
    ),
    "line-missing": (
        "up to this line the values are the reference's; what the reference does in its line is missing",
        "到该行为止的值与标杆一致，缺少标杆那一行的计算",
    ),
    "line-extra": (
        "this line makes a value that the reference has nowhere, and has nothing in the place of",
        "该行的结果在标杆中没有，标杆也没有对应的计算",
    ),
    "line-elsewhere": (
        "what this line makes is taken, where the reference takes what its line makes; the port has both",
        "取了该行的结果，而标杆取的是其对应行的结果；待比对两者都有",
    ),
    "line-handed": (
        "this line hands on a value as it came into this code, where the reference hands on another",
        "该行把进入这段代码的值原样传出，而标杆传出的是另一个值",
    ),
    "line-between": (
        "the mistake is in one of these lines: before them the values are the reference's",
        "错误在这些行之一：此前的值与标杆一致",
    ),
    "line-first": (
        "no edit puts it right; most likely it is this line, behind which right values are wrong. Beside it stands the"
        " reference's first line whose result the port has nowhere",
        "未找到能改正的修改；最可能出错的是这一行：正确的值在此之后变错。旁边是标杆中第一处结果为待比对所缺的代码行",
    ),
}
