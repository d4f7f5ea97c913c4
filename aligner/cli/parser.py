"""argparse in two languages, with errors that say which option was meant.

What argparse lacks for us: Chinese words, lines wrapped by the width a terminal shows, examples, and errors as
`UsageError` (one place prints them) instead of a usage text and an exit from deep inside.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn, Optional

from aligner import messages
from aligner.errors import UsageError
from aligner.report import lines

Pair = tuple[str, str]
Example = tuple[str, str, str]

_WITH_VALUE = ("--lang", "--color")

# argparse's own sentences (they differ a little between versions of Python) -> our message and its facts.
_COMPLAINTS = (
    (re.compile(r"the following arguments are required: (?P<names>.*)"), "usage-required"),
    (re.compile(r"argument (?P<option>.*): expected .*argument.*"), "usage-value-missing"),
    (
        re.compile(r"argument (?P<option>.*): invalid choice: (?P<value>.*) \(choose from (?P<choices>.*)\)"),
        "usage-choice",
    ),
    (re.compile(r"argument (?P<option>.*): invalid count value: (?P<value>.*)"), "usage-count"),
    (re.compile(r"argument (?P<option>.*): invalid int value: (?P<value>.*)"), "usage-integer"),
    (re.compile(r"argument (?P<option>.*): invalid \w+ value: (?P<value>.*)"), "usage-value"),
    (re.compile(r"argument (?P<option>.*): ignored explicit argument (?P<value>.*)"), "usage-no-value"),
    (re.compile(r"argument (?P<option>.*): not allowed with argument (?P<other>.*)"), "usage-contradiction"),
    (re.compile(r"unrecognized arguments: (?P<names>.*)"), "usage-left-over"),
)


def own(arguments: Sequence[str]) -> list[str]:
    """The arguments that are aligner's: those after a script, `-m` or `--` belong to the user's program."""
    if "capture" not in arguments[:8]:
        return list(arguments)
    end = next((i for i, a in enumerate(arguments) if a in ("-m", "--") or a.endswith(".py")), len(arguments))
    return list(arguments[:end])


def spoken_language(arguments: Sequence[str]) -> str:
    """The language of `--lang`, else of the environment: help and errors need it before anything is parsed."""
    mine = own(arguments)
    chosen: Optional[str] = None
    for i, argument in enumerate(mine):
        if argument == "--lang" and i + 1 < len(mine):
            chosen = mine[i + 1]
        elif argument.startswith("--lang="):
            chosen = argument.partition("=")[2]
    return messages.language(chosen)


def split_leading(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options that stand before the command, and the command with all that follows."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _WITH_VALUE else 1
    return list(arguments[:at]), list(arguments[at:])


def unknown_common(leading: Sequence[str]) -> list[str]:
    """Options before the command that no command has."""
    names = [argument.partition("=")[0] for argument in leading if argument.startswith("-")]
    return [name for name in names if name not in (*_WITH_VALUE, "-q", "--quiet", "-v", "--verbose")]


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether `-h` or `--help` stands among the options; so nothing need exit from inside the parser."""
    before = list(arguments)[: arguments.index("--")] if "--" in arguments else arguments
    return "-h" in before or "--help" in before


def hint(name: str, known: Iterable[str], language: str) -> str:
    """ " Did you mean ...?" when something known is near, else nothing."""
    near = get_close_matches(name, list(known), n=2, cutoff=0.65)
    return messages.text("did-you-mean", language, {"names": ", ".join(near)}) if near else ""


class _Formatter(argparse.HelpFormatter):
    """Wraps by display width (a Chinese character takes two columns) and speaks the parser's language."""

    def __init__(self, prog: str, language: str) -> None:
        super().__init__(prog, max_help_position=26)
        self._language = language

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Optional[str] = None) -> None:
        super().add_usage(usage, actions, groups, messages.text("help-usage", self._language, {}))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return lines.wrap(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = [lines.wrap(part, width - len(indent)) for part in text.splitlines()]
        return "\n".join(indent + line for paragraph in paragraphs for line in paragraph or [""])


class Parser(argparse.ArgumentParser):
    """The parser of one command. `pick(english, chinese)` gives the word in the language spoken."""

    def __init__(self, prog: str, description: str, examples: Sequence[Example], language: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            add_help=False,
            formatter_class=partial(_Formatter, language=language),
        )
        self.color = False  # Python 3.14 would colour the help by itself
        self.language = language
        self.examples = examples
        # argparse offers no other way to name its two standing groups.
        self._positionals.title = messages.text("help-arguments", language, {})
        self._optionals.title = messages.text("help-options", language, {})

    def pick(self, english: str, chinese: str) -> str:
        """One of the two, by the language spoken."""
        return (english, chinese)[messages.LANGUAGES.index(self.language)]

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse; an option that does not exist is told of before anything that follows from it.

        Raises:
            UsageError: says what was found, what was wanted, and what is near it.
        """
        for argument in argv:
            if argument == "--":
                break
            name = argument.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions:
                near = hint(name, self._option_string_actions, self.language)
                raise UsageError("usage-option-unknown", option=name, command=self.prog, hint=near)
        options = self.parse_intermixed_args(list(argv))
        options.lang = self.language
        options.command = [*self.prog.split(), *argv]
        return options

    def options_with_value(self) -> set[str]:
        """The options that take the next argument as their value."""
        return {name for action in self._actions if action.nargs is None for name in action.option_strings}

    def error(self, message: str) -> NoReturn:
        for pattern, complaint in _COMPLAINTS:
            found = pattern.fullmatch(message)
            if found:
                raise UsageError(complaint, command=self.prog, **found.groupdict())
        raise UsageError("usage-other", command=self.prog, problem=message)

    def format_help(self) -> str:
        shown = [super().format_help(), "\n" if self.examples else ""]
        if self.examples:
            shown.append(messages.text("help-examples", self.language, {}) + ":\n")
        for command, english, chinese in self.examples:
            shown.append(f"  $ {command}\n      {self.pick(english, chinese)}\n")
        return "".join(shown)


def command_parser(name: str, description: Pair, examples: Sequence[Example], language: str) -> Parser:
    """A parser for the command `name`, with the options that every command has."""
    parser = Parser(f"aligner {name}", description[messages.LANGUAGES.index(language)], examples, language)
    add_standing_options(parser)
    return parser


def add_standing_options(parser: Parser) -> None:
    """The options that mean the same in every command."""
    group = parser.add_argument_group(parser.pick("in every command", "通用选项"))
    group.add_argument("-h", "--help", action="help", help=parser.pick("show this help and exit", "显示本帮助并退出"))
    group.add_argument(
        "--lang",
        choices=messages.LANGUAGES,
        help=parser.pick(
            "language (else ALIGNER_LANG, then the locale)", "语言（默认取 ALIGNER_LANG，其次系统区域设置）"
        ),
    )
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help=parser.pick(
            "colour; auto: on a terminal, unless NO_COLOR is set", "颜色；auto：仅在终端且未设置 NO_COLOR 时使用"
        ),
    )
    group.add_argument(
        "-q", "--quiet", action="store_true", help=parser.pick("no progress, no advice", "不显示进度和提示")
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help=parser.pick("details, and tracebacks of errors", "显示细节及错误的调用栈"),
    )


def add_rows(parser: Parser) -> None:
    """How many rows of each list are printed."""
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument(
        "--limit",
        type=count,
        default=20,
        metavar="N",
        help=parser.pick("rows of each list (20)", "每个列表的行数（20）"),
    )
    rows.add_argument("--all", action="store_true", help=parser.pick("all rows of each list", "列出所有行"))


def seconds(text: str) -> int:
    """A whole number from 0 up, as an option's value.

    Raises:
        ValueError: it is something else.
    """
    return 0 if text == "0" else count(text)


def count(text: str) -> int:
    """A whole number from 1 up, as an option's value; argparse tells of what is none, with the option's name.

    Raises:
        ValueError: it is something else.
    """
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(text)
    return int(text)


def number(text: str) -> int:
    """A whole number from 0 up.

    Raises:
        ValueError: it is something else.
    """
    return count(text) if text.strip("0") else int(text)


def overview(commands: Mapping[str, Pair], language: str) -> str:
    """What `aligner --help` prints."""
    pick = messages.LANGUAGES.index(language)
    said = partial(messages.text, language=language, facts={})
    shown = [f"{said('help-usage')}aligner [--lang en|zh] [--version] [-h] COMMAND ...", "", said("help-about"), ""]
    shown += [f"{said('help-commands')}:"]
    shown += [f"  {name:<9} {pair[pick]}" for name, pair in commands.items()]
    shown += ["", f"{said('help-start')}:"]
    shown += [
        "  $ aligner capture net_torch.py:build -o ref.h5",
        "  $ aligner capture net_mindspore.py:build --from ref.h5 -o port.h5",
        "  $ aligner compare ref.h5 port.h5",
        "",
        said("help-more"),
    ]
    return "\n".join(shown) + "\n"
