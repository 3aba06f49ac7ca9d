"""The flags a tritonserver is launched with, one a line in a file beside the models; # begins a comment.

Must not know what a flag does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FILE = "serve.args"
# What `tritonserver --help` of version 2.51 lists.
_LISTED = """
help id exit-timeout-secs log-verbose log-info log-warning log-error log-format log-file model-store
model-repository exit-on-error disable-auto-complete-config strict-readiness model-control-mode repository-poll-secs
load-model model-config-name model-load-thread-count model-load-retry-count model-namespacing enable-peer-access
allow-http http-address http-port reuse-http-port http-header-forward-pattern http-thread-count http-restricted-api
allow-grpc grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern grpc-infer-allocation-pool-size
grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout
grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age
grpc-max-connection-age-grace grpc-restricted-protocol allow-sagemaker sagemaker-port sagemaker-safe-port-range
sagemaker-thread-count allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model allow-metrics
allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config trace-config
backend-directory backend-config repoagent-directory cache-config cache-directory rate-limit rate-limit-resource
pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size
min-supported-compute-capability buffer-manager-thread-count host-policy model-load-gpu-limit strict-model-config
response-cache-byte-size trace-file trace-level trace-rate trace-count trace-log-frequency
"""
KNOWN = frozenset(_LISTED.split())


_COMMENT = re.compile(r"(^|\s)#.*")


@dataclass(frozen=True, slots=True)
class Flag:
    """`name` without its dashes; a word that has none keeps what it is, and no value."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Flags:
    """`file` is empty where no flags are known."""

    file: str = ""
    flags: tuple[Flag, ...] = ()

    def all(self, name: str) -> list[Flag]:
        return [flag for flag in self.flags if flag.name == name]

    def value(self, name: str) -> str:
        """Of the last one, which is the one that counts; empty when there is none."""
        found = self.all(name)
        return found[-1].value if found else ""

    def has(self, name: str) -> bool:
        return bool(self.all(name))

    def settings(self, name: str, owner: str = "") -> list[tuple[Flag, str, str]]:
        """KEY=VALUE of `--NAME=OWNER,KEY=VALUE`, or of `--NAME=KEY=VALUE` without an owner."""
        found = []
        for flag in self.all(name):
            whose, comma, setting = flag.value.partition(",")
            key, equals, value = (setting if comma else whose).partition("=")
            if equals and (whose if comma else "") == owner:
                found.append((flag, key, value))
        return found


def parse(text: str, file: str) -> Flags:
    """`--name=value`, `--name value` or `--name`, one a line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = _COMMENT.sub("", line).strip()
        if not words:
            continue
        name, equals, value = words.partition("=")
        if not equals or " " in name:
            name, _, value = words.partition(" ")
        dashed = name.startswith("--")
        found.append(Flag(name.removeprefix("--") if dashed else words, value.strip() if dashed else "", number))
    return Flags(file, tuple(found))
