"""All cases of one pair: the published port, and its planted mistakes if asked; each command as a user gives it.

python one_pair.py NAME RESULT.json [--planted] [--mend] [--texts FOLDER]; run.py starts it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Optional

import packages
import pairs
from commands import Done, aligner, program
from verdicts import Verdict, edits, judge, refused

from aligner.dump.reader import open_dump

ANSWERED = (0, 1)


class Asked:
    """The commands of one case, and what they cost."""

    def __init__(self, folder: Path, texts: Optional[Path], mend: bool):
        self.folder, self.texts, self.mend = folder, texts, mend
        self.reference = folder / "ref.h5"
        self.figures: dict[str, dict[str, float]] = {}

    def capture_reference(self, pair: pairs.Pair) -> Done:
        """Once for all cases of a pair."""
        self._note("plain", program(Path(__file__).with_name("plain.py"), pair.name))
        target = f"{pair.folder / 'reference.py'}:build"
        return self._note("capture", aligner("capture", target, "-o", self.reference, "--force"))

    def port(
        self, case: Verdict, pair: pairs.Pair, differences: Sequence[pairs.Difference], package: Optional[Path]
    ) -> Verdict:
        """Capture the port on the reference, compare, judge."""
        dump = self.folder / "port.h5"
        target = f"{pair.folder / 'port.py'}:build"
        words = ("capture", target, "--from", self.reference, "-o", dump, "--force")
        done = self._note("capture --from", aligner(*words, package=package))
        advised = done.code != 0 and bool(differences) and "--allow-missing" in done.err
        if advised:  # the port lacks weights or has too many, as it was told: a user goes on as he is advised
            done = self._note("capture --from", aligner(*words, "--allow-missing", package=package))
        if done.code != 0:
            return self._refused(case, "capture --from", done)
        with open_dump(dump) as found:
            self.figures["edits"] = {"seconds": found.header["timing"]["edits_cpu_s"]}
        done = self._note("compare", aligner("compare", self.reference, dump, "--json", package=package))
        if done.code not in ANSWERED:
            return self._refused(case, "compare", done)
        answer = json.loads(done.out)
        verdict = replace(judge(case, differences, answer), figures=dict(self.figures), advised=advised)
        if self.mend and case.planted and package is not None:
            verdict = replace(verdict, patched=self._is_right_with(edits(answer), target, package))
            if verdict.patched:  # whatever it is called, it is the right cause
                verdict = replace(verdict, caused=1, proved=1)
        if self.texts is not None:
            (self.texts / f"{case.id}.json").write_text(done.out, encoding="utf-8")
            if verdict.misses:
                text = aligner("compare", self.reference, dump, "--all", "--color", "never", package=package)
                (self.texts / f"{case.id}.txt").write_text(text.out + text.err, encoding="utf-8")
        dump.unlink()
        return verdict

    def _is_right_with(self, told: Sequence[Mapping[str, Any]], target: str, package: Path) -> Optional[bool]:
        """Whether the port is right with the edits that were told; None where there are none."""
        if not told:
            return None
        if any(edit["only_here"] for edit in told):
            return False
        folder, dump = package.with_name(f"{package.name}-patched"), self.folder / "patched.h5"
        packages.patched_copy(folder, told, package)
        done = aligner("capture", target, "--from", self.reference, "-o", dump, "--force", package=folder)
        if done.code != 0:
            return False
        done = aligner("compare", self.reference, dump, "--json", package=folder)
        dump.unlink()
        answer = json.loads(done.out) if done.code in ANSWERED else {"outcome": "refused"}
        return bool(answer["outcome"] == "aligned" and not answer["origins"])

    def _note(self, name: str, done: Done) -> Done:
        self.figures[name] = {"code": done.code, "seconds": done.seconds, "peak_mib": done.peak_mib}
        return done

    def _refused(self, case: Verdict, step: str, done: Done) -> Verdict:
        if self.texts is not None:
            (self.texts / f"{case.id}.txt").write_text(done.out + done.err, encoding="utf-8")
        verdict = refused(case, f"{step} ended with {done.code}: {done.reason}")
        return replace(verdict, figures=dict(self.figures))


def cases(pair: pairs.Pair, planted: bool, only: set[str], asked: Asked) -> Iterator[Verdict]:
    """The published port; a wrong one mended, too, for then it is a right one; then the planted ones."""
    held_out = pair.name in pairs.held_out()
    if not only or pair.name in only:
        small = sum(one.small for one in pair.told)
        case = Verdict(pair.name, pair.name, False, held_out, len(pair.told), small)
        yield asked.port(case, pair, pair.differences, None)
    mended = f"{pair.name}-mended"
    if pair.told and (mended in only if only else planted):
        package = asked.folder / mended
        packages.edited_copy(package, pair.mended, packages.installed())
        case = Verdict(mended, pair.name, False, held_out, 0, mended=True)
        yield asked.port(case, pair, pair.hidden, package)
    for one in pair.planted if planted else ():
        if only and one.id not in only:
            continue
        package = asked.folder / one.id
        packages.edited_copy(package, [*pair.mended, *one.edits], packages.installed())
        case = Verdict(one.id, pair.name, True, held_out, 1, int(one.small))
        yield asked.port(case, pair, [one, *pair.hidden], package)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("result", type=Path)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--case", action="append")
    parser.add_argument("--mend", action="store_true")
    parser.add_argument("--texts", type=Path)
    options = parser.parse_args()
    pair = pairs.pair(options.name)
    with tempfile.TemporaryDirectory() as folder:
        asked = Asked(Path(folder), options.texts, options.mend)
        done = asked.capture_reference(pair)
        if done.code != 0:
            print(done.err, file=sys.stderr)
            return 2
        found = [asdict(one) for one in cases(pair, options.planted, set(options.case or ()), asked)]
    options.result.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
