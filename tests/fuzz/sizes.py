"""What large jobs take, or how they are refused: processor seconds and memory of a process each."""

from __future__ import annotations

import gzip
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.damage import bomb

JOBS = {
    "131,072 devices on a switch": "train gpt2 --device H100 --devices 131072",
    "... of a bandwidth": "train gpt2 --device H100 --devices 131072 --link 100GB/s",
    "... each played": "train gpt2 --device H100 --devices 131072 --link 100GB/s --fold off",
    "a million iterations": "train gpt2 --device H100 --iterations 1000000",
    "3,000 iterations": "train gpt2 --device H100 --iterations 3000",
    "a million micro-batches": "train gpt2 --device H100 --micro-batches 1000000",
    "... of two stages": "train gpt2 --device H100 --devices 8 --pp 2 --micro-batches 1000000",
    "3,000 micro-batches": "train gpt2 --device H100 --micro-batches 3000",
    "a batch of a trillion": "train gpt2 --device H100 --batch-size 1000000000000",
    "100 million layers": "train layers.toml --device H100",
    "... of a stage": "train stages.toml --device H100",
    **{
        f"{topology}, a million": f"train gpt2 --device H100 --devices 1000000 --topology {topology}"
        for topology in (
            "mesh", "torus", "tree", "double-ring", "wafer", "pcie", "full", "leaf-spine --shape 2x500000",
            "dragonfly --shape 1000000x1x1",
        )
    },
    **{
        f"{topology}, 131,072": f"train gpt2 --device H100 --devices 131072 --topology {topology}"
        for topology in ("ring", "rail-optimised", "fat-tree", "leaf-spine", "dragonfly")
    },
    "10,000 nodes of eight": "train gpt2 --system dgx-h100 --nodes 10000",
    "100,000 nodes of eight, with 2 GB": "--max-memory 2GB train gpt2 --system dgx-h100 --nodes 100000",
    "a million nodes of eight": "train gpt2 --system dgx-h100 --nodes 1000000",
    "gzip: 2 GB in 2 MB, as a profile": "trace show bomb.json.gz",
    "the same as a Chakra trace": "astra --workload bomb --system s.json --network n.yml",
    "zip: 2 GB in 2 MB": "trace show zip.triosim",
    "Parquet of 20 million rows": "trace show rows.triosim",
}  # fmt: skip
"""What it is, and the command."""

BOMBS = tuple(JOBS)[-4:]
"""Those of files that take time to make."""


def rows() -> Iterator[str]:
    """A line of a Markdown table for each job."""
    yield "| job | ends with | CPU s | MB | |"
    yield "|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        _files(Path(folder))
        for name, command in JOBS.items():
            if name in BOMBS and not (Path(folder) / "a.triosim").exists():
                _bombs(Path(folder))
            code, cpu_s, memory, said = measured(shlex.split(command), Path(folder))
            yield f"| {name} | {code} | {cpu_s:.1f} | {memory / 1e6:.0f} | {said} |"


def measured(words: list[str], folder: Path) -> tuple[int, float, int, str]:
    """Run a command: exit code, processor seconds, peak bytes, and the first line that it says about itself."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "triosim", *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=errors,
        )  # fmt: skip
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines() or [""]
    about = said[0].removeprefix("triosim: ") if child.returncode else "done"
    return child.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, about


def _files(folder: Path) -> None:
    (folder / "layers.toml").write_text('preset = "llama-3-8b"\nnum_hidden_layers = 100000000\n')
    (folder / "stages.toml").write_text('preset = "resnet50"\nlayers = [100000000, 1, 1, 1]\n')
    (folder / "s.json").write_text("{}")
    (folder / "n.yml").write_text("topology: [Switch]\nnpus_count: [1]\nbandwidth: [1]\nlatency: [1]\n")


def _bombs(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    import triosim
    from tests.traces import chain

    zeros = bomb(64 << 20) * 32  # a gzip file may have several parts
    (folder / "bomb.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [', mtime=0) + zeros)
    (folder / "bomb.0.et").write_bytes(zeros)
    triosim.save(chain(layers=2), folder / "a.triosim")
    with zipfile.ZipFile(folder / "a.triosim") as sound:
        members = {name: sound.read(name) for name in sound.namelist()}
    with zipfile.ZipFile(folder / "zip.triosim", "w", zipfile.ZIP_DEFLATED) as file:
        for name in members:
            with file.open(name, "w", force_zip64=True) as member:
                for _ in range(2 << 10 if name == "operators.parquet" else 0):
                    member.write(bytes(1 << 20))
    rows = 20_000_000
    schema = pq.read_schema(pa.BufferReader(members["modules.parquet"]))
    writer = pa.BufferOutputStream()
    with pq.ParquetWriter(writer, schema, compression="zstd") as out:
        part = pa.table({name: pa.array(["x"] * (rows // 10)) for name in schema.names}, schema=schema)
        for _ in range(10):
            out.write_table(part)
    members["modules.parquet"] = writer.getvalue().to_pybytes()
    with zipfile.ZipFile(folder / "rows.triosim", "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
