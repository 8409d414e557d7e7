"""Run one test by name: ``worker.py FILE Class.method "{'argument': value}"``."""

import ast
import importlib
import sys
from operator import attrgetter
from pathlib import Path


def main(path: str, name: str, arguments: str) -> None:
    sys.path.insert(0, str(Path(path).parent))
    owner: object = importlib.import_module(Path(path).stem)
    class_name, _, function = name.rpartition(".")
    if class_name:
        owner = attrgetter(class_name)(owner)()
    getattr(owner, function)(**ast.literal_eval(arguments))


main(*sys.argv[1:])
