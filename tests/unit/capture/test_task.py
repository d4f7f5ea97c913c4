"""What a factory may return, and inputs from a file."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

from aligner.capture.task import Task, as_task, from_npz
from aligner.errors import CaptureError

MODEL = object()


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        (3, [((3,), {})]),
        ((1, 2), [((1, 2), {})]),
        ([(1, 2), (3, 4)], [((1, 2), {}), ((3, 4), {})]),
        ({"ids": 1, "mask": 2}, [((), {"ids": 1, "mask": 2})]),
        ([{"ids": 1}, 5], [((), {"ids": 1}), ((5,), {})]),
        (namedtuple("Batch", "x y")(1, 2), [((namedtuple("Batch", "x y")(1, 2),), {})]),
        (None, []),
    ],
)
def test_inputs_become_one_call_per_step(inputs, wanted):
    assert Task(MODEL, inputs).arguments() == wanted


def test_a_model_alone_or_with_inputs_is_a_task():
    assert as_task(MODEL) == Task(MODEL)
    assert as_task((MODEL, 1)) == Task(MODEL, 1)
    assert as_task(Task(MODEL, 1)) == Task(MODEL, 1)


def test_what_is_given_by_name_stands_behind_the_inputs():
    assert as_task((MODEL, (1, 2), {"mask": 3})).arguments() == [((1, 2), {"mask": 3})]
    assert as_task((MODEL, [1, {"mask": 4}], {"mask": 3})).arguments() == [((1,), {"mask": 3}), ((), {"mask": 4})]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "returned None"),
        ((MODEL, 1, 2), "tuple of 3"),
        (Task(MODEL, {"x": 1}, loss=print), "inputs without a label"),
        (Task(MODEL, 1, optimizer=print), "an optimizer and no loss"),
        (Task(MODEL, (1, 2), loss=print, accumulate=0), "accumulate is 0"),
    ],
)
def test_what_cannot_be_a_task_is_told(made, said):
    with pytest.raises(CaptureError, match=said):
        as_task(made)


def test_arrays_of_a_file_come_in_order_or_by_name(tmp_path):
    np.savez(tmp_path / "rows.npz", np.arange(3), np.ones(2))
    first, second = from_npz(str(tmp_path / "rows.npz"))
    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [1, 1]
    np.savez(tmp_path / "names.npz", ids=np.arange(3), mask=np.ones(2))
    assert set(from_npz(str(tmp_path / "names.npz"))) == {"ids", "mask"}


def test_a_file_that_is_no_npz_is_told(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "one.npy", np.ones(2))
    np.savez(tmp_path / "pickle.npz", np.array([{}], dtype=object))
    np.savez(tmp_path / "empty.npz")
    np.savez(tmp_path / "whole.npz", np.arange(100))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:200])
    for name in ("cut.npz", "text.npz", "one.npy", "pickle.npz", "empty.npz", "missing.npz"):
        with pytest.raises(CaptureError, match="cannot be read as inputs"):
            from_npz(str(tmp_path / name))
