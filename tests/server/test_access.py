"""Who may ask what."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from takehold import BackendUnavailable, UsageError
from takehold.server import Access, Serving
from takehold.server.access import is_loopback
from takehold.server.serving import Plan, checked
from tests.server.http import Http

READ, WRITE, ADMIN = (f"{word}-0123456789abcdef" for word in ("read", "write", "admin"))
LINES = f"# the tokens of the tests\nread {READ}\nwrite {WRITE}\n\nadmin {ADMIN}\n"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(LINES)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def guarded(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(f"{tmp_path_factory.mktemp('lake')}/lake", token_file=str(tokens)) as running:
        yield running


def status(server: Serving, token: str | None, method: str, path: str, body: object = None) -> int:
    with Http(server.uri) as http:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return http.ask(method, path, body, **headers).status


NAMESPACES = "/v1/main/namespaces"


@pytest.mark.parametrize(
    ("method", "path", "body", "allowed"),
    [
        ("GET", "/healthz", None, {None: 200, "x": 200, READ: 200}),
        ("GET", "/v1/config", None, {None: 401, "x": 401, READ: 200, WRITE: 200}),
        ("GET", "/metrics", None, {None: 401, READ: 200}),
        ("GET", "/contention", None, {None: 401, READ: 200}),
        ("GET", NAMESPACES, None, {None: 401, READ: 200, WRITE: 200, ADMIN: 200}),
        ("POST", NAMESPACES, {"namespace": []}, {None: 401, READ: 403, WRITE: 400, ADMIN: 400}),
        ("DELETE", f"{NAMESPACES}/x", None, {None: 401, READ: 403, WRITE: 404}),
        ("POST", "/v1/main/transactions/commit", {}, {READ: 403, WRITE: 400}),
        ("GET", "/v1/warehouses", None, {READ: 403, WRITE: 403, ADMIN: 200}),
        ("POST", "/v1/warehouses", {}, {READ: 403, WRITE: 403, ADMIN: 400}),
        ("DELETE", "/v1/warehouses/x", None, {WRITE: 403, ADMIN: 404}),
    ],
)
def test_a_token_may_do_what_its_scope_says(
    guarded: Serving, method: str, path: str, body: object, allowed: dict[str | None, int]
) -> None:
    assert {token: status(guarded, token, method, path, body) for token in allowed} == allowed


def test_refusals_have_javas_types(guarded: Serving) -> None:
    with Http(guarded.uri) as http:
        refused = http.get("/v1/config")
        assert refused.error == (401, "NotAuthorizedException")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert http.get("/v1/warehouses", Authorization=f"Bearer {READ}").error == (403, "ForbiddenException")
        assert http.get("/v1/config", Authorization=f"Basic {READ}").status == 401


def test_a_client_secret_is_exchanged_for_the_token_it_is(guarded: Serving) -> None:
    form = f"grant_type=client_credentials&client_id=me&client_secret={READ}&scope=catalog".encode()
    with Http(guarded.uri) as http:
        assert http.post("/v1/oauth/tokens", form).json["access_token"] == READ
        assert http.post("/v1/oauth/tokens", form.replace(b"read-", b"none-")).status == 401
        assert http.post("/v1/oauth/tokens", b"\xff").status == 400


class TestWithoutTokens:
    def test_a_web_page_of_somebody_else_is_refused(self, http: Http) -> None:
        assert http.get("/v1/config", Origin="http://example.com").error == (403, "ForbiddenException")
        assert http.get("/v1/config", Origin="null").status == 403
        assert http.get("/metrics", Origin="http://example.com").status == 403
        assert http.get("/v1/config", Origin="http://localhost:3000").status == 200

    def test_a_name_that_was_pointed_at_this_machine_is_refused(self, http: Http) -> None:
        assert http.get("/v1/config", Host="example.com:8181").error == (403, "ForbiddenException")
        assert http.get("/v1/config", Host="127.0.0.1.example.com").status == 403
        assert http.get("/v1/config", Host="[::1]:8181").status == 200

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", "127.example.com"])
    def test_an_address_that_others_reach_is_refused(self, host: str) -> None:
        assert not is_loopback(host)
        with pytest.raises(UsageError, match="--token-file"):
            checked(Plan("memory:", host=host))

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
    def test_loopback_is_not(self, host: str) -> None:
        checked(Plan("memory:", host=host))


class TestTokenFile:
    def test_one_that_others_can_read_is_refused(self, tokens: Path, tmp_path: Path) -> None:
        path = tmp_path / "open"
        path.write_text(LINES)
        path.chmod(0o640)
        with pytest.raises(UsageError, match="can be read by others: chmod 600"):
            Access.of_file(str(path))

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", "there is no token"),
            ("write", "line 1 .* is not understood"),
            ("root 0123456789abcdef0", "line 1 .* is not understood"),
            ("read 0123456789abcdef0 more", "line 1 .* is not understood"),
            ("read 0123456789abcdef0\nwrite short", "line 2 .* is shorter than 16"),
        ],
    )
    def test_one_that_is_not_understood_is_refused_and_no_secret_is_told(
        self, tmp_path: Path, text: str, why: str
    ) -> None:
        path = tmp_path / "tokens"
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(UsageError, match=why) as caught:
            Access.of_file(str(path))
        assert "0123456789" not in str(caught.value)
        assert "short " not in str(caught.value)

    def test_one_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be read"):
            Access.of_file(str(tmp_path / "none"))


def test_no_token_is_ever_logged(tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Serving(f"{tmp_path}/lake", token_file=str(tokens)) as server:
        for token in (READ, ADMIN, "wrong-0123456789"):
            status(server, token, "GET", f"/v1/config?warehouse=main&token={token}")
            status(server, token, "POST", "/v1/oauth/tokens", f"grant_type=x&client_secret={token}".encode())
            status(server, token, "POST", NAMESPACES, {"namespace": ["a"], "properties": {"token": token}})
    assert "0123456789" not in caplog.text


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BackendUnavailable, match="cannot listen"):
            Serving("memory:", port=taken.getsockname()[1])
