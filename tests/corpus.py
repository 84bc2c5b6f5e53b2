"""A corpus that comes with Python, and the words that lead to its pieces."""

from __future__ import annotations

import math
import re
from collections import Counter
from pydoc_data.topics import topics


def chunks() -> list[str]:
    """Cut the reference of the Python language into pieces."""
    found = []
    for text in topics.values():
        paragraphs = re.split(r"\n\s*\n", text)
        found += ["\n\n".join(paragraphs[n : n + 3]) for n in range(0, len(paragraphs), 3)]
    return found


def best(texts: list[str], query: str, count: int = 3) -> list[int]:
    """Return which texts suit a query, by Okapi BM25 over words."""
    words = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    mean = sum(map(Counter.total, words)) / len(words)
    scores = [0.0] * len(words)
    for word in set(re.findall(r"\w+", query.lower())):
        having = sum(word in counts for counts in words)
        rarity = math.log(1 + (len(words) - having + 0.5) / (having + 0.5))
        for number, counts in enumerate(words):
            length = 0.25 + 0.75 * counts.total() / mean
            scores[number] += rarity * counts[word] * 2.2 / (counts[word] + 1.2 * length)
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:count]
