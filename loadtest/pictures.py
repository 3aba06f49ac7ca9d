"""Pictures to send: seeded smooth noise as JPEG, so that a server has to decode and scale something like a photograph.

A run sends each of a few dozen again and again: requests name them by number, and the load generator makes them before
it sends the first. Must not know schedules or sockets.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

QUALITY = 85  # of the JPEG


def picture(number: int) -> bytes:
    """Picture `number`, the same in every run: about 500 x 375 pixels, 10 to 30 kB of JPEG."""
    random = np.random.default_rng(number)
    width = int(random.integers(450, 551))
    coarse = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, width * 3 // 4), Image.Resampling.BICUBIC)
    file = BytesIO()
    smooth.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
