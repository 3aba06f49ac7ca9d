"""Which models of an SLA file a command means, and what draws the texts they are sent. Must not know servers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from config_gen.sla.arrivals import chance
from config_gen.sla.spec import LlmModel, OnnxModel, Spec, SpecError
from engines.stamp import FILE, Stamp
from gapless.errors import UsageError
from loadtest import prompts
from loadtest.schedule import Part

REPOSITORY = Path("model_repository")


def pick_llm(spec: Spec, wanted: str | None) -> tuple[str, LlmModel]:
    """The LLM that is meant: `wanted`, or the only one of the file. Raises SpecError; also when it has no traffic."""
    llms = [name for name, model in spec.models.items() if isinstance(model, LlmModel)]
    if wanted is None and len(llms) > 1:
        raise SpecError(f"--model is needed; the file declares {', '.join(llms)}")
    if wanted is None and not llms:
        raise SpecError("models: none is of kind llm, and only those have tokens to schedule")
    name = wanted or llms[0]
    model = _declared(spec, name)
    if not isinstance(model, LlmModel):
        raise SpecError(f"models.{name}.kind: '{model.kind}' has no tokens to schedule; allowed here: llm")
    return name, model


def pick_parts(spec: Spec, wanted: str | None, tokenizer: Path | None = None) -> list[Part]:
    """What is loaded: `wanted`, or all models that have traffic. Raises SpecError, UsageError or PromptError.

    `tokenizer` counts the texts of the one model that has some, in place of that in the model repository.
    """
    models = loaded(spec, wanted)
    texts = [name for name, model in models.items() if _sends_text(model)]
    if tokenizer is not None and len(texts) != 1:
        whose = " and ".join(texts) or "no model"
        raise UsageError(f"--tokenizer: counts the texts of one model, and {whose} would be sent some; add --model")
    tiers = tuple(spec.tiers)
    return [
        Part(name, model, find_prompts(name, tokenizer) if name in texts else None, chance(spec.models, name), tiers)
        for name, model in models.items()
    ]


def loaded(spec: Spec, wanted: str | None) -> dict[str, LlmModel | OnnxModel]:
    """`wanted`, or all models that have traffic. Raises SpecError when there is none."""
    if wanted is not None or len(spec.models) == 1:
        name = wanted or next(iter(spec.models))
        return {name: _declared(spec, name)}
    models = {name: model for name, model in spec.models.items() if model.traffic}
    if not models:
        raise SpecError(f"models: none of {', '.join(spec.models)} has traffic; declare what at least one tier sends")
    return models


def at_rates(spec: Spec, times: float) -> Spec:
    """The same file with its rates multiplied."""
    models = {}
    for name, model in spec.models.items():
        traffic = {tier: shape.model_copy(update={"rate": shape.rate * times}) for tier, shape in model.traffic.items()}
        models[name] = model.model_copy(update={"traffic": traffic})
    return spec.model_copy(update={"models": models})


def find_prompts(model: str, tokenizer: Path | None) -> prompts.Prompts:
    """Texts counted by the given tokenizer, by that of the model repository, or else by words."""
    path = tokenizer or _built_tokenizer(REPOSITORY / model / "1")
    return prompts.by_words() if path is None else prompts.by_tokenizer(path)


def _built_tokenizer(folder: Path) -> Path | None:
    """Of an engine, whose stamp names it, or of an LLM; None when nothing is built."""
    name = Stamp.read(folder).tokenizer if os.path.exists(folder / FILE) else "tokenizer.json"
    return folder / name if name and os.path.exists(folder / name) else None


def notes(parts: Sequence[Part]) -> list[str]:
    """How the texts were measured, a sentence for each model that gets some."""
    found = []
    for part in parts:
        if part.texts is not None:
            what = "Prompts" if isinstance(part.model, LlmModel) else "Texts"
            whose = f" of {part.name}" if len(parts) > 1 else ""
            found.append(f"{what}{whose}: {part.texts.measure}.")
    return found


def _declared(spec: Spec, name: str) -> LlmModel | OnnxModel:
    if name not in spec.models:
        raise SpecError(f"--model: '{name}' is not in the file; it declares {', '.join(spec.models)}")
    model = spec.models[name]
    if not model.traffic:
        raise SpecError(f"models.{name}.traffic: is empty; declare what at least one tier sends")
    return model


def _sends_text(model: LlmModel | OnnxModel) -> bool:
    return isinstance(model, LlmModel) or any(shape.length for shape in model.traffic.values())
