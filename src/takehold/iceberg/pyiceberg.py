"""Several tables in one commit, for users of PyIceberg, on any REST catalog that has the endpoint for it.

PyIceberg commits a table through `catalog.commit_table`. The tables of a transaction are given a catalog of ours, whose
`commit_table` only collects: the requests leave together, in one `POST .../transactions/commit`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from takehold import BackendRefused, BackendUnavailable, CommitConflict, TableUpdateConflict, UnknownOutcome, UsageError
from takehold.iceberg.errors import NoSuchTable
from takehold.iceberg.words import Retrying

try:
    import requests
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.rest.auth import AuthManagerAdapter, AuthManagerFactory
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
    from pyiceberg.table import CommitTableRequest, CommitTableResponse, Table, TableIdentifier
    from pyiceberg.table.update import update_table_metadata
except ImportError as error:
    raise ImportError("takehold.iceberg.transaction is for users of PyIceberg: pip install pyiceberg") from error

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = ["Transaction", "transaction"]

R = TypeVar("R")

SECONDS: Final = (10, 120)
"""To connect, and to be answered."""


@overload
def transaction(catalog: RestCatalog) -> Transaction: ...
@overload
def transaction(
    catalog: RestCatalog, work: Callable[[Transaction], R], *, retry: Retrying | None = ..., deadline: float = ...
) -> R: ...


def transaction(
    catalog: RestCatalog,
    work: Callable[[Transaction], R] | None = None,
    *,
    retry: Retrying | None = Retrying(),  # noqa: B008  frozen
    deadline: float = 5,
) -> Transaction | R:
    """One atomic commit over several tables: `with transaction(catalog) as tx: tx.load_table("a.b").append(rows)`.

    With `work` all of it is done again, on tables read anew, when somebody else was first, until `deadline` seconds
    are over; `retry=None` is one attempt. Files that a lost attempt wrote stay behind, named by nothing.
    """
    if work is None:
        return Transaction(catalog)
    until = time.monotonic() + deadline
    pause = retry.first if retry else 0.0
    while True:
        try:
            with Transaction(catalog) as tx:
                return work(tx)
        except (CommitConflict, CommitFailedException):
            if retry is None or time.monotonic() + pause > until:
                raise
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * retry.factor, retry.most)


class Transaction:
    """Tables that change together. Nothing is sent before the block ends well; nothing at all when it raises."""

    def __init__(self, catalog: RestCatalog) -> None:
        if not isinstance(catalog, RestCatalog):
            raise UsageError(f"{type(catalog).__name__} is no REST catalog: only those commit several tables at once")
        self._catalog = catalog
        self._collector = _Collector(catalog)

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        """A table whose commits wait for the end of the block; the same one each time, with what was done to it."""
        return self._collector.load_table(identifier)

    def commit(self) -> None:
        """Send what was collected. Raises `TableUpdateConflict` when somebody was first, and then nothing changed."""
        changes = self._collector.changes()
        if changes:
            _send(self._catalog, [change.model_dump(mode="json", by_alias=True) for change in changes])
        self._collector.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()


class _Part:
    """One table's part."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.base: TableMetadata = table.metadata
        self.requirements: list[TableRequirement] = []
        self.updates: list[TableUpdate] = []

    def add(self, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]) -> None:
        # A second commit requires what the first one made. What the table as it was read does not fulfil can only be
        # our own doing, and whoever gets all of it at once must not be asked for it.
        for requirement in requirements:
            with suppress(CommitFailedException):
                requirement.validate(self.base)
                if requirement not in self.requirements:
                    self.requirements.append(requirement)
        self.updates += updates


class _Collector:
    """The catalog that the tables of a transaction think they are in."""

    def __init__(self, catalog: RestCatalog) -> None:
        self._catalog = catalog
        self._parts: dict[tuple[str, ...], _Part] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        name = self._catalog.identifier_to_tuple(identifier)
        if name not in self._parts:
            found = self._catalog.load_table(name)
            tied: Any = self
            table = Table(name, found.metadata, found.metadata_location, found.io, tied, found.config)
            self._parts[name] = _Part(table)
        return self._parts[name].table

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        self._parts[table.name()].add(requirements, updates)
        metadata = update_table_metadata(table.metadata, updates)
        return CommitTableResponse.model_construct(metadata=metadata, metadata_location=table.metadata_location)

    def changes(self) -> list[CommitTableRequest]:
        return [
            CommitTableRequest(
                identifier=TableIdentifier.model_validate({"namespace": list(name[:-1]), "name": name[-1]}),
                requirements=tuple(part.requirements),
                updates=tuple(part.updates),
            )
            for name, part in self._parts.items()
            if part.updates
        ]

    def forget(self) -> None:
        self._parts.clear()


def _send(catalog: RestCatalog, changes: list[dict[str, Any]]) -> None:
    with _session(catalog) as session:
        try:
            answer = session.post(catalog.url("transactions/commit"), json={"table-changes": changes}, timeout=SECONDS)
        except requests.ConnectTimeout as error:
            raise BackendUnavailable(f"{catalog.uri} does not answer: {error}") from error
        except requests.RequestException as error:
            raise UnknownOutcome(f"no answer to a transaction: it may or may not have happened ({error})") from error
    if answer.ok:
        return
    message = _message(answer)
    if answer.status_code == 409:
        raise TableUpdateConflict(message)
    if answer.status_code == 404:
        raise NoSuchTable(message) from NoSuchTableError(message)
    if answer.status_code == 503:
        raise BackendUnavailable(message)
    if answer.status_code >= 500:
        raise UnknownOutcome(f"the catalog answered {answer.status_code}: it may or may not have happened: {message}")
    if answer.status_code == 400:
        raise UsageError(message)
    raise BackendRefused(f"{answer.status_code}: {message}")


def _message(answer: requests.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:500] or answer.reason


def _session(catalog: RestCatalog) -> requests.Session:
    """A session with the catalog's credentials: PyIceberg's own one is private."""
    properties: dict[str, Any] = catalog.properties
    session = requests.Session()
    session.headers.update({key[7:]: text for key, text in properties.items() if key.startswith("header.")})
    ssl = properties.get("ssl") or {}
    session.verify = ssl.get("cabundle", True)
    client = ssl.get("client") or {}
    session.cert = (client["cert"], client["key"]) if "key" in client else client.get("cert")
    if str(properties.get("rest.sigv4-enabled", "false")).lower() == "true":
        raise UsageError("a catalog with SigV4 signing cannot be used for transactions yet")
    if auth := properties.get("auth"):
        manager = AuthManagerFactory.create(auth.get("impl") or auth["type"], auth.get(auth["type"], {}))
        session.auth = AuthManagerAdapter(manager)
    elif credential := properties.get("credential"):
        settings = {
            "session": session, "auth_url": catalog.auth_url, "credential": credential,
            "initial_token": properties.get("token"),
            "optional_oauth_params": {"scope": properties.get("scope", "catalog")},
        }  # fmt: skip
        session.auth = AuthManagerAdapter(AuthManagerFactory.create("legacyoauth2", settings))
    elif token := properties.get("token"):
        session.headers["Authorization"] = f"Bearer {token}"
    return session
