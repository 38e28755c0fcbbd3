"""Tokens of images and of their prompts shared by the ranks of an axis: what is sent of a diffusion transformer."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.command import run
from triosim import PlanError
from triosim.partition.rules.context import token_parts
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.trace.calls import calls_of
from triosim.trace.tables import Category, Phase

SYSTEM = triosim.system("dgx-a100")
MODELS = {
    "dit-xl-2": ({"depth": 2}, 2, (32 // 2) ** 2, 1152),
    "flux.1-dev": ({"num_layers": 2, "num_single_layers": 2}, 4, 512 + 4096, 3072),
}
"""Configuration, attentions, tokens and width."""


def _job(name: str, cp: int, style: str = "gather", **plan) -> CompiledJob:
    trace = triosim.model(name, batch_size=1, configuration=MODELS[name][0])
    options = {"cp": cp, "cp_style": style, **({"cp_ulysses": 2} if style == "usp" else {})} if cp else {}
    rules = ("context",) if cp else ()
    return prepare(trace, SYSTEM, *asked(parallelism=rules, parallelism_options=options, host="none", **plan))


def _sent(job: CompiledJob, axis: str) -> Counter:
    """Kind, phase and bytes -> how often, along an axis."""
    sent, phases = job.step.transfers, np.append(job.step.trace.operators.phase, -1)
    rows = zip(sent.axis, sent.what, sent.before, sent.bytes.tolist(), strict=True)
    return Counter((COLLECTIVES[w], int(phases[b]), n) for a, w, b, n in rows if job.mesh.names[a] == axis)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("style", ["gather", "ring", "ulysses", "usp"])
def test_only_what_attention_needs_is_sent(name: str, style: str) -> None:
    """Of image and prompt as one sequence; nothing for the gradients of what all tokens are conditioned on."""
    _, attentions, tokens, width = MODELS[name]
    job = _job(name, 4, style)
    whole, twice = tokens * width * 2, 2 * attentions
    if style == "usp":
        assert _sent(job, "cp_ulysses") == {
            ("all_to_all", phase, whole // 4): 2 * twice for phase in (Phase.FORWARD, Phase.BACKWARD)
        }
        assert not _sent(job, "cp")
        assert _sent(job, "cp_ring").total() == 3 * twice
        return
    assert _sent(job, "cp") == {
        "gather": {("all_gather", Phase.FORWARD, whole): twice, ("reduce_scatter", Phase.BACKWARD, whole): twice},
        "ring": {
            ("all_gather", Phase.FORWARD, whole): twice, ("all_gather", Phase.BACKWARD, whole): twice,
            ("reduce_scatter", Phase.BACKWARD, whole * 8 // 3): twice,  # in float32, and once more: 2 x 4 / 3
        },
        "ulysses": {
            ("all_to_all", phase, whole // 4): 2 * twice for phase in (Phase.FORWARD, Phase.BACKWARD)
        },
    }[style]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("more", [{}, {"tp": 2}, {"zero": 3}, {"recompute": "full"}])
def test_a_rank_has_its_part_of_all_products_over_tokens(name: str, more: dict) -> None:
    """What is made of time and class is made by all."""
    whole, part = _job(name, 0, dp=1, idle_ok=True, **more), _job(name, 4, **more)

    def flop(job: CompiledJob) -> float:
        operators, calls = job.step.trace.operators, calls_of(job.step.trace)
        rows = [r for r in np.flatnonzero(operators.phase != Phase.OPTIMIZER).tolist() if calls[r].kind == "attention"]
        return float(operators.flop[rows].sum())

    def given(job: CompiledJob, kind: Category) -> int:
        values = job.step.trace.values
        return int(values.bytes()[values.category == kind].max())

    assert flop(part) * 4 == pytest.approx(flop(whole))
    assert {given(part, kind) * 4 - given(whole, kind) for kind in (Category.INPUT, Category.LABEL)} == {0}
    products = [
        {
            round(float(job.step.trace.operators.flop[row]))
            for row in range(len(job.step.trace))
            if calls_of(job.step.trace)[row].kind == "linear"
        }
        for job in (whole, part)
    ]
    assert max(products[0]) == 4 * max(products[1])


@pytest.mark.parametrize(
    ("name", "plan"),
    [("dit-xl-2", {"pp": 2, "micro_batches": 2}), ("flux.1-dev", {"zero": 3}), ("dit-xl-2", {"recompute": "full"})],
)
@pytest.mark.parametrize("style", ["gather", "ring", "ulysses"])
def test_with_other_ways(name: str, plan: dict, style: str) -> None:
    trace = triosim.model(name, batch_size=2, configuration=MODELS[name][0])
    found = triosim.simulate(
        trace, SYSTEM,
        *asked(parallelism=("context",), parallelism_options={"cp": 2, "cp_style": style}, host="none", batch_size=2,
               **plan),
    )  # fmt: skip
    assert found.iteration_time_s > 0
    assert "dp_cp" in {row.axis for row in found.collectives}


@pytest.mark.parametrize(
    ("name", "cp", "words"),
    [
        (
            "dit-xl-2",
            32,
            "16 tokens, or rows of them, of dit-xl-2.* do not divide by cp 32: sizes that do are 1, 2, 4,",
        ),
        (
            "resnet18",
            2,
            "resnet18.* reads no sequences of tokens, and no image whose rows or tokens all its attentions",
        ),
        ("vit-base-16", 2, "reads no sequences of tokens, and no image whose rows"),
        ("sdxl", 2, "reads no sequences of tokens, and no image whose rows"),
    ],
)
def test_images_that_do_not_divide_are_a_sentence(name: str, cp: int, words: str) -> None:
    system = triosim.system("dgx-a100", nodes=4)
    plan = asked(parallelism=("context",), parallelism_options={"cp": cp}, host="none")
    with pytest.raises(PlanError, match=words):
        prepare(triosim.model(name, batch_size=1), system, *plan)


def test_on_the_command_line() -> None:
    job = ("train", "dit-s-2", "--batch-size", "8", "--system", "dgx-a100", "--cp", "2", "--cp-style", "ulysses")
    done = run(*job, "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"all_to_all"} == {row["kind"] for row in found["collectives"] if row["axis"] == "cp"}


def test_a_batch_of_as_many_samples_as_latents_have_rows_is_not_taken_for_them() -> None:
    """32 numbers of noise, one for each sample, are created in the step; DiT's latents have 32 rows."""
    for batch in (31, 32):
        trace = triosim.model("dit-xl-2", batch_size=batch, configuration={"depth": 1})
        plan = {"parallelism": ("context",), "parallelism_options": {"cp": 4}, "batch_size": batch}
        job = prepare(trace, SYSTEM, *asked(host="none", **plan))
        assert sum(_sent(job, "cp").values()) == 4


@pytest.mark.parametrize(
    ("name", "parts"), [("dit-xl-2", 16), ("flux.1-dev", 512), ("vit-base-16", 1), ("resnet50", 1)]
)
def test_a_search_shares_images_among_as_many_ranks_as_their_tokens_divide_by(name: str, parts: int) -> None:
    small = {name: sizes for name, (sizes, *_) in MODELS.items()}
    assert token_parts(triosim.model(name, batch_size=1, configuration=small.get(name, {}))) == parts
