"""`aligner import`: MindSpore's own dump as an aligner dump, and the configuration that has it written."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import aligner
from aligner.capture import target as targets
from aligner.capture.progress import Progress, size
from aligner.cli import parser as parsing
from aligner.cli.building import built
from aligner.cli.door import check_output, interruptible, tell_notes
from aligner.cli.voice import Voice
from aligner.errors import AlignerError, DumpError, IngestError, UsageError

if TYPE_CHECKING:
    from aligner.ingest.source import Net, Source

HELP = (
    "Make a dump of the .npy files that MindSpore writes when MINDSPORE_DUMP_CONFIG is set (GRAPH_MODE; CPU, GPU, "
    "Ascend), so that a net can be compared that aligner cannot capture.\n"
    "DIR is the folder named `path` in that configuration, or one inside it. Operators become layers by their names.",
    "将设置 MINDSPORE_DUMP_CONFIG 后 MindSpore 写出的 .npy 文件（GRAPH_MODE；CPU、GPU、Ascend）转为转储，"
    "从而可以比对 aligner 无法采集的网络。\nDIR 为该配置中 `path` 所指的目录，或其中的子目录。层由算子的名称得出。",
)
EXAMPLES = (
    (
        "aligner import --config dump",
        "write dump/config.json and say how to run",
        "生成 dump/config.json 并说明如何运行",
    ),
    ("aligner import dump -o port.h5", "then: aligner compare ref.h5 port.h5", "然后：aligner compare ref.h5 port.h5"),
    (
        "aligner import dump -o port.h5 --net net_mindspore.py:build",
        "with the settings of its layers",
        "同时加入各层的设置",
    ),
)
CONFIG = "config.json"


def add_arguments(parser: parsing.Parser) -> None:
    """The options of this command."""
    say = parser.pick
    add = parser.add_argument
    add("folder", nargs="?", metavar="DIR", help=say("what MindSpore wrote", "MindSpore 写出的目录"))
    add("-o", "--output", metavar="DUMP", help=say("the dump to write", "要写入的转储文件"))
    add("-f", "--force", action="store_true", help=say("overwrite what is there", "覆盖已有的文件"))
    add(
        "--net",
        metavar="TARGET",
        help=say(
            "FILE.py:NAME that builds the net: adds its layers' settings and settles names",
            "构造该网络的 FILE.py:NAME：加入各层的设置并确定名称",
        ),
    )
    add("--rank", type=int, metavar="N", help=say("which device's files", "取哪个设备的文件"))
    add("--name", metavar="NET", help=say("which net's files (net_name)", "取哪个网络的文件（net_name）"))
    add("--steps", type=parsing.count, metavar="N", help=say("only the first N iterations", "只取前 N 次迭代"))
    add(
        "--config",
        metavar="DIR",
        help=say("write DIR/config.json, and say how to run", "写出 DIR/config.json 并说明如何运行"),
    )


def run(options: argparse.Namespace) -> int:
    """Import, or prepare a run; 0."""
    if options.config is not None and options.folder is None and options.output is None:
        return _configure(options)
    if options.folder is None or options.output is None or options.config is not None:
        raise UsageError("ingest-options")
    from aligner.ingest import files
    from aligner.ingest.source import source

    options.reference = None
    check_output(options)
    voice = Voice(options.quiet, options.lang)
    net, facts = (None, {}) if options.net is None else _net(options.net, voice)
    folder = files.survey(options.folder)
    found = source(folder, options.rank, options.name, net.layers if net is not None else ())
    _write(options, found, net, facts, voice)
    return 0


def _write(options: argparse.Namespace, found: Source, net: Optional[Net], facts: dict[str, Any], voice: Voice) -> None:
    from aligner.dump.writer import DumpWriter
    from aligner.ingest.importing import notes, run

    started = time.monotonic()
    header = {**_header(options.folder, options.command), **facts}
    begun = partial(os.path.exists, options.output)
    with interruptible(options.output, begun), DumpWriter(options.output, header, force=options.force) as writer:
        try:
            done = run(found, writer, net, options.steps, _told(voice))
        except DumpError:  # a full disk: what is there can be read, as the error says
            raise
        except AlignerError:
            writer.discard()
            raise
        for note in notes(done, found.folder):
            writer.note(note)
        floats = {"float16", "bfloat16"} & done.dtypes
        writer.update_header(steps=done.steps, amp=min(floats) if floats and len(done.dtypes) > 1 else None)
    voice.progress.clear()
    voice.say(
        "imported",
        path=options.output,
        records=writer.records,
        layers=done.layers,
        steps=done.steps,
        size=size(os.path.getsize(options.output)),
        folder=options.folder,
        seconds=f"{time.monotonic() - started:.1f}",
    )
    tell_notes(options.output, voice)
    voice.say("ingest-next", path=options.output)


def _told(voice: Voice) -> Any:
    progress: Progress = voice.progress

    def tell(done: int, total: int, read: int) -> None:
        progress.say("ingest-progress", done=done, total=total, size=size(read))

    return tell


def _header(folder: str, command: Sequence[str]) -> dict[str, Any]:
    """All that is known of the run: the files tell nothing of versions, device or mode of training."""
    return {
        "format": 1,
        "aligner": aligner.__version__,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "framework": "mindspore",
        "mode": "graph",
        "command": command,
        "imported": os.path.abspath(folder),
    }


def _net(text: str, voice: Voice) -> tuple[Net, dict[str, Any]]:
    """What the net itself tells, and facts for the header.

    Raises:
        UsageError: `text` names no factory.
        CaptureError: it raised.
        IngestError: it is no net of MindSpore's.
    """
    import inspect

    from aligner.ingest.source import Net
    from aligner.ingest.weights import Known
    from aligner.record import Layer

    target = targets.parse(text)
    if target is None:
        raise UsageError("ingest-net-form", text=text)
    adapter, task = built(target, None, 0, voice)
    if adapter.name != "mindspore":
        raise IngestError("ingest-net-framework", framework=adapter.name)
    model: Any = task.model
    found = list(adapter.layers(model))
    parents = {path[:at] for path, _ in found for at, letter in enumerate(path) if letter == "."}
    layers = [
        Layer(path, adapter.type_name(cell), adapter.spec(cell), path in parents or not path, adapter.training(cell))
        for path, cell in found
    ]
    known = [Known(p.layer, p.role, p.name, p.trainable, p.buffer) for p in adapter.parameters(model)]
    arguments = list(inspect.signature(model.construct).parameters)
    facts = {"framework_version": adapter.version(), "model": type(model).__name__}
    return Net(layers, known, arguments), facts


def _configure(options: argparse.Namespace) -> int:
    """Write the configuration of a run, and say how to run."""
    folder = os.path.abspath(options.config)
    path = os.path.join(folder, CONFIG)
    settings = {
        "common_dump_settings": {
            "op_debug_mode": 0,
            "dump_mode": 0,
            "path": folder,
            "net_name": "Net",
            "iteration": "all",
            "saved_data": "tensor",
            "input_output": 0,
            "kernels": [],
            "support_device": list(range(8)),
        },
        "e2e_dump_settings": {"enable": True, "trans_flag": True},
    }
    try:
        os.makedirs(folder, exist_ok=True)
        if any(name.startswith("rank_") for name in os.listdir(folder)):
            raise IngestError("ingest-config-not-empty", path=options.config)
        if os.path.exists(path) and not options.force:
            raise IngestError("ingest-config-exists", path=path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(settings, indent=1) + "\n")
    except OSError as error:
        raise IngestError("ingest-config-folder", path=folder, reason=error.strerror or error) from error
    from aligner import messages

    print(messages.text("ingest-config-written", options.lang, {"config": path, "folder": options.config}))
    return 0
