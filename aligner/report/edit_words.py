"""What a report says of an edit that was proved, in English and Chinese."""

from __future__ import annotations

EDITS: dict[str, tuple[str, str]] = {
    "label-edit": ("change", "修改"),
    "label-wrong": ("also wrong", "仍错"),
    "edit-proof": (
        "the line was run so: the error as a whole falls from {before} to {after}: confirmed",
        "已按此运行该行：整体误差从 {before} 降至 {after}：已证实",
    ),
    "edit-proof-whole": (
        "the line was run so: what this code hands on is right then (error {after}): confirmed",
        "已按此运行该行：此代码的输出随即正确（误差 {after}）：已证实",
    ),
    "edit-sizes": (
        "{sizes} is a size of this input: write what it comes from where another input may have another",
        "{sizes} 是当前输入的尺寸：若输入尺寸可能变化，请改写为其来源",
    ),
    "edit-unseen": (
        "not run: {calls}, whose objects hold what this code has made before; capture again with the change",
        "未运行：{calls}，其对象中存有这段代码先前的结果；请修改后重新采集",
    ),
    "edit-left": (
        "{values}, with the change as well: this code has another mistake, for which no change was found",
        "修改后仍然错误的还有 {values}：此代码另有一处错误，尚未找到对应修改",
    ),
    "edit-broken-setting": (
        "only here: the same line builds {layers}, which are not to have this; what is wrong is what it is given",
        "仅限此处：同一行还构造了 {layers}，它们不应如此设置；应当修改的是传给它的内容",
    ),
    "edit-broken": (
        "only here: {layers} run the same lines, and would not be right so; what is wrong is what decides there",
        "仅限此处：{layers} 也运行同样的代码行，如此修改则不正确；应当修改的是决定其结果的内容",
    ),
}
