"""Alembic revisions of the database; `autodeploy db upgrade` applies them."""
