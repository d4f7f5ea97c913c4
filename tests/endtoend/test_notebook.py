"""The sample notebook runs from top to bottom, finds the planted bug, and shows static pages only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra [notebook]")
nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra [notebook]")
pytest.importorskip("torch", reason="the notebook captures a torch net")
pytest.importorskip("mindspore", reason="the notebook captures a MindSpore net")

NOTEBOOKS = Path(__file__).resolve().parents[2] / "samples" / "notebooks"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook with its outputs; jupyter_client runs "python3" as the interpreter it lives in."""
    notebook = nbformat.read(NOTEBOOKS / "find_a_bug.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("import sys; print(sys.executable)"))
    folder = tmp_path_factory.mktemp("notebook")
    before = os.environ.get("ALIGNER_LANG")
    os.environ["ALIGNER_LANG"] = "en"
    try:
        nbclient.NotebookClient(
            notebook, timeout=240, resources={"metadata": {"path": str(folder)}}, kernel_name="python3"
        ).execute()
    finally:
        if before is None:
            del os.environ["ALIGNER_LANG"]
        else:
            os.environ["ALIGNER_LANG"] = before
    return notebook


def outputs(notebook, mime):
    return [
        output["data"][mime]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if mime in output.get("data", {})
    ]


def printed(notebook):
    return "".join(
        output["text"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


def test_the_planted_bug_is_found(executed):
    pages = outputs(executed, "text/html")
    (diverged,) = [page for page in pages if ">DIVERGED<" in page]
    assert "blocks.0.act" in diverged
    assert "the reference has 0.01" in diverged
    assert "nn.LeakyReLU(" in diverged
    assert ": confirmed" in diverged
    assert any(">ALIGNED<" in page for page in pages), "the mended port is aligned"
    assert "the port is 20.00 to 20.00 times the reference" in printed(executed)
    assert "positive inputs that differ: 0" in printed(executed)


def test_the_kernel_is_this_interpreter(executed):
    assert printed(executed).splitlines()[-1] == sys.executable


def test_every_view_is_static(executed):
    pages = outputs(executed, "text/html")
    assert len(pages) == 6
    for page in pages:
        assert "<script" not in page
        assert "http" not in page


def test_every_view_has_a_text_form_of_one_line(executed):
    lines = outputs(executed, "text/plain")
    assert sum(line.startswith("<") and "\n" not in line for line in lines) == len(lines) - 1  # worst is a table


def test_the_committed_notebook_has_no_outputs():
    for path in NOTEBOOKS.glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None), path
