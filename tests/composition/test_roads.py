"""Three roads, one answer: a step by name, recorded under fake tensors, and recorded on a CPU, all on an H100.

What still differs, and by how much, is printed by ``python -m validation.judge.roads``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import triosim
from triosim import Plan

ROOT = Path(__file__).resolve().parents[2]
torch = pytest.importorskip("torch")
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from validation.judge import roads  # noqa: E402

GPT = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 64, "vocab_size": 1000}


def _on_h100(trace: triosim.Trace) -> triosim.Result:
    plan = Plan(batch_size=trace.meta.batch_size)
    return triosim.simulate(trace, triosim.system(device="H100"), plan, fit=False)


def _launched(result: triosim.Result) -> float:
    return result.devices[0].host_cpu_s


def test_resnet_50() -> None:
    case = roads.CASES["resnet50"]
    named, fake = _on_h100(triosim.model(**case.named)), _on_h100(roads.recorded(case, "fake"))
    on_a_cpu = _on_h100(triosim.load(ROOT / "examples" / "resnet50-cpu.triosim"))
    assert 0.014 < named.iteration_time_s < 0.018
    for found in (fake, on_a_cpu):
        assert found.iteration_time_s == pytest.approx(named.iteration_time_s, rel=0.05)
        assert found.fidelity.host == "eager"
        low, high = found.interval_s
        assert low < named.iteration_time_s < high


def test_gpt_2_small() -> None:
    case = roads.CASES["gpt2"]
    named, fake = _on_h100(triosim.model(**case.named)), _on_h100(roads.recorded(case, "fake"))
    assert fake.iteration_time_s == pytest.approx(named.iteration_time_s, rel=0.05)
    assert _launched(fake) == pytest.approx(_launched(named), rel=0.01), "a count of steps is read, not launched"


def test_llama_3_8b() -> None:
    case = roads.llama(layers=8)
    named, fake = _on_h100(triosim.model(**case.named)), _on_h100(roads.recorded(case, "fake"))
    assert fake.iteration_time_s == pytest.approx(named.iteration_time_s, rel=0.05)
    assert fake.memory.allocated_bytes == pytest.approx(named.memory.allocated_bytes, rel=0.02)


def test_a_small_gpt_recorded_on_a_cpu() -> None:
    """With the optimizer that a GPU would have; its default on a CPU is a loop over the parameters."""
    case = roads.small(GPT, batch=2)
    named = _on_h100(triosim.model(**case.named))
    found = _on_h100(roads.recorded(case, "cpu", foreach=True))
    assert found.iteration_time_s == pytest.approx(named.iteration_time_s, rel=0.05)
    looped = _on_h100(roads.recorded(case, "cpu"))
    assert looped.iteration_time_s > 1.3 * named.iteration_time_s
    assert any("no host times of a GPU" in source for source in looped.sources)
