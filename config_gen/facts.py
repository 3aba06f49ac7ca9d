"""What is known of a built model before it is planned: what computing costs, what it takes of memory, its tensors.

Data only; who reads the model repository fills it.
"""

from __future__ import annotations

from dataclasses import dataclass

from config_gen.plan import Tensor
from config_gen.profile import Profile
from decode.executors.cost_model import Law


@dataclass(frozen=True)
class OnnxFacts:
    """A built engine. `on_gpu`: it was built for a card; else it computes on the host's cores.

    `size`: pixels of a picture's side.
    """

    profile: Profile
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    feed: str  # text, image, arrays
    max_batch_size: int
    memory: int  # bytes that one instance takes where it computes
    on_gpu: bool = False
    size: int = 0
    batch_buckets: tuple[int, ...] = ()  # shapes that inputs are padded to, where an engine has fixed ones
    length_buckets: tuple[int, ...] = ()


@dataclass(frozen=True)
class LlmFacts:
    """A built LLM on the hardware of the file. Memory in bytes; `told` says where the law comes from, `doubt` what
    speaks against it."""

    law: Law
    kv_bytes_per_token: int
    max_model_len: int  # the longest it was made for
    weights_memory: int  # of one instance, without KV pages
    told: str
    on_gpu: bool = False
    cores: int = 0  # that a step was measured with, on the CPU
    host_memory: int = 0
    swap_page_time: int = 50_000  # ns to move a page to the host or back
    cold: float = 1.0  # times as long that a step after a pause takes
    doubt: str = ""


Facts = OnnxFacts | LlmFacts


@dataclass(frozen=True, slots=True)
class Correction:
    """What a server showed of one model: its time over the profile's, and ns of each request outside of it."""

    factor: float = 1.0
    around: int = 0
