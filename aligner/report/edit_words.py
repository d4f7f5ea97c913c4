"""What a report says of an edit that was proved, in English and Chinese."""

from __future__ import annotations

EDITS: dict[str, tuple[str, str]] = {
    "label-edit": ("change", "修改"),
    "edit-proof": (
        "the line was run so: the error as a whole falls from {before} to {after}: confirmed",
        "已按此运行该行：整体误差从 {before} 降至 {after}：已证实",
    ),
    "edit-sizes": (
        "{sizes} is a size of this input: write what it comes from where another input may have another",
        "{sizes} 是当前输入的尺寸：若输入尺寸可能变化，请改写为其来源",
    ),
    "edit-broken-setting": (
        "only here: the same line builds {layers}, which are not to have this; what is wrong is what it is given",
        "仅限此处：同一行还构造了 {layers}，它们不应如此设置；应当修改的是传给它的内容",
    ),
    "edit-broken": (
        "only here: the same lines are right in {layers}; what is wrong is what decides there (a setting, an if)",
        "仅限此处：同样的代码行在 {layers} 中是正确的，应当修改的是决定其分支的内容（某个设置或 if）",
    ),
}
