"""The chat model on a plain tritonserver, without the launcher: as Triton's own command line and defaults start it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

from repositories import chat_repository
from serving import Serving, wait_for

from gapless.tritonserver import find_server

GREEDY = {"temperature": 0, "max_tokens": 8}


def free_ports(count: int) -> list[int]:
    """Ports free a moment ago, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_plain_tritonserver_loads_the_repository_and_answers(smollm2_dir: Path, tmp_path: Path) -> None:
    repository = chat_repository(tmp_path / "repository", smollm2_dir)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")}
    server = find_server(clean)
    http, grpc, metrics = free_ports(3)
    command = [*server.command, f"--model-repository={repository}"]
    command += [f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")]
    command += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    log = tmp_path / "triton.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=dict(server.environment))
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({"http_port": http, "grpc_port": grpc, "server_pid": process.pid}))
    serving = Serving(process, log, "chat", facts)
    try:
        wait_for(lambda: serving.answers() or process.poll() is not None, 120)
        assert process.poll() is None, log.read_text()
        assert re.search(r"\| chat +\| 1 +\| READY", log.read_text())
        whole = serving.generate(text_input="One, two, three,", exclude_input_in_output=True, **GREEDY)
        assert whole["finish_reason"] == "length" and whole["text_output"]
        stream = serving.stream(text_input="One, two, three,", stream=True, sampling_parameters=GREEDY)
        pieces, last = stream.read()
        stream.close()
        assert "".join(pieces) == whole["text_output"] and len(pieces) > 3
        assert json.loads(last["usage"])["output_tokens"] == 8
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
