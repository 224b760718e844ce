"""What the REST specification asks of a server, one sentence each."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.http import SCHEMA, VIEW, Answer, Http, change

ROOT = "/v1/main/namespaces"


@pytest.fixture
def ns(http: Http) -> str:
    return http.namespace()


class TestConfig:
    def test_it_names_the_prefix_the_endpoints_and_how_long_a_key_is_remembered(self, http: Http) -> None:
        found = http.get("/v1/config?warehouse=main").json
        assert found["overrides"] == {"prefix": "main"}
        assert found["idempotency-key-lifetime"] == "PT30M"
        assert {
            "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
            "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}",
            "POST /v1/{prefix}/transactions/commit",
            "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/unregister",
        } <= set(found["endpoints"])
        assert not [one for one in found["endpoints"] if "/plan" in one or "credentials" in one or "functions" in one]

    def test_a_client_that_names_no_warehouse_gets_the_default_one(self, http: Http) -> None:
        assert http.get("/v1/config").json["overrides"] == {"prefix": "main"}

    def test_a_warehouse_can_be_named_by_its_location(self, http: Http) -> None:
        location = http.get("/v1/warehouses/main").json["location"]
        assert http.get(f"/v1/config?warehouse={location}").json["overrides"] == {"prefix": "main"}

    def test_a_warehouse_that_is_not_there_is_a_404_of_its_own_type(self, http: Http) -> None:
        assert http.get("/v1/config?warehouse=none").error == (404, "NoSuchWarehouseException")

    def test_every_advertised_endpoint_is_described_and_every_path_of_the_description_answers(self, http: Http) -> None:
        described = http.get("/openapi.json").json["paths"]
        for one in http.get("/v1/config").json["endpoints"]:
            method, path = one.split(" ")
            assert method.lower() in described[path]
        for path, methods in described.items():
            for method in methods:
                nowhere = re.sub(r"{[^}]+}", "none", path)
                answer = http.ask(method.upper(), nowhere, {} if method == "post" else None)
                assert answer.status in (200, 400, 404, 406), (method, path, answer)


class TestNamespaces:
    def test_it_is_made_loaded_changed_and_dropped(self, http: Http, ns: str) -> None:
        one = f"{ROOT}/{ns}"
        changed = http.post(f"{one}/properties", {"updates": {"a": "1", "b": "2"}, "removals": ["c"]})
        assert changed.json == {"updated": ["a", "b"], "removed": [], "missing": ["c"]}
        assert http.get(one).json == {"namespace": [ns], "properties": {"a": "1", "b": "2"}}
        assert http.ask("HEAD", one).status == 204
        assert (http.ask("DELETE", one).status, http.ask("HEAD", one).status) == (204, 404)

    def test_errors_have_javas_types(self, http: Http, ns: str) -> None:
        assert http.post(ROOT, {"namespace": [ns]}).error == (409, "AlreadyExistsException")
        assert http.get(f"{ROOT}/none").error == (404, "NoSuchNamespaceException")
        assert http.get(f"{ROOT}?parent=none").error == (404, "NoSuchNamespaceException")
        both = {"updates": {"a": "1"}, "removals": ["a"]}
        assert http.post(f"{ROOT}/{ns}/properties", both).error == (422, "UnprocessableEntityException")
        http.table(ns)
        assert http.ask("DELETE", f"{ROOT}/{ns}").error == (409, "NamespaceNotEmptyException")

    def test_nested_ones_are_reached_with_the_separator_and_listed_below_their_parent(
        self, http: Http, ns: str
    ) -> None:
        for levels in ([ns, "b c"], [ns, "b c", "d/e+f"]):
            assert http.post(ROOT, {"namespace": levels}).status == 200
        assert http.get(f"{ROOT}/{ns}%1Fb%20c").json["namespace"] == [ns, "b c"]
        assert http.get(f"{ROOT}/{ns}%1Fb+c").json["namespace"] == [ns, "b c"]  # as Java writes it
        assert http.get(f"{ROOT}/{ns}%1Fb%20c%1Fd%2Fe%2Bf").json["namespace"] == [ns, "b c", "d/e+f"]
        assert http.get(f"{ROOT}?parent={ns}").json["namespaces"] == [[ns, "b c"]]
        # PyIceberg encodes the levels of a parent once more, Java does not.
        for parent in (f"{ns}%1Fb%2520c", f"{ns}%1Fb%20c"):
            assert http.get(f"{ROOT}?parent={parent}").json["namespaces"] == [[ns, "b c", "d/e+f"]]
        odd = [ns, "b c", "d/e+f", "50%25+"]
        assert http.post(ROOT, {"namespace": odd}).status == 200
        for parent in (f"{ns}%1Fb%2520c%1Fd%252Fe%252Bf", f"{ns}%1Fb%20c%1Fd%2Fe%2Bf"):
            assert http.get(f"{ROOT}?parent={parent}").json["namespaces"] == [odd]


class TestTables:
    def test_it_is_made_loaded_listed_and_dropped(self, http: Http, ns: str) -> None:
        made = http.table(ns)
        one = f"{ROOT}/{ns}/tables/t"
        loaded = http.get(one).json
        assert loaded["metadata"] == made["metadata"]
        assert loaded["metadata-location"] == made["metadata-location"]
        assert http.ask("HEAD", one).status == 204
        assert http.get(f"{ROOT}/{ns}/tables").json == {
            "identifiers": [{"namespace": [ns], "name": "t"}],
            "next-page-token": None,
        }
        assert http.ask("DELETE", f"{one}?purgeRequested=false").status == 204
        assert http.ask("HEAD", one).status == 404
        assert http.ask("HEAD", one).body == b""

    def test_a_table_in_a_namespace_that_is_not_there_is_a_missing_table(self, http: Http, ns: str) -> None:
        # Spark resolves `db.table.branch_x` with this answer.
        assert http.get(f"{ROOT}/none/tables/t").error == (404, "NoSuchTableException")
        assert http.get(f"{ROOT}/{ns}/tables/t").error == (404, "NoSuchTableException")
        assert http.get(f"{ROOT}/{ns}/tables/t").json["error"]["message"] == f"Table does not exist: {ns}.t"
        assert http.get(f"{ROOT}/none/tables").error == (404, "NoSuchNamespaceException")

    def test_a_staged_one_has_no_location_and_goes_live_with_its_first_commit(self, http: Http, ns: str) -> None:
        staged = http.table(ns, "t", **{"stage-create": True})
        assert staged["metadata-location"] is None
        assert http.ask("HEAD", f"{ROOT}/{ns}/tables/t").status == 404
        # Clients that write files of this host expect these to be there.
        place = Path(staged["metadata"]["location"].removeprefix("file://"))
        assert sorted(one.name for one in place.iterdir()) == ["data", "metadata"]
        metadata = staged["metadata"]
        updates = [
            {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
            {"action": "upgrade-format-version", "format-version": 2},
            {"action": "add-schema", "schema": metadata["schemas"][0], "last-column-id": 1},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": metadata["location"]},
        ]
        done = http.post(f"{ROOT}/{ns}/tables/t", {"requirements": [{"type": "assert-create"}], "updates": updates})
        assert done.status == 200, done.body
        assert done.json["metadata"]["table-uuid"] == metadata["table-uuid"]

    def test_an_unknown_update_is_a_400_and_a_failed_requirement_a_409(self, http: Http, ns: str) -> None:
        http.table(ns)
        one = f"{ROOT}/{ns}/tables/t"
        assert http.post(one, {"updates": [{"action": "make-coffee"}]}).error == (400, "BadRequestException")
        assert http.post(one, {"requirements": [{"type": "assert-tea"}]}).error == (400, "BadRequestException")
        wrong = {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
        refused = http.post(one, {"requirements": [wrong], "updates": []})
        assert refused.error == (409, "CommitFailedException")
        assert "Requirement failed: UUID does not match" in refused.json["error"]["message"]

    def test_a_commit_without_requirements_and_updates_changes_nothing(self, http: Http, ns: str) -> None:
        made = http.table(ns)
        answered = http.post(f"{ROOT}/{ns}/tables/t", {"properties": {"owner": "me"}})  # what iceberg-js sends
        assert answered.status == 200
        assert answered.json["metadata-location"] == made["metadata-location"]

    def test_it_is_renamed_and_a_taken_name_is_refused(self, http: Http, ns: str) -> None:
        http.table(ns, "a")
        http.table(ns, "b")

        def rename(source: str, target: str, where: str = ns) -> Answer:
            return http.post(
                "/v1/main/tables/rename",
                {
                    "source": {"namespace": [ns], "name": source},
                    "destination": {"namespace": [where], "name": target},
                },
            )

        assert rename("a", "b").error == (409, "AlreadyExistsException")
        assert rename("none", "c").error == (404, "NoSuchTableException")
        assert rename("a", "c", "none").error == (404, "NoSuchNamespaceException")
        assert rename("a", "c").status == 204
        assert [one["name"] for one in http.get(f"{ROOT}/{ns}/tables").json["identifiers"]] == ["b", "c"]

    def test_it_is_unregistered_and_registered_again(self, http: Http, ns: str) -> None:
        made = http.table(ns)
        gone = http.post(f"{ROOT}/{ns}/tables/t/unregister", {})
        assert gone.json["metadata-location"] == made["metadata-location"]
        assert http.set(ns, "t", a="1").error == (404, "NoSuchTableException")
        back = {"name": "again", "metadata-location": made["metadata-location"]}
        assert http.post(f"{ROOT}/{ns}/register", back).json["metadata"] == made["metadata"]
        assert http.post(f"{ROOT}/{ns}/register", back).error == (409, "AlreadyExistsException")
        newer = http.set(ns, "again", a="1").json
        assert http.post(f"{ROOT}/{ns}/register", {**back, "overwrite": True}).json["metadata"] == made["metadata"]
        assert newer["metadata-location"] != http.get(f"{ROOT}/{ns}/tables/again").json["metadata-location"]

    def test_a_metrics_report_is_taken(self, http: Http, ns: str) -> None:
        http.table(ns)
        report = {"report-type": "scan-report", "table-name": "t", "snapshot-id": 1}
        assert http.post(f"{ROOT}/{ns}/tables/t/metrics", report).status == 204
        assert http.post(f"{ROOT}/{ns}/tables/none/metrics", report).error == (404, "NoSuchTableException")


class TestLoading:
    def test_a_client_that_has_the_newest_metadata_is_told_so(self, http: Http, ns: str) -> None:
        http.table(ns)
        one = f"{ROOT}/{ns}/tables/t"
        tag = http.get(one).headers["etag"]
        same = http.get(one, If_None_Match=tag)
        assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
        assert http.get(one, If_None_Match=f'"other", W/{tag}').status == 304
        assert http.set(ns, "t", a="1").headers["etag"] != tag
        assert http.get(one, If_None_Match=tag).status == 200

    def test_refs_has_its_own_tag_and_leaves_out_what_no_ref_names(self, http: Http, ns: str) -> None:
        http.table(ns)
        one = f"{ROOT}/{ns}/tables/t"
        for number in (1, 2):
            snapshot = {
                "snapshot-id": number, "sequence-number": number, "timestamp-ms": int(time.time() * 1000),
                "manifest-list": "s", "summary": {"operation": "append"}, "schema-id": 0,
                **({"parent-snapshot-id": 1} if number == 2 else {}),
            }  # fmt: skip
            updates = [
                {"action": "add-snapshot", "snapshot": snapshot},
                {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
            ]
            done = http.post(one, {"requirements": [], "updates": updates})
            assert done.status == 200, done.body
        every, named = http.get(f"{one}?snapshots=all"), http.get(f"{one}?snapshots=refs")
        assert [one["snapshot-id"] for one in every.json["metadata"]["snapshots"]] == [1, 2]
        assert [one["snapshot-id"] for one in named.json["metadata"]["snapshots"]] == [2]
        assert every.headers["etag"] != named.headers["etag"]
        assert http.get(f"{one}?snapshots=none").error == (400, "BadRequestException")


class TestPages:
    @pytest.fixture
    def full(self, http: Http, ns: str) -> str:
        for number in range(5):
            http.table(ns, f"t{number}")
        return f"{ROOT}/{ns}/tables"

    def names(self, answer: Answer) -> list[str]:
        return [one["name"] for one in answer.json["identifiers"]]

    def pages(self, http: Http, url: str) -> Iterator[list[str]]:
        token = ""
        while token is not None:
            answer = http.get(f"{url}?pageSize=2&pageToken={token}")
            yield self.names(answer)
            token = answer.json["next-page-token"]

    def test_without_a_token_everything_comes_at_once(self, http: Http, full: str) -> None:
        answer = http.get(f"{full}?pageSize=2")
        assert (len(self.names(answer)), answer.json["next-page-token"]) == (5, None)

    def test_an_empty_token_begins_with_the_first_page(self, http: Http, full: str) -> None:
        assert list(self.pages(http, full)) == [["t0", "t1"], ["t2", "t3"], ["t4"]]
        assert len(self.names(http.get(f"{full}?pageToken="))) == 5

    def test_what_is_dropped_and_made_meanwhile_shifts_nothing(self, http: Http, full: str) -> None:
        pages = self.pages(http, full)
        assert next(pages) == ["t0", "t1"]
        assert http.ask("DELETE", f"{full}/t0").status == 204
        assert http.post(full, {"name": "t1b", "schema": SCHEMA}).status == 200
        assert list(pages) == [["t1b", "t2"], ["t3", "t4"]]

    def test_namespaces_have_pages_too(self, http: Http, ns: str) -> None:
        for name in ("a", "b", "c"):
            http.post(ROOT, {"namespace": [ns, name]})
        first = http.get(f"{ROOT}?parent={ns}&pageSize=2&pageToken=").json
        assert first["namespaces"] == [[ns, "a"], [ns, "b"]]
        last = http.get(f"{ROOT}?parent={ns}&pageSize=2&pageToken={first['next-page-token']}").json
        assert last == {"namespaces": [[ns, "c"]], "next-page-token": None}

    @pytest.mark.parametrize("query", ["pageToken=%00", "pageToken=e30", "pageSize=0", "pageSize=x&pageToken="])
    def test_a_token_or_size_that_is_none_is_refused(self, http: Http, full: str, query: str) -> None:
        assert http.get(f"{full}?{query}").error == (400, "BadRequestException")


class TestViews:
    def test_it_is_made_loaded_replaced_renamed_and_dropped(self, http: Http, ns: str) -> None:
        views = f"{ROOT}/{ns}/views"
        made = http.post(views, VIEW)
        assert made.status == 200, made.body
        assert http.get(f"{views}/v").json["metadata"] == made.json["metadata"]
        uuid = made.json["metadata"]["view-uuid"]
        update = {
            "requirements": [{"type": "assert-view-uuid", "uuid": uuid}],
            "updates": [{"action": "set-properties", "updates": {"comment": "x"}}],
        }
        assert http.post(f"{views}/v", update).json["metadata"]["properties"] == {"comment": "x"}
        names = {"source": {"namespace": [ns], "name": "v"}, "destination": {"namespace": [ns], "name": "w"}}
        assert http.post("/v1/main/views/rename", names).status == 204
        assert http.get(views).json["identifiers"] == [{"namespace": [ns], "name": "w"}]
        assert http.ask("HEAD", f"{views}/w").status == 204
        assert http.ask("DELETE", f"{views}/w").status == 204
        assert http.get(f"{views}/w").error == (404, "NoSuchViewException")

    def test_a_view_and_a_table_cannot_have_one_name(self, http: Http, ns: str) -> None:
        http.table(ns, "v")
        assert http.post(f"{ROOT}/{ns}/views", VIEW).error == (409, "AlreadyExistsException")


class TestTransactions:
    def test_several_tables_change_together(self, http: Http, ns: str) -> None:
        http.table(ns, "a")
        http.table(ns, "b")
        done = http.post(
            "/v1/main/transactions/commit", {"table-changes": [change(ns, "a", x="1"), change(ns, "b", x="1")]}
        )
        assert (done.status, done.body) == (204, b"")
        assert http.properties(ns, "a")["x"] == http.properties(ns, "b")["x"] == "1"

    def test_a_requirement_that_fails_on_one_changes_none(self, http: Http, ns: str) -> None:
        http.table(ns, "a")
        http.table(ns, "b")
        bad = change(ns, "b", x="1")
        bad["requirements"] = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 42}]
        body = {"table-changes": [change(ns, "a", x="1"), bad]}
        assert http.post("/v1/main/transactions/commit", body).error == (409, "CommitFailedException")
        assert "x" not in http.properties(ns, "a")

    def test_a_table_that_is_not_there_changes_none(self, http: Http, ns: str) -> None:
        http.table(ns, "a")
        body = {"table-changes": [change(ns, "a", x="1"), change(ns, "none", x="1")]}
        assert http.post("/v1/main/transactions/commit", body).error == (404, "NoSuchTableException")
        assert "x" not in http.properties(ns, "a")

    def test_a_change_without_an_identifier_is_a_400(self, http: Http) -> None:
        bad: list[object] = [[{"updates": []}], [], None, "x"]
        for changes in bad:
            refused = http.post("/v1/main/transactions/commit", {"table-changes": changes})
            assert refused.error == (400, "BadRequestException")


class TestPaths:
    def test_what_is_not_supported_says_so(self, http: Http, ns: str) -> None:
        for method, rest in (("POST", "plan"), ("GET", "plan/1"), ("POST", "tasks"), ("GET", "credentials")):
            path = f"{ROOT}/{ns}/tables/t/{rest}"
            assert http.ask(method, path, {} if method == "POST" else None).error == (
                406,
                "UnsupportedOperationException",
            )
        assert http.get(f"{ROOT}/{ns}/functions").error == (406, "UnsupportedOperationException")

    def test_a_path_or_method_that_is_not_there_is_a_typed_error(self, http: Http) -> None:
        assert http.get("/v1/main/tea").error == (404, "NoSuchEndpointException")
        assert http.get("/v1").status == 404
        assert http.ask("PUT", ROOT, {}).error == (405, "MethodNotAllowedException")
        assert http.ask("PUT", ROOT, {}).headers["allow"] == "GET, POST"

    def test_a_client_that_knows_no_prefix_reaches_the_default_warehouse(self, http: Http, ns: str) -> None:
        assert http.get(f"/v1/namespaces/{ns}").json["namespace"] == [ns]

    def test_a_name_with_a_slash_is_one_name(self, http: Http, ns: str) -> None:
        http.table(ns, "a/b")
        assert http.get(f"{ROOT}/{ns}/tables/a%2Fb").status == 200


class TestWarehouses:
    @pytest.mark.covers("M-53")
    def test_they_are_made_listed_shown_and_deleted(self, http: Http) -> None:
        made = http.post("/v1/warehouses", {"name": "eu west"}).json
        assert http.get("/v1/warehouses/eu%20west").json == made
        assert made in http.get("/v1/warehouses").json["warehouses"]
        assert http.get("/v1/config?warehouse=eu+west").json["overrides"] == {"prefix": "eu%20west"}
        assert http.post("/v1/eu%20west/namespaces", {"namespace": ["n"]}).status == 200
        assert http.ask("DELETE", "/v1/warehouses/eu%20west").error == (409, "WarehouseNotEmptyException")
        assert http.ask("DELETE", "/v1/eu%20west/namespaces/n").status == 204
        assert http.ask("DELETE", "/v1/warehouses/eu%20west").status == 204
        assert http.get("/v1/warehouses/eu%20west").error == (404, "NoSuchWarehouseException")

    def test_a_name_that_no_path_could_reach_is_refused(self, http: Http) -> None:
        assert http.post("/v1/warehouses", {"name": "namespaces"}).error == (400, "BadRequestException")


def test_metrics_count_requests_and_where_they_met(http: Http, ns: str) -> None:
    http.table(ns)
    http.set(ns, "t", a="1")
    text = http.get("/metrics").body.decode()
    assert 'takehold_http_requests_total{operation="updateTable",status="200"}' in text
    assert 'takehold_iceberg_losses_total{resource="pointer cas"}' in text
    assert set(http.get("/contention").json["shard"]) >= {"waits", "wait_seconds", "timeouts", "conflicts"}


def test_health_says_which_locks_are_in_use(http: Http) -> None:
    assert http.get("/healthz").json["status"] == "ok"
    assert http.get("/healthz").json["locks"] == "local"


def test_an_answer_is_one_json_document(http: Http) -> None:
    answer = http.get("/v1/config")
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(json.dumps(answer.json, separators=(",", ":")).encode())
