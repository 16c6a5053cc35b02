"""The account of every record after a failover and a failback, from both clusters, without the offset map.

The source's records without its orphans, and the remote topic's, must be the same, in the same order. An orphan must
be where its policy says: in the topic of orphans, or once more on the source, and so on the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.audit.audit import TopicAudit
from lab.audit.topic_reader import read_topic, stable_ends
from lab.audit.translations import count_mistranslated
from mirrorless.chain.lane import Lane
from mirrorless.config.flow import Flow
from mirrorless.jobs.request import Policy
from mirrorless.ports.stores import Chains
from mirrorless.reconcile.copy_tasks import ORPHANS_SUFFIX
from mirrorless.verify.comparison import Comparison, RecordAt, compare

FINDINGS = ("lost", "duplicated", "reordered", "different", "mistranslated")

Orphans = Mapping[int, Sequence[RecordAt]]
"""By partition of the source topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFindings:
    """One topic, whole."""

    topic: str
    policy: Policy
    records: int
    """Visible on the source."""
    orphans: int
    lost: int
    duplicated: int
    reordered: int
    different: int
    mistranslated: int
    audit: TopicAudit
    """For the group's own account: without the orphans, which its policy lets it meet elsewhere or not at all."""


def read_whole(bootstrap: str, topic: str) -> dict[int, list[RecordAt]]:
    """Every visible record of a topic, by partition."""
    return read_topic(bootstrap, topic, stable_ends(bootstrap, topic))


def audit_failover(flow: Flow, topic: str, policy: Policy, orphans: Orphans, chains: Chains) -> TopicFindings:
    """Read a topic on both sides and account for every record.

    Args:
        flow: with clusters that answer.
        topic: on the source.
        policy: of its orphans.
        orphans: as they were seen on the source before the reconcile.
        chains: the store of the offset map.

    Raises:
        Retriable: a cluster fails, or an open transaction hides records.
    """
    source, target = flow.source.bootstrap[0], flow.target.bootstrap[0]
    remote = flow.remote_topic(topic)
    ends = stable_ends(source, topic)
    here, there = read_topic(source, topic, ends), read_whole(target, remote)
    aside = read_whole(target, remote + ORPHANS_SUFFIX) if policy == "quarantine" else {}
    sums: Counter[str] = Counter()
    kept, originals = {}, {}
    for partition, written in sorted(here.items()):
        mine = orphans.get(partition, [])
        gone = {each.offset for each in mine}
        rest = [each for each in written if each.offset not in gone]
        found = compare(rest, there.get(partition, []))
        _add(sums, found)
        if policy == "quarantine":
            _add(sums, compare(mine, aside.get(partition, [])))
        elif policy == "replay":
            missing = Counter(each.content for each in mine) - Counter(each.content for each in rest)
            sums["lost"] += missing.total()
        kept[partition] = [each.offset for each in rest]
        originals[partition] = {pair[1].offset: pair[0].offset for pair in found.pairs}
        sums["mistranslated"] += count_mistranslated(
            chains,
            Lane(flow.name, topic, partition),
            upstream=kept[partition],
            places={pair[0].offset: pair[1].offset for pair in found.pairs},
            end=ends[partition],
            seed=partition,
        )
    return TopicFindings(
        topic=topic,
        policy=policy,
        records=sum(map(len, here.values())),
        orphans=sum(map(len, orphans.values())),
        lost=sums["lost"],
        duplicated=sums["duplicated"],
        reordered=sums["reordered"],
        different=sums["different"],
        mistranslated=sums["mistranslated"],
        audit=TopicAudit(rows=[], upstream=kept, upstream_of=originals),
    )


def _add(sums: Counter[str], found: Comparison) -> None:
    sums.update(lost=found.lost, duplicated=found.duplicated, reordered=found.reordered, different=found.different)
