"""``python -m gdrpy``: the same as the ``gdrpy`` command."""

from gdrpy.cli import main

raise SystemExit(main())
