"""What a compute host of the cloud has besides what one of ``make host-test`` has."""

from __future__ import annotations

from typing import Final

from devicetrack.tests.host import image as images

DEBIAN: Final = 13

CONTENTS: Final = images.Contents(
    name='nova',
    # Nova alone zeroes namespaces by daxio, it converts images, and its resize copies disks to the other host.
    packages=('openssh-client', 'openssh-server', 'pmdk-tools', 'qemu-utils'),
    # As in tox.ini, since Nova outside and inside is one release.
    requirements=('nova==34.*', 'SQLAlchemy<2.1'))


def get() -> images.Image:
    """The image of the compute hosts, built if there is none: that takes minutes, and root.

    :raises CannotBuild: it cannot be built here
    """
    return images.get(DEBIAN, CONTENTS)
