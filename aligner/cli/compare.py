"""`aligner compare`: two dumps -> the answer; the report on stdout, progress on stderr, the outcome as exit code."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Optional, TextIO

from aligner import messages
from aligner.cli import parser as parsing
from aligner.errors import UsageError
from aligner.record import display
from aligner.report import lines
from aligner.report.figures import size

if TYPE_CHECKING:
    from aligner.compare.verdict import Comparison

HELP = (
    "Compare two dumps: pair their layers, measure every difference, and name the layer that is wrong by itself. "
    "Of checkpoints (.pth, .ckpt, .safetensors, a folder of shards) the weights are compared, without running a net.\n"
    "Exit code: 0 aligned, 1 diverged, 3 incomparable.",
    "比对两个转储：配对各层，测量每处差异，并指出自身有误的层。"
    "对于权重文件（.pth、.ckpt、.safetensors、分片目录），不运行网络，直接比对权重。\n"
    "退出码：0 一致，1 超差，3 无法比对。",
)
EXAMPLES = (
    ("aligner compare ref.h5 port.h5", "the answer in the first line", "第一行即为结论"),
    ("aligner compare ref.h5 port.h5 --tolerance 5e-3 --all", "another tolerance, every row", "更换容差，列出所有行"),
    (
        "aligner compare ref.h5 port.h5 --map map.txt",
        "map.txt holds lines such as encoder.layers.* = blocks.*",
        "map.txt 中的行如 encoder.layers.* = blocks.*",
    ),
    (
        "aligner compare ref.h5 port.h5 --patch fix.diff",
        "the changes that were run and came out right, for git apply",
        "已运行验证的修改，可用 git apply 应用",
    ),
    ("aligner compare ref.h5 port.h5 --json > result.json", "for programs", "供程序读取"),
    (
        "aligner compare ref.h5 port.h5 --repro repro",
        "a program for each wrong layer that needs the port's framework alone",
        "为每个自身有误的层写出一个只依赖待比对侧框架的独立程序",
    ),
    (
        "aligner compare model.pth model.ckpt",
        "weights against weights: which tensor differs, and how",
        "权重比对：哪个张量不同，以及如何不同",
    ),
)
RULES = ("scaled", "allclose", "abs", "l2")
TOLERANCE = 1e-3


def add_arguments(parser: parsing.Parser) -> None:
    """The options of this command."""
    say = parser.pick
    add = parser.add_argument
    add("reference", metavar="REF", help=say("dump or checkpoint of the reference", "标杆的转储或权重文件"))
    add("port", metavar="PORT", help=say("dump or checkpoint of the port", "待比对网络的转储或权重文件"))
    add(
        "--tolerance",
        type=_tolerance,
        metavar="X",
        help=say("largest error that is accepted (1e-3; of weights 1e-6)", "可接受的最大误差（1e-3；权重为 1e-6）"),
    )
    add("--weights", action="store_true", help=say("compare the weights of two dumps alone", "只比对两个转储的权重"))
    add(
        "--rule",
        choices=RULES,
        default="scaled",
        help=say("what the error is set against (scaled)", "误差的计算规则（scaled）"),
    )
    add(
        "--map",
        metavar="FILE",
        help=say(
            "pairs of layers: lines REF = PORT, * is one part of a name; or JSON (also for capture --from)",
            "层的对应关系：每行 标杆 = 待比对，* 表示名称中的一个部分；或 JSON（capture --from 也用同一文件）",
        ),
    )
    add(
        "--write-map",
        metavar="FILE",
        help=say(
            "write the pairs that were used, to be corrected and given back with --map",
            "写出所用的对应关系，修正后可用 --map 交回",
        ),
    )
    add(
        "--allow-unmatched",
        action="append",
        default=[],
        metavar="GLOB",
        help=say("layers that may lack a counterpart (repeatable)", "允许没有对应项的层（可重复）"),
    )
    add(
        "--from-step",
        type=parsing.count,
        metavar="N",
        help=say(
            "of a run that was resumed: the step of REF that it begins with, where the values do not tell",
            "对于断点续训：待比对训练从标杆的第几步开始（无法由数值判断时使用）",
        ),
    )
    add("--strict", action="store_true", help=say("warnings count as diverged", "有警告即视为超差"))
    add(
        "--repro",
        metavar="FOLDER",
        help=say(
            "write a program and an npz file that run each wrong layer by itself",
            "为每个有误的层写出可独立运行的程序和 npz 文件",
        ),
    )
    add(
        "--repro-layer",
        metavar="LAYER",
        help=say("write them for this layer instead (the reference's path)", "改为指定的层（标杆中的路径）"),
    )
    add(
        "--patch",
        metavar="FILE",
        help=say(
            "write the edits that were run and came out right as a diff (-: to stdout, in place of the report)",
            "把已运行验证的修改写成 diff（-：写到标准输出，代替报告）",
        ),
    )
    add(
        "--patch-folder",
        default=".",
        metavar="FOLDER",
        help=say("where the port's files are; no other is named (.)", "待比对网络源码所在目录；不涉及其外的文件（.）"),
    )
    add("--json", action="store_true", help=say("one JSON document on stdout", "在标准输出给出一份 JSON"))
    parsing.add_rows(parser)
    add(
        "--jobs",
        type=parsing.count,
        default=1,
        metavar="N",
        help=say("pairs measured at a time (1)", "同时比对的记录对数（1）"),
    )


def _tolerance(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError("usage-tolerance", value=text)
    return number


def run(options: argparse.Namespace) -> int:
    """Compare, write programs and the report, return the exit code."""
    from aligner.cli import weights

    if weights.is_asked_for(options):
        return weights.run(options)
    if options.repro_layer is not None and options.repro is None:
        raise UsageError("repro-folder-missing")
    if options.write_map:
        from aligner.compare.layer_map import check_free

        check_free(options.write_map)
    if options.patch is not None:
        from aligner.cli import patch

        patch.check(options)
    comparison = _compare(options)
    code = exit_code(comparison, options.strict)
    if options.write_map:
        _write_map(options, comparison)
    if options.repro is not None:
        from aligner.cli.repro import write_repros

        write_repros(comparison, options)
    if options.patch is not None:
        patch.write_patch(comparison, options)
        if options.patch == patch.OUT:
            return code
    if options.json:
        from aligner.report import json_

        json_.write(comparison, sys.stdout)
        return code
    from aligner.report import text
    from aligner.report.terminal import terminal

    shape = terminal(sys.stdout, os.environ, options.lang, options.color)
    text.write(comparison, sys.stdout, shape, None if options.all else options.limit)
    if options.strict and code != comparison.exit_code:
        print("\n" + messages.text("strict-warnings", shape.language, {"count": len(comparison.warnings)}))
    return code


def _write_map(options: argparse.Namespace, comparison: Comparison) -> None:
    """The pairs of layers, each with what it rests on; those without a partner as comments."""
    from aligner.cli.voice import Voice
    from aligner.compare.layer_map import write

    lines = [(p.reference, p.port, f"{p.confidence:.2f} by {p.by}") for p in comparison.layers]
    sides = zip(("reference", "port"), comparison.unpaired)
    write(options.write_map, lines, [f"only in the {side}: {display(path)}" for side, left in sides for path in left])
    Voice(options.quiet, options.lang).say("map-written", path=options.write_map, count=len(lines))


def exit_code(comparison: Comparison, strict: bool) -> int:
    """The comparison's own; with `strict`, a warning makes an aligned one diverged."""
    return 1 if strict and comparison.exit_code == 0 and comparison.warnings else comparison.exit_code


def _compare(options: argparse.Namespace) -> Comparison:
    from concurrent.futures import ThreadPoolExecutor

    from aligner.compare.comparison import compare

    def measured(executor: Optional[ThreadPoolExecutor]) -> Comparison:
        return compare(
            options.reference,
            options.port,
            tolerance=TOLERANCE if options.tolerance is None else options.tolerance,
            rule=options.rule,
            map=options.map,
            allow_unmatched=options.allow_unmatched,
            from_step=options.from_step,
            executor=executor,
            progress=None if options.quiet else _Progress(sys.stderr, options.lang),
        )

    if options.jobs == 1:
        return measured(None)
    with ThreadPoolExecutor(options.jobs) as executor:
        return measured(executor)


class _Progress:
    """One line on a terminal, written over ten times a second and taken away at the end; nothing elsewhere."""

    PERIOD = 0.1

    def __init__(self, stream: TextIO, language: str) -> None:
        self._stream = stream
        self._language = language
        self._live = stream.isatty()
        self._start = self._last = time.monotonic()
        self._shown = 0

    def __call__(self, done: int, total: int, read: int) -> None:
        """`done` of `total` pairs are measured, `read` bytes of both dumps."""
        now = time.monotonic()
        if not self._live or (now - self._last < self.PERIOD and not (done == total and self._shown)):
            return
        self._last = now
        facts = {"done": done, "total": total, "size": size(read), "speed": size(read / max(now - self._start, 1e-9))}
        text = "" if done == total else messages.text("compare-progress", self._language, facts)
        self._stream.write("\r" + lines.pad(text, self._shown) + ("\r" if not text else ""))
        self._stream.flush()
        self._shown = lines.width(text)
