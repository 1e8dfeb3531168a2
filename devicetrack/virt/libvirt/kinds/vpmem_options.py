"""The options of persistent-memory namespaces, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
import os
import re
from typing import NamedTuple

from oslo_config import cfg

from devicetrack import exception
from devicetrack.conf import libvirt as options
from devicetrack.conf import placement as placement_options

OPTION = f'[{options.LIBVIRT_GROUP}] pmem_namespaces'
RESOURCE_CLASS_PREFIX = 'CUSTOM_PMEM_NAMESPACE_'

_LABEL = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]*')
# The kernel keeps 63 bytes of a namespace's name (struct nd_namespace_label in drivers/nvdimm/label.h).
_NAME = re.compile(r'[^\s/:,|\x00-\x1f\x7f]{1,63}')
_MAX_CLASS_LENGTH = 255    # placement's limit


class VPMEMOptions(NamedTuple):
    """All options of namespaces. ``labels`` has the label of each configured name."""

    labels: Mapping[str, str]
    ndctl_command: str
    directory: str
    wipe_rate_mib_s: int
    wipe_wait_s: int
    per_numa_node: bool


def resource_class(label: str) -> str:
    """Return the resource class of the namespaces of a label."""
    return RESOURCE_CLASS_PREFIX + re.sub(r'[^A-Z0-9_]', '_', label.upper())


def read(conf: cfg.ConfigOpts) -> VPMEMOptions:
    """Read ``[libvirt] pmem_namespaces`` and ``[devicetrack_vpmem]``.

    :raises InvalidConfiguration: an option cannot be used; the message names it, its value and the reason
    """
    options.register(conf)
    placement_options.register(conf)
    ours = conf[options.VPMEM_GROUP]
    if not os.path.isabs(ours.ndctl_command):
        raise exception.InvalidConfiguration(
            f'[{options.VPMEM_GROUP}] ndctl_command', ours.ndctl_command, 'it runs as root: give its absolute path')
    return VPMEMOptions(_labels(conf[options.LIBVIRT_GROUP].pmem_namespaces), ours.ndctl_command, ours.directory,
                        ours.wipe_rate_mib_s, ours.wipe_wait_s, conf[placement_options.GROUP].pmem_per_numa_node)


def _labels(items: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    classes: dict[str, str] = {}
    for item in items:
        label, colon, names = (part.strip() for part in item.partition(':'))
        if not colon:
            raise exception.InvalidConfiguration(OPTION, item, 'there is no colon: it takes LABEL:NAME[|NAME…]')
        if not _LABEL.fullmatch(label):
            raise exception.InvalidConfiguration(
                OPTION, item, f'{label!r} is no label: letters, digits, underscores, dots and dashes make one')
        known_as = resource_class(label)
        if len(known_as) > _MAX_CLASS_LENGTH:
            raise exception.InvalidConfiguration(OPTION, item, f'{known_as} is too long for a resource class')
        if known_as in classes:
            other = classes[known_as]
            raise exception.InvalidConfiguration(
                OPTION, item,
                f'the label {label} is there twice: name its namespaces in one place' if other == label
                else f'the labels {other} and {label} are both counted as {known_as}')
        classes[known_as] = label
        for name in (part.strip() for part in names.split('|')):
            if not _NAME.fullmatch(name):
                raise exception.InvalidConfiguration(OPTION, item, f'{name!r} is no name of a namespace')
            if name in labels:
                where = 'twice' if labels[name] == label else f'under {labels[name]} too'
                raise exception.InvalidConfiguration(OPTION, item, f'the namespace {name} is there {where}')
            labels[name] = label
    return labels
