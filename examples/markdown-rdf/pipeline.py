"""Markdown documents as RDF: a fragment per section, validated with SHACL, kept in a table, exported as Turtle.

takehold fragments run pipeline.py:pipeline corpus/ --url sqlite:///triples.db
python pipeline.py sqlite:///triples.db > corpus.ttl
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import quote

import yaml
from pyshacl import validate as conforms_to
from rdflib import DCTERMS, RDF, Graph, Literal, Namespace, URIRef
from sqlalchemy import Column, Connection, Index, Integer, MetaData, Table, Text, create_engine, delete, insert, select

from takehold.fragments import Fragment, Pipeline

MD = Namespace("urn:markdown-rdf:")
CORPUS = "urn:corpus:"
SHAPES = Graph().parse(Path(__file__).parent / "shapes.ttl")
SHACL = threading.Lock()  # one graph of shapes, and pyshacl does not say that threads may share it

metadata = MetaData()
triples = Table(
    "triples",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("fragment", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("predicate", Text, nullable=False),
    Column("object", Text, nullable=False, comment="in N-Triples, as the others are"),
    Index("triples_of_fragment", "fragment"),
    Index("triples_by_subject", "subject", "predicate"),
)

HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
CODE_BLOCK = re.compile(r"^ {0,3}(```+|~~~+)[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)
CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
NAME = re.compile(r"[A-Za-z_][\w.]*(?:\(\))?")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(<?([^()\s>]+)>?(?:\s+[\"'][^)]*)?\)")
AUTOLINK = re.compile(r"<(https?://[^\s<>]+|mailto:[^\s<>]+)>")


# -- extract -------------------------------------------------------------------------------------------------


def extract(fragment: Fragment) -> Graph:
    """The triples of one section, or of what stands before the first."""
    graph = Graph()
    document = iri(fragment.corpus, fragment.document)
    if fragment.name == "front":
        head, text = front_matter(fragment.content)
        about = document
        graph.add((document, RDF.type, MD.Document))
        for predicate, value in described(head):
            graph.add((document, predicate, value))
    else:
        first, _, text = fragment.content.partition("\n")
        heading = HEADING.match(first)
        assert heading is not None, first
        about = URIRef(f"{document}#{quote(fragment.name)}")
        graph.add((about, RDF.type, MD.Section))
        graph.add((about, DCTERMS.isPartOf, document))
        graph.add((about, MD.level, Literal(len(heading[1]))))
        graph.add((about, DCTERMS.title, Literal(plain(heading[2]))))
    for block in CODE_BLOCK.finditer(text):
        graph.add((about, MD.codeIn, Literal(block[2].lower() or "text")))
    prose = CODE_BLOCK.sub("", text)
    for span in CODE_SPAN.findall(prose):
        if NAME.fullmatch(span):
            graph.add((about, MD.mentionsCode, Literal(span)))
    for target in links(CODE_SPAN.sub("", prose)):
        graph.add((about, MD.linksTo, resolved(fragment, target)))
    return graph


def iri(corpus: str, document: str) -> URIRef:
    """The name of a document."""
    return URIRef(CORPUS + quote(f"{corpus}/{document}"))


def front_matter(content: str) -> tuple[dict[str, Any], str]:
    """What stands between the first two lines of dashes, as YAML, and what follows."""
    if not content.startswith("---\n"):
        return {}, content
    head, _, text = content[4:].partition("\n---")
    found = yaml.safe_load(head)
    if not isinstance(found, dict):
        raise TypeError("the front matter is no mapping")
    return found, text


def described(head: dict[str, Any]) -> Iterator[tuple[URIRef, Literal]]:
    """What we understand of a front matter."""
    for name, predicate in (("title", DCTERMS.title), ("author", DCTERMS.creator), ("date", DCTERMS.date)):
        for value in several(head.get(name)):
            yield predicate, Literal(value if isinstance(value, date) else str(value))
    for tag in several(head.get("tags")):
        yield DCTERMS.subject, Literal(str(tag))


def several(value: Any) -> list[Any]:
    """None, one, or a list of them."""
    return [] if value is None else value if isinstance(value, list) else [value]


def plain(title: str) -> str:
    """A heading without its marks."""
    return CODE_SPAN.sub(r"\1", LINK.sub(r"\2", title)).replace("**", "").strip()


def links(prose: str) -> Iterator[str]:
    """Where links and autolinks lead; pictures are none."""
    yield from (target for picture, _, target in LINK.findall(prose) if not picture)
    yield from AUTOLINK.findall(prose)


def resolved(fragment: Fragment, target: str) -> URIRef:
    """An address as it is, a path from the document it stands in."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return URIRef(quote(target, safe=":/?#[]@!$&'()*+,;=%~"))
    path, hash_sign, anchor = target.partition("#")
    document = normpath(join(dirname(fragment.document), path)) if path else fragment.document
    return URIRef(f"{iri(fragment.corpus, document)}{hash_sign}{quote(anchor)}")


# -- validate, write, remove -------------------------------------------------------------------------------------


def validate(fragment: Fragment, graph: Graph) -> None:
    """Refuse what the shapes do not allow; nothing of the fragment is written then."""
    with SHACL:
        conforms, report, _ = conforms_to(graph, shacl_graph=SHAPES, inference="none", advanced=False)
    if not conforms:
        messages = {
            str(message) for message in report.objects(None, URIRef("http://www.w3.org/ns/shacl#resultMessage"))
        }
        raise ValueError("; ".join(sorted(messages)))


def prepare(connection: Connection) -> None:
    """Make the table of triples."""
    metadata.create_all(connection)


def write(connection: Connection, results: Sequence[tuple[Fragment, Graph]]) -> None:
    """The triples of these fragments."""
    rows = [
        {"fragment": fragment.identity, "subject": s.n3(), "predicate": p.n3(), "object": o.n3()}
        for fragment, graph in results
        for s, p, o in graph
    ]
    if rows:
        connection.execute(insert(triples), rows)


def remove(connection: Connection, identities: Sequence[str]) -> None:
    """The triples of these fragments go."""
    connection.execute(delete(triples).where(triples.c.fragment.in_(list(identities))))


pipeline = Pipeline("markdown-rdf/1", extract, write, remove, validate=validate, prepare=prepare)


# -- export ------------------------------------------------------------------------------------------------------


def export(url: str) -> Graph:
    """Everything in the table, as one graph."""
    engine = create_engine(re.sub(r"^postgres(ql)?:", "postgresql+psycopg:", url))
    graph = Graph()
    graph.bind("md", MD)
    graph.bind("dcterms", DCTERMS)
    with engine.connect() as connection:
        columns = (triples.c.subject, triples.c.predicate, triples.c.object)
        lines = [f"{' '.join(row)} ." for row in connection.execute(select(*columns).distinct())]
    engine.dispose()
    graph.parse(data="\n".join(lines), format="turtle")
    return graph


if __name__ == "__main__":
    print(export(sys.argv[1]).serialize(format="turtle"))
