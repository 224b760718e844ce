"""Telling an Amazon SNS topic. boto3 is imported by the first call of `sns`."""

from __future__ import annotations

import json
import uuid
from threading import Lock
from typing import Any, Final

from takehold import UsageError
from takehold.rows.clean.losses import Event, Notifier

SECONDS: Final = 5


def sns(topic_arn: str, *, client: Any = None) -> Notifier:
    """A notifier that publishes each event as JSON, with `eventType` and `kind` as attributes for filter policies.

    `client` is your own `boto3.client("sns")`; without it one is made for the region of the topic, with the
    credentials that boto3 finds. It gives up after some seconds: a write is waiting.
    """
    parts = topic_arn.split(":")
    if len(parts) != 6 or parts[2] != "sns":
        raise UsageError(f"a topic is named arn:aws:sns:region:account:name, not {topic_arn!r}")
    if client is None:
        try:
            import boto3  # noqa: F401
        except ImportError:
            raise UsageError("sns() publishes with boto3; install takehold[aws], or give a client") from None
    return _Topic(topic_arn, client)


class _Topic:
    def __init__(self, arn: str, client: Any) -> None:
        self._arn = arn
        self._made = client
        self._mutex = Lock()

    def __call__(self, event: Event) -> None:
        attributes = {name: {"DataType": "String", "StringValue": event[name]} for name in ("eventType", "kind")}
        request: dict[str, Any] = {"TopicArn": self._arn, "Message": json.dumps(event), "MessageAttributes": attributes}
        if self._arn.endswith(".fifo"):
            request |= {"MessageGroupId": event["table"] or "takehold", "MessageDeduplicationId": uuid.uuid4().hex}
        self._client().publish(**request)

    def _client(self) -> Any:
        # Two threads must not make clients at once: a boto3 session is not safe for that.
        with self._mutex:
            if self._made is None:
                import boto3
                from botocore.config import Config

                limits = Config(connect_timeout=SECONDS, read_timeout=SECONDS, retries={"total_max_attempts": 2})
                region = self._arn.split(":")[3]
                self._made = boto3.session.Session().client("sns", region_name=region, config=limits)
            return self._made

    def __repr__(self) -> str:
        return f"sns({self._arn!r})"
