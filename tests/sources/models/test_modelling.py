"""Options, configuration files, and what is refused."""

from __future__ import annotations

import json
from dataclasses import fields, make_dataclass
from pathlib import Path

import pytest

from tests.command import run
from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError
from triosim.operators import kind
from triosim.sources.modelling import LACKING, MODELS, configured, from_file, model
from triosim.sources.models._family import Share, Sizes, wrong_value
from triosim.trace.tables import Category, Phase

TINY = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 50}


def tiny(**options):
    return model("gpt", configuration=TINY, **options)


def test_meta():
    meta = tiny(batch_size=3, sequence_length=8).meta
    assert (meta.made_by, meta.symbols, meta.clock, meta.batch_size, meta.sequence_length) == (
        "triosim.model", "model", "none", 3, 8,
    )  # fmt: skip
    assert meta.workload == "gpt, bfloat16"
    assert model("vgg11", image_size=64).meta.sequence_length is None


def test_inference_is_the_forward_alone():
    trace = model("gpt2", configuration={"n_layer": 2}, training=False)
    names = trace.operators.name
    assert set(trace.operators.phase) == {Phase.FORWARD}
    assert not any(kind(n) == "loss" or "dropout" in n for n in names)
    assert not set(trace.values.category) & {Category.GRADIENT, Category.OPTIMIZER_STATE, Category.ACTIVATION}


def test_inference_leaves_statistics_alone():
    trace = model("resnet18", image_size=64, training=False)
    buffers = trace.values.category == Category.BUFFER
    assert buffers.sum() == 3 * 20
    assert not trace.values.version[buffers].any()


def test_dropout_runs_in_training():
    assert sum("native_dropout" in n for n in model("gpt2", configuration={"n_layer": 2}).operators.name) == 2 * 5


@pytest.mark.parametrize(("asked", "got"), [(None, "bfloat16"), ("fp16", "float16"), ("float32", "float32")])
def test_precision(asked, got):
    trace = tiny(precision=asked)
    values = trace.values
    kinds = (Category.WEIGHT, Category.GRADIENT)
    assert {DTYPES[d] for d, c in zip(values.dtype, values.category, strict=True) if c in kinds} == {got}
    logits = [row for row, name in enumerate(trace.operators.name) if name == "aten::_log_softmax"]
    assert [DTYPES[values.dtype[trace.operators.inputs[row][0]]] for row in logits] == ["float32"]
    flash = any("flash" in name for name in trace.operators.name)
    assert flash == (got != "float32")  # the flash kernels have no float32


def test_float32_attention_repeats_grouped_heads():
    few = {"num_hidden_layers": 1}
    trace = model("llama-3-8b", configuration=few, precision="float32", sequence_length=8)
    efficient = [r for r, n in enumerate(trace.operators.name) if n == "aten::_scaled_dot_product_efficient_attention"]
    (row,) = efficient
    q, k, v = (trace.values.shape[x].tolist() for x in trace.operators.inputs[row])
    assert q == k == v == [1, 32, 8, 128]
    assert trace.operators.name.count("aten::repeat_interleave") == 2


def test_batch_norm_stays_in_float32():
    values = model("resnet18", image_size=64, precision="bfloat16").values
    weights = {values.name[v]: DTYPES[values.dtype[v]] for v in range(len(values)) if values.name[v]}
    assert {d for n, d in weights.items() if "bn" in n and n.endswith(("weight", "bias"))} == {"float32"}
    assert {d for n, d in weights.items() if "conv" in n or n.startswith("fc")} == {"bfloat16"}


def test_default_sequence_is_what_the_model_was_made_for():
    one = {"num_hidden_layers": 1}
    assert tiny().meta.sequence_length == 16
    assert model("llama-2-7b", configuration=one).meta.sequence_length == 4096
    assert model("llama-3.1-8b", configuration=one).meta.sequence_length == 8192


def test_fused_moves_fewer_bytes_and_computes_the_same():
    few = {"num_hidden_layers": 2}
    plain, fused = (model("llama-3-8b", configuration=few, sequence_length=256, fused=f) for f in (False, True))
    for trace in (plain, fused):
        assert all(kind(name) != "other" for name in trace.operators.name)

    def flop(trace):
        counted = [kind(n) in ("linear", "attention") for n in trace.operators.name]
        return trace.operators.flop[counted].sum()

    assert flop(plain) == flop(fused)
    step = [trace.operators.phase != Phase.OPTIMIZER for trace in (plain, fused)]
    assert fused.operators.bytes[step[1]].sum() < 0.9 * plain.operators.bytes[step[0]].sum()
    logits = [v for v in range(len(fused.values)) if fused.values.shape[v].tolist() == [256, 128256]]
    assert len({int(fused.values.storage[v]) for v in logits}) == 1  # the gradient takes the place of the scores


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch_size": 0}, "batch_size of model 'gpt' must be a whole number of at least 1, not 0"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"sequence_length": True}, "sequence_length"),
        ({"sequence_length": 17}, "17 is more than the 16 positions"),
        ({"image_size": 224}, "reads text: image_size has no meaning"),
        ({"precision": "float8"}, r"unknown precision 'float8': did you mean.*8 or 4 bits are asked for by quantize"),
        ({"precision": "float64"}, r"unknown precision 'float64': did you mean[^(]*$"),
        ({"optimizer": "adamax"}, "unknown optimizer 'adamax': did you mean adam"),
    ],
)
def test_bad_options(options, complaint):
    with pytest.raises(InputError, match=complaint):
        tiny(**options)


def test_images_have_no_sequence():
    with pytest.raises(InputError, match="reads images: sequence_length has no meaning"):
        model("resnet18", sequence_length=8)


def test_too_small_an_image():
    with pytest.raises(InputError, match=r"too small: features\.20 slides a window of 2 over 1 pixels"):
        model("vgg11", image_size=16)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"n_head": 3}, "n_head 3 does not divide n_embd 32"),
        ({"n_layer": -1}, "n_layer must be a whole number of at least 1, not -1"),
        ({"n_layer": 1.5}, "n_layer must be"),
        ({"n_layer": True}, "n_layer must be"),
        ({"resid_pdrop": 1.0}, "resid_pdrop must be a probability below 1"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"layers": 2}, "unknown gpt key 'layers'"),
    ],
)
def test_bad_configuration(change, complaint):
    with pytest.raises(InputError, match=complaint):
        model("gpt", configuration={**TINY, **change})


def test_a_family_alone_lacks_its_sizes():
    with pytest.raises(InputError, match="family 'gpt' also needs n_embd, n_layer, n_head"):
        model("gpt")


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("llama-3-8b", {"num_attention_heads": 24}, "num_attention_heads 24 does not divide hidden_size 4096"),
        ("llama-3-8b", {"num_key_value_heads": 5}, "num_key_value_heads 5 does not divide num_attention_heads 32"),
        ("llama-3-8b", {"head_dim": 7}, "a head of 7 has no halves"),
        ("vgg11", {"layers": [1, 1]}, "5 stages, not of 2"),
        ("vgg11", {"layers": []}, "layers must be a list of whole numbers"),
        ("resnet18", {"groups": 2}, "belong to bottleneck"),
    ],
)
def test_impossible_shapes(name, change, complaint):
    with pytest.raises(InputError, match=complaint):
        model(name, configuration=change)


# --- files -----------------------------------------------------------------------------------------------------------

TOML = 'family = "gpt"\nn_embd = 32\nn_layer = 1\nn_head = 2\nn_positions = 16\nvocab_size = 50\n'
YAML = "family: gpt\nn_embd: 32\nn_layer: 1\nn_head: 2\nn_positions: 16\nvocab_size: 50\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML), ("a.json", json.dumps({"family": "gpt", **TINY}))],
)
def test_the_same_model_in_every_format(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    trace, same = from_file(path, batch_size=2), tiny(batch_size=2)
    assert trace.operators.name == same.operators.name
    assert trace.values.shape.values.tolist() == same.values.shape.values.tolist()
    assert trace.meta.workload.startswith("a, ")
    assert len(model(str(path), batch_size=2)) == len(trace)


def test_a_file_that_starts_from_a_preset(tmp_path):
    path = tmp_path / "cut.toml"
    path.write_text('preset = "llama-3-8b"\nnum_hidden_layers = 2\n')
    assert len(from_file(path, sequence_length=8).weights()) == 2 * 9 + 3


def test_a_file_of_hugging_face(tmp_path):
    path = tmp_path / "config.json"
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
        "head_dim": None, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
    }  # fmt: skip
    path.write_text(json.dumps(config))
    assert len(from_file(path, sequence_length=8).weights()) == 2 * 9 + 3
    path.write_text(json.dumps({**config, "mlp_bias": True}))
    assert len(from_file(path, sequence_length=8).weights()) == 2 * 12 + 3
    path.write_text(json.dumps({**config, "hidden_act": "gelu"}))
    with pytest.raises(InputError, match=r'config.json: hidden_act "gelu" is not supported, only "silu"'):
        from_file(path)
    path.write_text(json.dumps({**config, "model_type": "mistral", "sliding_window": 4096}))
    windowed = from_file(path, sequence_length=5000)
    of_attention = [json.loads(args) for args in windowed.operators.args if "is_causal" in args]
    assert {args.get("window_size_left") for args in of_attention} == {4095}
    path.write_text(json.dumps({**config, "model_type": "xlstm"}))
    with pytest.raises(InputError, match=r"'xlstm': what it lacks is their recurrences.*; any .*--fake"):
        from_file(path)
    path.write_text(json.dumps({**config, "model_type": "olmo4"}))
    with pytest.raises(InputError, match=r"no family reads model_type 'olmo4' \(the nearest: .*olmo3"):
        from_file(path)


def test_what_is_said_to_lack_something_is_read_by_no_family():
    read = {kind for name in MODELS.names() for kind in MODELS.get(name).model_types}
    assert not read & {kind for kinds in LACKING for kind in kinds.split()}


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.toml", "n_embd = 32\n", "say which family"),
        ("a.toml", 'family = "gpt"\npreset = "gpt2"\n', "say which family"),
        ("a.toml", "family = 3\n", "family must be a name, not 3"),
        ("a.toml", 'family = "gtp"\n', "a.toml: unknown model 'gtp': did you mean gpt"),
        ("a.toml", TOML + "heads = 3\n", "a.toml: unknown gpt key 'heads': did you mean n_head"),
        ("a.toml", "family = [", "a.toml: "),
        ("a.json", "[1, 2]", "must be keys and values, such as family and its sizes, not a list"),
        ("a.json", "{", "a.json is broken JSON at line 1"),
        ("a.yaml", "a: [", "a.yaml, line 1: not valid YAML"),
        ("a.txt", "", "is a .toml, .yaml or .json file"),
    ],
)
def test_bad_files(tmp_path, name, text, complaint):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=complaint) as error:
        from_file(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        from_file(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match="UTF-8"):
        from_file(tmp_path / "latin.toml")


def test_what_newer_files_say_of_rotary_positions(tmp_path):
    path = tmp_path / "config.json"
    config = {
        "model_type": "stablelm", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 100,
    }  # fmt: skip
    found = []
    for told in ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}, {}):
        path.write_text(json.dumps({**config, **told}))
        trace = from_file(path, sequence_length=8)
        found.append(next(b for b, name in enumerate(trace.values.name) if name.endswith("inv_freq")))
        found[-1] = tuple(trace.values.shape.lists()[found[-1]])
    assert found == [(4,), (4,), (2,)]


def test_a_folder_with_a_configuration_is_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
             "num_key_value_heads": 4, "vocab_size": 100}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "unheard_of": 1, **sizes}))
    trace, same = model(str(folder), sequence_length=8), from_file(folder / "config.json", sequence_length=8)
    assert len(trace) == len(same)
    assert trace.meta.workload == "Tiny-Llama, bfloat16"
    assert any("passed over unheard_of" in note for note in trace.meta.notes)
    done = run("train", str(folder), "--device", "A100", "--seq-len", "8", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert "passed over unheard_of" in done.stdout


def _of_hub(tmp_path: Path, table: dict) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(table))
    return path


def test_keys_that_older_files_call_otherwise(tmp_path):
    """bigscience/bloom-560m and the first Llama: sizes under other names."""
    bloom = {"model_type": "bloom", "n_embed": 1024, "num_attention_heads": 16, "n_layer": 24, "vocab_size": 250880}
    assert configured(str(_of_hub(tmp_path, bloom))).weights().count() == 559_214_592
    llama = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
        "num_hidden_layers": 32, "vocab_size": 32000, "max_sequence_length": 2048,
    }  # fmt: skip
    assert configured(str(_of_hub(tmp_path, llama))).longest == 2048


def test_keys_that_a_file_leaves_out(tmp_path):
    """google/gemma-3-4b-pt: what is usual in its text model is not written down."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    path = _of_hub(tmp_path, {"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert configured(str(path)).weights().count() == 3_880_263_168


@pytest.mark.parametrize(
    ("layer_types", "words"),
    [
        (["sliding_attention"], "layer_types has 1 entries for 4 blocks: give one for each"),
        (["linear_attention"] * 4, "layer_types.0. 'linear_attention' is not supported, only full_attention"),
        ("sliding_attention", "layer_types must be a list of names, not 'sliding_attention'"),
    ],
)
def test_attention_of_layers_that_is_not_the_familys_is_refused(tmp_path, layer_types, words):
    own = {
        "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 4, "vocab_size": 50,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    }  # fmt: skip
    usual = ["sliding_attention", "full_attention"] * 2
    assert configured(str(_of_hub(tmp_path, {**own, "layer_types": usual}))).depth == 4
    with pytest.raises(InputError, match=words):
        from_file(_of_hub(tmp_path, {**own, "layer_types": layer_types}))


def test_fields_of_a_family_are_known_whether_its_module_evaluates_annotations_or_not():
    evaluated = make_dataclass("Evaluated", [("width", int), ("share", Share), ("sizes", Sizes), ("odd", complex)])
    written = make_dataclass("Written", [("width", "int"), ("share", "Share"), ("sizes", "Sizes"), ("odd", "complex")])
    for cls in (evaluated, written):
        width, share, sizes, odd = fields(cls)
        assert (wrong_value(width, 512), wrong_value(width, [512])) == ("", "a whole number of at least 1")
        assert (wrong_value(share, 1.0), wrong_value(share, 0)) == ("", "a number above 0 and at most 1")
        assert (wrong_value(sizes, [3]), wrong_value(sizes, [])) == ("", "a list of whole numbers of at least 1")
        with pytest.raises(TypeError, match=r"field odd of a model family is .*complex"):
            wrong_value(odd, 1)
