"""What a call writes into what it is given."""

from __future__ import annotations

from types import SimpleNamespace

from aligner.effects import Effects, repeated


def arguments():
    old = object()
    return old, ([{"self": None, "cross": old}, [1, 2]],), {"cache": SimpleNamespace(length=1, old=old)}


def test_changes_are_made_again_in_other_arguments():
    _, args, kwargs = arguments()
    effects = Effects(args, kwargs)
    args[0][0]["self"] = ("k", "v")
    del args[0][0]["cross"]
    args[0][1].append(3)
    kwargs["cache"].length = 2
    other_old, others, named = arguments()
    repeated(effects.found(), others, named)
    assert others == ([{"self": ("k", "v")}, [1, 2, 3]],)
    assert (named["cache"].length, named["cache"].old) == (2, other_old)


def test_what_was_not_changed_stays_the_callers_own():
    mine, copied = {"k": "mine"}, {"k": "copied"}
    effects = Effects((copied,), {})
    copied["v"] = "new"
    repeated(effects.found(), (mine,), {})
    assert mine == {"k": "mine", "v": "new"}


def test_all_is_as_it_was():
    _, args, kwargs = arguments()
    effects = Effects(args, kwargs)
    args[0][0]["self"] = 1
    args[0][1][:] = [7]
    kwargs["cache"].more = 2
    effects.undone()
    assert (args[0][0]["self"], args[0][1]) == (None, [1, 2])
    assert not hasattr(kwargs["cache"], "more")


def test_what_holds_itself_and_tuples_do_no_harm():
    loop: list[object] = [1]
    loop.append(loop)
    effects = Effects(((loop, (loop,)),), {})
    loop.append(2)
    (change,) = effects.found()
    assert change.size == 3
