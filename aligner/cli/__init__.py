"""The `aligner` command: finds the subcommand's module, runs it, and turns every error into text and an exit code.

A command is a module of this package. It offers

- `HELP`: its description, (English, Chinese);
- `EXAMPLES`: three of (command line, what it does in English, in Chinese), shown at the end of its help;
- `add_arguments(parser)` for a `cli.parser.Parser`, and `run(options) -> exit code`;

or, when it must read its arguments by itself (a user's script follows), `main(argv, language, stream_errors)`, which
returns the exit code; `stream_errors` is how stdout and stderr treated what they cannot encode before we changed it.
Only the chosen command is imported, and nothing here imports numpy: `aligner --help` answers at once.
"""

from __future__ import annotations

import keyword
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Optional, TextIO

from aligner import messages
from aligner.cli import parser as parsing
from aligner.errors import AlignerError, UsageError
from aligner.report.lines import readable_language

COMMANDS: dict[str, tuple[str, str]] = {
    "capture": (
        "Run a net and record the inputs, outputs and weights of every layer.",
        "运行网络，记录每一层的输入、输出和权重。",
    ),
    "compare": (
        "Compare two dumps, or two checkpoints, and name what differs first.",
        "比对两个转储或两个权重文件，指出第一个超差的层或张量。",
    ),
    "show": (
        "Look into a dump: the tree of layers, or the values of one layer.",
        "查看转储：层的树形结构，或某一层的数值。",
    ),
    "convert": (
        "Write a checkpoint in the other framework's names: .pth, .ckpt, .safetensors.",
        "以另一框架的命名写出权重文件：.pth、.ckpt、.safetensors。",
    ),
    "import": (
        "Make a dump of the files that MINDSPORE_DUMP_CONFIG wrote.",
        "将 MINDSPORE_DUMP_CONFIG 写出的文件转为转储。",
    ),
    "demo": (
        "Find a planted bug in a small port, from capture to answer.",
        "在一个小型移植网络中找出预埋的错误，完整演示。",
    ),
    "doctor": ("Check this environment: frameworks, versions, disk.", "检查当前环境：框架、版本、磁盘。"),
}

INTERNAL_ERROR = 4
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell reports for any program whose reader went away; neither "aligned" nor "diverged"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line `argv` (without the program's name) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    language = parsing.spoken_language(arguments)
    before = _never_fail_to_print()
    language = readable_language(language, sys.stdout)
    try:
        code = _dispatch(arguments, language, before)
        print(end="", flush=True)
    except AlignerError as error:
        _say_error(error.text(language), sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        _say_error(messages.text("interrupted", language, {}), sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more on its way out; give that a place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # an uncaught exception would exit 1 and read as "diverged"
        _say_internal(error, _wants_traceback(arguments), language)
        return INTERNAL_ERROR
    return code


def _never_fail_to_print() -> tuple[str, str]:
    """A layer name that the locale cannot print must not end the program; returns how it was before."""
    before = getattr(sys.stdout, "errors", None) or "strict", getattr(sys.stderr, "errors", None) or "strict"
    for stream in (sys.stdout, sys.stderr):  # either is None if it was closed before we began
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return before


def _dispatch(arguments: list[str], language: str, stream_errors: tuple[str, str]) -> int:
    leading, rest = parsing.split_leading(arguments)
    if "--version" in leading:
        from aligner import __version__

        print(f"aligner {__version__}")
        return 0
    if parsing.asks_for_help(leading):
        print(parsing.overview(COMMANDS, language), end="")
        return 0
    if not rest:
        for option in parsing.unknown_common(leading):
            raise UsageError("usage-option-unknown", command="aligner", option=option, hint="")
        print(parsing.overview(COMMANDS, language), end="", file=sys.stderr)
        return 2
    name = rest[0]
    if name not in COMMANDS:
        facts = {"name": name, "known": ", ".join(COMMANDS), "hint": parsing.hint(name, COMMANDS, language)}
        raise UsageError("command-unknown", **facts)
    command = import_module(f"aligner.cli.{name}_" if keyword.iskeyword(name) else f"aligner.cli.{name}")
    remaining = [*leading, *rest[1:]]
    if hasattr(command, "main"):
        return int(command.main(remaining, language, stream_errors))
    parser = parsing.command_parser(name, command.HELP, command.EXAMPLES, language)
    command.add_arguments(parser)
    if parsing.asks_for_help(remaining):
        print(parser.format_help(), end="")
        return 0
    return int(command.run(parser.read(remaining)))


def _say_error(text: str, stream: Optional[TextIO]) -> None:
    """Two lines: what was found and what was wanted; what to do."""
    if stream is not None:  # it may have been closed before we began; print() would then take stdout
        print(f"aligner: error: {text}", file=stream)


def _wants_traceback(arguments: Sequence[str]) -> bool:
    return bool(os.environ.get("ALIGNER_DEBUG")) or any(a in ("-v", "--verbose") for a in parsing.own(arguments))


def _say_internal(error: Exception, full: bool, language: str) -> None:
    import traceback  # only now: help must be quick

    if full:
        traceback.print_exception(type(error), error, error.__traceback__)
    reason = traceback.format_exception_only(type(error), error)[-1].strip()
    _say_error(messages.text("internal-error", language, {"reason": reason}), sys.stderr)
