"""Extractive summaries: the sentences whose words matter most. English is taken by words, Chinese by bigrams."""

import math
import re
from collections import Counter
from collections.abc import Iterable

CJK = re.compile(r"[\u4e00-\u9fff]+")
WORD = re.compile(r"[a-z][a-z'-]{2,}")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
NOT_PROSE = re.compile(r"^\s*([|#`>!{}\[]|\d+\.\s|[-*]\s|</?\w)")
COMMON_ENGLISH = """
the and for that this with from are was were its his her they them then than not but all any can may has have had one
two who what when where which while will would into onto over out only each every other also same you your our does been
being there these those such more most less very just
"""
COMMON_CHINESE = "我们 一个 这个 可以 没有 什么 自己 它们 他们 不是 就是 时候"
COMMON = frozenset((COMMON_ENGLISH + COMMON_CHINESE).split())


def sentences(text: str) -> list[str]:
    """The prose of a Markdown text, without code, tables, headings and lists."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    paragraphs = (
        " ".join(lines)
        for block in re.split(r"\n\s*\n", prose)
        if (lines := [line.strip() for line in block.splitlines() if not NOT_PROSE.match(line)])
    )
    parts = (part.strip() for paragraph in paragraphs for part in SENTENCE_END.split(plain(paragraph)))
    return [part for part in parts if len(part) > (8 if CJK.search(part) else 20)]


def plain(markdown: str) -> str:
    """Without links, emphasis and code marks."""
    return re.sub(r"[*`]|\*\*", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown))


def terms(text: str) -> list[str]:
    """Words, and pairs of neighbouring Chinese characters; common ones left out."""
    words = WORD.findall(text.lower())
    bigrams = [run[i : i + 2] for run in CJK.findall(text) for i in range(len(run) - 1)]
    return [term for term in [*words, *bigrams] if term not in COMMON]


def keywords(text: str, count: int = 6) -> list[str]:
    """The most frequent terms of the prose, the longer first among equals."""
    ranked = sorted(
        Counter(terms(" ".join(sentences(text)))).items(), key=lambda item: (-item[1], -len(item[0]), item[0])
    )
    return [term for term, _times in ranked[:count]]


def summary(text: str, count: int = 3) -> str:
    """The `count` weightiest sentences, in the order of the text."""
    parts = sentences(text)
    weight = weights(parts)
    best = sorted(sorted(range(len(parts)), key=lambda index: -weight[index])[:count])
    chosen = [parts[index] for index in best]
    return ("" if chosen and CJK.search(chosen[0]) else " ").join(chosen)


def weights(parts: Iterable[str]) -> list[float]:
    """The weight of each sentence by its terms; early ones count a little more, since authors begin with the point."""
    bags = [terms(part) for part in parts]
    times = Counter(term for bag in bags for term in bag)
    return [
        sum(math.log1p(times[term]) for term in set(bag)) / math.sqrt(len(bag) + 3) * (1 + 0.5 / (1 + index))
        for index, bag in enumerate(bags)
    ]
