"""What a rule masks is shown by nothing that a lab prints, stores or copies, not even where it cannot be applied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lab.audit.leaks import SecretSearch
from lab.cloud import Lab, addresses
from lab.drills.lane_operator import answer_of
from lab.drills.soak_topic import ASKED, SERVERS_DATA
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.config.loading import load
from tests.support.commands import replication_yaml
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

SECRET = b"0a1b2c3d4e5f6789"
RULES = (
    "{topics: [strict], keep: value.country == 'DE', fields: {name: drop, mail: {hmac: pii}}}",
    "{topics: [lenient], fields: {name: drop, mail: {encrypt: pii}}, on.error: drop}",
    "{topics: [own], fields: {name: drop, mail: {keep.first: 0}}, function: 'own_masks:refusing'}",
)
FUNCTION = """
def refusing(record):
    if b"refused" in (record.value or b""):
        raise ValueError(f"{record}")
    return record
"""
GOOD = b'{"country":"DE","name":"%b","mail":"%b@example.com"}' % (SECRET, SECRET)
UNFIT = b"no JSON, of %b" % SECRET
REFUSED = b'{"country":"refused","name":"%b","mail":null,"left":"%b"}' % (SECRET, SECRET)
WRITTEN = {"strict": [GOOD, UNFIT, GOOD], "lenient": [GOOD, UNFIT, GOOD], "own": [GOOD, REFUSED, GOOD], "open": [GOOD]}


def test_a_secret_is_nowhere_though_records_do_not_fit_and_a_topic_without_a_rule_shows_it(tmp_path: Path) -> None:
    (tmp_path / "own_masks.py").write_text(FUNCTION)
    flow = f"source->target: {{topics: [{', '.join(WRITTEN)}], transforms: [{', '.join(RULES)}]}}"
    (tmp_path / "replication.yaml").write_text(replication_yaml(flow, rest="keys: {pii: {secret: s}}"))
    lab = Lab(configuration=load(tmp_path / "replication.yaml"), folder=tmp_path / "lab", control=False)
    search = SecretSearch(SECRET)
    try:
        lab.start_servers()
        lab.create_topics(1)
        lab.start_flows()
        (configured,) = lab.flows
        producer = Producer({"bootstrap.servers": addresses(configured.source), "log_level": 0})
        for topic, values in WRITTEN.items():
            for number, value in enumerate(values):
                producer.produce(topic, value, b"%d" % number, 0)
        assert not producer.flush(20)
        states = DynamoDbLaneStates(lab.dynamodb.client(), lab.tables.lanes)

        def stopped() -> dict[str, str]:
            found = states.stopped(configured.name).items()
            return {lane.topic: state.stop.cause for lane, state in found if state.stop is not None}

        def is_copied(topic: str) -> bool:
            (mapping,) = [each for each in lab.flow_mappings if each.topic == topic]
            return lab.mappings.lag(mapping.uuid) == {0: 0}

        eventually(lambda: len(stopped()) == 2, "two lanes stop")
        eventually(lambda: is_copied("lenient") and is_copied("open"), "two are copied")
        answers = {words: answer_of(lab, tmp_path / "state.json", *words)[1] for words in ASKED}

        assert stopped() == dict.fromkeys(("strict", "own"), "TRANSFORM_FAILED")
        assert {"strict", "own"} == {
            each["topic"] for each in json.loads(answers["lanes", "stopped", "--json"])["stopped"]
        }
        assert [each["topic"] for each in json.loads(answers["losses", "--json"])["losses"]] == ["lenient"]
        assert not [words for words, answer in answers.items() if search.shows(answer.encode())]
        assert list(search.files(tmp_path / "lab", leave_out=SERVERS_DATA)) == []
        assert list(search.items(lab.dynamodb.client())) == []
        source, target = addresses(configured.source), addresses(configured.target)
        written = {topic: search.records(source, topic) for topic in WRITTEN}
        copied = {topic: search.records(target, f"source.{topic}", committed=False) for topic in WRITTEN}
        assert written == {topic: len(values) for topic, values in WRITTEN.items()}
        assert copied == dict.fromkeys(WRITTEN, 0) | {"open": 1}
    finally:
        lab.stop()
