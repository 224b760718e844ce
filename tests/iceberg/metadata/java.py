"""Iceberg's Java library as a second opinion, where it is installed beside a Java runtime.

It is not part of `make setup`: the jar is large. What it takes: Java 17, `pip install pyspark==3.5.8` and
`pip install --no-deps snowpark-connect-deps-iceberg==1.0.2`.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from typing import Any

MISSING = [name for name in ("pyspark", "py4j", "snowpark_connect_deps_iceberg") if not importlib.util.find_spec(name)]
if not shutil.which("java"):
    MISSING.append("java")


def _inside(package: str, pattern: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return glob.glob(os.path.join(spec.submodule_search_locations[0], "jars", pattern))


class Refused(Exception):
    """Java's no: its exception's class, and what it says."""


class Java:
    """One Java process that builds metadata."""

    def __init__(self) -> None:
        py4j = importlib.import_module("py4j.java_gateway")
        jars = _inside("snowpark_connect_deps_iceberg", "iceberg-spark-runtime-3.5_2.12-*.jar")
        jars += [jar for name in ("slf4j-api", "hadoop-client-*") for jar in _inside("pyspark", f"{name}-[0-9]*.jar")]
        jars += _inside("pyspark", "hadoop-client-*.jar")
        port, token = py4j.launch_gateway(classpath=os.pathsep.join(jars), die_on_exit=True, enable_auth=True)
        self.gateway = py4j.JavaGateway(gateway_parameters=py4j.GatewayParameters(port=port, auth_token=token))
        self.iceberg = self.gateway.jvm.org.apache.iceberg

    def table(self, base: dict[str, Any], location: str, updates: list[dict[str, Any]]) -> dict[str, Any]:
        parser = self.iceberg.TableMetadataParser
        metadata = parser.fromJson(location, json.dumps(base))
        return self._built(self.iceberg.TableMetadata.buildFrom(metadata), updates, parser)

    def new_table(self, request: dict[str, Any], location: str) -> dict[str, Any]:
        """What its catalogs make of a CreateTableRequest."""
        properties = self.gateway.jvm.java.util.HashMap()
        for key, value in request["properties"].items():
            properties.put(key, value)

        def build() -> Any:
            schema = self.iceberg.SchemaParser.fromJson(json.dumps(request["schema"]))
            spec = self.iceberg.PartitionSpecParser.fromJson(schema, json.dumps(request["partition-spec"]))
            order = self.iceberg.SortOrderParser.fromJson(schema, json.dumps(request["write-order"]))
            return self.iceberg.TableMetadata.newTableMetadata(schema, spec, order, location, properties)

        return self._asked(build, self.iceberg.TableMetadataParser)

    def view(self, base: dict[str, Any], updates: list[dict[str, Any]]) -> dict[str, Any]:
        parser = self.iceberg.view.ViewMetadataParser
        builder = self.iceberg.view.ViewMetadata.buildFrom(parser.fromJson(json.dumps(base)))
        return self._built(builder, updates, parser)

    def read_table(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Our metadata as Java reads and writes it."""
        parser = self.iceberg.TableMetadataParser
        read: dict[str, Any] = json.loads(parser.toJson(parser.fromJson(json.dumps(metadata))))
        return read

    def read_view(self, metadata: dict[str, Any]) -> dict[str, Any]:
        parser = self.iceberg.view.ViewMetadataParser
        read: dict[str, Any] = json.loads(parser.toJson(parser.fromJson(json.dumps(metadata))))
        return read

    def _built(self, builder: Any, updates: list[dict[str, Any]], parser: Any) -> dict[str, Any]:
        def build() -> Any:
            for update in updates:
                self.iceberg.MetadataUpdateParser.fromJson(json.dumps(update)).applyTo(builder)
            return builder.build()

        return self._asked(build, parser)

    def _asked(self, build: Callable[[], Any], parser: Any) -> dict[str, Any]:
        failed: type[Any] = importlib.import_module("py4j.protocol").Py4JJavaError
        try:
            result: dict[str, Any] = json.loads(parser.toJson(build()))
        except failed as error:
            thrown = error.java_exception
            raise Refused(thrown.getClass().getSimpleName(), thrown.getMessage()) from None
        return result

    def close(self) -> None:
        self.gateway.shutdown()
