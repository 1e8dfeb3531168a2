"""The image that instances boot: guest.S, assembled, and nothing else."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
from typing import Final

_SOURCE: Final = pathlib.Path(__file__).with_name('guest.S')
_SIZE: Final = 1 << 20
_ADDRESS: Final = 0x7c00


def image() -> bytes:
    """The raw disk of the guest. Takes gcc and binutils, which bindep.txt has for the library already."""
    with tempfile.TemporaryDirectory() as directory:
        compiled = pathlib.Path(directory, 'guest')
        subprocess.run(['gcc', '-nostdlib', '-static', '-no-pie', f'-Wl,-Ttext={_ADDRESS:#x}', '-Wl,--build-id=none',
                        '-Wl,--oformat=binary', '-o', compiled, _SOURCE], check=True)
        sector = compiled.read_bytes()
    if len(sector) != 512:
        raise ValueError(f'guest.S makes {len(sector)} bytes, which is no boot sector')
    return sector.ljust(_SIZE, b'\0')
