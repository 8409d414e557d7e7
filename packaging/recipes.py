"""Fills the recipes for conda and Spack in for a source distribution: its version and checksum."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

HERE = Path(__file__).parent
FOLDERS = ("conda", "spack")


def fill(sdist: Path, into: Path) -> None:
    """Write each recipe to the folder of its name in a folder."""
    values = {
        "@VERSION@": sdist.name.removeprefix("gdrpy-").removesuffix(".tar.gz"),
        "@SHA256@": hashlib.sha256(sdist.read_bytes()).hexdigest(),
    }
    for template in (path for folder in FOLDERS for path in sorted((HERE / folder).rglob("*.*"))):
        text = template.read_text()
        for name, value in values.items():
            text = text.replace(name, value)
        made = into / template.relative_to(HERE)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdist", type=Path, metavar="SDIST", help="dist/gdrpy-VERSION.tar.gz")
    parser.add_argument("into", type=Path, metavar="FOLDER", help="where they go")
    args = parser.parse_args()
    fill(args.sdist, args.into)


if __name__ == "__main__":
    main()
