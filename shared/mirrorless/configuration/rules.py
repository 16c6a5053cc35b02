"""Do the values fit together? The rules that look at more than one value, so that nothing is created from half an idea."""

from __future__ import annotations

from datetime import datetime
from itertools import combinations
from typing import TYPE_CHECKING, Any

from mirrorless.configuration.model import Iam, Mtls, Scram
from mirrorless.configuration.problems import Path, Problem
from mirrorless.lane import ALIAS, FlowName
from mirrorless.policy import is_legal_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mirrorless.configuration.document import Text
    from mirrorless.configuration.flow import Cluster, Flow


def of_names(text: Text) -> list[Problem]:
    return []


def of_values(
    flows: Mapping[FlowName, Flow], clusters: Mapping[str, Cluster], text: Text, now: datetime
) -> list[Problem]:
    return []
