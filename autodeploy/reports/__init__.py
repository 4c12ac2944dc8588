"""Reports of a PlanSet: text, tables and Markdown, in English and Chinese. Pure functions of specs and plans."""
