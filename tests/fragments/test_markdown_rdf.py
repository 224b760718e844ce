"""The example: Markdown to RDF, as its README says to run it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fragments.site import ROOT, Site

EXAMPLE = ROOT / "examples" / "markdown-rdf"
DOCS = "urn:corpus:corpus/"

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def takehold(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "takehold", "fragments", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_corpus_becomes_turtle_and_only_what_changes_is_extracted_again(site: Site, tmp_path: Path) -> None:
    from rdflib import DCTERMS, RDF, Graph, Literal, URIRef

    shutil.rmtree(site.folder)
    shutil.copytree(EXAMPLE / "corpus", site.folder)
    site.query("DROP TABLE IF EXISTS triples")
    run = ("run", f"{EXAMPLE}/pipeline.py:pipeline", str(site.folder), "--url", site.url, "--attempts", "1")
    replicas = [takehold(*run) for _ in range(2)]
    answers = [replica.communicate(timeout=100) for replica in replicas]
    assert [replica.returncode for replica in replicas] == [1, 1], answers
    errors = "".join(error for _, error in answers)
    assert "corpus/guides/use.md#use/broken-on-purpose" in errors
    assert "links lead to https, mailto or another document" in errors

    def exported() -> Graph:
        export = [sys.executable, "-W", "ignore", f"{EXAMPLE}/pipeline.py", site.url]
        done = subprocess.run(export, capture_output=True, text=True, check=True)
        return Graph().parse(data=done.stdout, format="turtle")

    graph = exported()
    install, index = URIRef(DOCS + "guides/install.md"), URIRef(DOCS + "index.md")
    linux = URIRef(DOCS + "guides/install.md#install/on-linux")
    md = "urn:markdown-rdf:"
    assert (linux, DCTERMS.isPartOf, install) in graph
    assert (linux, DCTERMS.title, Literal("On Linux")) in graph
    assert (linux, URIRef(md + "codeIn"), Literal("sh")) in graph
    assert (linux, URIRef(md + "mentionsCode"), Literal("takehold.fragments.Worker")) in graph
    assert (linux, URIRef(md + "linksTo"), URIRef(DOCS + "guides/use.md#first-run")) in graph
    assert (index, RDF.type, URIRef(md + "Document")) in graph
    assert str(graph.value(index, DCTERMS.date)) == "2026-11-18"
    assert {str(tag) for tag in graph.objects(index, DCTERMS.subject)} == {"locks", "overview"}
    assert (URIRef(DOCS + "guides/use.md"), None, None) not in graph
    assert len(set(graph.subjects(RDF.type, URIRef(md + "Section")))) == 7

    guide = site.folder / "guides" / "use.md"
    guide.write_text(guide.read_text().replace("ftp://", "https://").replace("Back to", "Go back to"))
    again = takehold(*run, "--json")
    out, error = again.communicate(timeout=100)
    assert again.returncode == 0, (out, error)
    assert '"done": 2' in out
    assert len(set(exported().subjects(RDF.type, URIRef(md + "Section")))) == 8
