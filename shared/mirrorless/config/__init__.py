"""replication.yaml: what can be written in it, what is wrong with it, and what it comes down to.

For the operator's side (command, deployment, lab, jobs): it needs pydantic and ruamel.yaml, which no function's bundle
holds.
"""

from mirrorless.config.cluster import Cluster
from mirrorless.config.flow import Flow
from mirrorless.config.loading import Configuration, load
from mirrorless.config.problems import InvalidConfiguration, Problem

__all__ = ["Cluster", "Configuration", "Flow", "InvalidConfiguration", "Problem", "load"]
