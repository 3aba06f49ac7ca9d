"""What a served LLM takes and gives, as Triton declares it: the tensors of Triton's vLLM backend, and messages.

Every input is optional; one of text_input, messages and input_ids must be there, which decode.protocol sees to.
"""

from __future__ import annotations

from config_gen.plan import Tensor

INPUTS = (
    Tensor("text_input", "TYPE_STRING", (1,), optional=True),
    Tensor("messages", "TYPE_STRING", (1,), optional=True),  # JSON: [{"role", "content"}]
    Tensor("input_ids", "TYPE_INT64", (-1,), optional=True),
    Tensor("stream", "TYPE_BOOL", (1,), optional=True),
    Tensor("sampling_parameters", "TYPE_STRING", (1,), optional=True),  # JSON object
    Tensor("exclude_input_in_output", "TYPE_BOOL", (1,), optional=True),
)
OUTPUTS = (
    Tensor("text_output", "TYPE_STRING", (1,)),
    Tensor("finish_reason", "TYPE_STRING", (1,)),  # on the last response: stop or length
    Tensor("usage", "TYPE_STRING", (1,)),  # on the last response: JSON
    Tensor("logprobs", "TYPE_STRING", (1,)),  # JSON, when the sampling parameter logprobs is set
)
