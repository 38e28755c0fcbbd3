"""Datasheets with gaps: class defaults and wider intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from validation.fit import unknown as fit_unknown

from triosim.hardware import catalog
from triosim.kernels.physical import kinds, unknown

H100 = catalog.accelerator("H100-SXM5-80GB")


@pytest.mark.parametrize("name", list(fit_unknown.works()))
@pytest.mark.parametrize("figure", list(unknown.FIGURES))
def test_a_missing_figure_widens_the_interval_and_changes_nothing_but_what_it_says(name, figure):
    kind, work = kinds.BY_NAME[name], fit_unknown.works()[name][0]
    less = replace(H100, **{figure: unknown.FIGURES[figure]})
    known, found = kinds.price(work, H100), kinds.price(work, less)
    own = kind.spread(work, found.limit, less)
    assert found.spread == pytest.approx(np.hypot(own, unknown.spreads()[name][figure]))
    assert np.all(np.isfinite(found.seconds) & (found.seconds > 0))
    assert np.all(known.spread <= found.spread + 1e-12)


def test_ten_lines_of_datasheet_are_enough():
    bare = catalog.accelerator("H100-SXM5-80GB")
    bare = replace(bare, name="Next", **unknown.FIGURES)
    work = fit_unknown.works()["gemm"][0]
    ratio = kinds.price(work, bare).seconds / kinds.price(work, H100).seconds
    assert np.median(np.abs(np.log(ratio))) < np.median(kinds.price(work, bare).spread)


def test_the_script_finds_the_spreads_again():
    found = fit_unknown.fit()
    assert found.keys() == unknown.spreads().keys()
    for name, row in unknown.spreads().items():
        assert found[name] == pytest.approx(row, rel=0.01)
