"""What definitions said when they were last parsed: nearly all of them say the same at the next audit.

Parsing costs as much as a third of what libvirt needs to write a definition, and a digest of its text a fifth of that,
which other threads need not wait for. The texts themselves are too large to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
import contextlib
import hashlib

from devicetrack.virt.libvirt import domain_xml

Parse = Callable[[str, str], domain_xml.Domain]


class Parsed:
    """The definitions of a host's domains, by the digests of their texts, as the last look found them.

    Threads may look at the same time.

    :param hints: as :func:`.domain_xml.parse` takes them
    """

    def __init__(self, hints: Collection[str] = ()) -> None:
        self._hints = hints
        # None before the first look, which knows nothing yet: a process that starts need not make digests.
        self._known: dict[bytes, domain_xml.Domain] | None = None

    @contextlib.contextmanager
    def look(self) -> Iterator[Parse]:
        """Look at all domains in the block; yields what takes the place of :func:`.domain_xml.parse` meanwhile.

        Threads may call it. A text that cannot be parsed raises its error in every look. After an exception in the
        block, what was known before is known.
        """
        known, found = self._known, dict[bytes, domain_xml.Domain]()

        def parse(text: str, document: str) -> domain_xml.Domain:
            if known is None:
                return domain_xml.parse(text, document, self._hints)
            # libvirt may hand on what is no UTF-8.
            digest = hashlib.sha256(text.encode('utf-8', 'surrogatepass')).digest()
            domain = known.get(digest)
            if domain is None:
                domain = domain_xml.parse(text, document, self._hints)
            found[digest] = domain
            return domain

        yield parse
        self._known = found
