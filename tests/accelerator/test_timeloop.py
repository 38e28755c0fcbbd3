"""Timeloop's files, read and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import run
from triosim.accelerator.architecture import FanOut, Store
from triosim.accelerator.evaluate import evaluate
from triosim.accelerator.mapping import Loop
from triosim.accelerator.problem import convolution
from triosim.accelerator.reading import read
from triosim.core.errors import InputError

DATA = Path(__file__).parent / "data"


def test_version_0_4_is_a_chain_of_nodes():
    found = read([DATA / "arch_04.yaml"])
    design = found.design
    assert [node.name for node in design.nodes] == ["DRAM", "buffer", "PE", "weights", "sums"]
    assert design.nodes[2] == FanOut("PE", 4, 2)
    assert design.clock_hz == pytest.approx(1e9)
    assert (design.technology, design.compute.name) == ("45nm", "mac")
    dram, buffer, weights, sums = design.stores
    assert (dram.capacity_words, dram.words_per_access, dram.word_bits, dram.kind) == (None, 8, 8, "DRAM")
    assert (buffer.capacity_words, buffer.words_per_access, buffer.read_bandwidth) == (4096, 4, 4)
    assert (sums.capacity_words, sums.word_bits, sums.words_per_access) == (8, 24, 1)
    assert weights.aside == sums.aside == 1
    assert design.compute_instances == design.instances("sums") == 8


def test_constraints_that_stand_in_nodes():
    found = read([DATA / "arch_04.yaml", DATA / "problem.yaml"])
    assert found.constraints is not None
    rules = found.constraints.constraints(found.design, found.problem)
    assert ("buffer", "Weights", False) in rules.keeps
    temporal, spatial = rules.levels
    assert (temporal.node, temporal.inner, temporal.most) == ("buffer", ("K", "M", "N"), (("M", 8),))
    assert (spatial.node, spatial.axis, spatial.exact, spatial.split) == ("PE", "xy", (("K", 1),), 1)


def test_version_0_3_counts_instances_in_names():
    design = read([DATA / "arch_03.yaml"]).design
    assert [node.name for node in design.nodes] == ["DRAM", "buffer", "buffer_spatial", "registers"]
    assert design.nodes[2] == FanOut("buffer_spatial", 4, 2)
    registers = design.nodes[3]
    assert isinstance(registers, Store)
    assert registers.capacity_words == 64


def test_a_mapping_hangs_spatial_loops_on_the_store_above_and_0_is_the_rest():
    found = read([DATA / f"{name}.yaml" for name in ("arch_03", "problem", "mapping_03", "ert")])
    assert found.mapping is not None
    mapping = found.mapping.mapping(found.design, found.problem)
    assert mapping.level("buffer_spatial").loops == (Loop("N", 2, "y"), Loop("M", 4, "x"))
    assert mapping.level("buffer").loops == (Loop("N", 2), Loop("M", 2), Loop("K", 4)), "from the outermost"
    assert mapping.level("buffer").keeps == ("Inputs", "Outputs")
    result = evaluate(found.design, found.problem, mapping)
    assert result.cycles == 64
    assert result.instances == result.used == 8
    assert result.compute_j == pytest.approx(512 * 0.5e-12)
    assert dict(result.leakage_j)["buffer"] == pytest.approx(64 * 0.5e-12)
    assert dict(found.areas) == pytest.approx({"buffer": 5000e-12})
    assert found.problem.tensors[0].density == 0.5


def test_a_mapping_may_name_what_the_front_end_calls_a_fan_out(tmp_path):
    text = """mapping:
- {target: inter_PE_spatial, type: spatial, factors: [M=4, N=2], permutation: [M, N, K], split: 1}
- {target: inter_PE_spatial, type: temporal, factors: M1 N1 K1}
- {target: buffer, type: temporal, factors: [M=2, N=2, K=16]}
- {target: mac, type: temporal, factors: M1}
"""
    path = tmp_path / "mapping.yaml"
    path.write_text(text)
    found = read([DATA / "arch_04.yaml", DATA / "problem.yaml", path])
    assert found.mapping is not None
    mapping = found.mapping.mapping(found.design, found.problem)
    assert mapping.level("PE").loops == (Loop("N", 2, "y"), Loop("M", 4, "x"))


BAD = {
    "architecture:\n  version: 0.4\n  nodes:\n  - !Widget\n    name: a\n": "type '!Widget' is not known",
    "architecture:\n  version: 0.4\n  nodes: [!include other.yaml]\n": "is an include, which is not run",
    "architecture:\n  version: 0.4\n  nodes:\n  - {{ thing }}\n": "is a Jinja template, which is not run",
    "architecture:\n  version: 0.9\n  nodes: []\n": "version '0.9' is not known",
    "architecture:\n  version: 0.4\n": "neither nodes",
    "architecture:\n  version: 0.4\n  nodes:\n  - !Component {name: a, class: DRAM}\n": "has no compute unit",
    "architecture:\n  nodes:\n  - !Component {name: a, class: SRAM, attributes: {depth: 2*n, width: 8}}\n":
        "'2[*]n' is an expression",
    "architecture:\n  nodes:\n  - !Component {name: a, class: SRAM, attributes: {depht: 64, width: 8}}\n":
        "'depht' means nothing here: did you mean depth[?]",
    "architecture:\n  nodes:\n  - !Component {name: a, class: SRAM, attributes: {depth: 64, data-width: 8}}\n":
        "did you mean datawidth[?]",
    "architecture:\n  nodes:\n  - &a [*a]\n": "an anchor contains itself",
    "problem:\n  shape: grouped-cnn-layer\n": "is built into Timeloop",
    "problem:\n  shape: {dimensions: [M], data_spaces: []}\n  instance: {M: 2, Z: 3}\n": "unknown dimension",
    "problem:\n  shape: {dimensions: [M], data_spaces: []}\n  instance: {}\n": "no bound of M",
    "problem:\n  shape:\n    dimensions: [M]\n    data_spaces: [{name: A, projection: [[[Q]]]}]\n  instance: {M: 2}\n":
        "unknown dimension",
    "problem:\n  shape: {dimensions: [M], data_spaces: [{name: A, projection: [[[M]]]}]}\n  instance: {M: 2}\n":
        "exactly one output",
    "ERT:\n  tables:\n  - {name: a.b, actions: [{name: read, energy: -3}]}\n": "the energy of read is -3 pJ",
    "ERT:\n  tables:\n  - {name: a.b, actions: [{name: read, energy: .nan}]}\n": "finite number",
    "ERT:\n  tables:\n  - {name: a.b, actions: [{name: explode, energy: 3}]}\n": "unknown action",
    "mapping:\n- {target: a, type: temporal, factors: C=three}\n": "cannot be read",
    "mapping:\n- {target: a, type: sideways}\n": "unknown type",
    "mapping: 3\n": "must be a list",
    "mapping:\n- {type: temporal}\n": "names no target",
    "problem: {}\nrecipe: {}\n": "must be a table",
    "sparse_optimizations:\n- name: a\n  representation-format: {data-spaces: [{name: A, ranks: [{format: ZIP}]}]}\n":
        "unknown format of a rank",
    "sparse_optimizations:\n  targets:\n  - {name: a, action-optimization: [{type: hoping}]}\n": "unknown optimization",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_used_is_one_sentence(text, tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=BAD[text]) as refused:
        read([path])
    assert "file.yaml" in str(refused.value)


def test_energies_of_what_the_design_has_not_are_told_or_refused(tmp_path):
    row = "  - {{name: system.{}, actions: [{{name: read, energy: 3}}, {{name: write, energy: 3}}]}}\n"
    path = tmp_path / "ert.yaml"
    path.write_text("ERT:\n  tables:\n" + row.format("address_generator") + row.format("buffer"))
    found = read([DATA / "arch_04.yaml", path])
    assert found.unused == ("energies of address_generator are not used: the design has no such components",)
    assert {s.name: s.energies.read for s in found.design.stores}["buffer"] == pytest.approx(3e-12)
    path.write_text("ERT:\n  tables:\n" + row.format("bufer"))
    with pytest.raises(InputError, match="energies are stated of bufer, and the design has none of them"):
        _ = read([DATA / "arch_04.yaml", path]).design


def test_actions_that_cost_nothing_or_are_of_a_network_are_passed_over(tmp_path):
    """The table of the exercise design simple_pim: a dummy that is accessed, converters, energies by what changes."""
    path = tmp_path / "ert.yaml"
    path.write_text("""ERT:
  version: 0.3
  tables:
  - {name: system.dummy, actions: [{name: access, arguments: null, energy: 0}]}
  - {name: system.D2A_NoC, actions: [{name: transfer_Inputs, arguments: {num_destinations: 1}, energy: 0.384}]}
  - name: system.buffer
    actions:
    - {name: read, arguments: {address_delta: 0}, energy: 0.5}
    - {name: read, arguments: {address_delta: 1}, energy: 2.5}
    - {name: write, arguments: null, energy: 2}
    - {name: idle, arguments: null, energy: 0.009}
""")
    found = read([DATA / "arch_04.yaml", path])
    assert {s.name: s.energies.read for s in found.design.stores}["buffer"] == pytest.approx(2.5e-12), "the most"
    assert found.unused == ("energies of dummy, D2A_NoC are not used: the design has no such components",)
    path.write_text("ERT: {tables: [{name: system.buffer, actions: [{name: acces, energy: 2}]}]}\n")
    with pytest.raises(InputError, match=r"unknown action of buffer in .*'acces'"):
        read([path])


def test_a_file_of_more_than_16_mib_is_not_parsed(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text("mapping:\n" + "# filler\n" * (2 << 20))
    with pytest.raises(InputError, match="larger than 16 MiB"):
        read([path])


def test_two_designs_are_one_too_many():
    with pytest.raises(InputError, match="second design"):
        read([DATA / "arch_03.yaml", DATA / "arch_04.yaml"])


def test_what_nodes_keep_by_their_constraints_holds_where_the_mapping_says_nothing(tmp_path):
    """The loops of the simba-like exercise design's published mapping, with its counts."""
    design = """architecture:
  version: 0.4
  nodes:
  - !Container {name: System, attributes: {datawidth: 8}}
  - !Element {name: DRAM, class: DRAM, attributes: {width: 64}}
  - !Element
    name: GlobalBuffer
    class: smartbuffer_SRAM
    attributes: {memory_depth: 2048, memory_width: 256}
    constraints: {dataspace: {keep: [Inputs, Outputs], bypass: [Weights]}}
  - !Container {name: PE, spatial: {meshX: 16}}
  - !Element
    name: PEInputBuffer
    class: smartbuffer_RF
    attributes: {memory_depth: 8192, memory_width: 64}
    constraints: {dataspace: {keep: [Inputs], bypass: [Weights, Outputs]}}
  - !Container {name: distributed_buffers, spatial: {meshY: 4}}
  - !Parallel
    nodes:
    - !Element
      name: PEWeightBuffer
      class: smartbuffer_RF
      attributes: {memory_depth: 4096, block_size: 8}
      constraints: {dataspace: {keep: [Weights], bypass: [Inputs, Outputs]}}
    - !Element
      name: PEAccuBuffer
      class: smartbuffer_RF
      attributes: {memory_depth: 128, datawidth: 24}
      constraints: {dataspace: {keep: [Outputs], bypass: [Inputs, Weights]}}
    - !Nothing {constraints: {dataspace: {keep: [Inputs]}}}
  - !Container {name: reg_mac, spatial: {meshY: 4}}
  - !Element
    name: PEWeightRegs
    class: reg_storage
    attributes: {memory_depth: 1, cluster_size: 64}
    constraints: {dataspace: {keep: [Weights], bypass: [Inputs, Outputs]}}
  - !Element {name: LMAC, class: compute, subclass: lmac}
"""
    loops = """mapping:
- {target: PEAccuBuffer, type: temporal, factors: C1 M2 R1 S1 N1 P7 Q1, permutation: PMCRSNQ}
- {target: PEWeightBuffer, type: temporal, factors: C1 M1 R3 S3 N1 P4 Q1, permutation: SPRCMNQ}
- {target: inter_distributed_buffers_spatial, type: spatial, factors: C1 M4 R1 S1, permutation: MCRSNPQ, split: 0}
- {target: PEInputBuffer, type: temporal, factors: C1 M1 R1 S1 N1 P1 Q4, permutation: QCMRSNP}
- {target: inter_PE_spatial, type: spatial, factors: C3 M4 R1 S1 N1 P1 Q1, permutation: MCRSNPQ, split: 2}
- {target: GlobalBuffer, type: temporal, factors: C1 M1 R1 S1 N1 P4 Q1, permutation: PCMRSNQ}
- {target: DRAM, type: temporal, factors: C1 M1 R1 S1 N1 P1 Q28, permutation: QCMRSNP}
"""
    (tmp_path / "arch.yaml").write_text(design)
    (tmp_path / "mapping.yaml").write_text(loops)
    found = read([tmp_path / "arch.yaml", tmp_path / "mapping.yaml"])
    assert found.mapping is not None
    problem = convolution(c=3, m=32, p=112, q=112, r=3, s=3, stride=2)
    mapping = found.mapping.mapping(found.design, problem, defaults=found.constraints)
    result = evaluate(found.design, problem, mapping)
    rows = {(a.store, a.tensor): (a.tile, a.instances, a.reads, a.fills, a.updates) for a in result.accesses}
    assert result.cycles == 225_792
    assert rows["PEWeightRegs", "Weights"] == (1, 48, 225_792, 32_256, 0)
    assert rows["PEAccuBuffer", "Outputs"] == (14, 48, 200_704, 50_176, 225_792)
    assert rows["PEWeightBuffer", "Weights"] == (18, 48, 32_256, 18, 0)
    assert rows["PEInputBuffer", "Inputs"] == (513, 12, 225_792, 56_700, 0)
    assert rows["GlobalBuffer", "Inputs"] == (6_075, 1, 170_100, 151_875, 0)
    assert rows["GlobalBuffer", "Outputs"] == (14_336, 1, 802_816, 0, 1_204_224)
    assert len(rows) == 3 + 6
    registers = next(a for a in result.accesses if a.store == "PEWeightRegs")
    store = found.design.stores[-1]
    assert store.energies.read is not None
    whole = registers.reads * store.energies.read + registers.fills * (store.energies.write or 0.0)
    assert registers.energy_j == pytest.approx(4 * whole), "256 instances in clusters of 64 are 4 rows"


@pytest.mark.parametrize("text", [
    "problem:\n  shape: {dimensions: [M], data_spaces: [{name: A, projection: [[[[M]]]]}]}\n  instance: {M: 2}\n",
    "mapping:\n- {target: a, type: [temporal]}\n",
])  # fmt: skip
def test_lists_where_names_belong_are_one_sentence(text, tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match="unknown"):
        read([path])


MERGED = """architecture:
  version: '0.4'
  subtree:
  - name: top
    attributes: {technology: "45nm", global_cycle_seconds: 1e-9}
    local:
    - {name: "DRAM[1..1]", class: DRAM, attributes: {width: 64, datawidth: 8, meshX: 1, meshY: 1}}
    - {name: "inter_PE_spatial[1..1]", class: dummy_storage, attributes: {width: 1, depth: 1, datawidth: 1, meshX: 1}}
    - {name: "PE[1..4]", class: storage, subclass: regfile_metadata,
       attributes: {depth: 64, width: 8, datawidth: 8, metadata_storage_depth: 64, metadata_storage_width: 8,
                    metadata_datawidth: 4, meshX: 4, meshY: 1}}
    - {name: "mac[1..4]", class: intmac, attributes: {meshX: 4, meshY: 1}}
problem:
  version: '0.4'
  shape: {name: line, dimensions: [M, K], data_spaces: [
    {name: A, projection: [[[M]], [[K]]]}, {name: B, projection: [[[K]]]},
    {name: Z, projection: [[[M]]], read_write: true}]}
  instance: {M: 8, K: 4, densities: {A: {distribution: fixed_structured, density: 0.5}}}
mapping: []
sparse_optimizations:
  targets:
  - name: DRAM
    representation_format: {data_spaces: [{name: A, rank_application_order: inner-to-outer, ranks: [
      {format: UOP, flattened_rankIDs: [[M, K]]}, {format: UB, metadata-word-bits: 1}]}]}
  - name: PE
    action_optimization: [{type: skipping, options: [{target: B, condition_on: [A]}, {target: A, condition_on: [B]}]}]
mapper: {algorithm: random}
globals: {version: '0.4'}
"""


def test_a_merged_file_holds_all_but_a_mapping(tmp_path):
    (tmp_path / "input.yaml").write_text(MERGED)
    found = read([tmp_path / "input.yaml"])
    assert found.mapping is None, "the front end writes an empty list"
    assert [store.keeps for store in found.design.stores] == [None, (), None], "a dummy keeps nothing"
    pe = found.design.stores[-1]
    assert (pe.metadata_bits, pe.metadata_width, pe.metadata_words) == (4, 8, 128)
    assert found.sparse is not None
    (form,) = found.sparse.stored
    assert (form.ranks, form.flattened, form.inner_first) == (("UOP", "B"), (("M", "K"), ()), True)
    assert (form.metadata_bits, form.payload_bits) == ((None, 1), (None, None))
    assert [(row.tensor, row.choice) for row in found.sparse.spared] == [("B", 1), ("A", 1)], "one of them"
    shown = run("accelerator", "map", tmp_path / "input.yaml", "--budget", "200").stdout
    assert "line on top" in shown


def test_a_flattened_architecture_names_components_by_their_paths(tmp_path):
    (tmp_path / "flat.yaml").write_text("""architecture:
  version: '0.4'
  local:
  - {name: "system.DRAM[1..1]", class: DRAM, attributes: {width: 64, datawidth: 16, technology: "SET ME"}}
  - {name: "system.PE[0..5].spad[1..6]", class: smartbuffer_SRAM, attributes: {depth: 8, width: 16, meshX: 3, meshY: 2}}
  - {name: "system.mac[1..6]", class: intmac, attributes: {meshX: 3, meshY: 2}}
ERT_summary:
  table_summary:
  - {name: "system.spad[1..6]", actions: [{name: read, energy: 2}, {name: write, energy: 3}, {name: update, energy: 3}],
     "primitive_estimation(s)": [{name: storage, estimator: Library}]}
""")
    design = read([tmp_path / "flat.yaml"]).design
    assert [node.name for node in design.nodes] == ["DRAM", "DRAM_spatial", "spad"]
    assert (design.name, design.compute.name, design.compute_instances) == ("system", "mac", 6)
    assert design.stores[1].energies.read == pytest.approx(2e-12)


def test_tables_are_merged_as_the_front_end_merges_them(tmp_path):
    path = tmp_path / "arch.yaml"
    path.write_text("""variables:
  narrow: &narrow {attributes: {datawidth: 8, width: 64}, constraints: {dataspace: {keep: [Inputs]}}}
  wide: &wide {attributes: {width: 128}}
architecture:
  version: 0.4
  nodes:
  - !Component {name: DRAM, class: DRAM, attributes: {width: 64}}
  - !Component {name: one, class: SRAM, <<<: *narrow, attributes: {depth: 32}}
  - !Component {name: two, class: SRAM, <<<: [*wide, *narrow], attributes: {datawidth: 16}}
  - !Component {name: mac, class: intmac}
""")
    found = read([path])
    _, one, two = found.design.stores
    assert (one.words_per_access, one.capacity_words) == (8, 256)
    assert (two.words_per_access, two.word_bits) == (8, 16), "the first of several goes first, what stands there before"
    assert found.constraints is not None
    assert {row.target: row.keep for row in found.constraints.rows} == {"one": ("Inputs",), "two": ("Inputs",)}


def test_letters_of_a_permutation_may_stand_in_groups(tmp_path):
    (tmp_path / "rules.yaml").write_text(
        "mapspace:\n  constraints:\n  - {type: spatial, target: buffer, permutation: NK M, factors: N1, split: 2}\n"
    )
    found = read([DATA / "arch_03.yaml", DATA / "problem.yaml", tmp_path / "rules.yaml"])
    assert found.constraints is not None
    (rule,) = found.constraints.constraints(found.design, found.problem).levels
    assert rule.inner == ("N", "K", "M")
    found.constraints.check_names(found.problems, [str(tmp_path)])


def test_a_layer_of_a_network_by_its_name(tmp_path):
    path = tmp_path / "problem.yaml"
    path.write_text("problem: {shape: cnn-layer, R: 3, S: 3, P: 4, Q: 5, C: 2, K: 6, N: 1, Wstride: 2, Hstride: 2}\n")
    problem = read([path]).problem
    sizes = {tensor.name: problem.words(tensor) for tensor in problem.tensors}
    assert sizes == {"Weights": 2 * 6 * 9, "Inputs": 2 * 9 * 11, "Outputs": 6 * 5 * 4}
    assert problem.output.name == "Outputs"


def test_templates_are_refused_by_name_and_what_is_passed_over_is_told(tmp_path):
    (tmp_path / "top.yaml.jinja2").write_text("{{ add_to_path('.') }}\narchitecture: {{ x }}\n")
    with pytest.raises(InputError, match="is a Jinja template, which is not run"):
        read([tmp_path / "top.yaml.jinja2"])
    for section in ("variables", "compound_components", "mapper", "globals"):
        path = tmp_path / f"{section}.yaml"
        path.write_text(f"{section}: {{version: 0.4}}\n")
        assert read([path]).notes == (f"{path}: section {section} is not used",)


def test_constraints_that_are_built_in_are_refused(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("mapspace:\n  constraints: rowstationary\n")
    with pytest.raises(InputError, match="'rowstationary' are built into Timeloop: write them out as targets"):
        read([path])


def test_bits_of_metadata_below_0_are_refused(tmp_path):
    path = tmp_path / "zeros.yaml"
    path.write_text(
        "sparse_optimizations:\n  targets:\n  - name: RF\n    representation_format:\n      data_spaces:\n"
        "      - {name: A, ranks: [{format: CP, metadata-word-bits: -2}]}\n"
    )
    with pytest.raises(InputError, match="metadata_word_bits of A are below 0: give 0 or more"):
        read([path])


def test_spatial_skipping_is_refused(tmp_path):
    path = tmp_path / "zeros.yaml"
    for kind in ("skipping-spatial", "spatial-skipping"):
        path.write_text(
            "sparse_optimizations:\n  targets:\n  - name: RF\n    action-optimization:\n"
            f"    - {{type: {kind}, target: B, condition-on: [A]}}\n"
        )
        with pytest.raises(InputError, match="spreads what is left over fewer instances, which is not known"):
            read([path])
