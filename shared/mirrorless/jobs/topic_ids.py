"""The ids of a job run's topics, kept in its folder: a topic that was deleted and created again is another topic.

Chains and places of looks mean offsets of a topic as it was. Ids come from the clusters, by place: `us-east orders`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from mirrorless.ports.stores import JobFiles

TOPIC_IDS: Final = "topics.json"


def ids_of_run(files: JobFiles, now: Mapping[str, str]) -> dict[str, str]:
    """The ids that the topics had when the run first met them, in whichever attempt; they are kept.

    Args:
        files: the run's folder.
        now: the ids of topics that are there.

    Raises:
        Retriable: the folder does not answer.
    """
    text = files.read(TOPIC_IDS)
    known: dict[str, str] = msgspec.json.decode(text, type=dict[str, str]) if text else {}
    ids = {**now, **known}
    if ids != known:
        files.write(TOPIC_IDS, msgspec.json.encode(ids))
    return ids


def made_anew(places: Iterable[str], begun: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The reason to leave a lane alone of whose topics one was made anew during the run; empty where none was.

    Args:
        places: of its topics.
        begun: see `ids_of_run`.
        now: the ids as they are.
    """
    for place in places:
        if place in begun and begun[place] != now.get(place, begun[place]):
            return (
                f"the topic {place} was deleted and created again during this run: its id was {begun[place]} and is "
                f"{now[place]}. Nothing that the run found holds for it: start a new run, a retry does not help"
            )
    return ""
