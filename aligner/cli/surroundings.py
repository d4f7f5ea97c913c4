"""What of a process's surroundings matters to a comparison: variables, the terminal, and what packages ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Optional

Finding = tuple[str, Mapping[str, str]]
"""A message and its facts."""

VARIABLES: Mapping[str, str] = {
    "MINDSPORE_DUMP_CONFIG": "doctor-dump-config",
    "MS_JIT": "doctor-ms-jit",
    "MS_JIT_IGNORE_MODULES": "doctor-variable",
    "GRAPH_OP_RUN": "doctor-variable",
    "NVIDIA_TF32_OVERRIDE": "doctor-variable",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "doctor-variable",
    "TORCHDYNAMO_DISABLE": "doctor-variable",
}
DEVELOPERS = "MS_DEV_"
"""Beginning of MindSpore's variables for its own developers."""
LIBRARIES = ("numpy", "protobuf")
"""What frameworks break over when it does not fit."""
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)\s*\(?(?P<bounds>[<>=!~][^;)]*)?\)?\s*(?P<marker>;.*)?")
BOUND = re.compile(r"\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<version>[0-9][0-9.]*)")


def variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that are set and change what is run."""
    for name, message in VARIABLES.items():
        if environ.get(name) and (name != "MS_JIT" or environ[name] == "0"):
            yield message, {"name": name, "value": environ[name]}
    for name in sorted(environ):
        if name.startswith(DEVELOPERS):
            yield "doctor-variable", {"name": name, "value": environ[name]}


def terminal_speaks(encoding: Optional[str]) -> bool:
    """Whether Chinese can be printed."""
    try:
        "标杆".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def unmet(package: str) -> Iterator[Finding]:
    """What the package asks of LIBRARIES, by its own metadata, and does not get."""
    try:
        asked = requires(package) or []
    except PackageNotFoundError:
        return
    for text in asked:
        found = REQUIREMENT.fullmatch(text.strip())
        if found is None or found["marker"] or found["name"].lower() not in LIBRARIES or not found["bounds"]:
            continue
        try:
            here = version(found["name"])
        except PackageNotFoundError:
            here = ""
        if not fits(here, found["bounds"]):
            facts = {
                "package": package,
                "library": found["name"],
                "wanted": found["bounds"].strip(),
                "found": here or "-",
            }
            yield "doctor-requirement", facts


def fits(text: str, bounds: str) -> bool:
    """Whether a version lies within "<2,>=1.20"; a bound of another form is passed over."""
    mine = numbers(text)
    for bound in bounds.split(","):
        found = BOUND.fullmatch(bound.strip())
        if found is None:
            continue
        width = max(len(mine), len(numbers(found["version"])))
        one, other = (part + (0,) * (width - len(part)) for part in (mine, numbers(found["version"])))
        holds = {
            ">=": one >= other,
            "<=": one <= other,
            ">": one > other,
            "<": one < other,
            "==": one == other,
            "!=": one != other,
        }
        if not holds[found["sign"]]:
            return False
    return bool(mine)


def numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with: 2.0.0rc1 is (2, 0, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
