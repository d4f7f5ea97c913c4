"""Which process writes a dump, as its journal names it, and whether that process still lives.

A lock on the journal may outlive its writer, in a child that the writer has forked. Where the system tells enough of
processes (Linux, on the same machine and seen from the same container), the writer's own fate decides.
"""

from __future__ import annotations

import os
from typing import Any, Optional

_PROCESSES = "/proc"
_ENDED = ("Z", "X")  # killed, but its parent has not looked yet


def ourselves() -> dict[str, Any]:
    """This process; nothing where the system does not tell enough."""
    number, state = os.getpid(), _state("self")
    if state is None or state[0] != number:  # the processes shown are not those of our container
        return {}
    try:
        with open(f"{_PROCESSES}/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return {"pid": number, "started": state[2], "boot": boot, "space": os.readlink(f"{_PROCESSES}/self/ns/pid")}
    except OSError:
        return {}


def lives(owner: object) -> Optional[bool]:
    """Whether this process is still there; None where that cannot be known from here."""
    here = ourselves()
    if not here or not isinstance(owner, dict) or any(owner.get(name) != here[name] for name in ("boot", "space")):
        return None
    number = owner.get("pid")
    if type(number) is not int or not 0 < number < 1 << 31:
        return None
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        pass
    state = _state(str(number))
    if state is None:  # it is there, and its state is hidden
        return True
    return state[1] not in _ENDED and state[2] == owner.get("started")


def _state(name: str) -> Optional[tuple[int, str, int]]:
    """A process's number, its state, and when it was started, in ticks since the machine was."""
    try:
        with open(f"{_PROCESSES}/{name}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
        number, rest = text.split(" ", 1)[0], text[text.rindex(")") + 2 :].split()  # its name may hold anything
        return int(number), rest[0], int(rest[19])
    except (OSError, ValueError, IndexError):
        return None
