"""The peak of a step, total and by category, against PyTorch's own memory tracker on the same run."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "title",
    [
        "GPT-2, float32", "GPT-2, every block checkpointed", "GPT-2, gradients set to zero",
        "Llama-3-8B, bfloat16, master weights",
    ],
)  # fmt: skip
def test_peaks_agree_in_total_and_by_category(title: str) -> None:
    pytest.importorskip("torch.distributed._tools.mem_tracker", reason="no tracker in this PyTorch, or no PyTorch")
    from validation.judge.memory import cases, predicted, tracked, worst

    case = cases(small=True)[title]
    theirs = tracked(case)
    assert theirs["Total"] == sum(size for name, size in theirs.items() if name != "Total") > 20e6
    assert worst(theirs, predicted(case, named=False)) < 0.03
    if case.named is not None:
        assert worst(theirs, predicted(case, named=True)) < 0.03
