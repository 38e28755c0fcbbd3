"""Embedding tables among replicas: what is looked up, kept, exchanged and reduced."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.command import run
from triosim import PlanError
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.trace.tables import Phase

ROWS, WIDTH, BATCH, LOOKUPS, DEVICES = (4000, 600, 1600, 80, 800), 16, 64, 3, 4
TABLES, F32, I64 = len(ROWS), 4, 8
SIZES = {"tables": list(ROWS), "embedding_dim": WIDTH, "bottom": [64, WIDTH], "top": [32, 1], "lookups": LOOKUPS}


def _system() -> triosim.System:
    return triosim.system(device="A100-SXM4-80GB", devices=DEVICES, link="100GB/s")


def _plan(sharding: str | None, **plan: Any) -> Any:
    rules = {} if sharding is None else {"parallelism": ("tables",), "parallelism_options": {
        "sharding": sharding, **plan.pop("options", {})}}  # fmt: skip
    return asked(host="none", interference=1.0, batch_size=BATCH, **rules, **plan)


def _workload(**sizes: Any) -> triosim.Trace:
    return triosim.model("dlrm-kaggle", configuration={**SIZES, **sizes})


def _job(sharding: str | None, **plan: Any) -> CompiledJob:
    return prepare(_workload(), _system(), *_plan(sharding, **plan))


def _sent(sharding: str | None, **plan: Any) -> dict[tuple[str, str], list[int]]:
    sent: dict[tuple[str, str], list[int]] = {}
    for row in triosim.simulate(_workload(), _system(), *_plan(sharding, **plan)).collectives:
        sent.setdefault((row.axis, row.kind), []).extend([row.bytes] * row.count)
    return {key: sorted(sizes) for key, sizes in sent.items()}


def _held(job: CompiledJob) -> list[int]:
    """Elements of each table that a rank keeps."""
    values = job.step.trace.values
    return [int(values.elements()[w]) for w in job.step.trace.weights().tolist() if "emb_l" in values.name[w]]


LENGTHS, INDICES = TABLES * BATCH * I64, TABLES * BATCH * LOOKUPS * I64
SUMS = TABLES * BATCH * WIDTH * F32
OTHERS = 13 * 64 + 64 + 64 * WIDTH + WIDTH + (WIDTH + TABLES * (TABLES + 1) // 2) * 32 + 32 + 32 + 1
EXCHANGED = {
    "table": {("tables", "all_to_all"): sorted([LENGTHS, INDICES, SUMS, SUMS])},
    "row": {
        ("tables", "all_to_all"): [LENGTHS, INDICES],
        ("tables", "reduce_scatter"): [DEVICES * SUMS], ("tables", "all_gather"): [DEVICES * SUMS],
    },
    "column": {
        ("tables", "all_gather"): [DEVICES * LENGTHS, DEVICES * INDICES], ("tables", "all_to_all"): [SUMS, SUMS],
    },
}  # fmt: skip


@pytest.mark.parametrize("sharding", ["table", "row", "column"])
def test_indices_go_to_the_rows_and_sums_come_back(sharding: str) -> None:
    sent = _sent(sharding)
    assert sum(sent.pop(("dp", "all_reduce"))) == OTHERS * F32
    assert sent == EXCHANGED[sharding]


def test_a_rank_keeps_its_part_of_the_tables() -> None:
    whole = [rows * WIDTH for rows in ROWS]
    assert _held(_job(None)) == whole
    assert _held(_job("row")) == [elements // DEVICES for elements in whole]
    assert _held(_job("column")) == [elements // DEVICES for elements in whole]
    # Five tables on four ranks, two on one of them at most: 4000 | 1600 | 800 | 600 and 80.
    assert _held(_job("table")) == [0, 600 * WIDTH, 0, 80 * WIDTH, 0]
    assert "fullest of 4 ranks has 2 of 5 tables" in " ".join(_job("table").step.notes)


@pytest.mark.parametrize(("sharding", "times"), [("table", DEVICES * 2 / TABLES), ("row", 1.0), ("column", 1.0)])
def test_the_rows_of_all_samples_are_looked_up_once(sharding: str, times: float) -> None:
    """Elements of rows that are read, and to which gradients are added, by all ranks together: as with whole tables,
    but that all wait for the rank that has two tables of five."""

    def elements(job: CompiledJob) -> int:
        trace = job.step.trace
        shapes = trace.values.shape.lists()
        runs = [row for row in range(len(trace)) if trace.operators.name[row] == "aten::index_add_"]
        return sum(
            int(np.prod(shapes[trace.operators.inputs[row][-1]])) for row in runs if not trace.operators.view[row]
        )

    assert elements(_job(None)) == TABLES * BATCH * LOOKUPS * WIDTH
    assert elements(_job(sharding)) == times * elements(_job(None))


@pytest.mark.parametrize("sharding", ["table", "row", "column"])
def test_one_rank_a_group_is_data_parallel(sharding: str) -> None:
    system, workload = _system(), _workload()
    alone = triosim.simulate(workload, system, *_plan(sharding, options={"table_ranks": 1}))
    plain = triosim.simulate(workload, system, *_plan(None))
    sums = [Counter[str]() for _ in range(2)]
    for one, total in zip((alone, plain), sums, strict=True):
        for row in one.collectives:
            total[row.kind] += row.bytes * row.count
    assert sums[0] == sums[1]
    assert alone.memory.allocated_bytes == plain.memory.allocated_bytes
    assert alone.breakdown_s.compute == plain.breakdown_s.compute


def test_groups_that_have_the_same_tables_reduce_their_gradients() -> None:
    sent = _sent("row", options={"table_ranks": 2})
    assert sum(sent["table_replicas", "all_reduce"]) == TABLES * BATCH * LOOKUPS * WIDTH * F32
    assert sent["tables", "reduce_scatter"] == [2 * SUMS]


def test_indices_travel_beside_the_dense_layers() -> None:
    trace = _job("row").step
    first = int(np.flatnonzero(trace.trace.operators.phase == Phase.FORWARD)[0])
    begins = trace.transfers.after[trace.transfers.value < 0].tolist()
    look_up = trace.trace.operators.name.index("aten::_embedding_bag")
    assert begins == [first, first]
    assert trace.transfers.before[trace.transfers.value < 0].tolist() == [look_up, look_up]


@pytest.mark.parametrize("sharding", ["table", "row", "column"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_the_other_layers_are_sharded_as_without(sharding: str, zero: int) -> None:
    sent, plain = _sent(sharding, zero=zero), _sent("row", zero=zero)
    assert {key: sizes for key, sizes in sent.items() if key[0] == "dp"} == {
        key: sizes for key, sizes in plain.items() if key[0] == "dp"
    }
    assert {key[0] for key in sent} == {"dp", "tables"}


def test_a_pipeline_sends_sums_on() -> None:
    result = triosim.simulate(_workload(), _system(), *_plan("row", pp=2, micro_batches=2, dp=2))
    assert {(row.axis, row.kind) for row in result.collectives} >= {("tables", "reduce_scatter")}


@pytest.mark.parametrize(
    ("sharding", "plan", "sizes", "words"),
    [
        ("row", {"options": {"table_ranks": 3}}, {}, "dp 4 has no groups of table-ranks 3: sizes that fit are 1, 2, 4"),
        ("column", {}, {"embedding_dim": 6, "bottom": [64, 6]}, "6 columns of .* do not divide by 4 ranks: give shard"),
        ("row", {"dp_style": "dataparallel"}, {}, "leave cp, ep, hsdp and others out"),
    ],
)
def test_what_does_not_go_is_a_sentence(sharding: str, plan: dict, sizes: dict, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        prepare(_workload(**sizes), _system(), *_plan(sharding, **plan))


def test_a_model_without_tables_says_so() -> None:
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 1})
    with pytest.raises(PlanError, match="looks nothing up with an embedding bag"):
        prepare(trace, _system(), *_plan("row"))


def test_tables_on_the_command_line() -> None:
    done = run(
        "train", "dlrm-kaggle", "--device", "A100", "--devices", "8", "--link", "100GB/s", "--batch-size", "512",
        "--parallelism", "tables", "--parallelism-option", "sharding=table", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"axis": "tables"' in done.stdout
