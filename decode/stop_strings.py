"""Finds the first stop string in text that arrives in pieces. Must not know tokens or requests.

Algorithm: Aho and Corasick, "Efficient string matching" (1975); each character costs the same however many stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Matcher of one request. The match that ends first wins; of those that end together, the longest.

    How the text is cut into pieces never changes what is given out in all.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]  # characters matched in this state: they may begin a stop string, so they are held back
        self._matched = [0]  # length of the longest stop string that ends in this state
        for text in stop:
            self._add(text)
        self._fallback = [0] * len(self._next)
        self._link()
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that surely comes before any stop string, whether one was found). After a match there is no more."""
        if not self._next[0]:
            return text, False
        whole = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            self._state = self._after(self._state, char)
            if length := self._matched[self._state]:
                self._held = ""
                return whole[: end - length], True
        cut = len(whole) - self._depth[self._state]
        self._held = whole[cut:]
        return whole[:cut], False

    def flush(self) -> str:
        """What was held back, at the end of a text without a stop string."""
        text, self._held = self._held, ""
        return text

    def _add(self, text: str) -> None:
        state = 0
        for char in text:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._matched.append(0)
            state = self._next[state][char]
        self._matched[state] = len(text)

    def _link(self) -> None:
        """Give every state the state of its longest proper suffix, nearest to the root first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._fallback[child] = self._after(self._fallback[state], char)
                queue.append(child)
            self._matched[state] = self._matched[state] or self._matched[self._fallback[state]]

    def _after(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(char, 0)
