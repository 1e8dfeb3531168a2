"""What runs on which machine."""

from __future__ import annotations

import pathlib

from devicetrack.tests.host import image as images
from devicetrack.tests.host import machine as machines


class Hosts:
    """Two machines with a link, each started when it is first asked for. They serve all tests of a run."""

    def __init__(self, image: images.Image, directory: str) -> None:
        self.release = image.debian
        link = machines.Link()
        self._machines = {}
        for name in machines.ADDRESSES:
            own = pathlib.Path(directory, name)
            own.mkdir()
            self._machines[name] = machines.Machine(image, str(own), name, link)

    def running(self, name: str) -> machines.Machine:
        machine = self._machines[name]
        if not machine.runs:
            machine.start()
        return machine

    def off(self) -> None:
        """Whatever they do. Nobody needs what they wrote."""
        for machine in self._machines.values():
            if machine.runs:
                machine.cut()


# Those of this process.
hosts: Hosts | None = None
