"""Records that lagging groups read again after a move, as `tests.benchmarks.translation` counts them."""

from __future__ import annotations

from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.results import Measurement, Results, now
from tests.benchmarks.translation import BANDS
from tests.benchmarks.translation import measure as count

SEED = 1


def measure(_: Ground, results: Results, profile: Profile) -> None:
    """Count, for MM2 at each `offset.lag.max` and for ours. One round says all: it is computed from a seed."""
    if not profile.translation:
        return
    for column in count(profile.translation, SEED):
        for (first, last), band in zip(BANDS, column.bands, strict=False):
            results.add(
                Measurement(
                    kind="translation",
                    case=f"lag {first:,} to {min(last, profile.translation):,}",
                    round=1,
                    side=column.title.replace("`", ""),
                    figures={"reread_mean": band.mean, "reread_worst": band.worst, "skipped": band.skipped},
                    at=now(),
                )
            )
