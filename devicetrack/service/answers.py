"""The answers to the claim manager of a host, from the documents."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from collections.abc import Set

from devicetrack.service.document import Document
from devicetrack.service.document import DONE
from devicetrack.service.document import EVACUATION
from devicetrack.service.document import Move
from devicetrack.service.protocols import Instances


class Answers:
    """Answers the manager of a host: a :class:`~devicetrack.claims.service.MovingService`."""

    def __init__(self, host: str, instances: Instances) -> None:
        self._host, self._instances = host, instances

    def instances(self, uuids: Set[str]) -> dict[str, str]:
        here, states = self._instances.documents(self._host), {}
        for uuid in uuids:
            text = here.get(uuid) or self._instances.document(uuid)
            if text is not None:                # else it is none of this service
                document = Document.read(text)
                states[uuid] = ('deleted' if document.is_over else 'here' if document.host == self._host
                                else 'elsewhere')
        return states

    def migrations(self, uuids: Sequence[str]) -> dict[str, Move]:
        """A document has its moves until each host has settled its half: then no row names them."""
        return {move.uuid: move for document in self._documents()
                for move in (*document.ended, *(() if document.move is None else (document.move,)))}

    def evacuated_from_here(self) -> list[str]:
        return [document.uuid for document in self._documents() if document.host != self._host
                for move in document.ended
                if (move.kind, move.status, move.source_compute) == (EVACUATION, DONE, self._host)
                and self._host in move.unsettled]

    def _documents(self) -> Iterator[Document]:
        return map(Document.read, self._instances.documents(self._host).values())
