"""Heartbeats: tells the launcher which phase of which step this rank is in, and how long others may wait for it."""

from trivium.training.loop import Loop, Observer
from trivium.training.supervision.pulse import Phase, Post
from trivium.training.supervision.watchdog import seconds_to_wait


class Heartbeat(Observer):
    """post: where heartbeats go."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def enter(self, loop: Loop, phase: Phase) -> None:
        self._post.beat(loop.step, phase)
        is_first = loop.step == loop.first_step + 1
        loop.mesh.wait_at_most(seconds_to_wait(loop.config.supervision, phase, is_first=is_first))
