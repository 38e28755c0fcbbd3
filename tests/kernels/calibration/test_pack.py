"""The file of a calibration: what is written is read, and what was tampered with is refused."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from tests.kernels.calibration.example import H100, pack
from triosim.core.errors import InputError
from triosim.kernels.calibration import pack as packs
from triosim.kernels.calibration.pack import CalibrationPack, load, text
from triosim.kernels.pack import is_calibration_file
from triosim.kernels.physical.kinds import BY_NAME


@pytest.fixture(scope="module")
def made() -> CalibrationPack:
    return pack()


@pytest.fixture
def path(made: CalibrationPack, tmp_path):
    file = tmp_path / "h100.json"
    file.write_text(text(made), encoding="utf-8")
    load.cache_clear()
    return file


def edited(path, change) -> str:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    load.cache_clear()
    return str(path)


def test_what_is_written_is_read(made: CalibrationPack, path) -> None:
    again = load(str(path))
    assert again.host == made.host
    assert again.date == made.date
    assert again.versions == made.versions
    assert not again.refitted
    assert again.provenance["trace"] == "step.triosim"
    assert again.calibration.device == H100
    assert set(again.calibration.learned) == set(made.calibration.learned)
    for name, measured in made.measured.items():
        kind, found = BY_NAME[name], again.measured[name]
        for column in fields(measured.work):
            a, b = getattr(measured.work, column.name), getattr(found.work, column.name)
            assert np.array_equal(a, b), (name, column.name)
            assert np.asarray(a).dtype == b.dtype, (name, column.name)
        before = made.calibration.priced(kind, measured.work, H100)
        after = again.calibration.priced(kind, measured.work, H100)
        assert np.array_equal(before.seconds, after.seconds)
        assert np.array_equal(before.spread, after.spread)
    assert again.measured["gemm"].names == made.measured["gemm"].names
    assert again.measured["gemm"].menus == made.measured["gemm"].menus


def test_text_to_object_to_text_is_the_identity(made: CalibrationPack, path) -> None:
    assert text(load(str(path))) == text(made)


def test_what_was_fitted_is_not_fitted_again(path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*arguments: object, **options: object) -> None:
        raise AssertionError("loading must take milliseconds")

    monkeypatch.setattr(packs, "calibrated", again)
    load.cache_clear()
    assert not load(str(path)).refitted


def test_when_the_constants_have_moved_on_it_is_fitted_anew(made: CalibrationPack, path) -> None:
    def older(document) -> None:
        document["constants"] = "0" * 16
        document["learned"][0]["logs"] = [9.0, 9.0, 9.0, 9.0]  # whatever an earlier version made of the samples
        document["golden"] = {}

    again = load(edited(path, older))
    assert again.refitted
    for key, one in made.calibration.learned.items():
        assert again.calibration.learned[key].logs == pytest.approx(one.logs)


def test_a_later_schema_is_fitted_anew_from_its_samples(path) -> None:
    assert load(edited(path, lambda d: d.update(schema="triosim/calibration/3"))).refitted


def test_a_pack_of_the_first_schema_is_read_with_the_names_of_today(path) -> None:
    def older(document) -> None:
        names = [f"{name}_with_indices" for name in document["samples"]["gemm"]["operators"]]
        document["samples"]["gemm"]["operators"] = names
        document["schema"] = "triosim/calibration/1"
        measured = {kind: packs._measured(BY_NAME[kind], one, kind) for kind, one in document["samples"].items()}
        columns = {kind: one["work"] for kind, one in document["samples"].items()}
        document["provenance"]["samples"] = packs._hash(measured, columns)
        for row in document["learned"]:
            del row["apart"]

    again = load(edited(path, older))
    assert again.refitted
    assert not any("indices" in name for name in again.measured["gemm"].names)


def test_golden_predictions_notice_what_changed(path) -> None:
    def moved(document) -> None:
        document["golden"]["gemm"]["seconds"][0] *= 1 + 1e-8

    with pytest.raises(InputError, match=r"kind 'gemm' 1e-06 % off .* run triosim calibrate again"):
        load(edited(path, moved))


def test_golden_predictions_notice_other_factors(path) -> None:
    def moved(document) -> None:
        document["learned"][0]["logs"][0] += 1e-3

    with pytest.raises(InputError, match="models behind it have changed"):
        load(edited(path, moved))


def test_samples_that_were_changed_are_refused(path) -> None:
    def faster(document) -> None:
        document["samples"]["gemm"]["seconds"][3] *= 0.5

    with pytest.raises(InputError, match="'samples' were changed"):
        load(edited(path, faster))


@pytest.mark.parametrize(("change", "words"), [
    (lambda d: d.pop("samples"), "'samples' is missing"),
    (lambda d: d.pop("device"), "'device' is missing"),
    (lambda d: d["device"].pop("memory_bandwidth"), "no compute peak or no memory bandwidth"),
    (lambda d: d["samples"]["gemm"]["work"].pop("k"), "'samples' were changed"),
    (lambda d: d["samples"]["gemm"]["work"]["m"].append(3), "column 'm' of samples of 'gemm' is not 25 numbers"),
    (lambda d: d["samples"]["gemm"]["work"].update(m=["x"] * 25), "column 'm' of samples of 'gemm' is not 25 numbers"),
    (lambda d: d["samples"]["gemm"]["seconds"].__setitem__(0, -1.0), "one positive time each"),
    (lambda d: d["samples"]["gemm"]["work"].update(dtype="float7"), "float7"),
    (lambda d: d["samples"].update(wheels={}), "'wheels' is missing"),
    (lambda d: d["learned"][0]["error"].pop(), "24 errors of 25 kernels"),
    (lambda d: d["learned"][0].update(logs="high"), "run triosim calibrate again"),
    (lambda d: d.update(drift=None), "run triosim calibrate again"),
    (lambda d: d.update(schema="other/1"), "schema is 'other/1'"),
])  # fmt: skip
def test_a_broken_file_is_one_sentence(path, change, words) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load(edited(path, change))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_of_ours(tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load(str(tmp_path / "none.json"))
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": \n oops')
    with pytest.raises(InputError, match="broken JSON at line 2"):
        load(str(broken))
    assert not is_calibration_file(str(broken))
    assert not is_calibration_file(str(tmp_path / "none.json"))
    broken.write_text("[]")
    assert not is_calibration_file(str(broken))


def test_a_column_that_has_come_since_is_zero(path) -> None:
    """Older files do not have it; what they measured did nothing of the kind."""

    def older(document) -> None:
        samples, golden = document["samples"], document["golden"]
        for part in (samples, golden):
            part["attention"]["work"].pop("window")  # 0 in all of them
        measured = {k: packs._measured(BY_NAME[k], one, "samples") for k, one in samples.items()}
        document["provenance"]["samples"] = packs._hash(measured, {k: one["work"] for k, one in samples.items()})

    again = load(edited(path, older))
    assert not again.measured["attention"].work.window.any()


def test_columns_that_do_not_vary_are_one_value(path) -> None:
    document = json.loads(path.read_text())
    work = document["samples"]["gemm"]["work"]
    assert work["dtype"] == "bfloat16"
    assert work["batch"] == 1
    assert isinstance(work["m"], list)
    assert is_calibration_file(str(path))


def test_the_version_of_the_constants_follows_every_file(monkeypatch) -> None:
    here = packs.constants_version.__wrapped__()
    monkeypatch.setattr(packs, "BY_NAME", {"gemm": BY_NAME["gemm"]})
    assert packs.constants_version.__wrapped__() != here
