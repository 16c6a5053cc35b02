"""Rules on authentication, of a cluster by itself and of the mappings of a flow that read it; and on MSK Serverless.

MSK Serverless is known by the id of its ARN, or by its bootstrap servers.
(https://docs.aws.amazon.com/msk/latest/developerguide/serverless.html)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from mirrorless.config.cluster import Iam, OauthBearer, Plain, Scram, Tls, WithSecret, partition_of
from mirrorless.config.problems import FlowPaths, Path, Problem

if TYPE_CHECKING:
    from mirrorless.config.cluster import Cluster
    from mirrorless.config.flow import Flow


def problems_with_authentication(cluster: Cluster) -> Iterator[Problem]:
    """Find problems of one cluster's authentication, whatever flows it is in."""
    path: Path = ("clusters", cluster.alias)
    authentication = cluster.authentication
    secrets = {key: getattr(authentication, key.replace(".", "_"), None) for key in ("secret", "operator.secret", "ca")}
    yield from problems_with_secret_arns((*path, "authentication"), secrets)
    if isinstance(authentication, Iam) and cluster.region is None:
        what = "`authentication: {type: iam}` needs a region, and none is written"
        yield Problem(path=(*path, "region"), what=what, hint="add `region: us-east-1`, or whichever it is")
    if isinstance(authentication, Scram) and _for_msk(authentication.secret) and not authentication.secret_kms_key_arn:
        what = "MSK takes only secrets under a key of one's own, and no role may decrypt with a key that is not named"
        hint = "add `secret.kms.key.arn: arn:aws:kms:…`; of a secret with replicas, a multi-region key"
        yield Problem(path=(*path, "authentication", "secret.kms.key.arn"), what=what, hint=hint)
    if cluster.msk_arn is None:
        return
    if isinstance(authentication, Scram) and authentication.mechanism != "SCRAM-SHA-512":
        hint = "write `mechanism: SCRAM-SHA-512`, or remove it"
        yield Problem(path=(*path, "authentication", "mechanism"), what="MSK has SCRAM-SHA-512 only", hint=hint)
    if isinstance(authentication, Scram):
        for key in ("secret", "operator.secret"):
            if (secret := secrets[key]) and not _for_msk(secret):
                what = f"MSK takes only secrets whose name begins with `AmazonMSK_`, and {secret!r} does not"
                yield Problem(path=(*path, "authentication", key), what=what, hint="name a secret that does")
    if isinstance(authentication, Plain | OauthBearer):
        what = f"MSK has no `type: {authentication.type}`, and neither have its mappings"
        hint = "write `scram`, `mtls` or `iam`, whichever the cluster has; or remove `msk.cluster.arn`, if it is no MSK"
        yield Problem(path=(*path, "authentication", "type"), what=what, hint=hint)
    elif isinstance(authentication, WithSecret | Tls) and authentication.ca:
        what = "MSK has Amazon's certificates, and its mappings take no other authority"
        yield Problem(path=(*path, "authentication", "ca"), what=what, hint="remove it, or remove `msk.cluster.arn`")


def problems_with_shared_secrets(clusters: Iterable[Cluster]) -> Iterator[Problem]:
    """Find MSK clusters in several places whose secret is one and its replicas.

    MSK attaches a resource policy to each secret that it is given, and a replica takes no change of its own.
    (https://docs.aws.amazon.com/msk/latest/developerguide/msk-password-tutorial.html,
    https://docs.aws.amazon.com/secretsmanager/latest/userguide/replicate-secrets.html)
    """
    first: dict[str, Cluster] = {}
    for cluster in clusters:
        proof = cluster.authentication
        if cluster.msk_arn is None or not isinstance(proof, Scram) or proof.secret.startswith("arn:"):
            continue
        other = first.setdefault(proof.secret, cluster)
        if (other.region, other.account) != (cluster.region, cluster.account):
            what = (
                f"{proof.secret!r} is the secret of {other.alias!r} too, and MSK cannot be given a replica of a secret"
            )
            hint = f"make a secret for each cluster, for example `{proof.secret}_{cluster.alias}`, and replicate it to "
            hint += "where it is read"
            yield Problem(path=("clusters", cluster.alias, "authentication", "secret"), what=what, hint=hint)


def problems_with_access(flow: Flow) -> Iterator[Problem]:
    """Find what keeps a flow's functions, and mappings if it has any, from authenticating as its source demands."""
    yield from _secret_out_of_reach(flow)
    if not flow.has_mappings:
        return
    yield from _names_taken_for_whole_arns(flow)
    yield from _tls_that_pollers_do_not_learn_of(flow)
    yield from _tokens_that_pollers_do_not_take(flow)


def _secret_out_of_reach(flow: Flow) -> Iterator[Problem]:
    """Find a secret in another region than the functions', where they and pollers read it."""
    here = flow.function_region
    for key in ("secret", "ca"):
        secret = getattr(flow.source.authentication, key, None) or ""
        if here and secret.startswith("arn:") and (region := secret.split(":")[3]) != here:
            readers = "mappings" if flow.has_mappings else "functions"
            what = f"the secret is in {region}, and the {readers} of {flow.name} read it in {here}"
            hint = f"write its name alone and replicate it to {here}, or change `function: {{run.in: …}}`"
            yield Problem(path=("clusters", flow.name.source, "authentication", key), what=what, hint=hint)


def _names_taken_for_whole_arns(flow: Flow) -> Iterator[Problem]:
    """Find secrets that no poller would find: it is given their ARN but for the ending, which is not known.

    (https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_GetSecretValue.html)
    """
    for key in ("secret", "ca"):
        name = getattr(flow.source.authentication, key, None) or ""
        if _ENDING.search(name) and not name.startswith("arn:"):
            what = (
                f"{name!r} ends with a hyphen and six characters, which Secrets Manager takes for the ending of an ARN"
            )
            hint = f"give the secret another name, such as `{name}-1`, or write its whole ARN"
            yield Problem(path=("clusters", flow.name.source, "authentication", key), what=what, hint=hint)


def problems_with_secret_arns(path: Path, secrets: Mapping[str, str | None]) -> Iterator[Problem]:
    """Find ARNs of secrets without their ending: no role could read what they name. Args: secrets: by key."""
    for key, secret in secrets.items():
        if secret and secret.startswith("arn:") and not _WHOLE.search(secret):
            what = "the ARN of a secret ends with a hyphen and six letters, and roles may read that one only"
            hint = "write it as `aws secretsmanager describe-secret` prints it, or the secret's name alone"
            yield Problem(path=(*path, key), what=what, hint=hint)


_ENDING: Final = re.compile(r"-.{6}$")
_WHOLE: Final = re.compile(r":secret:.+-[A-Za-z0-9]{6}$")


def _tls_that_pollers_do_not_learn_of(flow: Flow) -> Iterator[Problem]:
    """Find a source with encryption alone whose mappings could not be told so.

    There is no access type for it: the request is plaintext's, but for the authority. And over the internet, Lambda
    requires a secret of credentials.
    (https://docs.aws.amazon.com/lambda/latest/dg/with-kafka-permissions.html)
    """
    if not isinstance(flow.source.authentication, Tls) or flow.mapped_by_arn:
        return
    path: Path = ("clusters", flow.name.source, "authentication")
    if flow.source.authentication.ca is None:
        what = f"only the secret of an authority tells the mappings of {flow.name} to use TLS, and none is named"
        hint = "add `ca: …`; of a public authority, a secret with its root certificate"
        if flow.source.msk_arn:
            hint = "write `function: {run.in: source}`: there, mappings name the MSK cluster, and learn it from MSK"
        yield Problem(path=(*path, "ca"), what=what, hint=hint)
    if flow.home.vpc is None:
        what = f"mappings reach brokers without credentials only in a VPC, and {flow.home.alias}, where those of "
        what += f"{flow.name} live, has none"
        hint = f"add `vpc` to `{flow.home.alias}`, or let clients authenticate, for example by `type: plain`"
        yield Problem(path=(*path, "type"), what=what, hint=hint)


def _tokens_that_pollers_do_not_take(flow: Flow) -> Iterator[Problem]:
    """Find mappings with tokens where Lambda has none.

    (https://aws.amazon.com/about-aws/whats-new/2026/10/aws-Lambda-supports-oauth-kafka-esm/)
    """
    if isinstance(flow.source.authentication, OauthBearer) and partition_of(flow.function_region or "") != "aws":
        what = f"Lambda's mappings take tokens in commercial regions only, and those of {flow.name} are in "
        what += str(flow.function_region)
        hint = "write `plain`, `scram` or `mtls`, or let the flow run in another region by `function: {run.in: …}`"
        yield Problem(path=("clusters", flow.name.source, "authentication", "type"), what=what, hint=hint)


def _for_msk(secret: str) -> bool:
    """Return whether MSK may be associated with the secret, by its name."""
    return secret.rpartition(":secret:")[2].startswith("AmazonMSK_")


REPLICAS: Final = (-1, 3)
"""Of each topic; -1 leaves them to the cluster."""

_ID: Final = re.compile(r":cluster/.*-s\d+$")
_HOST: Final = ".kafka-serverless."

_FACTORS: Final = {
    "heartbeats.topic.replication.factor": "heartbeats_topic_replication_factor",
    "checkpoints.topic.replication.factor": "checkpoints_topic_replication_factor",
    "offset-syncs.topic.replication.factor": "offset_syncs_topic_replication_factor",
}
"""Keys of topics that may be made on either end, and their settings."""


def is_serverless(cluster: Cluster) -> bool:
    """Whether a cluster is one of MSK Serverless."""
    return bool(_ID.search(cluster.msk_arn or "")) or any(_HOST in server for server in cluster.bootstrap)


def problems_with_serverless(cluster: Cluster) -> Iterator[Problem]:
    """Find another authentication than the only one that MSK Serverless has."""
    if is_serverless(cluster) and not isinstance(cluster.authentication, Iam):
        what = f"MSK Serverless has IAM only, and this is `{cluster.authentication.type}`"
        path = ("clusters", cluster.alias, "authentication", "type")
        yield Problem(path=path, what=what, hint="write `authentication: {type: iam}`")


def problems_with_replicas(flow: Flow, paths: FlowPaths) -> Iterator[Problem]:
    """Find numbers of replicas that MSK Serverless refuses: topics would not be created."""
    settings = flow.settings
    wanted = {"replication.factor": settings.replication_factor} if is_serverless(flow.target) else {}
    if is_serverless(flow.source) or is_serverless(flow.target):
        wanted |= {key: getattr(settings, name) for key, name in _FACTORS.items()}
    for key, factor in wanted.items():
        if factor not in REPLICAS:
            what = f"MSK Serverless keeps three replicas, and refuses to create topics with {factor}"
            yield Problem(
                path=paths.of(flow, key), what=what, hint=f"write `{key}: -1`, which leaves it to the cluster"
            )
