"""Rules about the text of a config.pbtxt: what protobuf refuses, and what it takes in silence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from config_gen.lint.pbtxt import HOLE, Field, tokens
from config_gen.lint.repository import Model, Repository
from config_gen.lint.rule import Spot, at, cut, model_rule

UNKNOWN = re.compile(r"has no field named|Expected identifier.*extension")
TWO = re.compile(r"another member of oneof|is specified along with")
# Fields that Triton 2.73 knows and 2.51 does not.
NEW = (("model_metrics",), ("ensemble_scheduling", "max_inflight_requests"))


def _bare_holes(model: Model) -> list[tuple[int, str]]:
    return [(token.line, token.text) for token in tokens(model.text) if token.kind == "hole"]


def _refused(model: Model, kind: str) -> Iterator[Spot]:
    """The refusal when it is of this kind; one that a placeholder brought about is told as such."""
    refusal = model.refusal
    if refusal is None or _bare_holes(model):
        return
    found = "unknown" if UNKNOWN.search(refusal.message) else "two" if TWO.search(refusal.message) else "parse"
    if found == kind:
        where = f"column {refusal.column}: " if refusal.column else ""
        mark = " (the file begins with a byte order mark)" if model.text.startswith("\ufeff") else ""
        yield Spot(model.file, max(1, refusal.line), f"{where}{cut(refusal.message, 200)}{mark}")


@model_rule(
    "parse",
    "error",
    why="Triton cannot read it (failed to read text proto) and leaves the model out; by default the server then ends.",
    fix="Write it as protobuf text: name: value, name { … }, lists in [ … ], negative numbers only where allowed.",
    unread=True,
)
def parse(model: Model, repository: Repository) -> Iterator[Spot]:
    yield from _refused(model, "parse")


@model_rule(
    "unknown-field",
    "error",
    why="One field that ModelConfig does not have, as by a typing error, makes Triton refuse the whole file.",
    fix="Look the name up in Triton's model_config.proto.",
    unread=True,
)
def unknown_field(model: Model, repository: Repository) -> Iterator[Spot]:
    yield from _refused(model, "unknown")


@model_rule(
    "two-schedulers",
    "error",
    why="dynamic_batching, sequence_batching and ensemble_scheduling exclude each other, as do the version policies; "
    "Triton refuses the file.",
    fix="Keep one of them; an ensemble's steps batch by themselves.",
    unread=True,
)
def two_schedulers(model: Model, repository: Repository) -> Iterator[Spot]:
    yield from _refused(model, "two")


@model_rule(
    "placeholder",
    "error",
    why="A template that was not filled in; Triton fills in nothing and refuses the file.",
    fix="Fill the template in before it is served.",
    unread=True,
)
def placeholder(model: Model, repository: Repository) -> Iterator[Spot]:
    for line, text in _bare_holes(model):
        yield Spot(model.file, line, f"{cut(text)} stands where a value should")


@model_rule(
    "placeholder-text",
    "warning",
    why="A template that was not filled in; Triton hands the text to the model as it is.",
    fix="Fill the template in before it is served.",
)
def placeholder_text(model: Model, repository: Repository) -> Iterator[Spot]:
    for token in tokens(model.text):
        if token.kind == "string" and (hole := HOLE.search(token.text)):
            yield Spot(model.file, token.line, f"{cut(hole[0])} stands in a string")


@model_rule(
    "duplicate-key",
    "warning",
    why="Of a key that is given twice the last value counts, without a word.",
    fix="Remove the one that is not meant.",
)
def duplicate_key(model: Model, repository: Repository) -> Iterator[Spot]:
    for field, name in _maps(model.root):
        entries = [entry.at("key") for entry in field.all(name)]
        counts = Counter(key.text for key in entries if key.name == "key")
        for text, count in counts.items():
            if count > 1:
                last = next(key for key in reversed(entries) if key.text == text)
                yield Spot(model.file, last.line, f"{name} '{cut(text)}' is given {count} times")


def _maps(root: Field) -> Iterator[tuple[Field, str]]:
    """Messages with the names of the maps in them."""
    yield from ((root, name) for name in ("parameters", "metric_tags", "cc_model_filenames"))
    yield from ((field, "priority_queue_policy") for field in root.all("dynamic_batching"))
    yield from ((field, "inputs") for field in root.all("model_warmup"))
    for scheduling in root.all("ensemble_scheduling"):
        for step in scheduling.all("step"):
            yield from ((step, name) for name in ("input_map", "output_map"))


@model_rule(
    "new-field",
    "warning",
    why="Triton 2.51 (24.10) does not know the field yet and refuses the whole file; 2.73 knows it.",
    fix="Make sure that the server is new enough, or leave the field out.",
)
def new_field(model: Model, repository: Repository) -> Iterator[Spot]:
    for path in NEW:
        found = model.root.at(*path)
        if found.name == path[-1]:
            yield at(model, f"{'.'.join(path)} is set", *path)
