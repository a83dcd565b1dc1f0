"""How a reproducer uses an SGLang server. The user starts the server with the flags of the failed run."""

from __future__ import annotations

from coldproof.adapters.spec.reproduction import Reproduction, attached_command, template_beside

SGLANG = Reproduction(template=template_beside(__file__), command=attached_command)
