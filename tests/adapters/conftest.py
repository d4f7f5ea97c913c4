"""Readable failures for the shipped checks, whose asserts stand outside the tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("aligner.testing")
