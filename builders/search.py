"""Which products become INT8: all of them where the gate allows it, else all but the fewest that hurt most.

Where all do not pass, every product is quantized alone once, which ranks them by damage. The search begins on the
calibration data; what passes there is judged on the gate's, and where it fails more are kept. Must not know sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx

from builders.bias import Shifts, biases, corrected, shifts
from builders.gate import Outputs, Score, damage, judge, outputs_of
from builders.int8 import METHODS, Prepared, for_onnxruntime, quantized
from builders.progress import Progress
from config_gen.sla.spec import Accuracy
from engines.session import Arrays, OnnxSession

RANKED_ON = 6  # batches: damage differs by orders of magnitude between layers, some dozens of items tell it


@dataclass(frozen=True, slots=True)
class Hurt:
    """A product and what it does to the outputs when it alone is INT8: squared error over squared size."""

    node: str
    op: str
    damage: float


@dataclass(frozen=True, slots=True)
class Found:
    """The result: `model` is None when no candidate passed; `score` is then that of the last one."""

    model: onnx.ModelProto | None
    method: str
    kept: tuple[Hurt, ...]
    products: int
    score: Score
    worst: tuple[Hurt, ...]  # the ranking's head, for people


class Search:
    """One model, its data and its promise."""

    def __init__(
        self,
        prepared: Prepared,
        accuracy: Accuracy,
        calibration: tuple[Sequence[Arrays], Outputs],
        evaluation: tuple[Sequence[Arrays], Outputs],
        tell: Progress,
    ) -> None:
        """Data as (batches, what the model in fp32 computes of them)."""
        self._prepared, self._accuracy, self._tell = prepared, accuracy, tell
        self._calibration, self._evaluation = calibration, evaluation
        self._scores: dict[tuple[str, int], Score] = {}
        self._method = ""
        self._ranking: list[Hurt] = []
        self._biases = biases(prepared.model, prepared.nodes)
        self._shifts: Shifts = {}

    def run(self) -> Found:
        """At least half of the products become INT8, or nothing does: FP16 is then the better answer."""
        nodes = self._prepared.nodes
        if not nodes:
            none = Score(self._accuracy.metric, 0, None, None, "no product (MatMul, Gemm, Conv) has constant weights")
            return Found(None, "", (), 0, none, ())
        self._method = self._best_method()
        self._tell("int8: correcting biases", 0, 0)
        everywhere = quantized(self._prepared, self._method, nodes)
        self._shifts = shifts(self._prepared.model, everywhere, self._biases, self._calibration[0])
        most = len(nodes) // 2
        promising = fewest(lambda kept: self._on_calibration(kept).passed, 0, most)
        if promising is None:
            return self._found(None, most, self._on_calibration(most))
        kept = fewest(lambda kept: self._on_evaluation(kept).passed, promising, most)
        if kept is None:
            return self._found(None, most, self._on_evaluation(most))
        return self._found(self._quantized(kept), kept, self._on_evaluation(kept))

    def _found(self, model: onnx.ModelProto | None, kept: int, score: Score) -> Found:
        if model is None and not self._ranking:  # who hurts is told also where none can be kept
            self._ranking = self._rank()
        ranking = tuple(self._ranking)
        return Found(model, self._method, ranking[:kept], len(self._prepared.nodes), score, ranking[:8])

    def _best_method(self) -> str:
        """The calibration whose INT8 everywhere does least damage."""
        feeds, wanted = self._calibration
        found = {}
        for at, method in enumerate(METHODS):
            self._tell("trying calibrations", at, len(METHODS))
            model = quantized(self._prepared, method, self._prepared.nodes)
            found[method] = damage(wanted, self._outputs(model, feeds))
        return min(found, key=lambda method: found[method])

    def _rank(self) -> list[Hurt]:
        feeds, wanted = self._calibration[0][-RANKED_ON:], self._calibration[1][-RANKED_ON:]
        ops = {node.name: node.op_type for node in self._prepared.model.graph.node}
        ranking = []
        for at, node in enumerate(self._prepared.nodes):
            self._tell("looking for layers that hurt", at, len(self._prepared.nodes))
            model = self._corrected([node])
            ranking.append(Hurt(node, ops[node], damage(wanted, self._outputs(model, feeds))))
        return sorted(ranking, key=lambda hurt: -hurt.damage)

    def _on_calibration(self, kept: int) -> Score:
        return self._score("calibration", kept, self._calibration)

    def _on_evaluation(self, kept: int) -> Score:
        return self._score("evaluation", kept, self._evaluation)

    def _score(self, side: str, kept: int, data: tuple[Sequence[Arrays], Outputs]) -> Score:
        if (side, kept) not in self._scores:
            self._tell(f"int8 with {kept} products in floating point", 0, 0)
            outputs = self._outputs(self._quantized(kept), data[0])
            self._scores[side, kept] = judge(self._accuracy, data[1], outputs)
        return self._scores[side, kept]

    def _quantized(self, kept: int) -> onnx.ModelProto:
        if kept and not self._ranking:
            self._ranking = self._rank()
        exact = {hurt.node for hurt in self._ranking[:kept]}
        return self._corrected([node for node in self._prepared.nodes if node not in exact])

    def _corrected(self, nodes: Sequence[str]) -> onnx.ModelProto:
        return corrected(quantized(self._prepared, self._method, nodes), self._shifts, self._biases, nodes)

    @staticmethod
    def _outputs(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> Outputs:
        return outputs_of(OnnxSession(for_onnxruntime(model).SerializeToString()), feeds)


def fewest(passes: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest number from `least` to `most` that passes, found by growing steps and halving what they skipped.

    None when `most` does not pass. More products kept are taken to do no worse.
    """
    low, high, step = least - 1, least, 1
    while not passes(high):
        if high >= most:
            return None
        low, high, step = high, min(most, high + step), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high
