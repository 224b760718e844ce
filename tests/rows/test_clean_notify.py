"""Who is told of a loss: the log always, a notifier of yours, an SNS topic; once per run, and no write fails of it."""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from takehold import UsageError
from takehold.rows import clean
from takehold.rows.clean import Event, Summary

REGION = "eu-west-1"


class Base(DeclarativeBase):
    pass


class Document(Base):
    __tablename__ = "documents"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(5))
    properties: Mapped[str] = mapped_column(Text)


def broken(event: Event) -> None:
    raise ConnectionError("the topic is gone")


# -- the log, and failing notifiers -------------------------------------------------------------------------


@pytest.mark.covers("N-24")
def test_a_failing_notifier_never_fails_the_write_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert clean.fit_column(Document.title, "abcdefg", notify=broken) == "abcde"
    assert clean.text("a\U0001f369", notify=broken) == "a"
    assert clean.fit_properties({"a": "x" * 70_000}, notify=broken) == "'{}'\n"
    assert clean.records(Document, [{"title": "abcdefg"}], notify=broken) == [{"title": "abcde"}]
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(failures) == 4
    assert all(record.exc_info and record.exc_info[0] is ConnectionError for record in failures)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 4, "logged all the same"


@pytest.mark.covers("N-24")
def test_what_stops_a_program_is_not_swallowed() -> None:
    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clean.fit_column(Document.title, "abcdefg", notify=interrupted)


@pytest.mark.covers("N-24")
def test_the_log_is_written_once_and_carries_the_event_for_machines(caplog: pytest.LogCaptureFixture) -> None:
    clean.fit_column(Document.title, "abcdefg", notify=clean.log)
    (record,) = caplog.records
    facts: dict[str, Any] = vars(record)
    assert facts["event"] == "rows.clean.truncated"
    assert facts["loss"]["column"] == "title"


@pytest.mark.covers("N-24")
def test_nothing_of_a_value_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    clean.fit_column(Document.title, "secret words", notify=told.append)
    clean.fit_properties({"a": "secret" * 20_000}, notify=told.append)
    clean.text("secret \U0001f369", notify=told.append)
    assert len(told) == 3
    assert "secret" not in json.dumps(told) + caplog.text


# -- summaries ----------------------------------------------------------------------------------------------


@pytest.mark.covers("N-20", "N-24")
def test_a_summary_sends_one_event_per_column_and_kind_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    with Summary(told.append) as summary:
        for number in range(1, 4):
            clean.fit_properties({"a": "x" * 70_000, "b": number}, column=Document.properties, notify=summary)
            clean.fit_column(Document.title, "abcdef" * number, notify=summary)
            clean.text("\U0001f369", column=Document.title, notify=summary)
        assert told == []
        assert not caplog.records
        assert [event["count"] for event in summary.events] == [3, 3, 3]
    where = {"eventType": "WARNING", "table": "documents"}
    assert told == [
        {**where, "column": "properties", "kind": "dropped", "before": 6, "after": 3, "count": 3},
        {**where, "column": "title", "kind": "truncated", "before": 36, "after": 15, "count": 3},
        {**where, "column": "title", "kind": "stripped", "before": 3, "after": 0, "count": 3},
    ]
    assert caplog.messages[0] == "documents.properties exceeded TEXT limit. Dropped 3/6 keys in 3 values"
    assert len(caplog.messages) == 3


@pytest.mark.covers("N-24")
def test_bulk_runs_inside_a_summary_are_part_of_it() -> None:
    told: list[Event] = []
    with Summary(told.append) as summary:
        for _ in range(3):
            clean.records(Document, [{"title": "abcdefg"}] * 2, notify=summary)
    assert [(event["kind"], event["count"]) for event in told] == [("truncated", 6)]


@pytest.mark.covers("N-24")
def test_a_summary_sends_when_its_block_raises_and_at_once_outside_of_it() -> None:
    told: list[Event] = []
    summary = Summary(told.append)
    clean.fit_column(Document.title, "abcdefg", notify=summary)
    assert len(told) == 1
    with pytest.raises(ZeroDivisionError), summary:
        assert 1 / (len(clean.fit_column(Document.title, "abcdefg", notify=summary)) - 5)
    assert len(told) == 2
    clean.fit_column(Document.title, "abcdefg", notify=summary)
    assert len(told) == 3
    with summary:
        pass
    assert len(told) == 3, "a second block starts from nothing"


@pytest.mark.covers("N-24")
def test_threads_share_a_summary_without_losing_a_count() -> None:
    told: list[Event] = []
    with Summary(told.append) as summary:

        def work() -> None:
            for _ in range(500):
                clean.fit_column(Document.title, "abcdefg", notify=summary)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event["count"] for event in told] == [2000]


# -- SNS ----------------------------------------------------------------------------------------------------


class Topic:
    """A topic of moto's SNS, which answers as the service does, and a queue that listens to it."""

    def __init__(self, sns: Any, sqs: Any, *, fifo: bool = False) -> None:
        suffix, attributes = (".fifo", {"FifoTopic": "true"}) if fifo else ("", {})
        queue = {"FifoQueue": "true"} if fifo else {}
        self.client, self._sqs = sns, sqs
        self.arn: str = sns.create_topic(Name=f"losses{suffix}", Attributes=attributes)["TopicArn"]
        self._url = sqs.create_queue(QueueName=f"losses{suffix}", Attributes=queue)["QueueUrl"]
        heard = sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        sns.subscribe(TopicArn=self.arn, Protocol="sqs", Endpoint=heard)

    def published(self) -> list[Any]:
        """All that was sent so far: envelopes with "Message" and "MessageAttributes"."""
        found = self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10).get("Messages", [])
        return [json.loads(message["Body"]) for message in found]


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Topic]]:
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        sns, sqs = (boto3.client(service, region_name=REGION) for service in ("sns", "sqs"))
        yield functools.partial(Topic, sns, sqs)


@pytest.mark.slow
@pytest.mark.covers("N-20", "N-22", "N-24")
def test_a_topic_gets_the_event_with_attributes_to_filter_by(
    topics: Callable[..., Topic], caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics()
    caplog.set_level(logging.WARNING)
    clean.fit_properties({"a": "x" * 70_000}, column=Document.properties, notify=clean.sns(topic.arn))
    (envelope,) = topic.published()
    assert json.loads(envelope["Message"]) == {
        "eventType": "WARNING",
        "kind": "dropped",
        "table": "documents",
        "column": "properties",
        "before": 1,
        "after": 0,
        "count": 1,
    }
    attributes = {name: value["Value"] for name, value in envelope["MessageAttributes"].items()}
    assert attributes == {"eventType": "WARNING", "kind": "dropped"}
    assert caplog.messages == ["documents.properties exceeded TEXT limit. Dropped 1/1 keys"], "logged as well"


@pytest.mark.slow
@pytest.mark.covers("N-24")
def test_a_topic_gets_one_message_for_a_column_of_many_rows(topics: Callable[..., Topic]) -> None:
    topic = topics()
    clean.records(Document, [{"title": "abcdefg"}] * 1000, notify=clean.sns(topic.arn))
    assert [json.loads(envelope["Message"])["count"] for envelope in topic.published()] == [1000]


@pytest.mark.slow
@pytest.mark.covers("N-24")
def test_a_topic_that_does_not_exist_is_logged_and_fails_nothing(
    topics: Callable[..., Topic], caplog: pytest.LogCaptureFixture
) -> None:
    arn = f"arn:aws:sns:{REGION}:123456789012:nowhere"
    assert clean.fit_column(Document.title, "abcdefg", notify=clean.sns(arn)) == "abcde"
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert "nowhere" in caplog.records[1].getMessage()


@pytest.mark.slow
@pytest.mark.covers("N-24")
def test_a_fifo_topic_and_a_client_of_the_callers_are_taken(
    topics: Callable[..., Topic], caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics(fifo=True)
    notify = clean.sns(topic.arn, client=topic.client)
    for _ in range(2):
        clean.fit_column(Document.title, "abcdefg", notify=notify)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert len(topic.published()) == 2


@pytest.mark.covers("N-24")
@pytest.mark.parametrize("arn", ["losses", "arn:aws:sqs:eu-west-1:123456789012:losses", ""])
def test_what_is_not_the_name_of_a_topic_is_refused_when_it_is_given(arn: str) -> None:
    with pytest.raises(UsageError, match="arn:aws:sns:region:account:name"):
        clean.sns(arn)


@pytest.mark.covers("N-24")
def test_without_boto3_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UsageError, match=r"takehold\[aws\]"):
        clean.sns(f"arn:aws:sns:{REGION}:123456789012:losses")


@pytest.mark.slow
def test_importing_clean_loads_neither_boto3_nor_rich_nor_yaml() -> None:
    code = "import sys, takehold.rows.clean; print(*{'boto3', 'rich', 'yaml'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
