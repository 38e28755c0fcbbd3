"""The judge of single layers of experts: what it reads of a row, and what it makes of one."""

from __future__ import annotations

from validation.judge.moe_layers import Layer, configuration, measured_layer, predicted

ROW = {
    "model": "single MoE layer Mixtral 8x7B proxy", "hidden": "4096", "ffn_hidden": "14336", "moe_experts": "8",
    "moe_topk": "2", "seq_len": "4096", "ep": "8", "global_batch": "8", "precision": "bf16",
    "iter_time_basis": "reported (forward 2.5 ms + backward 5.25 ms of one MoE layer)",
}  # fmt: skip


def test_passes_are_read_apart() -> None:
    assert measured_layer(ROW) == Layer(0.0025, 0.00525)
    assert measured_layer(ROW).whole == 0.00775


def test_a_layer_takes_little_more_than_its_products() -> None:
    """Two experts of three products for each of 4,096 tokens a device; a gradient takes two products for each."""
    alone, trained = predicted(ROW)
    products = 4096 * 2 * 3 * 2 * 4096 * 14336 / 989e12
    assert products < alone.forward < 2 * products
    assert 2 * products < alone.backward < 4 * products
    assert alone.whole < trained.whole < 1.4 * alone.whole


def test_layers_of_both_models_have_the_sizes_of_the_row() -> None:
    name, sizes = configuration({**ROW, "model": "single MoE layer DeepSeek-V3 proxy", "moe_experts": "32"})
    assert (name, sizes["n_routed_experts"], sizes["moe_intermediate_size"]) == ("deepseek-v3", 32, 14336)
    assert configuration(ROW)[1]["num_local_experts"] == 8
