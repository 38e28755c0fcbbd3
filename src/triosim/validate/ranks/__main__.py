"""One process of a validation: ``python -m triosim.validate.ranks FOLDER RANK``.

Reads ``job.json`` in the folder and writes ``rank-N.json``; the first rank also writes the traces, and says in
``progress`` what is being done.  It ends when its parent does: then its standard input ends.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from triosim.validate.ranks import modes
from triosim.validate.ranks.clock import DeviceTimer, ElapsedSeconds
from triosim.validate.ranks.communication import CommunicationBenchmark
from triosim.validate.ranks.networks import StageDecoder, batch
from triosim.validate.ranks.rounds import take_turns, warmed
from triosim.validate.ranks.software import SoftwareBenchmark
from triosim.validate.sizes import MICRO_BATCHES, PIPELINES, DecoderSize


def main(folder: Path, rank: int) -> None:
    """Run one rank of the job in ``folder``."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if job["device"] == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(str(folder / "store"), job["processes"]),
        rank=rank,
        world_size=job["processes"],
        timeout=datetime.timedelta(seconds=job["timeout_s"]),
    )
    try:
        found = _Rank(folder, job, device, rank).run()
        (folder / f"rank-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()


class _Rank:
    """What one process measures."""

    def __init__(self, folder: Path, job: dict[str, Any], device: torch.device, rank: int) -> None:
        self.folder, self.job, self.device, self.rank = folder, job, device, rank
        self.clock = DeviceTimer(device)
        self.probes = (CommunicationBenchmark(device, self.clock), SoftwareBenchmark(device, self.clock))
        self.tables: dict[tuple[str, int], list[ElapsedSeconds]] = defaultdict(list)
        self.end = time.monotonic() + job["seconds"] - (time.time() - job["begun"])  # starting has taken its time

    def run(self) -> dict[str, Any]:
        """Every network in turn; plain values for JSON."""
        networks = {name: DecoderSize(**size) for name, size in self.job["networks"].items()}
        found = {}
        self._probe(keep=False)
        for number, (name, size) in enumerate(networks.items()):
            self._tell(f"running {name} ({number + 1} of {len(networks)})")
            begun = time.monotonic()
            until = begun + (self.end - begun) / (len(networks) - number)
            found[name] = self._network(name, size, until)
        return {
            "rank": self.rank,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "networks": found,
            "tables": [
                {"kind": kind, "bytes": size, "wall_s": [s.wall_s for s in spent], "cpu_s": [s.cpu_s for s in spent]}
                for (kind, size), spent in self.tables.items()
            ],
        }

    def _network(self, name: str, size: DecoderSize, until: float) -> dict[str, Any]:
        """Record the step at both batch sizes, then take turns."""
        self._record(f"{name}-whole", size, size.batch)
        if set(self.job["modes"]) & set(PIPELINES):
            self._record(f"{name}-part", size, size.batch // MICRO_BATCHES)
        steps = {mode: modes.MODES[mode](size, self.device) for mode in (*self.job["baselines"], *self.job["modes"])}
        warmed(steps)
        probe = None if name in self.job["small"] else partial(self._probe, keep=True)
        series = take_turns(steps, self.clock, self.job["rounds"], until, probe)
        return {
            mode: {"wall_s": [s.wall_s for s in spent], "cpu_s": [s.cpu_s for s in spent]}
            for mode, spent in series.items()
        }

    def _record(self, name: str, size: DecoderSize, samples: int) -> None:
        """All ranks record at once, so that each computes beside the others as it will later; one's is kept."""
        from triosim.sources.record import record
        from triosim.trace.store import save

        torch.manual_seed(0)
        model = StageDecoder(size).to(self.device)
        step = modes.step_of(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
        tokens, labels = (t[:samples] for t in batch(size, self.device))
        dist.barrier()
        # a function without inputs is not traced again at other batches, which nothing here asks for
        trace = record(partial(step, tokens, labels), model=model, repeats=self.job["repeats"], workload=name)
        if self.rank == 0:
            save(trace, self.folder / f"{name}.triosim")

    def _probe(self, keep: bool) -> None:
        for kind, size, spent in self._measured():
            if keep:
                self.tables[kind, size].append(spent)

    def _measured(self) -> Iterator[tuple[str, int, ElapsedSeconds]]:
        for probe in self.probes:
            yield from probe.measure()

    def _tell(self, words: str) -> None:
        if self.rank == 0:
            (self.folder / "progress").write_text(words, encoding="utf-8")


def _end_with_parent() -> None:
    """Nobody is left to read what this process finds once its standard input has ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _arguments(words: Sequence[str]) -> tuple[Path, int]:
    return Path(words[0]), int(words[1])


if __name__ == "__main__":
    main(*_arguments(sys.argv[1:]))
