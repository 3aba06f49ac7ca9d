"""A bad and a good minimal repository for every lint rule, and what Triton 2.51 does with the bad one.

Files are texts by path. NAME stands for the rule's id, which is the name of its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Files = Mapping[str, str | None]  # None: a folder
MODEL = (Path(__file__).parent / "models" / "counting" / "model.py").read_text()
INPUT = 'input [ { name: "in" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
OUTPUT = 'output [ { name: "out" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
RUNS = OUTPUT.replace("]\n", ', { name: "runs" data_type: TYPE_INT32 dims: [ 1 ] } ]\n', 1)
ONE = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
TWO = "instance_group [ { kind: KIND_CPU count: 2 } ]\n"

# refused: not loaded, and the log says `told`. taken: it is loaded. hangs: its load does not end. kills: the server
# dies. ends: the server says `told` and ends, for its flags.
Outcome = Literal["refused", "taken", "hangs", "kills", "ends"]


@dataclass(frozen=True)
class Pair:
    rule: str
    bad: Files
    good: Files
    outcome: Outcome
    told: str = ""
    also: tuple[str, ...] = ()  # other rules that the bad one cannot help breaking

    def write(self, folder: Path, files: Files) -> Path:
        for path, text in files.items():
            target = folder / path.replace("NAME", self.rule)
            if text is None:
                target.mkdir(parents=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text.replace("NAME", self.rule))
        return folder

    @property
    def flags(self) -> list[str]:
        """With which the bad one is served."""
        return (self.bad.get("serve.args") or "").split()


def config(
    more: str = "",
    batch: int | None = 4,
    tensors: str = INPUT + OUTPUT,
    group: str = ONE,
    backend: str = 'backend: "python"\n',
    seconds: float = 0,
) -> str:
    size = "" if batch is None else f"max_batch_size: {batch}\n"
    wait = f'parameters {{ key: "seconds" value: {{ string_value: "{seconds}" }} }}\n' if seconds else ""
    return f"{backend}{size}{tensors}{group}{wait}{more}\n"


def model(text: str, name: str = "NAME", **files: str | None) -> Files:
    """A Python model with version 1; names of `files` have __ for /."""
    made: dict[str, str | None] = {f"{name}/config.pbtxt": text, f"{name}/1/model.py": MODEL}
    return made | {f"{name}/{path.replace('__', '/')}": content for path, content in files.items()}


def batching(more: str, group: str = ONE, **rest: float) -> Files:
    """A model with a dynamic batcher, by the words in its braces."""
    batch = int(rest.pop("batch", 4))
    return model(config(f"dynamic_batching {{ {more} }}", batch=batch, group=group, seconds=rest.pop("seconds", 0)))
