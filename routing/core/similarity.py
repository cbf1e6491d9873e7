"""How well a capability's words answer a text, in any script. Pure; rapidfuzz does the comparing of words.

Words of alphabets are compared as wholes, with tolerance for spelling; Chinese, Japanese and Korean, which put no
spaces between words, as overlapping pairs of characters.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from rapidfuzz import fuzz, process

CJK_RANGE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"  # kana, ideographs, hangul
WORDS = re.compile(rf"[{CJK_RANGE}]+|(?:(?![{CJK_RANGE}])[^\W_])+")
CJK = re.compile(rf"[{CJK_RANGE}]")
CJK_BREAKS = re.compile(r"^请|请问|帮我|帮忙|一下|[这那一][个份些篇封条张]|[的了和与及把将我你您]")
FILLERS = frozenset(
    {
        *("a", "an", "and", "for", "from", "in", "into", "of", "on", "or", "the", "to", "with"),
        *("can", "could", "i", "it", "me", "my", "please", "that", "these", "this", "those", "you"),
    }
)
SAME_WORD = 75.0
"""Percent of likeness from which two words count as one: summarize/summary (75), sumary/summary (92)."""


def words(text: str) -> frozenset[str]:
    """The comparable parts of a text: words in lower case, CJK runs as pairs of characters."""
    found: set[str] = set()
    for chunk in WORDS.findall(text.lower()):
        if not CJK.match(chunk):
            found.add(chunk)
            continue
        for run in filter(None, CJK_BREAKS.split(chunk)):
            found.update(run[i : i + 2] for i in range(max(1, len(run) - 1)))
    return frozenset(found - FILLERS) or frozenset(found)


def likeness(wanted: str, offered: str) -> float:
    """How much of what `wanted` says is said by `offered`, 0 to 1."""
    asked, said = words(wanted), words(offered)
    if not asked or not said:
        return 0.0
    return sum(best_of(word, said) for word in asked) / len(asked)


remembered_likeness = lru_cache(maxsize=4096)(likeness)
"""`likeness` of pairs that come again and again."""


class Vocabulary:
    """Texts by name, indexed by word, so that a text is held against all of them in one pass over their words."""

    __slots__ = ("names_of", "spelled")

    def __init__(self, texts: Mapping[str, str]):
        self.names_of: dict[str, list[str]] = {}
        for name, text in texts.items():
            for word in words(text):
                self.names_of.setdefault(word, []).append(name)
        self.spelled = [word for word in self.names_of if not CJK.match(word)]

    def scores(self, wanted: str) -> dict[str, float]:
        """The `likeness` of each text that has any, by name."""
        asked = words(wanted)
        sums: dict[str, float] = {}
        for word in asked:
            best = dict.fromkeys(self.names_of.get(word, ()), 1.0)
            if not CJK.match(word):
                for near, percent, _ in process.extract(
                    word, self.spelled, scorer=fuzz.ratio, score_cutoff=SAME_WORD, limit=None
                ):
                    for name in self.names_of[near]:
                        best[name] = max(best.get(name, 0.0), percent / 100)
            for name, score in best.items():
                sums[name] = sums.get(name, 0.0) + score
        return {name: total / len(asked) for name, total in sums.items()}


def best_of(word: str, said: frozenset[str]) -> float:
    """1 for a word that is said, its likeness (0 to 1) to the nearest one, or 0 where none is near."""
    if word in said:
        return 1.0
    if CJK.match(word):
        return 0.0
    nearest = process.extractOne(word, said, scorer=fuzz.ratio, score_cutoff=SAME_WORD)
    return nearest[1] / 100 if nearest else 0.0
