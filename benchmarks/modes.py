"""Every sample in every way MindSpore runs it: eager, graph mode, @ms.jit; O0 to O3, auto, to_float.

    python benchmarks/modes.py                           the whole table, as Markdown
    python benchmarks/modes.py graph O2 [SAMPLE[/PORT]]  one way, a line for each port

A right port must come out aligned, with nothing wrong by itself; a planted mistake must be found where it is in
float32, or be said to be there below the tolerance. What MindSpore has no kernel for, or cannot run by itself, is
named. The exit code is 1 if anything else happens.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Optional

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
MODES = ("pynative", "graph", "jit")
LEVELS = ("O0", "O1", "O2", "O3", "auto", "to_float", "O2_bfloat16")
ALIGNED, FOUND, KERNEL, FAILS, WRONG = "aligned", "found", "no kernel", "MindSpore fails", "WRONG"
MISSING = re.compile(r"operator\[(\w+)\]|For '?(\w+)'?, unsupported")

FACTORY = """
import importlib.util
import mindspore as ms

def build():
    spec = importlib.util.spec_from_file_location("port_of_sample", {path!r})
    module = importlib.util.module_from_spec(spec)
    __import__("sys").modules["port_of_sample"] = module
    spec.loader.exec_module(module)
    net = module.build()
    if {level!r} == "to_float":
        net.to_float(ms.float16)
    else:
        level, _, dtype = {level!r}.partition("_")
        net = ms.amp.auto_mixed_precision(net, level, getattr(ms, dtype or "float16"))
    if {jit}:
        kind = type(net)
        net.__class__ = type(kind.__name__, (kind,), {{"construct": ms.jit(kind.construct)}})
    return net
"""


class Result(NamedTuple):
    """What came of one port in one way of running."""

    sample: str
    port: str
    word: str
    detail: str = ""


def aligner(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    from aligner.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def ran(sample: Path, port: str, expected: dict[str, Any], mode: str, level: str, work: Path) -> Result:
    """Capture and compare one port."""
    reference, dump, factory = work / f"{sample.name}.ref.h5", work / "port.h5", work / "factory.py"
    if not reference.exists():
        code, _, said = aligner("capture", "-q", f"{sample / 'reference.py'}:build", "-o", reference)
        assert code == 0, said
    factory.write_text(FACTORY.format(path=str(sample / port), level=level, jit=mode == "jit"))
    options = ["--mode", mode] if mode != "jit" else []
    options += ["--allow-missing"] if expected.get("allow_missing") else []
    code, _, said = aligner("capture", "-q", f"{factory}:build", "--from", reference, "-o", dump, "--force", *options)
    if code:
        return _failed(sample.name, port, factory, reference, mode, said)
    code, text, said = aligner("compare", reference, dump, "--json")
    if code not in (0, 1):
        return Result(sample.name, port, WRONG, _line(said))
    return _judged(sample.name, port, expected, json.loads(text))


def _judged(sample: str, port: str, expected: dict[str, Any], found: dict[str, Any]) -> Result:
    origins = [(each["layer"], each["where"]) for each in found["origins"]]
    below = [(each["layer"], each["where"]) for each in found["suspects"]]
    if expected["outcome"] == "aligned" and not expected.get("below_tolerance"):
        fine = found["outcome"] == "aligned" and not origins and not below
        return Result(sample, port, ALIGNED if fine else WRONG, "" if fine else f"{found['outcome']} {origins} {below}")
    wanted = (expected["origin"], expected["where"])
    others = [place for place in (*origins, *below) if place[0] not in (wanted[0], *expected.get("also", ()))]
    if (*origins, *below)[:1] == (wanted,) and not others:
        return Result(sample, port, FOUND, "" if origins else "below the tolerance")
    return Result(sample, port, WRONG, f"{found['outcome']} {origins} {below}, wanted {wanted}")


def _failed(sample: str, port: str, factory: Path, reference: Path, mode: str, said: str) -> Result:
    """Whether the port does not run without aligner either."""
    reason = _alone(factory, reference, mode)
    if reason is None:
        return Result(sample, port, WRONG, _line(said))
    missing = MISSING.search(reason)
    if missing:
        return Result(sample, port, KERNEL, missing.group(1) or missing.group(2))
    return Result(sample, port, FAILS, _line(reason))


def _line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip() and "WARNING" not in line), "")[:160]


def _alone(factory: Path, reference: Path, mode: str) -> Optional[str]:
    """What MindSpore says when it runs the port by itself; None where it runs."""
    import mindspore as ms

    from aligner.dump.reader import open_dump
    from aligner.registry import of
    from aligner.replay.replay import Replay

    spec = importlib.util.spec_from_file_location("factory_alone", factory)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = ms.get_context("mode")
    try:
        with open_dump(reference) as dump:
            spec.loader.exec_module(module)
            net = module.build()
            inputs = Replay(dump, of(net), net).inputs()
            ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
            net.set_train(False)
            net(*inputs)
    except Exception as error:  # whatever MindSpore raises is the answer
        return f"{type(error).__name__}: {error}"
    finally:
        ms.set_context(mode=before)
    return None


def one_way(mode: str, level: str, name: str) -> list[Result]:
    """All ports of the samples, or of one of them, run in one way.

    O1 rewrites classes and imports their files by name once more, which it cannot do for two files of one name in a
    process: each port has one of its own there.
    """
    wanted, _, one = name.partition("/")
    results = []
    with tempfile.TemporaryDirectory() as work:
        for path in sorted(SAMPLES.glob("*/expected.json")):
            for port, expected in json.loads(path.read_text(encoding="utf-8")).items():
                if wanted not in ("", path.parent.name) or one not in ("", port):
                    continue
                if level == "O1" and not one:
                    results += _apart(mode, level, f"{path.parent.name}/{port}")[0]
                else:
                    results.append(ran(path.parent, port, expected, mode, level, Path(work)))
                print("\t".join(results[-1]), flush=True)
    return results


def _apart(mode: str, level: str, *name: str) -> tuple[list[Result], int]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, mode, level, *name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    rows = [Result(*line.split("\t")) for line in done.stdout.splitlines() if line.count("\t") == 3]
    if done.returncode not in (0, 1) or not rows:
        rows.append(Result(*("/".join(name) or "-/-").split("/"), WRONG, f"exit {done.returncode}"))
    return rows, done.returncode


def table() -> int:
    """Each way in a process of its own; a row for each."""
    print("| mode | level | right ports aligned | planted mistakes found | no kernel | MindSpore itself fails |")
    print("|---|---|---|---|---|---|")
    wrong = []
    for mode in MODES:
        for level in LEVELS:
            rows, _ = _apart(mode, level)
            words = Counter(row.word for row in rows)
            right = sum(row.port == "port.py" for row in rows)
            planted = len(rows) - right
            cells = [
                f"{words[ALIGNED]} of {right}",
                f"{words[FOUND]} of {planted}",
                _named(rows, KERNEL),
                _named(rows, FAILS),
            ]
            print(f"| {mode} | {level} | {' | '.join(cells)} |", flush=True)
            wrong += [(mode, level, *row) for row in rows if row.word == WRONG]
    for row in wrong:
        print(*row)
    return 1 if wrong else 0


def _named(rows: list[Result], word: str) -> str:
    found = Counter(f"{row.sample}: {row.detail}" for row in rows if row.word == word)
    return "; ".join(found) or "-"


def main(words: list[str]) -> int:
    if not words:
        return table()
    mode, level, name = (*words, "")[:3]
    return 1 if any(result.word == WRONG for result in one_way(mode, level, name)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
