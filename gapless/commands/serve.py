"""`gapless serve`: from command line words to a Launcher."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from config_gen.triton.repository import CONFIG
from decode.options import ServiceOptions
from gapless import serve_flags
from gapless.errors import UsageError
from gapless.results import check_outputs
from gapless.supervisor import Launcher, Plan
from gapless.triton_http import pick_port, port_is_free
from gapless.tritonserver import find_server, shared_memory_warning

LONGEST_DRAIN = 86400  # s
CURL_BODY = (
    r'{"messages": "[{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]", '
    r'"stream": true, "max_tokens": 64, "temperature": 0}'
)


def run(
    model_repository: Annotated[Path, typer.Option(help="Folder of models, as tritonserver takes it.")] = Path(
        "model_repository"
    ),
    model: Annotated[list[str] | None, typer.Option(help="Model to load; may be repeated. Default: all.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="0 picks a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="0 picks a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="0 picks a free one.")] = 8002,
    drain_timeout: Annotated[float, typer.Option(help="Seconds that running requests get after SIGTERM.")] = 30.0,
    option: Annotated[list[str] | None, typer.Option(help="key=value: overrides a parameter of config.pbtxt.")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="JSON file with ports and pids, there while ready.")] = None,
    log_file: Annotated[Path | None, typer.Option(help="Where tritonserver's log goes. Default: stderr.")] = None,
    flags: Annotated[list[str] | None, typer.Argument(help="After --: more flags for tritonserver.")] = None,
) -> None:
    """Start Triton with a model repository, wait until it answers, and keep it alive until SIGTERM or Ctrl-C."""
    models = _models(model_repository, model or [])
    _check_host(host)
    ports = _ports(host, {"http": http_port, "grpc": grpc_port, "metrics": metrics_port})
    if not 0 <= drain_timeout <= LONGEST_DRAIN:
        raise UsageError(f"--drain-timeout: {drain_timeout:g} is not allowed; 0 to {LONGEST_DRAIN} seconds")
    check_outputs(log_file=log_file, ready_file=ready_file)
    if ready_file is not None:  # it is replaced, so a device would be as well; and first written beside itself
        if ready_file.exists() and not ready_file.is_file():
            raise UsageError(f"--ready-file: {ready_file}: is not a file; give one that can be replaced")
        check_outputs(ready_file=ready_file.with_name(f"{ready_file.name}.{os.getpid()}"))
    plan = Plan(
        repository=model_repository.resolve(),
        models=models,
        host=host,
        http_port=ports["http"],
        grpc_port=ports["grpc"],
        metrics_port=ports["metrics"],
        drain_timeout=drain_timeout,
        options=_options(option or []),
        flags=(*_flags_without_gpu(), *serve_flags.read(model_repository), *(flags or ())),
        ready_file=ready_file,
    )
    _check_built(plan)
    server = find_server()
    if warning := shared_memory_warning(len(models)):
        _say(f"warning: {warning}")
    _say(f"starting tritonserver ({server.origin}) with {', '.join(models)}")
    with log_file.open("ab") if log_file else nullcontext(sys.stderr.buffer) as log:
        launcher = Launcher(plan, server, _say, log)
        raise typer.Exit(asyncio.run(launcher.run(lambda chat: _introduce(plan, launcher.http.host, chat))))


def _say(text: str) -> None:
    """Tell whoever reads stdout; that nobody does any more must not end the supervision of the server."""
    with suppress(OSError):
        print(f"gapless: {text}", flush=True)


def _introduce(plan: Plan, host: str, chat: list[str]) -> None:
    """Addresses, and a line to paste into a shell for the first of the `chat` models."""
    where = f"[{host}]" if ":" in host else host
    _say(f"HTTP    http://{where}:{plan.http_port}")
    _say(f"gRPC    {where}:{plan.grpc_port}")
    _say(f"metrics http://{where}:{plan.metrics_port}/metrics")
    for name in chat[:1]:
        url = f"http://{where}:{plan.http_port}/v2/models/{name}/generate_stream"
        _say("ask it something:")
        print(f"curl -sN {url} -d {shlex.quote(CURL_BODY)}", flush=True)


def _models(repository: Path, wanted: list[str]) -> tuple[str, ...]:
    """Models to load: those wanted, else all. Raises UsageError."""
    try:
        there = sorted(path.name for path in repository.iterdir() if (path / CONFIG).exists())
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"--model-repository: {repository} is not a folder; run gapless build, then generate"
        ) from None
    except OSError as error:
        name = str(repository) if len(str(repository)) <= 100 else f"{str(repository)[:97]}..."
        raise UsageError(f"--model-repository: {name}: {error.strerror}; give a folder of models") from None
    if not there:
        raise UsageError(f"--model-repository: {repository} holds no model (no */{CONFIG}); run gapless generate")
    for name in wanted:
        if name not in there:
            raise UsageError(f"--model: {name} is not in {repository}; it holds {', '.join(there)}")
    return tuple(wanted or there)


def _check_built(plan: Plan) -> None:
    """Raise UsageError on a model of which only the configuration is there."""
    for name in plan.models:
        folder = plan.repository / name
        if not any(path.name.isdigit() and path.is_dir() for path in folder.iterdir()):
            raise UsageError(f"--model-repository: {folder} is configured and holds nothing to load; run gapless build")


def _check_host(host: str) -> None:
    """Raise UsageError unless it is an IPv4 address of this machine, or a name of one."""
    told = f"--host: {host[:100]!r} is not allowed"
    if ":" in host:
        raise UsageError(f"{told}; IPv6 is not supported: an IPv4 address of this machine, as 127.0.0.1 or 0.0.0.0")
    try:
        if not host:
            raise OSError(None, "it is empty")
        with socket.socket(socket.AF_INET) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError) as error:  # ValueError: a name that no name can be
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{told} ({reason}); an IPv4 address of this machine, as 127.0.0.1 or 0.0.0.0") from None


def _ports(host: str, wanted: dict[str, int]) -> dict[str, int]:
    """Numbers that are free now. Raises UsageError naming the option at fault."""
    ports: dict[str, int] = {}
    for name, port in wanted.items():
        if not 0 <= port <= 65535:
            raise UsageError(f"--{name}-port: {port} is not allowed; 0 to 65535")
        while port == 0 or (wanted[name] == 0 and port in ports.values()):
            port = pick_port(host)
        if port in ports.values():
            raise UsageError(f"--{name}-port: {port} is given twice; each port needs a number of its own")
        if not port_is_free(host, port):
            raise UsageError(f"--{name}-port: {port} is in use on {host}; name another, or 0 for any free one")
        ports[name] = port
    return ports


def _options(words: list[str]) -> dict[str, str]:
    """Options from `key=value` words, checked as the model will check them. Raises UsageError, ConfigError."""
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--option: {word!r} is not allowed; key=value")
        options[key] = value
    ServiceOptions.from_parameters(options)
    return options


def _flags_without_gpu() -> list[str]:
    """Without a GPU the server need not look for one."""
    return [] if Path("/dev/nvidiactl").exists() else ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
