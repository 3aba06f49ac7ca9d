"""What a rule is, and the list of all of them. A rule looks at a model, or at the repository, and says where and what.

Why it matters and what to do stand with the rule, so that a finding needs to say only what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from config_gen.lint.repository import Model, Repository

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Spot:
    """Where, in a file seen from the repository with a line from 1, and what is there."""

    file: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Rule:
    """error: Triton refuses it, or requests fail. warning: it is taken and does something else than it says, or is
    known to hurt. note: worth knowing."""

    id: str
    severity: Severity
    why: str
    fix: str
    check: Callable[[Repository], Iterator[Spot]]


@dataclass(frozen=True, slots=True)
class Finding:
    rule: Rule
    spot: Spot


RULES: dict[str, Rule] = {}
Spots: TypeAlias = Iterable[Spot]
ModelCheck: TypeAlias = Callable[[Model, Repository], Spots]
RepositoryCheck: TypeAlias = Callable[[Repository], Spots]


def model_rule(
    id: str, severity: Severity, *, why: str, fix: str, unread: bool = False
) -> Callable[[ModelCheck], ModelCheck]:
    """Registers a check of one model; `unread`: also of models whose configuration cannot be read."""

    def register(check: ModelCheck) -> ModelCheck:
        def each(repository: Repository) -> Iterator[Spot]:
            for model in repository.models.values():
                if unread or model.config is not None:
                    yield from check(model, repository)

        _add(Rule(id, severity, why, fix, each))
        return check

    return register


def repository_rule(id: str, severity: Severity, *, why: str, fix: str) -> Callable[[RepositoryCheck], RepositoryCheck]:
    """Registers a check of the whole, as of launch flags."""

    def register(check: RepositoryCheck) -> RepositoryCheck:
        _add(Rule(id, severity, why, fix, lambda repository: iter(check(repository))))
        return check

    return register


def _add(rule: Rule) -> None:
    assert rule.id not in RULES, rule.id
    RULES[rule.id] = rule


def at(model: Model, what: str, *path: str | int) -> Spot:
    """A spot in a model's configuration: where a path of fields leads, or as far as it goes."""
    return Spot(model.file, model.root.at(*path).line, what)


def cut(text: object, most: int = 80) -> str:
    """One line of at most `most` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
