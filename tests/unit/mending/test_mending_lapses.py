"""What people forget, from the text of a function."""

from __future__ import annotations

from functools import partial

import pytest

from aligner.mending.lapses import (
    advanced,
    begun,
    carried,
    chosen,
    gathered,
    grown,
    handed_on,
    ignored,
    likewise,
    looped,
    reread,
    scaled,
    taken_on,
    unread,
)
from aligner.mending.sources import Sources
from tests.unit.mending.edited import edited


def test_a_variable_that_nobody_reads_is_tried_where_others_are_read_after_it(tmp_path):
    lines = "seen = x > 0\n        count = x + 1\n        y = x / (k - 1) + seen"
    found = edited(tmp_path, unread, lines)
    assert any("y = x / (count) + seen" in text or "y = x / count + seen" in text for text in found)
    assert any("y = x / (k - 1) + count" in text for text in found)
    assert not any("seen = count" in text or "count = count" in text for text in found)


def test_it_is_tried_in_the_place_of_what_is_worked_out_and_along_one_more_axis(tmp_path):
    found = edited(tmp_path, reread, "size = x.sum(1)\n        y = x > 2 * x.sum(1, keepdims=True)")
    assert any("y = x > 2 * size\n" in text for text in found)
    assert any("y = x > 2 * size[None]" in text for text in found)
    assert any("y = x > 2 * size[:, None]" in text for text in found)


def test_nothing_is_tried_where_all_is_read(tmp_path):
    assert not edited(tmp_path, unread, "a = x + 1\n        y = a * 2\n        y = y + 1")


def test_all_but_the_one_that_a_loop_is_at(tmp_path):
    found = edited(tmp_path, chosen, "for i in range(3):\n            y = [j for j in range(3)]")
    assert any("[j for j in range(3) if j != i]" in text for text in found)


def test_there_is_no_one_to_leave_out_without_a_loop(tmp_path):
    assert not edited(tmp_path, chosen, "y = [j for j in range(3)]")


def test_a_number_times_a_size(tmp_path):
    found = edited(tmp_path, partial(scaled, factors=["self.heads"]), "y = x * sqrt(2.0 / 27.0)")
    assert "sqrt(2.0 / (27.0 * self.heads))" in "".join(found)
    assert "sqrt((2.0 / self.heads) / 27.0)" in "".join(found)


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("y = f(x, k) - t", "y = f(x, k - t)"),
        ("y = f(x, k) - t", "y = f(x - t, k)"),
        ("y = f(x, k - t)", "y = f(x, k) - t"),
    ],
)
def test_an_operand_inside_of_a_call_or_outside(tmp_path, line, other):
    assert any(other in text for text in edited(tmp_path, carried, line))


@pytest.mark.parametrize("loop", ["for i in range(3)", "for i, z in enumerate(x)"])
def test_an_item_that_stands_still_in_a_loop(tmp_path, loop):
    found = edited(tmp_path, looped, f"{loop}:\n            y = self.norms[0](n[-1])")
    assert ["self.norms[i](n[-1])" in text for text in found[:1]] == [True]


@pytest.mark.parametrize("lines", ["y = self.norms[0](x)", "for z in x:\n            y = self.norms[0](z)"])
def test_an_item_of_no_loop_that_counts_stays(tmp_path, lines):
    assert edited(tmp_path, looped, lines) == []


def test_what_each_turn_is_to_begin_behind(tmp_path):
    lines = """at, base = 0, 1
        for k in n:
            half = k // 2
            y = y + x[at : at + half] * base"""
    found = [text.split("* base")[1].split("return")[0].strip() for text in edited(tmp_path, advanced, lines)]
    assert found[0] == "at += half"
    assert {"at += 1", "at += k", "base *= k"} <= {*found}
    assert all(f"            {step}\n" in text for step, text in zip(found, edited(tmp_path, advanced, lines)))


@pytest.mark.parametrize("last", ["at += half", "at = half"])
def test_what_turns_change_is_left(tmp_path, last):
    lines = f"at = 0\n        for k in n:\n            half = k // 2\n            y = x[at : half]\n            {last}"
    assert edited(tmp_path, advanced, lines) == []


def test_what_a_loop_overwrites_is_added_up_or_multiplied(tmp_path):
    lines = "y = 1\n        for k in n:\n            z = k + 1\n            y = 1 - z"
    found = [text.split("k + 1")[1].split("return")[0].strip() for text in edited(tmp_path, gathered, lines)]
    assert found == ["y = y + 1 - z", "y = y * (1 - z)"]


def test_what_is_done_to_one_is_done_to_the_other(tmp_path):
    lines = """hs = [held(n, a, b) for a, b in zip(new_hs, hs)]
        state = new
        y = hs"""
    found = [text.split("def construct")[1] for text in edited(tmp_path, likewise, lines)]
    assert any("state = [held(n, a, b) for a, b in zip(new, state)]" in text for text in found)


def test_what_is_done_to_nothing_of_the_kind_is_left(tmp_path):
    assert edited(tmp_path, likewise, "z = x + n\n        y = x") == []


def test_what_is_made_of_one_is_made_of_the_other(tmp_path):
    lines = "x = ops.cat((x, x[i], x))\n        y = ops.tile(y, (3, 1))"
    assert any("y = ops.cat((y, y[i], y))" in text for text in edited(tmp_path, likewise, lines))


def test_where_it_counts_from(tmp_path):
    way = partial(begun, whole=["at"], factors=["self.heads"])
    found = edited(tmp_path, way, "at = n\n        y = x[at:]")
    assert [text.split("at = ")[1].split("\n")[0] for text in found] == [
        "max(n - self.heads, 0)",
        "n - self.heads",
        "n + self.heads",
    ]


def test_what_a_function_is_given_and_never_reads_stands_in_the_place_of_an_argument(tmp_path):
    found = edited(tmp_path, ignored, "y = self.norm(x, self.width)")
    assert any("self.norm(x, n)" in text for text in found)


@pytest.mark.parametrize("loop", ["[f(x[i], z) for i in range(3)]", "[f(x[i], z) for i, w in enumerate(x)]"])
def test_in_a_loop_its_item_is_tried_first_where_others_are_taken_by_item(tmp_path, loop):
    assert ["f(x[i], n[i])" in text for text in edited(tmp_path, ignored, f"y = {loop}")[:1]] == [True]


def test_nothing_is_tried_where_a_function_reads_all_that_it_is_given(tmp_path):
    assert not edited(tmp_path, ignored, "y = self.norm(x, n)")


@pytest.mark.parametrize(
    ("lines", "others"),
    [
        ("y = [self.of[n](one) for one in x]", ["y = [self.of[i](one) for i, one in enumerate(x)]"]),
        (
            "i = 0\n        y = [self.of[0](a, b) for a, b in x]",
            ["y = [self.of[turn](a, b) for turn, (a, b) in enumerate(x)]"],
        ),
        ("y = [self.of[one](x) for one in x]", []),
    ],
)
def test_a_list_that_is_made_of_another_takes_each_item_of_a_third(tmp_path, lines, others):
    found = edited(tmp_path, looped, lines)
    assert len(found) == len(others)
    assert all(other in text for text, other in zip(found, others))


def test_another_of_what_a_turn_makes_is_handed_on(tmp_path):
    body = "fine = y + x\n            z = fine * 2\n            y = stop(z)"
    found = edited(tmp_path, handed_on, f"y = 0\n        for step in range(n):\n            {body}")
    assert any("y = stop(fine)" in text for text in found)
    assert not any("y = stop(z)" in text for text in found)


def test_the_next_turn_goes_on_with_what_one_has_made(tmp_path):
    body = "near = softmax(x * k)\n            y = (x + near) / 2"
    found = edited(tmp_path, taken_on, f"x = x + 1\n        for step in range(n):\n            {body}")
    assert any("x = y = (x + near) / 2" in text for text in found)
    assert any("x = near = softmax" in text for text in found)
    assert not any("near = y" in text for text in found)


def test_the_next_turn_goes_on_with_it_in_place_of_what_a_function_is_given_first(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "def shifted(x, n):\n    for step in range(n):\n        y = x / 2\n    return y\n", encoding="utf-8"
    )
    found = [Sources({}).edited(edits).text(str(file)) for edits in taken_on(Sources({}), str(file), 3)]
    assert [text.splitlines()[2].strip() for text in found] == ["x = y = x / 2"]


def test_a_variable_that_each_turn_makes_anew_goes_on_as_it_is(tmp_path):
    body = "x = softmax(x * 2)\n            y = x / 2"
    assert not any("x = y" in text for text in edited(tmp_path, taken_on, f"for step in range(n):\n            {body}"))


def test_what_a_list_that_grows_has_so_far(tmp_path):
    loop = "y = [x]\n        for step in range(n):\n            y.append(f(step + y[-1]))"
    found = edited(tmp_path, grown, loop)
    assert any("f(step + sum(y))" in text for text in found)
    assert any("f((step + y[-1] if len(y) > 1 else step))" in text for text in found)


def test_what_is_the_sum_of_a_list_that_grows(tmp_path):
    (found,) = edited(tmp_path, grown, "y = [x]\n        for step in range(n):\n            y.append(f(sum(y)))")
    assert "f(y[-1])" in found
