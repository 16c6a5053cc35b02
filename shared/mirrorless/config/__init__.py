"""replication.yaml: its model, its rules, and the clusters and flows that it describes.

For the command, the deployment, the lab and the jobs. Functions carry neither pydantic nor ruamel.yaml.
"""

from mirrorless.config.cluster import Cluster
from mirrorless.config.flow import Flow
from mirrorless.config.loading import Configuration, load
from mirrorless.config.problems import InvalidConfiguration, Problem

__all__ = ["Cluster", "Configuration", "Flow", "InvalidConfiguration", "Problem", "load"]
