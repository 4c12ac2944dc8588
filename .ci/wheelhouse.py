"""Makes a directory from which AutoDeploy is installed without a network: every locked wheel of a service, and its own.

The wheels are checked against the hashes of requirements.lock while they are downloaded.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")
# Oldest first: a wheel for an older C library runs on a newer one.
GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_26", "manylinux_2_27", "manylinux_2_28")


def pip(*arguments: str) -> None:
    """Runs pip; leaves with its status when it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    status = subprocess.run(command, cwd=ROOT).returncode
    if status:
        sys.exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="made anew")
    parser.add_argument("--machine", choices=MACHINES, default=platform.machine(), help="where it will be installed")
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="its Python version")
    wanted = parser.parse_args()
    directory = wanted.directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    lock = directory / "requirements.txt"
    with lock.open("w", encoding="utf-8") as stream:
        subprocess.run([sys.executable, ROOT / ".ci" / "runtime_lock.py"], stdout=stream, check=True)
    tags = [part for each in GLIBC for part in ("--platform", f"{each}_{wanted.machine}")]
    hashed = ["--require-hashes", "--only-binary=:all:", "--requirement", str(lock)]
    pip("download", *hashed, *tags, "--python-version", wanted.python, "--dest", str(directory))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), ".")
    wheels = list(directory.glob("*.whl"))
    size_mb = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    print(f"{len(wheels)} wheels, {size_mb:.0f} MB, for {wanted.machine} and Python {wanted.python}", file=sys.stderr)


if __name__ == "__main__":
    main()
