"""`aligner capture`: a factory, a script or a module, run once and recorded.

With a factory (FILE.py:NAME) options may stand anywhere; after a script or -m MODULE everything is the script's.
"""

from __future__ import annotations

from collections.abc import Sequence

from aligner.capture import target as targets
from aligner.capture.script import Script, check
from aligner.cli import parser as parsing
from aligner.cli.factory_door import capture_factory
from aligner.cli.script_door import capture_script
from aligner.errors import UsageError

HELP = (
    "Run a net and record the inputs, outputs and weights of every layer in a dump.\n"
    "TARGET is FILE.py:NAME or package.module:NAME (a function without arguments that returns the model or "
    "(model, inputs)), or an unchanged script with its arguments, or -m MODULE with its arguments.",
    "运行网络，把每一层的输入、输出和权重记录到转储中。\n"
    "TARGET 为 FILE.py:NAME 或 package.module:NAME（返回模型或 (模型, 输入) 的无参函数），"
    "或一个未改动的脚本及其参数，或 -m MODULE 及其参数。",
)
EXAMPLES = (
    ("aligner capture net_torch.py:build -o ref.h5", "the reference", "采集标杆"),
    (
        "aligner capture net_mindspore.py:build --from ref.h5 -o port.h5",
        "the port, on the reference's weights and inputs",
        "用标杆的权重和输入运行待比对网络",
    ),
    (
        "aligner capture net_mindspore.py:build --from ref.h5 --map map.txt -o port.h5",
        "map.txt holds lines such as encoder.layers.* = blocks.*",
        "map.txt 中的行如 encoder.layers.* = blocks.*",
    ),
    ("aligner capture -o ref.h5 train.py --epochs 1", "an unchanged script", "未改动的脚本"),
)


def add_arguments(parser: parsing.Parser) -> None:
    """The options of this command."""
    say = parser.pick
    add = parser.add_argument
    add("-o", "--output", metavar="DUMP", help=say("the dump to write", "要写入的转储文件"))
    add("-f", "--force", action="store_true", help=say("overwrite DUMP", "覆盖已有的转储"))
    add(
        "--from",
        dest="reference",
        metavar="REF.h5",
        help=say("use this dump's weights and inputs", "使用该转储的权重和输入"),
    )
    add(
        "--rename",
        action="append",
        default=[],
        metavar="REF=PORT",
        help=say(
            "layer or prefix of the reference = of the port (repeatable)", "标杆层或前缀 = 待比对的层或前缀（可重复）"
        ),
    )
    add(
        "--map",
        metavar="FILE",
        help=say(
            "with --from: lines REF = PORT of layers or parameters, * is one part of a name (also for compare)",
            "与 --from 合用：每行 标杆 = 待比对（层或参数），* 表示名称中的一个部分（compare 也用同一文件）",
        ),
    )
    add(
        "--write-map",
        metavar="FILE",
        help=say(
            "write the map that was used, to be corrected and given back with --map",
            "写出所用的映射，修正后可用 --map 交回",
        ),
    )
    add(
        "--free-only",
        action="store_true",
        help=say(
            "run the port once only, without the forced pass and trials that find origins and causes",
            "只运行一次待比对网络，不做用于定位源头与原因的强制对齐运行和试验",
        ),
    )
    add(
        "--search",
        type=parsing.seconds,
        metavar="SECONDS",
        help=say(
            "how long changes of the port's code that put it right are looked for at most (60; 0: not at all)",
            "最多用多长时间查找能改正待比对代码的修改（默认 60 秒；0 表示不查找）",
        ),
    )
    add(
        "--truth",
        action="store_true",
        help=say(
            "run the reference once more in float64, to know what rounding explains (sensitive nets)",
            "再以 float64 运行标杆一次，以得知舍入误差能解释多少（用于对舍入敏感的网络）",
        ),
    )
    add(
        "--expect",
        action="append",
        default=[],
        choices=("float16", "bfloat16"),
        metavar="TYPE",
        help=say(
            "run the reference once more rounded to float16 or bfloat16, as a port with AMP computes",
            "再以舍入到 float16 或 bfloat16 的方式运行标杆一次，与使用混合精度的待比对网络相当",
        ),
    )
    add("--allow-missing", action="store_true", help=say("go on with parameters left over", "允许有未对应的参数"))
    add(
        "--framework",
        metavar="NAME",
        help=say("torch, mindspore or mindtorch (found by itself)", "torch、mindspore 或 mindtorch（默认自动识别）"),
    )
    add("--inputs", metavar="FILE.npz", help=say("arrays to call the net with", "调用网络所用的数组"))
    add(
        "--layers",
        action="append",
        metavar="GLOB",
        help=say("record only these layers (repeatable)", "只记录这些层（可重复）"),
    )
    add(
        "--gradients",
        action="store_true",
        help=say(
            "record gradients, updates and optimizer state; a step is then an update",
            "记录梯度、参数更新与优化器状态；此时一步即一次更新",
        ),
    )
    add(
        "--steps",
        type=parsing.count,
        metavar="N",
        help=say("runs of the net (of a training: updates) to record", "记录网络的运行次数（训练时为更新次数）"),
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--train", action="store_true", help=say("run in train mode", "以训练模式运行"))
    mode.add_argument(
        "--eval", action="store_true", help=say("run in eval mode (the default)", "以推理模式运行（默认）")
    )
    dropout = parser.add_mutually_exclusive_group()
    dropout.add_argument(
        "--keep-dropout", action="store_true", help=say("factory: leave dropout active", "工厂函数：保留 dropout")
    )
    dropout.add_argument(
        "--silence-dropout", action="store_true", help=say("script: make dropout inactive", "脚本：关闭 dropout")
    )
    add(
        "--seed",
        type=int,
        metavar="N",
        help=say("seed of all random numbers (factory: 0)", "随机数种子（工厂函数默认 0）"),
    )
    add("--device", metavar="NAME", help=say("cpu, gpu, cuda:1, ascend, npu:3", "cpu、gpu、cuda:1、ascend、npu:3"))
    add(
        "--mode",
        choices=("graph", "pynative"),
        help=say(
            "factory: run MindSpore compiled as a whole, or layer by layer (as the program has set it)",
            "工厂函数：MindSpore 以静态图或动态图运行（默认按程序自身的设置）",
        ),
    )
    add("--no-weights", action="store_true", help=say("leave parameters out of the dump", "转储中不含参数"))
    add("--model", metavar="CLASS", help=say("script: which of its models", "脚本：采集其中哪个模型"))
    add(
        "--estimate",
        action="store_true",
        help=say(
            "run, say how large the dump would be, write nothing; of a training its first steps, and how long all take",
            "只估计转储大小，不写入；训练只运行前几步，并估计全部步的用时",
        ),
    )
    add("-m", dest="module", metavar="MODULE", help=say("run a module, as python -m does", "像 python -m 一样运行模块"))
    add("target", nargs="?", metavar="TARGET", help=say("factory or script", "工厂函数或脚本"))


def main(argv: Sequence[str], language: str, stream_errors: tuple[str, str] = ("strict", "backslashreplace")) -> int:
    """Read the arguments and go through the door that the target asks for."""
    parser = parsing.command_parser("capture", HELP, EXAMPLES, language)
    add_arguments(parser)
    ours, theirs = split(argv, parser)
    if parsing.asks_for_help(ours):
        print(parser.format_help(), end="")
        return 0
    options = parser.read(ours)
    options.command = [*parser.prog.split(), *argv]
    if options.target is None and options.module is None:
        raise UsageError("target-missing")
    target = None if options.module else targets.parse(options.target)
    script = Script(options.module or options.target, theirs, module=bool(options.module))
    if target is None:
        targets.check_form(options.target or "")
        check(script)
    if not options.output and not options.estimate:
        astray = any(argument.partition("=")[0] in ("-o", "--output") for argument in theirs)
        raise UsageError("output-after-script" if astray else "output-missing", script=options.module or options.target)
    if target is not None:
        return capture_factory(options, target)
    return capture_script(options, script, stream_errors)


def split(argv: Sequence[str], parser: parsing.Parser) -> tuple[list[str], list[str]]:
    """Our arguments, and those of the script: all that follows a target that is no factory, or `-m MODULE`."""
    takes_value = parser.options_with_value()
    at = 0
    while at < len(argv):
        argument = argv[at]
        if argument == "-m":
            return list(argv[: at + 2]), list(argv[at + 2 :])
        if argument.startswith("-") and argument != "-":
            at += 2 if argument in takes_value else 1
        elif targets.parse(argument) is not None:
            return list(argv), []
        else:
            return list(argv[: at + 1]), list(argv[at + 1 :])
    return list(argv), []
