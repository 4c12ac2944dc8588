"""Points that fill a cube evenly, the same on every machine."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt


def halton(count: int, dimensions: int) -> npt.NDArray[np.float64]:
    """The first points of a Halton sequence [count, dimensions], each between 0 and 1, neither of them among them.

    Notes
    -----
    Coordinate k of point n is n's digits in the k-th prime base behind the point, first digit last. Digits above 0 are
    turned around: without that, large bases run in step with each other for as many points as a base is large.

    References
    ----------
    J. H. Halton, Numer. Math. 2, 1960; reversed: B. Vandewoestyne and R. Cools, J. Comput. Appl. Math. 189, 2006.
    """
    columns = [[_radical_inverse(n, base) for n in range(1, count + 1)] for base in _primes(dimensions)]
    return np.array(columns, dtype=np.float64).reshape(dimensions, count).T


def _radical_inverse(number: int, base: int) -> float:
    numerator, denominator = 0, 1
    while number:
        number, digit = divmod(number, base)
        numerator = numerator * base + (base - digit if digit else 0)
        denominator *= base
    return numerator / denominator


@cache
def _primes(count: int) -> tuple[int, ...]:
    """The first prime numbers."""
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found):
            found.append(number)
        number += 1
    return tuple(found)
