"""The section of a cluster, made of what MirrorMaker's clients are given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mirrorless.config.cluster import ClusterSection
from mirrorless.config.problems import Path
from mirrorless.flow.filters import split_list
from mirrorless.migration.answers import CLIENTS, CONSUMER, PRODUCER, Conversion, Outcome, without_counterpart
from mirrorless.migration.mirrors import GivenKey, Mirror, Properties, client_keys, is_access

_MSK: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")

_AUTHENTICATIONS: Final = {
    "PLAIN": {"type": "plain"},
    "SCRAM-SHA-256": {"type": "scram", "mechanism": "SCRAM-SHA-256"},
    "SCRAM-SHA-512": {"type": "scram"},
    "OAUTHBEARER": {"type": "oauthbearer"},
    "AWS_MSK_IAM": {"type": "iam"},
}
"""By SASL's mechanisms."""
_IN_SECRET: Final = {
    "plain": "`username` and `password`",
    "scram": "`username` and `password`",
    "oauthbearer": "`oauthTokenEndpointUrl`, `oauthClientId` and `oauthClientSecret`",
    "mtls": "`certificate` and `privateKey`",
}
"""By types of authentication."""

ClusterEnds = Sequence[tuple[Mirror, str]]
"""The mirrors that a cluster is in, and at which end."""


def cluster_section(made: Conversion, alias: str, ours: str, ends: ClusterEnds) -> dict[str, Any]:
    """Return the section of a cluster. Args: alias: MirrorMaker's. ours: the alias here."""
    path: Path = ("clusters", ours)
    access, used = _access(made, ours, ends), [each for each in ends if each[0].written]
    section: dict[str, Any] = {}
    if (prefix := _prefix(made, alias, ours, used)) != ours:
        section["topic.prefix"] = prefix
        made.comments[*path, "topic.prefix"].append("MirrorMaker's alias: names of topics keep it")
    servers = access["bootstrap.servers"].value if "bootstrap.servers" in access else ""
    section["bootstrap.servers"] = list(split_list(servers)) or None
    authentication = _authentication(access)
    if any(end == "target" for _, end in used) or authentication.get("type") == "iam":
        section["region"] = found[1] if (found := _MSK.search(servers)) else None
        section["account"] = None
    if authentication:
        section["authentication"] = authentication
        _say_what_to_fill_in(made, (*path, "authentication"), authentication, access)
    for base, each in (*_shared(ends), *access.items()):
        made.answer(each, *_answer(base, authentication))
    for mirror, end in used:
        for base, each in _of_records(mirror, end):
            if (key := (PRODUCER if end == "target" else CONSUMER).get(base)) and key not in section:
                made.take(path, section, ClusterSection, key, each)
    return section


def _shared(ends: ClusterEnds) -> Iterator[tuple[str, GivenKey]]:
    """What all clients of a cluster are given, to find it and to authenticate."""
    for mirror, end in ends:
        for properties in mirror.connectors.values():
            for side, role, base, each in client_keys(properties):
                if is_access(base) and side == end and role == "cluster":
                    yield base, each


def _access(made: Conversion, ours: str, ends: ClusterEnds) -> dict[str, GivenKey]:
    """Where brokers are and how clients authenticate: what all share, otherwise what those of records have."""
    found: dict[str, GivenKey] = {}
    for base, each in _shared(ends):
        if found.setdefault(base, each).value.strip() != each.value.strip():
            made.note(f"{ours}: `{base}` differs between files: that of {found[base].file} is taken")
    for mirror, end in ends:
        for base, each in _of_records(mirror, end):
            if is_access(base) and base != "bootstrap.servers":
                found.setdefault(base, each)
    return found


def _prefix(made: Conversion, alias: str, ours: str, ends: ClusterEnds) -> str:
    """What MirrorMaker called a cluster in names of topics: its alias, unless a key says otherwise."""
    for mirror, end in ends:
        given = made.settle(mirror, "source.cluster.alias")
        if end == "source" and given and not mirror.keeps_names:
            made.answer(given, "kept")
            return given.value.strip()
    return alias or ours


def _authentication(access: Properties) -> dict[str, Any]:
    """The section of that name; empty without any. A type or a secret that is None is for the operator to write."""
    protocol = access["security.protocol"].value.strip().upper() if "security.protocol" in access else "PLAINTEXT"
    if protocol == "PLAINTEXT":
        return {}
    mechanism = access["sasl.mechanism"].value.strip().upper() if "sasl.mechanism" in access else "GSSAPI"
    if any("msk.auth.iam" in each.value for key, each in access.items() if key.endswith("handler.class")):
        mechanism = "AWS_MSK_IAM"
    found: dict[str, Any] = dict(_AUTHENTICATIONS.get(mechanism, {"type": None}))
    if protocol == "SSL":
        found = {"type": "mtls" if any(key.startswith(("ssl.keystore.", "ssl.key.")) for key in access) else "tls"}
    return found | ({"secret": None} if found["type"] in _IN_SECRET else {})


def _say_what_to_fill_in(made: Conversion, path: Path, authentication: dict[str, Any], access: Properties) -> None:
    above = made.comments[*path, "type"]
    if authentication["type"] is None:
        above.append("to fill in: the brokers must offer one of the types that there are here")
    if access["security.protocol"].value.strip().upper() == "SASL_PLAINTEXT":
        above.append("over TLS, which MirrorMaker went without: the brokers need such a listener")
    if any(key.startswith("ssl.truststore.") for key in access):
        above.append("add `ca`, a secret with its `certificate`, where the authority is private")
    if what := _IN_SECRET.get(str(authentication["type"])):
        made.comments[*path, "secret"].append(f"to fill in: the name of a secret in Secrets Manager with {what}")


def _answer(base: str, authentication: dict[str, Any]) -> tuple[Outcome, str]:
    """What became of a key by which clients find brokers and authenticate."""
    kind = authentication.get("type")
    if base in {"bootstrap.servers", "security.protocol"} or (base == "sasl.mechanism" and kind):
        return "kept", ""
    if not authentication:
        return "ignored", "clients spoke without encryption and without credentials"
    if base.startswith(("sasl.jaas.config", "ssl.keystore", "ssl.key.")) and kind in _IN_SECRET:
        return "blank", f"for the secret of `authentication: {{type: {kind}}}`"
    if base.startswith("ssl.truststore"):
        return "instead", "public authorities are trusted; a private one is a secret named by `ca`"
    if base.startswith("sasl.") and kind == "iam":
        return "instead", "functions and jobs sign with their own roles"
    return "instead", without_counterpart(base) or CLIENTS


def _of_records(mirror: Mirror, end: str) -> Iterator[tuple[str, GivenKey]]:
    """The settings of the producer that writes records, or of the consumer that reads them; the first of each holds."""
    role_here, ends = ("producer.override", {""}) if end == "target" else ("consumer", {"", "source"})
    for side, role, base, each in client_keys(mirror.connectors.get("source", {})):
        if role == role_here and side in ends:
            yield base, each
    if end == "target":
        yield from ((key[9:], each) for key, each in mirror.worker.items() if key.startswith("producer."))
