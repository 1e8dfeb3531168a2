"""Parses libvirt's XML documents safely.

Definitions come from libvirtd, but services wrote parts of them and, through the services, tenants did. So the parser
resolves, fetches and expands nothing, and an error says where a document cannot be read but never quotes it.
"""

from __future__ import annotations

import uuid

from lxml import etree

from devicetrack import exception

# No daemon of libvirt can send more: VIR_NET_MESSAGE_MAX in src/rpc/virnetprotocol.x. A document is a string of at most
# REMOTE_STRING_MAX in src/remote/remote_protocol.x, which was 64 KiB and 1 MiB and is now 4 MiB, and test:/// has no
# limit. So this one is not that of strings: a domain whose definition nobody reads may have any device, and all stay
# withheld.
MAX_LENGTH = 32 * 1024 * 1024


def parse(text: str, document: str, root: str, everything: bool = False) -> etree._Element:
    """Parse a document whose root element is ``root``.

    :param document: what it is, for messages
    :param everything: keep comments, processing instructions, CDATA sections and the blanks between elements, for a
        caller that writes it again
    :raises InvalidDocument: it is too long, not well-formed, has a document type or another root
    """
    if len(text) > MAX_LENGTH:
        reason = f'{len(text)} characters, at most {MAX_LENGTH} are read'
        raise exception.InvalidDocument(document, 'length', reason)
    # libvirt never writes a document type, and text cannot contain this string unescaped. Without a document type there
    # are no entities to expand.
    if '<!DOCTYPE' in text:
        raise exception.InvalidDocument(document, 'document type', 'none is allowed')
    parser = etree.XMLParser(encoding='utf-8', resolve_entities=False, no_network=True, load_dtd=False,
                             dtd_validation=False, huge_tree=False, strip_cdata=not everything,
                             remove_comments=not everything, remove_pis=not everything,
                             remove_blank_text=not everything, collect_ids=False)
    try:
        found = etree.fromstring(text.encode('utf-8'), parser)
    except UnicodeEncodeError as error:
        raise exception.InvalidDocument(document, f'character {error.start}', 'not a character of XML') from None
    except etree.XMLSyntaxError as error:
        # Neither the message nor the chained error: both may quote the document.
        line, column = error.position
        raise exception.InvalidDocument(document, f'line {line}, column {column}', 'not well-formed') from None
    if found.tag != root:
        raise exception.InvalidDocument(document, 'root element', f'not {root}')
    return found


def canonical_uuid(text: str | None, document: str, where: str) -> str:
    """Return the UUID in lower case with dashes.

    :raises InvalidDocument: it is missing or not a UUID
    """
    try:
        return str(uuid.UUID((text or '').strip()))
    except ValueError:
        raise exception.InvalidDocument(document, where, 'not a UUID') from None


def number(text: str | None, document: str, where: str) -> int:
    """Return a decimal number that is not negative.

    :raises InvalidDocument: it is missing or not a number
    """
    stripped = (text or '').strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) < 20):
        raise exception.InvalidDocument(document, where, 'not a number')
    return int(stripped)


def required(element: etree._Element, path: str, document: str) -> str:
    """Return the text of the element at ``path``, without blanks around it.

    :raises InvalidDocument: there is no such element, or it is empty
    """
    text = (element.findtext(path) or '').strip()
    if not text:
        raise exception.InvalidDocument(document, path, 'missing')
    return text
