"""Sets of columns that come again."""

import numpy as np

from triosim.core.repeated import Repeated


def test_equal_columns_have_one_number():
    known = Repeated()
    one, other = np.arange(5), np.array([True, False])
    assert known.number("a", (one, other)) == 0
    assert known.number("a", (one.copy(), other.copy())) == 0
    assert len(known) == 1


def test_what_differs_anywhere_is_another_also_where_sums_agree():
    known = Repeated()
    sets = [
        ("a", (np.array([1, 2, 3]),)),
        ("a", (np.array([3, 2, 1]),)),
        ("b", (np.array([1, 2, 3]),)),
        ("a", (np.array([1, 2, 3, 0]),)),
        ("a", (np.array([1, 2, 3]), np.array([True]))),
        ("a", (np.array([1, 2, 3]), np.array([False]))),
    ]
    assert [known.number(*each) for each in sets] == list(range(6))
    assert [known.number(*each) for each in reversed(sets)] == list(range(5, -1, -1))
