"""Will AWS and the brokers take it? Rules on authentication, regions, timeouts, pollers and sizes."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING

from mirrorless.config.cluster_section import Iam, Mtls, Scram
from mirrorless.config.problems import Path, Problem
from mirrorless.config.types import START_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mirrorless.config.cluster import Cluster
    from mirrorless.config.cluster_section import ClusterSection
    from mirrorless.config.flow import Flow
    from mirrorless.config.locations import Places

POLLERS_OF_A_GROUP = 2_000
MAPPINGS_OF_A_GROUP = 100
"""What one poller group holds, by the Lambda API: the sum of maximum pollers, and mappings."""

LARGEST_SETTINGS = 3_072
"""Bytes of a function's settings at most: Lambda gives all environment variables of a function 4 KB together."""


def problems_with_cluster(cluster: Cluster, section: ClusterSection) -> Iterator[Problem]:
    """Find what is wrong with one cluster, whatever flows it is in."""
    path: Path = ("clusters", cluster.alias)
    proof = cluster.authentication
    if isinstance(proof, Iam) and cluster.region is None:
        what = "`authentication: {type: iam}` signs for a region, and none is written"
        yield Problem(path=(*path, "region"), what=what, hint="add `region: us-east-1`, or whichever it is")
    if cluster.msk_arn is None:
        return
    region, account = cluster.msk_arn.split(":")[3:5]
    # The account of a VPC connection is who connects; its ARN names the cluster's owner.
    connects = ":vpc-connection/" in cluster.msk_arn
    for key, written, said in (("region", section.region, region), ("account", section.account, account)):
        if written not in {None, said} and not (connects and key == "account"):
            hint = f"write {said!r}, or remove `{key}`"
            yield Problem(path=(*path, key), what=f"{written!r} is not what `msk.cluster.arn` says", hint=hint)
    if isinstance(proof, Scram) and proof.mechanism != "SCRAM-SHA-512":
        hint = "write `mechanism: SCRAM-SHA-512`, or remove it"
        yield Problem(path=(*path, "authentication", "mechanism"), what="MSK has SCRAM-SHA-512 only", hint=hint)
    if isinstance(proof, Scram) and not _secret_name(proof.secret).startswith("AmazonMSK_"):
        what = f"MSK takes only secrets whose name begins with `AmazonMSK_`, and {proof.secret!r} does not"
        yield Problem(path=(*path, "authentication", "secret"), what=what, hint="name a secret that does")
    if isinstance(proof, Scram | Mtls) and proof.ca:
        what = "MSK has Amazon's certificates, and its mappings take no other authority"
        yield Problem(path=(*path, "authentication", "ca"), what=what, hint="remove it, or remove `msk.cluster.arn`")


def problems_with_limits(flow: Flow, places: Places, now: datetime) -> Iterator[Problem]:
    """Find what is wrong with the numbers of one flow."""
    settings, mapping = flow.settings, flow.settings.mapping
    timeout_ms = settings.function.timeout_seconds * 1_000
    if settings.transaction_timeout_ms >= timeout_ms:
        what = f"a transaction may take {settings.transaction_timeout_ms:,} ms, and its function only {timeout_ms:,} ms"
        hint = f"write less than {timeout_ms:,}, or a longer `function: {{timeout.seconds: …}}`"
        yield Problem(path=places.of(flow, "transaction.timeout.ms"), what=what, hint=hint)
    if mapping.mode == "provisioned" and mapping.minimum_pollers > mapping.maximum_pollers:
        what = f"{mapping.minimum_pollers} pollers at least are more than the {mapping.maximum_pollers} at most"
        hint = f"write 1 to {mapping.maximum_pollers}, or raise `maximum.pollers`"
        yield Problem(path=places.of(flow, "mapping", "minimum.pollers"), what=what, hint=hint)
    if settings.start not in START_WORDS and datetime.fromisoformat(settings.start) > now:
        what = f"{settings.start} is in the future, and Lambda refuses to start there"
        hint = "write a time that is past, or `latest`"
        yield Problem(path=places.of(flow, "start"), what=what, hint=hint)
    if settings.sync_group_offsets_enabled and not settings.emit_checkpoints_enabled:
        what = "group offsets come from checkpoints, and those are turned off"
        hint = "write `emit.checkpoints.enabled: true`, or turn this off too"
        yield Problem(path=places.of(flow, "sync.group.offsets.enabled"), what=what, hint=hint)
    if (size := len(flow.function_settings_json().encode())) > LARGEST_SETTINGS:
        what = f"the function's settings would take {size:,} bytes, and there is room for {LARGEST_SETTINGS:,}"
        hint = "name fewer `bootstrap.servers`; two or three are enough to find the rest"
        yield Problem(path=("clusters", flow.name.source, "bootstrap.servers"), what=what, hint=hint)
    yield from _secret_out_of_reach(flow)


def problems_with_pollers(flows: Sequence[Flow], places: Places) -> Iterator[Problem]:
    """Find poller groups that hold more than Lambda allows. A group is of one VPC: here, of one source cluster."""
    groups: dict[tuple[str, str], list[Flow]] = defaultdict(list)
    for flow in flows:
        mapping = flow.settings.mapping
        if mapping.mode == "provisioned" and mapping.poller_group_name:
            groups[mapping.poller_group_name, flow.name.source].append(flow)
    for (name, source), members in groups.items():
        mappings = sum(len(flow.literal_topics) for flow in members)
        pollers = sum(len(flow.literal_topics) * flow.settings.mapping.maximum_pollers for flow in members)
        if pollers > POLLERS_OF_A_GROUP:
            what = f"the {mappings} mappings of group {name!r} on {source} may have {pollers:,} pollers in all"
            what += f", and a group has {POLLERS_OF_A_GROUP:,} at most"
            hint = f"write {max(1, POLLERS_OF_A_GROUP // mappings)} or fewer, or use another `poller.group.name`"
            yield Problem(path=places.of(members[-1], "mapping", "maximum.pollers"), what=what, hint=hint)
        if mappings > MAPPINGS_OF_A_GROUP:
            what = f"group {name!r} on {source} would have {mappings} mappings, and may have {MAPPINGS_OF_A_GROUP}"
            hint = "use another `poller.group.name` in some of the flows"
            yield Problem(path=places.of(members[-1], "mapping", "poller.group.name"), what=what, hint=hint)


def _secret_out_of_reach(flow: Flow) -> Iterator[Problem]:
    """Pollers read the source's secret in their own region, which is the function's."""
    proof = flow.source.authentication
    if not isinstance(proof, Scram | Mtls) or not proof.secret.startswith("arn:") or flow.function_region is None:
        return
    region = proof.secret.split(":")[3]
    if region != flow.function_region:
        what = f"the secret is in {region}, and the mappings of {flow.name} read it in {flow.function_region}"
        hint = f"write its name alone and replicate it to {flow.function_region}, or change `function: {{run.in: …}}`"
        yield Problem(path=("clusters", flow.name.source, "authentication", "secret"), what=what, hint=hint)


def _secret_name(secret: str) -> str:
    return secret.rpartition(":secret:")[2]
