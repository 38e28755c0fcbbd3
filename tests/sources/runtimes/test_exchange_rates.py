"""Times of kernels that come back from elsewhere: what nothing could have been so fast to do is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim.core.errors import InputError
from triosim.sources.runtimes import exchange
from triosim.sources.runtimes.kernels import product


def test_a_kernel_faster_than_any_device_is_refused(tmp_path: Path) -> None:
    graph = product(256).graph
    exchange._check_rates([("k0001", graph, 1e-3)], tmp_path / "kernels.json", "my-phone")
    with pytest.raises(InputError, match=r"k0001 did 3\.36e\+07 FLOP in 1e-12 s, more in a second than .* can"):
        exchange._check_rates([("k0001", graph, 1e-12)], tmp_path / "kernels.json", "my-phone")
