"""Start of the program: `python PATH/stand_ins REQUEST.json`."""

import importlib
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
main = importlib.import_module("stand_ins.program").main
sys.path.pop(0)
sys.exit(main(Path(sys.argv[1])))
