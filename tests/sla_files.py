"""SLA files with models of both kinds, put together from parts."""

from __future__ import annotations

from config_gen.sla.spec import Spec, parse

CHAT = """
  chat:
    kind: llm
    source: wheel:any
    targets: {a: {ttft: 1s, at: p50}}
    traffic: {a: {rate: 5/s, prompt: {median: 20, p95: 60}, output: {median: 6, p95: 12}}}"""
EMBED = """
  embed:
    kind: onnx
    source: wheel:any
    max_length: 100
    targets: {a: {e2e: 100ms, at: p50}}
    traffic: {a: {rate: 20/s, length: {median: 20, p95: 200}}, b: {rate: 10/s, length: {median: 8, p95: 8}}}"""
CLASSIFY = """
  classify: {kind: onnx, source: onnx:any, traffic: {a: {rate: 50/s}}}"""
IDLE = """
  idle: {kind: onnx, source: onnx:any}"""


def text(*models: str) -> str:
    return "gapless: 1\ntiers: {a: {}, b: {}}\nmodels:" + "".join(models)


def spec(*models: str) -> Spec:
    return parse(text(*models))
