"""Names of what Triton itself counts of a model, whatever kind it is. Must not know who asks for it."""

from __future__ import annotations

COUNT = "nv_inference_count"  # items
RUNS = "nv_inference_exec_count"  # batches
DONE = "nv_inference_request_success"
FAILED = "nv_inference_request_failure"  # with the label `reason`
PENDING = "nv_inference_pending_request_count"
SUMMARY = "nv_inference_request_summary_us"  # with --metrics-config=summary_latencies=true
FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"  # with --metrics-config=histogram_latencies=true
WHOLE = "nv_inference_request_duration_us"


def spent(part: str) -> str:
    """Microseconds of all requests in `queue`, `compute_input`, `compute_infer` or `compute_output`."""
    return f"nv_inference_{part}_duration_us"
