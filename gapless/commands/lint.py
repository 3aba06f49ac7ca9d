"""`gapless lint`: what is wrong in a Triton model repository, ours or not, said before a server is started with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from config_gen.lint import sarif
from config_gen.lint.findings import as_json, counts, judge, rules
from config_gen.lint.repository import read
from config_gen.lint.rule import Finding, Rule
from gapless.errors import UsageError
from gapless.results import check_outputs, write_json

COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def run(
    directory: Annotated[Path | None, typer.Argument(help="folder of models", metavar="DIR")] = None,
    arguments: Annotated[
        Path | None, typer.Option("--args", help="tritonserver's flags, one a line; default: DIR/serve.args if there")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the findings as JSON")] = None,
    sarif_file: Annotated[Path | None, typer.Option("--sarif", help="write the findings as SARIF 2.1.0")] = None,
    list_rules: Annotated[bool, typer.Option("--rules", help="list all rules")] = False,
) -> None:
    """Exit 0 when there is no error (warnings and notes are none), 1 when there is one, 2 on bad input."""
    console = Console(highlight=False, soft_wrap=True)
    if list_rules:
        for rule in rules().values():
            console.print(_heading(rule), f"  {escape(rule.why)}", f"  fix: {escape(rule.fix)}", sep="\n")
        return
    if directory is None:
        raise UsageError("DIR is missing: the folder of models, as tritonserver takes it")
    check_outputs(json=json_file, sarif=sarif_file)
    repository = read(directory, arguments)
    found = judge(repository)
    for finding in found:
        _show(directory, finding, console)
    number = counts(found)
    told = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in number.items())
    models = len(repository.models)
    console.print(f"{models} model{'' if models == 1 else 's'}, {len(rules())} rules: {told}")
    write_json(json_file, as_json(str(directory), found))
    write_json(sarif_file, sarif.log(directory, found, rules()), "sarif")
    raise typer.Exit(1 if number["error"] else 0)


def _heading(rule: Rule) -> str:
    return f"[{COLOURS[rule.severity]}]{rule.severity}[/] [bold]{rule.id}[/]"


def _show(folder: Path, finding: Finding, console: Console) -> None:
    spot, rule = finding.spot, finding.rule
    place = f"{folder.as_posix().encode('utf-8', 'backslashreplace').decode()}/{spot.file}:{spot.line}"
    console.print(f"{_heading(rule)} {escape(place)}", f"  {escape(spot.what)}", f"  why: {escape(rule.why)}", sep="\n")
    console.print(f"  fix: {escape(rule.fix)}\n")
