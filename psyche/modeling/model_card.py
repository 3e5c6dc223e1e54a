"""The model card, README.md, of an exported model."""

from collections.abc import Sequence
from typing import Final

CARD_NAME: Final = "README.md"
_HEAD: Final = """\
---
library_name: transformers
pipeline_tag: text-generation
license: unknown
tags:
- psyche
- llama
---
"""


def format_card(title: str, summary: str, rows: Sequence[tuple[str, str]]) -> str:
    """The card as Markdown with the header that the Hugging Face Hub reads; `rows` are names and values of a table."""
    table = "\n".join(f"| {name} | {_flatten(value)} |" for name, value in rows)
    return f"""{_HEAD}
# {_flatten(title)}

{_flatten(summary)}

| | |
|---|---|
{table}

## Use

```python
from transformers import pipeline

write = pipeline("text-generation", model=".")  # this folder
print(write("Once upon a time", max_new_tokens=50)[0]["generated_text"])
```

The model continues a text. It was not taught to answer questions, and nothing filters what it writes.

## Not known

- **Licence.** Nobody has stated one. Whoever publishes the model writes it at the top of this file; the training data
  may set terms.
- **Data.** Describe here what the model was trained on.
- **Evaluation.** Nobody has measured the model but for its loss.
"""


def _flatten(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
