"""Named models: the published numbers of parameters, and lists that cost nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from validation import names

from tests.data import shared
from triosim.core import guarded
from triosim.core.errors import InputError
from triosim.sources import modelling
from triosim.sources.modelling import MODELS, model, parameters, preset, presets

PUBLISHED = {
    # Hugging Face model cards and torchvision's table of weights
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824, "mistral-7b": 7_248_023_552,
    "bert-base": 109_514_298, "resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032,
    "resnet101": 44_549_160, "resnet152": 60_192_808, "resnext50-32x4d": 25_028_904, "resnext101-32x8d": 88_791_336,
    "wide-resnet50-2": 68_883_240, "densenet121": 7_978_856, "densenet161": 28_681_000, "densenet169": 14_149_480,
    "densenet201": 20_013_928, "vgg11": 132_863_336, "vgg13": 133_047_848, "vgg16": 138_357_544, "vgg19": 143_667_240,
    "vit-base-16": 86_567_656, "vit-large-16": 304_326_632, "vit-huge-14": 632_045_800, "convnext-tiny": 28_589_128,
    "t5-small": 60_506_624, "t5-base": 222_903_552, "t5-3b": 2_851_598_336, "t5-11b": 11_307_321_344,
    "flan-t5-small": 76_961_152, "flan-t5-base": 247_577_856, "flan-t5-large": 783_150_080,
    "flan-t5-xl": 2_849_757_184, "flan-t5-xxl": 11_135_332_352,
    "convnext-small": 50_223_688, "convnext-base": 88_591_464, "convnext-large": 197_767_336,
    # Hugging Face's counts of the stored parameters
    "sdxl-vae": 83_653_863, "flux.1-vae": 83_819_683,
    "clip-vit-l-14-text": 123_060_480, "openclip-bigg-14-text": 694_659_840, "t5-xxl-encoder": 4_762_310_656,
    "flux.1-dev": 11_901_408_320, "flux.1-schnell": 11_891_178_560, "sdxl": 2_567_463_684,
    "mixtral-8x7b": 46_702_792_704, "mixtral-8x22b": 140_620_634_112, "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688, "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352, "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264, "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560, "qwen1.5-moe-a2.7b": 14_315_784_192, "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896, "gemma-2-2b": 2_614_341_888, "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320, "gemma-3-1b": 999_885_952, "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400, "phi-1.5": 1_418_270_720, "phi-2": 2_779_683_840, "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080, "phi-4": 14_659_507_200, "gpt-neox-20b": 20_554_567_680,
    "pythia-6.9b": 6_857_302_016, "pythia-12b": 11_846_072_320, "gpt-j-6b": 6_050_882_784, "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984, "opt-13b": 12_853_473_280, "opt-30b": 29_974_540_288, "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064, "bloom-176b": 176_247_271_424, "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880, "gpt-oss-20b": 20_914_757_184, "gpt-oss-120b": 116_829_156_672,
    "seed-oss-36b": 36_151_104_512, "smollm3-3b": 3_075_098_624, "olmo-3-7b": 7_298_011_136,
    "olmoe-1b-7b": 6_919_161_856, "starcoder2-3b": 3_030_371_328, "starcoder2-7b": 7_173_923_840,
    "starcoder2-15b": 15_957_889_024, "granite-3.1-8b": 8_170_848_256, "stablelm-3b": 2_795_443_200,
    "stablelm-2-1.6b": 1_644_515_328, "glm-4-9b": 9_400_279_040, "glm-4-32b": 32_566_081_536,
    "command-r7b": 8_028_033_024,
    "starcoder-15b": 15_517_456_384,
    "mpt-7b-alibi": 6_649_286_656,
    "phi-3.5-moe": 41_873_153_344,
    "gpt-neo-125m": 125_198_592, "gpt-neo-1.3b": 1_315_575_808, "gpt-neo-2.7b": 2_651_307_520,
    "dbrx": 131_596_523_520,
    "ernie-4.5-0.3b": 360_748_032,
    "distilbert-base": 66_985_530,
    "swin-t": 28_288_354, "swin-s": 49_606_258, "swin-b": 87_768_224, "swin-l": 196_532_476,
    "whisper-tiny": 37_760_640, "whisper-base": 72_593_920, "whisper-small": 241_734_912,
    "whisper-medium": 763_857_920, "whisper-large-v2": 1_543_304_960, "whisper-large-v3": 1_543_490_560,
    "whisper-large-v3-turbo": 808_878_080,
    "mamba2-130m": 128_989_632, "mamba2-2.7b": 2_702_599_680,
    "mamba-130m": 129_135_360, "mamba-2.8b": 2_768_345_600, "falcon-mamba-7b": 7_272_665_088,
    "jamba-1.5-mini": 51_570_323_328,
    "lfm2-350m": 354_483_968, "lfm2-700m": 742_489_344, "lfm2-1.2b": 1_170_340_608,
    "nemotron-3-nano-30b-a3b": 31_577_937_344, "qwen3-next-80b-a3b": 79_674_391_296,
    "granite-4.0-h-micro": 3_191_396_096, "granite-4.0-h-tiny": 6_939_037_248, "granite-4.0-h-small": 32_207_337_984,
}  # fmt: skip

ROUNDED = {  # Brown et al., arXiv:2005.14165, Table 2.1, in millions; Devlin et al., arXiv:1810.04805, section 3
    "gpt3-125m": 125, "gpt3-350m": 356, "gpt3-760m": 760, "gpt3-1.3b": 1320, "gpt3-2.7b": 2650, "gpt3-6.7b": 6700,
    "gpt3-13b": 13_000, "gpt3-175b": 175_000, "bert-large": 340,
    # as the sources of their configurations name them
    "gpt3-22b": 22_000, "mt-nlg-530b": 530_000, "gpt-1t": 1_008_000, "llama-33b": 32_500, "llama-65b": 65_200,
    "deepseek-v3": 671_000, "falcon-180b": 180_000, "falcon-40b": 41_000, "opt-66b": 66_000, "opt-175b": 175_000,
    # as the sources of measured rows name them
    "gpt-3.6b": 3600, "gpt-7.5b": 7500, "gpt-18.4b": 18_400, "gpt-39.1b": 39_100, "gpt-76.1b": 76_100,
    "gpt-145.6b": 145_600, "gpt-310.1b": 310_100, "gpt-1.5b": 1500, "gpt-6.2b": 6200, "gpt-14.6b": 14_600,
    "gpt-28.3b": 28_300, "gpt2-1b": 1160, "gpt2-2b": 2030, "gpt2-4b": 4240, "mpt-1b": 1316, "mpt-3b": 2652,
    "mpt-7b": 6659, "mpt-13b": 12_854, "mpt-30b": 29_975, "mpt-70b": 64_862, "maxtext-16b": 16_000,
    "maxtext-32b": 32_000, "maxtext-64b": 64_000, "internlm-7b": 7300, "kimi-k2": 1_026_000,
    "mamba2-370m": 370, "mamba2-780m": 780, "mamba2-1.3b": 1340, "jamba-1.5-large": 398_000, "bamba-9b": 9780,
    "nemotron-h-8b": 8000, "nemotron-h-47b": 47_000,
    "nemotron-h-56b": 56_000,
    "dit-s-2": 33, "dit-b-2": 130, "dit-l-2": 458, "dit-xl-2": 675,
    "dlrm-kaggle": 540,  # as the paper of DLRM names it
    "nemotron-4-340b": 341_000, "nemotron-4-15b": 15_600, "glm-4.5-air": 106_000, "command-a": 111_000,
    "minimax-m2": 230_000, "minitron-4b": 4190, "minitron-8b": 8270, "glm-4.5": 355_000,
    "santacoder-1.1b": 1125,
    "mpt-30b-alibi": 30_000,
    "exaone-4-1.2b": 1280, "exaone-4-32b": 32_000,
    "hunyuan-7b": 7500, "electra-base": 110, "electra-large": 335,
    "llama-4-scout": 109_000, "llama-4-maverick": 400_000,  # with the vision encoder of 0.9 G
}  # fmt: skip


@pytest.mark.parametrize("name", presets())
def test_number_of_parameters(name):
    preset = presets()[name]
    assert parameters(preset.family, preset.configuration) == preset.parameters
    assert preset.parameters == PUBLISHED.get(name, preset.parameters)
    if name in ROUNDED:
        assert preset.parameters == pytest.approx(ROUNDED[name] * 1e6, rel=0.02)


@pytest.mark.parametrize(
    ("name", "depths", "widths", "layer_type"),
    [
        ("resnet18", (2, 2, 2, 2), (64, 128, 256, 512), "basic"),
        ("resnet50", (3, 4, 6, 3), (256, 512, 1024, 2048), "bottleneck"),
    ],
)
def test_hugging_faces_residual_networks_have_as_many(name, depths, widths, layer_type):
    configuration = {"depths": depths, "hidden_sizes": widths, "layer_type": layer_type}
    assert parameters("resnet_hf", configuration) == PUBLISHED[name]


@pytest.mark.parametrize(("name", "width", "published"), [("albert-base-v2", 768, 11_813_810)])
def test_with_what_tells_the_order_of_sentences(name, width, published):
    """The published file has its pooling and its two classes beside the head of masked words."""
    assert presets()[name].parameters + (width + 1) * width + 2 * (width + 1) == published


def test_every_published_number_is_of_a_preset():
    assert set(PUBLISHED) | set(ROUNDED) <= set(presets())


def test_read_one_by_one_they_say_what_the_whole_file_says():
    file = Path(modelling.__file__).parent / "models" / "presets.toml"
    whole = guarded.parse_toml(file.read_text(encoding="utf-8"), file.name)
    assert list(presets()) == list(whole)
    for name, row in whole.items():
        found = presets()[name]
        own = {"family": found.family, "parameters": found.parameters, "source": found.source}
        assert {**own, **found.configuration} == row


@pytest.mark.parametrize("name", presets())
def test_says_where_it_is_from(name):
    preset = presets()[name]
    assert preset.family in MODELS
    assert preset.source


@pytest.mark.parametrize(
    ("written", "name"), [("ResNet-50", "resnet50"), ("GPT-2", "gpt2"), ("Llama-3_8B", "llama-3-8b")]
)
def test_case_and_separators_do_not_matter(written, name):
    few = {"num_hidden_layers": 1} if "llama" in name else {}
    size = {} if name == "resnet50" else {"sequence_length": 8}
    assert len(model(written, configuration=few, **size)) == len(model(name, configuration=few, **size))


@pytest.mark.parametrize(
    ("hub", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"), ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("google-bert/bert-large-uncased", "bert-large"), ("openai-community/gpt2", "gpt2"),
        ("google/gemma-2-9b-it", "gemma-2-9b"), ("a/folder/gpt2", None), ("./gpt2-xl.json", None),
    ],
)  # fmt: skip
def test_a_hubs_name_stands_for_the_model_of_those_sizes(hub, name):
    found = preset(hub)
    assert (found and found.name) == name


def test_no_two_names_differ_only_in_case_and_separators():
    plain = [name.lower().replace("-", "").replace("_", "") for name in presets()]
    assert len(set(plain)) == len(plain)


def test_measured_models_and_scenarios_have_names():
    """All but two, whose heads are of another width than those of any family without gated products."""
    lacking = names.without_name(shared("training", "measured.csv"))
    assert [line.partition(":")[0] for line in lacking] == ["MaxText 22B", "MaxText 52B"]
    assert [name for name in names.SCENARIOS.values() if preset(name) is None] == []


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="llama-3-8b"):
        model("llama3-8")


def test_listing_imports_no_family():
    code = (
        "import sys; from triosim.sources.modelling import MODELS, presets; presets(); MODELS.names();"
        "print([m for m in sys.modules if m.startswith('triosim.sources.models.') and '._' not in m])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
