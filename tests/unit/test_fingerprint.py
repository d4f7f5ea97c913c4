"""Values known again by a few sums: what changes them, and what does not."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from aligner.fingerprint import Fingerprint, Prints, apart, distances, fingerprint, print_of

NUMBERS = np.random.default_rng(0).standard_normal((4, 6, 10)).astype(np.float32)


def taken(array):
    found = fingerprint(np.asarray(array))
    assert found is not None
    return found


@pytest.mark.parametrize("error", [1e-5, 1e-3, 0.1])
@pytest.mark.parametrize("shape", [(7,), (4, 6, 10), (300, 500)])
def test_two_fingerprints_tell_how_far_their_values_are_apart(shape, error):
    rng = np.random.default_rng(1)
    one = rng.standard_normal(shape)
    off = rng.standard_normal(shape)
    other = one + error * np.linalg.norm(one) / np.linalg.norm(off) * off
    assert 0.2 * error < apart(taken(one), taken(other)) < 4.0 * error


def test_a_reshape_leaves_it_and_a_transposition_does_not():
    turned = NUMBERS.swapaxes(1, 2)
    assert apart(taken(NUMBERS), taken(NUMBERS.reshape(24, 10))) < 1e-6
    assert apart(taken(NUMBERS), taken(turned)) > 0.1
    assert distances([taken(NUMBERS)], [taken(turned)], turned=True) < 1e-5


def test_elements_in_another_order_are_no_transposition():
    rolled = np.roll(NUMBERS, 1, axis=1)
    assert distances([taken(NUMBERS)], [taken(rolled)], turned=True) > 0.1


def test_which_are_near_is_told_of_those_of_its_size():
    values = [taken(NUMBERS), None, taken(NUMBERS * 2), taken(NUMBERS.reshape(-1)), taken(NUMBERS[:1])]
    assert Prints(values).near(taken(NUMBERS), 1e-5) == [0, 3]
    assert Prints(values).near(None, 1e-5) == []


def test_masks_agree_whatever_stands_for_minus_infinity():
    hidden = np.random.default_rng(2).random(NUMBERS.shape) < 0.3
    ways = [np.where(hidden, fill, NUMBERS) for fill in (-np.inf, np.float32(-1e9), np.finfo(np.float32).min)]
    assert all(apart(taken(ways[0]), taken(way)) < 1e-6 for way in ways)
    assert apart(taken(ways[0]), taken(np.where(~hidden, -np.inf, NUMBERS))) > 0.1
    ones, most = (np.where(hidden, fill, NUMBERS) for fill in (1.0, np.inf))
    assert apart(taken(ones), taken(most)) > 0.1


def test_sums_are_told_from_each_other_however_large():
    assert apart(taken(np.array(52832.0)), taken(np.array(7040.0))) > 0.1
    assert apart(taken(1e4 + NUMBERS), taken(1e4 + 3000 * np.abs(NUMBERS))) > 0.01
    assert apart(taken(np.full(5, -1e9)), taken(np.full(5, -np.inf))) < 1e-6


@pytest.mark.parametrize("array", [np.array([1.0, np.nan]), np.zeros((0, 3)), np.array([complex("nan")])])
def test_what_cannot_be_told_has_none(array):
    assert fingerprint(array) is None


def test_it_comes_back_from_its_text():
    found = taken(NUMBERS)
    again = Fingerprint.parsed(list(found.shape), found.whole, found.text())
    assert apart(found, again) < 1e-6
    assert again.shape == NUMBERS.shape


@pytest.mark.parametrize("text", ["", "AAAA", "no base64"])
def test_a_damaged_text_is_refused(text):
    with pytest.raises(ValueError):
        Fingerprint.parsed([2], False, text)


def test_a_print_sees_a_single_element():
    other = NUMBERS.copy()
    other[3, 5, 8] = np.nextafter(other[3, 5, 8], np.float32(9))
    assert print_of(NUMBERS) == print_of(NUMBERS.copy())
    assert print_of(NUMBERS) != print_of(other)


@pytest.mark.parametrize("shape", [(1 << 22,), (2, 1 << 21), (1 << 21, 2), (64, 256, 256)])
def test_it_needs_less_memory_than_the_value_has(shape):
    array = np.ones(shape, np.float32)
    fingerprint(array)  # what is kept from one to the next
    tracemalloc.start()
    fingerprint(array)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < array.nbytes


@pytest.mark.parametrize("shape", [(3, 90_000), (70_000, 5), (2, 3, 100_000)])
def test_axes_that_are_long_may_be_turned_too(shape):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    one, other = fingerprint(array), fingerprint(np.ascontiguousarray(array.T))
    assert np.linalg.norm(one.turned - other.turned) < 1e-4 * np.linalg.norm(one.turned)
    changed = fingerprint(np.ascontiguousarray(np.roll(array, 1, axis=-1).T))
    assert np.linalg.norm(one.turned - changed.turned) > 1e-2 * np.linalg.norm(one.turned)


def test_complex_numbers_are_told_by_both_parts():
    value = NUMBERS[:2] + 1j * NUMBERS[2:]
    assert apart(taken(value), taken(value.astype(np.complex128))) < 1e-6
    for other in (value.conj(), value.real + 0j, 1j * value, value[:, ::-1]):
        assert apart(taken(value), taken(other)) > 0.1
    assert apart(taken(NUMBERS), taken(NUMBERS + 0j)) == 0.0
