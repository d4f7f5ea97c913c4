"""Who may import whom: the arrows of the package go one way, and frameworks stay outside it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

WORDS = {
    "record",
    "findings",
    "devices",
    "dtypes",
    "fingerprint",
    "noise",
    "structure",
    "effects",
    "values",
    "selection",
    "errors",
    "messages",
    "vocabulary",
    "callable_package",
    "columns",
    "patches",
    "words",
}
"""What every stage may use."""

MAY_IMPORT = {
    "record": set(),
    "dtypes": {"record"},
    "fingerprint": {"record"},
    "noise": {"record"},
    "structure": set(),
    "values": {"adapter", "record"},
    "effects": {"structure"},
    "vocabulary": set(),
    "selection": set(),
    "findings": set(),
    "devices": set(),
    "callable_package": set(),
    "columns": set(),
    "patches": set(),
    "messages": set(),
    "words": {"words"},
    "errors": {"messages"},
    "adapter": WORDS,
    "registry": WORDS | {"adapter"},
    "dump": WORDS | {"dump", "notebook"},
    "source": WORDS | {"adapter", "source"},
    "capture": WORDS | {"adapter", "registry", "dump", "source", "capture"},
    "ingest": WORDS | {"ingest"},
    "explain": WORDS | {"explain"},
    "training": WORDS | {"explain", "training"},
    "programs": WORDS | {"programs"},
    "compare": WORDS | {"dump", "explain", "training", "programs", "compare", "notebook"},
    "mending": WORDS | {"adapter", "dump", "source", "explain", "compare", "mending"},
    "replay": WORDS
    | {"adapter", "registry", "dump", "source", "capture", "explain", "training", "programs", "compare", "mending"}
    | {"replay"},
    "weights": WORDS | {"dump", "ingest", "explain", "compare", "replay", "weights"},
    "report": WORDS | {"explain", "compare", "weights", "report"},
    "notebook": WORDS | {"dump", "explain", "compare", "report", "notebook"},
    "testing": WORDS | {"adapter", "source", "testing"},
    "cli": None,  # the top: everything
    "__main__": {"cli"},
    "__init__": None,
}
"""Package or module of aligner -> those of aligner it may import. dump and compare reach notebook only inside
`_repr_html_` and `__getitem__`, as objects that show themselves must."""

FRAMEWORKS = {"torch", "mindspore", "mindtorch", "mindnlp", "msadapter", "aligner_hooks"}


def imports(path):
    """Absolute module names that a file imports at run time, wherever they stand in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files():
    return sorted(path for path in (ROOT / "aligner").rglob("*.py") if "demo_nets" not in path.parts)


def area(path):
    return path.relative_to(ROOT / "aligner").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_keeps_to_its_arrows(path):
    allowed = MAY_IMPORT[area(path)]
    for name in imports(path):
        first, _, rest = name.partition(".")
        assert first not in FRAMEWORKS, f"{name}: the core imports no framework"
        if first == "aligner" and allowed is not None and rest:
            assert rest.partition(".")[0] in allowed | {area(path), "__version__"}, name


def test_only_the_dump_knows_hdf5():
    for path in files():
        if area(path) != "dump":
            assert not any(name.split(".")[0] == "h5py" for name in imports(path)) or path.name == "doctor.py", path


OWN_FRAMEWORKS = {
    "torch": {"torch"},
    "mindspore": {"mindspore"},
    "mindtorch": {"mindtorch", "mindspore"},
    "torchlike": set(),
    "mindsporelike": {"mindspore"},
}
"""Adapter, or what several share -> what it may import; MindTorch's tensors are MindSpore's below."""

SHARED = {
    "torch": {"torchlike", "frames", "groups", "living"},
    "mindspore": {"mindsporelike", "frames", "groups", "living"},
    "mindtorch": {"frames", "groups", "living", "torchlike", "mindsporelike"},
    "torchlike": {"groups"},
    "mindsporelike": {"groups"},
}


@pytest.mark.parametrize("name", sorted(OWN_FRAMEWORKS))
def test_an_adapter_imports_its_own_framework_only(name):
    folder = name if name.endswith("like") else f"{name}_"
    for path in (ROOT / "hooks" / "aligner_hooks" / folder).rglob("*.py"):
        others = FRAMEWORKS - OWN_FRAMEWORKS[name] - {"aligner_hooks"}
        for imported in imports(path):
            assert imported.split(".")[0] not in others, f"{path}: {imported}"
            if imported.startswith("aligner_hooks."):
                assert imported.split(".")[1] in {folder, *SHARED.get(name, ())}, f"{path}: {imported}"
            if imported.startswith("aligner."):
                assert imported.split(".")[1] in WORDS | {"adapter"}, f"{path}: {imported}"


def test_every_area_has_a_row():
    assert {area(path) for path in files()} == set(MAY_IMPORT)
