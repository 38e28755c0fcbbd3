"""What PyTorch finds on this machine."""

from __future__ import annotations

import torch


def gpus() -> int:
    """GPUs that it can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
