"""Model repositories for tests: planned models, configured as `gapless generate` does, over what a test has built."""

from __future__ import annotations

import shutil
from pathlib import Path

from plans import chat

from config_gen.batching import Batching, QueuePolicy
from config_gen.plan import ModelPlan, Plan, Tensor
from config_gen.triton.config_text import commented
from config_gen.triton.repository import Origin, files
from config_gen.triton.repository_files import changes, write
from config_gen.triton.triton_config import config

HERE = Path(__file__).resolve().parent
CHAT_MODEL = HERE.parent / "decode" / "served" / "model.py"
SMALL = {"kv_cache_memory": "64MiB", "weights": "fp32", "device": "cpu"}


def configure(repository: Path, *models: ModelPlan) -> None:
    """Write the configuration of planned models; there are no launch flags."""
    for model in models:
        (repository / model.name).mkdir(parents=True, exist_ok=True)
        (repository / model.name / "config.pbtxt").write_text(commented(config(model), model.knobs))


def generate(repository: Path, wanted: Plan) -> None:
    """What `gapless generate` writes of a plan, so that it may be generated anew."""
    write(changes(repository, files(wanted, Origin("sla.yaml", "gapless generate sla.yaml", "1"))))


def chat_repository(folder: Path, weights: Path, **parameters: str) -> Path:
    """The chat model over built weights, as links."""
    version = folder / "chat" / "1"
    version.mkdir(parents=True)
    shutil.copy(CHAT_MODEL, version)
    for path in weights.iterdir():
        if path.name != "model.py":
            (version / path.name).symlink_to(path)
    configure(folder, chat(parameters=SMALL | parameters))
    return folder


def scripted_repository(
    folder: Path, weights: Path, step_seconds: float, name: str = "scripted", **parameters: str
) -> Path:
    """The scripted model behind the chat model's own tensors; may be called again for another one beside it."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    shutil.copy(HERE / "models" / "scripted" / "model.py", version)
    parameters |= {"step_seconds": str(step_seconds), "tokenizer": str(weights)}
    configure(folder, chat(name, parameters=parameters))
    return folder


TEXT, PICTURE = Tensor("text", "TYPE_STRING", (1,)), Tensor("image", "TYPE_STRING", (1,))
ENDLESS = QueuePolicy()


def add_stand_in(
    repository: Path,
    name: str,
    takes: Tensor = TEXT,
    seconds: float = 0.001,
    queue: QueuePolicy = ENDLESS,
    levels: tuple[QueuePolicy, ...] = (),
) -> None:
    """A model that answers in one piece: what it takes, seconds a batch, how requests wait, by their priority."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    shutil.copy(HERE / "models" / "stand_in" / "model.py", version)
    batching = Batching(8, default_policy=queue, levels=levels)
    told, parameters = (Tensor("bytes", "TYPE_INT64", (1,)),), {"seconds": str(seconds)}
    configure(repository, ModelPlan(name, (), (takes,), told, batching, parameters))
