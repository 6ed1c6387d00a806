"""ByzFL's own top imports torchvision and more, of which its rules use nothing: stand in for it."""

import importlib.util
import sys

sys.modules["byzfl"] = importlib.util.module_from_spec(importlib.util.find_spec("byzfl"))
