"""A job's folder behaves alike on disk and in S3, and a reader never sees half a file."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from mirrorless.adapters.aws.job_files import S3JobFiles, open_job_files, s3_client
from mirrorless.errors import ConfigurationError, MirrorlessError, Retriable
from mirrorless.jobs.request import PROGRESS, REQUEST, lane_file
from mirrorless.ports.stores import JobFiles

BUCKET = "place-of-jobs"
KEY = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-3333-4444-555555555555"


@pytest.fixture(params=["disk", "s3", "the bucket's root"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> JobFiles:
    if request.param == "disk":
        return open_job_files(str(tmp_path / "jobs" / "run-1"))
    request.getfixturevalue("s3")
    return open_job_files(f"s3://{BUCKET}/flows/a_b/jobs/run-1/" if request.param == "s3" else f"s3://{BUCKET}")


def test_files_come_back_as_they_were_written_last_and_names_are_those_under_a_prefix_in_order(files: JobFiles) -> None:
    assert (files.read(REQUEST), files.names(), files.names("lanes/")) == (None, [], [])
    contents = {
        REQUEST: b"{}",
        "empty.json": b"",
        "lanes-of-others.json": b"x",
        "lanes/b-0.json": b"x",
        lane_file("orders.eu", 12): bytes(range(256)),
        "lanes/a-0.json": b"x",
    }
    files.write(REQUEST, b"a longer one")
    for name, content in contents.items():
        files.write(name, content)

    assert {name: files.read(name) for name in files.names()} == contents
    assert files.names() == sorted(contents)
    assert files.names("lanes/") == ["lanes/a-0.json", "lanes/b-0.json", "lanes/orders.eu-12.json"]
    assert files.names("lanes/a") == ["lanes/a-0.json"]
    assert open_job_files(files.place).read(REQUEST) == b"{}"


@pytest.mark.parametrize("topic", ["x" * 180, "x" * 249, "a.b-c_d" * 35])
def test_a_lane_of_any_topic_has_a_file_of_its_own(files: JobFiles, topic: str) -> None:
    names = [
        lane_file(each, 123_456, what, end=end)
        for each in (topic, f"{topic[:-1]}y")
        for what, end in (("lanes", ".json"), ("findings", "#copies-of-others.parquet"))
    ]
    for name in names:
        files.write(name, name.encode())

    assert [files.read(name) for name in names] == [name.encode() for name in names]
    assert files.names("lanes/") == sorted(name for name in names if name.startswith("lanes/"))


def test_more_lanes_than_one_page_of_s3_holds_are_all_found(s3: Any) -> None:
    """With pages of ten names instead of a thousand."""
    pages = []

    def ten_a_page(params: dict[str, Any], **_: Any) -> None:
        pages.append(params)
        params["MaxKeys"] = 10

    s3.meta.events.register("provide-client-params.s3.ListObjectsV2", ten_a_page)
    files = S3JobFiles(BUCKET, "jobs/run-1", client=s3)
    for number in range(25):
        s3.put_object(Bucket=BUCKET, Key=f"jobs/run-1/{lane_file('orders', number)}", Body=b"")

    assert len(files.names("lanes/")) == 25
    assert len(pages) == 3


def test_a_reader_on_disk_reads_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    files, over = open_job_files(str(tmp_path)), Event()
    old, new = b"a" * 500_000, b"b" * 400_000
    files.write(PROGRESS, old)
    seen = []

    def look() -> None:
        while not over.is_set():
            seen.append(files.read(PROGRESS))

    reader = Thread(target=look)
    reader.start()
    for _ in range(100):
        files.write(PROGRESS, new)
        files.write(PROGRESS, old)
    over.set()
    reader.join()

    assert set(seen) <= {old, new}
    assert files.names() == [PROGRESS]  # nothing is left beside it


def test_a_folder_on_disk_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(Retriable, match=r"file/jobs/progress\.json: the file cannot be written"):
        open_job_files(str(tmp_path / "file" / "jobs")).write(PROGRESS, b"")


@pytest.mark.parametrize("key", [KEY, None])
def test_files_in_s3_say_what_they_are_and_are_encrypted_with_the_key_of_their_place_or_as_the_bucket_decides(
    s3: Any, key: str | None
) -> None:
    sent: list[Any] = []
    client = s3_client()
    client.meta.events.register("provide-client-params.s3.PutObject", lambda params, **_: sent.append(params))
    files = S3JobFiles(BUCKET, "jobs/run-1", kms_key_arn=key, client=client)
    for name in ("report.json", "report.html"):
        files.write(name, b"x")

    heads = [s3.head_object(Bucket=BUCKET, Key=f"jobs/run-1/{name}") for name in ("report.json", "report.html")]
    assert [head["ContentType"] for head in heads] == ["application/json", "text/html; charset=utf-8"]
    assert [(each.get("ServerSideEncryption"), each.get("SSEKMSKeyId")) for each in sent] == [
        ("aws:kms", KEY) if key else (None, None)
    ] * 2


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("call", [lambda files: files.read("x"), lambda files: files.names()])
def test_a_bucket_that_is_not_there_is_said_to_be_missing(call: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"s3://not-there-at-all/jobs: there is no such bucket"):
        call(open_job_files("s3://not-there-at-all/jobs"))


@pytest.mark.usefixtures("s3")
def test_s3_that_does_not_answer_can_be_tried_again() -> None:
    client = s3_client()
    client.meta.events.register("before-send.s3", _unreachable)
    files = S3JobFiles(BUCKET, "jobs/run-1", client=client)

    for call in (lambda: files.read("x"), files.names, lambda: files.write("x", b"")):
        with pytest.raises(Retriable, match=r"S3 did not answer to .* \(a retry may help\)"):
            call()


@pytest.mark.parametrize("place", ["s3://", "s3:///jobs"])
def test_a_place_without_a_bucket_is_refused(place: str) -> None:
    with pytest.raises(MirrorlessError, match="no place in S3"):
        open_job_files(place)


def _unreachable(**_: Any) -> None:
    from botocore.exceptions import ReadTimeoutError  # noqa: PLC0415  used here only

    raise ReadTimeoutError(endpoint_url="https://s3")
