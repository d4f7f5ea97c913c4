"""What an answer says first where a net stopped with an exception, in English and Chinese."""

from __future__ import annotations

STOPS: dict[str, tuple[str, str]] = {
    "answer-stopped": ("the {side} stopped in {place}{step}: {error}", "{side}在 {place} 中停止{step}：{error}"),
    "answer-stopped-both": (
        "both nets stopped in {place}{step}: the port with {port}; the reference with {reference}",
        "两个网络都在 {place} 中停止{step}：待比对为 {port}；标杆为 {reference}",
    ),
    "label-stopped": ("stopped", "已停止"),
    "stopped-in": ("in {place}: {error}", "在 {place} 中：{error}"),
    "stopped-step": (" in step {step}", "（第 {step} 步）"),
    "stopped-at": ("{error} at {line}", "{error}，位于 {line}"),
    "stopped-late": (
        "{error} at {line}, or in a line before it: kernels report late",
        "{error}，位于 {line} 或其之前的行（算子延迟报错）",
    ),
    "stopped-caught": ("an exception that the program caught", "一个被程序捕获的异常"),
    "before-stop": ("; what ran before: {judgement}", "；此前的运行：{judgement}"),
    "before-stop-nothing": ("; nothing was compared before", "；此前没有可比对的内容"),
    "label-not-run": ("not run", "未运行"),
    "not-run-count": (
        "{count:record} of {layers:layer} of the {side}, the first {first}: the {stopped} had stopped",
        "{side}中 {layers} 层的 {count} 条记录，首个为 {first}：{stopped}已停止",
    ),
    "outcome-not_run": ("not run", "未运行"),
}
