"""What people read of a PlanSet: text, rows and Markdown, in English and Chinese. Pure functions of specs and plans."""
