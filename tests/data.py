"""Measured data kept beside the repository; tests that need it skip when it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared(*parts: str) -> Path:
    """Path of a file or folder of measured data; skips the calling test when it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"measured data {'/'.join(parts)} is not here")
    return path
