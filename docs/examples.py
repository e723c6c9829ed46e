"""An extension of the API reference: examples in docstrings are code, not nested quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

# Paragraphs of an example: prompts and what they print.
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*\n).+)*", re.MULTILINE)


class Examples(Extension):
    """Puts a fence around the examples of each docstring."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub("```pycon\n\\g<0>\n```", obj.docstring.value)
