"""Tables and repositories: searches, plans and events on SQLite or PostgreSQL. All SQL is here."""
