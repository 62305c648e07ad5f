"""Our lines appear among vLLM's own, with its format and its level."""

import logging

logger = logging.getLogger("vllm.kvcached")
