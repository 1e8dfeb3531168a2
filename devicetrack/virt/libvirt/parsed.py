"""A cache of parsed definitions: at the next audit nearly all of them are unchanged.

Parsing a definition takes about as long as libvirt needs to write it. A digest of its text takes a fraction of that,
and other threads need not wait for it. The texts themselves are too large to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import hashlib

from devicetrack.virt.libvirt import domain_xml

Parse = Callable[[str, str], domain_xml.Domain]


class Parsed:
    """The definitions of a host's domains, by the digests of their texts, as the last look found them.

    Threads may look at the same time.
    """

    def __init__(self) -> None:
        # None until the first look is done. Nothing is known in that look, so a process that starts makes no digests.
        self._known: dict[bytes, domain_xml.Domain] | None = None

    @contextlib.contextmanager
    def look(self) -> Iterator[Parse]:
        """Look at all domains in the block; yields a replacement for :func:`.domain_xml.parse`.

        Threads may call the replacement. A text that cannot be parsed raises its error in every look. After an
        exception in the block, the cache is as it was before.
        """
        known, found = self._known, dict[bytes, domain_xml.Domain]()

        def parse(text: str, document: str) -> domain_xml.Domain:
            if known is None:
                return domain_xml.parse(text, document)
            # libvirt may pass on bytes that are not UTF-8.
            digest = hashlib.sha256(text.encode('utf-8', 'surrogatepass')).digest()
            domain = known.get(digest)
            if domain is None:
                domain = domain_xml.parse(text, document)
            found[digest] = domain
            return domain

        yield parse
        self._known = found
