"""One model at one precision: the graph for TensorRT, the graph for onnxruntime, and what the gate says of it.

Each precision is a stage: computed once for a model, its data and its promise. Must not know runtimes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from builders import half, int8
from builders.data import digest_of, open_data
from builders.errors import BuildError
from builders.gate import Outputs, Score, judge, outputs_of
from builders.progress import Progress
from builders.search import Found, Search
from builders.sources import Exported, versions
from builders.stages import stage
from config_gen.sla.spec import Accuracy, OnnxModel
from engines.cpu import adds_int8_exactly
from engines.runner import Preparation
from engines.session import Arrays, OnnxSession, Session

TYPED, SERVED = "typed.onnx", "served.onnx"  # for TensorRT; for onnxruntime
BATCH = 8  # items of a batch of data, at most
SENTENCES = ("loadtest.prompts:sentences",)  # what texts are judged on when the SLA file names nothing
CALIBRATED_ON = 12  # batches that ranges are taken from: what all items can say is checked by the search anyway
TOOLS = ("onnx", "onnxruntime", "numpy")


@dataclass(frozen=True, slots=True)
class Candidate:
    """`notes` are lines for people: what was kept in floating point and why, or which layers hurt."""

    precision: str
    typed: Path
    served: Path
    score: Score
    notes: tuple[str, ...]
    facts: Any


class Precisions:
    """A model's data, prepared when first asked for, and its candidates."""

    def __init__(
        self, exported: Exported, model: OnnxModel, preparation: Preparation, tell: Progress, force: bool
    ) -> None:
        self._exported, self._model, self._tell, self._force = exported, model, tell, force
        self._preparation = preparation
        self._reference: OnnxSession | None = None
        self._sides: list[tuple[list[Arrays], Outputs]] = []
        self._items: list[Sequence[Any]] = []
        calibration = model.calibration
        if not calibration and model.precision != "fp32":
            if exported.feed.kind != "text":
                raise BuildError(
                    f"calibration: is missing; precision {model.precision} needs data for other than texts"
                )
            calibration = SENTENCES
        if calibration:
            tell("reading data", 0, 0)
            self._items = list(open_data(calibration, model.evaluation, exported.feed.kind))

    @property
    def _promise(self) -> Accuracy:
        assert self._model.accuracy is not None, "the SLA file needs one for every precision that is judged"
        return self._model.accuracy

    @property
    def data_digests(self) -> list[str]:
        """Of calibration and evaluation."""
        return [_digest(items) for items in self._items]

    @property
    def evaluation(self) -> Sequence[Any]:
        """Items that the model would be sent; none where the SLA file names no data."""
        return self._items[1] if self._items else ()

    @property
    def typical_length(self) -> int:
        """Median length in tokens of the evaluation's texts; 0 for what has no length."""
        if self._exported.feed.kind != "text":
            return 0
        if not self._items:
            return min(64, self._exported.feed.max_length)
        lengths = [len(ids) for ids in self._preparation(self._items[1]) if not isinstance(ids, Exception)]
        return int(np.median(lengths))

    def candidate(self, precision: str) -> Candidate:
        """Made once; fp32 is the reference itself and has nothing to pass."""
        if precision == "fp32":
            graph = self._exported.graph
            itself = Score("reference", len(self._items[1]) if self._items else 0, None, None, "")
            told = f"the ONNX graph differs from torch by {self._exported.difference:.1g} of the largest output"
            notes = (told,) if self._exported.difference else ()
            return Candidate(precision, graph, graph, itself, notes, self._exported.facts)
        facts = {
            "exported": self._exported.facts,
            "precision": precision,
            "data": self.data_digests,
            "accuracy": self._promise.model_dump(),
            "tools": versions(TOOLS),
            "exact": adds_int8_exactly(),
        }
        make = {"fp16": self._half, "int8": self._int8}[precision]
        folder, result = stage(precision, facts, make, force=self._force)
        score = Score(**result["score"])
        return Candidate(precision, folder / TYPED, folder / SERVED, score, tuple(result["notes"]), facts)

    def judged(self, session: Session) -> Score:
        """What the gate says of an engine that computes here."""
        feeds, wanted = self._data()[1]
        return judge(self._promise, wanted, outputs_of(session, feeds))

    def _data(self) -> list[tuple[list[Arrays], Outputs]]:
        """(batches, what fp32 computes of them) for calibration and evaluation."""
        if not self._sides:
            self._tell("computing the reference", 0, 0)
            session = OnnxSession(self._exported.graph)
            for items in self._items:
                side = ("calibration", "evaluation")[len(self._sides)]
                feeds = batches(self._preparation, items, min(BATCH, self._model.max_batch_size), side)
                outputs = outputs_of(session, feeds)
                if not all(np.isfinite(array).all() for batch in outputs for array in batch.values()):
                    raise BuildError(
                        f"{side}: the model in fp32 answers it with NaN or infinity; allowed: finite outputs"
                    )
                self._sides.append((feeds, outputs))
        return self._sides

    def _half(self, scratch: Path) -> dict[str, Any]:
        calibration, (feeds, wanted) = self._data()
        model = onnx.load(self._exported.graph)
        self._tell("fp16: measuring ranges", 0, 0)
        kept = half.kept_in_fp32(model, half.largest_values(model, calibration[0]))
        onnx.save(half.converted(model, kept), scratch / TYPED)
        onnx.save(half.converted(model, kept), scratch / SERVED)
        session = OnnxSession(half.emulated(model, kept).SerializeToString(), optimize=False)
        score = judge(self._promise, wanted, outputs_of(session, feeds))
        measured = [node for node in kept if "reached" in node.why or "constant" in node.why]
        notes = [f"{len(kept)} of {len(model.graph.node)} nodes in fp32"]
        notes += [f"{node.op} {node.node} in fp32: {node.why}" for node in measured[:8]]
        return {"score": asdict(score), "notes": notes}

    def _int8(self, scratch: Path) -> dict[str, Any]:
        calibration, evaluation = self._data()
        model = onnx.load(self._exported.graph)
        self._tell("int8: calibrating", 0, 0)
        step = max(1, len(calibration[0]) // CALIBRATED_ON)
        prepared = int8.calibrate(model, calibration[0][::step])
        found = Search(prepared, self._promise, calibration, evaluation, self._tell).run()
        if found.model is not None:
            onnx.save(found.model, scratch / TYPED)
            onnx.save(int8.for_onnxruntime(found.model), scratch / SERVED)
        return {"score": asdict(found.score), "notes": _int8_notes(found)}


def _int8_notes(found: Found) -> list[str]:
    """Why INT8 did not pass, or what it cost to make it pass."""
    if found.model is None:
        layers = "; ".join(f"{hurt.op} {hurt.node} {hurt.damage:.2g}" for hurt in found.worst[:4])
        return [f"squared error over squared output of layers alone in int8: {layers or 'no layer can be'}"]
    count = found.products - len(found.kept)
    notes = [f"{count} of {found.products} products in int8, ranges by {found.method.lower()}"]
    return notes + [f"{hurt.op} {hurt.node} in fp32: alone {hurt.damage:.2g} of the output" for hurt in found.kept[:8]]


def batches(preparation: Preparation, items: Sequence[Any], size: int, side: str) -> list[Arrays]:
    """Items as inputs, `size` at a time; those of about one length together. Raises BuildError when one cannot be."""
    good = list(preparation(items))
    bad = [str(item) for item in good if isinstance(item, Exception)]
    if bad:
        raise BuildError(f"{side}: {len(bad)} of {len(good)} items cannot be computed: {bad[0]}")
    if preparation.measures_length:
        good.sort(key=len)
    try:
        return [preparation.batch(good[at : at + size]) for at in range(0, len(good), size)]
    except ValueError as error:  # numpy's, of arrays that cannot lie in one batch
        raise BuildError(f"{side}: items do not fit into one batch: {error}") from None


def _digest(items: Sequence[Any]) -> str:
    return hashlib.sha256("".join(digest_of(item) for item in items).encode()).hexdigest()
