"""Patches: whoever leaves in whatever order, the very object that stood there stands there again."""

from __future__ import annotations

import gc
import itertools
import os
import random
import sys
import threading
from types import ModuleType

import pytest

from aligner.patches import Handle, hold, lifted, patch, places, together


def telling(below, listeners):
    """Tells all who listen, and hands on."""

    def told(*args):
        for listener in list(listeners.values()):
            listener.append(args[-1])
        return below(*args)

    return told


def doubling(below, listeners):
    def doubled(*args):
        return below(*args) * 2 if listeners else below(*args)

    return doubled


class Base:
    def twice(self, x):
        return 2 * x

    @staticmethod
    def still(x):
        return x

    @classmethod
    def named(cls, x):
        return f"{cls.__name__}{x}"


class Heir(Base):
    pass


class Slotted:
    __slots__ = ("call", "empty")

    def __init__(self):
        self.call = str


class Answering:
    def __getattr__(self, name):
        if name == "asked":
            return str
        raise AttributeError(name)


def module():
    made = ModuleType("made")
    made.function = str
    made.__getattr__ = lambda name: repr if name == "lazy" else (_ for _ in ()).throw(AttributeError(name))
    return made


PLACES = {
    "a class's own": lambda: (type("Own", (), {"twice": Base.twice}), "twice"),
    "inherited": lambda: (type("Heir", (Base,), {}), "twice"),
    "static": lambda: (type("Own", (), {"still": staticmethod(str)}), "still"),
    "of the class": lambda: (type("Own", (), {"named": classmethod(lambda cls, x: x)}), "named"),
    "a built-in class's, inherited": lambda: (type("Heir", (list,), {}), "__getitem__"),
    "an object's own": lambda: (vars(made := type("Own", (), {})()).update(call=str) or made, "call"),
    "an object's class's": lambda: (Base(), "twice"),
    "a slot": lambda: (Slotted(), "call"),
    "answered": lambda: (Answering(), "asked"),
    "a module's": lambda: (module(), "function"),
    "a lazy module's": lambda: (module(), "lazy"),
    "an entry": lambda: ({"a": 1, "call": str, "b": 2}, "call"),
}


@pytest.fixture(params=sorted(PLACES))
def place(request):
    return PLACES[request.param]()


@pytest.fixture(autouse=True)
def nothing_stays():
    before = places()
    yield
    assert places() == before


def stands(owner, name):
    """What stands there: the object itself and the order of its neighbours, so that nothing moves."""
    if isinstance(owner, dict):
        return list(owner.items())
    if hasattr(owner, "__slots__"):
        return [(name, getattr(owner, name, None)) for name in owner.__slots__]
    return list(vars(owner).items())


def same(one, other):
    return len(one) == len(other) and all(a is b and v is w for (a, v), (b, w) in zip(one, other))


def called(owner, name, x):
    if isinstance(owner, dict):
        return owner[name](x)
    if isinstance(owner, type) and name in ("twice", "__getitem__"):
        made = owner([7, 8, 9]) if issubclass(owner, list) else owner()
        return getattr(made, name)(x)
    return getattr(owner, name)(x)


def put(owner, name, value):
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_very_object_stands_there_again(place, order):
    owner, name = place
    before, plain = stands(owner, name), called(owner, name, 1)
    told = [], [], []
    handles = [patch(owner, name, make, one) for make, one in zip((telling, doubling, telling), told)]
    assert len(places()) == 1
    assert called(owner, name, 1) == plain * 2
    assert told == ([1], [], [1])
    for number in order:
        handles[number].remove()
        handles[number].remove()
        for one in told:
            one.clear()
        gone = order[: order.index(number) + 1]
        assert called(owner, name, 1) == (plain if 1 in gone else plain * 2)
        assert [bool(one) for one in told] == [0 not in gone, False, 2 not in gone]
    assert same(before, stands(owner, name))


def test_an_empty_slot_is_empty_again():
    owner = Slotted()
    handle = hold(owner, "empty", 3)
    assert owner.empty == 3
    handle.remove()
    assert not hasattr(owner, "empty")


def test_what_is_not_there_is_not_there_again():
    owner, entries = type("Own", (), {})(), {"a": 1}
    handles = [hold(owner, "new", 1), hold(entries, "new", 2), hold(Base, "new", 3)]
    assert (owner.new, entries["new"], Base.new) == (1, 2, 3)
    for handle in handles:
        handle.remove()
    assert (vars(owner), entries, hasattr(Base, "new")) == ({}, {"a": 1}, False)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_code_of_a_function_can_be_held(order):
    def function(x):
        return x

    names = [function, function]  # whoever imported it by name has the very function
    own = function.__code__
    handles = [hold(function, "__code__", (lambda x: -x).__code__), hold(function, "__code__", (lambda x: 0).__code__)]
    assert names[0](1) == 0
    for number in order:
        handles[number].remove()
    assert function.__code__ is own
    assert names[1](1) == 1


@pytest.mark.parametrize("wraps", [False, True])
def test_what_somebody_has_put_upon_ours_is_not_torn_away(place, wraps):
    owner, name = place
    before, plain, told, theirs = stands(owner, name), called(owner, name, 1), [], []
    handle = patch(owner, name, telling, told)
    ours = dict(stands(owner, name))[name]
    inner = ours.__func__ if isinstance(ours, (staticmethod, classmethod)) else ours

    def wrapper(*args):
        theirs.append(args[-1])
        return inner(*args)

    if wraps:
        wrapper.__dict__.update(inner.__dict__)  # as functools.wraps does
        wrapper.__wrapped__ = inner
    put(owner, name, type(ours)(wrapper) if isinstance(ours, (staticmethod, classmethod)) else wrapper)
    assert called(owner, name, 1) == plain
    handle.remove()
    assert called(owner, name, 2) == called(owner, name, 2)
    assert theirs == [1, 2, 2]
    assert told == [1]
    assert len(places()) == 1
    another = patch(owner, name, telling, told)
    called(owner, name, 0)
    assert told == [1, 0]
    another.remove()
    put(owner, name, ours)  # they are through
    hold({}, "anything", 1).remove()
    assert same(before, stands(owner, name))


def test_nested_with_somebody_elses_all_hear(place):
    owner, name = place
    outer, inner, before = [], [], stands(owner, name)
    one = patch(owner, name, telling, outer)
    ours = dict(stands(owner, name))[name]
    below = ours.__func__ if isinstance(ours, (staticmethod, classmethod)) else ours
    theirs = lambda *args: below(*args)  # noqa: E731 - a wrapper of somebody's
    put(owner, name, type(ours)(theirs) if isinstance(ours, (staticmethod, classmethod)) else theirs)
    two = patch(owner, name, telling, inner)
    called(owner, name, 1)
    assert (outer, inner) == ([1], [1])
    two.remove()
    put(owner, name, ours)
    called(owner, name, 2)
    assert (outer, inner) == ([1, 2], [1])
    one.remove()
    assert same(before, stands(owner, name))


def test_what_was_put_back_by_somebody_stays_and_the_next_is_heard():
    owner, told = type("Own", (), {"twice": Base.twice}), []
    one = patch(owner, "twice", telling, told)
    owner.twice = Base.twice  # a tool that came before us and goes before us
    two = patch(owner, "twice", telling, told)
    owner().twice(1)
    assert told == [1, 1]
    two.remove()
    owner.twice = Base.twice
    one.remove()
    assert vars(owner)["twice"] is Base.twice


def test_a_value_set_meanwhile_is_the_last_word():
    owner = type("Own", (), {})()
    owner.training = None
    handle = hold(owner, "training", False)
    owner.training = True
    handle.remove()
    assert owner.training is True


def test_who_inherits_hands_on_to_what_is_inherited_then():
    told = []
    one = patch(Heir, "twice", telling, told)
    two = patch(Base, "twice", doubling)
    assert Heir().twice(1) == 4
    two.remove()
    assert Heir().twice(1) == 2
    one.remove()
    assert "twice" not in vars(Heir)


def test_what_cannot_be_replaced_leaves_nothing_behind():
    for owner, name in ((int, "real"), (Slotted(), "other"), (object(), "x")):
        with pytest.raises((AttributeError, TypeError)):
            hold(owner, name, 1)

    def broken(below, listeners):
        raise KeyError("make")

    with pytest.raises(KeyError):
        patch(Base, "twice", broken)
    with pytest.raises(AttributeError), together() as handle:  # noqa: PT012 - what came before it is undone
        handle.add(patch(Base, "twice", doubling).remove)
        handle.add(hold(Slotted(), "other", 1).remove)
    assert Base().twice(1) == 2


def test_a_handle_undoes_all_of_it():
    undone = []

    def undo(number):
        undone.append(number)
        if number == 1:
            raise KeyError(number)

    handle = Handle(*(lambda number=number: undo(number) for number in range(3)))
    with pytest.raises(KeyError):
        handle.remove()
    handle.remove()
    assert undone == [2, 1, 0]


def test_lifted_shows_what_stood_there_and_puts_ours_back():
    told = []
    original = Base.twice
    handles = [patch(Base, "twice", telling, told), patch(Base, "twice", doubling)]
    with pytest.raises(KeyError), lifted(Base, "twice"):  # noqa: PT012 - what stands there meanwhile is the question
        assert vars(Base)["twice"] is original
        raise KeyError
    assert Base().twice(1) == 4
    with lifted(Base, "twice"):
        handles[1].remove()
    assert Base().twice(1) == 2
    with lifted(Base, "other"):
        pass
    handles[0].remove()
    assert vars(Base)["twice"] is original


def test_owners_are_kept_as_long_as_needed_and_no_longer():
    owner = type("Own", (), {"twice": Base.twice})
    number = id(owner)
    handle = patch(owner, "twice", doubling)
    del owner
    gc.collect()
    assert [id(owner) for owner, _ in places()] == [number]
    handle.remove()
    assert places() == []


def test_many_threads_that_come_and_go_leave_what_stood_there():
    class Own(Base):
        def twice(self, x):
            return 2 * x

    original, wrong = vars(Own)["twice"], []

    def work(seed):
        chance, made, told = random.Random(seed), Own(), []
        handles = []
        for _ in range(300):
            if chance.random() < 0.5:
                handles.append(patch(Own, "twice", telling, told))
            elif handles:
                handles.pop(chance.randrange(len(handles))).remove()
            if made.twice(21) != 42:
                wrong.append(seed)
        for handle in handles:
            handle.remove()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert vars(Own)["twice"] is original


def test_any_order_with_somebody_elses_in_between():
    """Ours and theirs come and go as they like; theirs as careful tools do it: only when theirs stands on top."""
    for seed in range(200):
        chance, owner = random.Random(seed), type("Own", (), {"twice": Base.twice})
        ours, theirs = [], []
        for _ in range(30):
            act = chance.randrange(4)
            if act == 0:
                ours.append(patch(owner, "twice", chance.choice((telling, doubling)), []))
            elif act == 1 and ours:
                ours.pop(chance.randrange(len(ours))).remove()
            elif act == 2:
                below = vars(owner)["twice"]
                own = lambda self, x, below=below: below(self, x)  # noqa: E731 - a wrapper of somebody's
                theirs.append((own, below))
                owner.twice = own
            elif theirs and vars(owner)["twice"] is theirs[-1][0]:
                owner.twice = theirs.pop()[1]
            assert owner().twice(21) % 42 == 0
        while theirs or ours:
            if theirs and vars(owner)["twice"] is theirs[-1][0]:
                owner.twice = theirs.pop()[1]
            elif ours:
                ours.pop(chance.randrange(len(ours))).remove()
            else:
                hold({}, "anything", 1).remove()
        hold({}, "anything", 1).remove()
        assert vars(owner)["twice"] is Base.twice, seed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_can_go_on_while_a_thread_of_the_parent_is_at_it():
    held, done = threading.Event(), threading.Event()

    def slow(below, listeners):
        held.set()
        done.wait(10)
        return below

    thread = threading.Thread(target=lambda: patch({"a": 1}, "a", slow).remove())
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        handle = hold(Base, "new", 1)
        handle.remove()
        os._exit(0 if not hasattr(Base, "new") else 1)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
