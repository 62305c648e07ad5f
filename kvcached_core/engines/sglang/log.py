"""Our lines appear among SGLang's own, with its format and its level."""

import logging

logger = logging.getLogger("sglang.kvcached")
