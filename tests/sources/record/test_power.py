"""Phases that calibrate power, and the sensors beside them."""

from __future__ import annotations

import pytest

from triosim.core.errors import InputError

pytest.importorskip("torch")

from triosim.sources.record import power


def test_each_phase_counts_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(power._LARGE, "cpu", 2**22)
    monkeypatch.setitem(power._SIDE, "cpu", 64)
    said: list[str] = []
    rows = power.phases("cpu", 0.02, said.append)
    assert [row[0] for row in rows[:3]] == ["busy", "cache", "memory"]
    assert rows[-1][0] == "idle"
    assert len(said) == len(rows)
    for what, start, end, dtype, flop, size in rows:
        assert end - start >= 0.02
        assert (flop > 0) == (what == "product") == bool(dtype)
        assert (size > 0) == (what in ("cache", "memory", "product"))
        if what == "product":
            assert flop % (2.0 * 64**3) == 0


def test_counters_of_energy_become_watts(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(power, "RAPL", tmp_path)
    with pytest.raises(InputError, match="no counters of energy"):
        power._rapl()
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text("1000000")
    ticks = iter([10.0, 12.0, 13.0])
    monkeypatch.setattr(power.time, "time", lambda: next(ticks))
    read = power._rapl()
    assert read() is None
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("201000000")
    assert read() == pytest.approx(100.0)  # 200 J of a package in 2 s; parts of packages do not count again
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("5")
    assert read() is None  # the counter began anew
