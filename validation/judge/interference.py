"""What collectives cost what computes beside them: a training step with and without, against a measurement.

    python -m validation.judge.interference [--json FILE]

Llama-3-8B, 4,096 tokens, two samples a device, ``fully_shard`` on eight H100 with NVLink, compiled.  PyTorch's pull
request 179937 measured what is gained when its all-gathers and reduce-scatters run on copy engines instead of
multiprocessors: from 9,369 to 9,593 tokens per second and device.  The same gain is predicted by a step without
interference over one with it.  Nothing was fitted to it: how many multiprocessors collectives hold is from elsewhere
(see ``composition/interference.json``).
"""

from __future__ import annotations

from validation import command

import triosim
from triosim import Fidelity, Plan

MEASURED = (9369.0, 9593.0)
"""Tokens per second and device, on multiprocessors and on copy engines."""


def predicted() -> tuple[float, float]:
    """Tokens per second and device with interference and without."""
    step = triosim.model("llama-3-8b", sequence_length=4096)
    system = triosim.system("dgx-h100")
    found = []
    for how in ("auto", "off"):
        models = Fidelity(host="compiled", interference=how)
        rate = triosim.simulate(step, system, Plan(batch_size=2, zero=3), models).throughput.tokens_per_s
        assert rate is not None
        found.append(rate / system.devices)
    return found[0], found[1]


def main() -> None:
    """Print both."""
    parser = command.parser(__doc__)
    options = parser.parse_args()
    rows = {"measured": MEASURED, "predicted": predicted()}
    print("Llama-3-8B, 8 x H100, FSDP2: tokens per second and device")
    print(f"{'':10}{'beside':>10}{'apart':>10}{'gain':>9}")
    for name, (beside, apart) in rows.items():
        print(f"{name:10}{beside:10,.0f}{apart:10,.0f}{apart / beside - 1:9.1%}")
    command.write(options.json, rows)


if __name__ == "__main__":
    command.run(main)
