"""Edits that go together by what they say."""

from __future__ import annotations

from aligner.mending.candidate import OTHER, Candidate
from aligner.mending.joining import alongside, everywhere, in_parallel
from aligner.mending.sources import Edit, Sources


def candidates(path, text, pairs):
    """One for each pair of what stands there, the first time behind the last one, and what shall."""
    path.write_text(text, encoding="utf-8")
    found, at = [], 0
    for old, new in pairs:
        at = text.index(old, at)
        found.append(Candidate(2.0, (Edit(str(path), at, at + len(old), new),), OTHER, (), 9, old=old))
        at += len(old)
    return found


def texts(sources, path, found):
    return [sources.edited(one.edits).text(str(path)) for one in found]


def test_a_name_is_changed_in_all_its_places_or_in_neighbours(tmp_path):
    path, sources = tmp_path / "code.py", Sources({})
    some = candidates(path, "a = f(x, x)\nb = g(x)\nc = h(x)\n", [("x", "y")] * 4)
    found = texts(sources, path, everywhere(some))
    assert "a = f(y, y)\nb = g(y)\nc = h(y)\n" in found
    assert "a = f(y, y)\nb = g(y)\nc = h(x)\n" in found
    assert "a = f(x, x)\nb = g(y)\nc = h(y)\n" in found
    assert "a = f(y, x)\nb = g(x)\nc = h(y)\n" not in found


def test_the_same_is_done_to_what_has_other_names_in_one_statement(tmp_path):
    path, sources = tmp_path / "code.py", Sources({})
    some = candidates(path, "a = roll(roll(x, -sh), -sw)\nb = -st\n", [("-sh", "sh"), ("-sw", "sw"), ("-st", "st")])
    assert texts(sources, path, alongside(some, sources)) == ["a = roll(roll(x, sh), sw)\nb = -st\n"]


def test_other_names_are_not_the_same_done_to_several(tmp_path):
    path, sources = tmp_path / "code.py", Sources({})
    some = candidates(path, "a = f(x, y)\n", [("x", "z"), ("y", "z")])
    assert not [*alongside(some, sources)]


def test_the_same_argument_is_told_everywhere(tmp_path):
    path, sources = tmp_path / "code.py", Sources({})
    path.write_text("a = std(x)\nb = std(y)\n", encoding="utf-8")
    ends = (9, 20)
    some = [Candidate(2.0, (Edit(str(path), end, end, ", axis=1"),), OTHER, (), 9, old="") for end in ends]
    assert texts(sources, path, everywhere(some)) == ["a = std(x, axis=1)\nb = std(y, axis=1)\n"]


QUERIES = """q = self.q_norm(turned(q, cos))
k = self.k_norm(turned(k, cos))
v = self.v_norm(v)



u = self.u_norm(turned(u, cos))
"""


def test_the_same_is_done_to_calls_on_lines_near_each_other_that_are_written_alike(tmp_path):
    path, sources = tmp_path / "code.py", Sources({})
    pairs = [(f"self.{n}_norm(turned({n}, cos))", f"turned(self.{n}_norm({n}), cos)") for n in "qk"]
    pairs.append(("self.v_norm(v)", "v"))
    some = candidates(path, QUERIES, [*pairs, ("self.u_norm(turned(u, cos))", "turned(self.u_norm(u), cos)")])
    right = "q = turned(self.q_norm(q), cos)\nk = turned(self.k_norm(k), cos)\n"
    assert texts(sources, path, in_parallel(some, sources)) == [right + QUERIES.partition("k, cos))\n")[2]]


def test_what_is_written_alike_and_changed_otherwise_is_left(tmp_path):
    path, sources = tmp_path / "code.py", Sources({})
    some = candidates(path, "q = f(q)\nk = f(k)\nq = f(q)\n", [("f(q)", "q"), ("f(k)", "f(q)"), ("f(q)", "f(k)")])
    assert not [*in_parallel(some[:2], sources)]
    assert texts(sources, path, in_parallel(some, sources)) == ["q = f(q)\nk = f(q)\nq = f(k)\n"]
