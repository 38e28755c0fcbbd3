"""What is recorded on a GPU, tried out on the CPU at tiny sizes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from triosim.core.errors import InputError  # noqa: E402
from triosim.trace.store import load  # noqa: E402
from triosim.validate.kit import language, vision  # noqa: E402
from triosim.validate.kit.recorder import PARTS, record_parts  # noqa: E402

PARAMETERS = {  # as torchvision and transformers count them
    "resnet18": 11_689_512, "resnet50": 25_557_032, "resnet152": 60_192_808, "densenet121": 7_978_856,
    "densenet201": 20_013_928, "vgg11": 132_863_336, "vgg19": 143_667_240,
    "gpt2": 124_439_808, "bert-base": 109_514_298, "t5-small": 60_506_624, "llama-3.2-1b": 1_235_814_400,
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_parameters_of_their_originals(name: str) -> None:
    with torch.device("meta"):
        model = language.Model(language.SIZES[name]) if name in language.SIZES else vision.NETWORKS[name]()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", language.SIZES)
def test_a_language_model_answers_for_every_token(name: str) -> None:
    own = language.SIZES[name]
    small = language.ModelSizes(
        2, 64, 4, 128, 50, own.kv_heads and 2, own.causal, own.rotary, own.post_norm, min(own.encoder, 1), 32, 16
    )
    model, tokens = language.Model(small), torch.randint(50, (2, 8))
    out = model(tokens)
    assert out.shape == (2, 8, 50)
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % 50
    looks_ahead = not torch.allclose(model(changed)[:, 0], out[:, 0], atol=1e-5)
    assert looks_ahead == (not own.causal or own.encoder > 0)
    language.loss(model, tokens).backward()


def test_items_of_a_part_are_told_apart() -> None:
    for name, part in PARTS.items():
        for tiny in (True, False):
            keys = [item.key for item in part(tiny)]
            assert len(keys) == len(set(keys)) > 0, name


def _rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_part_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = list(PARTS["memory"](True))[:5]
    monkeypatch.setitem(PARTS, "memory", lambda tiny: iter(few))
    (none,) = record_parts(tmp_path, "memory", 0.0, "cpu")
    assert (none.before, none.now) == (0, 0)
    (first,) = record_parts(tmp_path, "memory", math.inf, "cpu")
    assert first.now == first.items == 5
    assert first.failed == first.left == 0
    path = tmp_path / "memory.jsonl"
    about, *rows = _rows(path)
    assert (about["kind"], about["schema"], about["tiny"]) == ("about", "triosim/kit/1", True)
    assert all(row["seconds"] > 0 for row in rows)
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[:-40], encoding="utf-8")  # cut off in the middle of the last row
    (again,) = record_parts(tmp_path, "memory", math.inf, "cpu")
    assert (again.before, again.now) == (4, 1)
    assert [row["key"] for row in _rows(path) if row["kind"] != "about"] == [row["key"] for row in rows]


def test_a_step_comes_with_its_trace(tmp_path: Path) -> None:
    (done,) = record_parts(tmp_path, "texts", math.inf, "cpu")
    assert done.failed == done.left == 0
    row = _rows(tmp_path / "texts.jsonl")[1]
    trace = load(tmp_path / row["trace"])
    assert trace.meta.batch_size == row["batch"]
    assert trace.device_time() > 0
    assert row["source"] == "triosim"
    assert row["parameters"] == int(trace.values.elements()[trace.weights()].sum())


@pytest.mark.parametrize(
    ("part", "device", "said"),
    [("gem", "cpu", "unknown part 'gem': did you mean gemm"), (None, "tpu", "--device must be cpu or cuda")],
)
def test_what_is_asked_wrongly(part: str | None, device: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        record_parts(tmp_path, part, math.inf, device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a GPU, and PyTorch finds none here"):
        record_parts(tmp_path, None, math.inf, None)


def test_a_file_of_something_else_is_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "gemm.jsonl").write_text("not a row\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"gemm.jsonl line 1 is no row"):
        record_parts(tmp_path, "gemm", math.inf, "cpu")
