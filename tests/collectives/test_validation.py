"""The script that judges collectives, on small files of both shapes; and the figures that it must reach."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from validation.data import collectives as collective_data
from validation.fit import collectives as fit_collectives
from validation.judge import collectives

from tests.data import shared
from triosim.collectives import constants, cost
from triosim.core.errors import InputError


def csv_file(folder: Path, rows: list[str]) -> Path:
    path = folder / "own.csv"
    head = "source,collective,gpu,n_gpus,n_nodes,inter_node_link,library,algorithm,dtype,size_bytes,time_us"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def parquet_file(folder: Path, rows: list[tuple]) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    names = ("system", "nccl", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    path = folder / "own.parquet"
    parquet.write_table(pa.table({n: [r[i] for r in rows] for i, n in enumerate(names)}), path)
    return path


def test_rows_are_medians_in_bytes_without_the_version_left_out(tmp_path: Path) -> None:
    rows = [("h100_sxm", v, "alltoall", "half", 2, 512, t) for v, t in (("2.27.3", 1.0), ("2.29.2", 3.0), ("2.23", 9))]
    (point,) = collective_data.read(parquet_file(tmp_path, rows))
    assert (point.kind, point.bytes, point.seconds) == ("all_to_all", 1024, 2e-3)


def test_a_csv_of_any_gpu_is_judged_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = constants.load("nvlink4")
    seconds = cost.ring(known, "all_gather", 4, 2**24, "Simple", known.bandwidth)
    rows = [
        f"mine,all_gather,H200-SXM,4,1,n/a,NCCL 2.27,auto,fp16,{2**24},{seconds * 1e6:.4f}",
        "mine,all_reduce,XPU-9,4,1,n/a,,auto,fp16,1024,10",
        "mine,moe_dispatch,H200-SXM,4,1,n/a,,auto,fp16,1024,10",
    ]
    out = tmp_path / "out.json"
    collectives.main(["--data", str(csv_file(tmp_path, rows)), "--json", str(out)])
    printed = capsys.readouterr()
    assert "H200-SXM on hgx-h200: NVLink4: measured" in printed.out
    assert "left out: XPU-9 all_reduce, 4 in 1: no system of the catalog has it" in printed.err
    assert "moe_dispatch is not a collective" in printed.err
    document = json.loads(out.read_text())
    assert document["pairs"]["H200-SXM all_gather"]["large"] == pytest.approx(0.0, abs=0.01)
    assert len(document["rows"]) == 1


@pytest.mark.parametrize("name", ["own.csv", "own.parquet"])
def test_a_file_of_another_shape_is_refused(tmp_path: Path, name: str) -> None:
    path = parquet_file(tmp_path, []) if name.endswith("parquet") else tmp_path / name
    if name.endswith("csv"):
        path.write_text("a,b\n1,2\n")
        with pytest.raises(InputError, match="has no column 'source'"):
            collectives.main(["--data", str(path)])
    else:
        with pytest.raises(InputError, match="nothing in it can be predicted"):
            collectives.main(["--data", str(path)])


def test_the_fit_finds_the_constants_that_made_the_times() -> None:
    known = constants.load("nvlink4")
    link, architecture = fit_collectives.link_of("h100_sxm")
    points = []
    for kind in (*fit_collectives.RINGS, "all_to_all"):
        for members in (2, 4):
            for size in 2 ** np.arange(9, 30):
                group = collectives.Group(np.zeros(members, np.int32), link, architecture=architecture)
                if kind == "all_to_all":
                    seconds = cost.exchange(known, members, int(size), link.bandwidth)
                else:
                    way = fit_collectives.tuner.choices(kind, group, int(size))[0].protocol
                    seconds = cost.ring(known, kind, members, int(size), way, link.bandwidth)
                point = collective_data.Point("h100_sxm", kind, members, 1, int(size), "half", seconds, "made")
                points.append(point)
    found = fit_collectives.fit(points, link, architecture, "test")
    for kind in fit_collectives.RINGS:
        for size in (2**14, 2**20, 2**24, 2**29):
            made, again = (cost.ring(c, kind, 8, size, "Simple" if size > 2**22 else "LL", link.bandwidth)
                           for c in (known, found))  # fmt: skip
            assert again == pytest.approx(made, rel=0.03)


def test_least_squares_has_no_negative_unknowns() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, -1.0], [0.0, 1.0]])
    assert fit_collectives.least_squares(matrix, np.array([1.0, 3.0, 0.0])) == pytest.approx([2.0, 0.0])
    assert fit_collectives.least_squares(matrix, matrix @ [2.0, 3.0]) == pytest.approx([2.0, 3.0])


def measured() -> list[collective_data.Point]:
    return collective_data.read(shared("collectives", "nccl.parquet"))


def test_eight_gpus_follow_from_two_and_four() -> None:
    points = [p for p in measured() if p.members == 8 and p.dtype == "half"]
    rows, left = collectives.predict_all(points, "none")
    assert not left
    pairs = {name: collectives.Errors.of(found) for name, found in collectives.summary(rows, 5).items()}
    rings = [e for name, e in pairs.items() if "nvls" not in name]
    assert len(rings) == 12
    assert max(e.large for e in rings if e.large is not None) <= 10
    assert max(e.small for e in rings if e.small is not None) <= 20
    middle = [e.middle for e in rings if e.middle is not None]
    assert np.mean(middle) <= 10
    assert max(middle) <= 25


@pytest.mark.parametrize(("gpu", "name"), [("a100_sxm", "nvlink3"), ("h100_sxm", "nvlink4"), ("b200_sxm", "nvlink5")])
def test_shipped_constants_are_those_of_the_fit_to_small_groups(gpu: str, name: str) -> None:
    points = [p for p in fit_collectives.small(measured()) if p.gpu == gpu]
    assert {p.members for p in points} == {2, 4}
    link, architecture = fit_collectives.link_of(gpu)
    found, shipped = fit_collectives.fit(points, link, architecture, "again"), constants.load(name)
    assert list(found.ring) == list(shipped.ring)
    for size in 2 ** np.arange(10, 30):
        for protocol in found.ring:
            made, again = (cost.ring(c, "all_reduce", 8, int(size), protocol, link.bandwidth) for c in (shipped, found))
            assert again == pytest.approx(made, rel=2e-3)
        made, again = (cost.exchange(c, 8, int(size), link.bandwidth) for c in (shipped, found))
        assert again == pytest.approx(made, rel=2e-3)
