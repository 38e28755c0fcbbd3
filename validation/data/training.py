"""Published training iterations, as rows that can be predicted: what ran, on what, how, and in how many seconds.

A row that cannot be told to the program today says what it lacks (:attr:`Row.lacks`), so that no table leaves rows out
in silence.  Everything here is read off the row or off what its source publishes; nothing is fitted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation import command
from validation.data import bridge

from triosim.core.errors import InputError
from triosim.hardware.catalog import accelerator

GIB = 2.0**30

STACKS = {
    "Megatron-LM SC'21 Table 1": "megatron-2021", "Megatron-LM SC'21 Table 2": "megatron-2021",
    "Megatron-LM README 2020 scaling": "megatron-2021", "Korthikanti et al. MLSys 2023 Table 5": "megatron-2022",
    "MosaicML llm-foundry benchmarks": "llm-foundry", "NVIDIA Megatron-Bridge performance summary": "megatron-core",
    "vTrain measured set (single-node)": "megatron-deepspeed", "vTrain measured set (multi-node)": "megatron-deepspeed",
    "SimuMax B200 real benchmark": "megatron-core", "torchtitan benchmarks": "torchtitan",
    "NeMo long-sequence CP table": "nemo", "Megatron-LM CI golden values": "megatron-core",
    "Megatron-LM MoE layer perf baseline": "megatron-core", "SimuMax A100-PCIe (derived)": "megatron-core",
    "Zero Bubble PP ICLR 2024 Table 4": "megatron-2023", "InternEvo train_performance": "internevo",
    "MaxText TPU tables": "maxtext", "BigScience BLOOM topology runs": "bigscience",
    "NVIDIA NeMo 24.12 performance summary": "nemo", "torchtitan on A100 2024": "torchtitan",
    "IBM fms-fsdp README": "torch-eager", "Megatron-Turing NLG 530B": "megatron-deepspeed",
    "DGX Cloud recipes, NeMo 24.09 to 24.12": "nemo", "DGX Cloud recipes, MaxText": "maxtext",
    "IBM fms-fsdp README on H100": "torch-eager", "FlashAttention training README": "flash-attention",
    "TinyLlama README": "lit-gpt", "JAX-Toolbox Pax": "maxtext", "KempnerForge MFU benchmark": "torchtitan",
    "KempnerForge weak scaling": "torchtitan", "DeepSpeed on A800": "deepspeed-transformers",
    "nanotron bench_cluster": "nanotron", "tprimat, Primus (Megatron-LM)": "megatron-core",
    "tprimat, NeMo 25.03": "nemo", "Intel Gaudi 2 model performance": "megatron-gaudi",
    "torchtitan on H200 2025": "torchtitan", "KempnerForge 175B": "torchtitan",
    "ATorch Llama 2, FSDP": "deepspeed-transformers", "ATorch Llama 2, DeepSpeed 3D": "deepspeed-transformers",
    "FlagPerf Megatron-Core": "megatron-core", "FlagPerf FlagScale": "megatron-2023",
    "FlagPerf DeepSpeed": "deepspeed-transformers", "FlagPerf Megatron-DeepSpeed": "megatron-deepspeed",
    "PaddleNLP LLaMA": "torch-eager", "OLMo-core README": "torchtitan", "AWS Neuron Trn1 training": "maxtext",
    "Qwen finetuning": "deepspeed-transformers", "NeMo AutoModel LoRA": "torch-eager",
    "DeepSpeed autotuning GPT-2": "deepspeed-transformers",
    "nanoGPT README": "torch-eager", "nanoGPT README, compiled": "torch-compile", "llm.c scripts": "torch-compile",
    "Pythia": "megatron-deepspeed", "GPT-NeoX-20B": "megatron-deepspeed", "GLM-130B": "megatron-deepspeed",
    "OPT-175B": "megatron-2022", "Llama 3 405B": "megatron-core", "NeMo AutoModel pre-training": "megatron-core",
    "torchtune README": "torch-compile", "fast-DiT README": "torch-eager", "timm training on RTX 3090": "torch-eager",
    "TPU recipes for Trillium": "maxtext", "Google Cloud GPU recipes on A3 and A4": "nemo",
    "MLPerf Training 4.0, Llama 2 LoRA": "nemo", "MLPerf Training 5.1, Llama 2 LoRA": "nemo",
    "MLPerf Training 5.1, Llama 3.1 8B": "nemo", "MLPerf Training 4.0, GPT-3": "nemo",
    "MLPerf Training 4.0, Stable Diffusion": "torch-compile", "MLPerf Training 5.1, FLUX.1": "nemo",
    "MLPerf Training 5.1, Llama 3.1 405B": "nemo", "MLPerf Training 5.1, Llama 3.1 8B on Blackwell": "nemo",
    "MLPerf Training 5.1, Llama 2 LoRA on Blackwell": "nemo", "NVIDIA NeMo 24.12 fine-tuning": "nemo",
    "cuDNN frontend, Llama 3.2 1B": "deepspeed-transformers", "XTuner speed benchmark": "deepspeed-transformers",
    "Lambda benchmark, ResNet-50": "torch-eager", "Lambda benchmark, BERT-large": "apex-o2",
    "FlagPerf images": "torch-eager", "FlagPerf encoders": "torch-eager", "FlagPerf GPT-2": "megatron-2022",
    "FlagPerf Qwen1.5 MoE": "megatron-core", "FlagPerf ChatGLM3": "deepspeed-transformers",
    "MegaScale, its baseline": "megatron-2022", "Nemotron-4 340B": "megatron-core", "Nemotron-4 15B": "megatron-core",
    "NVIDIA NeMo 25.04 performance summary": "nemo", "NVIDIA NeMo 25.07 performance summary": "nemo",
    "GPT-Simple": "torch-compile", "Colossal-AI on H200": "deepspeed-transformers",
    "Optimum Habana on Gaudi 2": "megatron-gaudi", "nanochat": "torch-compile", "AWS Neuron Trn1, BERT": "maxtext",
    "AWS Neuron Trn1, ViT": "maxtext", "MLPerf Training 3.0 and 3.1, ResNet-50": "mxnet",
    "LLMQ": "torch-compile", "MosaicML diffusion": "torch-eager", "Megatron-MoE-ModelZoo, Qwen3": "megatron-core",
    "DeepSeek-V3": "megatron-core", "big_vision": "maxtext", "VectorLM": "deepspeed-transformers",
    "universal-llm-trainer": "deepspeed-transformers",
}  # fmt: skip
"""The software that each source measured."""
NEAREST = {
    "FlagPerf FlagScale", "PaddleNLP LLaMA", "OLMo-core README", "AWS Neuron Trn1 training", "NeMo AutoModel LoRA",
    "llm.c scripts", "OPT-175B", "Llama 3 405B", "NeMo AutoModel pre-training", "MLPerf Training 5.1, FLUX.1",
    "XTuner speed benchmark", "MegaScale, its baseline", "Colossal-AI on H200", "Optimum Habana on Gaudi 2",
    "AWS Neuron Trn1, BERT", "AWS Neuron Trn1, ViT", "LLMQ", "DeepSeek-V3", "big_vision", "VectorLM",
    "universal-llm-trainer",
}  # fmt: skip
"""Sources that ran other software, to which the stack that stands for it is the nearest."""
OLD = {
    "Megatron-LM SC'21 Table 1", "Megatron-LM SC'21 Table 2", "Megatron-LM README 2020 scaling",
    "Korthikanti et al. MLSys 2023 Table 5", "vTrain measured set (single-node)", "vTrain measured set (multi-node)",
    "BigScience BLOOM topology runs", "Zero Bubble PP ICLR 2024 Table 4", "Megatron-Turing NLG 530B",
    "DeepSpeed autotuning GPT-2", "FlagPerf GPT-2", "MegaScale, its baseline",
}  # fmt: skip
"""Sources whose attention keeps scores and weights as tensors of their own: older than FlashAttention, or, as Zero
Bubble's, with a peak memory that only holds what such an attention keeps (a 1.5B model on 8 GPUs: 32 GB, where an
attention that recomputes its scores takes 16)."""
FUSED_SOFTMAX_MULTIPLE = 4
"""Megatron-LM's fused softmax wants heads times samples of a device to be a multiple of this (``fused_softmax.py``)."""
VOCABULARY = 50257
"""Of GPT-2's byte pairs, where a source trains GPT and does not say."""
UNPADDED = ("nanoGPT", "DeepSpeed autotuning", "nanotron")
"""Sources that take a vocabulary as it is, but for a multiple of the tensor-parallel ranks: nanoGPT when its README's
times were measured (its author told of 50,304 tokens in February 2023, x.com/karpathy/status/1621578354024677377),
GPT-2 of ``transformers``, and Nanotron (``make_vocab_size_divisible_by: int = 1``, ``config/config.py``).  Others pad
it to a multiple of 128 for each rank.  Looked up after these rows had been seen too fast."""
VOCABULARIES = {"Zero Bubble PP ICLR 2024 Table 4": 32004}
"""Of sources that tell it elsewhere.  Zero Bubble's scripts train with a SentencePiece model of their own
(``examples/pretrain_zero_bubble.sh``), whose 32,004 tokens a later script of the same authors states; the published
sizes leave room for 14 to 33 thousand (14.6B with 46 layers of 5,120) and rule GPT-2's out (14.7B).  Looked up after
the smallest of its models was seen 14 to 25 % too slow."""

SYSTEMS = {
    "V100-SXM3-32GB": "dgx-2", "A100-SXM": "hgx-a100", "A100-SXM-80GB": "hgx-a100", "A100-SXM-40GB": "hgx-a100-40gb",
    "A100-PCIe-80GB": "pcie-a100-8", "H100-SXM-80GB": "hgx-h100", "B200-SXM": "hgx-b200", "B200-180GB": "hgx-b200",
    "H200-SXM": "hgx-h200", "A800-SXM": "hgx-a800", "MI300X": "mi300x-8", "Gaudi2": "gaudi2-8",
    "B300": "hgx-b300", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72", "H800-SXM": "hgx-h800",
    "Trainium1": "trn1-32xlarge", "A100-SXM-40GB on AWS p4d": "aws-p4d", "L40S": "pcie-l40s-8",
    "MI325X": "mi325x-8", "MI350X": "mi355x-8", "MI355X": "mi355x-8",
}  # fmt: skip
"""Ready systems of the catalog, by the GPU that a row names."""
RACK, USED_OF_RACK = 72, 64
"""GPUs of an NVL72, and those that jobs of several racks use of each: groups of powers of two then stay within a rack,
as the groups of 64 experts of Megatron-Bridge's rows do."""
FABRICS = {
    "800 Gb/s per node": ("InfiniBand-HDR", 4), "1600 Gb/s per node": ("RoCEv2-200G", 8),
    "4x 100 Gb/s RoCE": ("RoCEv2-100G", 4), "4x Omni-Path 100": ("Omni-Path-100", 4),
    "8x HDR200": ("InfiniBand-HDR", 8), "200 Gb/s per node": ("InfiniBand-HDR", 1),
    "8x 400 Gb/s RoCE": ("RoCEv2-400G", 8), "2x 400 Gb/s": ("RoCEv2-400G", 2),
}  # fmt: skip
"""Network between the servers, where a row states it: link of the catalog and network cards of a server."""
TYPES = {"fp16": "float16", "fp32": "float32"}
"""Element types by how the words of a row's precision begin; all others have bfloat16."""
TF32 = "products are TF32"
"""What notes say of rows of float32 whose container lets products round (NVIDIA's set
``TORCH_ALLOW_TF32_CUBLAS_OVERRIDE``)."""
RECIPES = (
    (r"nvfp4", "nvfp4"), (r"fp8-cs|float8 (linear|tensorwise)|tensorwise", "fp8-current"),
    (r"float8 rowwise", "fp8-row"), (r"blockwise\)?$|e4m3 blockwise", "fp8-block"), (r"mxfp8|fp8-mx", "mxfp8"),
    (r"amp_fp8|^fp8$", "fp8-delayed"),
)  # fmt: skip
"""Recipes of :mod:`triosim.transform.quantization` by the words of a row's precision.  ``fp8`` alone is
delayed scaling in NeMo 2 and Composer (Transformer Engine's default), and tensor by tensor in Megatron-Bridge, whose
tables call it FP8-CS."""
KEMPNER = {
    "*.q_proj": "colwise", "*.k_proj": "colwise", "*.v_proj": "colwise", "*.o_proj": "rowwise", "lm_head": "gather",
    "*.gate_proj": "colwise", "*.up_proj": "colwise", "*.down_proj": "rowwise", "model.embed_tokens": "replicate",
}  # fmt: skip
"""Tensor parallelism of KempnerForge: logits are replicated, and each layer by column is given the divided input by
itself, so that each scatters its input gradient (``kempnerforge/distributed/tensor_parallel.py``; a profile beside it
counts 8 reduce-scatters a block and micro-batch, ``benchmarks/profiling/13b_24gpu_profiling.md``, of which 5 are the
backward's); gathers of one input are one in a compiled graph.  Read after the first predictions."""
OFFLOADED = "qkv_proj_offloaded"
"""MaxText's policy that keeps queries, keys and values of each block in the host's memory (``remat_policy`` of its
``base.yml``)."""
POLICIES = {
    "minimal": "pointwise", "save_qkv_proj": "projections", OFFLOADED: "projections", "selective (per-op)": "operators",
    "save_dot_with_context_except_mlp": "operators",
}  # fmt: skip
"""What MaxText and torchtitan call their policies of recomputation."""
SUMMED_IN_16_BITS = ("GPT3-175B", "Nemotron4 340B")
"""Of DGX Cloud's recipes those with ``grad_sync_dtype: bf16``: Apex's ``DistributedFusedAdam`` has its buffer of
gradients in that type, and the products add into it (``nemo_megatron/gpt3_175b_hydra.yaml``,
``nemotron/nemotron4-340b-synth.yaml``; read after the first predictions)."""
FMS = {"norms": "composed", "clip": True, "recomputed": "needed", "repeated_heads": True}
"""What fms-fsdp does otherwise than PyTorch by itself, read after its predictions had been seen: norms in steps
(``fms/modules/layernorm.py``, LayerNormParameterized with ``use_high_precision_pow``), gradients clipped at 1
(``fms_fsdp/config/training.py``), checkpoints that are not reentrant (``fms_fsdp/policies/ac_handler.py``), keys and
values expanded to all heads (``fms/modules/attention.py``)."""
PAX = {"host": "compiled", "bucket_parameters": 25_600}
"""What Pax's runs set, read after their predictions had been seen: no CUDA graphs (``--xla_gpu_cuda_graph_level=0``),
all-reduces of 51,200 bytes at most together (``--xla_gpu_all_reduce_combine_threshold_bytes``; JAX-Toolbox,
rosetta/rosetta/projects/pax/README.md, "XLA Flags")."""
MODELS = {
    "deepseekv3": ("deepseek-v3", {}), "gpt oss 120b": ("gpt-oss-120b", {}), "qwen3_235b_a22b": ("qwen3-235b-a22b", {}),
    "qwen3_30b_a3b": ("qwen3-30b-a3b", {}),
    "kimi_k2": ("deepseek_v3", {  # huggingface.co/moonshotai/Kimi-K2-Base, config.json
        "n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1, "vocab_size": 163840,
    }),
}  # fmt: skip
"""Mixtures of experts that rows name: the tables do not hold all of their sizes."""
UNGATED = ("MaxText 22B", "MaxText 52B")
"""Models of MaxText's scripts for TPU v4 (``configs/v4/22b.sh``, ``52b.sh``; 2023), which leave heads and activation to
``base.yml``: heads of 256 then and one product before the activation, not 128 and two as its defaults are since
(a test of that time quotes them as a width of 2,048, 8 heads of 256, an inner width of 8,192).
Only so do their sizes have 22 and 52 billion parameters (22.1 and 52.3; with today's defaults 25.8 and 65.2).  FLOP
were counted then as 6 for each parameter and half an attention (``calculate_tflops_training_per_device`` of a
``num_model_parameters``).  Looked up after these rows had been seen."""
PRESETS = {
    "DiT-XL/2": ("dit-xl-2", {}), "ResNet-50": ("resnet50", {}), "ResNet-101": ("resnet101", {}),
    "VGG-16": ("vgg16", {}), "DenseNet-121": ("densenet121", {}), "ViT-B/16": ("vit-base-16", {}),
    "ViT-L/16": ("vit-large-16", {}), "ConvNeXt-B": ("convnext-base", {}), "Swin-B": ("swin-b", {}),
    "GPT-NeoX-20B": ("gpt-neox-20b", {}), "Pythia-1B": ("gpt_neox", {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 8, "intermediate_size": 8192,
        "vocab_size": 50304, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    }), "Pythia-1.4B": ("pythia-1.4b", {}), "Pythia-2.8B": ("pythia-2.8b", {}), "Pythia-6.9B": ("pythia-6.9b", {}),
    "Pythia-12B": ("pythia-12b", {}), "OPT-175B": ("opt-175b", {}), "GPT-OSS 20B": ("gpt-oss-20b", {}),
    "GPT-OSS 120B": ("gpt-oss-120b", {}), "Qwen3 MoE 30B": ("qwen3-30b-a3b", {}), "GPT3-175B": ("gpt3-175b", {}),
    "Stable Diffusion 2": ("stable-diffusion-2.1", {}), "FLUX.1 schnell": ("flux.1-schnell", {"text_length": 256}),
    "Llama-3.2-1B": ("llama-3.2-1b", {}), "BERT-large": ("bert-large", {}),
    "BERT-large (SQuAD)": ("bert-large", {"vocab_size": 128}), "Nemotron-4 15B": ("nemotron-4-15b", {}),
    "Nemotron-4 340B": ("nemotron-4-340b", {}), "Mixtral 8x7B": ("mixtral-8x7b", {}), "Qwen1.5 8x1.8B": ("mixtral", {
        "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 152192, "num_local_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 8192,
    }), "ChatGLM3 6B": ("qwen2", {
        "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 28, "num_attention_heads": 32,
        "num_key_value_heads": 2, "vocab_size": 65024, "max_position_embeddings": 8192, "tie_word_embeddings": False,
    }), "nanochat d20": ("nanochat", {
        "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 20, "num_attention_heads": 10,
        "num_key_value_heads": 10, "vocab_size": 65536, "max_position_embeddings": 2048,
    }), "nanochat d32": ("nanochat", {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 65536, "max_position_embeddings": 2048,
    }), "Qwen2.5-0.5B": ("qwen2.5-0.5b", {}), "Qwen2.5-1.5B": ("qwen2.5-1.5b", {}), "Qwen2.5-3B": ("qwen2.5-3b", {}),
    "Phi3-mini": ("phi-3-mini", {"max_position_embeddings": 8192}), "ViT-S/16": ("vit", {
        "hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536,
    }),
}  # fmt: skip
"""Models of sources from P0346 on that the program knows by name."""
TPUS = {"TPU-v3": "torus", "TPU-v4": "torus", "TPU-v5e": "torus", "TPU-v5p": "torus", "TPU-v6e": "torus"}
SLICES = {"TPU-v5e": "tpu-v5e-256", "TPU-v5p": "tpu-v5p-4x4x4"}
"""TPUs of which rows have several slices, and a slice of the catalog, with its network to others."""
FLAT = ("TPU-v3", "TPU-v5e", "TPU-v6e")
"""TPUs whose torus has two dimensions."""
SINGLE = {
    "RTX-3090", "RTX-4090", "RTX-5090", "V100-SXM2-16GB", "H100-PCIe-80GB", "RTX-A6000", "RTX-6000-Ada", "RTX-PRO-6000",
}  # fmt: skip
"""GPUs that a row has one of, in no system of the catalog."""


@dataclass(frozen=True)
class Row:
    """One published iteration.

    Attributes:
        id, source, quality: as the table has them.
        seconds: of an iteration, measured.
        memory_bytes: what the fullest rank allocates, None where it is not published.
        reserved: whether that is what the allocator holds, not what tensors do.
        stack: the software, by name.
        family, configuration: of the model.
        precision: of weights and activations.
        sequence: tokens of a sample.
        plan: fields of :class:`triosim.Plan`.
        system: what is given to :func:`triosim.system`, or to :func:`scale_out` beside it.
        facts: of its software, where the row states other ones than its stack.
        lora: adapters beside frozen weights, as ``triosim.model`` takes them.
        lacks: why the row cannot be told, ``""`` where it can.
        first: what was predicted when the row was found, and its 90 % interval, seconds; empty where that is not kept.
        assumed: what the row leaves open and a rule for its whole source says instead: ``"recompute"`` is the least
            that fits in memory, ``"micro-batch"`` one sample.
        image: height and width of a sample that is an image or latents of one; 0 for text.
        optimizer: as ``triosim.model`` takes it.
        documents: tokens of the documents that a sequence holds, as ``--packing`` takes them; empty for one.
        part: of its source, where that has targets of their own for parts (:mod:`validation.judge.targets`).
    """

    id: str
    source: str
    quality: str
    seconds: float
    memory_bytes: float | None = None
    reserved: bool = False
    stack: str = ""
    family: str = "gpt"
    configuration: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "bfloat16"
    sequence: int = 2048
    plan: Mapping[str, Any] = field(default_factory=dict)
    system: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    lora: str = ""
    lacks: str = ""
    first: tuple[float, ...] = ()
    assumed: tuple[str, ...] = ()
    image: int = 0
    optimizer: str = "adam"
    documents: str = ""
    part: str = ""

    @property
    def judges(self) -> bool:
        """Whether the number of the row is odd: those judge, the even ones may shape a stack."""
        return int(re.sub(r"\D", "", self.id)) % 2 == 1

    @property
    def gates(self) -> bool:
        """Whether a failure counts: rows of quality C do not, but for those derived from published errors."""
        return self.quality != "C" or "derived" in self.source


def read(path: Path) -> list[Row]:
    """The rows of a table of the shape of ``measured.csv``.

    Raises:
        InputError: a column is missing, or a cell cannot be read.
    """
    found = []
    for line in command.rows(path, "id", "source", "iter_time_s", "micro_batch"):
        try:
            found.append(_row(line))
        except KeyError as error:
            raise InputError(f"{path}: has no column {error}: give a table of the shape of measured.csv") from None
        except ValueError as error:
            raise InputError(f"{path}: row {line['id']}: {error}") from None
    return found


def _row(line: Mapping[str, str]) -> Row:
    source, quality = line["source"], line["quality"]
    first = Row(line["id"], source, quality, _number(line["iter_time_s"]) or math.nan, stack=STACKS.get(source, ""))
    if why := _lacks(line):
        return Row(**{**vars(first), "lacks": why})
    memory = _number(line["mem_gib"])
    if memory is not None:
        memory *= 1e9 if line["mem_basis"].startswith("GB,") else GIB
    if "nvidia-smi" in line["mem_basis"]:
        memory = None  # with the context and what the allocator keeps
    family, configuration = _model(line)
    zero3 = source in OLD and line["shard"].startswith("zero3")  # Table 2 compares with DeepSpeed's ZeRO-3
    assumed = (*(["recompute"] if _open_recompute(line) else []), *(["micro-batch"] if not line["micro_batch"] else []))
    precision = next((name for words, name in TYPES.items() if line["precision"].startswith(words)), "bfloat16")
    precision = f"autocast-{precision}" if "autocast" in line["precision"] else precision
    precision = "tfloat32" if TF32 in line["notes"] else precision
    seconds = first.seconds if not math.isnan(first.seconds) else _from_flops(line)
    return Row(
        **{
            **vars(first), "seconds": seconds, "memory_bytes": memory,
            "reserved": "reserved" in line["mem_basis"], "family": family,
            "configuration": configuration, "precision": precision, "sequence": int(line["seq_len"]),
            "plan": _plan(line), "system": _system(line),
            "stack": "deepspeed-2021" if zero3 else _stack(line, first.stack), "facts": _facts(line),
            "first": _first(line), "assumed": assumed, "lora": _adapters(line),
            **(_OF_IMAGES.get(source) or {"optimizer": "adam"}),
            "image": int(line["seq_len"]) if source in _OF_IMAGES else 0, "documents": DOCUMENTS.get(source, ""),
            "part": _part(line),
        }
    )  # fmt: skip


TO_8K, ABOVE_8K = "to 8,192 tokens", "above 8,192 tokens"
PTD, ZERO_3 = "PTD-P", "ZeRO-3"
PLAIN_1F1B = "1F1B without the 1.5B model"
FOUNDRY = "MosaicML llm-foundry benchmarks"


def _part(line: Mapping[str, str]) -> str:
    """The part of its source that a row belongs to, where parts have targets of their own."""
    if line["source"] == FOUNDRY:
        return TO_8K if int(line["seq_len"]) <= 8192 else ABOVE_8K
    if line["source"].endswith("SC'21 Table 2"):
        return ZERO_3 if line["shard"].startswith("zero3") else PTD
    plain = line["overlap"].endswith("1F1B") and _int(line, "vpp") == 1 and line["model"] != "GPT 1.5B"
    return PLAIN_1F1B if line["source"].startswith("Zero Bubble") and plain else ""


DOCUMENTS = {"NVIDIA NeMo 24.12 fine-tuning": "200"}
"""Sources whose sequences hold several documents: SQuAD's have a paragraph of some 140 words and punctuation marks, a
question of 11 and an answer of 3 (Rajpurkar et al., arXiv:1606.05250), at 1.3 tokens each.  Told after the first
predictions, which took whole sequences."""
_OF_IMAGES = {
    "timm training on RTX 3090": {"optimizer": "sgd"}, "fast-DiT README": {"optimizer": "adamw"},
    "MLPerf Training 4.0, Stable Diffusion": {"optimizer": "adamw"},
    "MLPerf Training 5.1, FLUX.1": {"optimizer": "adamw"}, "Lambda benchmark, ResNet-50": {"optimizer": "sgd"},
    "FlagPerf images": {"optimizer": "sgd"}, "AWS Neuron Trn1, ViT": {"optimizer": "adamw"},
    "MLPerf Training 3.0 and 3.1, ResNet-50": {"optimizer": "sgd"}, "MosaicML diffusion": {"optimizer": "adamw"},
    "big_vision": {"optimizer": "adamw"},
}  # fmt: skip
"""Sources whose samples are images: ``seq_len`` is the height and width; and their optimizer (``--opt sgd`` is the
default of timm's ``benchmark.py``; ``AdamW`` in fast-DiT's ``train.py``)."""


def _adapters(line: Mapping[str, str]) -> str:
    """Adapters of the rows of LoRA: Qwen's scripts have rank 64 on all linear layers, AutoModel 8 by default; torchtune
    8 on queries and values, and in QLoRA on all, over 4 bits (``recipes/configs/llama3_1/8B_qlora_single_device.yaml``,
    read after the first predictions); MLPerf's 16 on both linear layers of attention (``target_modules``)."""
    if line["source"] == "torchtune README":
        return "8,base=nf4" if "QLoRA" in line["model"] else "8,targets=q_proj+v_proj"
    if "(LoRA)" not in line["model"]:
        return ""
    if line["source"].startswith("MLPerf"):
        return "16,targets=qkv_proj+o_proj,base=quantized"  # fp8_params is FP8 in megatron_gpt_peft_tuning_config.yaml
    ranks = {"Qwen finetuning": "64", "NeMo AutoModel LoRA": "8", "VectorLM": "8,targets=q_proj+v_proj"}
    return ranks.get(line["source"], bridge.ADAPTERS)


def _first(line: Mapping[str, str]) -> tuple[float, ...]:
    """The columns of a row's first prediction, which tables of others do not have."""
    return tuple(float(line[name]) for name in ("first_s", "first_low_s", "first_high_s") if line.get(name))


def _stack(line: Mapping[str, str], usual: str) -> str:
    """The software by its age and by what was switched on.

    NeMo's long sequences on H100 are of its container 24.03.01, and its scripts for NeMo 2 still switch cuDNN's
    attention off at the end of 2024 (``scripts/llm/pretraining.py``, NVTE_FUSED_ATTN).  torchtitan's rows say whether
    they are compiled, and float8 is only worth it compiled (its ``docs/float8.md``).  DGX Cloud's recipes switch
    cuDNN's attention on, but for GPT3-175B and Nemotron4 340B (``configure.sh`` of each, NVTE_FUSED_ATTN; that of
    GPT3-175B was read after its predictions had been seen).
    """
    if line["source"].startswith("DGX Cloud"):
        return "nemo-2024" if line["model"] in SUMMED_IN_16_BITS else usual
    if usual == "nemo" and line["gpu"].startswith("H100") and not line["source"].startswith("MLPerf"):
        return "nemo-2024"
    compiled = "compile" in line["overlap"] or line["precision"].startswith("float8")
    if line["source"].startswith("Google Cloud"):
        return "maxtext" if "MaxText" in line["model"] else "nemo"
    return "torchtitan-compile" if usual == "torchtitan" and compiled else usual


def _facts(line: Mapping[str, str]) -> dict[str, Any]:
    """What a row's software did otherwise than its stack: Composer's PURE reduces in 16 bits; Megatron-Bridge says in
    recipes (:func:`validation.data.bridge.facts`); torchtitan of December 2024 left its loss out of what it compiled
    (``train.py``: "compiling loss function causes CUDA errors"); KempnerForge leaves attention to PyTorch 2.11
    (``uv.lock``), which takes cuDNN's on Hopper (github.com/huggingface/transformers/pull/48163), and puts the whole
    model in bfloat16 before it makes the optimizer (``kempnerforge/distributed/parallel.py``; both read after the first
    predictions)."""
    if "mode PURE" in line["notes"]:
        return {"reduce": "gradient"}
    if line["source"].startswith("DGX Cloud"):
        return _facts_of_recipes(line)
    if line["source"].startswith("Google Cloud"):
        return {"attention": "cudnn"} if "MaxText" in line["model"] else {"gradients": "parameter-fused"}
    if line["source"] == "JAX-Toolbox Pax":
        return {"attention": "unfused", **PAX}
    if "Kempner" in line["source"]:
        return {"attention": "cudnn", "masters": False}
    if line["source"].startswith("IBM"):
        return FMS
    if "Bridge" in line["source"]:
        return bridge.facts(line)
    if line["source"].startswith("MLPerf"):
        return _facts_of_mlperf(line)
    if line["source"] in LOOKED_UP:
        return LOOKED_UP[line["source"]](line)
    return {"loss": "composed"} if "llama3_h100_202412" in line["source_ref"] else {}


LOOKED_UP: Mapping[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {
    "FlagPerf FlagScale": lambda line: {"attention": "flash2"},
    "FlagPerf Megatron-DeepSpeed": lambda line: {"attention": "flash2", "gradients": "parameter"},
    "FlagPerf DeepSpeed": lambda line: (
        {"attention": "unfused", "fused_softmax": False} if "Baichuan" in line["model"] else {"attention": "flash2"}
    ),
    "PaddleNLP LLaMA": lambda line: {
        "attention": "flash1", "clip": True, "loss_scale": True, "whole_parameters": True,
        "norms": "one" if "80GB" in line["gpu"] else "composed",
    },
    "Qwen finetuning": lambda line: {"attention": "flash2"},
    "DeepSpeed autotuning GPT-2": lambda line: {"fused_softmax": False, "overlap_gradients": False},
    "nanoGPT README": lambda line: {"attention": "unfused", "fused_softmax": False, "gelu": "composed"},
    "nanoGPT README, compiled": lambda line: {"attention": "unfused", "fused_softmax": False},
    "llm.c scripts": lambda line: {"attention": "cudnn", "clip": True},
    "Pythia": lambda line: {
        "attention": "unfused" if line["model"] == "Pythia-1B" else "flash1", "overlap_gradients": True,
    },
    "OPT-175B": lambda line: {"overlap_gradients": True},
    "Llama 3 405B": lambda line: {"attention": "flash2"},
    "NeMo AutoModel pre-training": lambda line: {
        "attention": "flash2" if "GPT" in line["model"] else "cudnn", "clip": False, "masters": False,
        "gradients": "parameter",
    },
    "torchtune README": lambda line: {"masters": False},
    "timm training on RTX 3090": lambda line: {"attention": "unfused"},
    "cuDNN frontend, Llama 3.2 1B": lambda line: {
        "attention": "flash2" if "FlashAttention" in line["notes"] else "cudnn", "masters": False, "clip": False,
    },
    "XTuner speed benchmark": lambda line: {"attention": "flash2", "norms": "one"},
    "Lambda benchmark, BERT-large": lambda line: {"added_biases": False},
    "FlagPerf images": lambda line: {"attention": "unfused", "fused_softmax": False},
    "FlagPerf encoders": lambda line: {
        "attention": "unfused", "fused_softmax": False, "masters": not line["precision"].startswith("bf16"),
    },
    "FlagPerf GPT-2": lambda line: {"fused_softmax": False},
    "FlagPerf Qwen1.5 MoE": lambda line: {"attention": "flash2"},
    "Colossal-AI on H200": lambda line: {"attention": "flash2", "norms": "one"},
    "Optimum Habana on Gaudi 2": lambda line: {
        "attention": "unfused", "fused_pointwise": "torch.compile" in line["notes"],
    },
    "nanochat": lambda line: {"clip": True},
    "LLMQ": lambda line: {"attention": "cudnn", "clip": True, "masters": False, "host": "graph"},
    "MosaicML diffusion": lambda line: {"attention": "flash1", "reduce": "float32", "loss_scale": True},
    "VectorLM": lambda line: {"attention": "flash2", "masters": False},
    "universal-llm-trainer": lambda line: {"masters": False},
    "NVIDIA NeMo 25.04 performance summary": lambda line: _facts_of_nemo_25(line),
    "NVIDIA NeMo 25.07 performance summary": lambda line: _facts_of_nemo_25(line),
}  # fmt: skip
"""What the sources from P0301 on say of their software where the nearest stack has it otherwise.  Read after the first
predictions: that Paddle 2.5.1 has the first version of FlashAttention (the second came in August 2023,
github.com/PaddlePaddle/flash-attention/pull/12) and that its stage 2 keeps parameters whole, and that stages 1 and 2 of
DeepSpeed reduce after the backward unless ``overlap_comm`` says otherwise (``deepspeed/runtime/zero/config.py``);
and that FlagPerf's copy of Megatron-LM never takes its fused softmax (``model/layers/fused_softmax.py``, where the
choice is commented out)."""


def _facts_of_recipes(line: Mapping[str, str]) -> dict[str, Any]:
    """What DGX Cloud's recipes say otherwise than the stacks: MaxText calls cuDNN's attention (``cudnn_flash_te``), and
    two models reduce gradients in 16 bits."""
    if "MaxText" in line["source"]:
        return {"attention": "cudnn"}
    return {"gradients": "parameter-fused"} if line["model"] in SUMMED_IN_16_BITS else {}


def _facts_of_nemo_25(line: Mapping[str, str]) -> dict[str, Any]:
    """What NeMo's performance scripts of 2025 set (read after the first predictions): in 8 bits gradients are added up
    and reduced in 16, by the product itself unless sharded (``grad_reduce_in_fp32 = False``,
    ``gradient_accumulation_fusion``, scripts/performance/helpers.py), and four models run as CUDA graphs
    (``recommended_model_configs``), in which nothing runs again."""
    found: dict[str, Any] = {"gradients": "parameter" if line["shard"] == "zero3" else "parameter-fused"}
    if "CUDA graphs" in line["notes"]:
        found["host"] = "graph"
    return found


def _facts_of_mlperf(line: Mapping[str, str]) -> dict[str, Any]:
    """What MLPerf's submissions say otherwise than their stacks: graphs, what a gate keeps in 8 bits, of Stable
    Diffusion that gradients are clipped and reduced after the backward (``conf/custom.yaml``, ``ddp_overlap``), and of
    Llama 3.1 under NeMo that gradients are reduced in 16 bits (``grad_reduce_in_fp32=False``, ``pretrain.py``) and that
    Cisco leaves buckets at the 64 parameters of its ``conf/custom.yaml``, since no callback sets them otherwise (both
    read after these rows had been seen)."""
    nemo = line["model"].startswith("Llama3.1") and "AMD/" not in line["source_ref"]
    in_16_bits = nemo or line["model"] in SUMMED_IN_16_BITS
    found: dict[str, Any] = {"gradients": "parameter-fused"} if in_16_bits else {}
    if nemo and "Cisco/" in line["source_ref"]:
        found["bucket_parameters"] = 64
    if "gate kept in 8 bits" in line["notes"]:
        found["stored_gate"] = "float8_e4m3fn"
    if re.search(r"(?<!no )CUDA graphs", line["notes"]):
        found["host"] = "graph"
    if "Diffusion" in line["source"]:
        found |= {"clip": True, "overlap_gradients": False}
    if "FLUX" in line["source"]:
        found |= {"gradients": "parameter", "fused_pointwise": True}
    return found


def _number(text: str) -> float | None:
    return float(text) if text else None


def _int(line: Mapping[str, str], name: str, default: int = 1) -> int:
    return int(line[name]) if line[name] else default


def _open_recompute(line: Mapping[str, str]) -> bool:
    """Whether neither the row nor a public recipe says what runs again."""
    see = line["recompute"].startswith("see recipe") and not bridge.recompute(line)
    return see or (not line["recompute"] and line["source"].startswith(("NeMo", "AWS", "NVIDIA", "Nemo", "MegaScale")))


def _recipe(line: Mapping[str, str]) -> str:
    """The recipe of the row's products, ``"none"`` where they have 16 bits, ``""`` where it is not known."""
    words = line["precision"].lower()
    if not re.search(r"fp8|float8|fp4", words):
        return "none"
    words = re.sub(r" \(value (in|outside) parentheses\)", "", words)
    if words == "fp8" and "Bridge" in line["source"]:
        return "fp8-current"
    if words.startswith("fp8-mx"):  # "FP8-MX / blockwise": the former on Blackwell, the latter on Hopper
        return "fp8-block" if line["gpu"].startswith("H") else "mxfp8"
    return next((recipe for pattern, recipe in RECIPES if re.search(pattern, words)), "")


def _named(line: Mapping[str, str]) -> tuple[str, dict[str, Any]] | None:
    """Family and sizes of a mixture of experts that is known by name, None of others and of those with fewer layers.

    DeepSeek-V3 is trained with the block that predicts the token after next unless a row says otherwise: the ``m`` of
    the layouts in Megatron-Bridge's ``scripts/performance/configs/deepseek/deepseek_workload_base_configs.py``.
    """
    words = re.sub(r" \(.*", "", line["model"].lower())
    if words == "deepseekv3" and int(line["layers"] or 0) < 61:
        return None
    further = words == "deepseekv3" and "w/o MTP" not in line["model"]  # a module that predicts the token after next
    return ("deepseek-v3-mtp", {}) if further else MODELS.get(words)


def _lacks(line: Mapping[str, str]) -> str:
    """What the program would need to be told this row."""
    needed = ["layers", "hidden", "heads", "seq_len", "gpu", "n_gpus", "global_batch"]
    needed += [] if line["source"].startswith("NeMo") else ["micro_batch"]
    missing = [name for name in needed if not line[name]]
    experts = _int(line, "moe_experts", 0) > 0
    told = {
        f"{', '.join(missing)} not published": bool(missing),
        "no time published": not (line["iter_time_s"] or line["tflops_per_gpu"]),
        "sizes of its experts": (
            experts and not line["model"].startswith("deepseek") and not _named(line) and line["model"] not in PRESETS
        ),
        "experts beside context parallel": experts and _int(line, "cp") > 1,
        f"products in {line['precision']}": not _recipe(line),
        f"a system of {line['gpu']}": not (line["gpu"] in {*SYSTEMS, *TPUS, *SINGLE} or "HBM2e" in line["gpu"]),
    }
    return next((why for why, holds in told.items() if holds), "")


def _from_flops(line: Mapping[str, str]) -> float:
    """Seconds from FLOP per device: 6 per weight of a product and token, and attention without a mask.

    So do MaxText and NeMo until its releases of 2025: its performance summaries print tokens beside FLOP per second
    (24.09: LLAMA2-7B 16,934 and 780e12, 46.06e9 a token; 25.04: LLAMA3-8B 33,099 and 1,917e12, 57.9e9), which
    are those of whole products of queries and keys (46.09e9, 57.9e9; with half of them 42.9e9, 51.5e9).  The tables of
    long sequences are of releases 24.03.01 and 25.04.
    """
    layers, width, inner = (int(line[name]) for name in ("layers", "hidden", "ffn_hidden"))
    ungated = line["model"] in UNGATED
    nemo = line["source"].startswith("NeMo")
    heads, length = width if nemo else int(line["heads"]) * _head(line), int(line["seq_len"])
    grouped = 2 * width * heads * (1 + _int(line, "kv_heads", int(line["heads"])) / int(line["heads"])) if nemo else 0
    weights = layers * ((grouped or 4 * width * heads) + (2 if ungated else 3) * width * inner)
    weights += (2 if ungated else 1) * width * int(line["vocab"])
    tokens = int(line["global_batch"]) * length
    flop = 6.0 * weights * tokens + (6.0 if ungated else 12.0) * layers * heads * length * tokens
    return flop / (float(line["tflops_per_gpu"]) * 1e12 * int(line["n_gpus"]))


def _head(line: Mapping[str, str]) -> int:
    """Width of a head of MaxText's models."""
    return 256 if line["model"] in UNGATED else 128


def _model(line: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    source, tp = line["source"], _int(line, "tp")
    layers, width, heads = (int(line[name]) for name in ("layers", "hidden", "heads"))
    length, inner = int(line["seq_len"]), int(line["ffn_hidden"] or 4 * width)
    multiple = tp * (1 if source.startswith(UNPADDED) else 128)
    vocabulary = math.ceil(_int(line, "vocab", VOCABULARIES.get(source, VOCABULARY)) / multiple) * multiple
    named = line["model"].lower()
    if line["model"] in PRESETS:
        return PRESETS[line["model"]]
    if (known := _named(line)) is not None:
        return known
    if named.startswith("deepseek"):
        # of the truncated models one layer is dense and the rest have experts: what memory is published says so
        name = "deepseek_v3" if named.startswith("deepseekv3") else "deepseek_v2"
        return name, {"num_hidden_layers": layers, "first_k_dense_replace": 1}
    if "llama" in named or "internlm" in named or source.startswith(("MaxText", "GLM")):
        maxtext = source.startswith("MaxText")
        return "nemotron" if line["model"] in UNGATED else "llama", {
            "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": _int(line, "kv_heads", heads),
            "vocab_size": int(line["vocab"]) if maxtext else vocabulary, "max_position_embeddings": max(length, 8192),
            **({"head_dim": _head(line)} if maxtext else {}),
        }  # fmt: skip
    if "nemotron" in named:
        return "nemotron", {
            "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": _int(line, "kv_heads", heads),
            "vocab_size": vocabulary, "max_position_embeddings": length,
        }  # fmt: skip
    if source.startswith("BigScience"):
        return "bloom", {
            "hidden_size": width, "n_layer": layers, "n_head": heads, "vocab_size": vocabulary, "seq_length": length
        }  # fmt: skip
    undropped = ("Mosaic", "JAX-Toolbox", "nanoGPT", "llm.c")  # DROPOUT_PROB 0.0 in Pax's model_params.py
    drops = 0.0 if source.startswith(undropped) else 0.1
    old = source in OLD
    return "gpt", {
        "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": length, "n_inner": inner,
        "vocab_size": vocabulary, "resid_pdrop": drops, "embd_pdrop": drops, "attn_pdrop": drops,
        "unfused_attention": old,
        "fused_softmax": heads // tp * int(line["micro_batch"]) % FUSED_SOFTMAX_MULTIPLE == 0 and length <= 2048,
    }  # fmt: skip


def _plan(line: Mapping[str, str]) -> dict[str, Any]:
    tp, pp, devices = _int(line, "tp"), _int(line, "pp"), int(line["n_gpus"])
    dp, context, experts = devices // (tp * pp), _int(line, "cp"), _int(line, "ep")
    batch, replicas = int(line["global_batch"]), dp // context
    each = _int(line, "micro_batch")
    if line["source"].startswith("MaxText"):  # per_device_batch_size counts every chip, tensor-parallel ones too
        each *= tp
    if line["source"].startswith("torchtitan") and pp > 1:  # a local batch, by default cut into as many as stages
        each = max(1, batch // replicas // (pp * max(_int(line, "vpp"), 1)))  # (``pipelining_utils.py``)
    shard = line["shard"]
    zero = int(shard[4]) if shard.startswith("zero") else 0
    recompute = POLICIES.get(line["recompute"], line["recompute"].split(" ")[0] or "none")
    recompute = bridge.recompute(line) if line["recompute"].startswith("see recipe") else recompute
    plan: dict[str, Any] = {
        "dp": dp, "tp": tp, "pp": pp, "batch_size": batch // replicas, "zero": zero if dp > 1 else 0,
        "micro_batches": max(1, batch // replicas // each), "idle_ok": True,
        "recompute": "none" if _open_recompute(line) else recompute, "quantize": _recipe(line),
        "quantize_attention": "attention in 8 bits" in line["notes"],
        "overlap": not re.search(r"no overlap|no gradient bucketing|^off|^none$", line["overlap"]),
    }  # fmt: skip
    if "Bridge" in line["source"] and bridge.optimizer(line):
        plan["optimizer"] = bridge.optimizer(line)
    if line["recompute"] == OFFLOADED:
        plan["offload"] = ("activations",)
    if "Bridge" in line["source"] and bridge.offloaded(line):
        plan["offload"] = (f"activations:{bridge.offloaded(line)}",)
    if sent := re.search(r"activations of (\d+) layers on the host", line["notes"]):
        plan["offload"] = (f"activations:{sent[1]}",)
    if line["source"].startswith("cuDNN"):
        plan["optimizer"] = "sgd,momentum=off"
    if line["source"] == "nanochat":
        plan["optimizer"] = "muon"
    if re.search(r"^timm|Diffusion|^MLPerf.*ResNet", line["source"]):
        plan["layout"] = "channels_last"
    if line["sp"].startswith("on") and tp > 1:
        plan["parallelism"] = ["sequence"]
        if re.match("torchtitan|Kempner|nanotron", line["source"]):  # what was gathered is kept for the backward
            plan["parallelism_options"] = {"regather": False}
        if "Kempner" in line["source"]:
            plan["tp_plan"] = KEMPNER
            plan["parallelism_options"] |= {"joint": False}
        bridged = "Bridge" in line["source"] and bridge.overlaps_tensor(line)
        if bridged or re.search("async ?TP", line["overlap"], re.I):
            plan["parallelism"] += ["async-tp"]
            if "torchtitan" not in line["source"]:  # user buffers: ub_tp_comm_overlap of NeMo, tp_comm_overlap
                plan["parallelism_options"] = {**plan.get("parallelism_options", {}), "overlap_style": "megatron"}
    for axis, rule, size in (("cp", "context", context), ("ep", "experts", experts)):
        if size > 1:
            plan["parallelism"] = [*plan.get("parallelism", []), rule]
            plan["parallelism_options"] = {**plan.get("parallelism_options", {}), axis: size}
    if line["source"].startswith("NeMo AutoModel p"):
        plan["parallelism_options"] |= {"dispatch": "deepep"}
    if line["source"].startswith(("Megatron-MoE", "DeepSeek-V3")):
        plan["parallelism_options"] |= {"dispatch": "deepep" if "DeepEP" in line["notes"] else "alltoall"}
        plan["parallelism_options"] |= {"etp": 1} if tp > 1 else {}
    if "Bridge" in line["source"] and experts > 1:
        plan["parallelism_options"] |= {"dispatch": bridge.dispatch(line), "capacity": bridge.capacity(line)}
        plan["parallelism_options"] |= {"etp": bridge.EXPERT_TENSOR_RANKS} if tp > 1 else {}
    if context > 1 and "torchtitan" not in line["source"]:  # Megatron-LM's --cp-comm-type is p2p, torchtitan gathers
        plan["parallelism_options"] |= {"cp_style": "ulysses" if "CP = all-to-all" in line["notes"] else "ring"}
    if (
        line["source"].startswith("MaxText") and int(line["n_nodes"] or 1) > 1
    ):  # replicas are slices, shards their chips
        plan["parallelism"] = [*plan.get("parallelism", []), "hsdp"]
        plan["parallelism_options"] = {**plan.get("parallelism_options", {}), "dp_replicate": int(line["n_nodes"])}
    if (group := re.search(r"shard group (\d+)", shard)) and dp > int(group[1]):
        plan["parallelism"] = [*plan.get("parallelism", []), "hsdp"]
        plan["parallelism_options"] = {**plan.get("parallelism_options", {}), "dp_replicate": dp // int(group[1])}
    chunks = _int(line, "vpp")
    if pp > 1:
        if chunks > 1:
            plan |= {"schedule": "interleaved-1f1b", "schedule_options": {"chunks": chunks}}
        elif found := re.search(r"ZB-([12])p", line["overlap"]):
            plan |= {"schedule": "zb-auto", "schedule_options": {"memory": float(found[1])}, "iterations": ITERATIONS}
        if line["model"] not in PRESETS:
            plan["stages"] = _cuts(line, pp * chunks)
    if line["source"] == "DeepSeek-V3":
        plan |= {"schedule": "dualpipe", "schedule_options": {"combined": True}}
    if ("Bridge" in line["source"] and bridge.overlaps_experts(line)) or "1F1B overlap" in line["overlap"]:
        plan |= {
            "schedule": plan.get("schedule", "1f1b"),
            "schedule_options": {**plan.get("schedule_options", {}), "combined": True},
        }
    return plan


ITERATIONS = 4
"""Of zero-bubble schedules, whose optimizers do not wait for each other: a stage begins the next while others end."""


def _cuts(line: Mapping[str, str], parts: int) -> tuple[str, ...]:
    """Where the parts begin: of equal depth, or with a layer less in the first and last where that is what divides."""
    layers = int(line["layers"])
    short = "one layer fewer" in line["notes"] or (layers % parts > 0 and (layers + 2) % parts == 0)
    return cuts(_model(line)[0], layers, parts, short)


def cuts(family: str, layers: int, parts: int, short: bool) -> tuple[str, ...]:
    """Where the parts of a model begin: of equal depth, or with a layer less in the first and the last."""
    depth = (layers + 2) // parts if short else -(-layers // parts)
    at = [min(number * depth - short, layers) for number in range(1, parts)]
    llama = family == "llama" or family.startswith(("deepseek", "qwen3", "gpt-oss", "nemotron"))
    block, last = ("model.layers", "model.norm") if llama else ("transformer.h", "transformer.ln_f")
    return tuple(f"{block}.{n}" if n < layers else last for n in at)


def _system(line: Mapping[str, str]) -> dict[str, Any]:
    gpu, devices = line["gpu"], int(line["n_gpus"])
    if gpu in SINGLE:
        return {"device": gpu, "devices": devices}
    if gpu in TPUS:
        slices = int(line["n_nodes"] or 1)
        devices //= slices
        side = next(n for n in range(math.isqrt(devices), 0, -1) if devices % n == 0)
        shape: tuple[int, ...] = (side, devices // side)
        if gpu not in FLAT:
            side = round(devices ** (1 / 3))
            shape = (side, side, devices // side**2) if devices % side**2 == 0 else (4, 4, devices // 16)
        host = {"host_link": accelerator(gpu).host_link} if line["recompute"] == OFFLOADED else {}
        if slices > 1:
            return {"like": SLICES[gpu], "devices": slices * devices, "slice": shape}
        return {"device": gpu, "devices": devices, "topology": TPUS[gpu], "shape": shape, **host}
    like = SYSTEMS.get(gpu, "hgx-h100")
    found: dict[str, Any] = {"like": like, "devices": devices, "per_node": int(line["gpus_per_node"] or 8)}
    if gpu == "L40S":
        found["count"] = int(line["gpus_per_node"])
    if gpu == "MI350X":
        found["model"] = gpu
    if int(line["gpus_per_node"] or 8) == 4 and like in ("hgx-h100", "hgx-h200"):
        found["like"] = f"{like}-4"  # no NVSwitch (looked up after the first predictions)
    if gpu not in SYSTEMS:
        found["model"] = "H100-SXM5-96GB-HBM2e"
    if like.endswith("nvl72") and devices > RACK and devices % USED_OF_RACK == 0:
        found["count"] = USED_OF_RACK
    for words, fabric in FABRICS.items():
        if words in line["inter_node_link"]:
            found["fabric"] = fabric
    if held := re.search(r"clock held at (\d+) MHz", line["notes"]):
        found["clock_hz"] = 1e6 * float(held[1])
    return found
