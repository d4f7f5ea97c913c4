"""`aligner show`: what a dump is, its layers as a tree, one layer's values, or that layer on both sides."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from aligner import messages
from aligner.cli import parser as parsing
from aligner.errors import UsageError
from aligner.record import display
from aligner.words.training import LOSS

if TYPE_CHECKING:
    from aligner.compare.pairing import Pair
    from aligner.dump.reader import Dump
    from aligner.report.layer_text import View
    from aligner.report.terminal import Terminal

HELP = (
    "Look into a dump: without LAYER what it is and the tree of its layers; with LAYER the settings, parameters, "
    "inputs and outputs of that layer, and with --against the same layer of the port beside it.\n"
    "With --step, of a training: losses, settings and moves of one step, or what it makes of LAYER.\n"
    "The top-level net is the layer '' (or '(net)'); a training's loss is '(loss)'.",
    "查看转储：不带 LAYER 时显示概要和层的树形结构；带 LAYER 时显示该层的设置、参数、输入和输出；"
    "加上 --against 则与待比对侧的同一层并列显示。\n"
    "带 --step 时显示训练中某一步的损失、设置与参数变化，或该步中 LAYER 的各个值。\n"
    "顶层网络的名称为 ''（或 '(net)'），训练的损失为 '(loss)'。",
)
EXAMPLES = (
    ("aligner show ref.h5", "the tree of layers", "层的树形结构"),
    ("aligner show ref.h5 layer1.0.bn1 --against port.h5", "both sides, worst elements", "两侧对照及差值最大的元素"),
    ("aligner show ref.h5 --step 3", "a step of a training", "训练中的一步"),
    ("aligner show ref.h5 --step 3 fc", "its gradients, update and optimizer state", "该层的梯度、更新与优化器状态"),
    ("aligner show ref.h5 fc --slot output.0 --values 0,:5", "some values", "部分数值"),
)


def add_arguments(parser: parsing.Parser) -> None:
    """The options of this command."""
    say = parser.pick
    add = parser.add_argument
    add("dump", metavar="DUMP", help=say("the dump to look into", "要查看的转储"))
    add("layer", nargs="?", metavar="LAYER", help=say("dotted path of a layer", "层的路径（以点分隔）"))
    add("--step", type=parsing.number, metavar="N", help=say("only this step, from 0", "只显示该步（从 0 起）"))
    add("--against", metavar="PORT", help=say("a second dump to set beside it", "并列显示的另一个转储"))
    add("--tree", action="store_true", help=say("with LAYER: the tree below it", "带 LAYER 时：显示其下的树形结构"))
    add("--depth", type=parsing.count, metavar="N", help=say("levels of the tree (all)", "树的层数（默认全部）"))
    add(
        "--slot",
        action="append",
        metavar="GLOB",
        help=say("only these inputs, outputs, parameters (repeatable)", "只显示这些输入、输出或参数（可重复）"),
    )
    add("--values", metavar="SLICE", help=say("print values, for example 0,:3", "打印数值，例如 0,:3"))
    add(
        "--worst",
        type=parsing.count,
        metavar="N",
        help=say("elements to list of each record that differs", "每条有差异的记录列出的元素个数"),
    )
    add("--ulp", action="store_true", help=say("also the distance in units in the last place", "同时给出 ULP 距离"))
    add("--recover", action="store_true", help=say("finish a dump whose capture was killed", "补全采集被中断的转储"))
    add(
        "--limit",
        type=parsing.count,
        default=20,
        metavar="N",
        help=say("rows of each list (20)", "每个列表的行数（20）"),
    )
    add("--json", action="store_true", help=say("one JSON document on stdout", "在标准输出给出一份 JSON"))


def run(options: argparse.Namespace) -> int:
    """Print what was asked for; 0, or 3 by an error when a dump cannot be read."""
    from aligner.dump.reader import open_dump
    from aligner.report.terminal import terminal

    if options.recover:
        _recover(options)
    with ExitStack() as stack:
        dump = stack.enter_context(open_dump(options.dump))
        dump.verify()
        port = None
        if options.against is not None:
            if options.layer is None:
                raise UsageError("show-against-alone", dump=options.dump, port=options.against)
            port = stack.enter_context(open_dump(options.against))
            port.verify()
        if options.step is not None and options.step not in dump.steps:
            raise UsageError("show-step-unknown", dump=options.dump, step=options.step, last=max(dump.steps, default=0))
        layer = None if options.layer is None else _layer(options.layer, dump, options.dump, options.lang)
        if options.json:
            _write_json(dump, layer, port, options)
        else:
            shape = terminal(sys.stdout, os.environ, options.lang, options.color)
            for line in _lines(dump, layer, port, options, shape):
                print(line)
    return 0


def _lines(dump: Dump, layer: Any, port: Any, options: argparse.Namespace, shape: Terminal) -> list[str]:
    from aligner.report import dump_text, layer_text, step_text

    if layer is None and options.step is not None:
        return step_text.step_lines(dump, options.step, shape, options.limit)
    if layer is None:
        tree = dump_text.tree_lines(dump, shape, depth=options.depth)
        return [*dump_text.summary_lines(dump, shape, options.limit), "", *tree]
    if options.tree or options.depth:
        return dump_text.tree_lines(dump, shape, layer, options.depth)
    view = _view(options)
    if port is None:
        return layer_text.layer_lines(dump, layer, shape, view)
    other, pairs = _counterpart(dump, layer, port, options)
    forced = _forced(pairs, port)
    shown = layer_text.against_lines(dump.layers[layer], port.layers[other], pairs, shape, view, forced)
    return [*_mixup_lines(dump, port, shape), *shown]


def _mixup_lines(dump: Dump, port: Dump, shape: Terminal) -> list[str]:
    """What speaks against setting these two side by side, first of all."""
    from aligner.compare.mixup import mixed_up
    from aligner.report import lines
    from aligner.report.words import told

    mixup = mixed_up(dump, port)
    if mixup is None or mixup.message == "mixup-inputs":  # whether inputs differ, the values below tell
        return []
    said = lines.hang("", told(mixup.message, mixup.facts, shape.language), shape.width, 0)
    return [*(shape.paint(line, "yellow") for line in said), ""]


def _view(options: argparse.Namespace) -> View:
    from aligner.report.elements import selection
    from aligner.report.layer_text import View

    chosen = None if options.values is None else selection(options.values)
    return View(tuple(options.slot or ("*",)), chosen, options.values or "", options.worst, options.ulp, options.step)


def _write_json(dump: Dump, layer: Any, port: Any, options: argparse.Namespace) -> None:
    from aligner.report import dump_json, json_

    if layer is None and options.step is not None:
        document = dump_json.step_document(dump, options.step)
    elif layer is None:
        document = dump_json.dump_document(dump)
    elif port is None:
        document = dump_json.layer_document(dump, layer, _view(options))
    else:
        other, pairs = _counterpart(dump, layer, port, options)
        forced = _forced(pairs, port)
        document = dump_json.against_document(dump, layer, port, other, pairs, _view(options), forced)
    sys.stdout.write(json_.dumps(document) + "\n")


def _layer(name: str, dump: Dump, path: str, language: str) -> str:
    """The layer that is meant.

    Raises:
        UsageError: there is none; names those that are near.
    """
    if name in dump.layers:
        return name
    if name == "(net)":
        return ""
    if name == LOSS and any(entry.key.layer == LOSS for entry in dump.entries):
        return LOSS
    known = [layer for layer in dump.layers if layer]
    near = [layer for layer in known if layer.endswith(f".{name}")][:3] or get_close_matches(name, known, 3, 0.5)
    hint = messages.text("did-you-mean", language, {"names": ", ".join(near)}) if near else ""
    raise UsageError("show-layer-unknown", layer=name, dump=path, count=len(known), hint=hint)


def _counterpart(dump: Dump, layer: str, port: Dump, options: argparse.Namespace) -> tuple[str, list[Pair]]:
    """The port's layer that `compare` pairs with this one, and their records in pairs, of all steps or of the one.

    Raises:
        UsageError: the port has no counterpart.
    """
    from aligner.compare.layers import pair_layers
    from aligner.compare.net import survey
    from aligner.compare.pairing import pair_records

    pairing = pair_layers(
        survey(dump), survey(port), mapping=port.header.get("mapping"), parted=port.header.get("parted")
    )
    other = next((pair.port for pair in pairing.layers if pair.reference == layer), None)
    if other is None:
        raise UsageError("show-no-counterpart", layer=display(layer), port=options.against)
    pairs = [p for p in pair_records(dump, port, pairing) if p.reference and p.entry.key.layer == layer]
    return other, [p for p in pairs if options.step is None or p.entry.key.step == options.step]


def _forced(pairs: list[Pair], port: Dump) -> list[Pair]:
    """The reference's records beside what the port made in the forced pass, where that was kept: where it is wrong."""
    from aligner.compare.pairing import Pair
    from aligner.record import Phase

    found = []
    for pair in pairs:
        made = None if pair.port is None else port.find(pair.port.key._replace(phase=Phase.FORCED))
        if made is not None and pair.entry.key.phase is Phase.FORWARD:
            found.append(Pair(pair.reference, made))
    return found


def _recover(options: argparse.Namespace) -> None:
    from aligner.dump.recovery import recover

    recover(options.dump)
    if not options.quiet:
        print(messages.text("show-recovered", options.lang, {"dump": options.dump}), file=sys.stderr)
