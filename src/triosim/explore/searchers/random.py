"""Points at random: what every other searcher is to be measured by."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.explore.exploration import AskTell, Trial
from triosim.explore.space import Point


@registered
class RandomPoints(AskTell):
    """Each point is as likely as any other."""

    @property
    def batch(self) -> int:
        """Nothing is learned, so that any number may be asked for."""
        return 64

    def ask(self) -> Point:
        """See :class:`AskTell`."""
        return self.space.drawn(self.random)

    def tell(self, trial: Trial) -> None:
        """Nothing is learned."""
