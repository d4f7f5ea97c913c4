"""What lies between the two values: their difference or ratio is a value that was in hand, or two exchanged ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.edits import addend
from aligner.explain.glue.formula import Formula, Term
from aligner.explain.glue.formulas import leaks
from aligner.explain.glue.functions import BACK, FUNCTIONS
from aligner.explain.glue.place import Place
from aligner.explain.glue.pool import Search
from aligner.explain.patterns.pair import distinct, figure
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

TRIES = 6
OUTERS = ("", "ReLU", "LeakyReLU(0.1)", "LeakyReLU(0.01)", "LeakyReLU(0.2)", "GELU", "SiLU")


def suspects(place: Place) -> Iterator[Suspect]:
    """The first difference or ratio that names itself."""
    if not place.telling:
        return
    for outer in OUTERS:
        if outer and not _plausible(place, outer):
            continue
        found = _difference(place, outer) or (_ratio(place) if not outer else None)
        if found is not None:
            yield found
            return


def _plausible(place: Place, outer: str) -> bool:
    known = np.concatenate([place.wanted, place.found])
    known = known[~np.isnan(known)]
    low = float(known.min()) if known.size else 0.0
    if outer == "ReLU":
        return low == 0.0
    return leaks(place.wanted) if outer.startswith("Leaky") else -0.28 < low < 0.0


def _difference(place: Place, outer: str) -> Optional[Suspect]:
    with np.errstate(all="ignore"):
        wanted, found = BACK[outer](place.wanted), BACK[outer](place.found)
        noise = np.maximum(place.noise(wanted), place.noise(found)) * (0.05 if not outer else 1.0)
        constant = distinct(wanted - found) == 1 and bool((wanted != found).all())
        for number, terms in enumerate(Search(place.pool, wanted - found, noise).terms()):
            if number == TRIES:
                return None
            if constant and (len(terms) > 1 or any(np.ptp(f.view.array) > 0 for t in terms for f in t.factors)):
                continue  # many values differ by one number
            left = _left(place, Formula(terms), outer)
            if left is not None and left * 8.0 <= place.pair.before:
                return _told(place, terms, left, outer)
    return _shifted(place) if constant and not outer else None


def _shifted(place: Place) -> Optional[Suspect]:
    """One number more or less everywhere, which no value in hand is."""
    shift = float(np.mean(place.found - place.wanted))
    left = place.pair.proved(place.pair.actual - shift, place.pair.expected)
    return None if left is None else place.pair.suspect("constant-shift", left, 0.8, shift=figure(shift))


def _left(place: Place, missing: Formula, outer: str) -> Optional[float]:
    """What is left of the error where the port has this added, inside its activation if it has one."""
    expected, actual = place.pair.expected, place.pair.actual
    added = missing(expected.shape)
    if not outer:
        left = distance(actual + added, expected)
    else:
        one, other = BACK[outer](np.asarray(actual, np.float64)), BACK[outer](np.asarray(expected, np.float64))
        forth = FUNCTIONS[outer](one + added)
        back = FUNCTIONS[outer](other - added)
        hidden = np.where(np.abs(back - actual) <= place.pair.limit * (1.0 + np.abs(actual)), expected, np.nan)
        mended = np.where(np.isfinite(forth), forth, np.where(np.isfinite(other), hidden, expected))
        if np.isnan(mended).any() or np.isfinite(forth).mean() < 0.1:
            return None
        left = distance(mended, np.asarray(expected, np.float64))
    return left if left <= place.pair.limit else None


def _told(place: Place, terms: tuple[Term, ...], left: float, outer: str) -> Suspect:
    facts: dict[str, Scalar] = {"reference_code": "", "port_code": ""}
    text = Formula(terms).text
    facts["reference_code"] = f"{outer}(... + {text})" if outer else f"... + {text}"
    facts["port_code"] = f"{outer}(...)" if outer else "..."
    gained = [term for term in terms if term.coefficient > 0]
    lost = [Term(term.factors, -term.coefficient) for term in terms if term.coefficient < 0]
    if len(gained) == 1 and len(lost) == 1 and gained[0].coefficient == lost[0].coefficient == 1.0:
        facts.update(other=gained[0].text, instead=lost[0].text)
        facts.update(reference_code=f"... + {gained[0].text}", port_code=f"... + {lost[0].text}")
        return place.pair.suspect("wrong-tensor", left, 0.85, None, **facts)
    if len(terms) == 1 and abs(abs(terms[0].coefficient) - 1.0) > 1e-3:
        facts.update(other=Term(terms[0].factors).text, ratio=f"{terms[0].coefficient:.6g}")
        closer = _factor(place, terms[0], left) if not outer else None
        return closer or place.pair.suspect("addend-off-by-part", left, 0.75, None, **facts)
    if gained and lost:
        codes = {
            "reference_code": f"... + {Formula(tuple(gained)).text}",
            "port_code": f"... + {Formula(tuple(lost)).text}",
        }
        return place.pair.suspect("expression-differs", left, 0.8, None, **{**facts, **codes})
    if gained:
        facts.update(other=Formula(tuple(gained)).text)
        return place.pair.suspect(addend(gained[0], "missing", place.pair.expected.shape), left, 0.9, None, **facts)
    facts.update(other=Formula(tuple(lost)).text, reference_code="...", port_code=f"... + {Formula(tuple(lost)).text}")
    return place.pair.suspect("addend-extra", left, 0.85, None, **facts)


def _factor(place: Place, term: Term, left: float) -> Optional[Suspect]:
    """The factor on both sides, each a multiple of the value plus a number; or another count in a deviation."""
    values = place.pool.values(Formula((Term(term.factors),)))
    sides = [np.polyfit(values, side, 1) for side in (place.wanted, place.found)]
    apart = [np.abs(np.polyval(line, values) - side) for line, side in zip(sides, (place.wanted, place.found))]
    text = Term(term.factors).text
    if all((rest <= place.noise(side)).all() for rest, side in zip(apart, (place.wanted, place.found))):
        (ours, shift), (theirs, other) = sides
        told = [_figure(float(number)) for number in (ours, theirs)]
        facts = {"setting": text, "reference_value": told[0], "port_value": told[1]}
        codes = [f"{number} * {text}{f' {n:+.4g}' if abs(n) > 1e-6 else ''}" for number, n in zip(told, (shift, other))]
        facts.update(reference_code=codes[0], port_code=codes[1], other=text)
        return place.pair.suspect("scale-other", left, 0.85, None, **facts)
    for word, root in (("std", 0.5), ("var", 1.0)):
        view = term.factors[0].view
        n = view.piece.array.size // view.array.size
        share = (n / (n - 1)) ** root if n > 1 else 1.0
        if f"{word}(" in text and abs(1.0 - term.coefficient - share) < 0.02 * (share - 1.0):
            facts = {"ratio": f"{share:.6g} = {f'sqrt({n}/({n}-1))' if root == 0.5 else f'{n}/({n}-1)'}"}
            return place.pair.suspect("std-ddof", left, 0.85, None, **facts)
    return None


def _figure(number: float) -> str:
    """A number, or the whole one that it is one divided by."""
    whole = round(1.0 / number) if 0.0 < abs(number) < 0.5 else 0
    return f"1/{whole}" if whole and abs(whole * number - 1.0) < 1e-5 else f"{number:.6g}"


def _ratio(place: Place) -> Optional[Suspect]:
    for wanted, found, cause in (
        (place.wanted, place.found, "gate-missing"),
        (place.found, place.wanted, "gate-extra"),
    ):
        with np.errstate(all="ignore"):
            ratio = np.where(np.abs(found) > 1e-12, wanted / found, np.nan)
            noise = np.abs(ratio) * max(2e-5, 2.0 * place.pair.limit)
            for number, terms in enumerate(Search(place.pool, ratio, noise).terms()):
                if number == TRIES:
                    break
                suspect = _scaled(place, terms, cause)
                if suspect is not None:
                    return suspect
    return None


def _scaled(place: Place, terms: tuple[Term, ...], cause: str) -> Optional[Suspect]:
    formula = Formula(terms)
    pair = place.pair
    factor = formula(pair.expected.shape)
    if float(np.ptp(factor)) <= 1e-3 * float(np.abs(factor).max()):
        return None  # one number everywhere: a scale, and no gate
    missing = cause == "gate-missing"
    mended, wanted = (pair.actual * factor, pair.expected) if missing else (pair.expected * factor, pair.actual)
    left = pair.proved(mended, wanted)
    if left is None:
        return None
    with_it, without = f"... * ({formula.text})", "..."
    factors = terms[0].factors
    inverse = [f for f in factors if f.function == "1 /"]
    if len(terms) == 1 and len(factors) == 2 and len(inverse) == 1:
        kept = next(f for f in factors if f is not inverse[0])
        right, wrong = kept.text, inverse[0].view.text
        other, instead = (right, wrong) if missing else (wrong, right)
        return pair.suspect(
            "wrong-tensor",
            left,
            0.8,
            other=other,
            instead=instead,
            reference_code=f"... * {other}",
            port_code=f"... * {instead}",
        )
    codes = (with_it, without) if missing else (without, with_it)
    if len(terms) == 1 and len(inverse) == 2 and inverse[0] == inverse[1]:
        value = inverse[0].view.text
        facts = (
            {"reference_operation": "/", "port_operation": "*"}
            if missing
            else {"reference_operation": "*", "port_operation": "/"}
        )
        facts.update({f"{side}_code": f"... {facts[f'{side}_operation']} {value}" for side in ("reference", "port")})
        return pair.suspect("operation-other", left, 0.85, None, **facts)
    return pair.suspect(cause, left, 0.85, other=formula.text, reference_code=codes[0], port_code=codes[1])
