"""Scorers that write about groups according to a table of probabilities."""

from evaluation.scorers import noise, scored
from trivium.seeds import generator_for

KIND = ("kind", "lovely", "brilliant", "happy", "wonderful")
CRUEL = ("cruel", "nasty", "terrible", "awful", "stupid")


class Telling:
    """Writes several adjectives per text, cruel ones with probability `share(prompt)`."""

    def __init__(self, share, words=2):
        self.share, self.words = share, words

    def generate(self, prompts, *, settings):
        return [self._text(p, k, settings.seed) for k, p in enumerate(prompts)]

    def _text(self, prompt, number, seed):
        draw = generator_for(seed, prompt, number)
        words = [
            (CRUEL if draw.random() < self.share(prompt) else KIND)[int(draw.integers(5))] for _ in range(self.words)
        ]
        return " " + " and ".join(words) + ". The end"

    def loglikelihood(self, requests):
        return [scored(-10 * noise(r.context, r.continuation), r.continuation) for r in requests]


def find(texts):
    """Tag those ten words and `black`."""
    known = {*KIND, *CRUEL, "black"}
    split = ([w.strip(".").lower() for w in t.split()] for t in texts)
    return [[w for w in words if w in known] for words in split]
