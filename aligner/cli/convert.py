"""`aligner convert`: a checkpoint in the other framework's names, and what of it did not map."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

from aligner.cli import parser as parsing
from aligner.cli.building import built
from aligner.cli.voice import Voice
from aligner.errors import ConvertError, UsageError

if TYPE_CHECKING:
    from aligner.adapter import Adapter
    from aligner.weights.converting import Plan, Wanted
    from aligner.weights.stored import Checkpoint

HELP = (
    "Write a checkpoint in the other framework's names: a .pth as a .ckpt, the way back, or either as safetensors. "
    "The output's ending says what is written. Nothing of the source is run, and it need not fit into memory.\n"
    "Without --net the names follow from rules; with it the net's own names, shapes and order are taken, and what it "
    "lacks or has no place for is listed.\n"
    "Exit code: 0 all mapped, 1 something did not, 2 nothing was written, 3 the source cannot be read.",
    "以另一框架的命名写出权重文件：.pth 转为 .ckpt，或反向转换，或转为 safetensors；由输出的后缀决定格式。"
    "不会运行源文件中的任何内容，也无需将其整个读入内存。\n"
    "不带 --net 时按规则改名；带 --net 时采用该网络自身的名称、形状和顺序，并列出缺少或没有位置的参数。\n"
    "退出码：0 全部对应，1 部分未对应，2 没有写出，3 无法读取源文件。",
)
EXAMPLES = (
    ("aligner convert model.pth -o model.ckpt", "for mindspore.load_checkpoint", "供 mindspore.load_checkpoint 加载"),
    (
        "aligner convert model.pth -o model.ckpt --net net_mindspore.py:build",
        "by the names and shapes of the port itself",
        "按待比对网络自身的名称和形状",
    ),
    ("aligner convert model.ckpt -o model.pth", "back again, for torch.load", "反向转换，供 torch.load 加载"),
    (
        "aligner convert shards/ -o model.safetensors --names mindspore",
        "a folder of shards as one file",
        "把分片目录合为一个文件",
    ),
)


def add_arguments(parser: parsing.Parser) -> None:
    """The options of this command."""
    say = parser.pick
    add = parser.add_argument
    add(
        "source",
        metavar="SOURCE",
        help=say(
            ".pth, .ckpt, .safetensors, a folder of shards, or a dump", ".pth、.ckpt、.safetensors、分片目录或转储"
        ),
    )
    add(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help=say(
            "what to write: .ckpt, .pth (.pt, .bin), .safetensors",
            "要写出的文件：.ckpt、.pth（.pt、.bin）、.safetensors",
        ),
    )
    add("-f", "--force", action="store_true", help=say("overwrite what is there", "覆盖已有的文件"))
    add(
        "--net",
        metavar="TARGET",
        help=say("FILE.py:NAME that builds the net that is to have it", "构造接收权重的网络的 FILE.py:NAME"),
    )
    add(
        "--map",
        metavar="FILE",
        help=say("with --net: which layer is which, lines SOURCE = NET", "与 --net 同用：层的对应关系，每行 源 = 网络"),
    )
    add(
        "--names",
        choices=("torch", "mindspore"),
        help=say(
            "whose names to write (.ckpt: mindspore, .pth: torch, .safetensors: as they are)",
            "采用谁的命名（.ckpt 为 mindspore，.pth 为 torch，.safetensors 保持原样）",
        ),
    )
    add("--json", action="store_true", help=say("one JSON document on stdout", "在标准输出给出一份 JSON"))
    parsing.add_rows(parser)


def run(options: argparse.Namespace) -> int:
    """Convert, report, return the exit code."""
    from aligner.weights import converting, output
    from aligner.weights.opening import open_checkpoint

    if options.map and not options.net:
        raise UsageError("convert-map-net")
    form = output.form_of(options.output)
    output.check_place(options.output, options.source, options.force)
    voice = Voice(options.quiet, options.lang)
    source = open_checkpoint(options.source)
    try:
        framework, net = (None, None) if options.net is None else _net(options.net, voice)
        if framework is not None and options.names and (framework == "mindspore") != (options.names == "mindspore"):
            raise UsageError("convert-names", names=options.names, framework=framework)
        words = options.names or converting.default_words(source, form, framework)
        plan = _plan(options, source, form, words, net)
        if not plan.moved:
            raise ConvertError("convert-nothing", source=options.source, path=options.output)
        from aligner.cli.weights import progress

        entries = [one.entry for one in plan.moved]
        output.write(options.output, form, words, entries, progress(voice, "convert-progress"))
        voice.progress.clear()
        _report(options, plan, form, words, source)
    finally:
        source.close()
    return 1 if plan.failing else 0


def _plan(options: argparse.Namespace, source: Checkpoint, form: str, words: str, net: Optional[list[Wanted]]) -> Plan:
    from aligner.compare.layer_map import read_map
    from aligner.weights import converting

    if net is None:
        return converting.by_rules(source, words, form)
    return converting.by_net(source, net, form, read_map(options.map))


def _report(options: argparse.Namespace, plan: Plan, form: str, words: str, source: Checkpoint) -> None:
    from aligner.report import convert_text
    from aligner.report.terminal import terminal

    if options.json:
        sys.stdout.write(convert_text.document(plan, options.output, form, words, source.left))
        return
    shape = terminal(sys.stdout, os.environ, options.lang, options.color)
    limit = None if options.all else options.limit
    convert_text.write(plan, options.output, words, source.left, sys.stdout, shape, limit)


def _net(text: str, voice: Voice) -> tuple[str, list[Wanted]]:
    """The framework of the net that is to have the weights, and its parameters in the order it defines them.

    Raises:
        UsageError: `text` names no factory.
        CaptureError: it raised.
    """
    from aligner.capture import target as targets

    target = targets.parse(text)
    if target is None:
        raise UsageError("convert-net-form", text=text)
    adapter, task = built(target, None, 0, voice)
    return adapter.name, _wanted(adapter, task.model)


def _wanted(adapter: Adapter, model: Any) -> list[Wanted]:
    """What the net's own checkpoints hold. Its state_dict tells how torch's do; MindSpore's go by Parameter.name."""
    from aligner.weights.converting import Wanted

    kinds = {path: adapter.spec(layer).kind for path, layer in adapter.layers(model)}
    table = model.state_dict() if adapter.name != "mindspore" else {}
    found = []
    for one in adapter.parameters(model):
        tensor: Any = one.tensor
        held = table.get(one.name, tensor)
        name = tensor.name if adapter.name == "mindspore" and tensor.name else one.name
        if one.kept:
            shape = tuple(int(size) for size in held.shape)
            kind = kinds.get(one.layer, "")
            found.append(Wanted(name, shape, one.layer, one.role, one.shape, one.dtype, kind, one.buffer))
    return [*found, *_tied(table, found)]


def _tied(table: Mapping[str, Any], found: Sequence[Wanted]) -> list[Wanted]:
    """The other names of tied parameters, under which torch's checkpoints hold them as well."""
    known = {one.name: one for one in found}
    places = {table[name].data_ptr(): name for name in known if name in table and table[name].numel()}
    others = ((name, known.get(places.get(held.data_ptr(), ""))) for name, held in table.items() if name not in known)
    return [
        replace(own, name=name, same_as=own.name)
        for name, own in others
        if own is not None and tuple(table[name].shape) == own.shape
    ]
