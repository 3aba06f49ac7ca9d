"""What wrong SLA files say, word for word: `data/spec_errors.txt` holds the files and their mistakes.

A case: `=== title`, the file (of which gapless, tiers and models stand in BASE when it leaves them out), `---`, the
lines it says. A title that ends in ` *` is of a file that the schema for editors takes.
"""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from config_gen.sla.spec import SpecError, parse, schema

BASE = {
    "gapless": "gapless: 1",
    "tiers": "tiers: {a: {}, b: {}}",
    "models": "models: {m: {kind: onnx, source: onnx:m}}",
}
TEXT = (Path(__file__).parent / "data" / "spec_errors.txt").read_text(encoding="utf-8")
CASES = [(title, *body.split("\n---\n")) for title, body in re.findall(r"^=== (.*)\n((?:(?!=== ).*\n)*)", TEXT, re.M)]
VALIDATOR = jsonschema.Draft202012Validator(schema())


def whole(text: str) -> str:
    """The file of a case with what it leaves out."""
    if text.startswith("- "):
        return text
    given = re.findall(r"^(\w+):", text, re.M)
    return "\n".join([text, *(line for key, line in BASE.items() if key not in given)])


def test_the_file_that_cases_change_is_right() -> None:
    assert parse("\n".join(BASE.values())).models.keys() == {"m"}
    assert len(CASES) >= 90 and len({title for title, *_ in CASES}) == len(CASES)


@pytest.mark.parametrize(("title", "text", "told"), CASES, ids=[title for title, *_ in CASES])
def test_what_a_wrong_file_says(title: str, text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(whole(text))
    assert str(caught.value).splitlines() == told.splitlines()
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(("title", "text", "told"), CASES, ids=[title for title, *_ in CASES])
def test_every_line_names_a_place_and_says_something(title: str, text: str, told: str) -> None:
    for line in told.splitlines():
        place, _, words = line.partition(": ")
        assert re.fullmatch(r"[^ ]+|line \d+|the file .*", place) and len(words) > 8 and len(line) < 400, line
        assert not re.search(r"Input|should|None\b|True\b|valid|dict|tuple", words), line


@pytest.mark.parametrize(("title", "text", "told"), CASES, ids=[title for title, *_ in CASES])
def test_an_editor_with_the_schema_sees_most_mistakes(title: str, text: str, told: str) -> None:
    try:
        raw = yaml.safe_load(whole(text))
    except yaml.YAMLError:
        return
    keys = (
        all(isinstance(name, str) for name in (*raw.get("tiers", ()), *(raw.get("models") or ())))
        if isinstance(raw, dict)
        else True
    )
    found = list(VALIDATOR.iter_errors(raw)) if keys else [None]
    assert bool(found) != title.endswith(" *")
