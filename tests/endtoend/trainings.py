"""Two training scripts, asked as a user asks."""

from __future__ import annotations

import json


def edited(text, edits):
    """A script with each of the old texts, which stand there once, replaced."""
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def compared(aligner, folder, reference, port, steps, *words):
    """The answer of two scripts, the port's held to the reference, or captured with other `words`."""
    (folder / "train.py").write_text(reference)
    (folder / "port.py").write_text(port)
    done = aligner("capture", "-o", "ref.h5", "--gradients", "--steps", steps, "train.py")
    assert done.returncode == 0, done.stderr
    done = aligner("capture", "-o", "port.h5", "--gradients", "--from", "ref.h5", *words, "port.py")
    assert done.returncode == 0, done.stderr
    return json.loads(aligner("compare", "ref.h5", "port.h5", "--json").stdout)
