"""Published iterations that lie in the repository: each can be told to the program, and predictions are near."""

from __future__ import annotations

from dataclasses import replace

import pytest
from validation.data.training import UNGATED, read
from validation.judge.training import BRIDGE, PUBLISHED, judge, system
from validation.judge.training import main as judge_main

from tests.data import shared
from triosim.sources.modelling import parameters

ROWS = {row.id: row for row in read(PUBLISHED)}


def test_every_published_row_can_be_told() -> None:
    assert len(ROWS) == 382
    assert not [row.lacks for row in ROWS.values() if row.lacks]
    assert all(row.judges for row in ROWS.values() if row.id < "P0100"), "of the first none may shape a stack"


@pytest.mark.parametrize("row", ["P0019", "P0025", "P0035"])
def test_fully_sharded_training_on_a100_is_near(row: str) -> None:
    """Llama-3 8B and Llama-2 13B in torchtitan, Llama-2 34B in fms-fsdp: within 10 %, and the interval holds it."""
    found = judge(ROWS[row])
    assert abs(found.error) < 0.10
    assert found.low < found.measured < found.high


def test_models_on_tpu_v4_have_the_parameters_of_their_names() -> None:
    """22 and 52 billion, with heads of 256 and an MLP of two products; half an attention was counted then."""
    rows = [row for row in read(shared("training", "measured.csv")) if row.id in ("T2239", "T2243")]
    for row, name, billions in zip(rows, UNGATED, (22.1, 52.3), strict=True):
        assert row.family == "nemotron"
        assert parameters(row.family, row.configuration) == pytest.approx(billions * 1e9, rel=3e-3), name


def test_rows_that_nobody_had_looked_at_keep_what_was_first_predicted() -> None:
    first = {row.id: row.first for row in ROWS.values() if row.id >= "P0201"}
    assert len(first) == 314
    assert all(low < seconds < high for seconds, low, high in first.values())
    assert not any(row.first for row in ROWS.values() if row.id < "P0201")


def test_first_predictions_have_a_table_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["training", "--source", "TinyLlama"])
    judge_main()
    said = capsys.readouterr().out
    row = ROWS["P0206"]
    error = 100 * (row.first[0] / row.seconds - 1)
    table = said[said.index("as first predicted") :]
    assert f"{abs(error):.1f}%" in table
    assert f"{error:+.1f}%" in table


def test_tables_of_megatron_bridge_lie_beside_with_their_first_predictions() -> None:
    rows = read(BRIDGE)
    assert len(rows) == 105
    assert not [row.lacks for row in rows if row.lacks]
    assert all(row.first[1] < row.first[0] < row.first[2] for row in rows)


def test_megatron_fsdp_sends_the_activations_that_its_recipe_names() -> None:
    """Llama-3 70B on 64 GB200: 40 of 80 layers, and nothing is computed again."""
    row = next(one for one in read(BRIDGE) if one.plan["zero"] == 3 and one.system["like"].startswith("gb200"))
    assert row.plan["offload"] == ("activations:40",)
    assert not row.assumed
    found = judge(row)
    assert abs(found.error) < 0.10
    assert found.low < found.measured < found.high


def test_documents_of_a_row_do_not_look_at_each_other() -> None:
    """NeMo's fine-tuning packs SQuAD: of 4,096 positions a token sees some hundred, and its adapters' step is near."""
    row = ROWS["P0542"]
    whole, own = (judge(one) for one in (replace(row, documents=""), row))
    assert own.predicted < 0.85 * whole.predicted
    assert abs(own.error) < 0.05


def test_a_clock_that_is_held_is_told() -> None:
    row = ROWS["P0525"]
    assert row.system["clock_hz"] == 1.665e9
    assert {device.clock_limit_hz for device in system(**row.system).models} == {1.665e9}
    assert row.plan["optimizer"] == "sgd,momentum=off"


def test_attention_in_8_bits_and_frozen_weights_are_told_where_a_source_says_so() -> None:
    row = ROWS["P0522"]
    assert row.plan["quantize_attention"]
    assert row.lora.endswith("base=quantized")
    assert abs(judge(row).error) < 0.10
    assert not ROWS["P0407"].plan["quantize_attention"]
