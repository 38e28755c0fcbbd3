"""``triosim compare``: differences add up, and are found where they were made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import triosim
from tests.command import run
from triosim import Plan
from triosim.core.units import format_bytes
from triosim.prediction.comparison import PARTS, compare
from triosim.report.comparison import bars

TRACE = triosim.model("llama-3.2-1b", sequence_length=256, configuration={"num_hidden_layers": 2})


def _file(path: Path, **plan) -> Path:
    result = triosim.simulate(TRACE, triosim.system("dgx-a100"), Plan(**plan))
    path.write_text(result.to_json())
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("compared")
    return (
        _file(folder / "a.json"), _file(folder / "b.json", tp=2, recompute="full"),
        _file(folder / "c.json", pp=2, micro_batches=4, batch_size=4),
    )  # fmt: skip


def test_parts_add_up_to_the_difference(files: tuple[Path, ...]) -> None:
    for per_sample in (False, True):
        found = compare(files, per_sample)
        for other, one in enumerate(found.results):
            assert sum(one.parts.values()) == pytest.approx(one.seconds, rel=1e-9)
            if other:
                changes = found.changes(other)
                assert tuple(changes) == PARTS
                assert sum(changes.values()) == pytest.approx(one.seconds - found.results[0].seconds, rel=1e-6)
                steps = bars(found, other)
                assert steps[0][1] == found.results[0].seconds
                assert steps[-1][1] == one.seconds
                assert all(0 <= begin <= end <= 1 for *_, begin, end in steps)


def test_what_differs_is_found_where_it_was_made(files: tuple[Path, ...]) -> None:
    found = compare(files)
    assert found.asked["tp"] == (1, 2, 1)
    assert found.asked["recompute"] == ("none", "full", "none")
    assert "zero" not in found.asked
    assert found.changes(1)["recompute"] == found.results[1].parts["recompute"] > 0
    assert found.changes(2)["idle"] > 0  # bubbles
    names = [name for name, *_ in found.communication(1)]
    assert "all_reduce over tp" in names


def test_the_same_twice_differs_in_nothing(files: tuple[Path, ...], tmp_path: Path) -> None:
    found = compare([files[0], files[0]])
    assert not found.asked
    assert not any(found.changes(1).values())
    assert "The same was asked of all." in run("compare", files[0], files[0]).stdout


@pytest.mark.parametrize(
    ("options", "name", "said"),
    [
        (("--link", "50GB/s"), "system scale_up links", "50 GB/s, 0 s"),
        (("--latency", "5us"), "system scale_up links", "25 GB/s, 5 us"),
        (("--straggler", "1=2"), "system accelerators", "1 x A100-SXM4-80GB, 1 x A100-SXM4-80GB 2 times slower"),
        (("--power-cap", "200W"), "system accelerators", "2 x A100-SXM4-80GB up to 200 W"),
        (("--clock", "900MHz"), "system accelerators", "2 x A100-SXM4-80GB up to 900 MHz"),
        (("--variation", "devices=0.1"), "variation", "devices=0.1"),
        (("--packing", "32"), "packing", "2 documents in 1 sequence of 64 positions"),
        (("--attention", "unfused"), "workload operators", None),
        (("--price", "3/h"), "cost rent", "A100-SXM4-80GB: 3 USD/h, as given"),
    ],
)
def test_all_that_was_asked_differently_is_found(
    options: tuple[str, ...], name: str, said: str | None, tmp_path: Path
) -> None:
    """Of links, stragglers, caps and the like it was said that "the same was asked of all"."""
    call = ("train", "gpt2", "--device", "A100", "--devices", "2", "--seq-len", "64", "-q", "--json")
    one, other = tmp_path / "1.json", tmp_path / "2.json"
    link = ("--link", "25GB/s")
    run(*call, str(one), *link)
    run(*call, str(other), *(() if options[0] == "--link" else link), *options)
    found = compare([one, other])
    assert list(found.asked) == [name]
    assert said is None or said in found.asked[name][1]


def test_what_the_files_do_not_tell_is_not_called_the_same(tmp_path: Path) -> None:
    call = ("train", "gpt2", "--device", "A100", "--seq-len", "64", "-q", "--attention")
    for kernels in ("flash1", "flash2"):
        path = tmp_path / f"{kernels}.json"
        run(*call, kernels, "--json", path)
        found = json.loads(path.read_text())
        del found["workload"]["attention"]  # as earlier results were
        path.write_text(json.dumps(found))
    said = run("compare", str(tmp_path / "flash1.json"), str(tmp_path / "flash2.json")).stdout
    assert "Nothing that the files tell was asked differently." in said


def test_per_sample_a_batch_twice_as_large_is_no_slower(tmp_path: Path) -> None:
    small, large = _file(tmp_path / "1.json", batch_size=1), _file(tmp_path / "8.json", batch_size=8)
    found = compare([small, large], per_sample=True)
    assert found.results[1].seconds < found.results[0].seconds
    assert found.results[0].seconds == pytest.approx(compare([small, large]).results[0].seconds / 8)


def test_on_the_command_line(files: tuple[Path, ...], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run("compare", *files, "--report", page)
    for words in ("What was asked", "From A to B", "From A to C", "recompute", "Modules", "MFU", "90 % between"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "http" not in text.replace("http://www.w3.org", "")
    plain = json.loads(run("compare", *files, "--per", "sample", "--json", "-").stdout)
    assert plain["schema"] == "triosim/comparison/1"
    assert len(plain["changes_s"]) == 2


@pytest.mark.parametrize(
    ("words", "content"),
    [
        ("is no result of triosim", "{}"), ("but 'triosim/sweep/1'", '{"schema": "triosim/sweep/1"}'),
        ("damaged result", '{"schema": "triosim/result/1"}'),
        ("is broken JSON", "{"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_a_sentence(words: str, content: str, files: tuple[Path, ...], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(content)
    assert words in run("compare", files[0], other, code=2).stderr


def test_one_result_is_no_comparison(files: tuple[Path, ...]) -> None:
    assert "give two results or more" in run("compare", files[0], code=2).stderr
    assert "iteration" in run("compare", *files, "--per", "token", code=2).stderr


JOB = ("gpt2", "--seq-len", "64", "--system", "dgx-a100", "--nodes", "1")


def test_plans_are_predicted_and_compared_at_once(tmp_path: Path) -> None:
    plans = ("--global-batch-size", "16", "--compare", "tp=2", "--compare", "pp=2, micro-batches=4")
    done = run("train", *JOB, *plans, "--report", "page.html", "--json", "both.json", cwd=tmp_path)
    assert "page" in done.stdout
    found = json.loads((tmp_path / "both.json").read_text())
    assert [one["label"] for one in found["results"]] == ["as asked", "tp=2", "pp=2 micro-batches=4"]
    assert found["per"] == "iteration"
    assert found["asked"]["tp"] == [1, 2, 1]
    for words, one in zip(((), ("--tp", "2")), found["results"], strict=False):
        alone = run("train", *JOB, "--global-batch-size", "16", *words, "--json", "-")
        assert one["seconds"] == json.loads(alone.stdout)["iteration_time_s"]
    assert "From A to C" in run("train", *JOB, *plans).stdout
    assert "tp=2" in (tmp_path / "page.html").read_text()


def test_different_batches_are_compared_by_the_sample() -> None:
    words = ("infer", *JOB, "--batch-size", "2", "--compare", "batch-size=4")
    assert json.loads(run(*words, "--json", "-").stdout)["per"] == "sample"
    assert "Times are those of a sample." in run(*words).stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--compare", "tp=3"), "--compare tp=3: "),
        (("--compare", "tq=3"), "unknown name after --compare"),
        (("--compare", ","), "--compare gives no values"),
        (("--compare", "tp=2", "--sweep", "tp=2"), "do not go together"),
        (("--compare", "tp=2", "--timeline", "x.json"), "--timeline does not go with --compare"),
        (("--compare", "tp=2", "--slowdown", "5%"), "--slowdown does not go with --compare"),
        (("--compare", "tp=3", "--post", "dpo"), "--compare tp=3: "),
        (("--report", "x.html", "--post", "dpo"), "--report of a step of several phases is of --compare"),
        (("--workers", "2", "--post", "dpo"), "--workers is of one iteration"),
        (("--sweep", "tp=2", "--tokens", "1e9"), "--tokens is of one prediction"),
        (("--sweep", "tp=2", "--find", "clock"), "--find is of one prediction"),
        (("--executor", "ray"), "--executor is for many plans"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(words: tuple[str, ...], says: str) -> None:
    done = run("train", *JOB, *words, code=2)
    assert says in done.stderr


def test_one_plan_needs_one_memory_wherever_it_is_shown(tmp_path: Path) -> None:
    """What ``train`` says that it needs, beside the device's context, is what a comparison and a sweep show."""
    options = ("llama-3.2-1b", "--seq-len", "256", "--system", "dgx-a100", "--nodes", "1", "--batch-size", "1")
    result = tmp_path / "a.json"
    said = run("train", *options, "--tp", "2", "--json", result).stdout
    memory = json.loads(result.read_text())["memory"]
    needed = format_bytes(memory["reserved_bytes"] + memory["context_bytes"])
    assert f"{needed} of " in said
    assert needed in run("train", *options, "--sweep", "tp=2").stdout
    assert needed in run("compare", result, result).stdout


def test_where_many_chunks_begin_is_cut_short(tmp_path: Path) -> None:
    many = _file(tmp_path / "a.json", pp=2, micro_batches=2, batch_size=2)
    document = json.loads(many.read_text())
    document["plan"]["stages"] = [f"model.layers.{n}" for n in range(40)]
    (tmp_path / "b.json").write_text(json.dumps(document))
    said = " ".join(run("compare", many, tmp_path / "b.json").stdout.split())
    assert "model.layers.39 (40)" in said
    assert "model.layers.4" not in said


def test_kernels_of_attention_are_told_apart(tmp_path: Path) -> None:
    found = []
    for kernel in ("flash1", "flash2"):
        path = tmp_path / f"{kernel}.json"
        run("train", "llama-3.2-1b", "--seq-len", "64", "--device", "H100", "--attention", kernel, "--json", path)
        found.append(path)
        assert json.loads(path.read_text())["workload"]["attention"] == kernel
    assert "workload attention  flash1  flash2" in run("compare", *found).stdout


def test_steps_of_post_training_are_compared_phase_by_phase(tmp_path: Path, files: tuple[Path, ...]) -> None:
    """Phases add up to the difference, what is within them too; a step and an iteration have no parts in common."""
    steps = [tmp_path / name for name in ("one.json", "two.json")]
    for path, tp in zip(steps, ("1", "2"), strict=True):
        run("train", *JOB, "--post", "grpo,responses=2", "--rollout", "1s", "--tp", tp, "--json", path)
    found = compare(steps)
    changes = found.changes(1)
    assert tuple(changes) == ("roll-out", "old policy", "reference", "policy updates")
    assert changes["roll-out"] == 0
    assert sum(changes.values()) == pytest.approx(found.results[1].seconds - found.results[0].seconds, rel=1e-9)
    for one in found.results:
        for phase in ("reference", "policy updates"):
            within = sum(seconds for name, seconds in one.modules.items() if name.startswith(f"{phase}: "))
            assert within == pytest.approx(one.parts[phase], rel=1e-6)
    assert found.asked["tp"] == (1, 2)
    assert "From A to B" in run("compare", *steps, "--per", "sample").stdout
    mixed = run("compare", steps[0], files[0], code=2)
    assert "of one iteration and" in mixed.stderr


def test_plans_of_a_step_of_post_training_are_compared_at_once(tmp_path: Path) -> None:
    post = ("--post", "grpo,responses=2", "--rollout", "1s")
    page = tmp_path / "page.html"
    done = run("train", *JOB, *post, "--compare", "tp=2", "--report", page, "--json", "-")
    document = json.loads(done.stdout)
    alone = json.loads(run("train", *JOB, *post, "--tp", "2", "--json", "-").stdout)
    assert document["per"] == "sample"  # half as many ranks have samples
    each = alone["iteration_time_s"] / alone["samples"]
    assert document["results"][1]["seconds"] == pytest.approx(each, rel=1e-12)
    assert "policy updates" in page.read_text()
