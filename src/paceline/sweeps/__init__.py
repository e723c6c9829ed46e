"""How do several runs answer one question? A recipe says what varies; each point of its grid is a run of its own."""
