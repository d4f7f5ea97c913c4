"""All cases of one net in one process, for importing the frameworks takes longer than a case.

python one_net.py NET RESULT.json [--case ID]...; run.py starts it.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Optional

import corpus
from judge import FRAMEWORK, Alarm, Judgement, alarm, failed, judge

from aligner import cli

PRECISIONS = {"float32": "build", "float16": "build_float16"}
ANSWERED = (0, 1)


class CaseError(Exception):
    """A command that gave no answer; the text is what it said."""


def command(*arguments: object) -> tuple[int, str, str]:
    """One command line of aligner in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def capture(target: str, dump: Path, *more: object) -> None:
    """Capture `target`.

    Raises:
        CaseError: it did not run to its end.
    """
    code, _, err = command("capture", target, "-o", dump, "--force", "--quiet", *more)
    if code != 0:
        raise CaseError(f"capture ended with {code}: {_last(err)}")


def answer(reference: Path, port: Path) -> tuple[int, Any]:
    """What compare says of two dumps: its exit code and its document.

    Raises:
        CaseError: it gave no answer.
    """
    code, out, err = command("compare", reference, port, "--json", "--quiet")
    if code not in ANSWERED:
        raise CaseError(f"compare ended with {code}: {_last(err)}")
    return code, json.loads(out)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])


def _mended(port: Path, wrong: str, said: Any, reference: Path, missing: tuple[str, ...]) -> bool:
    """Whether the port is right with the edits that are told: but for what the framework's own operations do."""
    edits = [origin["edit"] for origin in (*said["origins"], *said["suspects"])]
    lines = {(line["line"], line["before"]): line for edit in edits if edit for line in edit["lines"]}
    if not lines or any(edit["only_here"] for edit in edits if edit):
        return False
    rows = wrong.splitlines()
    for (first, before), line in sorted(lines.items(), reverse=True):
        rows[first - 1 : first - 1 + len(before.splitlines())] = line["after"].splitlines()
    mended = port.with_name("mended.py")
    mended.write_text("\n".join(rows) + "\n", encoding="utf-8")
    dump = port.with_name("mended.h5")
    try:
        capture(f"{mended}:build", dump, "--from", reference, *missing)
        code, told = answer(reference, dump)
    except CaseError:
        return False
    left = [*told["origins"], *told["suspects"]]
    framework = all(origin["causes"] and origin["causes"][0]["id"] in FRAMEWORK for origin in left)
    return framework and (code == 0 or bool(left))


def planted_bugs(net: Path, folder: Path, reference: Path, only: Optional[set[str]], mend: bool) -> Iterator[Judgement]:
    """Every bug of the net, judged."""
    text = (net / "port.py").read_text(encoding="utf-8")
    for bug in corpus.bugs(net):
        if only and bug.id not in only:
            continue
        place = folder / bug.id  # a folder of its own: Python keeps what it compiled by path
        place.mkdir()
        port, dump = place / "port.py", place / "port.h5"
        wrong = corpus.planted(text, bug)
        port.write_text(wrong, encoding="utf-8")
        missing = ("--allow-missing",) if bug.allow_missing else ()
        try:
            capture(f"{port}:build", dump, "--from", reference, *missing)
            said = answer(reference, dump)[1]
            found = judge(bug, said, corpus.changed(text, wrong))
            if mend and not bug.double:
                found = replace(found, mended=_mended(port, wrong, said, reference, missing))
            yield found
        except CaseError as error:
            yield failed(bug, str(error))
        finally:
            dump.unlink(missing_ok=True)


def clean_ports(net: Path, folder: Path, reference: Path) -> Iterator[Alarm]:
    """The correct port in every precision; one that gives no answer is a false alarm too."""
    text = (net / "port.py").read_text(encoding="utf-8")
    for precision, factory in PRECISIONS.items():
        if f"def {factory}(" not in text:
            continue
        dump = folder / f"{precision}.h5"
        try:
            capture(f"{net / 'port.py'}:{factory}", dump, "--from", reference)
            code, said = answer(reference, dump)
            yield alarm(net.name, precision, code, said)
        except CaseError as error:
            yield Alarm(net.name, precision, -1, (str(error),))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("net", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--case", action="append")
    parser.add_argument("--mend", action="store_true", help="run each port again with the edits that are told")
    options = parser.parse_args()
    net = options.net.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        reference = folder / "ref.h5"
        capture(f"{net / 'reference.py'}:build", reference)
        only = set(options.case) if options.case else None
        alarms = [] if only else [asdict(found) for found in clean_ports(net, folder, reference)]
        judged = [asdict(found) for found in planted_bugs(net, folder, reference, only, options.mend)]
    options.result.write_text(json.dumps({"alarms": alarms, "judgements": judged}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
