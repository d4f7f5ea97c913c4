"""Every phrase a report uses, in English and Chinese. Errors and cautions stand in `aligner.messages`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from aligner.messages import LANGUAGES, catalogue, said
from aligner.report.edit_words import EDITS
from aligner.report.line_words import LINE
from aligner.report.lines import printable
from aligner.report.reservations import RESERVATIONS
from aligner.report.search_words import SEARCH
from aligner.report.side_words import SIDES
from aligner.report.stage_words import STAGES
from aligner.report.stop_words import STOPS

WORDS: dict[str, tuple[str, str]] = {
    **EDITS,
    **RESERVATIONS,
    **SIDES,
    **STAGES,
    **STOPS,
    # the answer
    "aligned": ("ALIGNED", "一致"),
    "diverged": ("DIVERGED", "超差"),
    "incomparable": ("INCOMPARABLE", "无法比对"),
    "answer-aligned": (
        "{pairs:pair}, largest error {error} (tolerance {tolerance})",
        "共 {pairs} 对，最大误差 {error}（容差 {tolerance}）",
    ),
    "answer-grown": (
        "{pairs:pair}, largest error {error}; {count} over {tolerance} only by rounding that has grown",
        "共 {pairs} 对，最大误差 {error}；其中 {count} 条超过 {tolerance}，但仅由舍入误差逐层放大所致",
    ),
    "answer-none-wrong": ("; no layer errs by itself", "；没有任何一层自身有误"),
    "answer-layer": (
        "first layer over {tolerance}: {layer} ({kind}) {slot}",
        "首个超差层（容差 {tolerance}）：{layer} ({kind}) {slot}",
    ),
    "answer-parameter": (
        "first parameter over {tolerance}: {slot} of {layer} ({kind})",
        "首个超差参数（容差 {tolerance}）：{layer} ({kind}) 的 {slot}",
    ),
    "answer-input": (
        "the nets were given different inputs: {slot}",
        "两个网络的输入不同：{slot}",
    ),
    "answer-nonfinite": (
        "first NaN or Inf on one side only: {layer} ({kind}) {slot}",
        "首个仅一侧出现 NaN 或 Inf 的层：{layer} ({kind}) {slot}",
    ),
    "answer-shapes": (
        "first that cannot be compared: {layer} ({kind}) {slot}",
        "首个无法逐元素比对的层：{layer} ({kind}) {slot}",
    ),
    "answer-unmatched": (
        "{pairs:pair} within {tolerance}, but {count:record} without a counterpart; the first: {layer}",
        "{pairs} 对均在容差 {tolerance} 内，但有 {count} 条记录没有对应项，首个为：{layer}",
    ),
    "answer-ended-port": (
        "{pairs:pair} within {tolerance}; the port's capture ended early in step {step}, and {count:record} of the "
        "reference have no counterpart",
        "{pairs} 对均在容差 {tolerance} 内；待比对的采集在步骤 {step} 提前结束，标杆有 {count} 条记录没有对应项",
    ),
    "answer-ended-reference": (
        "{pairs:pair} within {tolerance}; the reference's capture ended early in step {step}, and {count:record} of "
        "the port have no counterpart",
        "{pairs} 对均在容差 {tolerance} 内；标杆的采集在步骤 {step} 提前结束，待比对有 {count} 条记录没有对应项",
    ),
    "answer-nothing": ("no pair of records could be compared", "没有任何一对记录可以比对"),
    "max-abs": ("max|d| {value}", "最大差值 {value}"),
    "ulp": ("{count} ULP", "{count} ULP"),
    "error": ("error {value}", "误差 {value}"),
    # origins
    "origin": ("origin", "源头"),
    "origins": ("origin {number} of {count}", "源头 {number}/{count}"),
    "origin-layer": (
        "wrong by itself: what goes in agrees ({input}), {slot} {off}",
        "该层自身有误：输入一致（{input}），{slot} {off}",
    ),
    "origin-layer-no-input": (
        "wrong by itself: {slot} {off}, nothing before it does",
        "该层自身有误：{slot} {off}，此前均一致",
    ),
    "origin-head-glue": ("the code of {layer}", "{layer} 的代码"),
    "origin-glue": (
        "not a layer but the code between {before} and {after}: {slot} {off}, what goes in agrees ({input})",
        "并非某一层，而是 {before} 与 {after} 之间的代码有误：{slot} {off}，而进入其中的值一致（{input}）",
    ),
    "origin-layer-forced": (
        "wrong by itself: given the reference's inputs, {slot} {off}{ratio}",
        "该层自身有误：输入标杆的数据时，{slot} {off}{ratio}",
    ),
    "origin-glue-forced": (
        "not a layer but the code between {before} and {after}: given the reference's values, {slot} {off}{ratio}",
        "并非某一层，而是 {before} 与 {after} 之间的代码有误：在标杆的数值上运行时，{slot} {off}{ratio}",
    ),
    "ratio-of-whole": (
        ", as a whole {whole}, which is {count} times what rounding explains",
        "，整体误差 {whole}，为舍入误差所能解释的 {count} 倍",
    ),
    "ratio": (", {count} times what rounding explains", "，为舍入误差所能解释的 {count} 倍"),
    "ratio-many": (", far more than rounding explains", "，远超舍入误差所能解释的范围"),
    "origin-parameters": (
        "wrong before anything runs: the parameter {slot} {off}",
        "运行之前就已不同：参数 {slot} {off}",
    ),
    "origin-inputs": (
        "the nets were not run on the same data: {slot} {off}; run the port with --from",
        "两个网络使用的数据不同：{slot} {off}；请用 --from 运行移植网络",
    ),
    "off-error": ("has an error of {value}", "误差为 {value}"),
    "off-shape": ("has another shape", "形状不同"),
    "off-number": ("is {port} and not {reference}", "为 {port} 而非 {reference}"),
    "off-form": ("has another form", "形式不同"),
    "off-missing": ("is missing in the port", "在待比对网络中不存在"),
    "off-extra": ("is not in the reference", "在标杆中不存在"),
    "off-nonfinite": ("has NaN or Inf on one side only", "仅在一侧出现 NaN 或 Inf"),
    "slot-of": ("{slot} of {layer}", "{layer} 的 {slot}"),
    "own-input": ("its input", "其输入"),
    "own-output": ("its output", "其输出"),
    "nothing-measured": ("not measured", "未测量"),
    "port-layer": ("in the port", "待比对侧"),
    "setting": (
        "{name}: {reference} in the reference, {port} in the port",
        "{name}：标杆为 {reference}，待比对为 {port}",
    ),
    "setting-kind": ("layer", "层类型"),
    "setting-absent": ("not set", "未设置"),
    "settings-same": ("the settings of both layers are the same", "两侧层的设置相同"),
    "worst": (
        "worst by the rule at {index}: reference {reference}, port {port}",
        "按规则误差最大处 {index}：标杆 {reference}，待比对 {port}",
    ),
    "worst-nonfinite": (
        "NaN or Inf on one side first at {index}: reference {reference}, port {port}",
        "首个仅一侧为 NaN 或 Inf 处 {index}：标杆 {reference}，待比对 {port}",
    ),
    "nonfinite-counts": (
        "NaN: {nan_reference} in the reference, {nan_port} in the port; Inf: {inf_reference}, {inf_port}",
        "NaN：标杆 {nan_reference} 个，待比对 {nan_port} 个；Inf：{inf_reference}，{inf_port} 个",
    ),
    "mismatched": ("{count} of {total} elements over the tolerance", "{total} 个元素中有 {count} 个超差"),
    **LINE,
    # causes
    **SEARCH,
    "label-why": ("why", "原因"),
    "label-guess": ("guess", "推测"),
    "label-seen": ("seen", "依据"),
    "label-change": ("change", "修改"),
    "label-proof": ("proof", "验证"),
    "label-also": ("also", "另有"),
    "label-set": ("set", "设置"),
    "settings-none-differ": ("no setting differs between the two layers", "两侧层的设置没有差异"),
    "label-same": ("same", "同类"),
    "proof-none": ("none: this was not tried", "无：未经试验"),
    "proof-change": ("with the change", "按此修改后"),
    "proof-undone": ("with this undone", "消除此差异后"),
    "proof-errors": (
        "{done} the error as a whole falls from {before} to {after}",
        "{done}整体误差由 {before} 降至 {after}",
    ),
    "proof-error": ("{done} the error as a whole is {after}", "{done}整体误差为 {after}"),
    "proof-confirmed": (": confirmed", "：已证实"),
    "proof-open": (": not proved, more than rounding is left", "：未能证实，剩余误差仍大于舍入误差"),
    "proof-numbers": (", in the numbers alone: nothing was run so, not proved", "，仅由数值推算：未实际运行，未证实"),
    "also-possible": ("{cause} (possible, not proved)", "{cause}（可能，未证实）"),
    "also-confirmed": ("{cause} (confirmed as well)", "{cause}（同样已证实）"),
    "family": ("in {count} more, errors up to {error}: {layers}", "另有 {count} 处，误差最大 {error}：{layers}"),
    "family-open": ("in {count} more: {layers}", "另有 {count} 处：{layers}"),
    "family-rest": ("{layers} and {count} more", "{layers} 等，其余 {count} 处"),
    "below": (
        "{layer}, below the tolerance; {statement}",
        "{layer}，未超过容差；{statement}",
    ),
    "below-cast": (
        "{layer} computes in {type}, the reference does not: an error of {error} by itself, no more than {type} rounds",
        "{layer} 以 {type} 计算，而标杆不是：自身误差为 {error}，未超出 {type} 的舍入误差",
    ),
    "below-strict": ("--strict counts this as diverged", "使用 --strict 时视为超差"),
    "repro": ("repro: {command}", "独立复现：{command}"),
    "seen-at": (
        "first at {record}: order {order}, step {step}, {phase}",
        "首次出现于 {record}：序号 {order}，第 {step} 步，{phase}",
    ),
    "calls": ("the same in {count:call} of this layer", "该层的 {count} 次调用均如此"),
    "more-origins": ("{count:more origin} (--all shows them)", "另有 {count} 个源头（用 --all 查看）"),
    # the cast map
    "casts": ("computed in, reference | port", "计算类型，标杆 | 待比对"),
    "cast-usual": ("{count:layer}: {kinds}", "{count} 层：{kinds}"),
    "cast-level": ("as amp {level} does in {count:layer}: {kinds}", "按 amp {level}，{count} 层：{kinds}"),
    "cast-exception": ("{kind} {count}: {layers}", "{kind} {count} 层：{layers}"),
    "cast-remark": ("{row}; {remark}", "{row}；{remark}"),
    "cast-part": ("{part} in the code of {kind}", "{kind} 代码中的 {part}"),
    "cast-kept": ("amp {level} keeps {kind} in float32", "amp {level} 会使 {kind} 保持 float32"),
    "cast-as-level": ("as amp {level} does", "amp {level} 即如此"),
    "cast-not-kept": (
        "amp {level} keeps only {kept} in float32",
        "amp {level} 仅使 {kept} 保持 float32",
    ),
    "cast-left": ("not cast, as the port's other layers of this nature are", "未转换，而待比对的其他同类层已转换"),
    "cast-reference": ("short in the reference alone", "仅标杆使用短类型"),
    # what was compared
    "compared": ("compared", "比对对象"),
    "reference": ("reference", "标杆"),
    "port": ("port", "待比对"),
    "pairs": ("pairs", "记录对"),
    "pair-counts": ("{total}: {counts}", "{total}：{counts}"),
    "layers": ("layers", "层"),
    "layers-paired": ("{total} paired: {ways}", "已配对 {total}：{ways}"),
    "by-name": ("{count} by name", "按名称 {count}"),
    "by-map": ("{count} by --map", "按 --map {count}"),
    "by-structure": ("{count} by structure (confidence {least} and up)", "按结构 {count}（置信度不低于 {least}）"),
    "covered": ("covered", "已涵盖"),
    "left-out": ("left out", "未采集"),
    "left-out-count": (
        "{count:record} that --layers, --no-weights or an import left out of the other dump",
        "{count} 条记录：另一个转储因 --layers、--no-weights 或导入而不含",
    ),
    "origins-from": ("origins", "源头"),
    "origins-forced": (
        "by the forced pass ({count:value} checked one by one)",
        "由强制对齐运行得出（逐一检查 {count} 个值）",
    ),
    "origins-count": ("{places:place}, {mistakes:mistake}; {how}", "{places} 处，{mistakes} 个错误；{how}"),
    "count-origin": ("at an origin", "处于源头"),
    "origins-free": ("from the free run alone", "仅由自由运行推断"),
    "rule": ("rule", "规则"),
    "rule-scaled": (
        "scaled: |d| <= {tolerance} * (min(1, rms) + |ref|)",
        "scaled：|差| <= {tolerance} * (min(1, rms) + |标杆|)",
    ),
    "rule-allclose": ("allclose: |d| <= {tolerance} * (1 + |ref|)", "allclose：|差| <= {tolerance} * (1 + |标杆|)"),
    "rule-abs": ("abs: |d| <= {tolerance}", "abs：|差| <= {tolerance}"),
    "rule-l2": ("l2: ||d|| <= {tolerance} * ||ref||", "l2：||差|| <= {tolerance} * ||标杆||"),
    "train": ("train", "训练模式"),
    "eval": ("eval", "推理模式"),
    "incomplete": ("incomplete", "不完整"),
    "steps": ("{count:step}", "{count} 步"),
    # pairing shown
    "guessed": ("paired by structure, least sure first", "按结构配对（置信度从低到高）"),
    "unmatched": ("without a counterpart", "没有对应项"),
    # the table
    "table": ("records over the tolerance, in execution order", "超差记录（按执行顺序）"),
    "column-order": ("order", "序号"),
    "column-outcome": ("outcome", "结论"),
    "column-error": ("error", "误差"),
    "column-max": ("max|d|", "最大差值"),
    "column-layer": ("layer and slot", "层与位置"),
    "more": ("{count} more (--limit N or --all shows them)", "另有 {count} 条（用 --limit N 或 --all 查看）"),
    "shapes": ("shape {reference} against {port}", "形状 {reference} 与 {port} 不同"),
    # outcomes of a record
    "outcome-aligned": ("aligned", "一致"),
    "outcome-rounding": ("rounding", "舍入"),
    "outcome-origin": ("origin", "源头"),
    "outcome-inherited": ("inherited", "受前层影响"),
    "outcome-nonfinite": ("nan/inf", "溢出"),
    "outcome-covered": ("covered", "已涵盖"),
    "outcome-unmatched": ("unmatched", "未匹配"),
    "outcome-incomparable": ("incomparable", "不可比"),
    # phases
    "phase-forward": ("forward", "前向"),
    "phase-backward": ("backward", "反向"),
    "phase-parameter": ("parameter", "参数"),
    "phase-gradient": ("gradient", "梯度"),
    "phase-update": ("update", "更新"),
    "phase-forced": ("forced", "强制对齐"),
    # the end
    "warnings": ("warnings", "警告"),
    "next": ("next: {command}", "下一步：{command}"),
    # show
    "layer": ("layer", "层"),
    "type": ("type", "类型"),
    "settings": ("settings", "设置"),
    "mode": ("mode", "模式"),
    "dump": ("dump", "转储"),
    "created": ("created", "创建时间"),
    "command": ("command", "命令"),
    "contents": ("contents", "内容"),
    "contents-counts": (
        "{layers:layer}, {calls:call}, {records:record}, {size}, {steps:step}",
        "{layers} 层，{calls} 次调用，{records} 条记录，{size}，{steps} 步",
    ),
    "recovered": ("read through its journal: the capture did not end properly", "通过日志读取：采集未正常结束"),
    "not-complete": ("incomplete: the capture was interrupted or failed", "不完整：采集被中断或失败"),
    "notes": ("not captured, or captured in another way", "未采集或以其他方式采集"),
    "parameters": ("parameters", "参数"),
    "call-title": ("step {step}, {phase}, call {call}", "第 {step} 步，{phase}，第 {call} 次调用"),
    "call-title-gradient": (
        "step {step}, {phase}: what the optimizer is given",
        "第 {step} 步，{phase}：交给优化器的值",
    ),
    "call-title-update": ("step {step}, {phase}: what it leaves", "第 {step} 步，{phase}：更新后的值"),
    "call-title-forced": (
        "step {step}, forced pass on the reference's values, call {call}",
        "第 {step} 步，以标杆数值强制对齐，第 {call} 次调用",
    ),
    "not-run": ("never ran in this capture", "本次采集中未运行"),
    "not-captured": ("not captured: the capture ended early", "未采集：采集提前结束"),
    "not-selected": ("left out by --layers", "未采集：不在 --layers 之内"),
    "not-imported": ("not in what was imported", "导入的文件中没有"),
    "times": ("{count:call}", "{count} 次调用"),
    "inner-hidden": ("{count:layer} inside", "内含 {count} 层"),
    "column-slot": ("slot", "位置"),
    "column-dtype": ("dtype", "类型"),
    "column-shape": ("shape", "形状"),
    "column-min": ("min", "最小"),
    "column-mean": ("mean", "均值"),
    "column-rms": ("rms", "均方根"),
    "column-largest": ("max", "最大"),
    "column-index": ("index", "索引"),
    "column-difference": ("difference", "差值"),
    "nan-inf": ("NaN {nan}, Inf {inf}", "NaN {nan} 个，Inf {inf} 个"),
    "empty": ("empty", "空"),
    "worst-elements": ("worst elements of {slot}, by error", "{slot} 中误差最大的元素"),
    "rel-l2": ("relative L2", "相对 L2 误差"),
    "cosine": ("cosine", "余弦相似度"),
    "equal": ("equal in every bit", "逐位相同"),
    "no-counterpart": ("no such record in the port", "待比对侧没有该记录"),
    # notebook
    "curve": ("error over execution order, log scale", "误差随执行顺序的变化（对数轴）"),
    "curve-tolerance": ("tolerance", "容差"),
    "column-reference": ("reference", "标杆"),
    "column-port": ("port", "待比对"),
    "column-kind": ("kind", "类型"),
    "column-calls": ("calls", "调用"),
    "column-call": ("call", "调用"),
    "equal-values": ("both sides have the same values", "两侧数值相同"),
    "column-name": ("layer", "层"),
    "rows-more": ("{count:more row}", "另有 {count} 行"),
    # doctor
    "good": ("good", "正常"),
    "bad": ("PROBLEM", "问题"),
    "note": ("note", "提示"),
}


class Count(int):
    """A number that brings its noun: f"{Count(1):record}" is "1 record", f"{Count(2):record}" "2 records"."""

    def __format__(self, noun: str) -> str:
        if not noun:
            return str(int(self))
        return f"{int(self)} {noun}" + ("" if self == 1 else "s")


def say(word: str, language: str, **facts: object) -> str:
    """The phrase in `language`, filled with the facts."""
    counted = {name: Count(fact) if type(fact) is int else fact for name, fact in facts.items()}
    return WORDS[word][LANGUAGES.index(language)].format_map(counted)


def told(message: str, facts: Mapping[str, object], language: str, lines: Optional[int] = None) -> str:
    """A message of the catalogue as one printable line (or only its first `lines`); side and layer go in front where the sentence lacks them.

    Messages and facts come out of dumps, which another version of aligner, another adapter or anybody may have
    written: one that is not known here is shown as it stands.
    """
    known = {
        name: say(fact, language) if fact in ("reference", "port") else said(fact, language)
        for name, fact in facts.items()
    }
    pair = catalogue().get(message)
    sentence = "" if pair is None else pair[LANGUAGES.index(language)]
    try:
        line = ("" if language == "zh" else " ").join(sentence.format_map(known).splitlines()[:lines])
    except (LookupError, ValueError, TypeError, AttributeError):
        line = ""
    if not line:
        return printable(f"{message} ({', '.join(f'{name}={fact}' for name, fact in facts.items())})")
    before = [str(known[name]) for name in ("side", "layer") if name in known and f"{{{name}}}" not in sentence]
    return printable((", ".join(before) + ": " if before else "") + line)
