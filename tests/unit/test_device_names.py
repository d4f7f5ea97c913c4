"""Names of devices, and CANN's version."""

from __future__ import annotations

import pytest

from aligner.devices import Device, cann, parse


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("cpu", Device("cpu", None)),
        ("Ascend", Device("ascend", None)),
        ("NPU:3", Device("ascend", 3)),
        ("ascend:0", Device("ascend", 0)),
        ("GPU", Device("gpu", None)),
        ("cuda:1", Device("gpu", 1)),
        (" cuda ", Device("gpu", None)),
    ],
)
def test_users_name_devices_as_they_like(name, device):
    assert parse(name) == device


@pytest.mark.parametrize("name", ["", "tpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "ascend:9999999", "npu:³"])
def test_what_is_no_device_is_none(name):
    assert parse(name) is None


def test_the_version_of_cann_stands_beside_its_compiler(tmp_path):
    (tmp_path / "compiler").mkdir()
    (tmp_path / "compiler" / "version.info").write_text("Version=8.1.RC1\nversion_dir=8.1.RC1\n")
    assert cann({"ASCEND_HOME_PATH": str(tmp_path)}) == "8.1.RC1"
    assert cann({}) is None
    assert cann({"ASCEND_HOME_PATH": str(tmp_path / "none")}) is None
