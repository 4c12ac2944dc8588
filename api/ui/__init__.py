"""The pages: server-rendered HTML that reads without scripts, in English and Chinese."""
