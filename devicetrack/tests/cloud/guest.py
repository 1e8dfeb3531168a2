"""The image that instances boot: guest.S and guest_disk.c, and nothing else."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
from typing import Final

_SOURCES: Final = tuple(pathlib.Path(__file__).with_name(name) for name in ('guest.S', 'guest_disk.c'))
_SIZE: Final = 1 << 20
_ADDRESS: Final = 0x7c00
_SECTOR: Final = 512
# As many sectors as guest.S loads, and itself.
_LONGEST: Final = 8 * _SECTOR


def image() -> bytes:
    """The raw disk of the guest. Takes gcc and binutils, which bindep.txt has for the library already."""
    with tempfile.TemporaryDirectory() as directory:
        compiled = pathlib.Path(directory, 'guest')
        subprocess.run(['gcc', '-Os', '-ffreestanding', '-fno-pic', '-fno-stack-protector', '-mno-red-zone',
                        '-mgeneral-regs-only', '-fcf-protection=none', '-fno-asynchronous-unwind-tables',
                        '-nostdlib', '-static', '-no-pie', f'-Wl,-Ttext={_ADDRESS:#x}', '-Wl,--build-id=none',
                        '-Wl,-N', '-Wl,--oformat=binary', '-o', compiled, *_SOURCES], check=True)
        code = compiled.read_bytes()
    if code[_SECTOR - 2:_SECTOR] != b'\x55\xaa' or len(code) > _LONGEST:
        raise ValueError(f'guest.S makes {len(code)} bytes, which are no boot sector and what it loads')
    return code.ljust(_SIZE, b'\0')
