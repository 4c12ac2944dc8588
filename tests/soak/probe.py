"""`python -m tests.soak.probe URL SECONDS EVERY`: the time of every answer of /livez in milliseconds, a line each."""

from __future__ import annotations

import http.client
import sys
import time
from contextlib import closing
from urllib.parse import urlsplit


def main(url: str, seconds: float, every_s: float) -> None:
    """Asks over one connection, so that only the answer is timed."""
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)) as connection:
        connection.connect()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            started_s = time.perf_counter()
            connection.request("GET", "/livez")
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            sys.stdout.write(f"{(time.perf_counter() - started_s) * 1e3:.3f}\n")
            time.sleep(every_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
