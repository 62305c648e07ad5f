import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "ci" / "demo"
sys.path.insert(0, str(DEMO))
