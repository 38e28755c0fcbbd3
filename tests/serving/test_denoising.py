"""Diffusion models served: steps, batches of images, what comes before the first step and after the last."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validation.data import images as timed
from validation.judge.images import predicted

import triosim
from tests.command import run
from tests.exploring import examples
from triosim.core.errors import InputError
from triosim.serving.denoiser import denoiser, is_denoiser
from triosim.serving.denoising import DenoisingReplica, DenoisingTimes, DenoisingWork, parse_step_cache
from triosim.serving.deployment import Deployment, ServingResult, serve
from triosim.serving.fleet_file import fleet_file
from triosim.serving.forward_passes import ForwardPasses
from triosim.serving.kernel_times import NOTHING_MOVED
from triosim.serving.pool import Pool, weight_bytes
from triosim.serving.pool_checks import checked_any
from triosim.serving.pool_replicas import replicas_of
from triosim.serving.pool_times import PricedPools
from triosim.serving.request_files import read
from triosim.serving.requests import RequestTable
from triosim.sources import modelling

MODEL = "dit-s-2"
PRICED: PricedPools = {}


@pytest.fixture(scope="module")
def machine() -> triosim.System:
    return triosim.system(device="H100", devices=4)


def pool(machine: triosim.System, engine: str = "continuous", **more: object) -> Pool:
    return Pool(MODEL, machine, engine=engine, **more)  # type: ignore[arg-type]


def images(arrived: object, steps: object) -> RequestTable:
    return RequestTable.of(arrived, np.ones(len(steps)), steps)  # type: ignore[arg-type]


def served(own: Pool, table: RequestTable) -> ServingResult:
    return serve(Deployment((own,), idle_ok=True), table, interval=False, priced=PRICED)


def times(own: Pool) -> DenoisingTimes:
    made, _ = replicas_of(own, checked_any(own), 0, NOTHING_MOVED, PRICED)
    one = made[0]
    assert isinstance(one, DenoisingReplica)
    return one.denoising


def steps_of(own: Pool, *work: DenoisingWork) -> int:
    return sum(times(own).step(one)[0] for one in work)


@pytest.mark.parametrize("engine", ["diffusers", "continuous"])
def test_an_image_alone_takes_its_steps_and_what_is_around_them(machine: triosim.System, engine: str) -> None:
    own = pool(machine, engine)
    found = served(own, images([0.0, 100.0], [4, 7])).served
    for row, steps in enumerate((4, 7)):
        middle = [DenoisingWork(1, 0, 0, 0)] * (steps - 2)
        whole = steps_of(own, DenoisingWork(1, 0, 1, 0), *middle, DenoisingWork(1, 0, 0, 1))
        assert found.finished[row] - found.arrived[row] == whole
    assert found.steps.tolist() == [11]


def test_fixed_batches_are_of_equal_steps_and_end_together(machine: triosim.System) -> None:
    """Ten images of five steps and one of three that came second: batches of 8, 2 and 1 in order of arrival."""
    steps = [5, 3] + [5] * 9
    found = served(pool(machine, "diffusers"), images(np.zeros(11), steps)).served
    ends = found.finished
    assert len(set(ends[[0, *range(2, 9)]].tolist())) == 1
    assert ends[0] < found.scheduled[1] + 1 == ends[0] + 1  # the one of three begins when the first batch is over
    assert ends[1] == found.scheduled[9] == found.scheduled[10]
    assert found.steps.tolist() == [5 + 3 + 5]


def test_images_join_between_steps_where_batches_change(machine: triosim.System) -> None:
    found = served(pool(machine), images([0.0, 0.0, 0.0], [50, 2, 3])).served
    assert found.scheduled.tolist() == [0, 0, 0]
    assert found.finished[1] < found.finished[2] < found.finished[0]
    assert found.steps.tolist() == [50]
    late = served(pool(machine), images([0.0, 0.01], [50, 2])).served
    assert late.finished[1] < late.finished[0]
    assert late.scheduled[1] > late.arrived[1]  # the step under way ends first


@settings(max_examples=examples(25))
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 30)), min_size=1, max_size=30),
    st.sampled_from(["diffusers", "continuous"]), st.integers(1, 9),
)  # fmt: skip
def test_every_step_of_every_image_is_computed_once(
    machine: triosim.System, some: list[tuple[float, int]], engine: str, most: int
) -> None:
    arrived, steps = zip(*sorted(some), strict=True)
    own = pool(machine, engine, engine_options={"max-running": str(most)})
    found = served(own, images(arrived, steps))
    assert int(found.served.computed.sum()) == sum(steps)
    assert found.metrics.figures["output_tokens"] == sum(steps)
    assert (found.served.finished > found.served.scheduled).all()
    assert (found.served.peak_blocks <= most).all()


def test_a_whole_step_and_two_of_a_third_take_as_long_as_five_thirds(machine: triosim.System) -> None:
    """(1 + (k - 1) s) / k of the time, of many steps."""
    plain = served(pool(machine), images([0.0], [301])).served.finished[0]
    cached = served(pool(machine, step_cache="3,share=0.25"), images([0.0], [301])).served.finished[0]
    assert cached / plain == pytest.approx((1 + 2 * 0.25) / 3, rel=0.01)


def test_cached_steps_of_images_at_different_places_are_two_passes(machine: triosim.System) -> None:
    own = pool(machine, step_cache="2,share=0.5")
    assert steps_of(own, DenoisingWork(1, 1, 0, 0)) == pytest.approx(
        steps_of(own, DenoisingWork(1, 0, 0, 0)) * 1.5, rel=1e-9
    )


def test_images_of_a_lost_replica_begin_again(machine: triosim.System) -> None:
    own = pool(machine, replicas=2, mtbf_s=0.5, cold_start="10ms")
    found = served(own, images(np.arange(40) * 0.02, np.full(40, 30)))
    assert found.metrics.figures["replica_failures"]
    assert found.metrics.figures["moved_requests"]
    assert int(found.served.computed.sum()) > 40 * 30
    ran = found.served.finished - found.served.first_token
    alone = 29 * steps_of(own, DenoisingWork(1, 0, 0, 0))
    assert (ran >= alone * 0.999).all()  # all steps but the first come after the last first one


def test_guided_steps_are_of_two_samples() -> None:
    assert [denoiser(name).passes for name in ("sdxl", "flux.1-dev", MODEL)] == [2, 1, 2]
    assert denoiser("sdxl").image_size == 1024
    assert denoiser(MODEL).image_size == 256
    assert [is_denoiser(name) for name in ("sdxl", "flux.1-schnell", "llama-3-8b", "sdxl-vae")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_stable_diffusion_has_the_text_encoders_of_its_width() -> None:
    encoders = [denoiser(f"stable-diffusion-{which}").pipeline.encoders for which in ("1.5", "2.1")]
    assert encoders == [("clip-vit-l-14-text",), ("openclip-vit-h-14-text",)]
    assert denoiser("stable-diffusion-2.1").around == 340_387_840 + denoiser("dit-xl-2").around


def test_the_decoder_is_a_part_of_the_autoencoder() -> None:
    whole = modelling.model("sdxl-vae", training=False)
    decoder = modelling.model("sdxl-vae", training=False, configuration={"decoder_only": True})
    paths = [[trace.modules.path[row] for row in trace.operators.module] for trace in (whole, decoder)]
    assert paths[0][-len(paths[1]) :] == paths[1]
    # Hugging Face stabilityai/sdxl-vae: 49,490,179 in decoder.*, 20 in post_quant_conv
    assert modelling.configured("sdxl-vae", {"decoder_only": True}).weights().count() == 49_490_179 + 20


def test_passes_are_linear_between_powers_of_two(machine: triosim.System) -> None:
    passes = ForwardPasses(modelling.model(MODEL, training=False), machine)
    two, three, four = (passes.of(n) for n in (2, 3, 4))
    assert three.seconds == pytest.approx((two.seconds + four.seconds) / 2)
    assert two.joules is not None
    assert three.joules == pytest.approx((two.joules + four.joules) / 2)  # type: ignore[operator]
    assert two.seconds <= four.seconds <= 2 * two.seconds


def test_times_have_an_interval_and_devices_an_energy(machine: triosim.System) -> None:
    found = serve(Deployment((pool(machine),), idle_ok=True), images([0.0], [20]), interval=True, priced=PRICED)
    low, high = found.intervals["e2e.mean"]
    assert low < found.metrics.distributions["e2e"].mean < high
    used = found.energy
    assert used is not None
    assert used.work_j == pytest.approx(sum(used.parts_j.values()))
    assert 0 < used.work_j < 700 * found.metrics.duration_s  # the board power of an H100 SXM
    assert all(part > 0 for part in used.parts_j.values())
    assert used.per_request_j == used.node_j > used.work_j


def test_weights_in_8_bits_are_quicker_and_smaller_where_devices_multiply_them(machine: triosim.System) -> None:
    def found(weights: str, on: triosim.System = machine) -> tuple[float, float]:
        own = Pool("dit-xl-2", on, engine="continuous", weights=weights)
        denoising = times(own)
        return denoising.denoiser.of(64).seconds, weight_bytes(own, checked_any(own))

    (seconds, size), (narrow_seconds, narrow_size) = found("bf16"), found("fp8")
    assert narrow_seconds < 0.9 * seconds
    assert narrow_size < 0.95 * size
    with pytest.raises(InputError, match="no units for float8"):
        found("fp8", triosim.system(device="A100", devices=1))


@pytest.mark.parametrize(("style", "heads"), [("ulysses", 0), ("ring", 0), ("usp", 2), ("gather", 0)])
def test_devices_share_the_tokens_of_an_image_as_one_forward_pass_does(
    machine: triosim.System, style: str, heads: int
) -> None:
    own = Pool("dit-xl-2", machine, engine="diffusers", context_parallel=4, context_style=style, context_ulysses=heads)
    assert own.size == 4
    more = {"parallelism_options": {"cp-ulysses": str(heads)}} if heads else {}
    plan = triosim.Plan(dp=4, cp=4, cp_style=style, batch_size=2, training=False, **more)
    alone = triosim.simulate(triosim.model("dit-xl-2", training=False), machine, plan, fit=False)
    assert times(own).denoiser.of(2).seconds == alone.iteration_time_s


def test_two_groups_of_devices_take_a_sample_of_guidance_each(machine: triosim.System) -> None:
    """As long as one sample, and the exchange of the predictions; energy and memory of each group are its own."""
    alone, apart = times(pool(machine)), times(pool(machine, guidance_parallel=2))
    assert pool(machine, guidance_parallel=2).size == 2
    one = ForwardPasses(modelling.model(MODEL, training=False), machine).of(1)
    work = DenoisingWork(1, 0, 0, 0)
    assert apart.guidance is not None
    exchanged = apart.guidance.seconds(apart.model, 1)
    latency, bandwidth = 2e-6, 450e9  # more of one than any link here has, and more of the other
    assert 2 * 4 * 32 * 32 / bandwidth / 2 < exchanged < 10 * latency
    assert apart.step(work)[0] / 1e12 == pytest.approx(one.seconds + exchanged, abs=1e-12)
    assert apart.step(work)[1] == pytest.approx(2 * one.joules)  # type: ignore[operator]
    many = DenoisingWork(64, 0, 0, 0)  # the host does not bind
    assert apart.step(many)[0] < 0.8 * alone.step(many)[0]
    room = [one.memory(80e9, 0.9).block for one in (apart, alone)]
    assert room[0] <= room[1]  # of a small denoiser the decoder takes more
    twice = served(pool(machine, guidance_parallel=2, replicas=2), images([0.0, 0.0], [4, 4]))
    assert twice.served.finished[0] == twice.served.finished[1]
    with pytest.raises(InputError, match=r"flux.1-dev has one, its guidance is distilled"):
        checked_any(Pool("flux.1-dev", machine, engine="diffusers", guidance_parallel=2))
    with pytest.raises(InputError, match="--cfg-parallel is of models that make images"):
        checked_any(Pool("gpt2", machine, guidance_parallel=2))


def test_tokens_are_shared_of_images_alone(machine: triosim.System) -> None:
    with pytest.raises(InputError, match="--cp is of models that make images"):
        checked_any(Pool("gpt2", machine, context_parallel=2))
    with pytest.raises(InputError, match=r"sdxl.* reads no sequences of tokens"):
        times(Pool("sdxl", machine, engine="diffusers", context_parallel=2))


def test_memory_holds_as_many_images_as_fit(machine: triosim.System) -> None:
    made, kept = replicas_of(pool(machine), checked_any(pool(machine)), 0, NOTHING_MOVED, PRICED)
    assert kept is not None
    assert made[0].cache.blocks == kept.blocks
    assert (
        kept.weights + kept.blocks * kept.block <= 0.9 * kept.capacity < kept.weights + (kept.blocks + 2) * kept.block
    )


def test_a_fleet_serves_images_beside_tokens(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        'device = "H100"\n[[pool]]\nname = "words"\nmodel = "gpt2"\nmax-length = 1024\n'
        f'[[pool]]\nmodel = "{MODEL}"\nengine = "continuous"\n'
    )
    requests = tmp_path / "requests.jsonl"
    rows = [
        {"arrived_at": 0.0, "model": "gpt2", "prompt_tokens": 100, "output_tokens": 10},
        {"arrived_at": 0.1, "model": MODEL, "denoising_steps": 12},
        {"arrived_at": 0.2, "model": MODEL, "prompt_tokens": 40, "output_tokens": 3},
    ]
    requests.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = serve(fleet_file(file), read(requests), interval=False)
    assert found.served.requests.prompt.tolist() == [100, 1, 1]
    assert found.served.computed.tolist() == [109, 15]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--engine vllm --steps 30", "continuous"),
        ("--lengths fixed:30 --steps 30", "give one of them"),
        ("", "give --steps too, as --steps 30"),
        ("--steps 30 --turns 3", "images have none"),
        ("--steps 30 --shared-prefix 100", "images have none"),
        ("--steps 30 --pp 2", "--pp is of models that write tokens"),
        ("--steps 30 --cp 2 --cp-style tree", "ulysses, ring, usp, gather, not 'tree'"),
        ("--steps 30 --cp 2 --cp-style usp", "give --cp-ulysses N"),
        ("--steps 30 --cp 4 --cp-style usp --cp-ulysses 3", "which divides --cp 4"),
        ("--steps 30 --cp 4 --cp-ulysses 2", "give --cp-style usp too"),
        ("--steps 30 --cfg-parallel 0", "--cfg-parallel must be at least 1"),
        ("--steps 30 --cfg-parallel 3", "the two of guidance: give 1 or 2"),
        ("--steps 30 --cp-style ring", "give --cp too"),
        ("--steps 30 --cp 0", "--cp must be at least 1"),
        ("--steps 30 --cp 3", "do not divide by cp 3"),
        ("--steps 30 --speculate ngram,acceptance=0.8", "--speculate"),
        ("--steps 30 --weights int8", "bf16, fp16, fp8"),
        ("--steps 30 --step-cache 3", "share=0.3"),
        ("--steps 30 --step-cache 3,share=2", "share=0.3"),
        ("--steps 30 --image-size 100", "positions for images of 256"),
        ("--steps 30 --stack nobody", "stack"),
        ("--steps 0", "--steps '0': 0 must be above zero"),
        ("--steps uniform:0-9", "--steps 'uniform:0-9'"),
    ],
)
def test_bad_input_is_one_sentence(words: str, why: str) -> None:
    done = run("serve", MODEL, "--device", "H100", "--arrivals", "poisson:1", *words.split(), code=2)
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_says_images(tmp_path: Path) -> None:
    words = (
        "serve",
        MODEL,
        "--device",
        "H100",
        "--arrivals",
        "poisson:5",
        "--steps",
        "uniform:10-20",
        "--requests",
        "30",
    )
    shown = " ".join(run(*words, "--report", tmp_path / "page.html").stdout.split())
    for said in ("under diffusers", "first step", "images/s", "J an image", "for a thousand images"):
        assert said in shown
    assert "images/s" in (tmp_path / "page.html").read_text()
    found = json.loads(run(*words, "--json", "-").stdout)
    assert found["dollars_per_request"] > 0
    assert found["energy"]["per_request_j"] == pytest.approx(found["energy"]["node_j"] / 30)
    slower = json.loads(run(*words, "--clock", "900MHz", "--json", "-").stdout)
    assert slower["latency_s"]["e2e"]["mean"] >= found["latency_s"]["e2e"]["mean"]
    assert slower["energy"]["work_j"] < found["energy"]["work_j"]
    assert found["interval"]["e2e.mean"]


def test_engines_of_tokens_and_of_images_are_told_apart(machine: triosim.System) -> None:
    own = Pool("llama-3-8b", machine, engine="continuous")
    with pytest.raises(InputError, match="unknown serving engine"):
        replicas_of(own, checked_any(own), 0, NOTHING_MOVED)
    with pytest.raises(InputError, match="--image-size is of models that make images"):
        checked_any(Pool("llama-3-8b", machine, image_size=512))
    assert parse_step_cache("3,share=0.3").share == 0.3


def test_a_sweep_ranks_fleets_by_what_an_image_costs(tmp_path: Path) -> None:
    words = ("serve", MODEL, "--device", "H100", "--arrivals", "poisson:5", "--steps", "10", "--requests", "20")
    out = tmp_path / "sweep.json"
    shown = " ".join(run(*words, "--sweep", "engine=diffusers,continuous", "--json", out).stdout.split())
    assert "p99" in shown
    assert "TPOT" not in shown
    figures = [one["figures"] for one in json.loads(out.read_text())["fleets"]]
    assert all(one["images"] and one["e2e_p99"] >= one["e2e_mean"] > 0 for one in figures)


def test_images_that_others_timed_are_predicted_and_none_is_absurd() -> None:
    """Within a factor of three, which is a check of units and of what is shared: the judge says how good they are."""
    rows = timed.read(timed.TABLE)
    assert len(rows) > 30
    assert {row.what for row in rows} == {"image", "steps"}
    quick = [row for row in rows if row.model == "sdxl" or (row.source == "xDiT schnell" and row.pixels == 1024)]
    for found in map(predicted, [*quick, *(row for row in rows if row.what == "steps" and row.devices > 1)]):
        assert 1 / 3 < found.seconds / found.row.seconds < 3
        assert found.interval[0] < found.seconds < found.interval[1]
