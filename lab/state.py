"""The state of the running lab as one JSON file, always whole.

    ready                         true once records flow
    pid                           of the lab itself; null once it has ended
    config                        the replication.yaml that runs
    clusters.<alias>              bootstrap (of every broker, with commas), version, pid (of the first broker),
                                  brokers[].{id, address, pid}
    dynamodb                      endpoint, pid
    keys                          the folder of the keys of rules
    tables                        offset_map, lanes, loss_ledger, checkpoints, control
    functions.<name>              environments[].{pid, state}: forwarders and scheduled functions
    mappings[]                    uuid, flow, topic, group_id, state, last_processing_result, found ones included
    logs                          the folder with every log

A pid is null while its process is down. The file is replaced by renaming, so a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lab.cloud import Lab
from lab.waiting import RepeatedLook
from mirrorless.errors import ConfigurationError

LOOK_EVERY_SECONDS = 0.2


class StateFile:
    """Keeps the file equal to the lab, from `start` until `stop`."""

    def __init__(self, lab: Lab, path: Path) -> None:
        self.path = path.absolute()
        self._lab = lab
        self._ready = self._ended = False
        self._written = ""
        self._watch = RepeatedLook(self._write, every=LOOK_EVERY_SECONDS, name="state file")

    def start(self) -> None:
        """Write it, not ready yet, and keep watching.

        Raises:
            ConfigurationError: it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write()
        except OSError as exc:
            raise ConfigurationError(
                f"the state file cannot be written: {exc}",
                where=str(self.path),
                hint="name a file in a folder that you may write to",
            ) from exc
        self._watch.start()

    def ready(self) -> None:
        """Records flow from now on."""
        self._ready = True

    def not_ready(self) -> None:
        """Records do not flow any more: everything is being stopped."""
        self._ready = False

    def stop(self) -> None:
        """Write the last state, when everything is stopped."""
        self._watch.stop()
        self._ended = True
        self._write()

    def _write(self) -> None:
        text = json.dumps(describe(self._lab, ready=self._ready, ended=self._ended), indent=2) + "\n"
        if text == self._written:
            return
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(self.path)
        self._written = text


def describe(lab: Lab, *, ready: bool, ended: bool = False) -> dict[str, Any]:
    """The lab as the state file has it."""
    configured = {mapping["UUID"]: mapping for mapping in lab.mappings.list()}
    return {
        "ready": ready,
        "pid": None if ended else os.getpid(),
        "config": str(Path(lab.configuration.origin).absolute()),
        "clusters": {
            alias: {
                "bootstrap": cluster.bootstrap,
                "pid": cluster.pid,
                "version": cluster.version,
                "brokers": [
                    {"id": broker.place.node, "address": broker.place.address, "pid": broker.pid}
                    for broker in cluster.brokers
                ],
            }
            for alias, cluster in lab.clusters.items()
        },
        "keys": str(lab.keys.folder),
        "dynamodb": {"endpoint": lab.dynamodb.endpoint, "pid": lab.dynamodb.pid},
        "tables": {
            "offset_map": lab.tables.offset_map,
            "lanes": lab.tables.lanes,
            "loss_ledger": lab.tables.loss_ledger,
            "checkpoints": lab.tables.checkpoints,
            "control": lab.tables.control,
        },
        "functions": {
            name: {"environments": [{"pid": each.pid, "state": each.state} for each in function.environments]}
            for name, function in list(lab.functions.items())
        },
        "mappings": [
            {
                "uuid": mapping.uuid,
                "flow": mapping.flow,
                "topic": mapping.topic,
                "group_id": mapping.group_id,
                "state": configured.get(mapping.uuid, {}).get("State", "Deleted"),
                "last_processing_result": configured.get(mapping.uuid, {}).get("LastProcessingResult", ""),
            }
            for mapping in lab.flow_mappings
        ],
        "logs": str(lab.folder),
    }
